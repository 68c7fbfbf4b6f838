"""Another host: the owner's host agent reads and writes its memory there, and the bytes go over TCP."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from meshbook.runtime.errors import TransferError, TransferTimeout
from meshbook.runtime.memory.local import CPU, Local
from meshbook.runtime.node.node import Node
from meshbook.runtime.rdma import protocol
from meshbook.runtime.rdma.handle import Handle, Lease
from meshbook.runtime.rdma.line import Line
from meshbook.runtime.rdma.lines import Lines, LinesToAgent
from meshbook.runtime.rdma.ways import Job

TRIES = 3  # of a read whose connection breaks: it goes on where it was
WRITE_PIECE = 8 << 20  # bytes between two looks at whether the agent has refused


class HostAgent:
    """TCP to the memory server of the owner's host agent (`runtime.rdma.server`)."""

    name = "host agent"
    is_immediate = False

    def __init__(self, node: Node) -> None:
        self._lines = Lines(node)

    def refusal(self, handle: Handle, local: str | None) -> str:
        if handle.agent is None:
            return "the owner has no host agent"
        if handle.is_on_gpu or local not in (None, CPU):
            return "the memory is that of a GPU"
        return self._lines.trouble(handle.agent)

    def read(self, job: Job) -> None:
        lines, done, last = self._to(job), 0, ""

        def moved(count: int) -> None:
            nonlocal done
            done += count
            job.moved(count)

        for _ in range(TRIES):
            try:
                return self._read(lines, job, done, moved)
            except ConnectionError as error:
                last = str(error)
                lines.check_living()
            except TransferTimeout as error:
                raise _late(job, done, error) from error
        raise TransferError(f"the connection to the host agent of {job.handle.actor} broke {TRIES} times: {last}")

    def _read(self, lines: LinesToAgent, job: Job, done: int, moved: Callable[[int], object]) -> None:
        with lines.line(job.deadline) as line:
            line.send(_ask(job, done, is_write=False), job.deadline)
            trouble = _receive_answer(line, job)
            if trouble is None:
                line.receive_into(job.local.view()[done:], job.deadline, moved)
        if trouble is not None:
            raise trouble

    def write(self, job: Job) -> None:
        """Not tried again: what was sent first might come to the owner last."""
        lines, done = self._to(job), 0

        def moved(count: int) -> None:
            nonlocal done
            done += count
            job.moved(count)

        try:
            with lines.line(job.deadline) as line:
                self._write(line, job, moved)
        except ConnectionError as error:
            lines.check_living()
            raise TransferError(
                f"the connection to the host agent of {job.handle.actor} broke during a write: {error}"
            ) from error
        except TransferTimeout as error:
            raise _late(job, done, error) from error

    def _write(self, line: Line, job: Job, moved: Callable[[int], object]) -> None:
        line.send(_ask(job, 0, is_write=True), job.deadline)
        view = job.local.view()
        for start in range(0, len(view), WRITE_PIECE):
            if line.has_something():  # an answer before the end is no good one: the rest need not travel
                break
            line.send(view[start : start + WRITE_PIECE], job.deadline, moved)
        if (trouble := _receive_answer(line, job)) is not None:
            raise trouble

    def _to(self, job: Job) -> LinesToAgent:
        assert job.handle.agent is not None
        return self._lines.to(job.handle.agent)

    def offer(self, local: Local, lease: Lease) -> bytes | None:
        return None

    def withdraw(self, handle: Handle) -> None:
        return None

    def close(self) -> None:
        self._lines.close()


def _ask(job: Job, done: int, *, is_write: bool) -> bytes:
    handle = msgspec.structs.replace(job.handle, offers={})
    request = protocol.Request(handle, job.offset + done, job.local.size - done, is_write, job.deadline.left)
    return protocol.pack_request(request)


def _receive_answer(line: Line, job: Job) -> Exception | None:
    """Why it was refused; None where all is well."""
    status, length = protocol.unpack_head(line.receive(protocol.HEAD_BYTES, job.deadline))
    return protocol.make_error(status, line.receive(length, job.deadline)) if status != protocol.OK else None


def _late(job: Job, done: int, error: TransferTimeout) -> TransferTimeout:
    size, seconds = job.local.size, job.deadline.seconds
    by = f"the host agent of {job.handle.actor}"
    return TransferTimeout(f"{done:,} of {size:,} bytes were moved by {by} in {seconds:g} s: {error}")
