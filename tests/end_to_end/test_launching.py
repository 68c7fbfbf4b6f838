"""How worker processes are launched, by which command and where they may run; and how hosts are ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import signal
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from meshbook import (
    BootstrapCommand,
    Point,
    SupervisionError,
    default_bootstrap_cmd,
    shutdown_context,
    this_host,
)
from meshbook.runtime.actor.context import CURRENT
from meshbook.runtime.config import Settings
from meshbook.runtime.errors import MeshbookError, ProcessDied
from meshbook.runtime.hosts.session import Session
from tests.support import PATIENCE, Probe, environment, still_running, wait_forever

QUICK = {"MESHBOOK_PRELOAD": "", "MESHBOOK_STOP_TIMEOUT": "0.5"}  # for scripts
CPUS = sorted(os.sched_getaffinity(0))
pytestmark = pytest.mark.process


def affinity() -> list[int]:
    return sorted(os.sched_getaffinity(0))


@pytest.fixture
def start_session(runtime_dir) -> Iterator[Callable[..., Session]]:
    """Starts a session that the test may end; calls go out from it. What workers import at birth does not matter."""
    with contextlib.ExitStack() as stack:

        def start(**settings: Any) -> Session:
            session = Session(Settings(runtime_dir=str(runtime_dir), preload="", **settings))
            stack.callback(session.close)
            stack.callback(CURRENT.reset, CURRENT.set(session.context))
            return session

        yield start


@pytest.fixture
def own_session(start_session) -> Session:
    return start_session(stop_timeout=1.0)


def ask(mesh: Any, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """What each rank answers."""
    return list(mesh.spawn("probe", Probe).run.call(function, *arguments).get(PATIENCE).values())


def died(mesh: Any) -> str:
    """Why a mesh did not come up."""
    with pytest.raises(ProcessDied) as caught:
        mesh.initialized.get(PATIENCE)
    return str(caught.value)


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


CLIENT = """
import threading, time
from meshbook import Actor, close_session, context, endpoint, shutdown_context, this_host, this_proc

class Worker(Actor):
    @endpoint
    def work(self) -> None:
        pass

    @endpoint
    def wait(self) -> None:
        threading.Event().wait()

workers = this_host().spawn_procs(per_host={"gpus": 2}).spawn("worker", Worker)
here = this_proc().spawn("here", Worker)
workers.work.call().get(60)
waiting = workers.wait.call()
print("ready", flush=True)
input()
"""


# -- where they run ------------------------------------------------------------------


def test_each_process_is_bound_to_its_cpus(spawn_procs):
    mesh = spawn_procs(2, proc_bind=[{"cpus": str(CPUS[0])}, {"physcpubind": str(CPUS[-1])}])
    assert ask(mesh, affinity) == [[CPUS[0]], [CPUS[-1]]]


def test_the_cpus_of_a_process_are_not_shared_with_the_others(spawn_procs):
    def threads() -> int:
        import torch

        return torch.get_num_threads()

    everything = {"cpus": ",".join(map(str, CPUS))}
    assert ask(spawn_procs(2, proc_bind=[everything] * 2), threads) == [len(CPUS)] * 2


def test_cpus_that_are_not_there(spawn_procs):
    text = died(spawn_procs(proc_bind=[{"cpus": "60000"}]))
    assert "proc_bind: no such CPUs: 60000 (Invalid argument); this host has" in text


def test_a_binding_for_each_process_is_asked_for_at_the_call(host):
    with pytest.raises(ValueError, match=r"proc_bind length \(1\) must equal procs_per_host \(4\)"):
        host.spawn_procs(per_host={"rows": 2, "gpus": 2}, proc_bind=[{"cpus": "0"}])


def test_numactl_precedes_the_command(spawn_procs, tmp_path):
    """One of ours: whether the machine has it, and memory nodes, is not the question."""
    script(tmp_path / "numactl", f'echo "$1 $2 $3" > {tmp_path}/options; shift 3; exec "$@"')
    path = f"{tmp_path}:{os.environ['PATH']}"
    mesh = spawn_procs(env={"PATH": path}, proc_bind=[{"cpunodebind": "0", "membind": "0"}])
    assert ask(mesh, environment, "RANK", "PATH") == [["0", path]]
    assert (tmp_path / "options").read_text() == "--cpunodebind=0 --membind=0 --\n"


def test_a_missing_numactl_is_named(spawn_procs, tmp_path):
    text = died(spawn_procs(env={"PATH": str(tmp_path)}, proc_bind=[{"membind": "0"}]))
    assert "exit code 127" in text
    assert "cannot start 'numactl': it is not installed on this host" in text


# -- by which command ----------------------------------------------------------------


def test_a_process_that_a_command_starts_is_like_a_fork(spawn_procs, monkeypatch, tmp_path):
    def look() -> Any:
        ignored = [number for number in signal.valid_signals() if signal.getsignal(number) is signal.SIG_IGN]
        place = str(Path.cwd()), sys.stdin.read(), os.getsid(0) == os.getpid(), ignored
        interpreter = sys.argv, sys.path, sorted(vars(sys.modules["__main__"]))
        return *place, *interpreter, environment("RANK", "WORLD_SIZE", "ADDED", "MESHBOOK_WORKER_SPEC")

    monkeypatch.chdir(tmp_path)
    forked, executed = (
        ask(spawn_procs(2, env={"ADDED": "yes"}, **how), look)
        for how in ({}, {"bootstrap_command": default_bootstrap_cmd()})
    )
    assert executed == forked
    assert executed[1][-1] == ["1", "2", "yes", None]


def test_a_command_is_executed_and_nothing_is_left_of_it(spawn_procs, session, tmp_path):
    mesh = spawn_procs(bootstrap_command=default_bootstrap_cmd())
    [pid] = ask(mesh, os.getpid)
    [[executable, *arguments]] = ask(mesh, lambda: sys.orig_argv)
    assert [executable, *arguments] == [sys.executable, *default_bootstrap_cmd().args]
    [server] = psutil.Process(session._agent.pid).children()
    assert psutil.Process(pid).ppid() == server.pid
    theirs, its = ({str(link.readlink()) for link in Path(f"/proc/{who}/fd").iterdir()} for who in (server.pid, pid))
    assert its & theirs == {os.devnull}
    assert list(session.folder.path.glob("*.spec")) == []


def test_a_command_for_each_rank(spawn_procs):
    def make(point: Point) -> BootstrapCommand:
        return default_bootstrap_cmd().with_env({"DEVICE": f"gpu {point['gpus']}", "PYTHONHASHSEED": "7"})

    def look() -> tuple[list[str | None], int]:
        return environment("DEVICE"), hash("the seed counts from the start of a process")

    (first, seeded), (second, also_seeded) = ask(spawn_procs(2, bootstrap_command=make), look)
    assert (first, second) == (["gpu 0"], ["gpu 1"])
    assert seeded == also_seeded


def test_a_command_that_inherits_nothing(spawn_procs, monkeypatch):
    monkeypatch.setenv("OF_THE_USER", "kept out")
    command = default_bootstrap_cmd()
    bare = BootstrapCommand(command.program, command.arg0, command.args, {"NAMED": "yes"}, inherit_env=False)
    mesh = spawn_procs(env={"ADDED": "yes"}, bootstrap_command=bare)
    assert ask(mesh, environment, "OF_THE_USER", "PATH", "NAMED", "ADDED", "RANK") == [
        [None, None, "yes", "yes", "0"],
    ]


def test_a_program_in_front(spawn_procs):
    command = default_bootstrap_cmd()
    shell = BootstrapCommand("sh", None, ["-c", 'WRAPPED=$1 "$0" "$2"; exit $?', command.program, "yes", *command.args])
    mesh = spawn_procs(bootstrap_command=shell)
    assert ask(mesh, environment, "WRAPPED") == [["yes"]]


def test_a_bootstrap_runs_before_any_actor_there_too(spawn_procs):
    def prepare() -> None:
        os.environ["PREPARED"] = "yes"

    mesh = spawn_procs(bootstrap=prepare, bootstrap_command=default_bootstrap_cmd())
    assert ask(mesh, environment, "PREPARED") == [["yes"]]


def test_a_program_in_front_ends_with_its_worker_and_all_it_started(spawn_procs):
    command = default_bootstrap_cmd()
    shell = BootstrapCommand("sh", None, ["-c", 'sleep 1000 & "$0" "$1"; exit $?', command.program, *command.args])
    mesh = spawn_procs(bootstrap_command=shell)
    [pid] = ask(mesh, os.getpid)
    family = [psutil.Process(pid), *psutil.Process(pid).parent().children()]
    mesh.kill().get(PATIENCE)
    assert "Killed(sig=9)" in died(mesh)
    assert still_running(family) == []


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (BootstrapCommand("/no/such/program"), ["exit code 127", "'/no/such/program': No such file or directory"]),
        (BootstrapCommand("no-such-program"), ["cannot start 'no-such-program': No such file or directory"]),
        (BootstrapCommand("/"), ["cannot start '/': Permission denied"]),
        (BootstrapCommand("true"), ["exit code 0", "it exited before it became a worker; its command: true"]),
        (
            BootstrapCommand("sh", args=["-c", "echo 'no such device' >&2; exit 3"]),
            ["exit code 3", "its command: sh -c 'echo", "no such device"],
        ),
        (BootstrapCommand(sys.executable, args=["-c", "1/0"]), ["exit code 1", "ZeroDivisionError"]),
    ],
)
def test_a_command_that_becomes_no_worker(spawn_procs, session, command: BootstrapCommand, said: list[str]):
    text = died(spawn_procs(bootstrap_command=command))
    assert [each for each in said if each not in text] == [], text
    assert list(session.folder.path.glob("*.spec")) == []


def test_a_command_that_waits_instead_is_killed(start_session):
    host = start_session(launch_timeout=4.0).host
    text = died(host.spawn_procs(bootstrap_command=BootstrapCommand("sleep", args=["1000"])))
    assert "within 4 s (MESHBOOK_LAUNCH_TIMEOUT): sleep 1000" in text


def test_an_agent_that_does_not_answer_is_killed(start_session, monkeypatch):
    def launch(self: Session) -> subprocess.Popen[bytes]:
        return subprocess.Popen(["sleep", "1000"], stdin=subprocess.PIPE)

    monkeypatch.setattr(Session, "_launch", launch)
    session = start_session(launch_timeout=0.5)
    with pytest.raises(MeshbookError, match=r"within 0.5 s \(MESHBOOK_LAUNCH_TIMEOUT\)"):
        session.host.spawn_procs().initialized.get(PATIENCE)


@pytest.mark.parametrize("victim", ["the controller", "the agent", "the fork server"])
def test_executed_workers_do_not_outlive_their_starter(run_script, victim):
    source = CLIENT.replace('{"gpus": 2}', '{"gpus": 2}, bootstrap_command=COMMAND')
    command = 'BootstrapCommand("sh", args=["-c", "sleep 1000 & $0 $1; exit", cmd.program, *cmd.args])'
    client = run_script(
        "from meshbook import BootstrapCommand, default_bootstrap_cmd\n"
        f"cmd = default_bootstrap_cmd()\nCOMMAND = {command}\n{source}",
        **QUICK,
    )
    assert client.read_line() == "ready"
    controller = psutil.Process(client.process.pid)
    [agent] = controller.children()
    [server] = agent.children()
    workers = server.children(recursive=True)
    assert len(workers) == 6
    {"the controller": controller, "the agent": agent, "the fork server": server}[victim].kill()
    assert still_running(workers) == []


# -- by which interpreter ------------------------------------------------------------


def make_interpreter(folder: Path, *, with_packages: bool) -> str:
    """A virtual environment around this Python; ours are its packages besides one of its own."""
    venv.create(folder, with_pip=False, symlinks=True)
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    packages = folder / "lib" / version / "site-packages"
    (packages / "only_there.py").write_text("here = True\n")
    if with_packages:
        (packages / "ours.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return str(folder / "bin" / "python")


def interpreter() -> tuple[str, bool]:
    """What runs here, and whether its own packages are found."""
    import importlib.util

    return sys.executable, importlib.util.find_spec("only_there") is not None


def test_another_interpreter(host, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path / "code")
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "of_the_user.py").write_text("def speak(): return 'found'\n")
    python = make_interpreter(tmp_path / "env", with_packages=True)

    def speak() -> str:
        import of_the_user

        return of_the_user.speak()

    def nested() -> Any:
        children = this_host().spawn_procs(per_host={"gpus": 1})
        return ask(children, interpreter)

    # It finds meshbook, though its packages hold none.
    mesh = host.with_python_executable(python).spawn_procs(per_host={"gpus": 2}, env={"PYTHONPATH": ""})
    assert ask(mesh, interpreter) == [(python, True)] * 2
    assert ask(mesh, speak) == ["found"] * 2
    assert ask(mesh.slice(gpus=0), nested) == [[(python, True)]]
    mesh.stop().get(PATIENCE)
    # The handle that it was made from knows nothing of it.
    mesh = host.spawn_procs()
    assert ask(mesh, interpreter) == [(sys.executable, False)]
    mesh.stop().get(PATIENCE)


def test_an_interpreter_without_packages(host, tmp_path):
    python = make_interpreter(tmp_path / "env", with_packages=False)
    text = died(host.with_python_executable(python).spawn_procs())
    assert f"{python} lacks a package of meshbook: No module named" in text


def test_an_interpreter_that_is_not_there(host):
    assert "cannot start '/no/such/python': No such file" in died(
        host.with_python_executable("/no/such/python").spawn_procs()
    )


# -- ends of hosts -------------------------------------------------------------------


def everything_of(session: Session) -> list[psutil.Process]:
    agent = psutil.Process(session._agent.pid)
    return [agent, *agent.children(recursive=True)]


def test_a_host_is_shut_down(own_session):
    host = own_session.host
    assert host.initialized.get(PATIENCE) is True
    mesh = host.spawn_procs(per_host={"gpus": 2})
    probe = mesh.spawn("probe", Probe)
    probe.run.call(os.getpid).get(PATIENCE)
    waiting = probe.run.call(wait_forever)
    part, processes = host.rename(), everything_of(own_session)
    ended = host.shutdown()
    for handle in (host, part, host.with_python_executable("python")):
        with pytest.raises(RuntimeError, match="HostMesh has already been shut down"):
            handle.spawn_procs()
    assert ended.get(PATIENCE) is None
    assert still_running(processes) == []
    for future in (waiting, probe.run.call(os.getpid), host.initialized):
        with pytest.raises(SupervisionError, match="stopped due to proc mesh shutdown: its host was shut down"):
            future.get(PATIENCE)
    assert mesh.stop().get(PATIENCE) is None


@pytest.mark.parametrize("spawned", [0, 2])
def test_a_host_is_shut_down_before_it_is_used(own_session, spawned):
    mesh = own_session.host.spawn_procs(per_host={"gpus": spawned}) if spawned else None
    assert own_session.host.shutdown().get(PATIENCE) is None
    assert own_session.has_lost_agent
    if mesh is not None:
        with pytest.raises(SupervisionError, match="stopped"):
            mesh.initialized.get(PATIENCE)


def test_a_host_is_shut_down_by_its_context(own_session):
    async def use() -> list[int]:
        async with own_session.host as host, host.spawn_procs(per_host={"gpus": 2}) as mesh:
            pids = await mesh.spawn("probe", Probe).run.call(os.getpid)
            return list(pids.values())

    pids = asyncio.run(use())
    assert own_session.has_lost_agent
    assert not any(map(psutil.pid_exists, pids))


def test_detaching_leaves_the_host_and_what_others_spawned(own_session):
    host = own_session.host
    others = pickle.loads(pickle.dumps(host)).spawn_procs()
    meshes = [host.spawn_procs(), host.rename().spawn_procs()]
    host.spawn_procs().stop()  # ends by itself: no wait is needed
    pids = [pid for mesh in meshes for pid in ask(mesh, os.getpid)]
    assert host.stop().get(PATIENCE) is None
    assert not any(map(psutil.pid_exists, pids))
    with pytest.raises(RuntimeError, match="`ProcMesh` has already been stopped"):
        meshes[0].spawn("probe", Probe)
    assert ask(others, os.getpid)
    assert ask(host.spawn_procs(), os.getpid)
    assert host.stop().get(PATIENCE) is None
    assert host.stop().get(PATIENCE) is None
    assert ask(others, os.getpid)


def test_ended_meshes_without_a_handle_are_forgotten(own_session):
    host = own_session.host
    pids = ask(host.spawn_procs(per_host={"gpus": 2}), os.getpid)
    assert len(host._ownership.meshes) == 1
    assert all(map(psutil.pid_exists, pids))
    host.stop().get(PATIENCE)
    assert host._ownership.meshes == {}


def test_the_clients_host_is_no_cluster(spawn_procs, host):
    assert not host.is_fake_in_process
    assert ask(spawn_procs(), lambda: this_host().is_fake_in_process) == [False]


def test_actors_do_not_end_the_host_they_run_on(spawn_procs):
    def end() -> str:
        try:
            this_host().shutdown()
        except RuntimeError as error:
            return str(error)
        return "ended"

    assert ask(spawn_procs(), end) == ["cannot shut down `HostMesh` that is a reference instead of owned"]


def test_a_worker_has_no_client_to_shut_down(spawn_procs):
    mesh = spawn_procs()
    assert ask(mesh, lambda: shutdown_context().get(0)) == [None]
    assert ask(mesh, environment, "RANK") == [["0"]]


# -- the end of a client ---------------------------------------------------------------

ENDED = """
print(shutdown_context(0.5).get(60), flush=True)
input()
print(shutdown_context().get(0), flush=True)
close_session()
print(type(waiting.exception(60)).__name__)
for use in (this_host, this_proc, context, workers.work.call):
    try:
        use()
    except RuntimeError as error:
        print(error, flush=True)
"""


def test_a_client_is_shut_down_for_good(run_script, runtime_dir):
    client = run_script(CLIENT + ENDED, **QUICK)
    assert client.read_line() == "ready"
    family = client.family()
    assert len(family) == 4
    client.go_on()
    assert client.read_line() == "None"
    assert still_running(family) == []
    assert client.family() == []
    assert list(runtime_dir.iterdir()) == []
    client.go_on()
    assert client.read_line() == "None"
    assert client.read_line() in ("SupervisionError", "ProcessDied")
    for _ in range(4):
        assert client.read_line().startswith("shutdown_context() has shut down meshbook in this process")
    assert client.process.wait(PATIENCE) == 0


@pytest.mark.parametrize("end", ["shutdown_context()", "import atexit; atexit.register(shutdown_context)"])
def test_a_script_need_not_wait_for_the_end_of_its_client(run_script, runtime_dir, end):
    client = run_script(f"{CLIENT}\n{end}\n", **QUICK)
    assert client.read_line() == "ready"
    family = client.family()
    client.go_on()
    assert client.process.wait(PATIENCE) == 0
    assert still_running(family) == []
    assert list(runtime_dir.iterdir()) == []
