"""Hooks in the notebook's own IPython shell.

`CellExecution` handles SIGINT while it waits, and wakes its loop. If the kernel has cancelled the cell instead, that
counts as an interrupt. For other cells, `interrupts` raises KeyboardInterrupt in their code only: elsewhere the cell
would get no reply. `unhandled` shows a failure that no actor handled in the cell that spawned the mesh.
"""
