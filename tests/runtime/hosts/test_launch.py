"""The folder of a run: its holders, its removal, and that a sweep removes leftovers only."""

from __future__ import annotations

import io
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from meshbook.runtime.hosts.launch import (
    MARK,
    AgentAnswer,
    RunFolder,
    encode_agent_answer,
    environment_on_host,
    read_agent_answer,
    remove_if_unused,
    sweep,
)
from meshbook.runtime.wire.messages import Address

RUN = "0123abcd"


def leave_behind(path: Path) -> Path:
    """A folder as a killed run leaves it."""
    RunFolder(path).disown()
    (path / "controller").touch()
    (path / "deep").mkdir()
    return path


def test_a_folder_is_made_for_its_user_alone(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / RUN)
    assert folder.path.stat().st_mode & 0o777 == 0o700
    folder.close()
    assert not folder.path.exists()
    folder.close()


def test_the_last_process_removes_the_folder(tmp_path: Path) -> None:
    controller, agent = RunFolder(tmp_path / RUN), RunFolder(tmp_path / RUN)
    controller.close()
    assert agent.path.exists()
    agent.close()
    assert not agent.path.exists()


def test_a_disowned_folder_is_left_to_the_other_owners(tmp_path: Path) -> None:
    parent, child = RunFolder(tmp_path / RUN), RunFolder(tmp_path / RUN)
    child.disown()
    assert parent.path.exists()
    child.close()
    assert parent.path.exists()
    parent.close()
    assert not parent.path.exists()


@pytest.mark.parametrize("held", [True, False])
def test_only_unheld_folders_are_removed(tmp_path: Path, held: bool) -> None:
    left = leave_behind(tmp_path / RUN)
    holder = RunFolder(left) if held else None
    assert remove_if_unused(left) is not held
    assert left.exists() is held
    if holder is not None:
        holder.close()
    assert not remove_if_unused(left)


def test_a_sweep_takes_leftovers_alone(tmp_path: Path) -> None:
    left = [leave_behind(tmp_path / name) for name in (RUN, "ffffffff")]
    running = RunFolder(tmp_path / "00000000")
    assert sweep(tmp_path) == 2
    assert not any(path.exists() for path in left)
    assert running.path.exists()
    running.close()
    assert sweep(tmp_path) == 0


@pytest.mark.parametrize("name", ["Documents", ".ssh", "0123abc", "0123abcde", "0123abcx"])
def test_a_sweep_spares_what_is_no_run(tmp_path: Path, name: str) -> None:
    """Somebody may choose a folder that holds other things: their home, for example."""
    (tmp_path / name).mkdir(mode=0o700)
    (tmp_path / name / "thesis.tex").write_text("all of it")
    (tmp_path / "note").write_text("kept")
    assert sweep(tmp_path) == 0
    assert (tmp_path / name / "thesis.tex").read_text() == "all of it"
    assert (tmp_path / "note").exists()


def test_a_sweep_spares_a_folder_without_the_mark_of_a_run(tmp_path: Path) -> None:
    (tmp_path / RUN).mkdir(mode=0o700)
    (tmp_path / RUN / "thesis.tex").write_text("all of it")
    assert sweep(tmp_path) == 0
    assert (tmp_path / RUN / "thesis.tex").read_text() == "all of it"


def test_a_sweep_takes_a_folder_of_which_only_the_beginning_was_made(tmp_path: Path) -> None:
    (tmp_path / RUN).mkdir(mode=0o700)
    assert sweep(tmp_path) == 1
    assert not (tmp_path / RUN).exists()


class Killed(BaseException):
    """Stands for SIGKILL: nothing handles it."""


@pytest.mark.parametrize("removed", range(7))
def test_a_sweep_finishes_a_removal_that_was_cut_off(tmp_path: Path, removed: int) -> None:
    folder = leave_behind(tmp_path / RUN)
    for name in ("a.err", "a.out", "deep/a", "deep/b", "z"):
        (folder / name).touch()
    unlink, permitted = os.unlink, iter(range(removed))

    def remove(*arguments: Any, **options: Any) -> None:
        if next(permitted, None) is None:
            raise Killed
        unlink(*arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "unlink", remove)
        with pytest.raises(Killed):
            sweep(tmp_path)
    assert sweep(tmp_path) == 1
    assert not folder.exists()


def test_a_sweep_removes_a_folder_in_which_a_file_appeared_meanwhile(tmp_path: Path) -> None:
    folder = leave_behind(tmp_path / RUN)
    unlink = os.unlink

    def remove(path: Any, **options: Any) -> None:
        unlink(path, **options)
        if Path(path).name == MARK:
            (folder / "late.err").touch()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "unlink", remove)
        assert sweep(tmp_path) == 0
    assert sweep(tmp_path) == 1
    assert not folder.exists()


def test_a_sweep_does_not_follow_links(tmp_path: Path) -> None:
    precious, root = tmp_path / "precious", tmp_path / "root"
    precious.mkdir()
    (precious / "file").touch()
    root.mkdir()
    (root / RUN).symlink_to(precious)
    sweep(root)
    assert (precious / "file").exists()


def test_runs_that_begin_while_others_sweep_keep_their_folders(tmp_path: Path) -> None:
    """A sweep may take a folder between its making and its locking; then it is made again."""
    ended = threading.Event()

    def go_on_sweeping() -> None:
        while not ended.is_set():
            sweep(tmp_path)

    sweeper = threading.Thread(target=go_on_sweeping, daemon=True)
    sweeper.start()
    try:
        for number in range(200):
            folder = RunFolder(tmp_path / f"{number:08x}")
            (folder.path / "socket").touch()
            assert sorted(path.name for path in folder.path.iterdir()) == [MARK, "socket"]
            folder.close()
    finally:
        ended.set()
        sweeper.join(10.0)
    assert sweep(tmp_path) == 0


# -- the environment on other hosts --------------------------------------------------

CONTROLLER = {
    "CUDA_VISIBLE_DEVICES": "0,1",
    "SLURM_JOB_ID": "7",
    "SLURM_PROCID": "0",
    "RAY_ADDRESS": "auto",
    "HOME": "/home/me",
    "HF_HOME": "/data",
    "PATH": "/bin",
}


def test_variables_of_a_machine_are_those_of_the_host() -> None:
    host = {"SLURM_JOB_ID": "9", "SLURMD_NODENAME": "n2", "HOME": "/root", "HF_HOME": "/other", "RAY_JOB_ID": "1"}
    assert environment_on_host(CONTROLLER, host, configured={}, chosen={}) == {
        "SLURM_JOB_ID": "9",
        "SLURMD_NODENAME": "n2",
        "HOME": "/root",
        "HF_HOME": "/data",
        "PATH": "/bin",
    }


def test_the_users_own_choice_comes_first() -> None:
    found = environment_on_host(
        CONTROLLER,
        {"CUDA_VISIBLE_DEVICES": "2", "SLURM_JOB_ID": "9"},
        configured={"CUDA_VISIBLE_DEVICES": "4", "HF_HOME": "/scratch"},
        chosen={"CUDA_VISIBLE_DEVICES": "5", "RAY_ADDRESS": "here"},
    )
    assert found["CUDA_VISIBLE_DEVICES"] == "5"
    assert found["HF_HOME"] == "/scratch"
    assert found["SLURM_JOB_ID"] == "9"
    assert found["RAY_ADDRESS"] == "here"


ANSWER = AgentAnswer(address=Address("host-1", "tcp://10.0.0.1:7/host-1"))
LINE = encode_agent_answer(ANSWER)


@pytest.mark.parametrize(
    ("output", "answer"),
    [
        (LINE, ANSWER),
        (b"*** Welcome ***\ncaf\xe9 \x1b[1mbold\x1b[0m\n" + LINE + b"more", ANSWER),
        (b"a prompt without an end of line $ " + LINE, ANSWER),
        (b"x" * 200_000 + LINE, ANSWER),
        (b'{"error": "of another program"}\n' + LINE, ANSWER),
        (LINE.replace(b"\n", b"\r\n"), ANSWER),
        (b"", ""),
        (b"Welcome\nno such \xff program\n", "Welcome\nno such \ufffd program"),
        (LINE[:-9], LINE[:-9].decode().strip()),
    ],
)
def test_what_a_login_shell_prints_before_the_answer_of_an_agent(output: bytes, answer: Any) -> None:
    assert read_agent_answer(io.BytesIO(output)) == answer
