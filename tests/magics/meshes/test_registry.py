"""The meshes of a notebook over a session without processes: names, the default, messages about starts and deaths."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from meshbook.magics.errors import MeshError
from meshbook.magics.meshes import registry as module
from meshbook.magics.meshes.registry import MeshRegistry, NotebookMesh, default_extent, wait_ready
from meshbook.magics.meshes.status import history_of, state_of
from meshbook.magics.meshes.whereabouts import RankWhereabouts
from meshbook.magics.syntax.selectors import LastCell
from meshbook.magics.verbs.start_stop import UpVerb
from meshbook.runtime.actor.context import CURRENT
from meshbook.runtime.actor.future import Future
from meshbook.runtime.cells.outcome import Frame
from meshbook.runtime.cells.thread_stacks import MainThreadState
from meshbook.runtime.errors import ExitReport, MeshbookError
from meshbook.runtime.geometry import Extent, Region
from meshbook.runtime.telemetry.events import RunEvent
from meshbook.runtime.wire.messages import Address
from tests.support import PATIENCE, StatementInterrupts, few


class FakeSession:
    """Starts meshes whose ranks answer as `answers` say; notes how each mesh ended."""

    def __init__(self) -> None:
        self.answers: list[Future[bool]] | None = None
        self.ended: list[str] = []
        self.spawned = 0
        self.stopped: Future[None] = Future.completed(None)
        self.when_stopped: Callable[[], object] = lambda: None
        self.forgotten: list[str] = []
        self.node = SimpleNamespace(peers=SimpleNamespace(when_down=[], when_restarted=[]))
        self.output = SimpleNamespace(forget=self.forgotten.append)
        self.history = SimpleNamespace(forget=lambda mesh: None)
        self.events: list[Any] = []
        self.host = self
        self.has_lost_agent = False
        self.context = SimpleNamespace(actor_instance=None)

    def spawn_procs(self, per_host: dict[str, int], name: str, spares: int) -> FakeProcs:
        self.spawned += 1
        return FakeProcs(self, Extent.of(**per_host), name)

    def report(self, report: ExitReport) -> None:
        for callback in list(self.node.peers.when_down):
            callback(report)


class FakeActors:
    """Are ready with these answers; run no endpoint."""

    def __init__(self, answers: list[Any]) -> None:
        self.prepare = SimpleNamespace(call_each=lambda: answers)

    def _with_region(self, region: Region) -> Any:
        return SimpleNamespace(endpoints=SimpleNamespace(call_each=lambda: [Future.completed([])] * len(region)))


class FakeProcs:
    def __init__(self, session: FakeSession, extent: Extent, name: str) -> None:
        self._session = session
        self.extent = extent
        self.region = extent.region
        self.name = f"{name}-0a1b"
        self.nodes = [Address(f"{name}.{rank}", "ipc://nowhere") for rank in range(extent.nelements)]
        self.followers: list[Any] = []
        self.is_stopped = False

    def spawn(self, name: str, cls: type) -> Any:
        answers = self._session.answers or [Future.completed(True)] * self.extent.nelements
        return FakeActors(answers)

    spawn_on_main = spawn

    def after_heal(self, begin: Any) -> None:
        self.followers.append(begin)

    def kill(self, *, sender: str) -> None:
        self._session.ended.append(f"{self.name} killed")

    def stop(self, reason: str) -> Future[None]:
        self._session.ended.append(f"{self.name} stopped: {reason}")
        self._session.when_stopped()
        return self._session.stopped


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> FakeSession:
    session = FakeSession()
    monkeypatch.setattr(module, "current_session", lambda: session)
    monkeypatch.setattr(module, "running_session", lambda: session)
    monkeypatch.setattr(module, "count_gpus", lambda: 0)
    monkeypatch.setattr(module, "handle_failures", lambda mesh, handle: None)
    return session


@pytest.fixture
def meshes(session: FakeSession) -> MeshRegistry:
    return MeshRegistry()


def up(meshes: MeshRegistry, name: str | None = None, gpus: int = 2) -> NotebookMesh:
    return meshes.up(Extent.of(gpus=gpus), name)


# --- names and the current mesh ---


def test_the_first_one_up_is_the_current_mesh_until_another_is_chosen(meshes: MeshRegistry) -> None:
    assert [up(meshes, name).name for name in (None, "trainers", "judge")] == ["mesh", "trainers", "judge"]
    assert meshes.get().name == "mesh"
    assert meshes.get("trainers").name == "trainers"
    assert [mesh.name for mesh in meshes] == ["mesh", "trainers", "judge"]
    meshes.use("judge")
    assert (meshes.get().name, meshes.select("0")[0].name) == ("judge", "judge")
    with pytest.raises(MeshError, match=r"no mesh is named 'other'; meshes: mesh, trainers, judge"):
        meshes.use("other")


@pytest.mark.parametrize(
    ("down", "current"),
    [([None], "judge"), (["mesh"], "judge"), (["judge"], "mesh"), (["judge", "mesh"], "trainers")],
)
def test_the_current_mesh_after_one_is_down(meshes: MeshRegistry, down: list[str | None], current: str) -> None:
    for name in ("mesh", "trainers", "judge"):
        up(meshes, name)
    for each in down:
        meshes.down(each)
    assert meshes.get().name == current


def test_ranks_are_shown_with_their_mesh_where_there_are_several(meshes: MeshRegistry) -> None:
    mesh = up(meshes)
    assert (mesh.label, mesh.selector(), mesh.selector("3")) == ("", "", " 3")
    other = up(meshes, "judge")
    assert (mesh.label, other.label) == ("mesh", "judge")
    assert (other.selector(), other.selector("3")) == (" judge", " judge[3]")
    meshes.down("judge")
    assert mesh.label == ""


@pytest.mark.parametrize("name", ["all", "ok", "failed", "changed", "two words", "1st", "a-b", "a.b"])
def test_a_name_that_a_mesh_cannot_have(meshes: MeshRegistry, session: FakeSession, name: str) -> None:
    with pytest.raises(MeshError, match=r"invalid mesh name .* all, changed, failed, ok"):
        up(meshes, name)
    assert len(meshes) == 0


def test_a_name_is_taken_until_its_mesh_is_down(meshes: MeshRegistry) -> None:
    up(meshes, "trainers")
    with pytest.raises(MeshError, match=r"trainers: 2 ranks .* is already up; .*%mesh resize trainers .* --name"):
        up(meshes, "trainers")
    meshes.down("trainers")
    assert up(meshes, "trainers").name == "trainers"


def test_a_mesh_that_is_not_there(meshes: MeshRegistry) -> None:
    for ask in (meshes.get, meshes.down, lambda: meshes.get("trainers"), lambda: meshes.select("all")):
        with pytest.raises(MeshError, match=r"^no mesh is up; start one with %mesh up --gpus 4$"):
            ask()
    up(meshes)
    up(meshes, "judge")
    for ask in (lambda: meshes.get("trainers"), lambda: meshes.down("trainers")):
        with pytest.raises(MeshError, match=r"^no mesh is named 'trainers'; meshes: mesh, judge$"):
            ask()


@pytest.mark.parametrize(
    ("text", "name", "ranks"),
    [("all", "mesh", [0, 1]), ("!0", "mesh", [1]), ("judge[1]", "judge", [1]), ("judge", "judge", [0, 1, 2])],
)
def test_a_selector_means_the_current_mesh_or_names_one(
    meshes: MeshRegistry, text: str, name: str, ranks: list[int]
) -> None:
    up(meshes)
    up(meshes, "judge", 3)
    mesh, selected = meshes.select(text)
    assert (mesh.name, list(selected.region.ranks())) == (name, ranks)


@pytest.mark.parametrize(("now", "ends"), [(False, []), (True, ["mesh-0a1b killed"])])
def test_down_ends_the_processes_and_forgets_their_output(
    meshes: MeshRegistry, session: FakeSession, now: bool, ends: list[str]
) -> None:
    up(meshes)
    assert meshes.down(now=now).name == "mesh"
    assert session.ended == [*ends, "mesh-0a1b stopped: %mesh down"]
    assert session.forgotten == ["mesh-0a1b"]
    assert len(meshes) == 0


def test_meshes_end_with_their_session(meshes: MeshRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    up(meshes)
    monkeypatch.setattr(module, "running_session", lambda: None)
    assert (len(meshes), list(meshes)) == (0, [])
    with pytest.raises(MeshError, match="no mesh is up"):
        meshes.get("mesh")
    next_session = FakeSession()
    for name in ("current_session", "running_session"):
        monkeypatch.setattr(module, name, lambda: next_session)
    mesh = up(meshes)
    assert list(meshes) == [mesh]


def test_each_change_of_a_mesh_or_of_its_health_is_reported(meshes: MeshRegistry, session: FakeSession) -> None:
    seen: list[tuple[str, set[int], set[int]]] = []
    meshes.when_changed = lambda: seen.extend((mesh.name, {*mesh.dead}, mesh.failed) for mesh in meshes)
    mesh = up(meshes)
    session.report(ExitReport("mesh.1", 4711, -9))
    for listener in session.node.peers.when_restarted:
        listener("mesh.1")
    mesh.note_last(LastCell(serial=1, failed=frozenset({0, 1}), interrupted=frozenset({1})))
    assert seen == [("mesh", set(), set()), ("mesh", {1}, set()), ("mesh", set(), set()), ("mesh", set(), {0})]
    meshes.when_changed = lambda: seen.append(("", set(), set()))
    meshes.down()
    assert seen[-1][0] == ""


# --- how many ---


@pytest.mark.parametrize(
    ("gpus", "cores", "count"),
    [(0, 1, 2), (0, 2, 2), (0, 6, 6), (0, 8, 8), (0, 128, 8), (1, 16, 1), (4, 2, 4), (16, 4, 16)],
)
def test_as_many_ranks_as_gpus_or_else_as_cores_within_bounds(
    monkeypatch: pytest.MonkeyPatch, gpus: int, cores: int, count: int
) -> None:
    monkeypatch.setattr(module, "count_cores", lambda: cores)
    assert default_extent(gpus) == Extent.of(gpus=count)


@pytest.mark.parametrize(
    ("gpus", "extent", "said"),
    [
        (0, Extent.of(gpus=4), "mesh: 4 ranks (gpus=4), on CPU (no GPU here)"),
        (8, Extent.of(hosts=2, gpus=4), "mesh: 8 ranks (hosts=2, gpus=4), one GPU each"),
    ],
)
def test_a_mesh_describes_itself(
    meshes: MeshRegistry, monkeypatch: pytest.MonkeyPatch, gpus: int, extent: Extent, said: str
) -> None:
    monkeypatch.setattr(module, "count_gpus", lambda: gpus)
    assert meshes.up(extent).format_summary() == said


# --- starts that fail, ranks that die ---


def test_a_rank_that_does_not_come_up_ends_the_start(meshes: MeshRegistry, session: FakeSession) -> None:
    session.answers = [Future.completed(True), Future.failed(MeshbookError("no device"))]
    with pytest.raises(MeshError, match=r"^rank 1 of mesh did not start: no device$"):
        up(meshes)
    assert session.ended == ["mesh-0a1b stopped: it did not start"]
    assert len(meshes) == 0


def test_a_rank_that_fails_is_reported_while_others_still_start(meshes: MeshRegistry, session: FakeSession) -> None:
    session.answers = [Future.pending(), Future.failed(MeshbookError("no device"))]
    with pytest.raises(MeshError, match=r"^rank 1 of mesh did not start: no device$"):
        up(meshes)


def test_an_interrupt_ends_the_start(meshes: MeshRegistry, session: FakeSession) -> None:
    def interrupt(ready: int, total: int) -> None:
        raise KeyboardInterrupt

    session.answers = [Future.completed(True), Future.pending()]
    with pytest.raises(KeyboardInterrupt):
        meshes.up(Extent.of(gpus=2), progress=interrupt)
    assert session.ended == ["mesh-0a1b stopped: it did not start"]
    session.answers = None
    up(meshes)


def test_an_interrupted_down_keeps_the_mesh_until_its_ranks_have_ended(
    meshes: MeshRegistry, session: FakeSession
) -> None:
    """Then its hosts end, which may be an allocation that is paid for; and it can be repeated."""
    ended = threading.Event()
    machines = SimpleNamespace(spawn_procs=session.spawn_procs, extent=Extent.of(hosts=1))
    hosts: Any = SimpleNamespace(machines=machines, count_gpus=lambda: 0, close=ended.set)
    mesh = meshes.up(Extent.of(gpus=2), open_hosts=lambda: hosts)
    stopped = session.stopped = Future[None].pending()
    session.when_stopped = lambda: signal.raise_signal(signal.SIGINT)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt) as caught:
            meshes.down()
        assert caught.value.__notes__ == ["mesh is being stopped; %mesh down mesh waits for its end"]
        assert list(meshes) == [mesh]
        assert not ended.is_set()
    stopped.resolve(lambda: None)
    assert list(meshes) == []
    assert ended.wait(PATIENCE)


def test_the_hosts_of_a_session_that_closes_end_with_it(
    meshes: MeshRegistry, session: FakeSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the exit of the process, no thread can be started."""
    machines = SimpleNamespace(spawn_procs=session.spawn_procs, extent=Extent.of(hosts=1))
    hosts: Any = SimpleNamespace(machines=machines, count_gpus=lambda: 0)
    mesh = meshes.up(Extent.of(gpus=1), open_hosts=lambda: hosts)
    monkeypatch.setattr(module, "running_session", lambda: None)
    session.report(ExitReport("mesh.0", 4711, 0, stopped="the session was closed"))
    assert mesh.closing is None
    assert session.node.peers.when_down == []


@pytest.mark.parametrize("line", few([20, 1]))
def test_a_mesh_is_up_or_not_after_an_interrupt_at_any_statement(
    meshes: MeshRegistry, session: FakeSession, line: int
) -> None:
    interrupts = StatementInterrupts(line)
    while interrupts.are_left:
        session.ended.clear()
        interrupt = interrupts.run(lambda: up(meshes))
        if len(meshes):
            assert interrupt is None or interrupt.__notes__ == ["mesh is up"], interrupts.where
            meshes.down()
        elif getattr(interrupt, "__notes__", ()):
            assert interrupt is not None
            assert interrupt.__notes__ == ["mesh was not started"]
            assert len(session.ended) == session.spawned, interrupts.where
        session.spawned = 0


def test_a_mesh_that_is_up_is_the_current_one_also_after_an_interrupt(
    meshes: MeshRegistry, session: FakeSession
) -> None:
    fixed: dict[str, UpVerb] = {}
    notebook: Any = SimpleNamespace(
        shell=None,
        meshes=meshes,
        session=lambda: session,
        bind=lambda mesh: signal.raise_signal(signal.SIGINT),
        fixed_meshes=fixed,
    )
    up(meshes, "a")
    verb = UpVerb(gpus=2, name="b", fixed=True)
    with pytest.raises(KeyboardInterrupt):
        verb.run(notebook)
    assert meshes.get().name == "b"
    assert fixed == {"b": verb}


def test_progress_counts_the_ranks_that_are_ready(meshes: MeshRegistry, session: FakeSession) -> None:
    mesh = up(meshes, gpus=3)
    first: Future[bool] = Future.pending()
    seen = []

    def look(ready: int, total: int) -> None:
        seen.append((ready, total))
        first.resolve(lambda: True)

    answers = [first, Future.completed(True), Future.completed(True)]
    mesh.cells.prepare.call_each = lambda: answers  # type: ignore[method-assign]
    wait_ready(mesh, look)
    assert seen == [(2, 3)]


@pytest.fixture
def client() -> Iterator[None]:
    """The test's own context comes back at its end."""
    token = CURRENT.set(None)
    yield
    CURRENT.reset(token)


@pytest.mark.usefixtures("client")
def test_a_session_whose_agent_is_lost_makes_room(
    meshes: MeshRegistry, session: FakeSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions = [session]
    monkeypatch.setattr(module, "current_session", lambda: sessions[-1])
    monkeypatch.setattr(module, "running_session", lambda: sessions[-1])
    monkeypatch.setattr(module, "close_session", lambda: sessions.append(FakeSession()))
    up(meshes)
    session.has_lost_agent = True
    assert up(meshes, "again").session is sessions[1]
    assert [mesh.name for mesh in meshes] == ["again"]


def test_an_ended_mesh_has_no_listeners(meshes: MeshRegistry, session: FakeSession) -> None:
    up(meshes)
    for rank in range(2):
        session.report(ExitReport(f"mesh.{rank}", 4711, 0, stopped="%mesh down"))
    up(meshes, "other", 1)
    session.report(ExitReport("other.0", 4711, -9))
    meshes.down("other")
    session.answers = [Future.failed(MeshbookError("no device"))]
    with pytest.raises(MeshError):
        up(meshes, "unstarted", 1)
    session.report(ExitReport("unstarted.0", 4711, 0, stopped="it did not start"))
    assert (session.node.peers.when_down, session.node.peers.when_restarted) == ([], [])


def test_a_rank_that_was_healed_is_not_dead(meshes: MeshRegistry, session: FakeSession) -> None:
    mesh = up(meshes)
    session.report(ExitReport("mesh.1", 4711, -9))
    mesh.busy[1] = 3
    mesh.names[1] = ("model",)
    for listener in session.node.peers.when_restarted:
        listener("mesh.1")
    assert (mesh.dead, mesh.busy, mesh.lost) == ({}, {}, {1: ("model",)})
    assert list(state_of(mesh))[1:] == ["  rank 1 was restarted; it lost 1 name: model"]
    mesh.names[1] = ("model", "step")  # a cell has bound it again
    assert list(state_of(mesh))[1:] == []
    session.report(ExitReport("mesh.1", 4712, -9))
    assert list(mesh.dead) == [1]
    mesh.names[1] = ("step",)
    for listener in session.node.peers.when_restarted:
        listener("mesh.1")
    assert mesh.lost == {1: ("step", "model")}, "it still lacks what it lost in the first restart"


def test_ranks_at_work_have_their_places(meshes: MeshRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    async def collect(mesh: NotebookMesh, ranks: Sequence[int]) -> dict[int, RankWhereabouts]:
        return {rank: RankWhereabouts(MainThreadState(frames=(Frame("<cell 7>", rank, "step"),))) for rank in ranks}

    monkeypatch.setattr("meshbook.magics.meshes.status.collect_whereabouts", collect)
    mesh = up(meshes, gpus=4)
    mesh.queues.join(["mesh.1", "mesh.2"], "7.1", "job 1 of cell 7")
    mesh.queues.join(["mesh.3"], "8.1", "cell 8")
    assert list(state_of(mesh, {"job 1 of cell 7": 65.0}))[1:] == [
        "  ranks 1-2 run job 1 of cell 7 · 01:05 · rank 1 at cell 7:1 in step, rank 2 at cell 7:2 in step",
        "  rank 3 runs cell 8 · rank 3 at cell 7:3 in step",
    ]


def test_the_dead_are_known(meshes: MeshRegistry, session: FakeSession) -> None:
    mesh, other = up(meshes, gpus=3), up(meshes, "other")
    session.report(ExitReport("mesh.2", 4711, -9))
    session.report(ExitReport("mesh.0", 4712, 3))
    session.report(ExitReport("mesh.1", 4713, 0, stopped="%mesh down"))
    session.report(ExitReport("elsewhere.1", 4714, 1))
    session.report(ExitReport("other.0", 0, None, hint="its host agent ended"))
    assert mesh.format_summary().endswith("on CPU (no GPU here); ranks 0,2 dead")
    assert list(state_of(mesh))[1:] == [
        "  rank 0 (pid 4712) is dead: exit code 3",
        "  rank 2 (pid 4711) is dead: Killed(sig=9)",
    ]
    assert list(state_of(other))[1:] == ["  rank 0 is dead: its host agent ended"]


def test_the_last_events_of_a_mesh_are_returned(meshes: MeshRegistry, session: FakeSession) -> None:
    mesh = up(meshes)
    assert list(history_of(mesh)) == []
    events = [RunEvent(0.0, "healed", "mesh", "mesh-0a1b", (number,), f"in 0.0{number} s") for number in range(7)]
    session.events = [*events, RunEvent(0.0, "healed", "other", "other-0a1b", (1,), "in 0.01 s")]
    title, *lines = history_of(mesh)
    assert title == "  last events:"
    assert [line.split(" ", 5)[-1] for line in lines] == [
        f"mesh rank {number} healed: in 0.0{number} s" for number in range(2, 7)
    ]


def test_what_is_known_of_ranks_follows_a_resize(meshes: MeshRegistry, session: FakeSession) -> None:
    mesh = up(meshes, gpus=3)
    mesh.busy[2], mesh.names[0], mesh.names[1] = 7, ("model",), ("step",)
    begin = mesh.procs.followers[0]  # type: ignore[attr-defined]
    assert begin(mesh.procs, [1]) is None, "a heal"
    taken: Future[None] = Future.completed(None)
    smaller: Any = FakeProcs(session, Extent.of(gpus=2), "mesh")
    smaller.nodes = [mesh.procs.nodes[2], mesh.procs.nodes[0]]
    smaller.all_of = lambda actors: SimpleNamespace(update_names=SimpleNamespace(call=lambda: taken))
    assert begin(smaller, []) is taken
    assert (mesh.procs, mesh.extent) == (smaller, Extent.of(gpus=2))
    assert (mesh.busy, mesh.names) == ({0: 7}, {1: ("model",)})
    session.report(ExitReport("mesh.2", 4711, -9))
    assert list(mesh.dead) == [0]


def test_a_death_during_a_resize_is_noted_for_the_new_rank(meshes: MeshRegistry, session: FakeSession) -> None:
    """The I/O thread reports it in the middle of the change."""
    mesh = up(meshes, gpus=3)
    begin = mesh.procs.followers[0]  # type: ignore[attr-defined]
    reporting = threading.Thread(target=session.report, args=(ExitReport("mesh.2", 4711, -9),))

    class DeadDuringMove(dict[int, Any]):
        """Starts the report while the entries move, and waits until it is done or blocked."""

        def clear(self) -> None:
            reporting.start()
            reporting.join(0.1)
            super().clear()

    mesh.dead = DeadDuringMove()
    smaller: Any = FakeProcs(session, Extent.of(gpus=2), "mesh")
    smaller.nodes = [mesh.procs.nodes[2], mesh.procs.nodes[0]]
    smaller.all_of = lambda actors: SimpleNamespace(update_names=SimpleNamespace(call=lambda: None))
    begin(smaller, [])
    reporting.join()
    assert list(mesh.dead) == [0]
