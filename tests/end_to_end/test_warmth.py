"""From which fork server workers come: the plain one, or the warm one that has imported torch.

torch is played here by a module that writes down which processes import it.
"""

from __future__ import annotations

import ast
import os
import re
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from meshbook.runtime.actor.context import CURRENT
from meshbook.runtime.config import Settings
from meshbook.runtime.hosts.session import Session
from tests.support import PATIENCE

pytestmark = pytest.mark.process

TORCH = """
import os

with open(os.environ["TORCH_IMPORTS"], "a") as imports:
    print(os.getpid(), file=imports)

threads = int(os.environ.get("OMP_NUM_THREADS", "0"))  # as torch does when it is imported

def set_num_threads(count):
    global threads
    threads = count

class Tensor:
    pass
"""
PROBE = """
import importlib, os, sys
from meshbook import Actor, endpoint, events, this_host

sys.modules["meshbook"].unhandled_fault_hook = lambda failure: None

class Probe(Actor):
    @endpoint
    def look(self):
        return os.getpid(), os.getppid(), "torch" in sys.modules

    @endpoint
    def spawn_nested(self):
        return looks(spawn(1))

    @endpoint
    def import_torch(self):
        return import_torch().threads

def import_torch():
    # By a call: a script with an import statement would be known to use torch.
    return importlib.import_module("torch")

def spawn(gpus, **options):
    return this_host().spawn_procs(per_host={"gpus": gpus}, **options)

def looks(procs):
    return list(procs.spawn("probe", Probe).look.call().get(60).values())

def tell(*values):
    print(repr(values), flush=True)
"""


class Told:
    """A script, and the processes that have imported torch."""

    def __init__(self, script: Any, imports: Path) -> None:
        self._script = script
        self._imports = imports
        self.pid: int = script.process.pid

    def hear(self) -> Any:
        """Return the arguments of the script's next `tell`."""
        return ast.literal_eval(self._script.read_line())

    def read_line(self) -> str:
        """Return the next line of the script's output."""
        line: str = self._script.read_line()
        return line

    def go_on(self) -> None:
        self._script.go_on()

    def importers(self) -> list[int]:
        return [int(line) for line in self._imports.read_text().splitlines()] if self._imports.exists() else []


@pytest.fixture
def tell(run_script: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Told]:
    """Runs a script that can `tell` what it finds; it starts without a choice of what is preloaded."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(TORCH)
    monkeypatch.delenv("MESHBOOK_PRELOAD")

    def run(source: str, **environment: str) -> Told:
        imports = tmp_path / "imports"
        known = os.environ.get("PYTHONPATH", "")
        path = os.pathsep.join(filter(None, [str(tmp_path), known]))
        script = run_script(
            f"{PROBE}\n{textwrap.dedent(source)}\ninput()",
            **({"PYTHONPATH": path, "TORCH_IMPORTS": str(imports), "MESHBOOK_STOP_TIMEOUT": "0.5"} | environment),
        )
        return Told(script, imports)

    return run


def parents(looks: list[tuple[int, int, bool]]) -> set[int]:
    return {parent for _, parent, _ in looks}


def have_torch(looks: list[tuple[int, int, bool]]) -> set[bool]:
    return {has_torch for _, _, has_torch in looks}


def test_without_torch_no_process_imports_it(tell):
    script = tell("tell(looks(spawn(2)), looks(spawn(1)))")
    first, second = script.hear()
    assert have_torch([*first, *second]) == {False}
    assert len(parents([*first, *second])) == 1
    assert script.importers() == []


def test_with_torch_one_process_imports_it_for_all_workers(tell):
    script = tell("import torch\ntell(looks(spawn(2)), looks(spawn(1)))")
    first, second = script.hear()
    assert have_torch([*first, *second]) == {True}
    [server] = parents([*first, *second])
    assert script.importers() == [script.pid, server]


def test_a_chosen_preload_is_imported_in_any_case(tell):
    script = tell("tell(looks(spawn(2)))", MESHBOOK_PRELOAD="torch")
    [looks] = script.hear()
    assert have_torch(looks) == {True}
    assert script.importers() == list(parents(looks))


# Maps a file of that name, as the import of a module that looks for a GPU does.
USES_CUDA = """
import mmap

with open("{folder}/libcuda.so.1", "w+b") as file:
    file.truncate(4096)
    mapped = mmap.mmap(file.fileno(), 4096)
"""


def test_a_module_whose_import_uses_cuda_is_named_and_not_preloaded(tell, tmp_path):
    (tmp_path / "uses_cuda.py").write_text(USES_CUDA.format(folder=tmp_path))
    script = tell("os.dup2(1, 2)\ntell(looks(spawn(2)))", MESHBOOK_PRELOAD="uses_cuda,torch")
    told, warning = sorted(script.read_line() for _ in range(2))
    assert warning.startswith("[procs 0] uses_cuda: not preloaded")
    [looks] = ast.literal_eval(told)
    assert have_torch(looks) == {True}
    assert script.importers() == list(parents(looks))
    assert ["libcuda" in Path(f"/proc/{pid}/maps").read_text() for pid, _, _ in looks] == [False, False]


@pytest.mark.parametrize("spares", [0, 1])
def test_healed_and_added_workers_come_from_the_server_of_their_mesh(tell, spares):
    script = tell(f"""
        import time

        def kill(procs):
            pid = procs.spawn("victim", Probe).slice(gpus=1).look.call_one().get(60)[0]
            while procs.spares().get(60) < {spares}:
                time.sleep(0.01)
            os.kill(pid, 9)
            procs.slice(gpus=1).initialized.exception(60)

        def change(procs):
            kill(procs)
            procs.heal().get(60)
            healed = looks(procs)
            return healed, looks(procs.resize(gpus=3))

        plain = spawn(2, spares={spares})
        tell(looks(plain))
        import_torch()
        warm = spawn(2, spares={spares})
        tell(looks(warm))
        tell(*change(plain))
        tell(*change(warm))
    """)
    [plain], [warm] = script.hear(), script.hear()
    assert (have_torch(plain), have_torch(warm)) == ({False}, {True})
    for before in (plain, warm):
        healed, resized = script.hear()
        assert [look[0] for look in healed[:1]] == [before[0][0]]
        assert len(resized) == 3
        assert parents([*healed, *resized]) == parents(before)
        assert have_torch([*healed, *resized]) == have_torch(before)
    assert script.importers() == [script.pid, *parents(warm)]


@pytest.mark.parametrize("victim", ["plain", "warm"])
def test_the_end_of_one_server_is_not_that_of_the_other(tell, victim):
    script = tell(
        """
        def answer(probes):
            error = probes.look.call().exception(60)
            return "" if error is None else str(error)

        def probes_on(procs):
            probes = procs.spawn("probe", Probe)
            tell(probes.look.call_one().get(60))
            return probes

        plain = probes_on(spawn(1))
        import_torch()
        warm = probes_on(spawn(1))
        input()
        for probes in [plain, warm][::int(os.environ["ORDER"])]:
            tell(answer(probes))
        tell(looks(spawn(2)))
    """,
        ORDER="1" if victim == "plain" else "-1",
    )
    [plain], [warm] = script.hear(), script.hear()
    server = psutil.Process({"plain": plain, "warm": warm}[victim][1])
    server.kill()
    server.wait(PATIENCE)
    script.go_on()
    [ended], [alive] = script.hear(), script.hear()
    assert "the fork server ended (signal 9)" in ended
    assert alive == ""
    [again] = script.hear()
    assert have_torch(again) == {True}
    assert (parents(again) == {warm[1]}) == (victim == "plain")


def test_the_plain_server_is_started_again(tell):
    script = tell("""
        tell(looks(spawn(1)))
        input()
        tell(looks(spawn(1)))
    """)
    [first] = script.hear()
    [server] = map(psutil.Process, parents(first))
    server.kill()
    server.wait(PATIENCE)
    script.go_on()
    [second] = script.hear()
    assert parents(second) != parents(first)
    assert have_torch(second) == {False}
    assert script.importers() == []


def test_a_variable_that_the_import_of_torch_reads(tell):
    """A worker imports torch itself if such a variable was set after the warm fork server had started."""
    script = tell("""
        import torch

        tell(looks(spawn(1)))
        os.environ["TORCH_LOGS"] = "+dynamo"
        tell(looks(spawn(1)))
        os.environ["TORCH_NCCL_DEBUG"] = os.environ["TORCH_HOME"] = "x"
        del os.environ["TORCH_LOGS"]
        tell(looks(spawn(1)))
    """)
    assert [have_torch(script.hear()[0]) for _ in range(3)] == [{True}, {False}, {True}]


@pytest.mark.parametrize(("workers", "is_warm"), [(1, False), (2, True)])
def test_an_import_in_a_function(tell, workers, is_warm):
    """The number of cores decides whether the workers import it themselves."""
    script = tell(f"""
        os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])

        def train():
            import torch

        procs = spawn({workers})
        tell(looks(procs))
        threads = procs.spawn("user", Probe).import_torch.call().get(60)
        tell(looks(procs), list(threads.values()))
    """)
    [before], [after, threads] = script.hear(), script.hear()
    assert threads == [1] * workers
    assert have_torch(before) == {is_warm}
    assert have_torch(after) == {True}
    assert script.importers() == ([*parents(before)] if is_warm else [pid for pid, _, _ in before])


def test_meshes_of_workers(tell):
    """A worker that has not imported torch spawns workers without it, and with it once it has."""
    script = tell("""
        probe = spawn(1).spawn("probe", Probe)
        tell(probe.spawn_nested.call_one().get(60))
        probe.import_torch.call_one().get(60)
        tell(probe.spawn_nested.call_one().get(60))
    """)
    [without], [with_torch] = script.hear(), script.hear()
    assert (have_torch(without), have_torch(with_torch)) == ({False}, {True})


@pytest.mark.parametrize("torch", [False, True])
def test_on_other_hosts(tell, torch):
    script = tell(f"""
        import meshbook
        {"import torch" if torch else ""}
        hosts = meshbook.hosts.command({{"h1": []}})
        tell(looks(hosts.spawn_procs(per_host={{"gpus": 2}})))
        hosts.shutdown().get(60)
    """)
    [looks] = script.hear()
    assert have_torch(looks) == {torch}
    assert parents(looks) <= set(script.importers()) if torch else script.importers() == []


@pytest.fixture
def plain_session(runtime_dir: Path) -> Iterator[Session]:
    session = Session(Settings(runtime_dir=str(runtime_dir), preload=""))
    token = CURRENT.set(session.context)
    yield session
    CURRENT.reset(token)
    session.close()


def test_the_plain_server_has_nothing_of_its_agents(plain_session):
    """A thread, a ZeroMQ context or the agent's lifeline in it would hang its children, or outlive the agent."""
    plain_session.host.spawn_procs().initialized.get(PATIENCE)
    [server] = psutil.Process(plain_session._agent.pid).children()
    assert server.num_threads() == 1
    assert os.getsid(server.pid) == server.pid
    links = sorted(re.sub(r"\d+", "", str(link.readlink())) for link in Path(f"/proc/{server.pid}/fd").iterdir())
    log = re.sub(r"\d+", "", str(plain_session.folder.path / "plain-forkserver.log"))
    # Beside its standard streams: the channel to the agent, and the pipe by which a signal wakes it.
    assert links == sorted([os.devnull, log, log, "socket:[]", "pipe:[]", "pipe:[]"])
