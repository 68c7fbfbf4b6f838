"""Models of libraries train on a mesh of two by two processes with the losses of one process."""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import meshbook
from meshbook.runtime.hosts.session import close_session
from meshbook.runtime.tensor.remote import call_on_shard_and_fetch
from tests.support import PATIENCE

# To import the libraries takes a busy machine a minute.
pytestmark = pytest.mark.process
STEPS = 4


def needs(package: str) -> pytest.MarkDecorator:
    missing = importlib.util.find_spec(package) is None
    return pytest.mark.skipif(missing, reason=f"needs {package}")


@pytest.fixture(scope="module")
def mesh() -> Iterator[Any]:
    made = meshbook.Mesh(shape=(2, 2), dims=("data", "model"))
    yield made
    made.stop().get(PATIENCE)
    close_session()


def llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=16,
        use_cache=False,
    )
    return LlamaForCausalLM(config)


def resnet() -> nn.Module:
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(embedding_size=4, hidden_sizes=[4, 8], depths=[1, 2], layer_type="basic", num_labels=5)
    return ResNetForImageClassification(config)


def torchvision_resnet() -> nn.Module:
    from torchvision.models.resnet import BasicBlock, ResNet

    return ResNet(BasicBlock, [1, 1, 1, 1], num_classes=5)


def declare_operators() -> None:
    """Let `import torchvision` succeed if its operators are built for another torch. A ResNet uses none of them."""
    package = importlib.util.find_spec("torchvision")
    assert package is not None
    assert package.origin is not None
    try:
        torch.ops.load_library(Path(package.origin).parent / "_C.so")
    except OSError:
        for name in ("nms", "qnms"):
            schema = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            torch.library.define(f"torchvision::{name}", schema)


LLAMA_SPLIT = {
    "model.layers.*.self_attn.[qkv]_proj": "colwise",
    "model.layers.*.self_attn.o_proj": "rowwise",
    "model.layers.*.mlp.gate_proj": "colwise",
    "model.layers.*.mlp.up_proj": "colwise",
    "model.layers.*.mlp.down_proj": "rowwise",
}


def next_token_loss(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def train(model: nn.Module, x: torch.Tensor, y: torch.Tensor, loss_fn: Any) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(STEPS):
        output = model(x)
        loss = loss_fn(getattr(output, "logits", output), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [loss.item() for loss in losses]


@pytest.mark.parametrize(
    ("build", "plan"),
    [
        pytest.param(llama, "replicate", marks=[needs("transformers"), pytest.mark.long], id="Llama, replicated"),
        pytest.param(llama, {"data": "fsdp", "model": LLAMA_SPLIT}, marks=needs("transformers"), id="Llama, sharded"),
        pytest.param(resnet, "replicate", marks=[needs("transformers"), pytest.mark.long], id="ResNet of transformers"),
        pytest.param(
            torchvision_resnet, "replicate", marks=[needs("torchvision"), pytest.mark.long], id="ResNet of torchvision"
        ),
    ],
)
def test_a_model_of_a_library_trains_as_in_one_process(mesh: Any, build: Callable[[], nn.Module], plan: Any) -> None:
    if build is torchvision_resnet:
        declare_operators()
        with mesh.activate():
            for row, column in itertools.product(range(2), repeat=2):
                call_on_shard_and_fetch(declare_operators, shard={"data": row, "model": column}).get(PATIENCE)
    torch.manual_seed(0)
    local = build().train()
    model = meshbook.module_to_mesh(local, mesh, plan)
    if build is llama:
        x = y = torch.randint(0, 32, (4, 8))
        loss_fn: Any = next_token_loss
    else:
        x, y, loss_fn = torch.randn(6, 3, 32, 32), torch.randint(0, 5, (6,)), functional.cross_entropy
    sharded = [meshbook.distribute(each, mesh, ["data", *[None] * (each.dim() - 1)]) for each in (x, y)]
    losses = train(model, *sharded, loss_fn)
    assert losses == pytest.approx(train(local, x, y, loss_fn), rel=2e-6, abs=1e-6)
    assert losses[-1] < losses[0]
