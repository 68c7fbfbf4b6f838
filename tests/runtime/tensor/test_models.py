"""Models train on a mesh as they do locally: a conv net, a transformer, mixed precision, hooks, checkpointing."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from meshbook.runtime.tensor.trees import fetch_shard
from tests.support import PATIENCE

pytestmark = pytest.mark.slow

STEPS = 3


def value(tree, **dims):
    return fetch_shard(tree, **dims).get(PATIENCE)


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 4, 3)
        )
        self.head = nn.Linear(4, 5)

    def forward(self, x):
        return self.head(self.features(x).mean((2, 3)))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 16)
        layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(16, 11)

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return self.head(self.encoder(self.embedding(x), mask=mask, is_causal=True)).flatten(0, 1)


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.body = nn.LSTM(8, 6, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(12, 5)

    def forward(self, x):
        return self.head(self.body(self.embedding(x))[0]).flatten(0, 1)


MODELS = {
    "lstm": (Tagger, lambda: torch.randint(0, 11, (2, 6)), lambda: torch.randint(0, 5, (12,))),
    "conv net": (ConvNet, lambda: torch.randn(4, 3, 8, 8), lambda: torch.randint(0, 5, (4,))),
    "transformer": (Transformer, lambda: torch.randint(0, 11, (2, 6)), lambda: torch.randint(0, 11, (12,))),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("is_mixed", [False, True], ids=["float32", "mixed precision"])
def test_a_model_trains_as_it_does_locally(pair, name, is_mixed):
    make, make_input, make_target = MODELS[name]
    torch.manual_seed(0)
    local, x, y = make(), make_input(), make_target()
    mesh = pair.device_mesh
    with mesh.activate():
        remote = make()
    remote.load_state_dict({key: mesh.constant(each) for key, each in local.state_dict().items()})

    def train(model, x, y):
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        losses = []
        for _ in range(STEPS):
            with torch.autocast("cpu", torch.bfloat16, enabled=is_mixed):
                loss = nn.functional.cross_entropy(model(x).float(), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return [loss.item() for loss in losses]

    expected = train(local, x, y)
    with mesh.activate():
        losses = train(remote, mesh.constant(x), mesh.constant(y))
    assert losses == pytest.approx(expected, rel=1e-2 if is_mixed else 1e-6)
    local.eval()
    remote.eval()
    with mesh.activate(), torch.inference_mode():
        result = value(remote(mesh.constant(x)), gpus=1)
    with torch.inference_mode():
        torch.testing.assert_close(result, local(x), rtol=2e-2 if is_mixed else 1e-4, atol=2e-2 if is_mixed else 1e-5)


def test_hooks_and_checkpointing(pair):
    mesh, seen = pair.device_mesh, []
    with mesh.activate():
        layer = nn.Linear(3, 3)
        layer.register_forward_hook(lambda module, args, result: seen.append(tuple(result.shape)))
        layer.weight.register_hook(lambda gradient: gradient * 2)
        x = torch.ones(2, 3)
        layer(x).sum().backward()
        doubled = layer.weight.grad
        layer.weight.grad = None
        checkpoint(layer, x, use_reentrant=False).sum().backward()
    assert value(doubled).tolist() == [[4.0] * 3] * 3
    assert value(layer.weight.grad).tolist() == [[4.0] * 3] * 3
    assert set(seen) == {(2, 3)}
