"""Running a mesh cell: its plan, its execution on the ranks, and how it ends.

A `CellExecution` owns the state of one cell. Receiving threads only store text and append events to the `CellInbox`;
the loop of the cell changes the `CellState`, which the deciding modules read.

A rank's main thread runs one cell at a time; others wait in its actor's queue, on the worker, so that the order holds
for all messages there. `admission` tracks these queues for the notebook and plans the waves of `--first` and `--seq`.
An interrupted cell ends at once on ranks that have not begun it: those that have it in their queue drop it when they
reach it (`Interrupts.request`). `failed`, `ok` and `changed` refer to the last begun cell among the ended ones.

Jobs (`-a`) run in a loop on a thread (`background`): a cell that holds the main thread, maybe to wait for a job,
blocks no other. So the code of `--local` has the main thread while its ranks are watched. The cell is sent before
`-a` returns, so ranks get cells in the order of the notebook. A mesh cell within another one (`%%capture`, `%run`)
becomes a plain call that waits, since the thread's loop runs already; the jobs' loop watches its ranks.

`escalation` decides what is done to ranks, and `supervision` does it, each step for ranks that have not answered:

1. interrupt: KeyboardInterrupt, by a signal of the control thread to the main thread.
2. abort: break process groups from the control thread (`runtime.collectives`), first where the ranks are, then on the
   whole mesh, as a part of a group is of no use. At once after a second Ctrl-C. Otherwise five seconds after a person's
   interrupt, one second after a time limit's or another rank's error, 0.3 s after a death; then only for ranks in a
   collective. A rank that is silent half-way to the end of the cell is aborted wherever it is: it may wait in C++ where
   no frame shows a collective.
3. kill: SIGKILL and `heal()`, by a person's third Ctrl-C only, and not within a second of the abort.

A cell always ends: without the ranks that are silent five seconds after the last step (one second after a death).
They count as busy (on the dashboard: stuck). The next cell for them says so, `%mesh interrupt --break` aborts once
more, and `%mesh interrupt --kill` ends them. `CellOutcome.names` (sent when names change) gives the lost names of a
killed rank.
"""
