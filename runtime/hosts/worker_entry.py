"""The first code of a worker that a command starts: `python .../worker_entry.py`, with its spec in a file.

Run by its path, not by `-m`. That would need the parent folder of meshbook on PYTHONPATH, and where meshbook is
installed this folder holds all other packages of that interpreter, which must stay hidden from another interpreter.
"""

from __future__ import annotations

import importlib.util
import os
import pickle
import sys
from pathlib import Path

HERE = Path(__file__).parent
PACKAGE = HERE.parent.parent  # meshbook/, from meshbook/runtime/hosts


def main() -> None:
    """Become the worker of the spec that MESHBOOK_WORKER_SPEC names, or exit with the fault of this interpreter."""
    if "MESHBOOK_WORKER_SPEC" not in os.environ:
        sys.exit(f"{__file__} is meshbook's entry point for workers; MESHBOOK_WORKER_SPEC is not set")
    file = Path(os.environ.pop("MESHBOOK_WORKER_SPEC"))  # child processes must not inherit it
    if sys.path and Path(sys.path[0]).resolve() == HERE.resolve():
        del sys.path[0]  # where Python puts the folder of the script
    version, pickled = pickle.loads(file.read_bytes())
    check_version(version)
    try:
        import_from(PACKAGE)
        # Only now can the package be imported, and it is the controller's version.
        from meshbook.runtime.hosts import spare_worker, worker
    except ImportError as error:
        sys.exit(f"{sys.executable} lacks a package of meshbook: {error}; run {sys.executable} -m pip install meshbook")
    spec = pickle.loads(pickled)
    worker.settle(spec)
    file.unlink()
    spare_worker.run(spec, file.parent)


def check_version(wanted: tuple[int, int]) -> None:
    """Exit if functions of the controller could not run here: byte code is specific to one Python version."""
    here = tuple(sys.version_info[:2])
    if here != wanted:
        names = [".".join(map(str, version)) for version in (here, wanted)]
        sys.exit(f"{sys.executable} is Python {names[0]}, but the controller runs Python {names[1]}; they must match")


def import_from(package: Path) -> None:
    """Import meshbook from this folder, whatever else of that name the interpreter would find."""
    spec = importlib.util.spec_from_file_location(
        package.name, package / "__init__.py", submodule_search_locations=[str(package)]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"no package in {package}")
    sys.modules[package.name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


if __name__ == "__main__":
    main()
