"""Errors: at the line, if the shapes tell; else at the fetch, with the line of the controller."""

from __future__ import annotations

import threading
import time

import pytest
import torch

from meshbook.magics.shell.cell_waits import format_waits
from meshbook.runtime.actor.future import Future
from meshbook.runtime.mesh.actors import current_node
from meshbook.runtime.mesh.host_ownership import when_ended
from meshbook.runtime.mesh.tensors import heal_mesh
from meshbook.runtime.node.call_table import ask_places
from meshbook.runtime.tensor.failures import HEADLINE, DeviceMeshError, RemoteException
from meshbook.runtime.tensor.recordings import coalescing
from meshbook.runtime.tensor.recordings import compile as record
from meshbook.runtime.tensor.remote import call_on_shard_and_fetch, remote
from meshbook.runtime.tensor.streams import Stream
from meshbook.runtime.tensor.trees import fetch_shard
from tests.support import PATIENCE, StatementInterrupts


def value(tree, **dims):
    return fetch_shard(tree, **dims).get(PATIENCE)


def out_of_range(procs, size=3):
    """Return a tensor whose computation fails on the ranks: metadata do not tell the values of indices."""
    with procs.activate():
        return torch.zeros(size)[torch.tensor([5])]


def test_shapes_that_do_not_fit_raise_at_once(pair):
    with pair.activate():
        x, y = torch.zeros(2, 3), torch.zeros(2, 3)
        with pytest.raises(RuntimeError, match="reduction dim"):
            x @ y


def test_a_failure_is_raised_at_the_fetch_with_its_line(pair):
    x = out_of_range(pair)
    y = x + 1
    with pytest.raises(RemoteException, match="out of bounds") as caught:
        value(y, gpus=1)
    assert caught.value.rank == 1
    (frame,) = caught.value.controller_frames
    assert (frame.filename, frame.name) == (__file__, "out_of_range")
    assert "IndexError" in caught.value.worker_error_string
    assert "out_of_range" in str(caught.value)


def test_other_tensors_stay_usable(pair):
    with pair.activate():
        good = torch.ones(2)
    bad = out_of_range(pair)
    with pytest.raises(RemoteException):
        value([good, bad])
    assert value(good + 1).tolist() == [2, 2]


def test_the_first_failure_is_raised(pair):
    first = out_of_range(pair, 3)
    second = out_of_range(pair, 4)
    with pytest.raises(RemoteException, match="size 3"):
        value(first + second)


def test_a_value_that_was_to_change_has_failed(pair):
    with pair.activate():
        x = torch.zeros(3)
    x.add_(out_of_range(pair))
    with pytest.raises(RemoteException, match="out of bounds"):
        value(x)


def test_the_line_is_known_after_the_acknowledgement(pair):
    x = out_of_range(pair)
    pair.device_mesh.engine.wait()
    with pytest.raises(RemoteException) as caught:
        value(x)
    assert caught.value.controller_frames[0].name == "out_of_range"


def test_a_question_about_a_failed_value_raises(pair):
    with pytest.raises(RemoteException, match="out of bounds"):
        out_of_range(pair).nonzero()


# -- writes that fail -----------------------------------------------------------------

WRITES = {
    "the tensor": lambda x, bad: x.index_fill_(0, bad, 1.0),
    "a row": lambda x, bad: x[0].index_fill_(0, bad, 1.0),
    "a view of a view": lambda x, bad: x.t()[1:].view_as(x.t()[1:])[0].index_fill_(0, bad, 1.0),
    "a view with an index": lambda x, bad: x.view(-1).__setitem__(bad, 1.0),
    "a part before the error": lambda x, bad: x.view(-1).index_put_((torch.cat([bad - 98, bad]),), x[0, 0] + 7),
    "a result that failed": lambda x, bad: x.copy_(x.view(-1)[bad]),
    "a result whose check failed": lambda x, bad: x[0].copy_(torch.linalg.inv(x[:3] * 0)[0]),
    "several tensors": lambda x, bad: torch._foreach_add_([x[1], x[2]], [x[3], x.view(-1)[bad]]),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_write_that_fails_is_raised_for_all_that_shares_its_memory(pair, write):
    local = torch.arange(12.0).view(4, 3)
    with pytest.raises((IndexError, RuntimeError)):
        write(local, torch.tensor([99]))
    mesh = pair.device_mesh
    x, bad = mesh.constant(torch.arange(12.0).view(4, 3)), mesh.constant(torch.tensor([99]))
    row, column, other = x[0], x[:, 1], x.clone()
    write(x, bad)
    late = x[3]  # views of a failed tensor fail with it
    x.add_(1)  # has no effect: in one process it does not run
    for each in (x, row, column, late):
        write(x, bad)
        with pytest.raises(RemoteException) as caught:
            value(each, gpus=1)
        assert caught.value.controller_frames[0].filename == __file__
        assert torch.equal(value(x), local)
        assert torch.equal(value(row), local[0])
        assert torch.equal(value(column, gpus=1), local[:, 1])
    assert torch.equal(value(late), local[3])
    row.zero_()
    assert value(x)[0].tolist() == [0, 0, 0]
    assert torch.equal(value(other), torch.arange(12.0).view(4, 3))


def test_a_change_of_shape_fails_with_its_tensor(pair):
    x = pair.device_mesh.constant(torch.zeros(2, 3))
    x.add_(out_of_range(pair))
    x.t_()
    with pytest.raises(RemoteException, match="out of bounds"):
        value(x)
    assert value(x).tolist() == [[0, 0]] * 3


def test_a_reduction_into_a_tensor_that_fails_keeps_it(pair):
    x = pair.device_mesh.constant(torch.ones(3))
    out_of_range(pair).sum().expand(3).reduce("gpus", out=x)
    with pytest.raises(RemoteException, match="out of bounds"):
        value(x[1])
    assert value(x).tolist() == [1, 1, 1]


def test_a_write_that_fails_in_a_recording_is_raised_outside(pair):
    x = pair.device_mesh.constant(torch.arange(3.0))
    write = record(lambda index: x[:2].index_fill_(0, index, 9.0))
    with pair.activate():
        good, bad = torch.tensor([1]), torch.tensor([7])
        write(good)
        result = write(bad)
    with pytest.raises(RemoteException):
        value(x)
    assert value(x).tolist() == [0, 9, 2]
    assert value(result).tolist() == [0, 9]


def test_a_borrower_that_fails_to_write_gives_the_tensor_back(pair):
    x, bad = (pair.device_mesh.constant(each) for each in (torch.arange(3.0), torch.tensor([7])))
    stream = Stream("side")
    bad_there, index_borrow = stream.borrow(bad)
    borrowed, borrow = stream.borrow(x, mutable=True)
    borrowed.index_fill_(0, bad_there, 1.0)
    borrow.drop()
    index_borrow.drop()
    with pytest.raises(RemoteException):
        value(x)
    assert value(x).tolist() == [0, 1, 2]


# -- checks: operations without a result ----------------------------------------------


@pytest.mark.parametrize("function", [torch.linalg.inv, torch.linalg.cholesky, lambda x: torch.linalg.solve(x, x)])
def test_a_check_of_a_result_fails_the_result(pair, function):
    mesh = pair.device_mesh
    with pair.activate():
        good = torch.ones(2)
    result = function(mesh.constant(-torch.ones(3, 3)))
    later = result * 2
    for each in (later, result):
        with pytest.raises(RemoteException, match="linalg") as caught:
            value(each, gpus=1)
        assert caught.value.controller_frames[0].filename == __file__
        assert value(good, gpus=1).tolist() == [1, 1]


def assert_on(mesh, *ranks):
    chosen = sum(mesh.rank_tensor("gpus") == rank for rank in ranks)
    torch._assert_async(chosen == 0, "the assertion")


@pytest.mark.parametrize("ranks", [(0, 1), (1,)])
def test_the_next_fetch_raises_an_assertion_once(pair, ranks):
    mesh = pair.device_mesh
    good = mesh.constant(torch.ones(2))
    assert_on(mesh, *ranks)
    assert_on(mesh, *ranks)  # in one process it does not run
    with pytest.raises(RemoteException, match="the assertion") as caught:
        value(good, gpus=1)
    assert (caught.value.rank, caught.value.controller_frames[0].name) == (1, "assert_on")
    for rank in range(2):
        assert value(good, gpus=rank).tolist() == [1, 1]


def test_a_fetch_of_another_rank_raises_an_assertion_that_is_known(pair):
    mesh = pair.device_mesh
    good = mesh.constant(torch.ones(2))
    assert_on(mesh, 1)
    mesh.engine.wait()
    with pytest.raises(RemoteException, match="the assertion") as caught:
        value(good, gpus=0)
    assert caught.value.rank == 1
    assert value(good, gpus=1).tolist() == [1, 1]


def raise_error(*_):
    raise ValueError("on the rank")


def test_a_function_without_results_that_fails_is_raised(pair):
    run = remote(raise_error, propagate=lambda *_: None)
    with pair.activate():
        good = torch.ones(2)
        run()
    with pytest.raises(RemoteException, match="on the rank"):
        value(good)
    assert value(good).tolist() == [1, 1]
    bad = out_of_range(pair)
    with pair.activate():
        run(bad)
    with pytest.raises(RemoteException, match="out of bounds"):
        value(good)
    assert value(good).tolist() == [1, 1]


@pytest.mark.parametrize("ask", [lambda x: x.nonzero(), lambda x: call_on_shard_and_fetch(len, x).get(PATIENCE)])
def test_all_questions_raise_a_failed_assertion(pair, ask):
    x = pair.device_mesh.constant(torch.ones(2))
    assert_on(pair.device_mesh, 0, 1)
    with pytest.raises(RemoteException, match="the assertion"), pair.activate():
        ask(x)
    with pair.activate():
        ask(x)


def test_a_check_in_a_recording_is_raised(pair):
    mesh = pair.device_mesh
    inverse = record(torch.linalg.inv)
    with pair.activate():
        assert value(inverse(torch.eye(2))).tolist() == [[1, 0], [0, 1]]
        result = inverse(torch.zeros(2, 2))
        with pytest.raises(RemoteException, match="singular"):
            value(result)
        assert value(inverse(torch.eye(2))).tolist() == [[1, 0], [0, 1]]
    with pytest.raises(RemoteException, match="singular"):
        value(result)
    assert mesh.engine.trouble is None


def test_a_result_that_shares_memory_with_a_failed_write_is_restored(pair):
    engine, lane = pair.device_mesh.engine, pair.device_mesh.engine.whole
    x = pair.device_mesh.constant(torch.ones(2))
    whole, part = engine.new_ids(1), engine.new_ids(1)
    engine.issue(lane, ("alias", whole, x._ref.id), None)
    x.index_fill_(0, pair.device_mesh.constant(torch.tensor([9])), 5)
    engine.issue(lane, ("unpack", whole, [part]), None)
    with pytest.raises(RemoteException, match="out of bounds"):
        value(x)
    assert engine.fetch_now(1, [part])[0].tolist() == value(x).tolist() == [1, 1]


def test_a_command_without_its_template_fails_alone(pair):
    engine, lane = pair.device_mesh.engine, pair.device_mesh.engine.whole
    x = pair.device_mesh.constant(torch.ones(2))
    made = engine.new_ids(2)
    engine.issue(lane, (10**9, made, x._ref.id), None)
    y = x + 1
    with pytest.raises(RemoteException, match=str(10**9)):
        engine.fetch_now(1, [made])
    with pytest.raises(DeviceMeshError, match="was not made"):
        engine.fetch_now(1, [made + 1])
    assert value(y).tolist() == [2, 2]


def test_an_interrupt_of_a_flush_loses_no_command(pair):
    mesh, interrupts = pair.device_mesh, StatementInterrupts(parts=["runtime/tensor/engine.py"])
    x, places = mesh.constant(torch.ones(2)), 0
    while interrupts.are_left:
        with mesh.activate(), coalescing():
            y = x + 1
            interrupts.run(mesh.engine.flush)
        assert value(y).tolist() == [2, 2], interrupts.where
        places += interrupts.are_left
    assert places > 10


# -- arguments that do not fit together -----------------------------------------------


def test_a_local_tensor_is_named(pair):
    with pair.activate():
        x = torch.zeros(3)
    with pytest.raises(TypeError, match=HEADLINE) as caught:
        x + torch.ones(3)
    assert "%0 float32[3]: ok" in str(caught.value)
    assert "%1 float32[3]: a local (non-distributed) tensor" in str(caught.value)


def test_a_local_number_is_taken(pair):
    with pair.activate():
        x = torch.zeros(3)
    assert value(x + torch.tensor(2.0)).tolist() == [2, 2, 2]


def test_tensors_of_two_meshes_are_refused(pair, grid):
    with pair.activate():
        x = torch.zeros(3)
    with grid.activate():
        y = torch.zeros(3)
        with pytest.raises(TypeError, match=r"%0.*wrong mesh"):
            x + 1
    with pytest.raises(TypeError, match=r"%1.*wrong mesh"):
        torch.cat([x, y])
    with pytest.raises(TypeError, match="one mesh"):
        fetch_shard([x, y])


def test_a_dropped_tensor_is_refused(pair):
    with pair.activate():
        x = torch.zeros(3)
    x.drop()
    with pytest.raises(TypeError, match=r"%0.*dropped"):
        x + 1
    with pytest.raises(TypeError, match="dropped"):
        fetch_shard(x)


def kill(procs):
    """End processes; when this returns, this node knows it."""
    ended = when_ended(current_node(), [node.node for node in procs.nodes])
    procs.kill().get(PATIENCE)
    ended.get(PATIENCE)


# -- the end of a rank ----------------------------------------------------------------


def test_a_dead_rank_is_an_error_of_its_mesh(make_procs, pair):
    procs = make_procs(gpus=2)
    with procs.activate():
        x = torch.zeros(3)
    assert value(x).tolist() == [0, 0, 0]
    kill(procs.slice(gpus=1))
    with pytest.raises(DeviceMeshError, match="heal_mesh"):
        value(x, gpus=1)
    with pytest.raises(DeviceMeshError):
        x + 1
    with pair.activate():
        assert value(torch.zeros(1)).tolist() == [0]


def test_a_healed_mesh_has_new_tensors(make_procs):
    procs = make_procs(gpus=2)
    with procs.activate():
        x = torch.ones(3)
    assert value(x).tolist() == [1, 1, 1]
    kill(procs.slice(gpus=1))
    assert procs.heal().get(PATIENCE) == [1]
    with pytest.raises(DeviceMeshError, match="lost"):
        value(x)
    with procs.activate():
        y = torch.ones(2).reduce("gpus")
    assert value(y, gpus=1).tolist() == [2, 2]


def test_a_healed_device_mesh_is_one_to_go_on_with(make_procs):
    procs = make_procs(gpus=3)
    mesh = procs.device_mesh.slice(gpus=slice(1, 3))
    kill(procs.slice(gpus=1))
    mesh = heal_mesh(mesh)
    with mesh.activate():
        y = torch.ones(2).reduce("gpus")
    assert value(y, gpus=1).tolist() == [2, 2]
    assert heal_mesh(mesh) is mesh
    assert heal_mesh(procs) is procs


def test_a_stopped_engine_says_so(make_procs):
    procs = make_procs(gpus=1)
    with procs.activate() as mesh:
        x = torch.ones(3)
    mesh.exit()
    mesh.exit()
    with pytest.raises(DeviceMeshError, match="stopped"):
        x + 1
    with procs.activate():
        assert value(torch.ones(1)).tolist() == [1]


# -- operations that do not end -------------------------------------------------------


@pytest.fixture
def gate():
    """An event, and an operator that waits for it on rank 1."""
    opened = threading.Event()
    library = torch.library.Library("meshbook_tests", "FRAGMENT")
    library.define("hold(Tensor rank) -> Tensor")
    library.impl("hold", lambda rank: (opened.wait(PATIENCE) if rank.item() else None, rank.clone())[1], "CPU")
    library.impl("hold", torch.empty_like, "Meta")
    yield opened
    opened.set()
    library._destroy()


def places(future, silent):
    """Return the lines that a cell shows while it waits for a future."""
    found = Future.pending()
    ask_places(current_node().calls, silent, lambda places: found.resolve(lambda: list(places)))
    return format_waits(future.describe(), silent, found.get(PATIENCE))


def test_a_rank_that_computes_for_ever_is_named_with_its_operator(pair, gate):
    with pair.activate():
        total = torch.ops.meshbook_tests.hold(pair.rank_tensor("gpus")).reduce("gpus")
        future = fetch_shard(total, gpus=0)
    waiting = future.pending_call.unanswered()
    assert [target.rank for _, target, _ in waiting] == [0, 1]
    wanted = f"waits for the tensors of {pair.name} on rank 1: in meshbook_tests::hold"
    until = time.monotonic() + PATIENCE
    while wanted not in (found := places(future, waiting)):  # until both ranks have come so far
        assert time.monotonic() < until, found
    gate.set()
    assert future.get(PATIENCE).item() == 1
