"""The tasks that the agent of one host runs for the others."""

from __future__ import annotations

import queue
from pathlib import Path
from typing import Any, cast

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
