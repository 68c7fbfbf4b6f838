"""Who is who in an SPMD program: ranks, local ranks and groups of meshes and slices, as torchrun counts them."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from meshbook.runtime.config import Settings
from meshbook.runtime.geometry import Extent, Region
from meshbook.runtime.mesh.worker_specs import MeshSpec, WorkerSpec, inherited_environment
from meshbook.runtime.spmd.environment import RunRendezvous, hosts_of, rank_environment
from meshbook.runtime.wire.messages import Address

MEETING = RunRendezvous("node7", 4711, "run-1")


def born(extent: Extent, local_size: int) -> WorkerSpec:
    """Any process of a mesh that was spawned like this, so many on a host."""
    world = MeshSpec(
        run="run",
        mesh="procs",
        owner="controller",
        controller=Address("controller", "memory://controller"),
        agent=Address("agent", "memory://agent"),
        agents=(Address("agent", "memory://agent"),),
        labels=extent.labels,
        sizes=extent.sizes,
        environment={},
        directory="/",
        search_path=(),
        settings=Settings(),
    )
    return WorkerSpec(
        address=Address("procs.0", "memory://0"), rank=0, local_rank=0, local_size=local_size, world=world
    )


# -- from hosts to variables -----------------------------------------------------


@pytest.mark.parametrize(
    ("hosts", "local_ranks", "local_sizes", "groups"),
    [
        ([0], "0", "1", "0"),
        ([0, 0, 0], "012", "333", "000"),
        ([0, 0, 1, 1], "0101", "2222", "0011"),
        ([3, 3, 7], "010", "221", "001"),  # a slice need not begin at host 0, nor be even
        ([1, 0, 1, 0], "0011", "2222", "0101"),  # groups are counted in the order of ranks
    ],
)
def test_the_place_of_each_rank(hosts: list[int], local_ranks: str, local_sizes: str, groups: str) -> None:
    variables = [rank_environment(rank, hosts, MEETING) for rank in range(len(hosts))]

    def column(name: str) -> str:
        return "".join(each[name] for each in variables)

    ranks = "".join(map(str, range(len(hosts))))
    assert (column("RANK"), column("ROLE_RANK")) == (ranks, ranks)
    assert (
        {each["WORLD_SIZE"] for each in variables}
        == {each["ROLE_WORLD_SIZE"] for each in variables}
        == {str(len(hosts))}
    )
    assert (column("LOCAL_RANK"), column("LOCAL_WORLD_SIZE"), column("GROUP_RANK")) == (
        local_ranks,
        local_sizes,
        groups,
    )
    assert {each["GROUP_WORLD_SIZE"] for each in variables} == {str(len(set(hosts)))}


def test_what_else_torchrun_promises() -> None:
    variables = rank_environment(0, [0], MEETING)
    expected = {
        "MASTER_ADDR": "node7",
        "MASTER_PORT": "4711",
        "TORCHELASTIC_RUN_ID": "run-1",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "ROLE_NAME": "default",
    }
    assert {name: variables[name] for name in expected} == expected


# -- from dimensions to hosts ------------------------------------------------------

SPAWNED = Extent.of(hosts=2, gpus=3)
ONE_HOST = Extent.of(rows=2, columns=2)
Cut = Callable[[Region], Region]


@pytest.mark.parametrize(
    ("cut", "hosts"),
    [
        (lambda whole: whole, "000111"),
        (lambda whole: whole.slice(hosts=1), "000"),
        (lambda whole: whole.slice(gpus=2), "01"),
        (lambda whole: whole.slice(gpus=slice(1, 3)), "0011"),
        (lambda whole: whole.slice(hosts=slice(1, 2), gpus=slice(0, 2)), "00"),
        (lambda whole: whole.slice(hosts=0, gpus=1), "0"),
        (lambda whole: whole.rename(gpus="workers"), "000111"),
        (lambda whole: whole.split(gpus=("row", "column"), row=1), "000111"),
    ],
    ids=["whole", "a host", "a gpu of each", "gpus of each", "one host kept", "one rank", "renamed", "split"],
)
def test_the_dimensions_of_the_hosts_determine_the_host(cut: Cut, hosts: str) -> None:
    extent = cut(SPAWNED.region).extent
    assert "".join(map(str, hosts_of(extent, born(SPAWNED, 3)))) == hosts


def test_local_ranks_are_the_last_dimensions() -> None:
    spawned = Extent.of(racks=2, hosts=2, rows=2, columns=2)
    hosts = hosts_of(spawned, born(spawned, 4))
    point = spawned.point(racks=1, hosts=0, rows=1, columns=1)
    variables = rank_environment(point.rank, hosts, MEETING)
    assert [variables[name] for name in ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")] == [
        "11",
        "3",
        "4",
        "2",
    ]


@pytest.mark.parametrize(
    "cut",
    [
        lambda whole: whole,
        lambda whole: whole.slice(rows=1),
        lambda whole: whole.flatten("all"),
        lambda whole: whole.rename(rows="hosts"),
    ],
    ids=["whole", "slice", "flattened", "renamed"],
)
def test_on_one_host_all_are_local(cut: Cut) -> None:
    assert set(hosts_of(cut(ONE_HOST.region).extent, born(ONE_HOST, 4))) == {0}


@pytest.mark.parametrize(
    "cut",
    [lambda whole: whole.flatten("all"), lambda whole: whole.rename(hosts="nodes")],
    ids=["flattened", "renamed"],
)
def test_a_slice_that_hides_the_hosts_is_an_error_with_a_remedy(cut: Cut) -> None:
    with pytest.raises(
        ValueError, match=r"cannot determine the hosts of .* spawned as {'hosts': 2, 'gpus': 3}, 3 per host"
    ):
        hosts_of(cut(SPAWNED.region).extent, born(SPAWNED, 3))


@pytest.mark.parametrize("sizes", [{}, {"gpus": 3}])
def test_without_a_birth_all_are_here(sizes: dict[str, int]) -> None:
    extent = Extent.of(**sizes)
    assert hosts_of(extent, None) == (0,) * math.prod(sizes.values())


# -- what is not handed on -----------------------------------------------------------


def test_variables_set_later_on_a_rank_are_not_for_its_own_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {"MASTER_PORT": "4711", "ROLE_RANK": "0", "TORCHELASTIC_RUN_ID": "procs"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_PORT", "1")  # by the user, since
    spec = born(ONE_HOST, 4)
    parent = WorkerSpec(
        address=spec.address, rank=0, local_rank=0, local_size=4, world=spec.world, updated_variables=variables
    )
    inherited = inherited_environment(None, parent)
    assert {name: inherited.get(name) for name in variables} == {
        "MASTER_PORT": "1",
        "ROLE_RANK": None,
        "TORCHELASTIC_RUN_ID": None,
    }
