"""Settings of one run, read once from the environment where the run begins and passed to every process of it.

`OVERRIDES` changes them from within a program, for everything that it starts afterwards.
"""

from __future__ import annotations

import contextlib
import math
import os
import stat
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

PREFIX = "MESHBOOK_"
TORCH = "torch,torch.distributed,torch.nn,numpy"
CELLS = "meshbook.runtime.cells.preload"
A_DAY = 86_400.0
PACKAGE = Path(__file__).parent.parent  # the folder of the importable package, however it was found


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Limits and places. Each field can be set by the variable `MESHBOOK_<FIELD>`; sizes are bytes, times seconds."""

    runtime_dir: str = ""
    checkpoint_dir: str = "checkpoints"  # for functions of `meshbook.checkpoint` that are called without a folder
    max_message_bytes: int = 4 << 30
    high_water_mark: int = 10_000  # messages queued per peer before a sender has to wait
    queue_messages: int = 4096  # queued per process in an actor's queue before that process has to wait
    queue_bytes: int = 64 << 20  # the same in bytes; below the limit, one more message of any size is sent
    # Message size in bytes from which messages to processes of the same host use shared memory; 0: none does.
    shared_bytes: int = 1 << 19
    # Ranks from which a call goes through the agents of the hosts, which also gather the replies; 0: none does.
    cast_ranks: int = 48
    launch_timeout: float = 60.0
    stop_timeout: float = 3.0  # a worker that has not exited by then is killed
    host_timeout: float = 1.7  # silence after which a host is lost: detected within 2 s (`transport.host_link`)
    host_idle: float = 0.0  # after which a notebook returns hosts that run nothing; 0: never
    # Time limit of collectives that name none, with torch's watchdog off; 0: torch's limits and its watchdog.
    collective_timeout: float = 0.0
    stderr_lines: int = 20
    spans: int = 8192  # kept by each process for `%mesh trace`, with as many marks of calls; 0: none are recorded
    rdma_backends: str = (
        ""  # transfer backends for bulk data, separated by commas; empty: all of `runtime.rdma.backends`
    )
    prometheus_port: int = 0  # at which the controller serves metrics on its loopback interface; 0: no metrics
    # Whether the controller shows what ranks print, and log from INFO on; in a notebook it does.
    enable_log_forwarding: bool = False
    show_output: bool = False  # whether it shows what ranks print without that; in a script it does
    # Modules that the warm fork server imports, so that workers start with them. Names, not imports: see the floors.
    preload: str = f"{TORCH},{CELLS}"
    # Whether the warm server is only for meshes of a program that uses torch (`runtime.mesh.warmth`). True in a script
    # that leaves `preload` alone.
    preload_for_torch: bool = False
    # Values for the packages above, passed to every process and not used here. Set by no variable.
    extra: dict[str, str | int | float | bool | None] = {}

    @classmethod
    def from_environment(cls, **defaults: Any) -> Settings:
        """Read `MESHBOOK_*`; raises ValueError, with the variable's name, if a value does not fit its field.

        `defaults` replace those of the class.
        """
        ours = {name: PREFIX + name.upper() for name in cls.__annotations__}
        variables = {name: own if own in os.environ else _VARIABLES.get(name, own) for name, own in ours.items()}
        found = {
            name: _read(variables[name], str(kind))
            for name, kind in cls.__annotations__.items()
            if str(kind) in _KINDS and variables[name] in os.environ
        }
        return cls(**(defaults | found))


# Settings that all processes of a run must share, and that its fork server has already used: fixed when the run begins.
RUN_WIDE = frozenset(
    {
        *("runtime_dir", "launch_timeout", "host_timeout", "preload"),
        *("max_message_bytes", "high_water_mark", "queue_messages", "queue_bytes"),
    }
)
_KINDS = {"str": str, "int": int, "float": float, "bool": bool}
_SWITCHES = {**dict.fromkeys(("1", "true", "yes", "on"), True), **dict.fromkeys(("0", "false", "no", "off"), False)}


# Monarch's variables for settings of meshbook, which take precedence.
_VARIABLES = {"enable_log_forwarding": "HYPERACTOR_MESH_ENABLE_LOG_FORWARDING"}


def _read(variable: str, kind: str) -> Any:
    text = os.environ[variable]
    if kind == "str":
        return text
    if kind == "bool":
        if (switch := _SWITCHES.get(text.lower())) is None:
            raise ValueError(f"{variable} must be 1 or 0, not {text!r}")
        return switch
    try:
        value = _KINDS[kind](text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        wanted = "a number" if kind == "float" else "an integer"
        raise ValueError(f"{variable} must be {wanted} that is not negative, not {text!r}")
    return value


def in_a_notebook() -> bool:
    """Return whether cells run in this process: a kernel's, or those of IPython on a terminal."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and ipython.get_ipython() is not None


class Overrides:
    """Changes that a program makes to the settings of what it starts afterwards; running processes keep theirs.

    Process-wide, as the environment is: the threads of a program and the cells of a notebook share no context variable.
    A change names fields of Settings; `extra` is merged, not replaced. Blocks (`during`) win over lasting changes
    (`set`), later ones over earlier ones, and each block removes only its own change, in whatever order they end.
    """

    def __init__(self) -> None:
        self.defaults: dict[str, Any] = {}  # override those of Settings; the environment wins over them
        self._lasting: dict[str, Any] = {}
        self._blocks: tuple[dict[str, Any], ...] = ()
        self._lock = threading.Lock()  # guards the writing of both

    def set(self, changes: Mapping[str, Any]) -> None:
        """Change these fields for the rest of the process."""
        with self._lock:
            extra = self._lasting.get("extra", {}) | changes.get("extra", {})
            self._lasting = self._lasting | dict(changes) | {"extra": extra}

    @contextlib.contextmanager
    def during(self, changes: Mapping[str, Any]) -> Iterator[None]:
        """Change these fields while the block runs."""
        own = dict(changes)
        with self._lock:
            self._blocks = (*self._blocks, own)
        try:
            yield
        finally:
            with self._lock:
                self._blocks = tuple(other for other in self._blocks if other is not own)

    def clear(self) -> None:
        """Remove every change."""
        with self._lock:
            self._lasting, self._blocks = {}, ()

    def applied_to(self, settings: Settings) -> Settings:
        """Return these settings as a run that begins now gets them."""
        for changes in (self._lasting, *self._blocks):
            extra = settings.extra | changes.get("extra", {})
            settings = msgspec.structs.replace(settings, **{**changes, "extra": extra})
        return settings

    def applied_to_mesh(self, settings: Settings) -> Settings:
        """Return the settings of a run as a mesh that is spawned now gets them."""
        kept = {name: getattr(settings, name) for name in RUN_WIDE}
        return msgspec.structs.replace(self.applied_to(settings), **kept)


OVERRIDES = Overrides()


class _Inherited:
    """The only access to the settings that this process was started with."""

    settings: Settings | None = None


def set_inherited_settings(settings: Settings) -> None:
    """Store the settings that this process was started with (called by workers)."""
    _Inherited.settings = settings


def inherited_settings() -> Settings | None:
    """Return the settings that this process was started with; None if it is not a worker."""
    return _Inherited.settings


def current_settings() -> Settings:
    """Return the settings for everything that this process starts from now on."""
    if (inherited := _Inherited.settings) is not None:
        return OVERRIDES.applied_to(inherited)
    if in_a_notebook():
        ours: dict[str, Any] = {"enable_log_forwarding": True, "collective_timeout": A_DAY}
        return OVERRIDES.applied_to(Settings.from_environment(**(OVERRIDES.defaults | ours)))
    # A script has no cells. It shows what ranks print, unless forwarding is disabled explicitly.
    ours = {"preload": TORCH, "show_output": PREFIX + "ENABLE_LOG_FORWARDING" not in os.environ}
    settings = OVERRIDES.applied_to(Settings.from_environment(**(OVERRIDES.defaults | ours)))
    if PREFIX + "PRELOAD" in os.environ or settings.preload != TORCH:
        return settings
    return msgspec.structs.replace(settings, preload_for_torch=True)


def runtime_root(settings: Settings) -> Path:
    """Return the folder that holds one folder per run, 0700: sockets, the fork server's logs.

    Short on purpose: a Unix socket's path has at most 107 bytes.
    """
    if settings.runtime_dir:
        root = Path(settings.runtime_dir).absolute()  # processes of the run may change their working directory
    elif "XDG_RUNTIME_DIR" in os.environ and os.access(os.environ["XDG_RUNTIME_DIR"], os.W_OK):
        root = Path(os.environ["XDG_RUNTIME_DIR"]) / "meshbook"
    else:
        root = Path(tempfile.gettempdir()) / f"meshbook-{os.getuid()}"
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    check_private(root)
    return root


def open_private(path: str, flags: int) -> int:
    """Open a new file for this user alone, whatever the umask; an `opener` for `open`."""
    return os.open(path, flags, 0o600)


def check_private(folder: Path) -> None:
    """Reject a folder in which another user could create a socket: data that arrives there is trusted and unpickled."""
    status = folder.lstat()
    if stat.S_ISLNK(status.st_mode):  # perhaps created by another user, to a folder of this one
        raise PermissionError(
            f"{folder} must be a folder, not a symbolic link; remove it, or set MESHBOOK_RUNTIME_DIR to the folder"
        )
    if status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise PermissionError(
            f"{folder} must be owned by you and have mode 0700, because messages of your run pass through it; remove "
            f"it, run chmod 700, or set MESHBOOK_RUNTIME_DIR to another folder"
        )
