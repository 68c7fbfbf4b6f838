"""The first code of the agent on the controller's host: it starts the warm fork server, then the agent itself.

It is run by its path, with the agent's module and the folder of the run as arguments, and imports nothing of meshbook
at first. Imports are most of the start time; this way those of
the agent and those of the fork server run at the same time.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

LOG = "forkserver.log"
REMOVAL_SECONDS = 5.0
HUGE = "glibc.malloc.hugetlb"

Started = tuple[subprocess.Popen[bytes], socket.socket]  # a fork server, and the channel to it


def main() -> None:
    """Read the agent's spec, the first line of standard input, and run as that agent."""
    received = b""
    while b"\n" not in received and (data := os.read(0, 65536)):
        received += data
    if b"\n" not in received:
        remove_folder(Path(sys.argv[2]))
        return
    spec = json.loads(received.partition(b"\n")[0])
    is_warm = spec["is_warm"] and spec["settings"]["preload"]
    server = execute_forkserver(Path(spec["folder"], LOG), spec["settings"]["preload"]) if is_warm else None
    gc.disable()  # as in the fork server: imported objects stay
    agent = importlib.import_module(sys.argv[1])
    gc.freeze()
    gc.enable()
    agent.main(received, server)


def remove_folder(folder: Path) -> None:
    """Remove the folder of a run whose controller was killed before it had sent the agent's spec."""
    # Weight: no other process waits for this import.
    from meshbook.runtime.hosts.launch import remove_if_unused

    end = time.monotonic() + REMOVAL_SECONDS
    while folder.exists() and not remove_if_unused(folder) and time.monotonic() < end:
        time.sleep(0.01)  # a killed process closes its files one after the other, and may still hold the lock


def execute_forkserver(log_file: Path, preload: str) -> Started:
    """Start a fork server as a new interpreter that imports these modules. Its log is in the folder of the run."""
    channel, theirs = socket.socketpair()
    with theirs, open(log_file, "wb", opener=lambda path, flags: os.open(path, flags, 0o600)) as log:
        process = subprocess.Popen(
            [
                *(sys.executable, "-P", "-m", "meshbook.runtime.hosts.forkserver"),
                *(str(theirs.fileno()), str(os.getpid()), str(log_file.parent), preload, ""),
            ],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env=os.environ | {"GLIBC_TUNABLES": with_huge_pages(os.environ.get("GLIBC_TUNABLES", ""))},
        )
    return process, channel


def with_huge_pages(tunables: str) -> str:
    """Return these tunables of the C library (glibc manual, 39.2) with huge pages for its allocations.

    A fork copies the page tables of the memory that torch allocated, and its end frees them before the parent is
    notified: huge pages cut that to a third. A worker's own environment does not have the tunable. A value set by the
    user is kept.
    """
    known = tunables.split(":") if tunables else []
    return ":".join(known if any(HUGE in each for each in known) else [*known, f"{HUGE}=1"])


if __name__ == "__main__":
    main()
