"""Small models that train on sharded tensors, beside the same models on plain ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Placement, Replicate, Shard

from meshbook.runtime.tensor.sharded.operators import ShardedOperators
from tests.runtime.tensor.whole_tensor import WholeTensor, full, shard


class Transformer(nn.Module):
    """Two layers over an embedding of characters."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(12, 16)
        layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.1, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 12)

    def forward(self, x: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return self.head(self.layers(self.embedding(x), mask=mask)).flatten(0, 1)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 10), nn.GELU(), nn.LayerNorm(10), nn.Linear(10, 3))


def conv_net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 6, 3),
        nn.GroupNorm(2, 6),
        nn.Hardswish(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(6, 3),
    )


Loss = Callable[[Tensor, Tensor], Tensor]
MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], tuple[Tensor, Tensor]], Loss]] = {
    "mlp": (mlp, lambda n: (torch.randn(n, 6), torch.randn(n, 3)), F.mse_loss),
    "mlp, smooth": (mlp, lambda n: (torch.randn(n, 6), torch.randn(n, 3)), F.smooth_l1_loss),
    "conv net": (conv_net, lambda n: (torch.randn(n, 1, 8, 8), torch.randint(0, 3, (n,))), F.cross_entropy),
    "transformer": (
        Transformer,
        lambda n: (torch.randint(0, 12, (n, 5)), torch.randint(0, 12, (n * 5,))),
        F.cross_entropy,
    ),
}
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adamw foreach": lambda parameters: torch.optim.AdamW(parameters, lr=1e-2, foreach=True),
    "adamw loop": lambda parameters: torch.optim.AdamW(parameters, lr=1e-2, foreach=False),
    "adamw fused": lambda parameters: torch.optim.AdamW(parameters, lr=1e-2, fused=True),
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=1e-2, momentum=0.9, nesterov=True, foreach=True),
}


def compare_training(
    mesh: DeviceMesh, model: str, optimizer: str, batch: int, parameters: str, steps: int = 3
) -> list[tuple[float, float]]:
    """Train twice; return the losses on sharded tensors beside those in one process."""
    operators = ShardedOperators(mesh)
    build, draw, loss = MODELS[model]
    torch.manual_seed(0)
    plain = build()
    torch.manual_seed(0)
    whole = build()
    convert(whole, lambda one: shard(one, parameter_placements(one, mesh, parameters), operators))
    torch.manual_seed(1)
    x, y = draw(batch)
    on_batch: list[Placement] = [Shard(0), *[Replicate()] * (mesh.ndim - 1)]
    pair = shard(x, on_batch, operators), shard(y, on_batch, operators)
    torch.manual_seed(2)
    operators.random.manual_seed(2)
    expected = train(plain, OPTIMIZERS[optimizer](plain.parameters()), loss, (x, y), steps)
    got = train(whole, OPTIMIZERS[optimizer](whole.parameters()), loss, pair, steps)
    return list(zip(got, expected, strict=True))


def parameter_placements(one: Tensor, mesh: DeviceMesh, how: str) -> list[Placement]:
    if how == "replicated" or one.dim() == 0:
        return [Replicate()] * mesh.ndim
    # "sharded" along the dimension of the mesh that the batch does not use, or along the same.
    return [*[Replicate()] * (mesh.ndim - 1), Shard(0)]


def convert(model: nn.Module, to_whole: Callable[[Tensor], WholeTensor]) -> None:
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            setattr(module, name, nn.Parameter(to_whole(parameter.data)))
        for name, buffer in list(module.named_buffers(recurse=False)):
            setattr(module, name, to_whole(buffer))


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, loss: Loss, pair: tuple[Tensor, Tensor], steps: int
) -> list[float]:
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        value = loss(model(pair[0]), pair[1])
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(float(full(value)))
    return losses
