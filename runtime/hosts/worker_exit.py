"""The end of a worker: run the interpreter's finalizers, but do not unload the fork server's imports.

The interpreter's own end would clear every module and run the C library's exit handlers: for torch 0.2 s of computing
in each worker, during which it copies the pages it shares with the others. So this module performs the steps that users
rely on one by one, as `multiprocessing` does for its forked children.
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
from meshbook.runtime.rdma.nixl.nixl_agent import is_loaded as nixl_is_loaded
from meshbook.runtime.threads import items_of
from meshbook.runtime.traces import is_ours

_LIBRARY = f"{Path(threading.__file__).parent}{os.sep}"  # of Python's standard library


def spare_finalizers() -> None:
    """In the fork server: exempt existing objects from finalizers in children (torch undoes 134 operator libraries)."""
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]  # there is no public list
        finalizer.atexit = False


def run_finalisers() -> None:
    """On the main thread: join threads, run the atexit hooks, then release the user's objects."""
    threading._shutdown()  # type: ignore[attr-defined]  # as multiprocessing does
    atexit._run_exitfuncs()
    # Daemon threads still run while the names they use disappear; their errors are noise.
    threading.excepthook = lambda arguments: None
    for module in _user_modules():
        _drop_objects(vars(module))
    # Objects first, then the functions, classes and modules that their finalizers use.
    namespace = vars(sys.modules["__main__"])
    _drop_objects(namespace)
    gc.collect()
    namespace.clear()
    gc.collect()


def leave(code: int) -> None:
    """End this process; does not return."""
    flush_c_output()
    if nixl_is_loaded():
        os._exit(code)
    exit_through_c(code)


def _drop_objects(namespace: dict[str, Any]) -> None:
    code = (types.ModuleType, types.FunctionType, types.BuiltinFunctionType, type)
    found = items_of(namespace)  # a copy: user threads that have not ended may still add names
    objects = [name for name, value in found if name[:2] != "__" and not isinstance(value, code)]
    for name in objects:
        namespace.pop(name, None)


def _user_modules() -> list[types.ModuleType]:
    """Return the modules that are neither installed nor part of meshbook, the newest first."""
    modules = [module for _, module in items_of(sys.modules) if type(module) is types.ModuleType]
    files = [(module, vars(module).get("__file__") or "") for module in reversed(modules)]
    # The runtime still needs installed modules, even of another environment whose path a user has added.
    files = [(module, file) for module, file in files if not file.startswith(_LIBRARY)]
    own = [(module, file) for module, file in files if file and not is_ours(file)]
    return [module for module, file in own if "/site-packages/" not in file and "/dist-packages/" not in file]
