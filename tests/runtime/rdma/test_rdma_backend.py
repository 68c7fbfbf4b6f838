"""What is said of the hardware between hosts, and when a user is warned about it."""

from __future__ import annotations

import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from meshbook.runtime.config import OVERRIDES
from meshbook.runtime.memory.process_identity import ProcessMark
from meshbook.runtime.rdma import hardware
from meshbook.runtime.rdma.backends import BufferHandle, Lease
from meshbook.runtime.rdma.hardware import Fallback, RDMATcpFallbackWarning, get_rdma_backend, why_no_ibverbs
from meshbook.runtime.wire.messages import Address


@pytest.fixture
def nics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host with a NIC, and with NIXL."""
    (tmp_path / "mlx5_0").mkdir()
    monkeypatch.setattr(hardware, "is_installed", lambda: True)
    return tmp_path


def test_a_nic_is_used_where_it_is_there_and_allowed(nics: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert why_no_ibverbs(nics) == ""
    assert "no RDMA NIC" in why_no_ibverbs(nics / "mlx5_0")
    assert "no RDMA NIC" in why_no_ibverbs(nics / "none")
    with OVERRIDES.during({"extra": {"rdma_disable_ibverbs": True}}):
        assert "rdma_disable_ibverbs" in why_no_ibverbs(nics)
    monkeypatch.setattr(hardware, "is_installed", lambda: False)
    assert "meshbook[rdma]" in why_no_ibverbs(nics)


@pytest.mark.parametrize(
    ("why_not", "is_allowed", "expected"),
    [("", True, "ibverbs"), ("", False, "ibverbs"), ("no NIC", True, "tcp"), ("no NIC", False, "none")],
)
def test_the_backend_is_the_best_that_is_allowed(
    monkeypatch: pytest.MonkeyPatch, why_not: str, is_allowed: bool, expected: str
) -> None:
    monkeypatch.setattr(hardware, "why_no_ibverbs", lambda: why_not)
    with OVERRIDES.during({"extra": {"rdma_allow_tcp_fallback": is_allowed}}):
        assert get_rdma_backend() == expected


# --- by TCP ---


def handle_on(system: str) -> BufferHandle:
    return BufferHandle(Address("a", "a"), 0, "trainer", ProcessMark(1, 0, system), None, Lease(0, 1), 0, 64)


def way_of(name: str) -> Any:
    return SimpleNamespace(name=name)


@pytest.mark.parametrize(
    ("way", "system", "is_by_tcp"),
    [
        ("host agent", "other", True),
        ("message", "other", True),
        ("message", "here", False),
        ("nixl", "other", False),
        ("process memory", "here", False),
    ],
)
def test_it_is_forbidden_and_warns_once_between_hosts(way: str, system: str, is_by_tcp: bool) -> None:
    fallback, handle = Fallback(lambda: "here"), handle_on(system)
    assert fallback.forbid(way_of(way), handle) == ""
    with OVERRIDES.during({"extra": {"rdma_allow_tcp_fallback": False}}):
        assert ("rdma_allow_tcp_fallback is False, and " in fallback.forbid(way_of(way), handle)) is is_by_tcp
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fallback.note(way, handle)
        fallback.note(way, handle)
    assert [each.category for each in caught] == [RDMATcpFallbackWarning] * is_by_tcp
    assert all("trainer on a moves over TCP" in str(each.message) for each in caught)
