"""The tensor engine: torch operations of the controller that run on every rank of a mesh. It has two views.

    mesh = Mesh(shape=(4, 2), dims=("data", "model"))
    x = distribute(torch.randn(8, 8), mesh, ["data", None])    # global view: one tensor, sharded over the ranks
    (x @ x.T).full_tensor()

    with procs.activate():                                     # per-rank view
        a = torch.rand(3, 4)          # every rank has its own; the controller knows only shape, strides and dtype
        r = a.reduce("gpus", "sum")   # a collective
    fetch_shard(r, gpus=1).get()      # the value of one rank

Controller, commands and executor are the same for both. In the global view the shapes on the controller are those of
whole tensors, the values on the ranks are DTensors, and an engine has a `Layout`. All ranks propagate placements alike,
so the controller need not know them.

The controller never waits for the ranks, unless a value is asked for. An operation that fails on a rank raises where
its result is fetched, with the line of the controller that issued it. Tensors that do not depend on it stay usable.

The way of one operation:

    torch -> autograd -> MeshTensor.__torch_dispatch__
          -> tensor.dispatch: flatten the call to (key, ids, numbers)
          -> operators.Cache: the plan for this key; on a miss, metadata infers the outputs with meta tensors
          -> Engine.issue: append the command (template, first output id, ids, numbers) and the user's line
          -> Engine.flush: one message per batch to the TensorWorker of each rank of the mesh
    TensorWorker -> Executor.run: build the arguments from the table of values, apply the operator, store the outputs

controller:

- `tensor`       `MeshTensor`, a wrapper subclass below autograd, and the way of one operator call; where no meta kernel
                 can tell the result, it asks the ranks
- `mesh_value`   what a mesh tensor holds: an id on the ranks, metadata, a place; its methods
- `arguments`    what can be sent, and which tensors can be used together
- `operators`    facts from operator schemas, and the bounded cache of plans, which `planning` makes
- `metadata`     `Meta`: interned shape, strides, dtype; inference with meta tensors
- `lanes`        `Ref`, which holds a value on the ranks, and `Lane`, the stream on some ranks that a command goes to
- `engine`       ordered batches of commands, batched deletes, acknowledgements, bounded run-ahead, failures
- `device_mesh`  `DeviceMesh`: the ranks that tensors are on; slices; `activate`, `get_active_mesh`, `no_mesh`
- `collectives`  `reduce`, `slice_mesh`, `to_mesh`
- `trees`        `fetch_shard`, `inspect`, `show`, and `reduce`, `slice_mesh`, `to_mesh`, for lists, tuples and dicts
- `remote`       remote functions, and endpoints as such; `random` some that are ready
- `opaque`       Python objects of the ranks as handles; modules and functions whose backward is a command
- `streams`      `Stream` and borrows; on the ranks, the values that streams hand off
- `recordings`   functions recorded and replayed as one command; `coalescing`: commands of a block as one message
- `gradients`    backward as a generator of gradients; functions with a backward of their own
- `timer`        the times of parts of a program, here and on the ranks
- `simulator`    the engine without ranks: commands run on meta tensors; `schedule` has their cost, times and memory
- `summaries`    the shards in `repr`, and the heat map of `x.show()`

controller, global view:

- `sharded_mesh`    `Mesh`: ranks in a grid; `execute`; `heal`
- `distributing`    `distribute`: local data as one tensor
- `sharding`        placements, `redistribute`, `full_tensor`; the placements of gradients
- `shard_functions` functions on shards, and their results as tensors
- `modules`         modules that run whole on the ranks; forward and backward are one command each; both sides
- `checkpoints`     `save_checkpoint`, `load_checkpoint`; the ranks write and read their parts

both sides:

- `templates`    the recipe of a command: operator and arguments with slots for ids and numbers
- `layouts`      the shape of a global mesh; sharding specs as placements; the part of a tensor that a rank has
- `recovery`     which rank gets which value from which, after ranks have failed
- `failures`     `Failed`, the value of an output that could not be computed; `RemoteException`, `DeviceMeshError`

ranks:

- `worker`       the actor; its endpoints run batches and return values
- `executor`     the table of values and the handlers of commands. `apply(func, args, kwargs)` runs an operator: the
                 one seam for values that are not plain tensors
- `sharded_executor`  the same for DTensors, to which `sharded` applies operators; leaves the process groups when an
                 operation fails on this rank alone, so that no other rank waits for it
- `groups`       process groups over gloo, for collectives and transfers between ranks

Lifetimes: a `MeshTensor` holds a `Ref`. When the last holder of a Ref is gone, its finalizer appends the id to a queue
of its lane, and does nothing else. A flush takes the queue first and then the commands, and sends the deletes behind
them: a command that uses the id was appended before its Ref died.

Order: all commands of an engine have one order, that of the controller's calls. A lane is a stream on the ranks that a
command goes to. Messages keep this order for each stream of a rank. A stream has an actor, and so a thread, of its own,
and waits for other streams only where it takes over a value. Such waits refer to earlier commands, so none is circular.

Importing a module of this package imports torch, so nothing that `import meshbook` loads imports one at the top.
"""
