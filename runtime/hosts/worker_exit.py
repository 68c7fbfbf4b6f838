"""The end of a worker: the interpreter's finalisers run, and what the fork server imported is not taken apart.

The interpreter's own end would clear every module and run the C library's exit handlers: for torch 0.2 s of computing
in each worker, during which it copies the pages it shares with the others. So the steps that users rely on are taken
one by one here, as `multiprocessing` does it for its forked children.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
import threading
import types
import weakref
from pathlib import Path
from typing import Any

from meshbook.runtime.hosts.linux import exit_through_c, flush_c_output
from meshbook.runtime.rdma.nixl.agent import is_loaded as nixl_is_loaded
from meshbook.runtime.snapshots import items_of
from meshbook.runtime.traces import is_ours

_LIBRARY = f"{Path(threading.__file__).parent}{os.sep}"  # Python's own


def spare_finalizers() -> None:
    """In the fork server: what exists now is not finalised in its children (torch undoes 134 operator libraries)."""
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]  # there is no public list
        finalizer.atexit = False


def run_finalisers() -> None:
    """On the main thread: join threads, run the atexit hooks, then let go of the user's objects."""
    threading._shutdown()  # type: ignore[attr-defined]  # as multiprocessing does
    atexit._run_exitfuncs()
    # Daemon threads run on while the names they use disappear; nobody wants to read of that.
    threading.excepthook = _ignore_thread_error
    for module in _user_modules():
        _drop_objects(vars(module))
    _clear(vars(sys.modules["__main__"]))
    gc.collect()


def leave(code: int) -> None:
    """End this process; does not return."""
    flush_c_output()
    if nixl_is_loaded():
        os._exit(code)
    exit_through_c(code)


def _clear(namespace: dict[str, Any]) -> None:
    """Objects first, then the functions, classes and modules that their finalisers use."""
    _drop_objects(namespace)
    gc.collect()
    namespace.clear()


def _drop_objects(namespace: dict[str, Any]) -> None:
    code = (types.ModuleType, types.FunctionType, types.BuiltinFunctionType, type)
    found = items_of(namespace)  # in which threads of the user's that have not ended may still make names
    objects = [name for name, value in found if name[:2] != "__" and not isinstance(value, code)]
    for name in objects:
        namespace.pop(name, None)


def _user_modules() -> list[types.ModuleType]:
    """Return the modules that are neither installed nor ours, the newest first."""
    modules = [module for _, module in items_of(sys.modules) if type(module) is types.ModuleType]
    files = [(module, vars(module).get("__file__") or "") for module in reversed(modules)]
    return [module for module, file in files if file and not _is_installed(file) and not is_ours(file)]


def _is_installed(file: str) -> bool:
    # The runtime still needs what is installed, maybe in another environment, whose path a user has added.
    return file.startswith(_LIBRARY) or "/site-packages/" in file or "/dist-packages/" in file


def _ignore_thread_error(arguments: threading.ExceptHookArgs) -> None:
    del arguments
