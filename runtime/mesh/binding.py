"""CPU and memory binding of processes: parses and checks `proc_bind` of `HostMesh.spawn_procs`.

[{"cpus": "0-3"}, {"cpus": "4-7"}]                          the scheduler's affinity, set by the worker itself
[{"cpunodebind": "0", "membind": "0"}, ...]                 numactl, in front of the worker's command
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec

from meshbook.runtime import monarch_texts as texts

Given = Mapping[str, str | int]

_OF_CORES = ("cpunodebind", "physcpubind", "cpus")
_OF_NODES = ("cpunodebind", "membind", "interleave", "preferred")
KEYS = ("cpus", "physcpubind", "cpunodebind", "membind", "interleave", "preferred")
_LIST = re.compile(r"\d+(-\d+)?(,\d+(-\d+)?)*", re.ASCII)
# More than any machine has. Without a limit, a typing error would build a list of a billion numbers.
HIGHEST_CPU = 1 << 16


class Binding(msgspec.Struct, frozen=True):
    """The binding of one process. If all fields are empty, the system places it."""

    cpus: tuple[int, ...] = ()  # its affinity
    numactl: tuple[str, ...] = ()  # options, if an affinity is not enough
    has_own_cores: bool = False  # its cores are not shared with other workers of the host


def read_bindings(given: Sequence[Given] | None, count: int) -> list[Binding]:
    """Return one binding for each of `count` local processes.

    Raises ValueError if there are more or fewer, and for an unknown key or an invalid value.
    """
    if given is None:
        return [Binding()] * count
    if len(given) != count:
        raise ValueError(f"{texts.wrong_binding(len(given), count)}: one entry for each process of a host")
    return [_read(entry, f"proc_bind[{place}]") for place, entry in enumerate(given)]


def _read(entry: Given, what: str) -> Binding:
    if not isinstance(entry, Mapping):
        raise ValueError(f"{what} must be a dict, such as {{'cpus': '0-3'}}, not {entry!r}")
    if unknown := [key for key in entry if key not in KEYS]:
        raise ValueError(f"{what} has the unknown key {unknown[0]!r}; the keys are {', '.join(KEYS)}")
    if "cpus" in entry and "physcpubind" in entry:
        raise ValueError(f"{what} has both 'cpus' and 'physcpubind', which mean the same; use one of them")
    texts = {key: _check_list(value, key, what) for key, value in entry.items()}
    has_own_cores = any(key in texts for key in _OF_CORES)
    if texts and texts.keys() <= {"cpus", "physcpubind"}:
        [cpus] = texts.values()
        return Binding(cpus=_numbers(cpus, what), has_own_cores=has_own_cores)
    names = {"cpus": "physcpubind"}
    return Binding(
        numactl=tuple(f"--{names.get(key, key)}={text}" for key, text in texts.items()), has_own_cores=has_own_cores
    )


def _check_list(value: object, key: str, what: str) -> str:
    text = str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""
    if not (_LIST.fullmatch(text) or (text == "all" and key in _OF_NODES)):
        raise ValueError(f"{what}[{key!r}] must be numbers, such as 2, '0-3' or '0,2,4-7', not {value!r}")
    return text


def _numbers(text: str, what: str) -> tuple[int, ...]:
    """Parse `0,2-4` as 0, 2, 3, 4."""
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        low, high = int(first), int(last or first)
        if not low <= high < HIGHEST_CPU:
            raise ValueError(f"{what}: {part!r} is not a range of CPUs")
        found.update(range(low, high + 1))
    return tuple(sorted(found))
