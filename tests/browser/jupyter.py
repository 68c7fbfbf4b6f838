"""A Jupyter server with JupyterLab and Notebook 7, and notebooks that are open there in a browser.

One server has both front ends. Its folders are its own, and so are the settings: no news, no look for updates, and
cells that are out of sight stay in the page.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import nbformat

from tests.kernel.conftest import without_torch

if TYPE_CHECKING:  # it may be missing
    from playwright.sync_api import Locator, Page

FrontEnd = Literal["lab", "notebook"]
START = 60.0  # seconds
LAB_EXTENSION = Path(__file__).parents[2] / "widgets" / "labextension"  # that of this checkout, installed or not
SETTINGS = {
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False, "doNotDisturbMode": True},
    "notebook-extension/tracker": {"windowingMode": "none"},
    "docmanager-extension/plugin": {"autosave": False},
}
# Opens a dialog where its server extension sees no home of its own.
DISABLED = ("ipyparallel-labextension",)
# What is open in the page, in either front end.
CONTEXT = "[...(window.jupyterapp?.shell.widgets('main') ?? [])].find(each => each.context?.sessionContext)?.context"
STATUS = f"(context => context?.isReady && context.sessionContext.session?.kernel?.status)({CONTEXT})"


class Server:
    """A server in a process of its own, which ends with all its kernels. What they start has no torch."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="mb-", dir="/tmp"))
        self.token = secrets.token_hex(16)
        self._write_settings()
        shutil.copytree(LAB_EXTENSION, self.folder / "data" / "labextensions" / "meshbook")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root"],
            env=os.environ | without_torch() | self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.url = ""  # the port is one that the system gave
        self._said: list[str] = []
        self._is_up = threading.Event()
        self._listener = threading.Thread(target=self._listen, name="listens to the Jupyter server")
        self._listener.start()
        if not self._is_up.wait(START) or not self.url:
            self.close()
            raise RuntimeError("the Jupyter server did not start:\n" + "".join(self._said))

    def write(self, name: str, cells: Sequence[str], kernel: str = "meshbook") -> Path:
        """A new notebook, of these cells of code."""
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(each) for each in cells])
        notebook.metadata["kernelspec"] = {"name": kernel, "display_name": kernel, "language": "python"}
        file = self.folder / "notebooks" / f"{name}.ipynb"
        nbformat.write(notebook, file)
        return file

    def address(self, file: Path, front_end: FrontEnd) -> str:
        """Of a notebook, for a browser that was never here."""
        way = "lab/tree" if front_end == "lab" else "notebooks"
        return f"{self.url}{way}/{file.name}?token={self.token}" + ("&reset" if front_end == "lab" else "")

    def trust(self, file: Path) -> None:
        """Let front ends take a notebook for one that was made here, as after `jupyter trust`."""
        command = [sys.executable, "-m", "nbformat.sign", str(file)]
        subprocess.run(command, env=os.environ | self._environment(), check=True, capture_output=True)

    def close(self) -> None:
        self._process.send_signal(signal.SIGTERM)  # it ends its kernels, and they their meshes
        try:
            self._process.wait(START)
        finally:
            self._process.kill()
            self._listener.join()
            shutil.rmtree(self.folder, ignore_errors=True)

    def _listen(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as lines:
            for line in lines:
                self._said.append(line)
                if found := re.search(r"(http://127\.0\.0\.1:\d+/)lab", line):
                    self.url = found[1]
                    self._is_up.set()
        self._is_up.set()  # or it has ended

    def _environment(self) -> dict[str, str]:
        folders = {
            "HOME": "home",
            "JUPYTER_CONFIG_DIR": "config",
            "JUPYTER_DATA_DIR": "data",
            "JUPYTER_RUNTIME_DIR": "runtime",
            "JUPYTERLAB_SETTINGS_DIR": "settings",
            "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
        }
        # In a virtual environment Jupyter prefers what is installed there, as it was then.
        return {"JUPYTER_PREFER_ENV_PATH": "0"} | {name: str(self.folder / folder) for name, folder in folders.items()}

    def _write_settings(self) -> None:
        for folder in ("home", "config", "data", "runtime", "settings", "workspaces", "notebooks"):
            (self.folder / folder).mkdir()
        for name, values in SETTINGS.items():
            file = self.folder / "settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(values))
        pages = {"disabledExtensions": dict.fromkeys(DISABLED, True)}
        for name, values in (self._configuration() | {"labconfig/page_config": pages}).items():
            file = self.folder / "config" / f"{name}.json"
            file.parent.mkdir(exist_ok=True)
            file.write_text(json.dumps(values))

    def _configuration(self) -> dict[str, Any]:
        root = str(self.folder / "notebooks")
        app = {"expose_app_in_browser": True}
        updates = {"check_for_updates_class": "jupyterlab.NeverCheckForUpdate", "news_url": None}
        return {
            "jupyter_server_config": {
                "ServerApp": {"ip": "127.0.0.1", "port": 0, "root_dir": root, "terminals_enabled": False},
                "IdentityProvider": {"token": self.token},
                "LabApp": app | updates | {"extension_manager": "readonly"},
            },
            "jupyter_notebook_config": {"JupyterNotebookApp": app},
        }


class NotebookPage:
    """A notebook, open in a front end. Cells are numbered from 0, as they stand."""

    def __init__(self, page: Page, server: Server, front_end: FrontEnd, file: Path) -> None:
        self.page, self.front_end, self.file = page, front_end, file
        page.goto(server.address(file, front_end), wait_until="domcontentloaded")
        self._wait_ready()

    def reload(self) -> None:
        self.page.reload(wait_until="domcontentloaded")
        self._wait_ready("idle", "busy")

    def _wait_ready(self, *states: str) -> None:
        self.cell(0).wait_for()
        self.page.wait_for_function(f"states => states.includes({STATUS})", arg=[*(states or ("idle",))])

    def cell(self, index: int) -> Locator:
        return self.page.locator(".jp-Notebook .jp-CodeCell").nth(index)

    def output(self, index: int) -> Locator:
        """All that a cell shows below its code."""
        return self.cell(index).locator(".jp-Cell-outputWrapper")

    def start(self, index: int) -> None:
        """Run a cell, as a person does by the keyboard."""
        self.cell(index).locator(".cm-content").click()
        self.page.keyboard.press("Shift+Enter")

    def run(self, index: int) -> Locator:
        """Run a cell until its end; its output."""
        self.start(index)
        return self.wait(index)

    def wait(self, index: int) -> Locator:
        """Until a cell has ended; its output."""
        prompt = self.cell(index).locator(".jp-InputPrompt")
        self.page.wait_for_function(
            "prompt => /\\[\\d+\\]/.test(prompt.textContent)", arg=prompt.element_handle(), polling=50
        )
        return self.output(index)

    def save(self) -> dict[str, Any]:
        """Save the notebook; what is in the file then."""
        self.page.evaluate(f"{CONTEXT}.save()")
        saved: dict[str, Any] = json.loads(self.file.read_text())
        return saved

    def save_with(self, text: str) -> dict[str, Any]:
        """Save until this is in the file: the picture of a dashboard comes a second after what it shows."""
        end = time.monotonic() + START
        while text not in json.dumps(saved := self.save()):
            assert time.monotonic() < end, f"the saved notebook never has {text!r}"
        return saved

    def close(self) -> None:
        """End its kernel; that was its end when this returns."""
        self.page.evaluate(f"{CONTEXT}.sessionContext.shutdown()")

    def choose_theme(self, name: str) -> None:
        """`JupyterLab Light` or `JupyterLab Dark`."""
        self.page.evaluate("theme => window.jupyterapp.commands.execute('apputils:change-theme', {theme})", name)
        self.page.wait_for_selector(f"body[data-jp-theme-name='{name}']", state="attached")
