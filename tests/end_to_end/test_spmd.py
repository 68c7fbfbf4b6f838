"""SPMD programs on real processes: torchrun's variables on meshes and slices, and `python -m meshbook.spmd`."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from meshbook import Actor, ActorError, HostMesh, endpoint, this_host
from meshbook.runtime.geometry import Extent
from meshbook.runtime.resources import count_cores
from meshbook.runtime.spmd.run_policy import TERM_SECONDS
from meshbook.runtime.spmd.spmd_actor import SPMDActor, setup_torch_elastic_env, setup_torch_elastic_env_async
from tests.support import PATIENCE

pytestmark = pytest.mark.process

PLACE = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE")
MEETING = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID")


class Probe(Actor):
    """Reads the environment of its process, and meets the others there."""

    @endpoint
    def read(self, *names: str) -> list[str | None]:
        return [os.environ.get(name) for name in names]

    @endpoint
    def reduce(self) -> float:
        import torch
        import torch.distributed as dist

        dist.init_process_group("gloo")
        tensor = torch.tensor(float(os.environ["RANK"]) + 1)
        dist.all_reduce(tensor)
        dist.destroy_process_group()
        return tensor.item()

    @endpoint
    def read_of_child(self, *names: str) -> list[str | None]:
        child = this_host().spawn_procs()
        try:
            return child.spawn("child", Probe).read.call_one(*names).get(PATIENCE)
        finally:
            child.stop().get(PATIENCE)


def read(procs: Any, *names: str) -> list[list[str | None]]:
    return list(procs.spawn("probe", Probe).read.call(*names).get(PATIENCE).values())


# -- setup_torch_elastic_env --------------------------------------------------------------


@pytest.fixture
def hosts(host: HostMesh) -> Iterator[Any]:
    """Two hosts, which are this machine both times: processes of 2 x 2."""
    two = HostMesh(host._agents * 2, Extent.of(hosts=2).region)
    procs = two.spawn_procs(per_host={"gpus": 2})
    yield procs
    procs.stop().get(PATIENCE)


def test_hosts_and_gpus(hosts: Any) -> None:
    setup_torch_elastic_env(hosts, master_addr="127.0.0.1")
    assert ["".join(map(str, place)) for place in read(hosts, *PLACE)] == ["040202", "141202", "240212", "341212"]
    meetings = read(hosts, *MEETING)
    assert meetings == [meetings[0]] * 4
    assert meetings[0] == ["127.0.0.1", meetings[0][1], hosts.name]
    assert list(hosts.spawn("probe", Probe).reduce.call().get(PATIENCE).values()) == [10.0] * 4


@pytest.mark.parametrize(
    ("cut", "places"),
    [
        (lambda procs: procs.slice(gpus=1), ["020102", "120112"]),
        (lambda procs: procs.slice(hosts=1), ["020201", "121201"]),
        (lambda procs: procs.flatten("ranks").slice(ranks=slice(1, 4)), ["030102", "130212", "231212"]),
    ],
    ids=["a gpu of each host", "one host", "ranks 1 to 3"],
)
def test_a_slice_is_a_world_of_its_own(hosts: Any, cut: Callable[[Any], Any], places: list[str]) -> None:
    part = cut(hosts)
    setup_torch_elastic_env(part, "127.0.0.1", 4711)
    assert ["".join(map(str, place)) for place in read(part, *PLACE)] == places
    assert read(part, "MASTER_PORT") == [["4711"]] * len(places)


def test_the_dimensions_determine_as_much_as_the_mesh(hosts: Any) -> None:
    actors = hosts.spawn("spmd", SPMDActor)
    actors.slice(gpus=0).setup_env.call("127.0.0.1", 1).get(PATIENCE)
    assert ["".join(map(str, place)) for place in read(hosts.slice(gpus=0), *PLACE)] == ["020102", "120112"]


def test_on_an_event_loop(spawn_procs: Any) -> None:
    procs = spawn_procs(2)
    asyncio.run(setup_torch_elastic_env_async(procs))
    found = read(procs, "RANK", *MEETING)
    assert [place[:2] for place in found] == [["0", "127.0.0.1"], ["1", "127.0.0.1"]]
    assert list(procs.spawn("probe", Probe).reduce.call().get(PATIENCE).values()) == [3.0] * 2


def test_a_mesh_of_a_rank_has_a_world_of_its_own(spawn_procs: Any) -> None:
    procs = spawn_procs(2)
    setup_torch_elastic_env(procs, "127.0.0.1", 4711)
    names = ("WORLD_SIZE", "MASTER_PORT", "ROLE_RANK", "TORCHELASTIC_RUN_ID")
    probe = procs.spawn("probe", Probe).slice(gpus=1)
    size, port, role, run = probe.read_of_child.call_one(*names).get(PATIENCE)
    assert (size, role) == ("1", "0")
    assert port not in ("4711", None)
    assert run not in (*probe.read.call_one("TORCHELASTIC_RUN_ID").get(PATIENCE), None)


def test_main_on_a_mesh_of_the_users(spawn_procs: Any, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import os, sys\nif os.environ['RANK'] == sys.argv[1]: raise ValueError('boom')\n")
    actors = spawn_procs(2).spawn("spmd", SPMDActor)
    with pytest.raises(ActorError, match=rf'File "{script}", line 2, in <module>') as caught:
        actors.main.call("127.0.0.1", 1, [str(script), "1"]).get(PATIENCE)
    assert isinstance(caught.value.exception, ValueError)
    assert [*caught.value.failures] == [1]
    assert list(actors.main.call("127.0.0.1", 1, [str(script), "none"]).get(PATIENCE).values()) == [True, True]


# -- python -m meshbook.spmd -----------------------------------------------------------------

BEGIN = """
import os, sys, time
import torch
import torch.distributed as dist

rank = int(os.environ["RANK"])
dist.init_process_group("gloo")
"""
REDUCE = (
    BEGIN
    + """
tensor = torch.tensor(float(rank + 1))
dist.all_reduce(tensor)
print(f"sum {tensor.item()} of {dist.get_world_size()}")
"""
)
STUCK = "dist.all_reduce(torch.ones(1))\n"


class Finished:
    """A run that has ended: its status, and what it said, by lines."""

    def __init__(self, status: int, out: str, err: str) -> None:
        self.status = status
        self.out = sorted(out.splitlines())
        self.err = err.splitlines()

    @property
    def told(self) -> list[str]:
        """What the launcher said in its own name."""
        return [line.removeprefix("meshbook.spmd: ") for line in self.err if line.startswith("meshbook.spmd: ")]


Launch = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    """Starts the launcher in a folder with these scripts; without torch in the fork server unless they want it."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str, preload: str | None = "", **scripts: str) -> subprocess.Popen[str]:
        for name, source in scripts.items():
            (tmp_path / f"{name}.py").write_text(textwrap.dedent(source))
        given = {name: value for name, value in os.environ.items() if name != "MESHBOOK_PRELOAD"}
        started.append(
            subprocess.Popen(
                [sys.executable, "-m", "meshbook.spmd", *arguments],
                cwd=tmp_path,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=given | ({} if preload is None else {"MESHBOOK_PRELOAD": preload}),
            )
        )
        return started[-1]

    yield start
    for process in started:
        with process:
            process.kill()


TORCH = {"preload": "torch.distributed"}


def finish(process: subprocess.Popen[str], limit: float = PATIENCE) -> Finished:
    out, err = process.communicate(timeout=limit)
    return Finished(process.returncode, out, err)


@pytest.mark.parametrize("size", [2, 4])
def test_an_all_reduce(launch: Launch, size: int) -> None:
    run = finish(launch("--procs", str(size), "train.py", train=REDUCE, **TORCH))
    total = float(sum(range(size + 1)))
    assert run.out == [f"[rank {rank}] sum {total} of {size}" for rank in range(size)]
    assert (run.status, run.told) == (0, [])


CLIENT = """
import os

os.environ |= {"OMP_NUM_THREADS": "2", "TORCH_DISTRIBUTED_DEBUG": "INFO"}
import torch
import torch.distributed as dist

place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
store = dist.TCPStore(*place, is_master=False, wait_for_workers=False)
rank = int(os.environ["RANK"])
store.set(f"rank {rank}", f"{torch.get_num_threads()} {dist.get_debug_level().name}")
print("found", *[store.get(f"rank {rank}").decode() for rank in range(2)])
"""


def test_a_store_listens_and_variables_above_the_import_count(launch: Launch) -> None:
    run = finish(launch("--procs", "2", "train.py", train=CLIENT + REDUCE, preload=None))
    threads = min(2, count_cores())
    lines = ("sum 3.0 of 2", f"found {threads} INFO {threads} INFO")
    assert run.out == sorted(f"[rank {rank}] {line}" for rank in range(2) for line in lines)
    assert (run.status, run.told) == (0, [])


def test_several_hosts(launch: Launch) -> None:
    names = "'LOCAL_RANK', 'LOCAL_WORLD_SIZE', 'GROUP_RANK', 'GROUP_WORLD_SIZE', 'MASTER_ADDR'"
    source = REDUCE + f"print(*[os.environ[name] for name in ({names})])\n"
    run = finish(launch("--hosts", "local:2", "--procs", "2", "train.py", train=source, **TORCH))
    assert run.out == sorted(
        line
        for rank in range(4)
        for line in (f"[rank {rank}] sum 10.0 of 4", f"[rank {rank}] {rank % 2} 2 {rank // 2} 2 127.0.0.1")
    )
    assert (run.status, run.told) == (0, [])


def test_hosts_that_are_not_there(launch: Launch) -> None:
    run = finish(launch("--hosts", "nowhere", "train.py", train=""))
    assert run.status == 1
    assert run.told[0].startswith("no hosts are known as 'nowhere'")


def test_arguments_and_a_module_beside_the_script(launch: Launch) -> None:
    source = """
        import sys, beside
        print(__name__, sys.argv, beside.where)
        print("to stderr", file=sys.stderr)
        print("no end of line", end="")
    """
    run = finish(launch("--procs", "1", "train.py", "--lr", "1", train=source, beside="where = __file__"))
    argv = ["train.py", "--lr", "1"]
    assert run.out[0].startswith(f"[rank 0] __main__ {argv} /")
    assert run.out[0].endswith("/beside.py")
    assert run.out[1] == "[rank 0] no end of line"
    assert run.err == ["[rank 0] to stderr"]
    assert run.status == 0


def test_what_ranks_log_is_written_at_the_end(launch: Launch, tmp_path: Path) -> None:
    source = """
        import os, meshbook
        for step in range(3):
            meshbook.log(step=step, loss=float(os.environ["RANK"]))
    """
    run = finish(launch("--procs", "2", "--curves", "run.csv", "train.py", train=source))
    assert run.status == 0
    assert run.told == ["6 points of curves written to run.csv"]
    rows = [line.split(",") for line in (tmp_path / "run.csv").read_text().splitlines()[1:]]
    assert {(row[0], row[1], row[2], float(row[5])) for row in rows} == {
        ("loss", "script", str(rank), float(rank)) for rank in range(2)
    }


def test_a_module(launch: Launch, tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    (tmp_path / "package" / "beside.py").write_text("name = __name__")
    source = "import sys\nfrom . import beside\nprint(__name__, sys.argv, beside.name)"
    (tmp_path / "package" / "train.py").write_text(source)
    run = finish(launch("--procs", "2", "-m", "package.train", "--lr", "1"))
    argv = [str(tmp_path / "package" / "train.py"), "--lr", "1"]
    assert run.out == [f"[rank {rank}] __main__ {argv} package.beside" for rank in range(2)]
    assert run.status == 0


def test_hooks_and_threads_of_a_script_have_their_time(launch: Launch) -> None:
    source = """
        import atexit, threading
        atexit.register(print, "hook")
        threading.Thread(target=lambda: (threading.main_thread().join(), print("thread"))).start()
    """
    run = finish(launch("--procs", "2", "train.py", train=source))
    assert run.out == [f"[rank {rank}] {what}" for rank in range(2) for what in ("hook", "thread")]


def test_a_rank_that_raises_while_the_others_wait_for_it(launch: Launch) -> None:
    source = BEGIN + "if rank == 1:\n    raise ValueError('boom')\n" + STUCK
    run = finish(launch("--procs", "3", "train.py", train=source, **TORCH), TERM_SECONDS)
    line = source.splitlines().index("    raise ValueError('boom')") + 1
    assert run.status == 1
    assert run.told == [f"rank 1 failed: ValueError: boom (train.py:{line})", "ranks 0,2 were stopped"]
    traceback = [line for line in run.err if not line.startswith("meshbook.spmd")]
    assert all(line.startswith("[rank 1] ") for line in traceback)
    assert traceback[-1].endswith("ValueError: boom")
    assert not any("run_script" in line for line in traceback)


@pytest.mark.parametrize(
    ("source", "status", "told"),
    [
        ("import sys; sys.exit(3)", 3, "exited with code 3"),
        ("import os; os._exit(5)", 5, "exit code 5"),
        ("import ctypes; ctypes.string_at(0)", 1, "Segmentation fault(sig=11)"),
        ("import sys; sys.exit('no way')", 1, "exited with code 1: no way"),
        ("import sys; sys.exit(0)", 0, ""),
        ("import os; os._exit(0)", 0, ""),
    ],
    ids=["exit", "os._exit", "crash", "message", "exit well", "os._exit well"],
)
def test_exit_codes(launch: Launch, source: str, status: int, told: str) -> None:
    run = finish(launch("--procs", "2", "train.py", train=source))
    assert run.status == status
    # Whether the second one comes to fail by itself in the moment that it has is not certain.
    assert [line.partition(" failed: ")[2] for line in run.told[:1]] == ([told] if told else [])


def wait_for_ranks(process: subprocess.Popen[str], count: int) -> None:
    """Until each rank has printed a line."""
    assert process.stdout is not None
    for _ in range(count):
        assert process.stdout.readline().endswith("] ready\n")


# In short sleeps: a signal that comes between Python's last look and the sleep itself is heard when that is over.
SLEEPS = "import time\nprint('ready')\nwhile True: time.sleep(0.01)\n"


@pytest.mark.parametrize(
    ("source", "preload", "told"),
    [
        (SLEEPS, "", r"ranks? 0(-1)? interrupted at train.py:[23]"),
        # A rank that is stuck in a collective is freed by the end of the rank that it waits for.
        (
            BEGIN + "print('ready')\nwhile rank == 0: time.sleep(0.01)\n" + STUCK,
            "torch.distributed",
            r"rank 0 interrupted at train.py:\d+",
        ),
    ],
    ids=["asleep", "in a collective"],
)
def test_ctrl_c(launch: Launch, source: str, preload: str, told: str) -> None:
    process = launch("--procs", "2", "train.py", train=source, preload=preload)
    wait_for_ranks(process, 2)
    process.send_signal(signal.SIGINT)
    run = finish(process, TERM_SECONDS)
    assert run.status == 128 + signal.SIGINT
    assert run.told[0] == "ended by SIGINT"
    assert any(re.fullmatch(told, line) for line in run.told), run.told
    assert not [line for line in run.err if line.startswith("[rank 0]")]  # no traceback of an interrupt


def test_a_script_may_save_its_work_when_interrupted(launch: Launch) -> None:
    source = """
        import time
        try:
            print("ready")
            while True:
                time.sleep(0.01)
        except KeyboardInterrupt:
            print("saved")
    """
    process = launch("--procs", "2", "train.py", train=source)
    wait_for_ranks(process, 2)
    process.send_signal(signal.SIGINT)
    run = finish(process)
    assert (run.status, run.out) == (130, ["[rank 0] saved", "[rank 1] saved"])


def test_the_second_ctrl_c_kills(launch: Launch) -> None:
    source = """
        import signal, time
        signal.signal(signal.SIGINT, lambda number, frame: print("heard"))
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("ready")
        while True:
            time.sleep(0.01)
    """
    process = launch("--procs", "1", "train.py", train=source)
    wait_for_ranks(process, 1)
    process.send_signal(signal.SIGINT)
    assert process.stdout is not None
    assert process.stdout.readline() == "[rank 0] heard\n"
    process.send_signal(signal.SIGINT)
    assert finish(process, TERM_SECONDS).status == 130


def test_sigterm(launch: Launch) -> None:
    process = launch("--procs", "2", "train.py", train=SLEEPS)
    wait_for_ranks(process, 2)
    process.send_signal(signal.SIGTERM)
    run = finish(process, TERM_SECONDS)
    assert (run.status, run.err) == (143, ["meshbook.spmd: ended by SIGTERM"])


def test_unread_output_ends_the_run(launch: Launch) -> None:
    source = "import time\nprint('ready')\nwhile True:\n    print('more')\n    time.sleep(0.01)\n"
    process = launch("--procs", "1", "train.py", train=source)
    wait_for_ranks(process, 1)
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == "meshbook.spmd: ended by SIGPIPE\n"
    assert process.wait(PATIENCE) == 128 + signal.SIGPIPE
