"""Large arguments and results between processes of one host: through shared memory, and nobody can tell."""

from __future__ import annotations

import contextlib
import hashlib
import os
import resource
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshbook import Actor, Channel, RDMABuffer, SupervisionError, endpoint
from meshbook.runtime.node import bulk
from tests.support import PATIENCE

MIB = 1 << 20
LITTLE = 4096
pytestmark = pytest.mark.process
torch = pytest.importorskip("torch")


class Keep(Actor):
    """Keeps what it is sent, and sends what it is asked for."""

    def __init__(self, given: Any = None) -> None:
        self.kept: list[Any] = [given]

    @endpoint
    def echo(self, value: Any) -> Any:
        return value

    @endpoint
    def keep(self, value: Any) -> None:
        self.kept.append(value)

    @endpoint
    def kept_digest(self, index: int) -> str:
        return digest(self.kept[index])

    @endpoint
    def overwrite(self, index: int) -> str:
        self.kept[index][:] = 7
        return digest(self.kept[index])

    @endpoint
    def drop(self) -> None:
        self.kept.clear()

    @endpoint
    def make(self, size: int) -> Any:
        return np.full(size, os.getpid() % 251, np.uint8)

    @endpoint
    def send_to(self, port: Any, size: int) -> None:
        port.send(np.arange(size, dtype=np.uint8))

    @endpoint
    def lend(self, count: int) -> list[RDMABuffer]:
        return [RDMABuffer(np.full(LITTLE, number % 256, np.uint8)) for number in range(count)]

    @endpoint
    def read(self, buffers: list[RDMABuffer]) -> list[bool]:
        return [is_read(buffer, number) for number, buffer in enumerate(buffers)]

    @endpoint
    def facts(self) -> tuple[int, int, int]:
        """Its process, its descriptors, and its segments."""
        return os.getpid(), len(list(Path("/proc/self/fd").iterdir())), segments()

    @endpoint
    def wait_in_the_end(self) -> None:
        """As long as it takes, however busy the machine is."""
        bulk.LAST_SECONDS = PATIENCE

    @endpoint
    def limit_descriptors(self, number: int) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (number, number))


def is_read(buffer: RDMABuffer, number: int) -> bool:
    target = np.zeros(LITTLE, np.uint8)
    buffer.read_into(target).get(PATIENCE)
    return bool((target == number % 256).all())


def segments() -> int:
    """How many segments this process has."""
    found = 0
    for file in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # that of the folder itself
            found += "memfd:meshbook" in str(file.readlink())
    return found


def digest(value: Any) -> str:
    data = value if isinstance(value, bytes) else np.ascontiguousarray(value).tobytes()
    return hashlib.blake2b(data).hexdigest()


@pytest.fixture(scope="module")
def mesh(host):
    mesh = host.spawn_procs(per_host={"gpus": 2})
    yield mesh
    mesh.stop().get(PATIENCE)


@pytest.fixture(scope="module")
def keep(mesh):
    keep = mesh.spawn("keep", Keep)
    keep.echo.call(np.ones(MIB)).get(PATIENCE)  # the first goes in its frame, with the offer
    keep.echo.call(np.ones(MIB)).get(PATIENCE)
    return keep


@pytest.mark.parametrize("size", [MIB // 2 - 1, MIB // 2, MIB, 3 * MIB + 17, 20 * MIB])
def test_there_and_back(keep, size):
    data = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    back = keep.slice(gpus=0).echo.call_one({"array": data, "bytes": data.tobytes(), "small": 1}).get(PATIENCE)
    assert digest(back["array"]) == digest(back["bytes"]) == digest(data)
    assert back["small"] == 1
    back["array"][0] ^= 1  # writable


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64", "bool", "complex64"])
def test_tensors_of_any_type(keep, dtype):
    tensor = (torch.arange(MIB) % 3).to(getattr(torch, dtype)).view(64, -1).t()
    back = keep.slice(gpus=0).echo.call_one(tensor).get(PATIENCE)
    assert torch.equal(back, tensor)
    back.zero_()


def test_the_bytes_lie_in_segments(keep):
    before = segments()
    value = keep.slice(gpus=0).echo.call_one(np.ones(MIB)).get(PATIENCE)
    assert before
    assert keep.slice(gpus=0).facts.call_one().get(PATIENCE)[2]
    assert "memfd:meshbook" in Path("/proc/self/maps").read_text()
    del value


def test_what_the_caller_changes_afterwards_does_not_show(keep):
    data = np.zeros(4 * MIB, np.uint8)
    wanted = digest(data)
    futures = [keep.keep.call(data), keep.kept_digest.call(-1)]
    data[:] = 1
    for future in futures:
        future.get(PATIENCE)
    assert set(keep.kept_digest.call(-1).get(PATIENCE).values()) == {wanted}


def test_what_one_rank_writes_the_others_do_not_see(keep):
    data = np.zeros(2 * MIB, np.uint8)
    keep.keep.call(data).get(PATIENCE)
    first, second = keep.slice(gpus=0), keep.slice(gpus=1)
    assert first.overwrite.call_one(-1).get(PATIENCE) != digest(data)
    assert second.kept_digest.call_one(-1).get(PATIENCE) == digest(data)


def test_spawns_and_ports_carry_them(mesh):
    data = np.random.default_rng(1).integers(0, 256, 2 * MIB, np.uint8)
    other = mesh.spawn("given", Keep, data)
    assert set(other.kept_digest.call(0).get(PATIENCE).values()) == {digest(data)}
    port, receiver = Channel[Any].open()
    other.send_to.broadcast(port, 2 * MIB)
    wanted = digest(np.arange(2 * MIB, dtype=np.uint8))
    assert [digest(receiver.recv().get(PATIENCE)) for _ in range(2)] == [wanted] * 2
    other.stop().get(PATIENCE)


def test_many_messages_leave_nothing(keep):
    one, data = keep.slice(gpus=0), np.ones(2 * MIB, np.uint8)
    for _ in range(10):
        value = one.echo.call_one(data).get(PATIENCE)
    before = segments(), *one.facts.call_one().get(PATIENCE)[1:]
    for number in range(300):
        data[0] = number % 256
        value = one.echo.call_one(data).get(PATIENCE)
        assert value[0] == number % 256
    after = segments(), *one.facts.call_one().get(PATIENCE)[1:]
    assert all(now <= then for now, then in zip(after, before, strict=True)), (before, after)


def test_unread_messages_give_their_memory_back(keep):
    for _ in range(20):
        keep.make.call(2 * MIB)  # nobody waits
    keep.echo.broadcast(np.ones(MIB))
    keep.drop.call().get(PATIENCE)
    before = [facts[2] for facts in keep.facts.call().get(PATIENCE).values()]
    for _ in range(20):
        keep.make.call(2 * MIB).get(PATIENCE)
    after = [facts[2] for facts in keep.facts.call().get(PATIENCE).values()]
    assert all(now <= then for now, then in zip(after, before, strict=True)), (before, after)


def test_with_few_descriptors_what_is_too_much_goes_in_frames(spawn_procs):
    maker = spawn_procs().spawn("maker", Keep)
    maker.limit_descriptors.call_one(200).get(PATIENCE)
    values = [maker.make.call_one(MIB).get(PATIENCE) for _ in range(80)]
    pid, descriptors, found = maker.facts.call_one().get(PATIENCE)
    assert len({digest(value) for value in values}) == 1
    assert values[0][0] == pid % 251
    assert 10 < found <= 51  # one is the probe
    assert descriptors < 150
    lent = maker.lend.call_one(300).get(PATIENCE)
    assert all(is_read(buffer, number) for number, buffer in enumerate(lent))
    ours = [RDMABuffer(bytes([number % 256]) * LITTLE) for number in range(300)]
    assert all(maker.read.call_one(ours).get(PATIENCE))
    for buffer in ours:
        buffer.drop().get(PATIENCE)
    assert maker.facts.call_one().get(PATIENCE)[1] < 150


def test_values_outlive_the_process_that_sent_them(spawn_procs):
    mesh = spawn_procs()
    maker = mesh.spawn("maker", Keep)
    values = [maker.make.call_one(2 * MIB).get(PATIENCE) for _ in range(3)]
    maker.keep.call_one(values[0]).get(PATIENCE)
    before = [digest(value) for value in values]
    pid = maker.facts.call_one().get(PATIENCE)[0]
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(SupervisionError):
        maker.facts.call_one().get(PATIENCE)
    assert [digest(value) for value in values] == before
    values[2][:] = 1  # what is left of its memory is ours
    mesh.heal().get(PATIENCE)
    again = [maker.make.call_one(2 * MIB).get(PATIENCE) for _ in range(3)]
    assert {int(value[0]) for value in again} == {maker.facts.call_one().get(PATIENCE)[0] % 251}
    assert [digest(value) for value in values[:2]] == before[:2]
    assert digest(maker.echo.call_one(values[0]).get(PATIENCE)) == before[0]  # it is sent to who is there now


def test_a_process_that_leaves_has_its_answers_taken(spawn_procs):
    for _ in range(3):
        mesh = spawn_procs()
        maker = mesh.spawn("maker", Keep)
        maker.wait_in_the_end.call_one().get(PATIENCE)
        maker.make.call_one(2 * MIB).get(PATIENCE)
        answer = maker.make.call_one(8 * MIB)
        mesh.stop().get(PATIENCE)
        assert answer.get(PATIENCE).nbytes == 8 * MIB
