"""The command line of `python -m meshbook.spmd`, and its words for how a run ended."""

from __future__ import annotations

import signal

import pytest

from meshbook.runtime.errors import ExitReport
from meshbook.runtime.spmd.run_policy import EndRun, RunPolicy
from meshbook.spmd import build_parser, choose_size, ending_of, main, summary_lines


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["train.py"], (None, False, "train.py", [])),
        (["--procs", "4", "train.py", "--lr", "1"], (4, False, "train.py", ["--lr", "1"])),
        # What comes after the script is the script's, whatever it looks like.
        (["train.py", "--procs", "4", "-m", "x"], (None, False, "train.py", ["--procs", "4", "-m", "x"])),
        (["--procs=2", "-m", "package.train", "-m", "x"], (2, True, "package.train", ["-m", "x"])),
        (["-m", "package.train", "-h"], (None, True, "package.train", ["-h"])),
    ],
)
def test_the_command_line(given: list[str], expected: tuple[int | None, bool, str, list[str]]) -> None:
    args = build_parser().parse_args(given)
    assert (args.procs, args.module, args.script, args.args) == expected


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([], "SCRIPT"),
        (["--procs", "0", "train.py"], "an integer of at least 1, not '0'"),
        (["--procs", "many", "train.py"], "an integer of at least 1, not 'many'"),
        (["nowhere.py"], "no such file: nowhere.py"),
        (["--curves", "run.txt", "train.py"], ".parquet or .csv, not 'run.txt'"),
    ],
)
def test_mistakes_on_it(capsys: pytest.CaptureFixture[str], given: list[str], said: str) -> None:
    with pytest.raises(SystemExit) as caught:
        main(given)
    assert caught.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("gpus", "cores", "size", "said"),
    [(2, 8, 2, "--procs 2: one rank per GPU"), (0, 8, 8, "--procs 8: one rank per CPU core")],
)
def test_the_default_number_of_ranks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], gpus: int, cores: int, size: int, said: str
) -> None:
    monkeypatch.setattr("meshbook.spmd.count_gpus", lambda: gpus)
    monkeypatch.setattr("meshbook.spmd.count_cores", lambda: cores)
    assert choose_size() == size
    assert capsys.readouterr().err == f"meshbook.spmd: {said}\n"


@pytest.mark.parametrize(
    ("report", "ending"),
    [
        (ExitReport("spmd.1", 7, 0), EndRun(0)),
        (ExitReport("spmd.1", 7, 0, stopped="its script has ended"), EndRun(0)),
        (ExitReport("spmd.1", 7, 5), EndRun(5, "exit code 5", died=True)),
        (
            ExitReport("spmd.1", 7, -11, ("Fatal Python error", "in step")),
            EndRun(
                1,
                "Segmentation fault(sig=11)\nits last lines on stderr:\n    Fatal Python error\n    in step",
                died=True,
            ),
        ),
        (ExitReport("spmd.1", 7, -9, hint="from outside"), EndRun(1, "Killed(sig=9)\nfrom outside", died=True)),
        (ExitReport("spmd.1", 0, None, hint="fork failed"), EndRun(1, "fork failed", died=True)),
    ],
)
def test_the_end_of_a_process(report: ExitReport, ending: EndRun) -> None:
    assert ending_of(report) == ending


def course_of(*endings: EndRun) -> RunPolicy:
    policy = RunPolicy(len(endings))
    policy.begin()
    for rank, ending in enumerate(endings):
        policy.process_ended(rank, ending, 0.0)
    return policy


BOOM = EndRun(1, "ValueError: boom", "train.py:5 in step")


@pytest.mark.parametrize(
    ("endings", "lines"),
    [
        ([EndRun(0), EndRun(0)], []),
        ([EndRun(0), BOOM], ["rank 1 failed: ValueError: boom (train.py:5 in step)"]),
        ([BOOM, EndRun(3, "exited with code 3"), BOOM], [
            "ranks 0,2 failed: ValueError: boom (train.py:5 in step)",
            "rank 1 failed: exited with code 3",
        ]),
    ],
)  # fmt: skip
def test_what_is_said_at_the_end(endings: list[EndRun], lines: list[str]) -> None:
    assert list(summary_lines(course_of(*endings))) == lines


def test_stopped_ranks_are_named_too() -> None:
    policy = RunPolicy(3)
    policy.begin()
    policy.script_ended(1, BOOM, 0.0)
    policy.actions(1.0)
    for rank in (0, 2):
        policy.process_ended(rank, EndRun(1, "Terminated(sig=15)", died=True), 1.0)
    assert list(summary_lines(policy)) == [
        "rank 1 failed: ValueError: boom (train.py:5 in step)",
        "ranks 0,2 were stopped",
    ]


def test_where_an_interrupt_found_the_ranks() -> None:
    policy = RunPolicy(3)
    policy.begin()
    policy.signalled(signal.SIGINT, 0.0)
    policy.actions(0.0)
    for rank, place in enumerate(["train.py:5", "train.py:7 in step", "train.py:5"]):
        policy.script_ended(rank, EndRun(130, "KeyboardInterrupt", place, interrupted=True), 0.1)
    assert list(summary_lines(policy)) == [
        "ended by SIGINT",
        "ranks 0,2 interrupted at train.py:5",
        "rank 1 interrupted at train.py:7 in step",
    ]
