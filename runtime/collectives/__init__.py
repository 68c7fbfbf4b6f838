"""torch's process groups in a worker: releasing threads that are stuck in them, and locating the stuck call.

A rank that is stuck in a collective waits in C++, where neither a signal nor an exception reaches it. gloo has no
abort, and neither has a store, but both detect the end of a connection. So `abort_groups`, on a control thread, shuts
down this process's own sockets of gloo, which it finds in /proc by the event loop that watches them, and those to the
stores that torch uses. NCCL has its own abort. The stuck thread raises within milliseconds. A thread that waits for a
store that does not exist yet has no connection, so the control thread opens a store, lets it connect, and closes it.
All groups of the process are then gone. The worker drops the error's frames before it replies: they would keep the old
store alive, and a new group would use it for its rendezvous.

Each rendezvous of a whole mesh has its own store (`stores`): rank 0 opens the next one and sends its port through the
present one. `meshbook.checkpoint` is code for ranks and does not depend on a mesh: torch's checkpoints, written next to
their destination and renamed once all ranks are done. The first rank sends the outcome of its own steps (clear, rename,
drop) to the others, errors included.
"""
