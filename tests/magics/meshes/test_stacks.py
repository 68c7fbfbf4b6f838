"""Stacks of all ranks as text: what is the same is there once."""

from __future__ import annotations

from meshbook.magics.meshes.stacks import render_stacks, stacks_seen
from meshbook.runtime.cells.outcome import Frame
from meshbook.runtime.cells.thread_stacks import MAIN, ThreadStack
from meshbook.runtime.hosts.observer import Observation, SampledFrame, SampledThread

CELL = Frame("<cell 9>", 14, "<module>", "dist.all_reduce(x)")
ALL_REDUCE = Frame("/lib/torch/distributed/distributed_c10d.py", 2867, "all_reduce", "work.wait()", is_user=False)
REDUCES = ThreadStack(MAIN, (CELL, ALL_REDUCE), "in all_reduce")
IDLE = ThreadStack(MAIN, (), "idle")


def test_identical_stacks_are_shown_once() -> None:
    trainer = ThreadStack("actor trainer", (Frame("/home/me/train.py", 7, "step", "self.load()"),))
    assert render_stacks({0: [REDUCES], 1: [IDLE, trainer], 2: [REDUCES]}).splitlines() == [
        "[0,2] main thread: in all_reduce",
        "    cell 9:14                             dist.all_reduce(x)",
        "    distributed/distributed_c10d.py:2867 in all_reduce  work.wait()",
        "[1] main thread: idle",
        "[1] actor trainer",
        "    me/train.py:7 in step                 self.load()",
    ]


def test_how_long_endpoints_have_run_does_not_distinguish_them() -> None:
    stacks = {rank: [ThreadStack("actor a", (), "in a.slow(), called in cell 3", 61.0 + rank)] for rank in range(2)}
    assert render_stacks(stacks) == "[0-1] actor a: in a.slow(), called in cell 3, for 01:01"


def thread(name: str, *frames: tuple[str, str], owns_gil: bool = False) -> SampledThread:
    return SampledThread(name, owns_gil, tuple(SampledFrame(function, file, 3) for file, function in frames))


def test_a_rank_that_does_not_answer_is_seen_from_outside() -> None:
    main = thread("MainThread", ("<cell 9>", "step"), ("<cell 9>", "<module>"), ("/lib/x.py", "run"), owns_gil=True)
    actor = thread("meshbook actor trainer", ("/home/me/train.py", "load"), ("<frozen x>", "_bootstrap"))
    others = [thread("ZMQbg/IO/0"), thread("meshbook receiver", ("<frozen x>", "_bootstrap"))]
    stacks = list(stacks_seen(Observation(4711, "R", threads=(main, actor, *others))))
    assert [(stack.thread, stack.remark, len(stack.frames)) for stack in stacks] == [
        (MAIN, "does not answer: holds the GIL in C (computes)", 3),
        ("actor trainer", "", 1),
    ]


def test_without_py_spy_the_hint_names_it() -> None:
    (stack,) = stacks_seen(Observation(4711, "T", threads=None))
    assert stack.remark == ("does not answer: stopped (SIGSTOP) (install meshbook[debug] to see its stack)")
    assert [stack.remark for stack in stacks_seen(None)] == ["does not answer"]
