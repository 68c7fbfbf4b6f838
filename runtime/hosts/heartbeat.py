"""The heartbeat of a worker: the one thread that wakes while the worker is idle.

Once a second, and less often while the worker is idle, it writes the status page's fields that no other thread keeps up
to date, checks whether C code or a subprocess has written output, and ends a worker whose descriptors were closed.
"""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path

from meshbook.runtime.node.node import Node
from meshbook.runtime.telemetry.stderr_tail import append_last_line
from meshbook.runtime.telemetry.vitals import IDLE_BEAT_SECONDS, SECONDS, Activity, ProcessReport

logger = logging.getLogger(__name__)

MOST_CHARACTERS = 100  # of a name
LOST_DESCRIPTORS = (
    "meshbook: code of this process has closed descriptors that it did not open (os.closerange, as daemonizing code "
    "does). The process receives no more messages, and so it ends. Close only what your code has opened, or do so in "
    "a child process."
)


class Heartbeat:
    """The heartbeat of a node, in the folder of its run, from construction until `close`."""

    def __init__(self, node: Node, folder: Path, incarnation: int) -> None:
        self._node = node
        self._changed = threading.Event()
        self._closed = False
        self._has_failed = False
        self._folder = folder
        node.loop.when_unusable = self._end_if_unusable  # at once, if it sends or receives
        node.status.open(folder, node.address.node, incarnation)
        node.status.when_changed = self._changed.set
        self._beat()
        self._thread = threading.Thread(target=self._run, name="meshbook heartbeat", daemon=True)
        # A debugger that stops all threads must not make this process look dead.
        self._thread.pydev_do_not_trace = True  # type: ignore[attr-defined]
        self._thread.start()

    def close(self) -> None:
        """Stop the heartbeat. Idempotent."""
        self._closed = True
        self._changed.set()
        self._thread.join()
        self._node.status.close()

    def _run(self) -> None:
        while not self._closed:
            is_idle = self._node.status.activity == Activity.IDLE
            if self._node.capture is not None:
                try:
                    self._node.capture.poll(is_idle=is_idle)
                except OSError:  # the user's code has closed its files; a live process must not look dead
                    self._log_once("look for the output of C code and subprocesses")
            self._end_if_unusable()
            self._changed.wait(IDLE_BEAT_SECONDS if is_idle else SECONDS)
            self._changed.clear()
            self._beat()

    def _end_if_unusable(self) -> None:
        if self._node.loop.has_lost_descriptors():
            append_last_line(self._folder, self._node.address.node, LOST_DESCRIPTORS)
            os._exit(1)

    def _beat(self) -> None:
        try:
            self._write_status()
        except Exception:  # a failed status must not make a live process look dead
            self._log_once("write its status")
            self._node.status.tick(ProcessReport(os.getpid()), self._node.traffic())

    def _log_once(self, what: str) -> None:
        if not self._has_failed:
            logger.exception("%s cannot %s", self._node.address.node, what)
        self._has_failed = True

    def _write_status(self) -> None:
        node = self._node
        # two threads that write their own counts may do so in the wrong order
        node.status.collectives(len(node.recorder.open))
        actors = tuple(
            (name[:MOST_CHARACTERS], queued, at[:MOST_CHARACTERS]) for name, queued, at in node.actors.loads()
        )
        first_collective = next((row[4] for row in list(node.recorder.open.values())), "")
        report = ProcessReport(os.getpid(), actors, first_collective, node.status.pause, node.status.gpu)
        node.status.tick(report, node.traffic())
