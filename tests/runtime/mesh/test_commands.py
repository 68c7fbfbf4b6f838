"""`BootstrapCommand`: which process is started by which command, with which words and variables."""

from __future__ import annotations

import pickle
import sys
from typing import Any

import msgspec
import pytest

from meshbook.runtime.config import Settings
from meshbook.runtime.geometry import Extent, Point
from meshbook.runtime.hosts.command_workers import command_line
from meshbook.runtime.hosts.worker_entry import check_version
from meshbook.runtime.mesh.binding import Binding
from meshbook.runtime.mesh.commands import ENTRY, BootstrapCommand, Start, default_bootstrap_cmd, plan_starts
from meshbook.runtime.mesh.worker_specs import MeshSpec, WorkerSpec
from meshbook.runtime.wire.messages import Address

PAIR = Extent.of(gpus=2)
ECHO = BootstrapCommand("echo", None, ["hello"], {"A": "1"})


def born(start: Start) -> WorkerSpec:
    world = MeshSpec(
        run="run",
        mesh="procs",
        owner="controller",
        controller=Address("controller", "memory://controller"),
        agent=Address("agent", "memory://agent"),
        agents=(Address("agent", "memory://agent"),),
        labels=(),
        sizes=(),
        environment={"INHERITED": "yes", "A": "inherited"},
        directory="/",
        search_path=(),
        settings=Settings(),
        rendezvous={"MASTER_PORT": "4711"},
    )
    return WorkerSpec(
        address=Address("procs.0", "memory://procs.0"), rank=0, local_rank=0, local_size=1, world=world, start=start
    )


# -- the command ---------------------------------------------------------------------


def test_the_default_is_this_interpreter() -> None:
    command = default_bootstrap_cmd()
    assert (command.program, command.arg0, command.args, command.env) == (sys.executable, None, [ENTRY], {})
    assert command.inherit_env


def test_none_removes_a_variable() -> None:
    [start] = plan_starts(Extent.of(gpus=1), 1, commands=ECHO.with_env({"HOME": None, "A": None}), env={"A": "0"})
    assert start.command is not None
    assert start.command.env == {"HOME": None, "A": None}
    with pytest.raises(TypeError, match="strings to strings or None"):
        ECHO.with_env({"A": 1})  # type: ignore[dict-item]


def test_with_env_makes_a_copy() -> None:
    more = ECHO.with_env({"A": "2", "B": "3"})
    assert more == BootstrapCommand("echo", None, ["hello"], {"A": "2", "B": "3"})
    assert ECHO.env == {"A": "1"}
    assert pickle.loads(pickle.dumps(more)) == more


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("",), "program"),
        ((None,), "program"),
        (("echo", None, "hello"), "args"),
        (("echo", None, [1]), "args"),
        (("echo", None, [], {"A": 1}), "env"),
    ],
)
def test_a_command_of_the_wrong_types(arguments: tuple[Any, ...], said: str) -> None:
    with pytest.raises(TypeError, match=said):
        BootstrapCommand(*arguments)


# -- who gets which ------------------------------------------------------------------


def test_processes_are_forked_unless_more_is_requested() -> None:
    assert plan_starts(PAIR, 2) == [Start(), Start()]
    assert plan_starts(PAIR, 2, env={"A": "1"}) == [Start(), Start()]
    bound = plan_starts(PAIR, 2, proc_bind=[{"cpus": 0}, {"cpus": 1}])
    assert [(start.command, start.binding.cpus) for start in bound] == [(None, (0,)), (None, (1,))]


def test_numactl_needs_a_command_to_stand_in_front_of() -> None:
    starts = plan_starts(PAIR, 2, proc_bind=[{"membind": 0}, {}])
    assert [start.command for start in starts] == [default_bootstrap_cmd(), None]


def test_each_host_is_bound_alike() -> None:
    starts = plan_starts(Extent.of(hosts=2, gpus=2), 2, proc_bind=[{"cpus": 0}, {"cpus": 1}])
    assert [start.binding.cpus for start in starts] == [(0,), (1,)] * 2


def test_an_interpreter_runs_the_same_entry() -> None:
    assert plan_starts(PAIR, 2, python="/env/python") == [Start(BootstrapCommand("/env/python", None, [ENTRY]))] * 2
    assert plan_starts(PAIR, 2, python="/env/python", commands=ECHO)[0].command == ECHO


def test_a_command_for_each_point() -> None:
    def make(point: Point) -> BootstrapCommand:
        return ECHO.with_env({"GPU": str(point["gpus"]), "AT": str(point.rank)})

    found = [start.command for start in plan_starts(Extent.of(hosts=2, gpus=2), 2, commands=make)]
    assert [command and (command.env["GPU"], command.env["AT"]) for command in found] == [
        ("0", "0"),
        ("1", "1"),
        ("0", "2"),
        ("1", "3"),
    ]


def test_what_spawn_procs_adds_to_the_environment_yields_to_the_command() -> None:
    [start] = plan_starts(Extent.of(gpus=1), 1, commands=ECHO, env={"A": "0", "B": "2"})
    assert start.command is not None
    assert start.command.env == {"A": "1", "B": "2"}


@pytest.mark.parametrize("given", ["python", lambda point: "python", lambda point: None])
def test_what_is_no_command(given: Any) -> None:
    with pytest.raises(TypeError, match="must be a BootstrapCommand for"):
        plan_starts(PAIR, 2, commands=given)


# -- what is executed ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "program", "words"),
    [
        (Start(ECHO), "echo", ["echo", "hello"]),
        (Start(msgspec.structs.replace(ECHO, arg0="other")), "echo", ["other", "hello"]),
        (
            Start(ECHO, Binding(numactl=("--membind=0",))),
            "numactl",
            ["numactl", "--membind=0", "--", "echo", "hello"],
        ),
    ],
)
def test_the_words_of_a_command(start: Start, program: str, words: list[str]) -> None:
    assert command_line(born(start)) == (program, words)


@pytest.mark.parametrize(("inherits", "inherited"), [(True, {"INHERITED": "yes"}), (False, {})])
def test_the_environment_of_a_command(inherits: bool, inherited: dict[str, str]) -> None:
    spec = born(Start(msgspec.structs.replace(ECHO, inherit_env=inherits)))
    # Who it is, it is told in any case.
    assert spec.environment() == inherited | {"A": "1", "MASTER_PORT": "4711"} | spec.ranks()


def test_an_interpreter_of_another_version_is_refused() -> None:
    check_version((sys.version_info[0], sys.version_info[1]))
    with pytest.raises(SystemExit, match=r"is Python 3\.\d+, but the controller runs Python 3\.99"):
        check_version((3, 99))
