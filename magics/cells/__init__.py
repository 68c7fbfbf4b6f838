"""The execution of mesh cells: planning, sending to the ranks, supervision, and the end of a cell.

A `CellExecution` owns the state of one cell. Receiving threads only store text and append events to the `CellInbox`.
The loop of the cell changes the `CellState`, which the deciding modules read.

A rank's main thread runs one cell at a time. Other cells wait in its actor's queue, on the worker, so the order holds
for all messages there. `admission` tracks these queues for the notebook and plans the waves of `--first` and `--seq`.
An interrupted cell ends at once on ranks that have not begun it; ranks that have it in their queue drop it when they
reach it (`Interrupts.request`). `failed`, `ok` and `changed` refer to the last begun cell among the ended ones.

Jobs (`-a`) run in a loop on a thread (`background`), so a cell that blocks the main thread, maybe to wait for a job,
delays no other. For the same reason the code of `--local` has the main thread while that loop watches its ranks. The
cell is sent before `-a` returns, so ranks get cells in the order of the notebook. A mesh cell within another one
(`%%capture`, `%run`) becomes a plain call that waits, since the main thread's loop already runs; the jobs' loop watches
its ranks.

`escalation` decides on each step, and `supervision` carries it out, for ranks that have not answered:

1. interrupt: KeyboardInterrupt, by a signal of the control thread to the main thread.
2. abort: break process groups from the control thread (`runtime.collectives`), first on these ranks, then on the
   whole mesh, as a part of a group is of no use. At once after a second Ctrl-C. Otherwise five seconds after a person's
   interrupt, one second after a time limit's or another rank's error, 0.3 s after a death; then only for ranks in a
   collective. A rank that is silent half-way to the end of the cell is aborted in any case: it may wait in C++ where
   no frame shows a collective.
3. kill: SIGKILL and `heal()`, by a person's third Ctrl-C only, and not within a second of the abort.

A cell always ends: without the ranks that are silent five seconds after the last step (one second after a death). They
count as busy (on the dashboard: stuck). The next cell for them raises an error, `%mesh interrupt --break` aborts once
more, and `%mesh interrupt --kill` ends them. `CellOutcome.names` (sent when names change) provides the lost names of a
killed rank.
"""
