"""Small models with batches and plans for a mesh of two by two ranks, `data` and `model`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class Block(nn.Module):
    """A transformer layer whose projections can be split over ranks by heads."""

    def __init__(self, size: int, dropout: float) -> None:
        super().__init__()
        self.before_attention, self.before_mlp = nn.LayerNorm(size), nn.LayerNorm(size)
        self.query, self.key, self.value, self.out = (nn.Linear(size, size) for _ in range(4))
        self.up, self.down = nn.Linear(size, 2 * size), nn.Linear(2 * size, size)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        y = self.before_attention(x)
        query, key, value = (
            part(y).unflatten(-1, (-1, 4)).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.dropout(self.out(attended.transpose(1, 2).flatten(-2)))
        return x + self.down(functional.gelu(self.up(self.before_mlp(x))))


class Transformer(nn.Module):
    """Two layers over an embedding, which the head shares."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.embedding = nn.Embedding(12, 16)
        self.layers = nn.ModuleList(Block(16, dropout) for _ in range(2))
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 12, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        y = self.embedding(x)
        for layer in self.layers:
            y = layer(y)
        return self.head(self.norm(y))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 10), nn.GELU(), nn.Linear(10, 3))


def conv_net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 6, 3),
        nn.GroupNorm(2, 6),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(6, 3),
    )


def of_tokens(output: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy(output.flatten(0, 1), target.flatten())


MLP_SPLIT = {"0": "colwise", "2": "rowwise"}
TRANSFORMER_SPLIT = {
    "layers.*.query": "colwise",
    "layers.*.key": "colwise",
    "layers.*.value": "colwise",
    "layers.*.out": "rowwise",
    "layers.*.up": "colwise",
    "layers.*.down": "rowwise",
}
MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], tuple[Tensor, Tensor]], Any]] = {
    "mlp": (mlp, lambda n: (torch.randn(n, 6), torch.randn(n, 3)), functional.mse_loss),
    "conv net": (conv_net, lambda n: (torch.randn(n, 1, 8, 8), torch.randint(0, 3, (n,))), functional.cross_entropy),
    "transformer": (Transformer, lambda n: (torch.randint(0, 12, (n, 5)), torch.randint(0, 12, (n, 5))), of_tokens),
}
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "foreach": lambda parameters: torch.optim.AdamW(parameters, lr=1e-2, foreach=True),
    "loop": lambda parameters: torch.optim.AdamW(parameters, lr=1e-2, foreach=False),
    "fused": lambda parameters: torch.optim.AdamW(parameters, lr=1e-2, fused=True),
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=1e-2, momentum=0.9),
}
