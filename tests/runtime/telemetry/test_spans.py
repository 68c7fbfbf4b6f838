"""What a process records of its doings: endpoints, calls, waits, spans of users, collectives; within bounds."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from meshbook.runtime.actor.base import Actor
from meshbook.runtime.actor.endpoint import endpoint
from meshbook.runtime.node.call_table import Target
from meshbook.runtime.telemetry.spans import Recorder, Row, Span, SpanRecording, is_recorded, now, span
from tests.runtime.conftest import spawn_actors

if TYPE_CHECKING:
    from tests.runtime.conftest import Gate, Session


def row(start: int, end: int, name: str = "step") -> Row:
    return "run", start, end, 1, name, ""


def recording_of(node: Any) -> SpanRecording:
    found: SpanRecording = node.recorder.recording(0)
    return found


def of_kind(recording: SpanRecording, kind: str) -> list[Span]:
    return [span for span in recording.spans if span.kind == kind]


class Worker(Actor):
    @endpoint
    def work(self, gate: Gate) -> None:
        with span("load"):
            gate.pass_through()

    @endpoint
    def ask(self, other: Any) -> int:
        return int(other.answer.call_one().get())

    @endpoint
    def answer(self) -> int:
        return 42


class AsyncWorker(Actor):
    @endpoint
    async def ask(self, other: Any) -> int:
        return int(await other.answer.call_one())

    @endpoint
    async def answer(self) -> int:
        return 42


def spawn(session: Session, cls: type[Any], node: Any) -> Any:
    """As a mesh of processes spawns: under a key that names the owner."""
    targets = [Target(node.address, session.controller.supervision.name_actor(cls.__name__))]
    made = spawn_actors(session.controller, targets, cls)
    made.initialized.get()
    return made


def test_the_last_ones_are_kept_and_it_says_since_when() -> None:
    recorder = Recorder(3)
    for at in range(5):
        recorder.add(row(10 * at, 10 * at + 5))
    found = recorder.recording(since=0)
    assert [span.start for span in found.spans] == [20, 30, 40]
    assert found.since == 25
    assert [span.start for span in recorder.recording(since=36).spans] == [40]
    assert recorder.recording(since=36).since == 36


def test_of_none_nothing_is_kept() -> None:
    recorder = Recorder(0)
    assert not recorder.on
    recorder.record("user", "load", now())
    assert recorder.recording(0).spans == ()


@pytest.mark.parametrize(
    ("class_name", "recorded"),
    [
        ("__main__.Trainer", True),
        ("meshbook.runtime.cells.actor.CellActor", True),
        ("meshbook.runtime.cells.actor.CellControl", False),
    ],
)
def test_the_runtime_s_own_actors_are_left_out_but_cells(class_name: str, recorded: bool) -> None:
    assert is_recorded(class_name) is recorded


def test_a_call_is_recorded_where_it_is_made_and_where_it_runs(session: Session, gate: Gate) -> None:
    (node,) = session.workers(1)
    workers = spawn(session, Worker, node)
    gate.open()
    workers.work.call_one(gate).get()
    asked, ran = recording_of(session.controller), recording_of(node)
    (call,), (run,), (load,) = of_kind(asked, "call"), of_kind(ran, "run"), of_kind(ran, "user")
    sender, number, actor = run.link
    assert (call.name, run.name, load.name) == ("work", "work", "load")
    assert (sender, actor) == ("controller", call.link[2])
    assert call.link[0] <= number <= call.link[1]
    (arrived,) = [mark.time for mark in ran.marks if (mark.node, mark.call) == (sender, number)]
    (answered,) = [mark.time for mark in asked.marks if (mark.node, mark.call) == ("", number)]
    assert call.start < arrived < run.start < load.start < load.end < run.end < answered
    assert run.thread in ran.threads


def test_what_has_not_ended_is_there_too(session: Session, gate: Gate) -> None:
    (node,) = session.workers(1)
    answer = spawn(session, Worker, node).work.call_one(gate)
    gate.wait_entered()
    found = recording_of(node)
    (run,) = of_kind(found, "run")
    assert (run.name, run.is_open, run.end) == ("work", True, found.asked)
    gate.open()
    answer.get()


@pytest.mark.parametrize("cls", [Worker, AsyncWorker])
def test_an_actor_that_waits_for_another_says_so(session: Session, cls: type[Any], gate: Gate) -> None:
    one, other = session.workers(2)
    others = spawn(session, Worker, other)
    held = others.work.call_one(gate)  # so that there is a wait
    gate.wait_entered()
    asked = spawn(session, cls, one).ask.call_one(others)
    while not of_kind(recording_of(one), "wait"):
        pass
    gate.open()
    assert (held.get(), asked.get()) == (None, 42)
    while (found := recording_of(one)) and any(span.is_open for span in found.spans):
        pass  # a span ends after the answer
    (run,), (wait,) = of_kind(found, "run"), of_kind(found, "wait")
    assert run.start <= wait.start <= wait.end <= run.end
    assert [call.name for call in of_kind(found, "call")] == ["answer"]


def test_nothing_is_recorded_where_that_is_not_wanted(make_session: Callable[..., Session]) -> None:
    session = make_session(spans=0)
    (node,) = session.workers(1)
    spawn(session, Worker, node).answer.call_one().get()
    assert recording_of(session.controller).spans == recording_of(node).spans == ()
    assert recording_of(node).marks == ()


@pytest.mark.process
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_collectives_are_recorded_and_stay_the_same_functions() -> None:
    # In a process of its own: torch's functions stay recorded once they are.
    program = """
import sys
from meshbook.runtime.geometry import SCALAR
from meshbook.runtime.mesh.actors import ActorMesh
from meshbook.runtime.node.call_table import AllReplies, Target
from meshbook.runtime.telemetry.status_writer import StatusWriter
from meshbook.runtime.telemetry.spans import Recorder
from tests.runtime.conftest import spawn_actors
from meshbook.runtime.telemetry.collective_spans import watch_collectives
class Counted(StatusWriter):
    counts = []
    def collectives(self, count):
        self.counts.append(count)
recorder, signs = Recorder(100), Counted()
assert not watch_collectives(recorder, signs)
import torch
import torch.distributed as dist
from torch.distributed import all_reduce
assert watch_collectives(recorder, signs) and watch_collectives(recorder, signs)
assert dist.all_reduce is all_reduce
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
all_reduce(torch.ones(1))
dist.all_gather_object([None], "x")
dist.all_reduce(torch.ones(1), async_op=True).wait()
linear = torch.nn.Linear(2, 2)
linear(torch.ones(2)).sum().backward()
before, while_computing = len(signs.counts), []
linear.weight.register_hook(lambda gradient: while_computing.append(len(signs.counts)))
torch.nn.parallel.DistributedDataParallel(linear)(torch.ones(2)).sum().backward()
assert while_computing == [before] and signs.counts[before:] == [1, 0], "it waits once it has computed"
del signs.counts[before:]
torch.autograd.backward([])
try:
    dist.broadcast(torch.ones(1), src=7)
except Exception:
    pass
found = recorder.recording(0).spans
print([(span.name, span.link) for span in found])
assert all(span.end >= span.start and not span.is_open for span in found)
assert signs.counts == [1, 0] * sum(span.kind == "collective" for span in found)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    names = ["init_process_group", "all_reduce", "all_gather_object", "all_reduce"]
    assert eval(done.stdout) == [
        *((name, ("",)) for name in names),
        *[("work.wait", ()), ("backward", ()), ("backward", ("",)), ("backward", ()), ("broadcast", ("",))],
    ]
