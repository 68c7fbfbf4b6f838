"""Drives a real kernel through jupyter_client, as a front end does: execute, and gather what comes for that cell.

No test sleeps: ranks tell through a named pipe how far they are (`Signs`), and everything else is waited for.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import queue
import re
import select
import shutil
import signal
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nbformat
import psutil
import pytest
from jupyter_client.manager import start_new_kernel

from tests.support import PATIENCE

WITHOUT_TORCH = Path(__file__).parent.parent / "without_torch"


@dataclass
class Cell:
    """One execute request, and the messages that carried it as their parent."""

    code: str
    messages: list[dict[str, Any]] = field(default_factory=list)
    reply: dict[str, Any] | None = None
    is_idle: bool = False
    states: list[str] = field(default_factory=list)  # of the kernel, as reported for this request

    def contents(self, kind: str) -> list[dict[str, Any]]:
        return [message["content"] for message in self.messages if message["msg_type"] == kind]

    @property
    def stdout(self) -> str:
        return self._stream("stdout")

    @property
    def plain(self) -> str:
        """Standard output as a person reads it: without colours."""
        return _without_colours(self.stdout)

    @property
    def stderr(self) -> str:
        return self._stream("stderr")

    def _stream(self, name: str) -> str:
        """The text of a stream; that of the live area if the cell took longer than a cell with plain streams may."""
        streams = "".join(each["text"] for each in self.contents("stream") if each["name"] == name)
        area = self.updates[-1].get("text/plain", "") if self.updates else ""
        if streams or not re.match(r"\d+ ranks? · ", area):
            return streams
        _, _, text = re.sub(r"(?m)^wall [\d.]+ s · .*\n", "", area).partition("\n")
        stdout, _, stderr = text.partition("stderr:\n")
        return stdout if name == "stdout" else stderr

    @property
    def result(self) -> str | None:
        """The text of what the cell evaluates to."""
        found = self.contents("execute_result")
        return found[0]["data"]["text/plain"] if found else None

    @property
    def displays(self) -> list[dict[str, Any]]:
        """The bundles of display_data; not their updates."""
        return [content["data"] for content in self.contents("display_data")]

    @property
    def updates(self) -> list[dict[str, Any]]:
        return [content["data"] for content in self.contents("update_display_data")]

    @property
    def error(self) -> dict[str, Any]:
        (error,) = self.contents("error")
        return error

    @property
    def traceback(self) -> str:
        """As a person reads it: without colours."""
        return _without_colours("\n".join(self.error["traceback"]))

    @property
    def outputs(self) -> list[Any]:
        """What a front end keeps in the notebook: streams joined, displays in their last state."""
        kept: list[Any] = []
        by_display: dict[str, Any] = {}
        for message in self.messages:
            display = message["content"].get("transient", {}).get("display_id")
            if message["msg_type"] == "update_display_data":
                by_display[display].update(data=message["content"]["data"])
            elif message["msg_type"] in ("stream", "display_data", "execute_result", "error"):
                output = nbformat.v4.output_from_msg(message)
                last = kept[-1] if kept else None
                if output.output_type == "stream" and last is not None and last.get("name") == output.name:
                    last.text += output.text
                    continue
                kept.append(output)
                if display:
                    by_display[display] = output
        return kept

    def as_notebook(self) -> str:
        """The notebook's file, with this as its only cell."""
        cell = nbformat.v4.new_code_cell(self.code, outputs=self.outputs)
        return nbformat.writes(nbformat.v4.new_notebook(cells=[cell]))


class KernelNotebook:
    """A kernel and its client. `run` and `run_failing` wait for the end; `start` does not.

    Without torch it starts, and its ranks, as where that is not installed: in half the time. `files` lie in its folder.
    """

    def __init__(
        self,
        kernel: str = "meshbook",
        *,
        torch: bool = True,
        files: Mapping[str, str] | None = None,
        **environment: str,
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="mb-", dir="/tmp"))  # short: it is part of a socket's path
        for name, text in (files or {}).items():
            (self.folder / name).parent.mkdir(exist_ok=True)
            (self.folder / name).write_text(text)
        self.mark = uuid.uuid4().hex
        environment = {
            "MESHBOOK_RUNTIME_DIR": str(self.folder),
            "MESHBOOK_NOTEBOOK": self.mark,
            **({} if torch else without_torch()),
            **environment,
        }
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # until `close`: a restarted kernel gets it too
        try:
            self.manager, self.client = start_new_kernel(
                kernel_name=kernel, env=os.environ | environment, cwd=str(self.folder), stderr=self._errors
            )
        except RuntimeError as error:
            self._errors.seek(0)
            error.add_note(self._errors.read().decode())
            raise
        self._cells: dict[str, Cell] = {}
        if kernel != "meshbook":
            self.run("%load_ext meshbook")

    def start(self, code: str, **options: Any) -> Cell:
        return self.follow(self.client.execute(code, **({"allow_stdin": False} | options)), code)

    def follow(self, request: str, code: str) -> Cell:
        """Gather what comes for a request."""
        cell = self._cells[request] = Cell(code)
        return cell

    def run(self, code: str, timeout: float = PATIENCE) -> Cell:
        """Run a cell that has to succeed."""
        cell = self.wait(self.start(code), timeout)
        assert cell.reply is not None
        assert cell.reply["status"] == "ok", cell.traceback
        return cell

    def run_failing(self, code: str, timeout: float = PATIENCE) -> Cell:
        """Run a cell that has to fail, for the front end too: Run All, nbclient and papermill stop there."""
        return self.wait_failed(self.start(code), timeout)

    def wait_for_prompt(self, timeout: float = PATIENCE) -> str:
        """Until the kernel asks for a line; the prompt."""
        found: list[str] = []

        def is_asked() -> bool:
            with contextlib.suppress(queue.Empty):
                found.append(self.client.get_stdin_msg(timeout=0)["content"]["prompt"])
            return bool(found)

        self.wait_until(is_asked, timeout)
        return found[0]

    def start_asking(self, code: str) -> Cell:
        """Start a cell that may ask for lines, as one of a person's does."""
        return self.start(code, allow_stdin=True)

    def converse(self, code: str, *lines: str) -> tuple[Cell, list[str]]:
        """Run a cell that asks for these lines, and end it; the prompts."""
        cell, prompts = self.start_asking(code), []
        for line in lines:
            prompts.append(self.wait_for_prompt())
            self.client.input(line)
        return self.wait(cell), prompts

    def wait(self, cell: Cell, timeout: float = PATIENCE) -> Cell:
        self.wait_until(lambda: cell.is_idle and cell.reply is not None, timeout)
        return cell

    def wait_failed(self, cell: Cell, timeout: float = PATIENCE) -> Cell:
        self.wait(cell, timeout)
        assert cell.reply is not None
        assert cell.reply["status"] == "error"
        assert cell.reply["ename"] == cell.error["ename"]
        return cell

    def wait_until(self, is_reached: Callable[[], bool], timeout: float = PATIENCE) -> None:
        """Take messages in until the condition holds."""
        end = time.monotonic() + timeout
        while not is_reached():
            assert time.monotonic() < end, f"not reached within {timeout} s"
            self._take_in()

    def _take_in(self) -> None:
        for channel, take in (("iopub", self._take_published), ("shell", self._take_reply)):
            try:
                message = getattr(self.client, f"get_{channel}_msg")(timeout=0.05 if channel == "iopub" else 0)
            except queue.Empty:
                continue
            cell = self._cells.get(message["parent_header"].get("msg_id", ""))
            if cell is not None:
                take(cell, message)

    def _take_published(self, cell: Cell, message: dict[str, Any]) -> None:
        if message["msg_type"] == "status":
            cell.states.append(message["content"]["execution_state"])
            cell.is_idle = cell.is_idle or cell.states[-1] == "idle"
        else:
            cell.messages.append(message)

    def _take_reply(self, cell: Cell, message: dict[str, Any]) -> None:
        cell.reply = message["content"]

    def ask(self, verb: str, *arguments: Any) -> dict[str, Any]:
        """Another request of the shell channel: complete, inspect, is_complete."""
        wanted = getattr(self.client, verb)(*arguments)
        while (reply := self.client.get_shell_msg(timeout=PATIENCE))["parent_header"].get("msg_id") != wanted:
            pass
        content: dict[str, Any] = reply["content"]
        return content

    def evaluate(self, expression: str) -> Any:
        """The value of an expression in the kernel, by its repr."""
        return eval(self.run(f"({expression})").result or "None", {})

    def interrupt(self) -> None:
        """Interrupt the kernel as its specification says, and return when the signal has been delivered.

        While a signal is pending, the system drops another one of the same kind.
        """
        if self.manager.kernel_spec.interrupt_mode == "message":
            self.ask_control("interrupt_request")
        else:
            self.manager.interrupt_kernel()
        self.wait_until(lambda: not has_pending_interrupt(self.pid))

    def ask_control(self, kind: str) -> dict[str, Any]:
        """A request on the control channel, which is answered while a cell runs."""
        channel, request = self.client.control_channel, self.client.session.msg(kind)
        channel.send(request)
        while (reply := channel.get_msg(timeout=PATIENCE))["parent_header"]["msg_id"] != request["header"]["msg_id"]:
            pass
        content: dict[str, Any] = reply["content"]
        return content

    def restart(self) -> None:
        """As a front end does it: the same client goes on with a new process."""
        self._cells.clear()
        self.manager.restart_kernel()
        self.client.wait_for_ready(timeout=PATIENCE)

    def processes(self) -> set[psutil.Process]:
        """The kernel and all processes that it started, whatever their parent is now."""
        return processes_with(f"MESHBOOK_NOTEBOOK={self.mark}")

    @property
    def pid(self) -> int:
        found: int = self.manager.provisioner.process.pid
        return found

    def close(self) -> None:
        self.client.stop_channels()
        if self.manager.has_kernel:
            self.manager.shutdown_kernel()
        self.manager.cleanup_resources()
        shutil.rmtree(self.folder, ignore_errors=True)
        self._errors.close()

    def __enter__(self) -> KernelNotebook:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def watch(function: Any) -> None:
    """Tell 'waiting' once the main thread runs this function. The source runs in kernels, where `tell` is defined."""
    import sys
    import threading
    import time

    def poll() -> None:
        is_running = False
        while not is_running:
            time.sleep(0.01)
            frame = sys._current_frames()[threading.main_thread().ident or 0]
            while frame is not None and not is_running:
                is_running = frame.f_code is function.__code__
                frame = frame.f_back  # type: ignore[assignment]
        tell("waiting")  # type: ignore[name-defined]  # noqa: F821

    threading.Thread(target=poll).start()


class Signs:
    """Words that ranks write into a named pipe: `tell('ready')` in a cell, `wait_for` in the test."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "signs"
        os.mkfifo(self.path)
        # Open for both, or the pipe would end whenever no rank has it open.
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_NONBLOCK)
        self._words: list[str] = []

    @property
    def definition(self) -> str:
        """Source that defines `tell`, for any rank."""
        return f"def tell(word):\n    with open({str(self.path)!r}, 'w') as file:\n        file.write(f'{{word}} ')\n"

    @property
    def watcher(self) -> str:
        """Source that defines `watch(function)`, for the kernel: it tells 'waiting' once the main thread runs that."""
        return f"from typing import Any\n{self.definition}{inspect.getsource(watch)}"

    def wait_for(self, word: str, count: int = 1, timeout: float = PATIENCE) -> None:
        """Wait until so many ranks have written this word; then forget them."""
        end = time.monotonic() + timeout
        while self._words.count(word) < count:
            ready, _, _ = select.select([self._descriptor], [], [], max(0.0, end - time.monotonic()))
            assert ready, f"{self._words.count(word)} of {count} ranks told {word!r}"
            self._words += os.read(self._descriptor, 4096).decode().split()
        self._words = [other for other in self._words if other != word]

    def close(self) -> None:
        os.close(self._descriptor)


def processes_with(mark: str) -> set[psutil.Process]:
    """The processes with this in their environment."""
    found: set[psutil.Process] = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if mark.encode() in (entry / "environ").read_bytes().split(b"\0"):
                found.add(psutil.Process(int(entry.name)))
        except (OSError, psutil.Error):  # it ended meanwhile
            continue
    return found


def without_torch() -> dict[str, str]:
    """The environment of a kernel that starts, with its ranks, as where torch is not installed."""
    path = [str(WITHOUT_TORCH), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(path), "MESHBOOK_PRELOAD": "numpy,meshbook.runtime.cells.preload"}


def _without_colours(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


@pytest.fixture(scope="session")
def make_notebook() -> type[KernelNotebook]:
    """For fixtures of their own; it has to be closed."""
    return KernelNotebook


@pytest.fixture(scope="module")
def needs_torch(request: pytest.FixtureRequest) -> bool:
    """Whether the notebooks that a module's tests share have torch: not where the module is marked `without_torch`."""
    return request.node.get_closest_marker("without_torch") is None


@pytest.fixture(scope="module")
def notebook(needs_torch: bool) -> Iterator[KernelNotebook]:
    """A kernel with a mesh of four ranks, for all tests of a module."""
    with KernelNotebook(torch=needs_torch) as notebook:
        notebook.run("%mesh up --gpus 4")
        yield notebook


@pytest.fixture(scope="module")
def bare_notebook(needs_torch: bool) -> Iterator[KernelNotebook]:
    """A kernel without a mesh, whose agent is there already."""
    with KernelNotebook(torch=needs_torch) as notebook:
        notebook.run("%mesh up --gpus 1")
        notebook.run("%mesh down")
        yield notebook


@pytest.fixture
def signs(tmp_path: Path) -> Iterator[Signs]:
    signs = Signs(tmp_path)
    yield signs
    signs.close()


@pytest.fixture
def open_notebook() -> Iterator[Callable[..., KernelNotebook]]:
    """Opens notebooks of the test's own, with arguments of `Notebook`; closes them. Without torch, unless asked."""
    opened: list[KernelNotebook] = []

    def open_one(kernel: str = "meshbook", *, torch: bool = False, **options: Any) -> KernelNotebook:
        opened.append(KernelNotebook(kernel, torch=torch, **options))
        return opened[-1]

    yield open_one
    for notebook in opened:
        notebook.close()


def has_pending_interrupt(pid: int) -> bool:
    """Whether a SIGINT waits for delivery to this process; False where that cannot be read."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    masks = (line.split()[1] for line in status.splitlines() if line.startswith(("SigPnd:", "ShdPnd:")))
    return any(int(mask, 16) >> (signal.SIGINT - 1) & 1 for mask in masks)
