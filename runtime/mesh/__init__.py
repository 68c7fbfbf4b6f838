"""Handles of hosts, processes and actors with a shape: picklable, sliced like arrays.

`hosts`, `procs` and `actors` define the handles, and `worker_specs` the data that starts a worker. `ownership` is the
state that the handles of one spawned mesh share. `healing` and `resizing` change a mesh; `policies` respawns ranks
automatically.

Maps (`procs.map`, `mesh.map`): `mapping` is the result for users. The `Scheduler` (`scheduling`) has a thread, which
pickles the items, while there are any. `balancing` (pure) assigns items to ranks. A `Runner` (`runners`) calls the
ranks: actors that are spawned for the map, or in a notebook the cell actors (`magics.cells.maps`).

The `TaskTable` of a process (`tasks`) ensures that an item either begins or is withdrawn, so no item runs twice. The
thread that runs items claims each one; `ProcessActor.take_back`, on the control thread, claims those that move to other
ranks. When a rank dies, only items of its oldest open request can have begun. They are sent again one by one, and count
that death.

The process group of a mesh (`process_groups`) is created from the owner's side. Every rank leaves its group, the first
rank opens a store at a port that the system picks, and all ranks join on a thread beside their actors. At the first
failure the other ranks are freed. A heal recreates the groups in which a process died, before its future resolves. The
store may be on rank 0: if that rank dies, its group must be recreated anyway.

Ranks that rendezvous on their own, through the environment, get a new MASTER_PORT at each heal and each abort. At the
old port, rank 0 may still have the old store, which user code may hold; torch would take it for the new one, with the
addresses of the last group.
"""
