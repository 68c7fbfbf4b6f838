"""Modules that run whole on the ranks of a mesh: forward is one command, and its backward another.

    model = module_to_mesh(Net(), mesh, plan={"data_parallel": "fsdp", "model_parallel": {"*.up": "colwise"}})
    loss = loss_fn(model(x), target)      # a command for the module, and one for each operator of the loss
    loss.backward()                       # the gradients of all parameters are results of one command

controller:

- `proxies`       `module_to_mesh`, and `MeshModule`: parameters and buffers as mesh tensors, forward as one command
- `plans`         `ModulePlan`: what each dimension of the mesh does to the module; checked on the controller, applied
                  on the ranks by torch's `parallelize_module` and `fully_shard`

ranks:

- `hosted`        `HostedModule`: the module, its forward and backward on this rank's part of the batch
- `outputs`       which dimension of an output is the batch, found with a twin of the module that has fake parameters
- `batch_norm`    batch normalization with the statistics of the whole batch

The batch is the first dimension of the inputs that are sharded. Each rank computes its entries. The gradients of the
outputs are those of the whole loss, so the parameters' gradients are summed over the ranks, not averaged: uneven
shards are right.
"""
