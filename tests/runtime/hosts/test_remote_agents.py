"""The tasks that the agent of one host runs for the others."""

from __future__ import annotations

import queue
import socket
import threading
from pathlib import Path
from typing import Any, cast

import pytest

from meshbook.runtime import resources
from meshbook.runtime.hosts.remote_agents import RemoteAgents
from meshbook.runtime.transport.home import Home
from tests.support import PATIENCE


class Gateway:
    def start(self, home: Home, events: Any) -> None: ...


def test_a_task_that_fails_does_not_stop_later_tasks(caplog: Any) -> None:
    """A report of an end that cannot be sent must not keep later reports from being sent."""
    others = RemoteAgents(cast("Any", None), Home.of_first_host(Path("/run")))
    others.open(cast("Any", Gateway()))
    done: queue.SimpleQueue[str] = queue.SimpleQueue()
    others.run(lambda: cast("Any", None).call())
    others.run(lambda: done.put("done"))
    assert done.get(timeout=PATIENCE) == "done"
    assert caplog.messages == ["a task for other hosts failed"]


def test_lookups_are_limited_where_no_name_server_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    answered = threading.Event()

    def get_address(*_: Any) -> None:
        answered.wait(PATIENCE)
        raise socket.gaierror(socket.EAI_NONAME, "no such name")

    monkeypatch.setattr(socket, "getaddrinfo", get_address)
    monkeypatch.setattr(resources, "LOOKUP_SECONDS", 0.01)
    home = Home.of_first_host(Path("/run"))
    others = RemoteAgents(cast("Any", None), home)
    assert others.network == {"RES_OPTIONS": "timeout:1 attempts:1", "GLOO_SOCKET_IFNAME": "lo"}
    others.open(cast("Any", Gateway()))  # other hosts do not reach the loopback interface
    assert others.network == {"RES_OPTIONS": "timeout:1 attempts:1"}
    answered.set()
    monkeypatch.setattr(resources, "LOOKUP_SECONDS", PATIENCE)
    assert others.network == {}
