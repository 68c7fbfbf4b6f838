"""The end of a worker: run the interpreter's finalizers, but do not unload the fork server's imports.

The interpreter's own end would clear every module and run the C library's exit handlers: for torch 0.2 s of computing
in each worker, during which it copies the pages it shares with the others. So this module performs the steps that users
rely on one by one, as `multiprocessing` does for its forked children.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import itertools
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


def exempt_imports() -> None:
    """In the fork server: exempt what it has imported from the finalizers in its children.

    torch alone would undo 134 operator libraries there. Preloaded modules of the user are not exempt.
    """
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]  # there is no public list
        finalizer.atexit = False
    # A child looks only at the modules behind this one. It would copy half of the shared pages if it looked at all.
    own = set(map(id, user_modules()))
    for name in (__name__, *[name for name, module in items_of(sys.modules) if id(module) in own]):
        sys.modules[name] = sys.modules.pop(name)


def run_finalisers() -> None:
    """On the main thread: join threads, run the atexit hooks, then release the user's objects."""
    threading._shutdown()  # type: ignore[attr-defined]  # as multiprocessing does
    atexit._run_exitfuncs()
    # Daemon threads still run while the names they use disappear; their errors are noise.
    threading.excepthook = lambda arguments: None
    for module in user_modules():
        _drop_objects(vars(module))
    # Objects first, then the functions, classes and modules that their finalizers use.
    namespace = vars(sys.modules["__main__"])
    _drop_objects(namespace)
    gc.collect()
    if any(name[:2] != "__" for name, _ in items_of(namespace)):
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


def user_modules() -> list[types.ModuleType]:
    """Return the modules that are neither installed nor part of meshbook, the newest first."""
    modules = [module for module in late_modules() if type(module) is types.ModuleType]
    files = [(module, vars(module).get("__file__") or "") for module in modules]
    # The runtime still needs installed modules, even of another environment whose path a user has added.
    files = [(module, file) for module, file in files if not file.startswith(_LIBRARY)]
    own = [(module, file) for module, file in files if file and not is_ours(file)]
    return [module for module, file in own if "/site-packages/" not in file and "/dist-packages/" not in file]


def late_modules() -> list[types.ModuleType | None]:
    """Return the modules that were imported after this one, the newest first."""
    while True:
        # A thread that imports another module meanwhile causes a RuntimeError.
        with contextlib.suppress(RuntimeError):
            names = list(itertools.takewhile(lambda name: name != __name__, reversed(sys.modules)))
            return [sys.modules.get(name) for name in names]
