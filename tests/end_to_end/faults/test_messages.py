"""Messages that cannot travel: not pickled, not unpickled, too large. The sender's error names the value."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from meshbook import ActorError, SupervisionError
from meshbook.runtime.actor.context import CURRENT
from meshbook.runtime.config import Settings
from meshbook.runtime.errors import MessageTooLarge, PickleError
from meshbook.runtime.hosts.session import Session
from tests.support import PATIENCE, Probe

LIMIT = 1 << 20
pytestmark = pytest.mark.process


class Unreadable:
    """Pickled here, and not unpickled anywhere."""

    def __reduce__(self) -> Any:
        return refuse, ()


def refuse() -> None:
    raise ValueError("not to be read")


@pytest.fixture(scope="module")
def narrow_session() -> Iterator[Session]:
    """Messages of a MiB at most."""
    session = Session(msgspec.structs.replace(Settings.from_environment(), preload="", max_message_bytes=LIMIT))
    token = CURRENT.set(session.context)
    session.host.spawn_procs().stop().get(PATIENCE)  # the agent is there: no test is blamed for it
    CURRENT.reset(token)
    yield session
    session.close()


@pytest.fixture
def probe(narrow_session: Session) -> Iterator[Any]:
    token = CURRENT.set(narrow_session.context)
    procs = narrow_session.host.spawn_procs(per_host={"gpus": 2})
    probe = procs.spawn("probe", Probe)
    yield probe
    # Whatever it was that could not travel: the mesh works.
    assert list(probe.run.call(len, "abc").get(PATIENCE).values()) == [3, 3]
    procs.stop().get(PATIENCE)
    CURRENT.reset(token)


@pytest.mark.parametrize("verb", ["call", "call_one", "stream", "broadcast"])
def test_an_argument_that_cannot_be_pickled(probe: Any, verb: str) -> None:
    """Raised by the call itself, with what it is in the argument."""
    target = probe.slice(gpus=0) if verb == "call_one" else probe
    with pytest.raises(PickleError, match=r"an argument of probe\.run cannot be pickled: .*lock"):
        getattr(target.run, verb)(len, {"inner": [threading.Lock()]})


def test_an_argument_that_cannot_be_unpickled(probe: Any) -> None:
    """The rank is named, and the actor lives."""
    with pytest.raises(ActorError, match=r"probe\.run\(\) on rank .*of probe\.run cannot be unpickled") as caught:
        probe.run.call(len, Unreadable()).get(PATIENCE)
    assert "not to be read" in str(caught.value)


def test_a_result_that_cannot_be_pickled(probe: Any) -> None:
    with pytest.raises(ActorError, match=r"the result of probe\.run cannot be pickled: .*lock"):
        probe.run.call(threading.Lock).get(PATIENCE)


def test_a_result_that_cannot_be_unpickled(probe: Any) -> None:
    with pytest.raises(PickleError, match="the result of an endpoint cannot be unpickled: ValueError: not to be read"):
        probe.slice(gpus=1).run.call_one(Unreadable).get(PATIENCE)


@pytest.mark.parametrize("verb", ["call", "broadcast"])
def test_an_argument_that_is_too_large(probe: Any, verb: str) -> None:
    with pytest.raises(MessageTooLarge, match=rf"probe.*run.*over the limit of {LIMIT:,}.*MESHBOOK_MAX_MESSAGE_BYTES"):
        getattr(probe.run, verb)(len, bytes(2 * LIMIT))


def test_a_result_that_is_too_large(probe: Any) -> None:
    with pytest.raises(SupervisionError, match=rf"the result of probe\.run: .*over the limit of {LIMIT:,}"):
        probe.run.call(bytes, 2 * LIMIT).get(PATIENCE)
