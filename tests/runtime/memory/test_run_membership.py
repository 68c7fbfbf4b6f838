"""An agent finds out which processes belong to its run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from meshbook.runtime.memory.process_identity import ProcessMark, RunMembership, own_mark

# Run by a child process, as by an agent: its parent is not a descendant of the agent.
ASK = """
import sys
from pathlib import Path
import msgspec
from meshbook.runtime.memory.process_identity import ProcessMark, RunMembership, own_mark
parent = msgspec.json.Decoder(ProcessMark).decode(sys.argv[1])
membership = RunMembership(Path(sys.argv[2]))
print(membership.includes(parent), membership.includes(own_mark()), membership.includes(own_mark()))
"""


def ask(folder: Path) -> str:
    mark = msgspec.json.encode(own_mark())
    command = [sys.executable, "-c", ASK, mark, str(folder)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.mark.process
def test_a_controller_is_known_by_the_folder_that_it_holds(tmp_path: Path) -> None:
    assert ask(tmp_path) == "False True True"
    held = os.open(tmp_path, os.O_RDONLY)
    assert ask(tmp_path) == "True True True"
    os.close(held)


@pytest.mark.process
def test_what_came_of_this_process_is_its_own(tmp_path: Path) -> None:
    with subprocess.Popen(["sh", "-c", "sleep 1000 & echo $!; wait"], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        grandchild = int(child.stdout.readline())
        began = int(Path(f"/proc/{grandchild}/stat").read_text().rpartition(")")[2].split()[19])
        mark = ProcessMark(grandchild, began, own_mark().system)
        assert RunMembership(tmp_path).includes(mark)
        os.kill(grandchild, 9)
        child.wait()
    assert not RunMembership(tmp_path).includes(mark)


def test_a_process_with_another_start_time_is_no_member(tmp_path: Path) -> None:
    """Its pid was reused, or the mark was forged."""
    ours = own_mark()
    assert RunMembership(tmp_path).includes(ours)
    assert not RunMembership(tmp_path).includes(ProcessMark(ours.pid, ours.started + 1, ours.system))
