"""Measures the tensor engine beside local eager torch: a chain of small operations, and training steps of an MLP.

    python benchmarks/tensors.py [--rounds N] [--json FILE] [--ranks N] [--peers PYTHON]

One thread per process: small operations are slower with more. The controller's cost is the processor time of the thread
that issues. The memory is that of the controller and of rank 0, before and after a million operations. `--peers` names
an interpreter that has torchmonarch, whose engine runs the same programs in turns with ours.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Callable
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import psutil
import torch
from peer_interpreters import MLPTraining, PeerInterpreter, chain, run_steps
from report import Aim, Report, json_option
from rounds import Comparison, Turn, format_spread, run_rounds, timed

from meshbook import close_session, this_host
from meshbook.runtime.tensor.recordings import compile as record
from meshbook.runtime.tensor.remote import call_on_shard_and_fetch
from meshbook.runtime.tensor.trees import fetch_shard

CHAIN = 2000
STEPS = 50
MANY = 1_000_000
MIB = 1 << 20


def resident_bytes() -> int:
    return int(psutil.Process().memory_info().rss)


def put_cost(report: Report, procs: Any, issue: Callable[[], torch.Tensor]) -> None:
    """Record the processor time of the issuing thread for each operation."""
    with procs.activate():
        before = time.thread_time()
        result = issue()
        cost = time.thread_time() - before
    fetch_shard(result).get()
    report.put("controller's cost of an operation", cost / CHAIN * 1e6, "us", Aim(25))


def put_memory(report: Report, procs: Any) -> None:
    """Record by how much a million operations make the processes grow."""

    def sizes() -> tuple[int, int]:
        return resident_bytes(), call_on_shard_and_fetch(resident_bytes).get()

    with procs.activate():
        fetch_shard(chain(MANY // 10)).get()
        before = sizes()
        fetch_shard(chain(MANY)).get()
        after = sizes()
    for name, first, last in zip(("controller", "rank 0"), before, after, strict=True):
        report.put(f"growth of the {name} in {MANY:,} operations", (last - first) / MIB, "MiB", Aim(5))


def compare_with(
    peer: PeerInterpreter, run_chain: Callable[[], None], run_training: Callable[[], None]
) -> list[Comparison]:
    """Return the comparisons with Monarch's engine, on one rank."""

    def base(program: str, count: int) -> Turn:
        return lambda: [peer.ask(program, count, 1) or math.nan]

    name = "Monarch"
    return [
        Comparison(
            "chain of operations beside Monarch",
            *(base("chain", CHAIN), timed(run_chain)),
            unit="ops/s",
            per_run=CHAIN,
            base_name=name,
        ),
        Comparison(
            "steps of an MLP beside Monarch",
            *(base("train", STEPS), timed(run_training)),
            unit="steps/s",
            per_run=STEPS,
            base_name=name,
        ),
    ]


def main() -> None:
    parser = json_option(argparse.ArgumentParser(description="The tensor engine beside local eager torch."))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--peers", metavar="PYTHON", help="an interpreter that has torchmonarch")
    options = parser.parse_args()
    report, procs = Report(), this_host().spawn_procs(per_host={"gpus": options.ranks})
    local = MLPTraining()
    with procs.activate():
        training = MLPTraining()

    def run_chain() -> None:
        with procs.activate():
            fetch_shard(chain(CHAIN)).get()

    recorded = record(training.step)

    def run_training(step: Callable[[], torch.Tensor]) -> None:
        with procs.activate():
            fetch_shard(run_steps(step, STEPS)).get()

    base = "local eager"
    comparisons = [
        Comparison(
            f"chain of {CHAIN} operations",
            *(timed(lambda: chain(CHAIN)), timed(run_chain)),
            unit="ops/s",
            per_run=CHAIN,
            base_name=base,
            aim=Aim(30_000, is_least=True),
        ),
        Comparison(
            "steps of an MLP",
            *(timed(lambda: run_steps(local.step, STEPS)), timed(lambda: run_training(training.step))),
            unit="steps/s",
            per_run=STEPS,
            base_name=base,
            aim=Aim(300, is_least=True),
        ),
        Comparison(
            "steps of an MLP, recorded",
            *(timed(lambda: run_steps(local.step, STEPS)), timed(lambda: run_training(recorded))),
            unit="steps/s",
            per_run=STEPS,
            base_name=base,
        ),
    ]
    peer = PeerInterpreter(options.peers, "monarch") if options.peers else None
    if peer is not None and peer.ask("chain", CHAIN, 1) is not None:
        comparisons += compare_with(peer, run_chain, lambda: run_training(training.step))
    run_rounds(report, comparisons, options.rounds, lambda: put_cost(report, procs, lambda: chain(CHAIN)))
    if peer is not None:
        peer.close()
    put_memory(report, procs)
    procs.stop().get()
    close_session()
    report.present(f"the tensor engine, {options.ranks} ranks", options, format_spread(report, comparisons))


if __name__ == "__main__":
    main()
