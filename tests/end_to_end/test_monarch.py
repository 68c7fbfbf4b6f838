"""Programs written for Monarch, over real processes, with their own `import monarch` lines."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from meshbook import ProcMesh, this_host
from meshbook.monarch import FOLDER
from meshbook.monarch.configuration import clear_runtime_config, configure, configured, get_global_config
from meshbook.monarch.functions import local_proc_mesh, proc_mesh
from meshbook.runtime.errors import LaunchError, ProcessDied
from tests.support import PATIENCE, Probe

AT_ONCE = 2.0  # what a machine that does other things may take for something that needs no waiting
pytestmark = [pytest.mark.process, pytest.mark.without_torch]

BY_COMMAND = """
import os, sys
from monarch._rust_bindings.monarch_hyperactor.host_mesh import BootstrapCommand
from monarch.actor import Actor, SupervisionError, endpoint, hosts_from_config, this_host

class Probe(Actor):
    @endpoint
    def variable(self) -> str:
        return os.environ["MINE"]

command = BootstrapCommand(sys.executable, None, ["-m", "monarch._src.actor.bootstrap_main"], {"MINE": "by command"})
procs = this_host().spawn_procs(per_host={"gpus": 1}, bootstrap_command=command)
print(procs.spawn("probe", Probe).variable.call_one().get(60))
hosts = hosts_from_config("MONARCH_HOSTS")
print(hosts.sizes, len(hosts.spawn_procs(per_host={"gpus": 1}).spawn("probe", Probe)), hosts._labels)
"""
PROGRAM = """
import subprocess, sys
import monarch.actor
from monarch.actor import Actor, context, current_rank, endpoint, this_host
from monarch.config import configured

BELOW = "import monarch.actor; print(monarch.actor.__file__)"

class Trainer(Actor):
    def __init__(self, scale: int) -> None:
        self.scale = scale

    @endpoint
    async def step(self, x: int) -> int:
        return x * self.scale + monarch.actor.current_rank().rank

    @endpoint
    async def below(self) -> str:
        return subprocess.run([sys.executable, "-c", BELOW], capture_output=True, text=True, check=True).stdout.strip()

    @endpoint
    async def timeout(self) -> str:
        return monarch.config.get_global_config()["process_exit_timeout"]

if __name__ == "__main__":
    print(sys.argv[1:], sys.flags.optimize)
    with configured(process_exit_timeout="90s"):
        procs = this_host().spawn_procs(per_host={"gpus": 2})
    trainers = procs.spawn("trainers", Trainer, 10)
    print(list(trainers.step.call(4).get(60).values()))
    print({*trainers.below.call().get(60).values()} == {monarch.actor.__file__})
    print(trainers.slice(gpus=0).timeout.call_one().get(60))
    procs.stop().get(60)
"""
SAID = ["['--lr', '0.1', '--help'] 1", "[40, 41]", "True", "1m 30s"]


def run_python(*arguments: str, folder: Path, cwd: Path) -> list[str]:
    """The lines that a Python prints, in a process whose session is its own."""
    environment = os.environ | {"MESHBOOK_RUNTIME_DIR": str(folder), "MESHBOOK_PRELOAD": ""}
    environment.pop("MESHBOOK_STOP_TIMEOUT", None)
    finished = subprocess.run(
        [sys.executable, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, timeout=PATIENCE
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout.splitlines()


@pytest.mark.parametrize("program", [["program.py"], ["-m", "program"]], ids=["script", "module"])
def test_a_program_runs_as_it_is(runtime_dir: Path, tmp_path: Path, program: list[str]) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    command = ["-O", "-m", "meshbook.monarch", *program, "--lr", "0.1", "--help"]
    assert run_python(*command, folder=runtime_dir, cwd=tmp_path) == SAID


def test_a_fresh_interpreter_installs_it(runtime_dir: Path, tmp_path: Path) -> None:
    script = tmp_path / "notebook.py"
    # What a notebook does: an import, install, and then the program's own lines.
    script.write_text("import meshbook.monarch\nmeshbook.monarch.install()\n" + PROGRAM)
    assert run_python(str(script), "cell", folder=runtime_dir, cwd=tmp_path) == ["['cell'] 0", *SAID[1:]]


# -- configuration ------------------------------------------------------------------------


def look(key: str) -> Any:
    return get_global_config()[key]


def test_a_mesh_keeps_what_was_in_force_when_it_was_spawned(session, spawn_procs):
    with configured(read_log_buffer=1, process_exit_timeout="1s"):
        inside = spawn_procs().spawn("inside", Probe)
    outside = spawn_procs().spawn("outside", Probe)
    configure(read_log_buffer=2)
    late = spawn_procs().spawn("late", Probe)
    clear_runtime_config()
    found = [probe.run.call_one(look, "read_log_buffer").get(PATIENCE) for probe in (inside, outside, late)]
    assert found == [1, 100, 2]
    assert inside.run.call_one(look, "process_exit_timeout").get(PATIENCE) == "1s"


def test_what_a_worker_spawns_has_it_too(spawn_procs):
    def spawn_below(cls: type[Any]) -> Any:
        below = this_host().spawn_procs()
        found = below.spawn("below", cls).run.call_one(look, "read_log_buffer").get(PATIENCE)
        below.stop().get(PATIENCE)
        return found

    with configured(read_log_buffer=1):
        above = spawn_procs().spawn("above", Probe)
    assert above.run.call_one(spawn_below, Probe).get(PATIENCE) == 1


def test_each_mesh_has_its_own_time_to_leave(session, spawn_procs):
    def loop() -> None:
        while True:
            pass

    with configured(process_exit_timeout="100ms"):
        mesh = spawn_procs()
    probe = mesh.spawn("probe", Probe)
    probe.initialized.get(PATIENCE)
    probe.run.broadcast(loop)
    begun = time.monotonic()
    mesh.stop().get(PATIENCE)
    assert time.monotonic() - begun < min(AT_ONCE, session.settings.stop_timeout)


def test_each_mesh_has_its_own_number_of_last_lines(spawn_procs):
    def speak_and_end() -> None:
        os.write(2, b"first\nsecond\n")
        os._exit(3)

    with configured(tail_log_lines=1):
        probe = spawn_procs().spawn("probe", Probe)
    error = probe.run.call_one(speak_and_end).exception(PATIENCE)
    assert isinstance(error, ProcessDied)
    assert error.report.stderr == ("second",)


# -- older forms --------------------------------------------------------------------------


def test_a_mesh_and_its_actors_can_be_awaited(session):
    async def program() -> tuple[Any, ...]:
        with pytest.warns(DeprecationWarning, match=r"this_host\(\)\.spawn_procs") as warned:
            mesh = await proc_mesh(gpus=2, env={"OF_THE_MESH": "yes"}, setup=lambda: os.environ.update(SET_UP="too"))
        probe = await mesh.spawn("probe", Probe)
        found = await probe.run.call(lambda: (os.environ["OF_THE_MESH"], os.environ["SET_UP"]))
        await mesh.stop()
        return type(mesh), mesh.sizes, set(found.values()), warned[0].filename

    assert asyncio.run(program()) == (ProcMesh, {"hosts": 1, "gpus": 2}, {("yes", "too")}, __file__)


def test_awaiting_a_mesh_that_does_not_come_up_raises(spawn_procs):
    def fail() -> None:
        raise LookupError("no such data set")

    async def wait() -> None:
        await spawn_procs(bootstrap=fail)

    with pytest.raises((LaunchError, ProcessDied), match="no such data set"):
        asyncio.run(wait())


def test_a_local_mesh_is_this_process(session):
    async def program() -> tuple[Any, ...]:
        with pytest.warns(DeprecationWarning, match=r"use this_proc\(\)"):
            mesh = await local_proc_mesh(gpus=1)
        return mesh.sizes, await mesh.spawn("here", Probe).run.call_one(os.getpid)

    assert asyncio.run(program()) == ({"hosts": 1, "gpus": 1}, os.getpid())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_local_mesh_has_one_rank(session):
    with pytest.raises(NotImplementedError, match=r"proc_mesh\(\) with the same arguments"):
        local_proc_mesh(gpus=2)


def test_nothing_of_this_reached_the_test_process():
    assert FOLDER not in sys.path


def test_a_program_starts_workers_by_the_command_of_monarch(runtime_dir, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(BY_COMMAND)
    env = os.environ | {"MESHBOOK_RUNTIME_DIR": str(runtime_dir)}
    command = [sys.executable, "-m", "meshbook.monarch", str(program)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=PATIENCE)
    assert done.stdout.splitlines() == ["by command", "{'hosts': 2} 2 ['hosts']"], done.stderr
