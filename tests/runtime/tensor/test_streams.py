"""Streams: they run beside each other on a rank, and only borrows order them."""

from __future__ import annotations

import threading

import pytest
import torch
import torch.distributed as dist

from meshbook.runtime import devices
from meshbook.runtime.tensor.device_mesh import get_active_stream
from meshbook.runtime.tensor.failures import RemoteException
from meshbook.runtime.tensor.lanes import OpaqueRef
from meshbook.runtime.tensor.remote import call_on_shard_and_fetch, remote
from meshbook.runtime.tensor.streams import MAIN, HandOffs, Stream
from meshbook.runtime.tensor.trees import fetch_shard
from tests.fake_gpus import install_fake, use_gpu
from tests.support import PATIENCE

EVENTS: dict[str, threading.Event] = {}  # the ranks are threads of this process


def value(tree, **dims):
    return fetch_shard(tree, **dims).get(PATIENCE)


def wait_for(name, x):
    assert EVENTS[name].wait(PATIENCE), "the other stream did not run beside this one"
    return x + 0


def set_event(name):
    EVENTS[name].set()


wait_remotely = remote(wait_for, propagate=lambda name, x: x)
use_remotely = remote(lambda: torch.tensor(use_gpu()), propagate=lambda: torch.empty((), dtype=torch.int64))
set_remotely = remote(set_event, propagate=lambda name: None)


@pytest.fixture
def one(make_procs):
    return make_procs(gpus=1)


@pytest.fixture(autouse=True)
def events():
    EVENTS.clear()
    EVENTS.update({name: threading.Event() for name in ("first", "second")})
    yield
    for event in EVENTS.values():
        event.set()


# -- beside each other ----------------------------------------------------------------


@pytest.mark.parametrize("waits", ["main", "other"])
def test_a_stream_runs_while_another_one_waits(one, waits):
    other = Stream("other")
    with one.activate():
        if waits == "main":
            x = wait_remotely("first", torch.ones(2))
            with other.activate():
                set_remotely("first")
        else:
            with other.activate():
                x = wait_remotely("first", torch.ones(2))
            set_remotely("first")
    assert value(x).tolist() == [1, 1]


def test_two_streams_wait_for_each_other_in_turn(one):
    other = Stream("other")
    with one.activate():
        x = wait_remotely("first", torch.ones(2))
        set_remotely("second")
        with other.activate():
            set_remotely("first")
            y = wait_remotely("second", torch.zeros(2))
    assert [each.tolist() for each in value([x, y])] == [[1, 1], [0, 0]]


def test_a_value_of_one_stream_is_fetched_while_another_one_waits(one):
    with one.activate():
        x = wait_remotely("first", torch.ones(2))
        with Stream("other").activate():
            y = torch.ones(2) + 1
    assert value(y).tolist() == [2, 2]
    pending = fetch_shard(x)
    assert not pending.done()
    EVENTS["first"].set()
    assert pending.get(PATIENCE).tolist() == [1, 1]


def test_each_stream_has_a_cuda_stream_of_its_own_from_the_first_use_on(make_procs, monkeypatch):
    gpus = install_fake(monkeypatch)
    devices.OWN_GPU.local_rank = 2
    other = Stream("other")
    with make_procs(gpus=1).activate():
        with other.activate():
            x = torch.ones(2)
        assert value(x).tolist() == [1, 1]
        assert gpus.calls == []
        found = [value(use_remotely())]
        with other.activate():
            found += value([use_remotely(), use_remotely()])
        lent, borrow = MAIN.borrow(x)
        with borrow:
            value(lent + 1)
    assert [each.tolist() for each in found] == [2, 2, 2]
    [(_, thread, stream)] = gpus.named("set_stream")
    assert stream.name == f"of {thread}"
    recorded, waited = gpus.named("record", "stream waits")[:2]
    assert recorded[2].startswith("of ")
    assert waited[2] == "default"
    assert gpus.named("synchronize the device") == []


# -- ordered by borrows ---------------------------------------------------------------


def test_a_borrower_waits_for_the_value(one):
    other, third = Stream("other"), Stream("third")
    with one.activate():
        x = wait_remotely("first", torch.ones(2))
        lent, borrow = other.borrow(x)
        with other.activate(), borrow:
            y = lent * 2
        with third.activate():
            z = torch.ones(2)
    pending = fetch_shard(y)
    assert value(z).tolist() == [1, 1]
    assert not pending.done()
    EVENTS["first"].set()
    assert pending.get(PATIENCE).tolist() == [2, 2]


def test_a_lender_waits_for_the_end_of_the_borrow(one):
    other = Stream("other")
    with one.activate():
        x = torch.ones(2)
        lent, borrow = other.borrow(x)
        with other.activate(), borrow:
            y = wait_remotely("first", lent)
        x.add_(1)
    pending = fetch_shard(x)
    EVENTS["first"].set()
    assert value(y).tolist() == [1, 1]
    assert pending.get(PATIENCE).tolist() == [2, 2]


def test_what_a_borrower_changes_or_fails_to_change_is_seen_by_the_lender(one):
    other = Stream("other")
    with one.activate():
        x, index = torch.ones(2), torch.tensor([5])
        lent, borrow = other.borrow(x, mutable=True)
        with other.activate(), borrow:
            lent.mul_(3)
        assert value(x + 1).tolist() == [4, 4]
        (lent, borrow), (at, reading) = other.borrow(x, mutable=True), other.borrow(index)
        with other.activate(), borrow, reading:
            lent.index_fill_(0, at, 1.0)
        with pytest.raises(RemoteException, match="out of bounds") as caught:
            value(x + 1)
    assert "index_fill_" in caught.value.controller_frames[-1].line
    assert value(index).tolist() == [5]


def test_a_borrowed_value_outlives_the_lent_tensor(one):
    other = Stream("other")
    with one.activate():
        x = wait_remotely("first", torch.ones(2))
        lent, borrow = other.borrow(x)
        del x, borrow
        for _ in range(100):  # so that the deletes are sent
            torch.ones(1)
        EVENTS["first"].set()
        with other.activate():
            assert value(lent + 1).tolist() == [2, 2]


def test_a_borrowed_number_is_fetched_with_others(pair):
    other = Stream("other")
    with pair.activate():
        x = torch.ones(2) * pair.rank_tensor("gpus")
        with other.activate():
            y = torch.ones(2) + pair.rank_tensor("gpus")
    assert [each.tolist() for each in value({"x": x, "y": y}, gpus=1).values()] == [[1, 1], [2, 2]]
    assert y.tolist() == [1, 1]
    assert call_on_shard_and_fetch(torch.neg, y, shard={"gpus": 1}).get(PATIENCE).tolist() == [-2, -2]


# -- between ranks --------------------------------------------------------------------


def sum_over(x, group):
    x = x.clone()
    dist.all_reduce(x, group=group)
    return x


def test_streams_reduce_beside_each_other(pair):
    group = pair.device_mesh.process_group("gpus")
    other, totals = Stream("other"), []
    with pair.activate():
        x = torch.ones(2) + pair.rank_tensor("gpus")
        lent, borrow = other.borrow(x)
        for _ in range(4):
            totals.append(x.reduce("gpus"))
            with other.activate():
                totals.append(lent.reduce("gpus", "stack").sum(0))
                totals.append(remote(sum_over, propagate=lambda x, group: x)(lent, group))
        borrow.drop()
    for total in totals:
        assert value(total, gpus=1).tolist() == [3, 3]


def test_a_copy_goes_to_another_stream(pair, one):
    other = Stream("other")
    mesh = pair.device_mesh
    with pair.activate():
        x = torch.ones(2) + pair.rank_tensor("gpus")
    part = x.slice_mesh(gpus=1)
    there, elsewhere = part.to_mesh(mesh(gpus=0), other), part.to_mesh(one, other)
    x.zero_()
    assert there.stream is other
    assert value(there).tolist() == value(elsewhere).tolist() == [2, 2]
    here = x.to_mesh(mesh, other)
    assert value(here, gpus=1).tolist() == [0, 0]


def test_a_receiver_computes_while_its_other_stream_waits_for_a_copy(pair):
    copies, mesh = Stream("copies"), pair.device_mesh
    with mesh(gpus=0).activate():
        x = wait_remotely("first", torch.ones(2))
    copy = x.to_mesh(mesh(gpus=1), copies)
    with mesh(gpus=1).activate():
        assert value(torch.ones(2) + 1).tolist() == [2, 2]
    EVENTS["first"].set()
    assert value(copy).tolist() == [1, 1]


# -- objects --------------------------------------------------------------------------


def test_an_object_is_used_in_another_stream(one):
    with one.activate():
        held = remote(lambda: OpaqueRef([1.0, 2.0]), propagate=lambda: OpaqueRef())()
        with Stream("other").activate():
            for _ in range(2):
                found = remote(lambda held: torch.tensor(held.value), propagate=lambda held: torch.empty(2))(held)
        assert value(found).tolist() == [1, 2]


def test_a_stream_that_waits_ends_with_its_rank():
    waiting, raised = HandOffs.of("a/0"), []

    def take():
        try:
            waiting.take(1)
        except RuntimeError as error:
            raised.append(str(error))

    threads = [threading.Thread(target=take)]
    threads[0].start()
    HandOffs.close("a/0")
    HandOffs.close("a/0")
    threads[0].join(PATIENCE)
    take()
    assert ["has ended" in text for text in raised] == [True, True]


# -- checks on the controller ---------------------------------------------------------


def test_a_tensor_is_borrowed(pair):
    other = Stream("other")
    with pair.activate():
        x = torch.ones(2)
        with other.activate():
            assert get_active_stream() is other
            with pytest.raises(TypeError, match="wrong stream"):
                x + 1
            borrowed, borrow = other.borrow(x)
            with borrow:
                y = borrowed + 1
                with pytest.raises(TypeError, match="would be mutated"):
                    borrowed.add_(1)
            with pytest.raises(TypeError, match="dropped"):
                borrowed + 1
        assert get_active_stream() is not other
        assert y.stream is other
        assert value(y).tolist() == [2, 2]
        x.add_(1)
    assert value(x).tolist() == [2, 2]


def test_a_lent_tensor_cannot_change(pair):
    with pair.activate():
        x = torch.ones(2)
    _, borrow = Stream("other").borrow(x)
    assert value(x + 1).tolist() == [2, 2]
    with pytest.raises(TypeError, match="would be mutated"):
        x.add_(1)
    with pytest.raises(TypeError, match="would be mutated"):
        x.reduce_("gpus")
    borrow.drop()
    borrow.drop()
    x.add_(1)


def test_a_tensor_lent_for_changes_cannot_be_used(pair):
    with pair.activate():
        x = torch.ones(2)
    borrowed, borrow = Stream("other").borrow(x, mutable=True)
    borrowed.add_(1)
    with pytest.raises(TypeError, match="borrowed"):
        x + 1
    borrow.drop()
    assert value(x).tolist() == [2, 2]
