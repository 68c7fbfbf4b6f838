"""Programs on simulated meshes: what they cost, and what they hold in memory."""

from __future__ import annotations

import json
import sys

import pytest
import torch

from meshbook.runtime.tensor.random import manual_seed
from meshbook.runtime.tensor.recordings import compile as record
from meshbook.runtime.tensor.remote import remote
from meshbook.runtime.tensor.schedule import Costs, MemoryLog, Schedule
from meshbook.runtime.tensor.simulator import Simulator, set_meta
from meshbook.runtime.tensor.streams import Stream
from meshbook.runtime.tensor.trees import fetch_shard

COSTS = Costs(issue=0, launch=1, flops=1e3, memory=1e30, latency=1, link=100, network=10)  # so that results are round


def operations(simulator, rank=0, stream="main"):
    return [
        (each.name, each.start, each.duration)
        for each in simulator.schedule.operations
        if (each.rank, each.stream) == (rank, stream)
    ]


def test_an_operation_costs_its_flops_and_its_bytes():
    assert Costs(launch=1, flops=10, memory=5).operation(100, 10) == 11
    assert Costs(launch=1, flops=10, memory=5).operation(10, 100) == 21


@pytest.mark.parametrize(
    ("kind", "seconds"), [("all_reduce", 6 + 6), ("all_gather", 3 + 12), ("reduce_scatter", 3 + 3), ("all_to_all", 6)]
)
def test_a_collective_costs_its_rounds_and_its_bytes(kind, seconds):
    assert COSTS.collective(kind, 400, 4, crosses_hosts=False) == seconds


def test_a_stream_waits_for_what_another_one_makes():
    schedule = Schedule(COSTS, [0, 0])
    schedule.run([[0], [1]], "main", "make", 5)
    schedule.make_ready([7], [0, 1], "main")
    schedule.run([[0]], "other", "alone", 1)
    schedule.run([[0]], "other", "use", 1, inputs=[7])
    assert [each.start for each in schedule.operations] == [0, 0, 0, 5]
    assert schedule.seconds == 6


def test_memory_counts_shared_values_once():
    memory = MemoryLog()
    memory.take(1, 100, [0, 1], "line 1")
    memory.take(1, 100, [0, 1], "line 2")
    memory.drop(1)
    memory.take(2, 50, [0], "line 3")
    memory.drop(1)
    memory.take(3, 60, [0], "line 4")
    assert memory.of_rank(0).peak == 150
    assert memory.of_rank(0).by_line == {"line 1": 100, "line 3": 50}
    assert memory.of_rank(1).peak == 100
    assert memory.of_rank(2).by_line == {}


def test_a_program_has_a_time_line():
    simulator = Simulator(hosts=2, gpus=2, costs=COSTS)
    with simulator.mesh.activate():
        x = torch.ones(10, 10)
        y = (x.t() @ x).reduce("gpus")
        z = y.reduce("hosts")
        part = z.slice_mesh(hosts=0).to_mesh(simulator.mesh(hosts=1))
    assert operations(simulator, 3) == [
        *(("ones", 0, 1), ("mm", 1, 3), ("all_reduce sum", 4, 2 + 4), ("all_reduce sum", 10, 2 + 40)),
        ("receive from rank 1", 53 - 1, 41),
    ]
    assert operations(simulator, 1)[-1] == ("send", 52, 1)
    assert simulator.seconds == 93
    assert part.shape == (10, 10)


def test_streams_overlap_except_for_borrowed_values():
    simulator, stream = Simulator(costs=COSTS), Stream("other")
    with simulator.mesh.activate():
        x = torch.ones(2)
        with stream.activate():
            torch.zeros(2)
        y = x + 1
        lent, borrow = stream.borrow(y)
        with stream.activate():
            lent * 2
        borrow.drop()
    assert operations(simulator) == [("ones", 0, 1), ("add", 1, 1)]
    assert operations(simulator, stream="other") == [("zeros", 0, 1), ("mul", 2, 1)]


def test_the_memory_is_that_of_the_lines_at_the_peak():
    simulator = Simulator(gpus=2)
    with simulator.mesh.activate():
        x = torch.ones(1000)
        y, kept = x + 1, sys._getframe().f_lineno
        view = y[:500]
        del y
        torch.zeros(10)
        del x
        view.add_(torch.zeros(100).sum())
    found = simulator.memory(rank=1)
    assert found.peak == 8040
    assert f"line {kept}" in list(found.by_line)[1] or f":{kept}" in list(found.by_line)[1]
    assert simulator.memory().peak == 8040


def test_a_model_trains():
    simulator = Simulator(gpus=2)
    with simulator.mesh.activate():
        manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(), torch.nn.Linear(8, 1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            loss = model(torch.rand(3, 4)).square().mean()
            loss.backward()
            for parameter in model.parameters():
                parameter.grad.reduce_("gpus", "avg")
            optimizer.step()
            assert loss.item() == 0
    assert fetch_shard(loss, gpus=1).get() == 0
    assert simulator.seconds > 0
    names = [name for name, _, _ in operations(simulator, 1)]
    assert names.count("all_reduce avg") == 8


def test_recordings_and_remote_functions_run():
    simulator = Simulator(costs=COSTS)
    double = remote(lambda x: x * 2, propagate=lambda x: x)
    step = record(lambda x: (x + 1).square())
    with simulator.mesh.activate():
        x = double(torch.ones(3))
        assert step(step(step(x))).shape == (3,)
    assert [name for name, _, _ in operations(simulator)][2:] == ["add", "pow"] * 3
    assert fetch_shard(x).get().shape == (3,)


def test_draws_from_a_generator_of_the_program_run():
    simulator = Simulator(costs=COSTS)
    with simulator.mesh.activate():
        x = torch.randn(3, generator=torch.Generator())
        assert x.normal_(generator=torch.Generator()).shape == (3,)
    assert fetch_shard(x).get().tolist() == [0, 0, 0]


def test_what_depends_on_values_is_refused():
    simulator = Simulator()
    with simulator.mesh.activate():
        x = torch.ones(3)
        with pytest.raises(NotImplementedError, match="depends on values"):
            x.nonzero()
        with pytest.raises(NotImplementedError, match="give remote"):
            remote(lambda x: x, propagate="inspect")(x)
        with pytest.raises(NotImplementedError, match="no rank"):
            remote(lambda x: x, propagate="inspect").call_on_shard_and_fetch(x)
        with pytest.raises(NotImplementedError, match="slices of one"):
            x.to_mesh(Simulator().mesh)
        assert (x + 1).shape == (3,)
    with pytest.raises(ValueError, match="trace_mode"):
        Simulator(trace_mode="all")


def test_the_trace_is_written_at_the_end(tmp_path):
    path = tmp_path / "trace.json"
    simulator = Simulator(hosts=1, gpus=2, trace_path=path)
    with simulator.mesh.activate():
        x = torch.ones(3)
        with set_meta({"step": 1}):
            x.reduce("gpus")
    assert not path.exists()
    simulator.mesh.exit()
    events = json.loads(path.read_text())["traceEvents"]
    named = {each["args"]["name"] for each in events if each["ph"] == "M"}
    assert named == {"controller", "rank 0 (hosts=0, gpus=0)", "rank 1 (hosts=0, gpus=1)"}
    timed = [(each["pid"], each["tid"], each["name"]) for each in events if each["ph"] == "X"]
    assert (1, "main", "all_reduce sum") in timed
    assert (-1, "controller", "reduce") in timed
    assert "test_simulator.py" in next(
        each["args"]["line"] for each in events if each["name"] == "ones" and "args" in each
    )
    streams = json.loads(Simulator(trace_mode="streams").trace())["traceEvents"]
    assert [each["pid"] for each in streams] == [0]
