"""`proc_bind`: what each entry comes to, and what is refused at the call."""

from __future__ import annotations

from typing import Any

import pytest

from meshbook.runtime.mesh.binding import Binding, read_bindings


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ({}, Binding()),
        ({"cpus": "0-3"}, Binding(cpus=(0, 1, 2, 3), has_own_cores=True)),
        ({"cpus": 5}, Binding(cpus=(5,), has_own_cores=True)),
        ({"cpus": "4,0-1,1"}, Binding(cpus=(0, 1, 4), has_own_cores=True)),
        ({"physcpubind": "2"}, Binding(cpus=(2,), has_own_cores=True)),
        ({"membind": 0}, Binding(numactl=("--membind=0",))),
        ({"interleave": "all"}, Binding(numactl=("--interleave=all",))),
        (
            {"cpunodebind": "0", "membind": "0,1"},
            Binding(numactl=("--cpunodebind=0", "--membind=0,1"), has_own_cores=True),
        ),
        # numactl knows no `cpus`.
        ({"cpus": "0-1", "membind": "0"}, Binding(numactl=("--physcpubind=0-1", "--membind=0"), has_own_cores=True)),
    ],
)
def test_what_an_entry_means(entry: dict[str, Any], expected: Binding) -> None:
    assert read_bindings([entry], 1) == [expected]


def test_each_process_has_its_own() -> None:
    assert [binding.cpus for binding in read_bindings([{"cpus": 0}, {"cpus": 1}], 2)] == [(0,), (1,)]
    assert read_bindings(None, 2) == [Binding(), Binding()]


@pytest.mark.parametrize("entries", [[], [{"cpus": "0"}] * 3])
def test_the_wrong_number_of_entries(entries: list[Any]) -> None:
    with pytest.raises(ValueError, match=rf"proc_bind length \({len(entries)}\) must equal procs_per_host \(2\)"):
        read_bindings(entries, 2)


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("0-3", r"proc_bind\[1\] must be a dict"),
        ({"cores": "0"}, "unknown key 'cores'; the keys are cpus, physcpubind"),
        ({"cpus": "0", "physcpubind": "0"}, "both 'cpus' and 'physcpubind'"),
        ({"cpus": "3-1"}, "'3-1' is not a range"),
        ({"cpus": "0-999999999"}, "not a range"),
        *(
            ({"cpus": value}, r"proc_bind\[1\]\['cpus'\]")
            for value in ("", "all", "a", "0-", "-1", -1, "0;1", True, None)
        ),
        ({"membind": "0 --all"}, "must be numbers"),
    ],
)
def test_an_entry_that_means_nothing(entry: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read_bindings([{}, entry], 2)
