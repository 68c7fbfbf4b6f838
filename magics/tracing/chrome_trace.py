"""A trace as a file in the Chrome trace format, for ui.perfetto.dev and chrome://tracing. Pure except for writing.

The file has a process for the controller and for each rank, with a row for each thread. A call is a slice where it is
sent, with an arrow to the endpoint that it runs. Two bars beside the threads show it in flight at the caller and queued
at the callee.
"""

from __future__ import annotations

import gzip
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from meshbook.magics.tracing.collect import ReplyTimes, Trace, TracedProcess, cell_of
from meshbook.runtime.actor.context import name_of
from meshbook.runtime.telemetry.spans import Span

MOST_SPANS = 300_000  # in a file; of more, the shortest are left out
MOST_ROWS = 100  # of a thread, for messages that overlap on a loop; viewers truncate what does not fit
Event = dict[str, Any]
Row = tuple[int, int]  # (thread, layer within it)


def write_trace(trace: Trace, path: Path) -> int:
    """Write the file, compressed if its name ends in `.gz`; return its size in bytes. Raises OSError if that fails."""
    data = msgspec.json.encode(make_chrome_trace(trace))
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
    return path.stat().st_size


def make_chrome_trace(trace: Trace) -> dict[str, Any]:
    """Return the content of the file."""
    kept, left_out = _limit_spans(trace)
    about = {
        "cells": list(trace.cells),
        "begin_unix_ns": trace.window.start + trace.epoch,
        "clock_error_ns": trace.clock_error,
        "silent": list(trace.silent),
        "spans_left_out": left_out,
    }
    return {"traceEvents": list(_events(trace, kept)), "displayTimeUnit": "ms", "otherData": about}


def _limit_spans(trace: Trace) -> tuple[dict[str, tuple[Span, ...]], int]:
    """Return the spans of each process, and the number of those left out."""
    spans = {each.node: tuple(filter(trace.window.has, each.recording.spans)) for each in trace.processes}
    if (count := sum(map(len, spans.values()))) <= MOST_SPANS:
        return spans, 0
    lengths = sorted((span.end - span.start for own in spans.values() for span in own), reverse=True)
    least = lengths[MOST_SPANS - 1]
    kept = {node: tuple(span for span in own if span.end - span.start > least) for node, own in spans.items()}
    return kept, count - sum(map(len, kept.values()))


def _events(trace: Trace, spans: Mapping[str, Sequence[Span]]) -> Iterator[Event]:
    serial = itertools.count(1)
    # The execution of each call, by calling node, number and actor.
    every_span = (span for process in trace.processes for span in spans[process.node])
    executions = {span.link: span for span in every_span if span.kind in ("run", "cell") and span.link}
    for pid, process in enumerate(trace.processes, 1):
        # Waits without a thread were added for the controller; the bars of its calls show them.
        rows = lay_out(span for span in spans[process.node] if span.kind != "wait" or span.thread)
        yield from _name_events(process, pid, rows)
        for row, own in rows.items():
            for span in own:
                yield from _slice_events(span, process, pid, _tid(row), trace, executions)
        yield from _in_flight_events(process, spans[process.node], pid, trace, serial)
        yield from _queued_events(process, spans[process.node], pid, trace, serial)


def lay_out(spans: Iterable[Span]) -> dict[Row, list[Span]]:
    """Assign spans to rows in which they are nested or disjoint, as the format requires; overlaps get more rows."""
    rows: dict[Row, list[Span]] = {}
    within: dict[Row, list[int]] = {}  # the ends of the spans that may enclose a later one
    for span in sorted(spans, key=lambda span: (span.start, -span.end)):
        for layer in range(MOST_ROWS):
            row = span.thread, layer
            ends = within.setdefault(row, [])
            while ends and ends[-1] <= span.start:
                ends.pop()
            if not ends or ends[-1] >= span.end or layer == MOST_ROWS - 1:
                ends.append(span.end)
                rows.setdefault(row, []).append(span)
                break
    return rows


def _tid(row: Row) -> int:
    # Thread ids are addresses, which viewers truncate to 32 bits.
    thread, layer = row
    return (hash((thread, layer)) & 0x3FFFFFFF) + 1


def _name_events(process: TracedProcess, pid: int, rows: Mapping[Row, object]) -> Iterator[Event]:
    yield {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": process.label}}
    yield {"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": pid}}
    for (thread, layer), index in zip(sorted(rows), itertools.count(), strict=False):
        known = "cells" if not thread else process.recording.threads.get(thread, f"thread {thread}")
        name = known.removeprefix("meshbook ") + (f" ({layer + 1})" if layer else "")
        is_main = known in ("MainThread", "cells")
        yield _meta("thread_name", pid, _tid((thread, layer)), name=name.replace("MainThread", "main thread"))
        yield _meta("thread_sort_index", pid, _tid((thread, layer)), sort_index=index - 1000 * is_main)


def _meta(what: str, pid: int, tid: int, **args: Any) -> Event:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": args}


def name_span(span: Span) -> str:
    """Return the label of a span: `cell 7`, `trainer.step`, `all_reduce`."""
    match span.kind:
        case "cell":
            return f"cell {cell_of(span) or span.name}"
        case "run":
            return f"{name_of(span.link[2])}.{span.name}"
        case "call":
            return f"call {name_of(span.link[2])}.{span.name}"
        case "wait":
            return "wait for a reply"
    return span.name


def _slice_events(
    span: Span, process: TracedProcess, pid: int, tid: int, trace: Trace, executions: Mapping[tuple[Any, ...], Span]
) -> Iterator[Event]:
    number = span.origin.partition(".")[0]
    args: dict[str, Any] = {"cell": int(number)} if number.isdecimal() else {}
    if span.kind == "collective" and span.link and span.link[0]:
        args["group"] = span.link[0]
    if span.is_open:
        args["open"] = True
    start = _time(span.start, trace)
    place = {"pid": pid, "tid": tid}
    yield {
        "ph": "X",
        "name": name_span(span),
        "cat": span.kind,
        "ts": start,
        "dur": (span.end - span.start) / 1000,
        **place,
        "args": args,
    }
    if span.kind == "call":
        first, last, actor = span.link
        for called in range(first, last + 1) if first else ():
            if (process.node, called, actor) in executions:
                yield {"ph": "s", "name": "call", "cat": "call", "id": f"{process.node}:{called}", "ts": start, **place}
    elif span.kind in ("run", "cell") and span.link and span.link[1]:
        flow = f"{span.link[0]}:{span.link[1]}"
        yield {"ph": "f", "bp": "e", "name": "call", "cat": "call", "id": flow, "ts": start, **place}


def _in_flight_events(
    process: TracedProcess, spans: Sequence[Span], pid: int, trace: Trace, serial: Iterator[int]
) -> Iterator[Event]:
    answers = ReplyTimes(process.recording)
    for call in spans:
        if call.kind == "call" and call.link[0]:
            name = f"{name_of(call.link[2])}.{call.name} in flight"
            end = min(answers.end_of(call), trace.window.end)
            yield from _bar_events(name, "in flight", call.start, max(call.end, end), pid, trace, serial)


def _queued_events(
    process: TracedProcess, spans: Sequence[Span], pid: int, trace: Trace, serial: Iterator[int]
) -> Iterator[Event]:
    begun = {span.link[:2]: span for span in spans if span.kind in ("run", "cell") and span.link}
    for mark in process.recording.marks:
        span = begun.get((mark.node, mark.call))
        if span is not None and mark.node and mark.call and mark.time < span.start:
            name = f"{name_of(span.link[2])}.{span.name} queued"
            yield from _bar_events(name, "queued", mark.time, span.start, pid, trace, serial)


def _bar_events(
    name: str, category: str, start: int, end: int, pid: int, trace: Trace, serial: Iterator[int]
) -> Iterator[Event]:
    number = next(serial)
    for phase, at in (("b", start), ("e", end)):
        time = _time(at, trace)
        yield {"ph": phase, "name": name, "cat": category, "id": number, "pid": pid, "tid": 0, "ts": time}


def _time(at: int, trace: Trace) -> float:
    """Return microseconds since the start of the trace."""
    return (at - trace.window.start) / 1000
