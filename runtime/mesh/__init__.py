"""Handles of hosts, processes and actors with a shape: picklable, sliced like arrays.

`hosts`, `procs` and `actors` have the handles, `worker_specs` what a worker needs to start, `ownership` what the
handles of one spawned mesh share, `healing` and `resizing` the changes of a mesh, `policies` automatic respawns.

Maps (`procs.map`, `mesh.map`): `mapping` is the result for users. The `Scheduler` (`scheduling`) has a thread while
there are items, which pickles them; `balancing` (pure) assigns items to ranks. A `Runner` (`runners`) calls the
ranks: actors that are spawned for the map, or in a notebook the cell actors (`magics.cells.maps`). An item begins or
is withdrawn, whichever comes first in the `TaskTable` of its process (`tasks`): the thread that runs items claims
each one, and `ProcessActor.take_back`, on the control thread, claims those that move to other ranks. So no item runs
twice. Of a dead rank, only items of its oldest open request can have begun. They are sent again one by one, and count
that death.

The process group of a mesh (`groups`) is made from the owner's side: every rank leaves its group, the first opens a
store at a port that the system picks, and all join on a thread beside their actors. At the first failure the others are
freed. A heal makes those groups again in which a process died, before its future resolves. A dead rank was in the
group, so the store may live with rank 0. Ranks that meet by themselves, by the environment, get a new MASTER_PORT at
each heal and each abort: at the old one rank 0 may still have the old store, which user code may hold, and torch would
take it for the new one, with the last group's addresses.
"""
