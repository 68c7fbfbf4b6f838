"""Settings of one run, read once from the environment where the run begins and handed down to every process of it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

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
        found = {}
        for name, kind in cls.__annotations__.items():
            text = os.environ.get(PREFIX + name.upper())
            if text is None:
                continue
            try:
                found[name] = {"str": str, "int": int, "float": float}[str(kind)](text)
            except ValueError:
                raise ValueError(f"{PREFIX}{name.upper()} is {text!r}, which is not a number ({kind})") from None
        return cls(**found)  # type: ignore[arg-type]


def runtime_root(settings: Settings) -> Path:
    """The folder that holds one folder per run, 0700: sockets, the fork server's logs.

    Short on purpose: a Unix socket's path has at most 107 bytes.
    """
    if settings.runtime_dir:
        root = Path(settings.runtime_dir)
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
