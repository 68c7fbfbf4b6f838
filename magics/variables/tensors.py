"""Variables of cells as mesh tensors, and mesh tensors as variables: both share memory on the ranks, and none moves.

A cell runs on the main thread of a rank and the tensor engine on another one. So a request, which waits behind the
cells, comes before the engine's command in one direction, and after it in the other.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from meshbook.magics.errors import VariableError
from meshbook.magics.meshes.registry import NotebookMesh
from meshbook.magics.variables.operations import check_names, record_names
from meshbook.magics.variables.requests import RankRequest, Steps
from meshbook.runtime.cells.variables import TakeRequest, TensorRequest, VariableForm, offer_here, tensor_here
from meshbook.runtime.formats import name_ranks
from meshbook.runtime.mesh.procs import ProcMesh
from meshbook.runtime.wire.messages import Address

if TYPE_CHECKING:  # they import torch
    from meshbook.runtime.tensor.tensor import MeshTensor


def mesh_tensors_of(values: Mapping[str, Any]) -> dict[str, MeshTensor]:
    """Return the mesh tensors among some values."""
    if (module := sys.modules.get("meshbook.runtime.tensor.tensor")) is None:
        return {}
    return {name: value for name, value in values.items() if isinstance(value, module.MeshTensor)}


def tensor_of(mesh: NotebookMesh, procs: ProcMesh, ranks: Sequence[int], name: str) -> Steps[MeshTensor]:
    """Return a variable of these ranks, which are those of `procs`, as a mesh tensor."""
    answers = yield RankRequest(mesh, dict.fromkeys(ranks, TensorRequest(name)), f"use {name} as a mesh tensor")
    by_form: dict[VariableForm, list[int]] = {}
    for rank in ranks:
        by_form.setdefault(answers[rank], []).append(rank)
    if len(by_form) > 1:
        listed = "; ".join(f"{form} on {name_ranks(where)}" for form, where in by_form.items())
        raise VariableError(f"{name} differs between ranks, and a mesh tensor has one shape and type: {listed}")
    (form,) = by_form
    with procs.device_mesh.activate():
        tensor: MeshTensor = _functions()[0](mesh.procs.name, name, form)
    return tensor


def assign(
    mesh: NotebookMesh, nodes: Sequence[Address], ranks: Sequence[int], tensors: Mapping[str, MeshTensor]
) -> Steps[None]:
    """Set variables of these ranks, which are on these nodes, to the ranks' own values of mesh tensors."""
    check_names(tensors)
    for name, tensor in tensors.items():
        there = {node.node for node in _nodes_of(tensor)}
        if missing := [rank for rank, node in zip(ranks, nodes, strict=True) if node.node not in there]:
            raise VariableError(f"cannot set {name}: {tensor!r} has no value on {name_ranks(missing)} of {mesh.name}")
        with tensor.stream.activate(), tensor.mesh.activate():
            _functions()[1](mesh.procs.name, {name: tensor})  # waits, and raises the tensor's failure
    yield RankRequest(mesh, dict.fromkeys(ranks, TakeRequest(tuple(tensors))), f"set {', '.join(tensors)}")
    record_names(mesh, ranks, tensors)


def _nodes_of(tensor: MeshTensor) -> list[Address]:
    procs = tensor.mesh.engine.procs
    return [procs.nodes[rank] for rank in tensor.mesh.region.ranks()]


@functools.cache
def _functions() -> tuple[Any, Any]:
    """Return the remote functions that take and that offer a variable; the ranks get each once."""
    import torch

    from meshbook.runtime.tensor.metadata import Meta
    from meshbook.runtime.tensor.remote import remote

    def form_of(mesh: str, name: str, form: VariableForm) -> Meta:
        return Meta.make(form.shape, form.stride, form.dtype, form.offset, torch.device(form.device))

    return remote(tensor_here, propagate=form_of), remote(offer_here, propagate="inspect")
