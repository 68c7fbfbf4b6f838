"""`meshbook attach` and `meshbook trace`: the output of a detached run, and traces of runs of other programs."""

from __future__ import annotations

import json
import os
import secrets
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from meshbook.__main__ import main
from meshbook.cli import running_runs
from meshbook.runtime.config import current_settings, runtime_root
from meshbook.runtime.hosts.journal import JournalTail
from meshbook.runtime.hosts.lifeline import RUN_SOCKET, MeshStatus, RunReply, Status
from tests.support import PATIENCE

SCRIPT = """
import sys
import meshbook
from meshbook import Actor, endpoint, this_host
from meshbook.runs import detach

class Talker(Actor):
    @endpoint
    def ready(self):
        with meshbook.span("preparing"):
            return True

    @endpoint
    def talk(self, path):
        with open(path) as pipe:
            pipe.read()
        print("said later", flush=True)

talkers = this_host().spawn_procs({"gpus": 2}, name="talkers").spawn("talkers", Talker)
talkers.ready.call().get()
print("up", flush=True)
sys.stdin.readline()
for rank in range(2):
    talkers.slice(gpus=rank).talk.call(sys.argv[0] + f".{rank}")
print(detach(600), flush=True)
"""


def names_in(trace: Path) -> set[str]:
    """Return the processes and the spans of a trace."""
    events = json.loads(trace.read_text())["traceEvents"]
    return {event["args"].get("name", "") for event in events if event["ph"] == "M"} | {
        event["name"] for event in events
    }


@pytest.mark.process
def test_the_output_and_the_traces_of_a_run(
    run_script: Callable[..., Any],
    runtime_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("MESHBOOK_RUNTIME_DIR", str(runtime_dir))
    script = run_script(SCRIPT, MESHBOOK_PRELOAD="")
    pipes = [Path(f"{script.process.args[1]}.{rank}") for rank in range(2)]
    for pipe in pipes:
        os.mkfifo(pipe)
    assert script.read_line() == "up"
    running, detached = tmp_path / "running.json", tmp_path / "detached.json"
    assert main(["trace", "-o", str(running)]) == 0
    assert {"controller", "preparing", "talkers.ready"} <= names_in(running)
    script.go_on()
    run = script.read_line()
    script.process.wait(PATIENCE)
    assert main(["trace", run, "-o", str(detached)]) == 0
    assert "talkers.talk" in names_in(detached)
    command = [sys.executable, "-m", "meshbook", "attach", run[:4]]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as attached:
        assert attached.stdout is not None
        assert attached.stderr is not None
        assert "talkers: 2 ranks" in attached.stderr.readline()
        assert f"%mesh attach {run}" in attached.stderr.readline()
        for pipe in pipes:
            pipe.write_text("go on")
            pipe.unlink()
        said = attached.stdout.readline()
        if said != "[talkers 0-1] said later\n":
            assert {said, attached.stdout.readline()} == {f"[talkers {rank}] said later\n" for rank in range(2)}
        assert main(["end", run]) == 0
        assert attached.wait(PATIENCE) == 0
        assert f"run {run}: it has ended" in attached.stderr.read()
    capsys.readouterr()
    assert main(["attach", run]) == 1
    assert "no detached run matches" in capsys.readouterr().err
    assert main(["trace", run]) == 1
    assert "no run matches" in capsys.readouterr().err


def answer_as_run(server: socket.socket, run: str, busy: list[int]) -> None:
    """Answer requests for the status of a run; `busy`: its busy ranks at each of them."""
    for count in busy:
        connection, _ = server.accept()
        with connection, connection.makefile("rwb") as request:
            request.readline()
            mesh = MeshStatus("mesh", ranks=2, busy=count, dead=0)
            status = Status(run=run, host="here", version="", meshes=(mesh,), since=0.0, until=0.0)
            request.write(msgspec.json.encode(RunReply(status=status)) + b"\n")


def test_attach_ends_when_the_cells_of_the_run_have_ended(
    runtime_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MESHBOOK_RUNTIME_DIR", str(runtime_dir))
    monkeypatch.setattr(running_runs, "LOOK_SECONDS", 0.0)
    run = secrets.token_hex(4)
    folder = runtime_root(current_settings()) / run
    folder.mkdir()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(folder / RUN_SOCKET))
        server.listen()
        server.settimeout(PATIENCE)
        answering = threading.Thread(target=answer_as_run, args=(server, run, [2, 2, 1, 0]))
        answering.start()
        assert main(["attach", run]) == 0
        answering.join(PATIENCE)
    first, *_, last = capsys.readouterr().err.splitlines()
    assert "mesh: 2 ranks, 2 busy" in first
    assert last == f"meshbook: run {run}: its cells have ended"


def test_a_journal_is_read_while_it_is_written_and_turned(tmp_path: Path) -> None:
    tail, path = JournalTail(tmp_path), tmp_path / "mesh.0.output"

    def record(text: bytes) -> bytes:
        return struct.pack("<Q", len(text)) + text

    assert tail.read() == []
    path.write_bytes(record(b"one") + record(b"two")[:9])
    assert tail.read() == [b"one"]
    with open(path, "ab") as file:
        file.write(record(b"two")[9:] + record(b"three"))
    path.rename(tmp_path / "mesh.0.output.older")
    path.write_bytes(record(b"four"))
    assert tail.read() == [b"two", b"three", b"four"]
    assert tail.read() == []
    tail.close()
