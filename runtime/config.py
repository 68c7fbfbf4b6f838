"""Settings of one run, read once from the environment where the run begins and handed down to every process of it."""

from __future__ import annotations

import math
import os
import tempfile
from pathlib import Path
from typing import Any

import msgspec

PREFIX = "MESHBOOK_"
PACKAGE = Path(__file__).parent.parent  # the folder of the importable package, by whichever way it was found


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Limits and places. Each field can be set by the variable `MESHBOOK_<FIELD>`; sizes are bytes, times seconds."""

    runtime_dir: str = ""
    max_message_bytes: int = 4 << 30
    high_water_mark: int = 10_000  # messages queued per peer before a sender has to wait
    launch_timeout: float = 60.0
    stop_timeout: float = 3.0  # a worker that has not left by then is killed
    stderr_lines: int = 20
    # What the fork server imports, so that workers have it at birth. Names, not imports: see design of the floors.
    preload: str = "torch,torch.distributed,torch.nn,numpy,meshbook.runtime.cells.preload"

    @classmethod
    def from_environment(cls) -> Settings:
        """Read `MESHBOOK_*`; a value that does not fit its field is an error that names the variable."""
        found = {
            name: _read(PREFIX + name.upper(), str(kind))
            for name, kind in cls.__annotations__.items()
            if PREFIX + name.upper() in os.environ
        }
        return cls(**found)


def _read(variable: str, kind: str) -> Any:
    text = os.environ[variable]
    if kind == "str":
        return text
    try:
        value = {"int": int, "float": float}[kind](text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        wanted = "a number" if kind == "float" else "a whole number"
        raise ValueError(f"{variable} is {text!r}: it needs {wanted} that is not negative")
    return value


def runtime_root(settings: Settings) -> Path:
    """The folder that holds one folder per run, 0700: sockets, the fork server's logs.

    Short on purpose: a Unix socket's path has at most 107 bytes.
    """
    if settings.runtime_dir:
        root = Path(settings.runtime_dir).absolute()  # processes of the run may go to other folders
    elif "XDG_RUNTIME_DIR" in os.environ and os.access(os.environ["XDG_RUNTIME_DIR"], os.W_OK):
        root = Path(os.environ["XDG_RUNTIME_DIR"]) / "meshbook"
    else:
        root = Path(tempfile.gettempdir()) / f"meshbook-{os.getuid()}"
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    check_private(root)
    return root


def check_private(folder: Path) -> None:
    """Refuse a folder in which another user could put a socket: what arrives there is trusted and unpickled."""
    status = folder.stat()
    if status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise PermissionError(
            f"{folder} must belong to you and be closed to others (mode 0700): messages of your run pass through it. "
            f"Remove it or run chmod 700, or set MESHBOOK_RUNTIME_DIR to another folder."
        )
