"""Applies single PyTorch operators to sharded tensors (DTensor), on every rank of a device mesh alike.

    from meshbook.runtime.tensor.sharded.operators import ShardedOperators

    operators = ShardedOperators(device_mesh, seed=0)
    out = operators.run(torch.ops.aten.mm.default, (a, b))
    operators.full(out)

Every result equals that of the same operator on the whole tensors in one process, or the operator is refused with an
`OperatorRefused`. DTensor alone does not promise that: some of its operators compute with the values of one shard.

This package is for the workers and runs beneath autograd: the controller records autograd, so the operators of a
backward pass arrive like any others. It knows neither commands nor the controller.

- `operators`: how one operator is run; start here.
- `rules`: which operator is run in which way, as tables.
- `placing`: whole tensors from shards, and shards from whole tensors.
- `views`: views that do not share memory with their base, because the base is sharded differently.
- `batchwise`: operators that treat the entries of a batch separately, on the local entries.
- `decompositions`: operators as the operators that they consist of.
- `arguments`: the tensors among the arguments of an operator.
- `random`: one random state for all ranks.
"""
