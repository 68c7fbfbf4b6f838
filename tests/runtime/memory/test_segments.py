"""Shared memory for messages: which segment is taken, its readers, and when it is used again."""

from __future__ import annotations

import functools
import gc
import os
import resource
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from meshbook.runtime.memory.layout import SegmentReference, starts_of
from meshbook.runtime.memory.mappings import Mappings
from meshbook.runtime.memory.process_identity import ProcessMark, own_mark
from meshbook.runtime.memory.segments import (
    IDLE_BYTES,
    IDLE_SECONDS,
    SegmentPool,
    fitting,
    is_too_near,
    most_segments,
    size_class,
    surplus,
)
from tests.support import PATIENCE, StatementInterrupts

MIB = 1 << 20
PARTS = [b"first", bytearray(range(200)) * 7, memoryview(b"third" * 1000)]
LENGTHS = [memoryview(part).nbytes for part in PARTS]


@pytest.mark.parametrize(
    ("size", "room"), [(1, MIB), (MIB, MIB), (MIB + 1, 2 * MIB), (65 * MIB, 128 * MIB), (1 << 40, 1 << 40)]
)
def test_segments_have_few_sizes(size, room):
    assert size_class(size) == room


def idle(*rooms_and_times: tuple[int, float]) -> list[Any]:
    return [SimpleNamespace(room=room, idle_since=since) for room, since in rooms_and_times]


def test_the_warmest_that_fits_is_taken():
    old, new, large = idle((MIB, 1.0), (MIB, 2.0), (2 * MIB, 3.0))
    assert fitting([old, new, large], 1000) is new
    assert fitting([old, new, large], 4 * MIB) is None


def test_long_idle_segments_are_freed():
    old, new = idle((MIB, 0.0), (MIB, 1.0))
    assert surplus([old, new], IDLE_SECONDS) == [old]


def test_the_oldest_idle_segments_are_freed_first():
    half = IDLE_BYTES // 2
    old, newer, newest = idle((half, 1.0), (half, 2.0), (half, 3.0))
    assert surplus([old, newer, newest], 3.0) == [old]
    assert surplus(idle((4 * IDLE_BYTES, 0.0)), 0.0)


def test_others_have_room_for_their_descriptors():
    assert most_segments(200) == 50
    assert [is_too_near(number, 200) for number in (10, 149, 150)] == [False, False, True]
    assert [is_too_near(number, 1024) for number in (959, 960)] == [False, True]


# -- one message --------------------------------------------------------------------


@pytest.fixture
def pool() -> Iterator[SegmentPool]:
    pool = SegmentPool()
    yield pool
    gc.collect()  # a failed test's views
    pool.close(0)


@pytest.fixture
def mappings() -> Mappings:
    return Mappings()


def lend(pool: SegmentPool, parts: list[Any] = PARTS, readers: int = 1) -> list[SegmentReference]:
    segment = pool.take(parts, starts_of([memoryview(part).nbytes for part in parts])[-1], pool)
    lent = [pool.lend(segment, own_mark(), is_shared=readers == 1) for _ in range(readers)]
    pool.done(segment)
    return [reference for reference in lent if reference is not None]


def mapped_segments() -> int:
    return Path("/proc/self/maps").read_text().count("memfd:meshbook")


def test_parts_arrive_and_may_be_written_to(pool, mappings):
    (reference,) = lend(pool)
    views = mappings.open(reference, LENGTHS)
    assert [bytes(view) for view in views] == [bytes(part) for part in PARTS]
    views[1][:3] = b"abc"
    assert bytes(views[1][:3]) == b"abc"


def test_what_the_sender_changes_afterwards_does_not_show(pool, mappings):
    data = bytearray(b"before")
    (reference,) = lend(pool, [data])
    data[:] = b"after!"
    assert bytes(mappings.open(reference, [6])[0]) == b"before"


def test_what_one_of_several_writes_the_others_do_not_see(pool, mappings):
    one, other = lend(pool, [bytearray(100)], readers=2)
    (view,) = mappings.open(one, [100])
    view[:] = b"x" * 100
    assert bytes(mappings.open(other, [100])[0]) == bytes(100)


def test_a_segment_is_used_again_when_the_last_view_is_gone(pool, mappings):
    (first,) = lend(pool)
    views = mappings.open(first, LENGTHS)
    (second,) = lend(pool)
    kept = views.pop()
    del views
    (third,) = lend(pool)
    del kept
    (fourth,) = lend(pool)
    assert len({first.token, second.token, third.token}) == 3
    assert fourth.token == first.token


def test_a_segment_of_several_is_used_again_when_all_have_read_it(pool, mappings):
    one, other = lend(pool, readers=2)
    mappings.open(one, LENGTHS)
    assert lend(pool)[0].token != one.token
    mappings.open(other, LENGTHS)
    assert lend(pool)[0].token == one.token


@pytest.mark.process
def test_an_ended_process_reads_nothing_any_more(pool):
    told, telling = os.pipe()
    child = os.fork()
    if not child:
        os.write(telling, msgspec.json.encode(own_mark()))
        os._exit(0)
    mark = msgspec.json.Decoder(ProcessMark).decode(os.read(told, 1000))
    segment = pool.take(PARTS, 10_000, pool)
    lent = pool.lend(segment, mark, is_shared=True)
    pool.done(segment)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)  # dead, and not reaped
    pool.trim()
    os.waitpid(child, 0)
    os.close(told)
    os.close(telling)
    assert lend(pool)[0].token == lent.token


def test_a_reader_taken_for_ended_does_not_release_its_successors_word(pool, mappings):
    segment = pool.take(PARTS, sum(LENGTHS), pool)
    reference = pool.lend(segment, msgspec.structs.replace(own_mark(), started=1), is_shared=True)
    pool.done(segment)
    views = mappings.open(msgspec.structs.replace(reference, reader=own_mark()), LENGTHS)
    pool.trim()
    (second,) = lend(pool)
    del views
    (third,) = lend(pool)
    assert second.token == reference.token
    assert third.token != second.token


def test_a_message_is_opened_once(pool, mappings):
    (reference,) = lend(pool)
    mappings.open(reference, LENGTHS)
    with pytest.raises(OSError, match="withdrawn it"):
        mappings.open(reference, LENGTHS)


def test_a_descriptor_that_is_another_segment_by_now_is_refused(pool, mappings):
    (reference,) = lend(pool)
    with pytest.raises(OSError, match="another segment has replaced it"):
        mappings.open(msgspec.structs.replace(reference, token=reference.token + 2), LENGTHS)


def test_a_message_for_another_process_is_refused(pool, mappings):
    (reference,) = lend(pool)
    stranger = ProcessMark(1, 1, "another")
    with pytest.raises(OSError, match="to an earlier process"):
        mappings.open(msgspec.structs.replace(reference, reader=stranger), LENGTHS)


def test_unread_parts_can_be_read_back(pool, mappings):
    (reference,) = lend(pool)
    assert [bytes(part) for part in pool.parts_of(reference, LENGTHS)] == [bytes(part) for part in PARTS]
    with pytest.raises(OSError, match="withdrawn it"):
        mappings.open(reference, LENGTHS)


def test_without_a_descriptor_it_is_read_over(pool, mappings):
    (reference,) = lend(pool)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, before[1]))
    try:
        views = mappings.open(reference, LENGTHS)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert [bytes(view) for view in views] == [bytes(part) for part in PARTS]
    assert lend(pool)[0].token == reference.token  # given back


def test_without_descriptors_there_are_no_segments(pool):
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + 2, before[1]))
    try:
        with pytest.raises(OSError, match="too few descriptors are left"):
            lend(pool)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.process
def test_a_child_has_views_of_its_own(pool, mappings):
    (reference,) = lend(pool, [bytearray(100)])
    views = mappings.open(reference, [100])
    child = os.fork()
    if not child:
        views[0][:] = b"x" * 100
        os._exit(bytes(views[0]) != b"x" * 100)
    _, status = os.waitpid(child, 0)
    assert status == 0
    assert bytes(views[0]) == bytes(100)
    views.clear()
    assert lend(pool)[0].token != reference.token  # a child may look at it for ever


def test_a_closed_pool_leaves_what_is_read(pool, mappings):
    (reference,) = lend(pool)
    views = mappings.open(reference, LENGTHS)
    pool.close(0)
    assert [bytes(view) for view in views] == [bytes(part) for part in PARTS]
    with pytest.raises(OSError, match="closed"):
        lend(pool)


def test_a_pool_that_closes_waits_for_what_was_sent_to_be_opened(pool, mappings):
    (reference,) = lend(pool)
    closing = threading.Thread(target=pool.close, args=(30.0,))
    closing.start()
    views = mappings.open(reference, LENGTHS)
    closing.join()
    assert [bytes(view) for view in views] == [bytes(part) for part in PARTS]


def test_users_of_a_segment_of_a_closed_pool_may_finish(pool):
    segment = pool.take(PARTS, starts_of(LENGTHS)[-1], pool)
    pool.close(0)
    pool.lend(segment, own_mark(), is_shared=True)
    pool.done(segment)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(segment.descriptor)


def test_closed_mappings_go_with_the_last_view(pool, mappings):
    first, second = lend(pool)[0], lend(pool)[0]
    before = mapped_segments()
    views = mappings.open(first, LENGTHS)
    mappings.open(second, LENGTHS)
    assert mapped_segments() == before + 2
    mappings.close()
    assert [bytes(view) for view in views] == [bytes(part) for part in PARTS]
    views.clear()
    assert mapped_segments() == before
    with pytest.raises(OSError, match="shut down"):
        mappings.open(lend(pool)[0], LENGTHS)


def test_what_ctrl_c_kept_from_being_given_back_is_so_later(pool, mappings, monkeypatch):
    def interrupt(*arguments: Any) -> None:
        raise KeyboardInterrupt

    (reference,) = lend(pool)
    views = mappings.open(reference, LENGTHS)
    with monkeypatch.context() as patch:
        patch.setattr("meshbook.runtime.memory.mappings._Mapping.give_back", interrupt)
        patch.setattr("sys.unraisablehook", lambda unraisable: None)
        views.clear()
    assert lend(pool)[0].token != reference.token
    mappings.trim()
    assert lend(pool)[0].token == reference.token


def test_unused_shared_memory_is_released(pool, mappings, monkeypatch):
    (reference,) = lend(pool)
    views = mappings.open(reference, LENGTHS)
    monkeypatch.setattr("meshbook.runtime.memory.mappings.IDLE_SECONDS", 0.0)
    monkeypatch.setattr("meshbook.runtime.memory.segments.IDLE_SECONDS", 0.0)
    assert pool.trim()
    assert mappings.trim()
    views.clear()
    assert not pool.trim()
    assert not mappings.trim()
    assert lend(pool)[0].token != reference.token


def test_a_ctrl_c_at_any_statement_leaves_the_pool_usable() -> None:
    interrupts = StatementInterrupts(parts=["runtime/memory/segments.py"])
    while interrupts.are_left:
        pool = SegmentPool()
        interrupts.run(functools.partial(lend, pool))
        trimming = threading.Thread(target=pool.trim, daemon=True)
        trimming.start()
        trimming.join(PATIENCE)
        assert not trimming.is_alive(), f"the pool is locked after an interrupt at {interrupts.where}"
        pool.close(0)
