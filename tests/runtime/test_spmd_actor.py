"""`SPMDActor` on a node of this very process: the script's errors at the caller, addresses, the environment."""

from __future__ import annotations

import os
import re
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from meshbook.runtime.errors import ActorError
from meshbook.runtime.spmd.script import ScriptExited
from meshbook.runtime.spmd.spmd_actor import AddrType, SPMDActor, host_address
from tests.support import PATIENCE

if TYPE_CHECKING:
    from tests.runtime.conftest import Session

NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID")


@pytest.fixture
def spmd(session: Session, monkeypatch: pytest.MonkeyPatch) -> SPMDActor:
    """One rank, whose process is this one."""
    monkeypatch.setattr(os, "environ", dict(os.environ))
    return session.spawn(SPMDActor)


def script(folder: Path, source: str) -> str:
    file = folder / "train.py"
    file.write_text(source)
    return str(file)


def test_a_script_that_ends_well(spmd: SPMDActor, tmp_path: Path) -> None:
    source = "import os, sys; from pathlib import Path; Path(sys.argv[1]).write_text(os.environ['MASTER_PORT'])"
    out = tmp_path / "out"
    assert spmd.main.call_one("here", 4711, [script(tmp_path, source), str(out)]).get(PATIENCE) is True
    assert out.read_text() == "4711"


@pytest.mark.parametrize("code", ["", "0", "None"])
def test_an_exit_without_a_code_is_success(spmd: SPMDActor, tmp_path: Path, code: str) -> None:
    assert spmd.main.call_one("here", 1, [script(tmp_path, f"import sys; sys.exit({code})")]).get(PATIENCE)


@pytest.mark.parametrize(
    ("given", "code", "more"), [("3", 3, ""), ("'no way'", 1, ": no way")], ids=["a number", "a message"]
)
def test_an_exit_with_a_code_is_an_error(spmd: SPMDActor, tmp_path: Path, given: str, code: int, more: str) -> None:
    path = script(tmp_path, f"import sys; sys.exit({given})")
    with pytest.raises(ActorError) as caught:
        spmd.main.call_one("here", 1, [path]).get(PATIENCE)
    error = caught.value.exception
    assert isinstance(error, ScriptExited)
    assert (str(error), error.rank, error.code) == (f"{path} exited with code {code} on rank 0{more}", 0, code)
    assert spmd.get_host_port.call_one().get(PATIENCE)  # the actor lives on


def test_an_exception_comes_with_the_scripts_own_lines(spmd: SPMDActor, tmp_path: Path) -> None:
    path = script(tmp_path, "def step(x):\n    return 1 / x\n\nstep(0)\n")
    with pytest.raises(ActorError) as caught:
        spmd.main.call_one("here", 1, [path]).get(PATIENCE)
    assert isinstance(caught.value.exception, ZeroDivisionError)
    lines = [line for line in str(caught.value).splitlines() if not re.fullmatch(r"[ ~^]+", line)]
    where = [
        f'  File "{path}", line 4, in <module>',
        "    step(0)",
        f'  File "{path}", line 2, in step',
        "    return 1 / x",
    ]
    begin = lines.index(where[0])
    assert lines[begin : begin + 4] == where
    assert "run_as_main" not in str(caught.value)


def test_the_environment_of_a_single_process(session: Session, spmd: SPMDActor) -> None:
    spmd.setup_env.call_one("here", 4711).get(PATIENCE)
    assert [os.environ[name] for name in NAMES] == ["0", "1", "0", "0", "here", "4711", "run"]


def test_the_hosts_can_be_said(session: Session, spmd: SPMDActor) -> None:
    ranks = session.spawn(SPMDActor, on=session.workers(3))
    ranks.slice(gpus=slice(1, 3)).setup_env.call("here", 1, [4, 5]).get(PATIENCE)  # type: ignore[attr-defined]
    names = ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE")  # the same for both, which share a process here
    assert [os.environ[name] for name in names] == ["2", "1", "2"]


def test_a_port_that_is_free(spmd: SPMDActor) -> None:
    host, port = spmd.get_host_port.call_one(None).get(PATIENCE)
    assert host == socket.gethostname()
    with socket.socket() as probe:
        probe.bind(("", port))


def test_one_store_is_to_come_however_often_its_port_is_asked_for(
    spmd: SPMDActor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    before = len(sys.meta_path)
    first, second = (spmd.get_rendezvous.call_one().get(PATIENCE) for _ in range(2))
    assert first == second
    assert len(sys.meta_path) == before + 1
    socket.create_connection(first, PATIENCE).close()


@pytest.mark.parametrize("kind", [AddrType.IPv4, "IPv4"])
def test_an_address_instead_of_a_name(monkeypatch: pytest.MonkeyPatch, kind: AddrType | str) -> None:
    def resolve(name: str, port: None, family: int) -> list[object]:
        assert family == socket.AF_INET
        return [(family, 1, 6, "", ("10.0.0.7", 0))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    assert host_address(kind) == "10.0.0.7"


def test_a_host_without_such_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(*arguments: object) -> list[object]:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    with pytest.raises(OSError, match=r"has no IPv6 address .* pass master_addr="):
        host_address("IPv6")
    with pytest.raises(ValueError, match="IPv5"):
        host_address("IPv5")
