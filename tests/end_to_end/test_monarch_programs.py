"""The programs of `tests/monarch_programs`: written for Monarch, of which they know nothing but that it is there.

Each runs as a user would run it, in a process of its own, and prints what it found; what is right stands here.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support import few

PROGRAMS = Path(__file__).parent.parent / "monarch_programs"
LIMIT = 90.0  # for a machine that does other things too; alone they take a second or two, with torch some more
WITH_TORCH = "torch,torch.distributed,torch.nn"  # in the fork server, so that workers need not import it
pytestmark = pytest.mark.process

PING_PONG = """\
ping-0 of 2 meets pong-0
ping-1 of 2 meets pong-1
pong-0 of 2 meets ping-0
pong-1 of 2 meets ping-1
ball 0: ping-0 pong-0 ping-0 pong-0 ping-0 pong-0 ping-0
ball 1: ping-1 pong-1 ping-1 pong-1 ping-1 pong-1 ping-1
hits 4 4 3 3
"""
PHILOSOPHERS = """\
{'seats': 2/5} is full
0 {'seats': 0/5} is full
1 {'seats': 1/5} is full
2 {'seats': 2/5} is full
3 {'seats': 3/5} is full
4 {'seats': 4/5} is full
meals [8, 8, 8, 8, 8] forks [0, 1, 2, 3, 4]
most at once one or two
"""
TWO_CLIENTS = """\
first [(0, 1), (1, 1)]
second [(0, 2), (1, 2)] (0, 11)
second (0, 101) (0, 3)
the second has ended with 0
second: its actor has failed
the second has ended with 1
first [(0, 4), (1, 3)]
"""
LATE_ANSWERS = """\
1 open
was it? yes, says 0
is it? is still open
0 open
is it? yes, says 0
{'gpus': 2} everyone? yes, says 0 and everyone? yes, says 1
order 2? 1? 0?
[("{'gpus': 0/1}", '0? ask again, says the clerk')]
[("{'gpus': 0/1}", '1? no, says 0')]
[("{'gpus': 0/1}", '2? no, says 0')]
ValueError: that is no question
(1, 'ports? yes, says 1')
(0, 'ports? yes, says 0')
"""
SUPERVISION = """\
totals 506 506 of 506
foreman 0 had 2 crews, and was told why: True
foreman 1 had 2 crews, and was told why: True
unhandled True True
careless True
"""
PARAMETER_SERVER = """\
loss falls True True
weights [2.0, -1.0]
dropped [True, True]
left sees [1.0, 0.0]
right sees [0.0, 0.0]
both have [[7.0, 8.0], [7.0, 8.0]]
bytes 16 backend True False
"""
ALL_REDUCE = """\
RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK
0 0 3 3 0
1 1 3 3 0
2 2 3 3 0
actors 3.0 3.0 3.0
ended True True
rank0 [1.0, 3.0, 5.0] by 0 of 2, reduce_script.py
rank1 [1.0, 3.0, 5.0] by 1 of 2, reduce_script.py
"""
DISTRIBUTED_TENSORS = """\
weights [3.0, -2.0] True
loss 0.000
pipeline [[10.0, 10.0], [20.0, 20.0], [30.0, 30.0]]
TypeError
failed at show_errors on rank 0
others [1.0, 1.0, 1.0]
a rank died
healed tensor([2., 2.])
"""
SHARDED_TENSORS = """\
sums are equal: True
losses are equal: True
step 0 sums are equal: True
step 1 a rank died
step 1 sums are equal: True
step 2 sums are equal: True
"""


@dataclass(frozen=True)
class Ended:
    status: int
    out: str
    err: str


Run = Callable[..., Ended]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs a program until it ends. It has to end by itself, in time."""

    def run(name: str, *arguments: str, preload: str = "") -> Ended:
        command = [sys.executable, "-m", "meshbook.monarch", str(PROGRAMS / name), *arguments]
        done = subprocess.run(
            command,
            cwd=tmp_path,
            env=os.environ | {"MESHBOOK_PRELOAD": preload},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT,
        )
        return Ended(done.returncode, done.stdout, done.stderr)

    return run


def test_ping_pong(run: Run) -> None:
    ended = run("ping_pong.py")
    assert (ended.out, ended.status) == (PING_PONG, 0), ended.err
    assert ended.err.count("DeprecationWarning: proc_mesh()") == 2


@pytest.mark.long
def test_training(run: Run) -> None:
    ended = run("training.py", preload=WITH_TORCH)
    assert ended.status == 0, ended.err
    before, after, *found = ended.out.splitlines()
    assert all(float(loss) > 1 for loss in before.removeprefix("loss before ").split())
    assert all(float(loss) < 1e-6 for loss in after.removeprefix("loss after ").split())
    assert found == ["weights 2.0 -1.0 0.5", "one of them says True", "samples 1296 1296"]


@pytest.mark.parametrize(
    ("name", "preload", "said"),
    few(
        [
            ("supervision.py", "", SUPERVISION),
            ("philosophers.py", "", PHILOSOPHERS),
            ("late_answers.py", "", LATE_ANSWERS),
            ("two_clients.py", "", TWO_CLIENTS),
            ("parameter_server.py", "", PARAMETER_SERVER),
            ("all_reduce.py", WITH_TORCH, ALL_REDUCE),
            ("distributed_tensors.py", WITH_TORCH, DISTRIBUTED_TENSORS),
            ("sharded_tensors.py", WITH_TORCH, SHARDED_TENSORS),
        ]
    ),
)
def test_a_program(run: Run, name: str, preload: str, said: str) -> None:
    ended = run(name, preload=preload)
    assert (ended.out, ended.status) == (said, 0), ended.err
    assert ended.err == ""


def test_an_unhandled_failure_ends_the_program(run: Run) -> None:
    ended = run("supervision.py", "unhandled")
    assert (ended.out, ended.status) == ("waiting\n", 1), ended.err
    assert "MeshFailure of mesh careless, crashed_ranks=[0]" in ended.err
    assert "ValueError: 5 is unlucky" in ended.err


@pytest.mark.parametrize("program", sorted(PROGRAMS.glob("*.py")), ids=lambda program: program.name)
def test_the_programs_know_nothing_of_meshbook(program: Path) -> None:
    assert "meshbook" not in program.read_text()
