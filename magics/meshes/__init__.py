"""The meshes of a notebook: their registry, lifecycle, status and stacks.

`whereabouts` queries the control thread of each rank, which reads `sys._current_frames()`, or the chain of coroutines
for top-level await. If a rank does not answer within half a second, the `Observer` of its host agent inspects the
process from outside: it reads /proc and, if installed, uses py-spy, which can read a process that is stopped or holds
the GIL in C. `--timeout`, the error of an interrupted cell, `%mesh stack` and `magics.cells.divergence` use it. The
divergence line appears after five seconds without an answer, when some ranks are done, or when the same ranks wait
twice in a row in a collective for others.
"""
