"""What is said of the hardware between hosts, and when a user is warned about it."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from meshbook.runtime.config import OVERRIDES
from meshbook.runtime.rdma import backend
from meshbook.runtime.rdma.backend import FallbackNotice, RDMATcpFallbackWarning, get_rdma_backend, why_no_ibverbs


@pytest.fixture
def nics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host with a NIC, and with NIXL."""
    (tmp_path / "mlx5_0").mkdir()
    monkeypatch.setattr(backend, "is_installed", lambda: True)
    return tmp_path


def test_a_nic_is_used_where_it_is_there_and_allowed(nics: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert why_no_ibverbs(nics) == ""
    assert "no RDMA NIC" in why_no_ibverbs(nics / "mlx5_0")
    assert "no RDMA NIC" in why_no_ibverbs(nics / "none")
    with OVERRIDES.during({"extra": {"rdma_disable_ibverbs": True}}):
        assert "rdma_disable_ibverbs" in why_no_ibverbs(nics)
    monkeypatch.setattr(backend, "is_installed", lambda: False)
    assert "meshbook[rdma]" in why_no_ibverbs(nics)


@pytest.mark.parametrize(
    ("why_not", "is_allowed", "expected"),
    [("", True, "ibverbs"), ("", False, "ibverbs"), ("no NIC", True, "tcp"), ("no NIC", False, "none")],
)
def test_the_backend_is_the_best_that_is_allowed(
    monkeypatch: pytest.MonkeyPatch, why_not: str, is_allowed: bool, expected: str
) -> None:
    monkeypatch.setattr(backend, "why_no_ibverbs", lambda: why_not)
    with OVERRIDES.during({"extra": {"rdma_allow_tcp_fallback": is_allowed}}):
        assert get_rdma_backend() == expected


def test_that_data_goes_by_tcp_is_said_once() -> None:
    notice = FallbackNotice()
    with pytest.warns(RDMATcpFallbackWarning, match=r"trainer.*rdma_allow_tcp_fallback=False"):
        notice.tell("trainer")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        notice.tell("another")
