"""Completion and inspection in mesh cells and on option lines.

`cursor` (pure) locates the cursor. Lines of `%%mesh` and `%mesh` are completed from their parsers
(`option_completion`), so a new option or verb needs only the type of its argument. The first rank of the selector
completes a body. If the rank does not answer within 150 ms, or has not answered the previous request, its completions
come from a `Snapshot` of its namespace (`ranks`), requested after each cell that made names. `completer` finds names of
the body itself with jedi in this process.

Inspection queries all selected ranks: the first sends IPython's text, the others the data for a comparison. While a
cell runs, the kernel answers on its own threads (`kernel.services`) and never sets a parent header; front ends that
received `idle` get `busy` once more.
"""
