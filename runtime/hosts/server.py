"""A fork server as its agent sees it: a process, a channel, a log. For the agent's main thread alone."""

from __future__ import annotations

import binascii
import os
import pickle
import selectors
import socket
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import msgspec

from meshbook.runtime.config import Settings
from meshbook.runtime.hosts.forkserver import Answer
from meshbook.runtime.mesh.birth import Birth
from meshbook.runtime.telemetry.last_words import last_lines

_decode = msgspec.json.Decoder(Answer).decode
HUGE = "glibc.malloc.hugetlb"
EXIT_SECONDS = 1.0  # what lies between its hanging up and its end


class Server:
    """One fork server. It dies with the thread that makes this object."""

    def __init__(self, folder: Path, settings: Settings) -> None:
        self._settings = settings
        self._log = folder / "forkserver.log"
        self._rest = b""
        self._unsent = bytearray()  # while it imports, it does not read
        self.channel, theirs = socket.socketpair()
        self.channel.setblocking(False)
        with theirs, open(self._log, "wb") as log:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-P", "-m", "meshbook.runtime.hosts.forkserver"),
                    *(str(theirs.fileno()), str(os.getpid()), str(folder), settings.preload),
                ],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=os.environ | {"GLIBC_TUNABLES": with_huge_pages(os.environ.get("GLIBC_TUNABLES", ""))},
            )

    @property
    def events(self) -> int:
        """What a selector should wait for on the channel."""
        return selectors.EVENT_READ | (selectors.EVENT_WRITE if self._unsent else 0)

    def ask(self, births: Iterable[Birth]) -> None:
        """Request these workers, as far as the channel takes it at once; `send` sends the rest."""
        for birth in births:
            # Not JSON: an environment may hold what is no UTF-8.
            self._unsent += binascii.b2a_base64(pickle.dumps(birth))
        self.send()

    def send(self) -> None:
        while self._unsent:
            try:
                sent = self.channel.send(self._unsent)
            except BlockingIOError:
                return
            except OSError:
                self._unsent.clear()  # it has ended, as `hear` will tell
                return
            del self._unsent[:sent]

    def hear(self) -> list[Answer] | None:
        """What it says; None once it has ended."""
        try:
            data = self.channel.recv(1 << 20)
        except BlockingIOError:
            return []
        except OSError:
            return None
        if not data:
            return None
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [_decode(line) for line in lines]

    def end(self) -> None:
        """Kill it. Its children end with it, or come to us."""
        self.channel.close()
        self._process.kill()
        self._process.wait()

    def why_ended(self) -> str:
        """Once it hung up: its exit code and the end of its log."""
        try:
            code = self._process.wait(EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            return "the fork server hung up"
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        log = "\n".join(last_lines(self._log, self._settings.stderr_lines))
        return f"the fork server ended ({how})\n{log}".rstrip()


def with_huge_pages(tunables: str) -> str:
    """These tunables of the C library (glibc manual, 39.2), and huge pages for what it allocates.

    A fork copies the page tables of what torch left in memory, and an end takes them apart before anybody hears of it:
    huge pages are a third of that. A worker's own environment does not have it. What the user has said stays.
    """
    known = tunables.split(":") if tunables else []
    return ":".join(known if any(HUGE in each for each in known) else [*known, f"{HUGE}=1"])
