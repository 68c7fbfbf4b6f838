"""Hooks in the notebook's own IPython shell.

`CellExecution` handles SIGINT while it waits, and wakes its loop. If the kernel has cancelled the cell instead, that
counts as an interrupt. For other cells, `interrupts` raises KeyboardInterrupt in their code only: elsewhere the cell
would get no reply. `local_cells` shows the output of actors and unhandled failures in the cell that caused them, and
trims tracebacks.
"""
