"""Profiles of several ranks: the summary, the differences between ranks, and the files for viewers."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from meshbook.magics.tracing.profile import LEAST, ProfileLine, ProfileSummary, SampleProfile, TorchProfile, save
from meshbook.runtime.cells.operator_profiles import OperatorProfile, OperatorTotals
from meshbook.runtime.telemetry.samples import MAIN, CodeLine, RankSamples, ThreadSamples, from_speedscope, gather

CELL = CodeLine("<module>", "<cell 7>", 3)
LOAD = CodeLine("load", "<cell 2>", 9)
LIBRARY = CodeLine("all_reduce", "/usr/lib/python3/site-packages/torch/distributed/distributed_c10d.py", 88)
RUNTIME = CodeLine("run", "/usr/lib/python3/threading.py", 1)


def is_user(filename: str) -> bool:
    return filename.startswith("<cell") or filename == "/home/me/train.py"


def samples(*seen: tuple[tuple[CodeLine, ...], float], thread: str = MAIN) -> ThreadSamples:
    return gather(thread, seen, is_user)


def profile_of(*ranks: ThreadSamples) -> SampleProfile:
    return SampleProfile("profile of cell 7", {rank: RankSamples("py-spy", (each,)) for rank, each in enumerate(ranks)})


# --- samples ---


@pytest.mark.parametrize(
    ("stack", "kept"),
    [
        ((RUNTIME, CELL, LOAD), (CELL, LOAD)),
        ((RUNTIME, CodeLine("main", "/home/me/train.py", 1), CELL, LIBRARY), (CELL, LIBRARY)),
        (
            (RUNTIME, CodeLine("step", "/home/me/train.py", 1), RUNTIME),
            (CodeLine("step", "/home/me/train.py", 1), RUNTIME),
        ),
        ((RUNTIME, RUNTIME), ()),
        ((CodeLine("thread (1): x", "", 0), RUNTIME), ()),
    ],
)
def test_a_stack_begins_at_user_code(stack: tuple[CodeLine, ...], kept: tuple[CodeLine, ...]) -> None:
    mixed = samples((stack, 1.0), ((CELL,), 1.0))
    assert mixed.stacks[mixed.samples[0]] == kept
    assert mixed.length == (2.0 if kept else 1.0)


def test_a_thread_without_user_code_has_no_samples() -> None:
    assert samples(((RUNTIME,), 1.0)).samples == ()


def test_output_of_py_spy_is_parsed() -> None:
    content = {
        "shared": {"frames": [{"name": "thread (7): MainThread", "file": "", "line": 0}, _frame(CELL), _frame(LOAD)]},
        "profiles": [
            {"name": 'Thread 7 "MainThread"', "samples": [[0, 1, 2], [0, 1], [0]], "weights": [0.01, 0.01, 0.01]},
            {"name": 'Thread 8 "meshbook receiver"', "samples": [[0]], "weights": [0.01]},
        ],
    }
    (main,) = from_speedscope(json.dumps(content).encode(), is_user).threads
    assert (main.thread, [main.stacks[at] for at in main.samples]) == (MAIN, [(CELL, LOAD), (CELL,), ()])
    with pytest.raises(msgspec.DecodeError):
        from_speedscope(b"", is_user)


def _frame(line: CodeLine) -> dict[str, Any]:
    return {"name": line.function, "file": line.filename, "line": line.line, "col": None}


# --- the summary ---


def test_the_summary_has_times_and_differences() -> None:
    quick, slow = ((CELL, LIBRARY), 3.0), ((CELL, LOAD), 3.0)
    text = profile_of(samples(quick, ((CELL, LOAD), 1.0)), samples(slow, ((CELL, LIBRARY), 1.0))).summary.text()
    assert text.splitlines()[0] == "profile of cell 7"
    assert text.splitlines()[1].split() == ["own", "time", "total", "lowest", "highest"]
    rows = {" ".join(line.split()) for line in text.splitlines()}
    assert "50% 50% load (cell 2:9) 1.00 s (rank 0) 3.00 s (rank 1)" in rows
    assert "50% 50% all_reduce, from cell 7:3 1.00 s (rank 1) 3.00 s (rank 0)" in rows
    assert "ranks differ in load (cell 2:9): 3.00 s on rank 1, 1.00 s on rank 0" in rows


def test_a_single_rank_has_no_differences() -> None:
    text = profile_of(samples(((CELL, LOAD), 1.0))).summary.text()
    assert "differ" not in text
    assert "lowest" not in text


def test_short_entries_are_left_out() -> None:
    lines = tuple(ProfileLine(f"f{at}", {0: at * LEAST / 2}, {}) for at in range(4))
    assert [row[1] for row in ProfileSummary("", {0: 1.0}, lines).rows()[1:]] == ["f3", "f2"]


def test_entries_are_in_the_order_of_the_share_they_show() -> None:
    lines = [ProfileLine(name, dict(enumerate(own)), {}) for name, *own in (("a", 3, 0), ("b", 2, 2), ("c", 2, 2))]
    rows = ProfileSummary("", {0: 7.0, 1: 4.0}, tuple(reversed(lines))).rows()[1:]
    assert [row[:2] for row in rows] == [("39%", "b"), ("39%", "c"), ("21%", "a")]


def test_names_are_escaped() -> None:
    page = profile_of(samples(((CodeLine("<lambda>", "<cell 7>", 1),), 1.0))).summary.html()
    assert "&lt;lambda&gt;" in page
    assert "<lambda>" not in page


# --- the files ---


@pytest.mark.parametrize("name", ["profile.json", "profile.json.gz"])
def test_speedscope_has_a_lane_for_each_rank(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    profile = profile_of(samples(((CELL, LOAD), 1.0), ((RUNTIME,), 0.5)), samples(((CELL,), 2.0)))
    assert save(profile, path) == path.stat().st_size
    content = json.loads(gzip.decompress(path.read_bytes()) if name.endswith(".gz") else path.read_text())
    assert content["$schema"].startswith("https://www.speedscope.app/")
    assert [(each["name"], each["endValue"]) for each in content["profiles"]] == [("rank 0", 1.5), ("rank 1", 2.0)]
    for each in content["profiles"]:
        assert len(each["samples"]) == len(each["weights"])
        assert all(at < len(content["shared"]["frames"]) for sample in each["samples"] for at in sample)
    (first, idle), frames = content["profiles"][0]["samples"], content["shared"]["frames"]
    assert [frames[at]["name"] for at in first] == ["<module>", "load"]
    assert idle == []


def operators(pid: int, base: int) -> OperatorProfile:
    events = [
        {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": "python"}},
        {"ph": "X", "name": "aten::mm", "pid": pid, "tid": pid, "ts": 5.0, "dur": 2.0},
        {"ph": "s", "name": "flow", "id": 1, "pid": pid, "tid": pid, "ts": 5.0},
    ]
    trace = json.dumps({"traceEvents": events, "baseTimeNanoseconds": base}).encode()
    return OperatorProfile(
        1.0, (OperatorTotals("aten::mm", 3, 2.0, 0.0), OperatorTotals("aten::add", 1, 1.0, 0.0)), gzip.compress(trace)
    )


def test_torch_traces_are_merged_with_a_process_for_each_rank() -> None:
    content = TorchProfile("", {0: operators(7, 1_000), 1: operators(7, 9_000)}).content()
    slices = [event for event in content["traceEvents"] if event["ph"] == "X"]
    assert [event["ts"] for event in slices] == [0, 8]  # microseconds
    names = {each["pid"]: each["args"]["name"] for each in content["traceEvents"] if each["name"] == "process_name"}
    assert [names[event["pid"]] for event in slices] == ["rank 0: python", "rank 1: python"]
    assert len({event["id"] for event in content["traceEvents"] if event["ph"] == "s"}) == 2


def test_operators_are_listed_by_their_share() -> None:
    text = TorchProfile("profile of cell 7", {0: operators(7, 0)}).summary.text()
    assert text.splitlines()[0] == "profile of cell 7 (time on the CPU)"
    assert "67%       aten::mm" in text
