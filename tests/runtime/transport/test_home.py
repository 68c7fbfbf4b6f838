"""Which socket a node is reached by, and which address a host has."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshbook.runtime import resources
from meshbook.runtime.transport.home import Home, describe, host_of
from meshbook.runtime.wire.messages import Address

FIRST = Home.of_first_host(Path("/run/f"))
SECOND = Home(Path("/run/s"), "tcp://10.0.0.2:7000/", FIRST.first)


@pytest.mark.parametrize(
    ("home", "to", "elsewhere", "socket"),
    [
        (FIRST, "unix:///run/f/node", False, "/run/f/node"),
        (FIRST, "unix:///run/of-another-run/node", False, "/run/of-another-run/node"),
        (FIRST, "tcp://10.0.0.2:7000/node", True, ""),
        (SECOND, "tcp://10.0.0.2:7000/node", False, "/run/s/node"),
        (SECOND, "tcp://10.0.0.3:7000/node", True, ""),
        (SECOND, "unix:///run/f/node", True, ""),
        (SECOND, "unix:///run/of-another-run/node", False, "/run/of-another-run/node"),
    ],
)
def test_a_node_is_near_or_elsewhere(home: Home, to: str, elsewhere: bool, socket: str) -> None:
    address = Address("node", to)
    assert home.is_elsewhere(address) == elsewhere
    if not elsewhere:
        assert home.path_of(address) == Path(socket)


def test_an_address_names_its_host() -> None:
    assert host_of(SECOND.address("procs-1.0")) == "tcp://10.0.0.2:7000/"
    assert describe("tcp://10.0.0.2:7000/") == "10.0.0.2:7000"


@pytest.mark.parametrize(
    ("ways", "found"),
    [
        ({"10.0.0.1": "10.0.0.2"}, "10.0.0.2"),
        ({"192.168.0.1": "", "10.0.0.1": "10.0.0.2"}, "10.0.0.2"),
        ({"172.17.0.1": "172.17.0.1", "10.0.0.1": "10.0.0.2"}, "10.0.0.2"),  # each has a network of that name
        ({"10.0.0.1": "10.0.0.1"}, "10.0.0.1"),  # the same machine
    ],
)
def test_a_host_is_reached_where_it_reaches_the_controller(
    monkeypatch: pytest.MonkeyPatch, ways: dict[str, str], found: str
) -> None:
    monkeypatch.setattr(resources, "_source_towards", ways.__getitem__)
    assert resources.address_towards(list(ways)) == found


def test_a_host_without_a_route_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "_source_towards", lambda other: "")
    with pytest.raises(OSError, match=r"no route to .*10\.0\.0\.1"):
        resources.address_towards(["10.0.0.1"])


def test_this_machine_has_an_address() -> None:
    own = resources.own_addresses()
    assert resources.address_towards(own) in own
    assert resources.interface_of("127.0.0.1") == "lo"
