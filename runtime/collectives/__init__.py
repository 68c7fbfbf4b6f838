"""torch's process groups in a worker: freeing threads that are stuck in them, and finding where a thread is stuck.

A rank that is stuck in a collective waits in C++, where neither a signal nor an exception reaches it. gloo has no
abort, and neither has a store, but both notice the end of a connection. So `abort_groups`, on a control thread, shuts
down this process's own sockets of gloo, which it finds in /proc by the loop that watches them, and those to the
stores that torch uses. NCCL has its own abort. The stuck thread raises within milliseconds. A thread that waits for a
store that does not exist yet gets no end, so there the control thread opens a store, lets it connect, and closes it.
All groups of the process are then gone. The worker drops the error's frames before it replies: they would keep the
old store alive, and a new group would meet in it.

Each rendezvous of a whole mesh has its own store (`stores`): rank 0 opens the next one and sends its port through the
present one. `meshbook.checkpoint` is code for ranks and knows no mesh: torch's checkpoints, written beside their
place and renamed once all ranks are done. What the first rank does alone (clear, rename, drop) it sends to the
others, errors included.
"""
