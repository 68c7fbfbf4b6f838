"""Cells on a rank: the shell that runs them, their outcome, and their interrupts.

`KeyboardInterrupt` is raised in user code only, and only for the intended execution: `RankShell.run_code` opens a
window around it (`Interrupts.user_code`), since IPython swallows some. An earlier interrupt is raised when user code
begins. A signal in the instant before a blocking call has no effect, so it is sent again until the handler has run; so
is one that Python dropped in a finalizer.

Tasks that cells leave on the event loop continue while the main thread waits for the next cell
(`LoopRunner.run`). A message wakes the loop; without such work, the thread waits for messages alone. The handler of a
signal that raises between cells is reported in the next cell (`runtime/node/signal_handlers.py`).

The debugger (`debugger`) is IPython's, on the rank. It stops at the line of `breakpoint()` itself, since a cell may
have no next line. It steps over the statements of a cell, which IPython runs one by one. The controller answers once
per cell whether a rank stops (`--break`). While a person is in the debugger, escalation after other ranks' errors
waits.

Completion and inspection run in `CellInspection`, an actor of its own, as `CellControl` must answer interrupts while a
property hangs. Each request has a thread and a time limit (`BackgroundThreads`). IPython's completer runs without jedi,
which evaluates properties and swaps the warning filters of the process. Inspection never reads the content of a tensor,
as that would wait for its GPU.

Variables are read and written by small request classes (`variables`), through one endpoint of the cell actor: on the
main thread, in turn behind the cells. Values are pickled one by one (`packed_values`), tensors without a graph. So an
error names the variable, and its size is checked before it is sent.

Code that reads the stacks of other threads first removes its own frame from `sys._current_frames()`. A frame that
references itself keeps the others alive, and with them process groups, whose store would still exist when the ranks
meet again at the same port.
"""
