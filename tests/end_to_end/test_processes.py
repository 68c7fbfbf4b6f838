"""Worker processes: what they find when they are born, and how they leave."""

from __future__ import annotations

import atexit
import importlib
import os
import re
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import cloudpickle
import psutil
import pytest

from meshbook import Actor, ActorError, HostMesh, SupervisionError, context, endpoint, this_host
from meshbook.runtime.config import A_DAY, OVERRIDES
from meshbook.runtime.errors import LaunchError, ProcessDied
from meshbook.runtime.hosts.session import Session, this_proc
from tests.support import PATIENCE, environment, still_running

pytestmark = pytest.mark.process


class Probe(Actor):
    """Runs what it is sent."""

    @endpoint
    def run(self, function: Any, *arguments: Any) -> Any:
        return function(*arguments)

    @endpoint
    def wait(self) -> None:
        threading.Event().wait()


# -- birth -------------------------------------------------------------------------


def test_a_mesh_has_a_process_per_rank(spawn_procs):
    mesh = spawn_procs(4)
    assert mesh.initialized.get(PATIENCE) is True
    pids = list(mesh.spawn("probe", Probe).run.call(os.getpid).get(PATIENCE).values())
    assert len({os.getpid(), *pids}) == 5


def test_a_mesh_of_no_dimensions_is_one_process(host):
    mesh = host.spawn_procs()
    assert mesh.spawn("probe", Probe).run.call_one(os.getpid).get(PATIENCE) != os.getpid()
    mesh.stop().get(PATIENCE)


@pytest.mark.parametrize("name", ["trainers", "a name / with slashes", "long" * 50])
def test_a_mesh_has_any_name(spawn_procs, name):
    assert spawn_procs(name=name).initialized.get(PATIENCE)


def test_ranks_know_their_place(spawn_procs):
    probe = spawn_procs(2).spawn("probe", Probe)
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
    assert list(probe.run.call(environment, *names).get(PATIENCE).values()) == [
        ["0", "0", "2", "2"],
        ["1", "1", "2", "2"],
    ]


def test_what_a_notebook_leaves_in_the_environment_is_not_inherited(spawn_procs, monkeypatch):
    leaks = ("MPLBACKEND", "FORCE_COLOR", "CLICOLOR_FORCE", "JPY_PARENT_PID", "PAGER", "TERM")
    for name in leaks:
        monkeypatch.setenv(name, "leaked")
    monkeypatch.setenv("OF_THE_USER", "kept")
    probe = spawn_procs(env={"ADDED": "yes"}).spawn("probe", Probe)
    found = probe.run.call_one(environment, *leaks, "OF_THE_USER", "ADDED").get(PATIENCE)
    assert found == [None] * len(leaks) + ["kept", "yes"]


def test_an_environment_need_not_be_utf8(spawn_procs, monkeypatch):
    odd = os.fsdecode(b"\xff\xfe")
    monkeypatch.setenv("ODD", odd)
    assert spawn_procs().spawn("probe", Probe).run.call_one(environment, "ODD").get(PATIENCE) == [odd]


def test_a_worker_is_like_a_process_that_the_user_started(spawn_procs, monkeypatch, tmp_path):
    def look() -> Any:
        old = os.umask(0)
        os.umask(old)
        return str(Path.cwd()), old, sys.argv, sys.stdin.read(), os.getsid(0) == os.getpid()

    umask = os.umask(0o022)
    os.umask(umask)
    monkeypatch.chdir(tmp_path)
    found = spawn_procs().spawn("probe", Probe).run.call_one(look).get(PATIENCE)
    assert found == (str(tmp_path), umask, [""], "", True)


SHARES = ("OMP_NUM_THREADS", "TORCHINDUCTOR_COMPILE_THREADS")


@pytest.mark.parametrize("given", [dict.fromkeys(SHARES, "3"), {}])
def test_cores_are_shared_unless_the_user_says_how_many(spawn_procs, monkeypatch, given):
    def threads() -> tuple[int, int]:
        import torch
        import torch._inductor.config

        return torch.get_num_threads(), torch._inductor.config.compile_threads

    for name in SHARES:
        monkeypatch.delenv(name, raising=False)
    expected = 3 if given else max(1, len(os.sched_getaffinity(0)) // 2)
    probe = spawn_procs(2, env=given).spawn("probe", Probe)
    assert set(probe.run.call(threads).get(PATIENCE).values()) == {(expected, expected)}


def read_limits() -> tuple[str | None, str | None, list[float]]:
    """Return two variables of NCCL's watchdog, and the time limits of groups without and with one of their own."""
    import datetime

    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    groups = [dist.group.WORLD, dist.new_group(), dist.new_group(timeout=datetime.timedelta(seconds=60))]
    limits = [group._get_backend(torch.device("cpu")).options._timeout.total_seconds() for group in groups]
    names = ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_ENABLE_MONITORING")
    return *map(os.environ.get, names), limits


def test_a_collective_may_take_a_day_and_no_watchdog_ends_ranks_unless_the_user_says_so(spawn_procs):
    with OVERRIDES.during({"collective_timeout": A_DAY}):
        procs = spawn_procs(env={"TORCH_NCCL_ENABLE_MONITORING": "1"})
    assert procs.spawn("probe", Probe).run.call_one(read_limits).get(PATIENCE) == ("0", "1", [A_DAY, A_DAY, 60.0])


def test_a_script_has_the_time_limits_and_the_watchdog_of_torch(spawn_procs):
    assert spawn_procs().spawn("probe", Probe).run.call_one(read_limits).get(PATIENCE) == (None, None, [1800, 1800, 60])


def draw() -> list[Any]:
    """Draw from every generator that a fork server may have imported."""
    import multiprocessing
    import random
    import secrets
    import ssl
    import tempfile
    import uuid

    import numpy
    import torch

    with tempfile.NamedTemporaryFile() as file:
        return [
            *(torch.initial_seed(), float(torch.rand(1))),
            *(float(numpy.random.random()), float(numpy.random.default_rng().random())),
            *(random.random(), secrets.token_hex(), ssl.RAND_bytes(16)),
            *(str(uuid.uuid1()), str(uuid.uuid4()), file.name),
            bytes(multiprocessing.current_process().authkey),
        ]


def test_ranks_draw_different_numbers(spawn_procs):
    meshes = [spawn_procs(2), spawn_procs(1), spawn_procs(1)]
    drawn = [rank for mesh in meshes for rank in mesh.spawn("probe", Probe).run.call(draw).get(PATIENCE).values()]
    for numbers in zip(*drawn, strict=True):
        assert len(set(numbers)) == 4


def test_ranks_that_are_given_a_seed_draw_the_same(spawn_procs):
    def draw_seeded() -> float:
        import torch

        torch.manual_seed(0)
        return float(torch.rand(1))

    drawn = spawn_procs(2).spawn("probe", Probe).run.call(draw_seeded).get(PATIENCE).values()
    assert len(set(drawn)) == 1


def test_what_libraries_have_read_from_the_environment_is_read_again(spawn_procs, tmp_path):
    def look() -> tuple[str, int]:
        import tempfile
        import time

        return tempfile.gettempdir(), time.localtime(0).tm_hour

    env = {"TMPDIR": str(tmp_path), "TZ": "XXX-05"}
    assert spawn_procs(env=env).spawn("probe", Probe).run.call_one(look).get(PATIENCE) == (str(tmp_path), 5)


def test_torch_distributed_needs_no_arguments(spawn_procs):
    def reduce(rank: int) -> float:
        import torch
        import torch.distributed as dist

        dist.init_process_group("gloo")
        tensor = torch.tensor(float(rank + 1))
        dist.all_reduce(tensor)
        dist.destroy_process_group()
        return tensor.item()

    class Trainer(Actor):
        @endpoint
        def step(self) -> float:
            return reduce(int(os.environ["RANK"]))

    assert list(spawn_procs(2).spawn("trainer", Trainer).step.call().get(PATIENCE).values()) == [3.0, 3.0]


def test_a_rendezvous_of_the_users_wins(spawn_procs):
    probe = spawn_procs(env={"MASTER_PORT": "4711"}).spawn("probe", Probe)
    assert probe.run.call_one(environment, "MASTER_ADDR", "MASTER_PORT").get(PATIENCE) == ["127.0.0.1", "4711"]


# -- bootstrap -----------------------------------------------------------------------


def test_bootstrap_runs_before_any_actor(spawn_procs):
    def prepare() -> None:
        os.environ["PREPARED"] = "sync"

    probe = spawn_procs(bootstrap=prepare).spawn("probe", Probe)
    assert probe.run.call_one(environment, "PREPARED").get(PATIENCE) == ["sync"]


def test_an_async_bootstrap_is_awaited(spawn_procs):
    async def prepare() -> None:
        import asyncio

        await asyncio.sleep(0)
        os.environ["PREPARED"] = "async"

    probe = spawn_procs(bootstrap=prepare).spawn("probe", Probe)
    assert probe.run.call_one(environment, "PREPARED").get(PATIENCE) == ["async"]


def test_a_bootstrap_that_raises_fails_the_mesh_with_its_traceback(spawn_procs):
    def prepare() -> None:
        raise ValueError("no such device")

    with pytest.raises(ProcessDied, match="exit code 1") as caught:
        spawn_procs(bootstrap=prepare).initialized.get(PATIENCE)
    assert "ValueError: no such device" in str(caught.value)
    assert "in prepare" in str(caught.value)


# -- slices, references --------------------------------------------------------------


def test_actors_live_on_a_slice_of_the_processes(spawn_procs):
    mesh = spawn_procs(4)
    pids = list(mesh.spawn("probe", Probe).run.call(os.getpid).get(PATIENCE).values())
    some = mesh.slice(gpus=slice(1, 3)).spawn("probe", Probe)
    assert list(some.run.call(os.getpid).get(PATIENCE).values()) == pids[1:3]
    assert some.slice(gpus=1).run.call_one(os.getpid).get(PATIENCE) == pids[2]


def test_only_the_owner_of_a_mesh_stops_it(spawn_procs):
    mesh = spawn_procs(2)
    with pytest.raises(ValueError, match="ProcMesh is not owned; must be stopped by an owner"):
        mesh.slice(gpus=0).stop()
    with pytest.raises(ValueError, match="ProcMesh is not owned"):
        cloudpickle.loads(cloudpickle.dumps(mesh)).stop()
    assert mesh.initialized.get(PATIENCE)


def test_references_travel_to_other_actors_which_call_in_order(spawn_procs):
    class Log(Actor):
        def __init__(self) -> None:
            self.seen: list[tuple[int, int]] = []

        @endpoint
        def add(self, sender: int, number: int) -> None:
            self.seen.append((sender, number))

        @endpoint
        def read(self) -> list[tuple[int, int]]:
            return self.seen

    class Sender(Actor):
        @endpoint
        def send(self, log: Any, sender: int) -> None:
            for number in range(100):
                log.add.broadcast(sender, number)
            log.add.call(sender, 100).get(PATIENCE)

    log = spawn_procs().spawn("log", Log)
    senders = spawn_procs(2).spawn("sender", Sender)
    sent = [senders.slice(gpus=rank).send.call_one(log, rank) for rank in range(2)]
    for future in sent:
        future.get(PATIENCE)
    seen = log.read.call().get(PATIENCE).get(0)
    for sender in range(2):
        assert [number for who, number in seen if who == sender] == list(range(101))


def test_a_script_is_a_client(session):
    assert context().actor_instance.name == "client"


def test_an_actor_on_this_process_is_hosted_here(session):
    probe = this_proc().spawn("probe", Probe)
    assert probe.run.call_one(os.getpid).get(PATIENCE) == os.getpid()
    probe.stop().get(PATIENCE)
    with pytest.raises(ValueError, match="not owned"):
        this_proc().stop()


def test_this_proc_is_up(session):
    assert this_proc().initialized.get(PATIENCE) is True


def test_this_proc_in_an_actor_is_the_actors_process(spawn_procs):
    def inner() -> tuple[int, int]:
        assert this_proc().initialized.get(PATIENCE)
        return os.getpid(), this_proc().spawn("inner", Probe).run.call_one(os.getpid).get(PATIENCE)

    here, there = spawn_procs().spawn("probe", Probe).run.call_one(inner).get(PATIENCE)
    assert here == there != os.getpid()


# -- nesting -------------------------------------------------------------------------


class Parent(Actor):
    """Spawns a mesh of its own."""

    @endpoint
    def have_children(self, count: int) -> Any:
        self.children = this_host().spawn_procs(per_host={"gpus": count})
        return self.children.spawn("child", Probe)

    @endpoint
    def environment(self, *names: str) -> list[str | None]:
        return environment(*names)

    @endpoint
    def stop_children(self) -> None:
        self.children.stop().get(PATIENCE)


def test_an_actor_spawns_processes_on_its_host(spawn_procs):
    parent = spawn_procs().spawn("parent", Parent)
    children = parent.have_children.call_one(2).get(PATIENCE)
    pids = list(children.run.call(os.getpid).get(PATIENCE).values())
    assert len({os.getpid(), *pids}) == 3
    places = list(children.run.call(environment, "RANK", "WORLD_SIZE", "MASTER_PORT").get(PATIENCE).values())
    assert [place[:2] for place in places] == [["0", "2"], ["1", "2"]]
    # Their rendezvous is theirs: that of the parent's mesh would mix the two groups up.
    assert parent.environment.call_one("MASTER_PORT").get(PATIENCE)[0] not in {place[2] for place in places}
    parent.stop_children.call_one().get(PATIENCE)
    _, alive = psutil.wait_procs(map(psutil.Process, filter(psutil.pid_exists, pids)), timeout=PATIENCE)
    assert not alive
    with pytest.raises(SupervisionError, match="stopped"):
        children.run.call(os.getpid).get(PATIENCE)


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_nested_processes_end_with_their_owner(spawn_procs, how):
    mesh = spawn_procs()
    children = mesh.spawn("parent", Parent).have_children.call_one(2).get(PATIENCE)
    processes = [psutil.Process(pid) for pid in children.run.call(os.getpid).get(PATIENCE).values()]
    waiting = children.wait.call()
    mesh.stop() if how == "stop" else mesh.kill()
    with pytest.raises(SupervisionError, match="stopped"):
        waiting.get(PATIENCE)
    assert psutil.wait_procs(processes, timeout=PATIENCE)[1] == []


# -- signals -------------------------------------------------------------------------


def test_a_handler_that_raises_while_nothing_runs_does_not_end_an_actor_on_the_main_thread(host, tmp_path):
    procs = host.spawn_procs()
    probe = procs.spawn_on_main("probe", Probe)
    handled = tmp_path / "handled"
    os.mkfifo(handled)

    def handle(number: int, frame: object) -> None:
        handled.write_text("yes")
        raise RuntimeError("of the handler")

    def catch_own_signal() -> str:
        try:
            os.kill(os.getpid(), signal.SIGUSR1)
        except RuntimeError as error:
            return str(error)
        return "not raised"

    def install() -> int:
        signal.signal(signal.SIGUSR1, handle)
        return os.getpid()

    pid = probe.run.call_one(install).get(PATIENCE)
    for _ in range(3):
        os.kill(pid, signal.SIGUSR1)
        assert handled.read_text() == "yes"
        assert probe.run.call_one(os.getpid).get(PATIENCE) == pid
    caught = probe.run.call_one(catch_own_signal)
    assert handled.read_text() == "yes"
    assert caught.get(PATIENCE) == "of the handler"
    procs.stop().get(PATIENCE)


# -- stopping ------------------------------------------------------------------------


def test_eight_idle_workers_stop_at_once(spawn_procs):
    mesh = spawn_procs(8)
    mesh.initialized.get(PATIENCE)
    begun = time.perf_counter()
    mesh.stop().get(PATIENCE)
    # 0.05 s on an idle machine of two cores; taking torch apart in each took 2 s.
    assert time.perf_counter() - begun < 1.0


def test_a_stopped_mesh_says_so(spawn_procs):
    mesh = spawn_procs(2)
    probe = mesh.spawn("probe", Probe)
    waiting = probe.wait.call()
    mesh.stop("enough").get(PATIENCE)
    for future in (waiting, probe.run.call(os.getpid)):
        with pytest.raises(SupervisionError, match=r"Endpoint call probe\.\w+\(\) failed.*stopped.*enough"):
            future.get(PATIENCE)
    with pytest.raises(RuntimeError, match="`ProcMesh` has already been stopped"):
        mesh.spawn("probe", Probe)
    with pytest.raises(RuntimeError, match="`ProcMesh` has already been stopped"):
        mesh.slice(gpus=0).spawn("probe", Probe)
    assert mesh.stop().get(PATIENCE) is None


def test_a_mesh_is_stopped_while_it_starts(spawn_procs):
    mesh = spawn_procs(4, bootstrap=threading.Event().wait and _wait_for_ever)
    mesh.stop().get(PATIENCE)
    with pytest.raises(SupervisionError, match="stopped"):
        mesh.initialized.get(PATIENCE)


def _wait_for_ever() -> None:
    threading.Event().wait()


def test_stopping_actors_first_and_processes_after(spawn_procs):
    mesh = spawn_procs(2)
    probe = mesh.spawn("probe", Probe)
    probe.stop().get(PATIENCE)
    with pytest.raises(SupervisionError, match="stopped"):
        probe.run.call(os.getpid).get(PATIENCE)
    mesh.stop().get(PATIENCE)


def test_messages_sent_before_a_stop_are_handled(spawn_procs, tmp_path):
    mesh = spawn_procs()
    probe = mesh.spawn("probe", Probe)
    probe.initialized.get(PATIENCE)
    done = tmp_path / "done"

    def work() -> None:
        done.write_text("yes")

    gate = tmp_path / "gate"
    os.mkfifo(gate)
    ours = os.open(gate, os.O_RDWR)  # does not wait for the other side, as opening it for writing would

    def pass_gate() -> None:
        os.read(os.open(gate, os.O_RDONLY), 1)

    probe.run.broadcast(pass_gate)  # holds the actor until the stop is on its way
    probe.run.broadcast(work)
    stopped = mesh.stop()
    os.write(ours, b"!")
    stopped.get(PATIENCE)
    os.close(ours)
    assert done.read_text() == "yes"


def test_finalisers_run_in_a_worker_that_is_stopped(spawn_procs, tmp_path):
    class Traced:
        def __init__(self, name: str) -> None:
            self.name = name

        def __del__(self) -> None:
            (tmp_path / self.name).write_text("del")

    class Owner(Actor):
        def __init__(self) -> None:
            self.traced = Traced("actor")
            sys.modules["__main__"].traced = Traced("main")  # type: ignore[attr-defined]
            atexit.register((tmp_path / "atexit").write_text, "atexit")
            threading.Thread(target=self.outlive).start()

        def outlive(self) -> None:
            threading.main_thread().join(0.1)
            (tmp_path / "thread").write_text("thread")

        @endpoint
        def ready(self) -> None:
            pass

    mesh = spawn_procs()
    mesh.spawn("owner", Owner).ready.call_one().get(PATIENCE)
    mesh.stop().get(PATIENCE)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["actor", "atexit", "main", "thread"]


def test_finalisers_run_of_what_imported_modules_hold(spawn_procs, tmp_path, monkeypatch):
    """The objects go before the functions and modules that their finalisers use."""
    (tmp_path / "holding.py").write_text(f"""
import pathlib

class Held:
    def __del__(self):
        save("del")

def save(text):
    pathlib.Path({str(tmp_path / "done")!r}).write_text(text)

held = Held()
""")
    monkeypatch.syspath_prepend(tmp_path)

    class Owner(Actor):
        @endpoint
        def load(self) -> str:
            return importlib.import_module("holding").__name__

    mesh = spawn_procs()
    assert mesh.spawn("owner", Owner).load.call_one().get(PATIENCE) == "holding"
    mesh.stop().get(PATIENCE)
    assert (tmp_path / "done").read_text() == "del"


def test_what_a_worker_left_behind_goes_with_it(spawn_procs):
    def leave_one_behind() -> int:
        import subprocess

        return subprocess.Popen(["sleep", "1000"]).pid

    mesh = spawn_procs()
    process = psutil.Process(mesh.spawn("probe", Probe).run.call_one(leave_one_behind).get(PATIENCE))
    mesh.stop().get(PATIENCE)
    assert psutil.wait_procs([process], timeout=PATIENCE)[1] == []


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_process_that_ended_leaves_no_file_in_the_runs_folder(host, session, how):
    mesh = host.spawn_procs(per_host={"gpus": 2}, name="littering")
    mesh.initialized.get(PATIENCE)

    def files() -> list[str]:
        return [path.name for path in session.folder.path.iterdir() if path.name.startswith(mesh.name)]

    assert f"{mesh.name}.1.out" in files()
    if how == "kill":
        mesh.kill().get(PATIENCE)
    mesh.stop().get(PATIENCE)
    end = time.monotonic() + PATIENCE
    while left := files():  # the agent removes them when it has nothing else to do
        assert time.monotonic() < end, left
        time.sleep(0.01)


def test_files_of_a_run_are_for_its_user_alone(spawn_procs, session):
    spawn_procs(spares=1).initialized.get(PATIENCE)
    folder = session.folder.path
    modes = {path.name: path.lstat().st_mode & 0o777 for path in [folder, *folder.rglob("*")]}
    assert {name: oct(mode) for name, mode in modes.items() if mode & 0o077} == {}
    assert {"controller", "agent", "agent.log"} <= set(modes)


def test_a_worker_that_does_not_leave_is_killed(host, monkeypatch):
    def ignore() -> None:
        threading.Thread(target=threading.Event().wait).start()  # not a daemon: the interpreter waits for it

    mesh = host.spawn_procs()
    pid = mesh.spawn("probe", Probe).run.call_one(os.getpid).get(PATIENCE)
    mesh.spawn("probe", Probe).run.call_one(ignore).get(PATIENCE)
    mesh.stop().get(PATIENCE)
    assert not psutil.pid_exists(pid)


# -- the fork server -----------------------------------------------------------------


def fork_server(session: Session) -> psutil.Process:
    agent = psutil.Process(session._agent.pid)
    (server,) = agent.children()
    return server


def test_the_fork_server_only_imports(session):
    """A thread, a CUDA context or a ZeroMQ context in it would hang its children."""
    server = fork_server(session)
    proc = Path(f"/proc/{server.pid}")
    assert len(list((proc / "task").iterdir())) == 1
    open_files = [str(link.readlink()) for link in (proc / "fd").iterdir()]
    assert not [name for name in open_files if re.search(r"nvidia|eventfd|eventpoll", name)], open_files
    assert "libtorch" in (proc / "maps").read_text()


def test_descriptors_of_the_fork_server_are_not_inherited(spawn_procs, session):
    server = fork_server(session)
    theirs = {str(link.readlink()) for link in Path(f"/proc/{server.pid}/fd").iterdir()}
    pid = spawn_procs().spawn("probe", Probe).run.call_one(os.getpid).get(PATIENCE)
    inherited = {str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir()} & theirs
    assert inherited == {os.devnull}


def test_a_new_fork_server_takes_over(own_session):
    mesh = own_session.host.spawn_procs(per_host={"gpus": 2})
    probe = mesh.spawn("probe", Probe)
    pids = list(probe.run.call(os.getpid).get(PATIENCE).values())
    waiting = probe.wait.call()
    server = fork_server(own_session)
    server.kill()
    with pytest.raises(ProcessDied, match=r"the fork server ended \(signal 9\)"):
        waiting.get(PATIENCE)
    assert still_running([server, *map(psutil.Process, filter(psutil.pid_exists, pids))]) == []
    mesh.stop().get(PATIENCE)
    again = own_session.host.spawn_procs(per_host={"gpus": 2})
    assert again.initialized.get(PATIENCE)
    assert fork_server(own_session).pid != server.pid


def test_errors_of_endpoints_are_not_deaths(spawn_procs):
    def fail() -> None:
        raise KeyError("missing")

    probe = spawn_procs().spawn("probe", Probe)
    with pytest.raises(ActorError, match="KeyError"):
        probe.run.call_one(fail).get(PATIENCE)
    assert probe.run.call_one(os.getpid).get(PATIENCE)


def test_a_worker_that_cannot_be_started_is_a_launch_error(host: HostMesh, monkeypatch, session):
    monkeypatch.setattr("meshbook.runtime.mesh.hosts.secrets.token_hex", lambda size: "taken")
    (session.folder.path / "procs-taken.0").mkdir()  # where its socket would be
    mesh = host.spawn_procs()
    with pytest.raises((LaunchError, ProcessDied), match="cannot listen"):
        mesh.initialized.get(PATIENCE)
