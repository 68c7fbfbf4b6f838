"""Checkpoints of several ranks: written together, read by more or fewer, and by none half."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from meshbook import Actor, checkpoint, endpoint
from tests.support import PATIENCE

pytestmark = pytest.mark.process


class Rank(Actor):
    """Saves and loads what a rank of a training holds."""

    def _state(self) -> dict[str, Any]:
        import torch
        import torch.distributed as dist

        rank = dist.get_rank()
        return {"shared": torch.full((3,), 7.0), f"own-{rank}": torch.tensor(float(rank)), "epoch": 4}

    @endpoint
    def save(self, folder: str, step: int, extra: dict[int, Any]) -> str:
        """`extra`: what makes one thing more to be saved, by rank."""
        import torch.distributed as dist

        state = self._state()
        if (make := extra.get(dist.get_rank())) is not None:
            state["extra"] = make()
        return str(checkpoint.save(state, folder, step=step))

    @endpoint
    def load(self, folder: str) -> tuple[int, dict[str, Any]]:
        import torch
        import torch.distributed as dist

        state = {"shared": torch.zeros(3), f"own-{dist.get_rank()}": torch.tensor(-1.0), "epoch": 0}
        step = checkpoint.load(state, folder)
        return step, {name: getattr(value, "tolist", lambda value=value: value)() for name, value in state.items()}

    @endpoint
    def pid(self) -> int:
        return os.getpid()


class Late:
    """Is not pickled until its process is killed: it says that it has been come to, and waits."""

    def __init__(self, fifo: str) -> None:
        self.fifo = fifo

    def __reduce__(self) -> Any:
        with open(self.fifo, "w") as told:
            told.write("here\n")
        signal.pause()
        raise AssertionError


class Broken:
    def __reduce__(self) -> Any:
        raise OSError("no space left on device")


def expected(rank: int) -> dict[str, Any]:
    return {"shared": [7.0, 7.0, 7.0], f"own-{rank}": float(rank), "epoch": 4}


@pytest.fixture(scope="module")
def mesh(host) -> Iterator[tuple[Any, Any]]:
    """Three ranks for several tests: to import what reads and writes takes a second in each."""
    procs = host.spawn_procs(per_host={"gpus": 3})
    procs.initialized.get(PATIENCE)
    yield procs, procs.spawn("ranks", Rank)
    procs.stop().get(PATIENCE)


def test_more_and_fewer_ranks_read_what_some_have_written(mesh, tmp_path: Path):
    procs, ranks = mesh
    procs.init_process_group().get(PATIENCE)
    saved = ranks.save.call(str(tmp_path), 12, {}).get(PATIENCE)
    assert set(saved.values()) == {str(tmp_path / "step-12")}
    assert [entry.name for entry in tmp_path.iterdir()] == ["step-12"]

    for fewer in (procs.slice(gpus=slice(0, 2)), procs):
        fewer.init_process_group().get(PATIENCE)
        loaded = ranks.slice(gpus=slice(0, fewer.size())).load.call(str(tmp_path)).get(PATIENCE)
        assert list(loaded.values()) == [(12, expected(rank)) for rank in range(fewer.size())]


def test_a_rank_that_is_killed_in_the_middle_of_a_save(spawn_procs, tmp_path: Path):
    """The checkpoint before stays the newest, and the next save clears what was left."""
    folder, fifo = tmp_path / "run", str(tmp_path / "fifo")
    os.mkfifo(fifo)
    procs = spawn_procs(3)
    ranks = procs.spawn("ranks", Rank)
    procs.init_process_group().get(PATIENCE)
    ranks.save.call(str(folder), 1, {}).get(PATIENCE)

    victim = ranks.slice(gpus=2).pid.call_one().get(PATIENCE)
    saving = ranks.save.call_each(str(folder), 2, {2: lambda: Late(fifo)})
    with open(fifo) as told:
        assert told.readline() == "here\n"
    os.kill(victim, signal.SIGKILL)
    saving[2].exception(PATIENCE)
    assert checkpoint.steps(folder) == [1]

    assert procs.heal().get(PATIENCE) == [2]
    assert all("was not saved" in str(each.exception(PATIENCE)) for each in saving[:2])
    loaded = ranks.load.call(str(folder)).get(PATIENCE)
    assert [step for step, _ in loaded.values()] == [1, 1, 1]
    ranks.save.call(str(folder), 2, {}).get(PATIENCE)
    assert sorted(entry.name for entry in folder.iterdir()) == ["step-1", "step-2"]


def test_all_ranks_get_the_error_of_the_rank_that_could_not_write(mesh, tmp_path: Path):
    procs, ranks = mesh
    procs.init_process_group().get(PATIENCE)
    for saving in ranks.save.call_each(str(tmp_path), 1, {1: Broken}):
        said = str(saving.exception(PATIENCE))
        assert f"{tmp_path}/step-1 was not saved" in said
        assert "rank 1: OSError: no space left on device" in said
    (tmp_path / "file").touch()
    for saving in ranks.save.call_each(str(tmp_path / "file" / "run"), 1, {}):
        assert "rank 0: NotADirectoryError" in str(saving.exception(PATIENCE))
