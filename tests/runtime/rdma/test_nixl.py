"""Transfers by NIXL between real workers, over TCP in place of verbs. The extra is installed beside the environment."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshbook import Actor, RDMABuffer, endpoint
from meshbook.runtime.actor.context import CURRENT
from meshbook.runtime.config import Settings
from meshbook.runtime.hosts.session import Session
from meshbook.runtime.rdma.nixl.nixl_agent import has_nic
from meshbook.runtime.rdma.nixl.registration import STAGED
from tests.support import PATIENCE

WHEEL = "nixl-cu12==1.5.1"  # of what `meshbook[rdma]` asks for the half that is used here


class Owner(Actor):
    """Lends memory."""

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def lend(self, size: int) -> RDMABuffer:
        self.data = pattern(size)
        return RDMABuffer(self.data)

    @endpoint
    def lend_again(self, start: int = 0, seed: int = 0) -> RDMABuffer:
        """Part of what was lent last, with other numbers in it."""
        self.data[:] = pattern(len(self.data), seed)
        return RDMABuffer(self.data[start:])

    @endpoint
    def lend_on_gpu(self, size: int) -> RDMABuffer:
        import torch

        self.tensor = torch.from_numpy(pattern(size)).cuda()
        return RDMABuffer(self.tensor)

    @endpoint
    def gpu_has(self, more: int) -> bool:
        import torch

        torch.cuda.synchronize()
        return bool((self.tensor.cpu().numpy() == pattern(len(self.tensor)) + more).all())

    @endpoint
    def has(self, seed: int) -> bool:
        return bool((self.data == pattern(len(self.data), seed)).all())

    @endpoint
    def hold(self, gate: str) -> None:
        """Keep Python from running in this process, until somebody writes there. To open it waits for that as well."""
        path = gate.encode()
        libc = ctypes.PyDLL(None)  # keeps the GIL
        libc.close(libc.open(path, os.O_WRONLY))  # whoever reads there knows that Python is held by now
        libc.close(libc.open(path, os.O_RDONLY))


class Peer(Actor):
    """Reads and writes it."""

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def read(self, buffer: RDMABuffer, offset: int = 0, seed: int = 0, timeout: float = PATIENCE) -> bool:
        target: Any = np.zeros(buffer.size() - offset, np.uint8)
        buffer.read_into(target, offset, timeout=timeout).get(PATIENCE)
        return bool((target == pattern(buffer.size(), seed)[offset:]).all())

    @endpoint
    def write(self, buffer: RDMABuffer, seed: int) -> None:
        buffer.write_from(pattern(buffer.size(), seed)).get(PATIENCE)

    @endpoint
    def copy_on_gpu(self, buffer: RDMABuffer) -> bool:
        """Read it to a GPU, and write it back with one added to each number."""
        import torch

        here = torch.zeros(buffer.size(), dtype=torch.uint8, device="cuda")
        buffer.read_into(here).get(PATIENCE)
        is_right = bool((here.cpu().numpy() == pattern(buffer.size())).all())
        buffer.write_from(here + 1).get(PATIENCE)
        return is_right

    @endpoint
    def explain(self, buffer: RDMABuffer) -> str:
        return buffer.explain()


def pattern(size: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


@pytest.fixture(scope="module")
def extra() -> Path | None:
    """A folder with NIXL in it, made once for an environment; None where that has it already."""
    if importlib.util.find_spec("nixl_cu12") is not None:
        return None
    folder = Path(sys.prefix) / "nixl-for-tests" / WHEEL.partition("==")[2]
    if not folder.is_dir():
        install_into(folder)
    return folder


def install_into(folder: Path) -> None:
    """Without what it depends on, which is here: torch would bring gigabytes of CUDA."""
    half = folder.with_name(f"{folder.name}.{os.getpid()}")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary=:all:", "--retries=1"]
    try:
        subprocess.run([*pip, "--target", half, WHEEL], check=True, capture_output=True, text=True, timeout=90)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        pytest.skip(f"NIXL cannot be installed here: {error} {error.stderr!r}")
    shutil.rmtree(half / "nixl_ep_cu12", ignore_errors=True)  # 100 MB that is not for this
    try:
        half.rename(folder)
    except OSError:  # another run was first
        shutil.rmtree(half)


OVER_TCP = {"UCX_TLS": "tcp", "UCX_NET_DEVICES": "lo"}
OVER_NICS: dict[str, str] = {}


@pytest.fixture(
    scope="module",
    params=[pytest.param(OVER_TCP, id="tcp"), pytest.param(OVER_NICS, id="verbs", marks=pytest.mark.rdma)],
)
def shared(request: pytest.FixtureRequest, extra: Path | None) -> Iterator[tuple[Session, tuple[Any, Any]]]:
    """A session whose workers know no other way, over TCP or over what a NIC has, and two of them."""
    if request.param is OVER_NICS and not has_nic():
        pytest.skip("there is no RDMA NIC here")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in request.param.items():
            patch.setenv(name, value)
        if extra is not None:
            patch.syspath_prepend(extra)
        session = Session(
            Settings(runtime_dir=os.environ["MESHBOOK_RUNTIME_DIR"], preload="numpy", rdma_backends="nixl")
        )
        token = CURRENT.set(session.context)
        pair = spawn_pair(session)
        ask(pair[1].pid.call_one())  # they are there when the first test begins
        CURRENT.reset(token)
        yield session, pair
        session.close()


@pytest.fixture
def session(shared: tuple[Session, Any]) -> Iterator[Session]:
    token = CURRENT.set(shared[0].context)
    yield shared[0]
    CURRENT.reset(token)


@pytest.fixture
def pair(session: Session, shared: tuple[Any, tuple[Any, Any]]) -> tuple[Any, Any]:
    """Two workers, which the tests share: one lends, the other one reads and writes."""
    return shared[1]


def spawn_pair(session: Session) -> tuple[Any, Any]:
    return pair_on(session.host.spawn_procs({"procs": 2}))


def pair_on(procs: Any) -> tuple[Any, Any]:
    return procs.slice(procs=0).spawn("owner", Owner), procs.slice(procs=1).spawn("peer", Peer)


def ask(call: Any) -> Any:
    return call.get(PATIENCE)


pytestmark = pytest.mark.process


def test_bytes_arrive_as_they_are(pair: tuple[Any, Any]) -> None:
    owner, peer = pair
    for size in (1, 4096, STAGED, STAGED + 1, (80 << 20) + 3):
        buffer = ask(owner.lend.call_one(size))
        assert "-> nixl" in ask(peer.explain.call_one(buffer))
        assert ask(peer.read.call_one(buffer))
        assert ask(peer.read.call_one(buffer, size // 3))
        ask(peer.write.call_one(buffer, 1))
        assert ask(owner.has.call_one(1))


def test_a_kernel_does_not_load_it(pair: tuple[Any, Any]) -> None:
    assert "only workers use NIXL" in ask(pair[0].lend.call_one(10)).explain()


def test_buffers_of_the_same_memory_come_and_go(pair: tuple[Any, Any]) -> None:
    owner, peer = pair
    first = ask(owner.lend.call_one(1 << 20))
    assert ask(peer.read.call_one(first))
    second = ask(owner.lend_again.call_one(0, 2))
    assert ask(peer.read.call_one(second, 0, 2))
    ask(first.drop())
    assert ask(peer.read.call_one(second, 0, 2)), "the memory is registered for the other one still"
    ask(second.drop())
    third = ask(owner.lend_again.call_one(1000, 3))
    ask(peer.write.call_one(third, 4))
    for dropped in (first, second):
        for move in (peer.read.call_one(dropped), peer.write.call_one(dropped, 5)):
            with pytest.raises(Exception, match="was dropped"):
                ask(move)
    assert ask(peer.read.call_one(third, 0, 4))


def test_it_goes_on_while_the_owner_holds_the_interpreter(pair: tuple[Any, Any], tmp_path: Path) -> None:
    owner, peer = pair
    buffer = ask(owner.lend.call_one(2 << 20))
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    held = owner.hold.call_one(str(gate))
    with gate.open("rb"):
        assert ask(peer.read.call_one(buffer))
        ask(peer.write.call_one(buffer, 1))
    with gate.open("wb"):
        ask(held)
    assert ask(owner.has.call_one(1))


@pytest.mark.gpu
@pytest.mark.rdma
def test_memory_of_gpus_is_read_and_written(pair: tuple[Any, Any]) -> None:
    if not has_nic() or not pytest.importorskip("torch").cuda.is_available():
        pytest.skip("there is no RDMA NIC, or no GPU, here")
    owner, peer = pair
    for size in (8, 5 << 20):
        buffer = ask(owner.lend_on_gpu.call_one(size))
        assert ask(peer.read.call_one(buffer))
        assert ask(peer.copy_on_gpu.call_one(buffer))
        assert ask(owner.gpu_has.call_one(1))


def test_a_stopped_or_ended_owner_is_detected_in_time(session: Session) -> None:
    """Over TCP its own progress thread serves it, which is stopped as well."""
    whole = session.host.spawn_procs({"procs": 2})
    owner, peer = pair_on(whole)
    buffer = ask(owner.lend.call_one(40 << 20))
    assert ask(peer.read.call_one(buffer))
    pid = ask(owner.pid.call_one())
    os.kill(pid, signal.SIGSTOP)
    if "UCX_TLS" in os.environ:
        with pytest.raises(Exception, match="was not done after"):
            ask(peer.read.call_one(buffer, timeout=0.3))
    os.kill(pid, signal.SIGCONT)
    assert ask(peer.read.call_one(buffer))

    os.kill(pid, signal.SIGSTOP)
    under_way = peer.read.call_one(buffer)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(Exception, match=r"has ended, and the memory of the buffer with it"):
        ask(under_way)
    with pytest.raises(Exception, match=r"has ended, and the memory of the buffer with it"):
        ask(peer.read.call_one(buffer))
    ask(whole.stop())
