"""Buffers in a run of threads: every way leads to another worker's memory there as well, and nothing stays behind."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import psutil
import pytest

from meshbook import Actor, RDMABuffer, endpoint
from meshbook.runtime.actor.context import CURRENT
from meshbook.runtime.config import Settings
from meshbook.runtime.hosts.in_process import InProcessSession
from tests.support import PATIENCE

SIZE = 1_000_003


class Probe(Actor):
    @endpoint
    def lend(self) -> RDMABuffer:
        self.data = np.arange(SIZE, dtype=np.uint8)
        return RDMABuffer(self.data)

    @endpoint
    def exchange(self, buffer: RDMABuffer) -> bool:
        """Read it, and write it back the other way round."""
        target = np.zeros(SIZE, np.uint8)
        buffer.read_into(target).get(PATIENCE)
        buffer.write_from(target[::-1].copy()).get(PATIENCE)
        return bool((target == np.arange(SIZE, dtype=np.uint8)).all())

    @endpoint
    def is_reversed(self) -> bool:
        return bool((self.data[::-1] == np.arange(SIZE, dtype=np.uint8)).all())


@pytest.mark.parametrize(
    ("way", "limit"), [("process memory", 4 << 30), ("host agent", 4 << 30), ("message", 4 << 30), ("message", 50_000)]
)
def test_bytes_go_to_and_fro(way: str, limit: int) -> None:
    """Where messages may not be large, their pieces are smaller."""
    threads = set(threading.enumerate())
    files = psutil.Process().num_fds()
    session = InProcessSession(Settings(rdma_backends=way, max_message_bytes=limit))
    token = CURRENT.set(session.context)
    try:
        probe: Any = session.host.spawn_procs(per_host={"gpus": 2}).spawn("probe", Probe)
        buffer = probe.slice(gpus=0).lend.call_one().get(PATIENCE)
        assert probe.slice(gpus=1).exchange.call_one(buffer).get(PATIENCE)
        assert probe.slice(gpus=0).is_reversed.call_one().get(PATIENCE)
    finally:
        CURRENT.reset(token)
        session.close()
    for thread in set(threading.enumerate()) - threads:
        thread.join(PATIENCE)
    assert psutil.Process().num_fds() <= files
