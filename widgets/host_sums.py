"""Sums over the ranks of each host: how many are in each state, and what they use together. Pure."""

from __future__ import annotations

import functools
import math

import numpy as np
import numpy.typing as npt

from meshbook.runtime.telemetry.vitals import Metric, Vitals
from meshbook.widgets.protocol import HostEntry, RankState
from meshbook.widgets.source import MeshFacts
from meshbook.widgets.states import States

_DIGITS = 3  # significant digits; smaller changes of a sum are not sent
_DECIMALS = 2  # decimals; less is what an idle process uses
_NAMES = [state.name.lower() for state in RankState]


def roll_up(mesh: MeshFacts, vitals: Vitals, states: States) -> list[HostEntry]:
    """Return the section "hosts": an entry for each host, in the mesh's order. Sums; for `gpu` the mean."""
    host_of = np.asarray(mesh.host_of)
    hosts, kinds = len(mesh.hosts), len(RankState)
    counts = np.bincount(host_of * kinds + states, minlength=hosts * kinds).reshape(hosts, kinds).tolist()
    columns = [_summed(metric, mesh, host_of, vitals) for metric in ("cpu", "memory", "gpu", "gpu_memory")]
    return [
        {
            "name": name,
            "ranks": sum(of),
            "counts": _name_counts(tuple(of)),
            "cpu": cpu,
            "memory": memory,
            "gpu": gpu,
            "gpu_memory": of_gpus,
        }
        for name, of, cpu, memory, gpu, of_gpus in zip(mesh.hosts, counts, *columns, strict=True)
    ]


@functools.lru_cache(maxsize=1024)  # most hosts have the same counts as others
def _name_counts(counts: tuple[int, ...]) -> dict[str, int]:
    return {name: count for name, count in zip(_NAMES, counts, strict=True) if count}


def _summed(metric: Metric, mesh: MeshFacts, host_of: npt.NDArray[np.intp], vitals: Vitals) -> list[float | None]:
    if (values := vitals.metrics.get(metric)) is None:
        return [None] * len(mesh.hosts)
    known = np.isfinite(values)
    # numpy sums an empty group to an integer, which cannot hold a fraction.
    sums = np.bincount(host_of[known], np.asarray(values)[known], len(mesh.hosts)).astype(float)
    counts = np.bincount(host_of[known], minlength=len(mesh.hosts))
    amounts = np.divide(sums, counts, out=np.zeros_like(sums), where=counts > 0) if metric == "gpu" else sums
    pairs = zip(_shortened(amounts).tolist(), counts.tolist(), strict=True)
    return [amount if count else None for amount, count in pairs]


def _shortened(amounts: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Round amounts from 0 on for display: those of thousands of hosts at once."""
    units = 10.0 ** np.floor(np.log10(np.maximum(amounts, 1000)) - (_DIGITS - 1))
    short: npt.NDArray[np.float64] = np.where(
        amounts < 1000, amounts.round(_DECIMALS), np.rint(amounts / units) * units
    )
    return short


def rounded(value: float, digits: int = _DIGITS) -> float | None:
    """Round to so many significant digits; None, which JSON has, for NaN and infinity."""
    if not math.isfinite(value):
        return None
    return float(f"{value:.{digits}g}")
