"""`meshbook install`, `uninstall` and `lab`: the kernelspec in a Jupyter, and JupyterLab with the kernel.

Installing is not needed if Jupyter shares an environment with meshbook, where `pip install meshbook` has put the spec.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from meshbook.cli import print_note

KERNEL_NAME = "meshbook"
KERNELSPEC = Path(__file__).parent.parent / "kernel" / "kernelspec"


def install(prefix: str | None) -> int:
    """Write the kernelspec under `prefix`, or for the user if it is None."""
    from jupyter_client.kernelspec import KernelSpecManager  # weight, as in the other functions

    with tempfile.TemporaryDirectory(prefix="meshbook-kernelspec-") as staging:
        source = Path(staging) / KERNEL_NAME
        shutil.copytree(KERNELSPEC, source)
        spec_file = source / "kernel.json"
        spec_file.write_text(json.dumps(bound_to_interpreter(json.loads(spec_file.read_text())), indent=2) + "\n")
        written = KernelSpecManager().install_kernel_spec(
            str(source), kernel_name=KERNEL_NAME, user=prefix is None, prefix=prefix
        )
    print(f"Installed the kernelspec {KERNEL_NAME} in {written}")
    return 0


def bound_to_interpreter(spec: dict[str, Any]) -> dict[str, Any]:
    """Return the spec with the path of this interpreter.

    Jupyter replaces a bare "python" with the interpreter of its server, which may not have meshbook.
    """
    return {**spec, "argv": [sys.executable, *spec["argv"][1:]]}


def uninstall(prefix: str | None) -> int:
    """Remove the kernelspec that `install` with the same `prefix` writes."""
    from jupyter_core.paths import jupyter_data_dir

    base = Path(jupyter_data_dir()) if prefix is None else Path(prefix) / "share" / "jupyter"
    written = base / "kernels" / KERNEL_NAME
    if not written.is_dir():
        print_note(f"no kernelspec in {written}")
        return 1
    shutil.rmtree(written)
    print(f"Removed the kernelspec in {written}")
    return 0


def lab(arguments: Sequence[str]) -> NoReturn:
    """Become JupyterLab, in which new notebooks have this kernel. SystemExit if JupyterLab is not installed."""
    if importlib.util.find_spec("jupyterlab") is None:
        sys.exit("meshbook: JupyterLab is not installed here; run pip install jupyterlab")
    from jupyter_client.kernelspec import find_kernel_specs

    if KERNEL_NAME not in find_kernel_specs():
        install(sys.prefix)
    kernel = f"--MultiKernelManager.default_kernel_name={KERNEL_NAME}"
    sys.stdout.flush()
    # -P: the notebooks' folder must not hide modules that JupyterLab imports.
    os.execv(sys.executable, [sys.executable, "-P", "-m", "jupyterlab", kernel, *arguments])
