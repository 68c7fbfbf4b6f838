"""`Mesh.execute`: a function that runs on every rank with the shards of its arguments, and its results as tensors.

The shapes of the results are known once the function has run, so a call waits for the ranks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from meshbook.runtime.formats import name_ranks
from meshbook.runtime.tensor.arguments import find_faults
from meshbook.runtime.tensor.executor import ValueRef
from meshbook.runtime.tensor.failures import Failed, format_call
from meshbook.runtime.tensor.layouts import Layout, ShardReport, ShardResult, coordinates_of, local_part, placements_of
from meshbook.runtime.tensor.mesh_value import Place
from meshbook.runtime.tensor.metadata import Meta
from meshbook.runtime.tensor.templates import Pickled, user_place
from meshbook.runtime.tensor.tensor import MeshTensor, make_tensor
from meshbook.runtime.wire.pickling import dumps

ADVICE = "pass sharding_spec= to execute(), with an entry for each dimension of the results"


def execute_on_shards(
    place: Place, function: Callable[..., Any], args: Any, kwargs: Any, sharding_spec: Sequence[Any] | None
) -> Any:
    """Run a function on every rank of a place; see `Mesh.execute`."""
    engine, lane, layout = place.engine, place.lane, place.engine.layout
    assert layout is not None
    name = getattr(function, "__qualname__", repr(function))
    leaves, spec = tree_flatten((args, kwargs))
    tensors = [leaf for leaf in leaves if isinstance(leaf, MeshTensor)]
    if faults := [(tensor, fault) for tensor in tensors for fault in find_faults(tensor, place)]:
        raise TypeError(format_call(name, args, kwargs, faults))
    tree = tree_unflatten([ValueRef(leaf._ref.id) if isinstance(leaf, MeshTensor) else leaf for leaf in leaves], spec)
    call = Pickled.of((function, tree), f"the function {name}, or an argument of it,")
    ref = lane.new_ref(engine.new_ids(1))
    engine.issue(lane, ("execute", ref.id, call), user_place(2), call.nbytes)
    reports: list[Any] = engine.describe(lane, ref.id)
    if failed := [report for report in reports if isinstance(report, Failed)]:
        raise engine.explain(failed[0])
    found, spec = tree_flatten(reports[0].tree)
    by_rank = [tree_flatten(report.tree)[0] for report in reports]
    positions = [index for index, leaf in enumerate(found) if isinstance(leaf, ShardResult)]
    for rank, leaves in enumerate(by_rank):
        if [index for index, leaf in enumerate(leaves) if isinstance(leaf, ShardResult)] != positions:
            raise RuntimeError(f"{name} returned tensors on rank 0 that it did not return on rank {rank}")
    _check_values(name, reports, by_rank)
    first = engine.new_ids(len(positions)) if positions else 0
    laid_out = []
    for number, index in enumerate(positions, first):
        results = [leaves[index] for leaves in by_rank]
        placements = _choose_placements(name, results, reports, layout, sharding_spec)
        shape = _whole_shape(name, [result.meta.shape for result in results], placements, layout)
        stride = _dense_stride(shape, results[0].meta.stride)
        laid_out.append((number, placements, shape, stride))
        meta = Meta.make(shape, stride, results[0].meta.dtype, 0, results[0].meta.device)
        found[index] = make_tensor(meta, lane.new_ref(number), place)
    engine.issue(lane, ("adopt", ref.id, laid_out), user_place(2), 0)
    return tree_unflatten(found, spec)


def _check_values(name: str, reports: list[ShardReport], by_rank: list[list[Any]]) -> None:
    """Raise ValueError unless what is no tensor in the results is equal on all ranks."""
    if len(set(map(len, by_rank))) > 1:
        columns = [tuple(report.tree for report in reports)]
    else:
        columns = [column for column in zip(*by_rank, strict=True) if not isinstance(column[0], ShardResult)]
    for column in columns:
        if not all(_are_equal(column[0], value) for value in column[1:]):
            ranks: dict[str, list[int]] = {}
            for rank, value in enumerate(column):
                ranks.setdefault(f"{value!r:.100}", []).append(rank)
            listed = "; ".join(f"{name_ranks(group)}: {value}" for value, group in ranks.items())
            raise ValueError(
                f"{name} returned values that differ between the ranks, and a mesh has one value ({listed}): return a "
                "tensor, and pass its sharding_spec= to execute(), to have the value of each rank"
            )


def _are_equal(value: Any, other: Any) -> bool:
    with contextlib.suppress(Exception):  # an array compares its entries
        if value is other or value == other:
            return True
    # Not a number, an array, or an object of a class that does not compare.
    body, other_body = (dumps(each, "a result") for each in (value, other))
    return list(map(bytes, body)) == list(map(bytes, other_body))


def _choose_placements(
    name: str, results: list[ShardResult], reports: list[ShardReport], layout: Layout, sharding_spec: Any
) -> tuple[Any, ...]:
    """Return the placements of a result. Raises ValueError if they have to be given."""
    ndim = len(results[0].meta.shape)
    if sharding_spec is not None:
        placements = placements_of(sharding_spec, ndim, layout.dims)
        parts: dict[tuple[int, ...], ShardResult] = {}
        for rank, result in enumerate(results):
            pairs = zip(coordinates_of(rank, layout.shape), placements, strict=True)
            part = tuple(0 if placement.is_replicate() else index for index, placement in pairs)
            if parts.setdefault(part, result).checksum != result.checksum:
                raise ValueError(
                    f"a result of {name} is not the same on the ranks on which {sharding_spec} replicates it; the "
                    "placement Partial() says that ranks return parts of a sum"
                )
        return placements
    if (given := reports[0].placements) is not None:
        if any(result.meta.shape != report.shape for result, report in zip(results, reports, strict=True)):
            shapes = f"{list(results[0].meta.shape)}, where the argument has {list(reports[0].shape)}"
            raise ValueError(f"a result of {name} has the shape {shapes} on rank 0: {ADVICE}")
        return given
    if any(result != results[0] for result in results):
        raise ValueError(f"a result of {name} is not the same on all ranks: {ADVICE}")
    return placements_of(None, ndim, layout.dims)


def _whole_shape(
    name: str, shapes: list[tuple[int, ...]], placements: tuple[Any, ...], layout: Layout
) -> tuple[int, ...]:
    """Return the shape of the whole tensor whose parts have these shapes. Raises ValueError if there is none."""
    whole = list(shapes[0])
    coordinates = [coordinates_of(rank, layout.shape) for rank in range(len(shapes))]
    for dim in {placement.dim for placement in placements if placement.is_shard()}:
        cuts = [each.is_shard() and each.dim == dim for each in placements]
        whole[dim] = sum(
            shape[dim]
            for shape, point in zip(shapes, coordinates, strict=True)
            if not any(index for index, cut in zip(point, cuts, strict=True) if not cut)
        )
    for rank, (shape, point) in enumerate(zip(shapes, coordinates, strict=True)):
        if _shape_of(local_part(whole, placements, layout.shape, point)) != shape:
            raise ValueError(
                f"the results of {name} are no shards of one tensor of shape {whole}: that of rank {rank} has the "
                f"shape {list(shape)}"
            )
    return tuple(whole)


def _shape_of(part: Sequence[tuple[int, int]]) -> tuple[int, ...]:
    return tuple(stop - start for start, stop in part)


def _dense_stride(shape: Sequence[int], like: Sequence[int]) -> tuple[int, ...]:
    """Return strides without gaps, with the dimensions in the order of the strides `like`."""
    order = sorted(range(len(shape)), key=lambda dim: (-like[dim], dim))
    dense = torch.empty([shape[dim] for dim in order], device="meta").stride()
    return tuple(dense[order.index(dim)] for dim in range(len(shape)))
