"""Tensors on a mesh of ranks with GPUs: both views, from a controller with a GPU and from one without."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

import meshbook
from gpu_checks import DEVICE, HAS_GPU, check, put, ranks, seconds_of
from meshbook import ProcMesh, this_host

HIDDEN = {"CUDA_VISIBLE_DEVICES": ""}  # of the controller; its ranks see the GPU
SEEN = {"CUDA_VISIBLE_DEVICES": "0"}
STEPS = 5
Place = Callable[[torch.Tensor, Sequence[str | None]], torch.Tensor]


def train(place: Place, device: str) -> list[float]:
    """Train a small network on tensors that `place` brings to a mesh; return the losses."""
    generator = torch.Generator().manual_seed(0)
    local = [torch.randn(size, generator=generator) for size in ((64, 16), (16, 32), (32, 1))]
    data = place(local[0], ["gpus", None]).to(device)
    weights = [place(each, [None, None]).to(device).requires_grad_() for each in local[1:]]
    optimizer = torch.optim.SGD(weights, lr=0.1)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = ((data @ weights[0]).tanh() @ weights[1]).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [loss.item() for loss in losses]


def check_training(view: str, place: Place) -> None:
    """Compare a training on the active mesh with the same in this process, on the CPU; then make and show a tensor."""
    found: list[float] = []
    put(**{f"{view}_seconds": seconds_of(lambda: found.extend(train(place, DEVICE)))})
    with meshbook.no_mesh.activate():
        expected = train(lambda tensor, _: tensor, "cpu")
    difference = max(abs(a - b) for a, b in zip(found, expected, strict=True))
    put(**{f"{view}_largest_difference": difference})
    assert difference < 1e-2 * max(expected), (found, expected)  # a GPU may multiply with less precision
    zeros = torch.zeros(3, device=DEVICE)
    put(**{f"{view}_shown": repr(zeros)})
    assert zeros.device.type == DEVICE, f"the controller shows {zeros.device}"
    assert (zeros + 1).tolist() == [1.0, 1.0, 1.0]


def check_both_views() -> None:
    """Check the view per rank on two ranks that share the GPU, and the global view on a rank with the GPU."""
    with ranks(2, env=SEEN) as procs:
        with procs.activate():
            check_training("per_rank", lambda tensor, _: meshbook.to_mesh(tensor, procs))
            total = (procs.rank_tensor("gpus").to(DEVICE) + 1).reduce("gpus")
            assert total.item() == 3.0
        check_global(this_host().spawn_procs({"gpus": 1 if HAS_GPU else 2}, env=SEEN))


def check_global(procs: ProcMesh) -> None:
    mesh = procs.as_device_mesh(device=DEVICE)
    with mesh.activate():
        check_training("global", lambda tensor, dims: meshbook.distribute(tensor, mesh, dims))


@check(30, environment=HIDDEN)
def both_views_without_a_gpu_here() -> None:
    """Forward, backward, an optimizer and texts of tensors, from a controller without a GPU: its process lives."""
    check_both_views()


@check(30, needs_gpu=True)
def both_views() -> None:
    """The same from a controller that sees the GPU."""
    check_both_views()


@check(25, needs_gpu=True)
def global_view_on_a_shared_gpu() -> None:
    """Sharded tensors of two ranks that share the GPU: their collectives are gloo's, on tensors of the GPU."""
    with ranks(2, env=SEEN) as procs:
        check_global(procs)
