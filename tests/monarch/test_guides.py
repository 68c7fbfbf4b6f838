"""What Monarch's published guides use beside meshes and actors: identities, telemetry, hosts, and paths of modules."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from meshbook import hosts, this_host
from meshbook.monarch import functions
from meshbook.monarch.functions import debug_controller
from meshbook.monarch.identities import ProcId, Uid
from meshbook.monarch.telemetry import get_meter, traced
from meshbook.runtime import geometry
from meshbook.runtime.actor.context import context
from meshbook.runtime.config import current_settings
from meshbook.runtime.hosts import session as sessions
from meshbook.runtime.hosts.in_process import InProcessSession
from tests.support import PATIENCE

OF_SHAPES = {
    "monarch._rust_bindings.monarch_hyperactor.shape": ["Extent", "Point", "Region", "Shape", "Slice"],
    "monarch._src.actor.shape": ["Extent", "MeshTrait", "NDSlice", "Shape", "Slice"],
}
OTHERS = {
    "monarch._rust_bindings.monarch_hyperactor.host_mesh": ["BootstrapCommand", "HostMesh"],
    "monarch._rust_bindings.monarch_hyperactor.proc": ["ProcId", "Uid"],
    "monarch._src.actor.actor_mesh": ["Actor", "ActorError", "ActorMesh", "ValueMesh", "context"],
    "monarch._src.actor.debugger.debug_controller": ["debug_controller"],
    "monarch._src.actor.host_mesh": ["HostMesh", "this_host"],
    "monarch._src.actor.proc_mesh": ["ProcMesh", "get_or_spawn_controller"],
    "monarch._src.actor.telemetry": ["get_meter", "span", "traced"],
    "monarch.actor": ["ProcId", "Uid", "debug_controller", "get_meter", "hosts_from_config", "span", "traced"],
    "monarch.job": ["hosts_from_config"],
}


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Iterator[InProcessSession]:
    session = InProcessSession()
    monkeypatch.setattr(sessions._Current, "session", session)
    yield session
    session.close()


@pytest.mark.parametrize("path", OF_SHAPES)
def test_shapes_are_at_their_documented_paths(alias: None, path: str) -> None:
    module = importlib.import_module(path)
    for name in OF_SHAPES[path]:
        assert getattr(module, name) is getattr(geometry, name), name


@pytest.mark.parametrize("path", OTHERS)
def test_names_are_at_their_documented_paths(alias: None, path: str) -> None:
    module = importlib.import_module(path)
    assert [name for name in OTHERS[path] if not hasattr(module, name)] == []


def test_the_flag_of_logging_is_an_attribute_of_a_module(alias: None) -> None:
    config = importlib.import_module("monarch.actor.config")
    assert config.prefix_python_logs_with_actor is True
    config.prefix_python_logs_with_actor = False
    try:
        assert importlib.import_module("monarch._src.actor.config").prefix_python_logs_with_actor is False
        assert current_settings().extra["prefix_python_logs_with_actor"] is False
    finally:
        config.prefix_python_logs_with_actor = True


# -- identities -----------------------------------------------------------------------


@pytest.mark.parametrize("uid", [Uid.anonymous(), Uid.instance("trainer"), Uid.instance(), Uid.singleton("local")])
def test_a_uid_is_read_back_from_its_text(uid: Uid) -> None:
    assert Uid.from_string(str(uid)) == uid
    assert uid.is_instance is not uid.is_singleton
    assert ProcId.from_string(str(uid)).uid == uid
    assert ProcId.from_string(str(uid)).label == uid.label


def test_the_text_of_a_uid() -> None:
    assert str(Uid.instance_from_value(7, "trainer")) == "trainer<8>"
    assert str(Uid.singleton("trainer")) == "trainer"
    assert (Uid.anonymous().label, Uid.from_string("a<1>").instance_value) == (None, 0)
    assert Uid.instance("a") != Uid.instance("a")


@pytest.mark.parametrize("text", ["", "<", "a<0>", "a<>", "a<1>b"])
def test_what_is_no_uid(text: str) -> None:
    with pytest.raises(ValueError, match="invalid uid"):
        Uid.from_string(text)


# -- telemetry ------------------------------------------------------------------------


def test_traced_functions_are_spans(run: InProcessSession) -> None:
    @traced
    def add(value: int) -> int:
        return value + 1

    @traced(name="other")
    async def add_later(value: int) -> int:
        return value + 1

    assert (add(1), asyncio.run(add_later(1)), add.__name__) == (2, 2, "add")
    names = [span.name for span in context().actor_instance.node.recorder.recording(0).spans if span.kind == "user"]
    assert [name.rpartition(".")[2] for name in names] == ["add", "other"]


def test_the_meter_has_counters_and_histograms() -> None:
    pytest.importorskip("opentelemetry.metrics")
    meter = get_meter()
    meter.create_counter("steps").add(1, {"rank": "0"})
    meter.create_up_down_counter("queued").add(-1)
    meter.create_histogram("seconds", "s", "of a step").record(0.5)
    for name in ("gauge", "observable_counter", "observable_gauge", "observable_up_down_counter"):
        with pytest.raises(NotImplementedError):
            getattr(meter, f"create_{name}")("steps")


# -- meshes ---------------------------------------------------------------------------


def test_a_process_mesh_shows_its_ranks(run: InProcessSession) -> None:
    procs = this_host().spawn_procs(per_host={"nodes": 1, "gpus": 2}, name="trainers")
    assert procs._labels == ["nodes", "gpus"]
    head, *rows = procs.slice(nodes=0).to_table().splitlines()
    assert head.split() == ["rank", "gpus", "process"]
    assert [row.split() for row in rows] == [[str(rank), str(rank), procs.nodes[rank].node] for rank in range(2)]


def test_the_debug_controller_knows_the_stopped_ranks(run: InProcessSession) -> None:
    for _ in range(2):
        assert debug_controller().list.call_one().get(PATIENCE) == []


def test_hosts_of_a_named_set_up_are_two_local_ones_if_it_is_unknown(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(hosts, "local", lambda count: f"{count} local hosts")
    monkeypatch.setattr(hosts, "start", lambda name: f"hosts of {name}")
    found: Any = functions.hosts_from_config("MONARCH_HOSTS")
    assert found == "2 local hosts"
    (tmp_path / "hosts.toml").write_text('[lab]\nlauncher = "local"\n')
    found = functions.hosts_from_config("lab")
    assert found == "hosts of lab"
