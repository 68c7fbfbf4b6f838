"""Training on real clusters of three nodes with two ranks each, by `meshbook.hosts.ssh`, `slurm` and `ray`."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat
import psutil
import pytest

from meshbook.runtime.hosts.launch import sweep
from tests.hosts.clusters import (
    PATIENCE,
    RayCluster,
    SlurmCluster,
    SshCluster,
    family_of_agent,
    free_ports,
    wait_until,
)
from tests.support import few

pytestmark = pytest.mark.process
PROGRAM = Path(__file__).with_name("program.py")
QUICK_START = Path(__file__).parents[2] / "notebooks" / "quickstart.ipynb"
AT_ONCE = 10.0  # seconds; two are promised and printed, and a busy machine has its time


class Program:
    """A run of `program.py`, line by line."""

    def __init__(self, cluster: Any, *words: str, **changed: Any) -> None:
        arguments = json.dumps(
            {name: value for name, value in (cluster.arguments | changed).items() if value is not None}
        )
        preload = "torch,torch._dynamo" if "train" in words else ""  # of which DistributedDataParallel needs both
        self.process = subprocess.Popen(
            [sys.executable, PROGRAM, cluster.launcher, arguments, *words],
            env=os.environ | {"CUDA_VISIBLE_DEVICES": "7", "MESHBOOK_PRELOAD": preload} | cluster.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        while line := self.process.stdout.readline():
            if line.startswith("{"):  # Ray writes its messages there too
                found: dict[str, Any] = json.loads(line)
                return found
        assert self.process.stderr is not None
        raise AssertionError(self.process.stderr.read())

    def go_on(self, word: str = "") -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()

    def watch(self, cluster: Any, what: str, lose: Callable[[], object]) -> dict[str, Any]:
        """Take a host away; return what the program reports, and print after how many seconds."""
        self.go_on("watch")
        began = time.monotonic()
        lose()
        report = self.read()
        seconds = report["at"] - began
        print(f"{cluster.launcher}: {what}: reported after {seconds:.2f} s")
        assert seconds < AT_ONCE
        return report

    def error(self) -> str:
        """Wait for the end of a program that fails, and return its last words."""
        error = self.process.communicate(timeout=PATIENCE)[1]
        assert self.process.returncode == 1, error
        return error

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture(scope="module", params=few([SshCluster, SlurmCluster, RayCluster]), ids=["ssh", "slurm", "ray"])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    made = request.param(tmp_path_factory.mktemp("c"))
    yield made
    made.close()
    sweep(Path(os.environ["MESHBOOK_RUNTIME_DIR"]))  # folders of killed agents


@pytest.fixture
def start(cluster: Any) -> Iterator[Any]:
    """Start programs on the cluster; all of them have ended when the test ends."""
    with contextlib.ExitStack() as stack:

        def begin(*words: str, **changed: Any) -> Program:
            return stack.enter_context(contextlib.closing(Program(cluster, *words, **changed)))

        yield begin
    cluster.restore()


def agents() -> list[psutil.Process]:
    found = psutil.process_iter(["cmdline"])
    return [each for each in found if "meshbook.runtime.hosts.agent" in (each.info["cmdline"] or ())[1:5]]


def of_this_run() -> list[int]:
    """The agents that this test run has started and that have not ended."""
    mark = os.environ["MESHBOOK_TEST_ID"]
    found = []
    for each in agents():
        with contextlib.suppress(psutil.Error):
            if each.environ().get("MESHBOOK_TEST_ID") == mark and each.status() != psutil.STATUS_ZOMBIE:
                found.append(each.pid)
    return found


def test_training_beside_other_meshes_and_an_orderly_end(cluster: Any, start: Any) -> None:
    program = start("train")
    trained = program.read()
    assert trained["hosts"] == {"hosts": 3}
    assert trained["totals"] == [[3.0] * 3, [2.0] * 2, [1.0]]
    ranks = trained["ranks"]
    assert [each["rank"] for each in ranks] == list(range(6))
    assert all(each["last"] < each["first"] / 3 for each in ranks)
    assert len({each["weights"] for each in ranks}) == 1
    for rank, each in enumerate(ranks):
        assert each["environment"].pop("LOCAL_RANK") == str(rank % 2)
        each["environment"].pop("GLOO_SOCKET_IFNAME")
        found = {name: value for name, value in each["environment"].items() if value}  # Ray sets an empty one
        assert found == cluster.variables(rank // 2)
    program.go_on()
    assert program.read() == {"closed": True}
    assert program.process.wait(PATIENCE) == 0
    wait_until(lambda: not of_this_run())
    if isinstance(cluster, SlurmCluster):
        wait_until(lambda: not cluster.jobs())


@pytest.mark.parametrize("is_cut_off", [True, False], ids=["host", "launcher"])
def test_a_lost_host_is_reported_and_the_others_continue(cluster: Any, start: Any, is_cut_off: bool) -> None:
    """Its machine is cut off or stops, or its launcher is killed, which ends its agent; or the agent is killed."""
    program = start("watch")
    ranks = program.read()["ranks"]
    assert program.read() == {"waits": 3}
    pids = [each["pid"] for each in ranks[2:4]]
    if is_cut_off:
        report = program.watch(cluster, "host cut off", lambda: cluster.lose_second(pids))
        # Not by the launcher, which takes longer to notice.
        assert "received nothing from it for" in report["lost"]["1"]
    else:
        launcher = cluster.launcher_of_second(program.process.pid, pids)
        report = program.watch(cluster, "launcher killed", launcher.kill)
    assert list(report["lost"]) == ["1"]
    assert cluster.second in report["lost"]["1"]
    assert report["rest"] == [1, 5]
    if is_cut_off:
        agent = family_of_agent([ranks[4]["pid"]])[0]
        report = program.watch(cluster, "agent killed", agent.kill)
        assert list(report["lost"]) == ["2"]
        assert report["rest"] == [1]
    cluster.restore()
    for each in ranks[2:4]:  # its agent is stopped or cut off; it ends when it continues or looks again
        with contextlib.suppress(psutil.Error):
            for process in (psutil.Process(each["pid"]), *psutil.Process(each["pid"]).parents()):
                if process.status() == psutil.STATUS_STOPPED:
                    process.send_signal(signal.SIGCONT)
    program.go_on()
    assert program.read() == {"closed": True}
    wait_until(lambda: not of_this_run())


def test_a_killed_controller_leaves_nothing(cluster: Any, start: Any) -> None:
    program = start()
    program.read()
    program.process.kill()
    wait_until(lambda: not of_this_run())
    if isinstance(cluster, SlurmCluster):
        wait_until(lambda: not cluster.jobs())


def test_a_wrong_interpreter_on_one_host_is_named(cluster: Any, start: Any) -> None:
    error = start(python={cluster.second: "/no/python3"}).error()
    assert f"host {cluster.second}" in error
    assert "/no/python3" in error
    wait_until(lambda: not of_this_run())


# -- what only one of them has -------------------------------------------------------------------


@pytest.mark.parametrize("cluster", [SshCluster], ids=["ssh"], indirect=True)
def test_a_key_that_ssh_refuses(cluster: SshCluster, start: Any) -> None:
    error = start(options=["-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null"]).error()
    assert any(f"host {address}" in error for address in cluster.addresses)  # that which answered first
    assert "Permission denied" in error


@pytest.mark.parametrize("cluster", [SshCluster], ids=["ssh"], indirect=True)
def test_a_machine_that_does_not_answer_to_ssh(cluster: SshCluster, start: Any) -> None:
    cluster.network.cut("h2")
    error = start(options=[*cluster.arguments["options"], "-o", "ConnectTimeout=1"]).error()
    cluster.network.mend("h2")
    assert f"host {cluster.addresses[1]}" in error
    wait_until(lambda: not of_this_run())


@pytest.mark.long
@pytest.mark.parametrize("cluster", [SlurmCluster], ids=["slurm"], indirect=True)
def test_an_allocation_that_slurm_refuses(cluster: SlurmCluster, start: Any) -> None:
    error = start(partition="nowhere").error()
    assert "LaunchError" in error
    assert "invalid partition" in error.lower()
    assert not cluster.jobs()


@pytest.mark.long
@pytest.mark.parametrize("cluster", [SlurmCluster], ids=["slurm"], indirect=True)
def test_a_request_that_is_pending_ends_with_its_controller(cluster: SlurmCluster, start: Any) -> None:
    """There are three nodes only."""
    program = start(nodes=4)
    wait_until(cluster.jobs)
    program.process.kill()
    wait_until(lambda: not cluster.jobs())


def test_a_host_that_is_drained_goes_back_and_the_others_continue(cluster: Any, start: Any) -> None:
    program = start("drain")
    ranks = program.read()["ranks"]
    drained = program.read()
    assert drained["ranks"] == [0, 1, 2, 3]
    assert drained["pids"] == [each["pid"] for each in (*ranks[:2], *ranks[4:])]
    assert not any(psutil.pid_exists(each["pid"]) for each in ranks[2:4])
    if isinstance(cluster, SlurmCluster):
        wait_until(lambda: cluster.nodes_in_use() == "2")
    program.go_on()
    assert program.read() == {"closed": True}
    wait_until(lambda: not of_this_run())


def test_a_run_is_detached_and_another_program_attaches_to_it(cluster: Any, start: Any) -> None:
    """Ray cannot: it ends the actors of a program that has ended."""
    program = start("detach")
    ranks = program.read()["ranks"]
    detached = program.read()
    if isinstance(cluster, RayCluster):
        assert "are Ray's" in detached["error"]
        program.go_on()
        assert program.read() == {"closed": True}
        return
    assert program.process.wait(PATIENCE) == 0
    attached = start("attach", detached["run"])
    assert attached.read()["ranks"] == ranks
    attached.go_on()
    assert attached.read() == {"closed": True}
    wait_until(lambda: not of_this_run())
    if isinstance(cluster, SlurmCluster):
        wait_until(lambda: not cluster.jobs())


@pytest.mark.long
@pytest.mark.parametrize("cluster", [SlurmCluster], ids=["slurm"], indirect=True)
def test_a_job_of_slurm(cluster: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr(cluster, "launcher", "job")
    with contextlib.closing(Program(cluster, nodes=None, monarch_port=free_ports(1)[0])) as program:
        found = program.read()
        assert [each["rank"] for each in found["ranks"]] == [0, 1]
        assert found["active"]
        assert program.process.wait(PATIENCE) == 0
    assert not cluster.jobs()
    wait_until(lambda: not of_this_run())


@pytest.mark.long
@pytest.mark.parametrize("cluster", [RayCluster], ids=["ray"], indirect=True)
def test_nodes_that_ray_does_not_have(cluster: RayCluster, start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cluster.environment, "MESHBOOK_LAUNCH_TIMEOUT", "2")
    assert "Ray has no 3 nodes" in start(resources={"GPU": 8}).error()


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("cluster", [SshCluster, SlurmCluster], ids=["ssh", "slurm"], indirect=True)
def test_the_quick_start_as_a_batch_job_on_two_hosts(cluster: Any, tmp_path: Path) -> None:
    """A shorter training, up to its accuracy. The notebook's own `%mesh up --gpus 4` finds the mesh of the command."""
    notebook = nbformat.read(QUICK_START, as_version=4)
    last = next(place for place, cell in enumerate(notebook.cells) if cell.source.startswith('print(f"accuracy'))
    notebook.cells = notebook.cells[: last + 1]
    for cell in notebook.cells:
        cell.source = cell.source.replace("range(25)", "range(8)")
    nbformat.write(notebook, tmp_path / "quickstart.ipynb")
    hosts = "slurm:2"
    if isinstance(cluster, SshCluster):
        hosts = "lab"
        arguments = cluster.arguments | {"hosts": cluster.addresses[:2]}
        lines = [f"{name} = {json.dumps(value)}" for name, value in arguments.items()]
        (tmp_path / "hosts.toml").write_text("\n".join(["[lab]", 'launcher = "ssh"', *lines]))
    command = [sys.executable, "-m", "meshbook", "run", str(tmp_path / "quickstart.ipynb"), "--hosts", hosts]
    environment = os.environ | cluster.environment | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, "--gpus", "1"], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "mesh: 2 ranks (hosts=2, gpus=1)" in done.stdout
    [accuracy] = re.findall(r"accuracy on held-out digits: ([0-9.]+)%", done.stdout)
    assert float(accuracy) > 60
    assert "accuracy on held-out digits" in (tmp_path / "quickstart.out.html").read_text()
    wait_until(lambda: not of_this_run())
    if isinstance(cluster, SlurmCluster):
        wait_until(lambda: not cluster.jobs())
