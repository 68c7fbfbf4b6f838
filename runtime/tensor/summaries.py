"""How tensors of a mesh look: the summary of their shards in `repr`, and the heat map of `x.show()`."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch

from meshbook.runtime.errors import MeshbookError
from meshbook.runtime.formats import name_ranks
from meshbook.runtime.tensor.layouts import coordinates_of, local_part

SUMMARY_SECONDS: Final = 1.0  # how long a summary waits for the ranks
MOST_SHARDS: Final = 8  # lines of a summary
MOST_CELLS: Final = 256  # of a heat map, along each side
Part = tuple[tuple[int, int], ...]  # (start, stop) for each dimension of the tensor


def summarize_shards(tensor: Any) -> list[str]:
    """Return what `repr` says of a global tensor's placements and shards: the ranks, the part, its values.

    Waits for a second at most, and then says that the ranks are busy.
    """
    engine = tensor._place.engine
    if engine.holds or engine.recorder is not None or engine.trouble is not None:
        return []
    try:
        ref = tensor._issue_for("shard")
        engine.flush()
        asked = engine.actors.summarize.call(tensor._ref.id, ref.id)
        asked.wait_here(SUMMARY_SECONDS)
    except TimeoutError:
        return ["placements and values: not known yet, since the ranks are busy"]
    except MeshbookError as error:
        return [str(error).partition("\n")[0]]
    found = [summary for _, summary in asked.get()]
    if failed := [summary for summary in found if isinstance(summary, str)]:
        return [f"failed: {failed[0]}"]
    placements = found[0][0]
    parts = parts_of(tuple(tensor.shape), placements, tensor.mesh.shape)
    lines = [f"placements={placements}"]
    for part, ranks in list(parts.items())[:MOST_SHARDS]:
        index = ", ".join(f"{start}:{stop}" for start, stop in part)
        lines.append(f"{name_ranks(ranks)}: [{index}] {found[ranks[0]][1]}")
    return [*lines, f"... {len(parts) - MOST_SHARDS} more shards"] if len(parts) > MOST_SHARDS else lines


def describe_values(values: torch.Tensor) -> str:
    """Return mean, minimum and maximum of a shard, in words."""
    if not values.numel():
        return "empty"
    if values.dtype is torch.bool:
        return f"{int(values.sum())} of {values.numel()} are True"
    numbers = values.abs() if values.is_complex() else values
    low, high = (f"{bound.item():.4g}" for bound in torch.aminmax(numbers.float()))
    return f"mean {numbers.double().mean().item():.4g}, min {low}, max {high}"


def parts_of(shape: tuple[int, ...], placements: Sequence[Any], sizes: Sequence[int]) -> dict[Part, list[int]]:
    """Return the ranks that have each part of a tensor, on a mesh of these sizes."""
    parts: dict[Part, list[int]] = {}
    count = torch.Size(sizes).numel()
    for rank in range(count):
        parts.setdefault(local_part(shape, placements, sizes, coordinates_of(rank, sizes)), []).append(rank)
    return parts


class HeatMap:
    """The picture of a tensor; a notebook displays it. `figure` is matplotlib's."""

    def __init__(self, figure: Any) -> None:
        self.figure = figure

    def save(self, path: str | Path) -> None:
        """Write the picture to a file, in the format of its suffix."""
        self.figure.savefig(path)

    def _repr_png_(self) -> bytes:
        written = io.BytesIO()
        self.figure.savefig(written, format="png", dpi=100)
        return written.getvalue()


def draw_tensor(tensor: Any) -> HeatMap:
    """Draw a tensor with one or two dimensions: the whole one with the borders of its shards, or that of each rank.

    Of a large tensor it shows every n-th row and column. Waits for the values. Raises ValueError for other dimensions,
    and ImportError without matplotlib.
    """
    if tensor.dim() not in (1, 2):
        raise ValueError(f"show() draws tensors with 1 or 2 dimensions, not {tensor.dim()}; index the tensor first")
    try:
        from matplotlib.figure import Figure  # optional
    except ImportError as error:
        raise ImportError("x.show() needs matplotlib: pip install 'meshbook[demo]'") from error
    tensor = tensor.detach()
    strides = [-(-size // MOST_CELLS) or 1 for size in tensor.shape]
    sampled = tensor[tuple(slice(None, None, stride) for stride in strides)]
    if tensor._place.is_global:
        values = {"": _as_picture(sampled.full_tensor())}
    else:
        count = len(tensor._place.lane.ranks)
        points = [dict(tensor.mesh.extent.point(rank)) for rank in range(count)]
        values = {
            ", ".join(f"{name}={index}" for name, index in point.items()): _as_picture(_fetch(sampled, rank))
            for rank, point in enumerate(points)
        }
    columns = min(4, len(values))
    rows = -(-len(values) // columns)
    figure = Figure(figsize=(1.5 + 4.0 * columns, 3.5 * rows), layout="constrained")
    finite = torch.cat([each[torch.isfinite(each)] for each in values.values()])
    low, high = (finite.min().item(), finite.max().item()) if finite.numel() else (0.0, 1.0)
    axes = [figure.add_subplot(rows, columns, number) for number in range(1, len(values) + 1)]
    height = tensor.shape[0] if tensor.dim() == 2 else 1
    for each, (title, picture) in zip(axes, values.items(), strict=True):
        extent = (0, tensor.shape[-1], height, 0)
        image = each.imshow(picture.numpy(), aspect="auto", interpolation="nearest", vmin=low, vmax=high, extent=extent)
        each.set_title(title)
        if tensor.dim() == 1:
            each.set_yticks([])
    figure.colorbar(image, ax=axes)
    if tensor._place.is_global:
        for part, ranks in parts_of(tuple(tensor.shape), tensor.placements, tensor.mesh.shape).items():
            _draw_shard(axes[0], part, name_ranks(ranks))
    return HeatMap(figure)


def _draw_shard(axes: Any, part: Part, label: str) -> None:
    (top, bottom), (left, right) = part if len(part) == 2 else ((0, 1), part[0])
    if bottom > top and right > left:
        axes.plot([left, right, right, left, left], [top, top, bottom, bottom, top], color="white", linewidth=1.5)
        middle = (left + right) / 2, (top + bottom) / 2
        axes.text(*middle, label, ha="center", va="center", color="white", bbox={"color": "black", "alpha": 0.4})


def _as_picture(values: torch.Tensor) -> torch.Tensor:
    numbers = values.abs() if values.is_complex() else values
    return numbers.float().reshape(-1, values.shape[-1])


def _fetch(tensor: Any, rank: int) -> torch.Tensor:
    place = tensor._place
    value: torch.Tensor = place.engine.fetch_now(place.lane.ranks[rank], [tensor._ref.id], place.stream)[0]
    return value
