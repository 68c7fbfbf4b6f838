"""Checkpoints of a process on its own: what is read is what was written, and half of one is none."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from meshbook import checkpoint
from meshbook.checkpoint import CheckpointError


def train(model: nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> None:
    batch = torch.randn(4, 3, generator=torch.Generator().manual_seed(seed))
    optimizer.zero_grad()
    model(batch).square().sum().backward()
    optimizer.step()


def training() -> dict[str, Any]:
    model = nn.Linear(3, 2)
    return {"model": model, "optimizer": torch.optim.AdamW(model.parameters(), lr=0.1), "epoch": 0, "losses": [1.0]}


def weights(state: dict[str, Any]) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten().clone() for parameter in state["model"].parameters()])


def test_training_goes_on_as_if_it_had_not_ended(tmp_path: Path) -> None:
    first = training()
    train(first["model"], first["optimizer"], seed=1)
    first |= {"epoch": 1, "losses": [1.0, 0.5]}
    assert checkpoint.save(first, tmp_path, step=1) == tmp_path / "step-1"
    train(first["model"], first["optimizer"], seed=2)

    second = training()
    assert checkpoint.load(second, tmp_path) == 1
    assert (second["epoch"], second["losses"]) == (1, [1.0, 0.5])
    assert second["optimizer"].param_groups[0]["lr"] == 0.1
    train(second["model"], second["optimizer"], seed=2)  # with the moments of the optimizer
    torch.testing.assert_close(weights(second), weights(first))


def test_what_was_saved_before_a_first_step(tmp_path: Path) -> None:
    first, second = training(), training()
    checkpoint.save(first, tmp_path, step=0)
    checkpoint.load(second, tmp_path)
    torch.testing.assert_close(weights(second), weights(first))


@pytest.mark.parametrize("variable", [None, "own"])
def test_without_a_folder_it_is_that_of_the_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MESHBOOK_CHECKPOINT_DIR", raising=False)
    if variable is not None:
        monkeypatch.setenv("MESHBOOK_CHECKPOINT_DIR", variable)
    assert checkpoint.latest() is None
    assert checkpoint.save({"x": torch.ones(1)}, step=2) == tmp_path / (variable or "checkpoints") / "step-2"
    x = torch.zeros(1)
    assert checkpoint.load({"x": x}) == checkpoint.latest() == 2
    assert x.tolist() == [1.0]


def test_tensors_are_read_in_place(tmp_path: Path) -> None:
    checkpoint.save({"x": torch.arange(3.0), "more": {"y": torch.ones(2)}}, tmp_path, step=5)
    x, y = torch.zeros(3), torch.zeros(2)
    assert checkpoint.load({"x": x, "more": {"y": y}}, tmp_path, step=5) == 5
    assert (x.tolist(), y.tolist()) == ([0.0, 1.0, 2.0], [1.0, 1.0])


def test_the_newest_are_kept(tmp_path: Path) -> None:
    for step in (8, 9, 10, 11):
        checkpoint.save({"step": step}, tmp_path, step=step, keep=2)
    assert checkpoint.steps(tmp_path) == [10, 11]
    assert checkpoint.latest(tmp_path) == 11
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["step-10", "step-11"]
    # Training went back, and comes by again: the last saved one is the newest, whatever its number.
    checkpoint.save({"step": "again"}, tmp_path, step=7, keep=2)
    assert 7 in checkpoint.steps(tmp_path)


def test_a_step_is_saved_again(tmp_path: Path) -> None:
    for value in ("first", "second"):
        checkpoint.save({"value": value}, tmp_path, step=3)
    state = {"value": ""}
    checkpoint.load(state, tmp_path)
    assert state == {"value": "second"}


def test_at_each_moment_of_a_replacement_there_is_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process is killed after each of its renames and removals in turn; then it saves again."""
    found: list[str] = []

    def look(change: Callable[..., Any]) -> Callable[..., Any]:
        def changed(*given: Any, **more: Any) -> Any:
            answer = change(*given, **more)
            state = {"value": ""}
            assert checkpoint.load(state, tmp_path) == 3
            found.append(state["value"])
            return answer

        return changed

    checkpoint.save({"value": "first"}, tmp_path, step=3)
    monkeypatch.setattr(Path, "rename", look(Path.rename))
    monkeypatch.setattr(checkpoint.shutil, "rmtree", look(shutil.rmtree))
    checkpoint.save({"value": "second"}, tmp_path, step=3)
    assert found == sorted(found)  # torch renames a file of the new one as well
    assert set(found) == {"first", "second"}
    assert [entry.name for entry in tmp_path.iterdir()] == ["step-3"]


def test_a_replaced_checkpoint_is_read_if_the_new_one_never_came(tmp_path: Path) -> None:
    checkpoint.save({"value": "first"}, tmp_path, step=3)
    (tmp_path / "step-3").rename(tmp_path / "step-3.old")
    state = {"value": ""}
    assert checkpoint.load(state, tmp_path) == checkpoint.latest(tmp_path) == 3
    assert state == {"value": "first"}
    checkpoint.save({"value": "second"}, tmp_path, step=3)
    checkpoint.save({"value": "third"}, tmp_path, step=4, keep=1)
    assert [entry.name for entry in tmp_path.iterdir()] == ["step-4"]


def test_half_a_checkpoint_is_none(tmp_path: Path) -> None:
    checkpoint.save({"x": 1}, tmp_path, step=1)
    (tmp_path / ".step-2-abc").mkdir()
    (tmp_path / "step-3").mkdir()  # made by another program
    (tmp_path / "notes.txt").touch()
    assert checkpoint.steps(tmp_path) == [1]
    assert checkpoint.latest(tmp_path / "nowhere") is None


class Unpicklable:
    def __reduce__(self) -> Any:
        raise RuntimeError("it does not travel")


def test_errors_say_what_and_where(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no checkpoint in .*: none"):
        checkpoint.load({}, tmp_path)
    checkpoint.save({"x": 1}, tmp_path, step=1)
    with pytest.raises(CheckpointError, match=r"no checkpoint of step 2 in .*steps: 1"):
        checkpoint.load({}, tmp_path, step=2)
    with pytest.raises(CheckpointError, match=r"step-1 was not loaded\n(.|\n)*Missing key(.|\n)*unknown"):
        checkpoint.load({"unknown": torch.zeros(1)}, tmp_path)
    with pytest.raises(CheckpointError, match=r"step-1 was not saved\n(.|\n)*it does not travel"):
        checkpoint.save({"x": Unpicklable()}, tmp_path, step=1)
    state = {"x": 0}
    checkpoint.load(state, tmp_path)
    assert state == {"x": 1}  # what was there stays
    assert [entry.name for entry in tmp_path.iterdir()] == ["step-1"]
    with pytest.raises(ValueError, match="keep at least 1"):
        checkpoint.save({}, tmp_path, step=1, keep=0)
