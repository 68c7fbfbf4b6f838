"""Which bodies go through shared memory, and what becomes of those that cannot be reached."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from meshbook.runtime.errors import MessageLost, SupervisionError
from meshbook.runtime.node.flow_control import size_of
from meshbook.runtime.node.node import Node
from meshbook.runtime.transport.home import Home
from meshbook.runtime.transport.unix import UnixTransport
from meshbook.runtime.wire import pickling
from meshbook.runtime.wire.frames import BodyElsewhere, is_whole, unpack
from meshbook.runtime.wire.messages import Address, Reply
from tests.support import PATIENCE

BODY = pickling.dumps(bytes(1 << 20), "a value")
LARGE = bytes(range(256)) * 4096


@pytest.fixture
def connect(folder: Path) -> Callable[..., UnixTransport]:
    return lambda name, settings: UnixTransport(name, Home.of_first_host(folder), settings)


@pytest.fixture(autouse=True)
def _nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the end of a test, until somebody opens frames that were never sent."""
    monkeypatch.setattr("meshbook.runtime.node.bulk.LAST_SECONDS", 0.0)


def frame_for(node: Node, to: Address) -> Any:
    return node.bulk.pack(Reply(node.address.node, 1, "ok"), BODY, size_of(BODY), to)


def exchange(session: Any, node: Node) -> None:
    """Large values both ways, and after them whatever they have led to."""
    probe = session.spawn_probe(node)
    for _ in range(2):
        assert probe.run.call_one(bytes, LARGE).get(PATIENCE) == LARGE


def test_the_first_one_goes_in_its_frame_with_an_offer(session):
    [node] = session.workers(1)
    assert is_whole(frame_for(session.controller, node.address))
    exchange(session, node)
    assert not is_whole(frame_for(session.controller, node.address))


def test_peers_get_only_what_they_can_read(session):
    [node] = session.workers(1)
    node.bulk.refuses = "it has its reasons"
    exchange(session, node)
    assert is_whole(frame_for(session.controller, node.address))
    assert not is_whole(frame_for(node, session.controller.address))


def test_other_hosts_get_frames(session):
    [node] = session.workers(1)
    exchange(session, node)
    far = Address("far", "tcp://10.0.0.7:40123/far")
    assert is_whole(frame_for(session.controller, far))


def test_it_can_be_switched_off(make_session):
    session = make_session(shared_bytes=0)
    [node] = session.workers(1)
    exchange(session, node)
    assert is_whole(frame_for(session.controller, node.address))


@pytest.mark.process
def test_an_unreachable_handle_is_an_error_where_it_is_loaded(session):
    """Its sender has ended before it was looked at."""
    [node] = session.workers(1)
    exchange(session, node)
    _, packed = unpack(frame_for(session.controller, node.address))
    assert isinstance(packed, BodyElsewhere)
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
    ended = msgspec.structs.replace(packed.reference.owner, pid=child)
    reference = msgspec.structs.replace(packed.reference, owner=ended)
    body = node.bulk.open(BodyElsewhere(packed.lengths, reference))
    assert size_of(body) == size_of(BODY)
    with pytest.raises(MessageLost, match=f"a value could not be read: its sender, process {child} of this host"):
        pickling.loads(body, "a value")
    assert issubclass(MessageLost, SupervisionError)  # who heals and asks again needs to know of no other error
