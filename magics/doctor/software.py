"""Checks of the installation: Python, packages, torch against the GPUs, the kernelspec."""

from __future__ import annotations

import platform
import shutil
import sys
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path

from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel
from packaging.requirements import Requirement

from meshbook.magics.doctor.finding import Finding
from meshbook.runtime.resources import count_gpus

KERNEL = "meshbook"
# With this interpreter: the command `meshbook` on PATH may be that of another environment.
REGISTER = f"{sys.executable} -m meshbook install --user"
# Optional packages: their purpose, and how to install them.
OPTIONAL = {
    "py-spy": ("shows and profiles ranks that are stuck in C", "pip install 'meshbook[debug]'"),
    "matplotlib": ("plots on ranks", "pip install matplotlib"),
}


def python() -> Iterator[Finding]:
    """Check the interpreter."""
    yield Finding("ok", "Python", f"{platform.python_version()} ({sys.executable}) on {platform.platform()}")
    if sys.platform != "linux":
        yield Finding("warning", "system", f"{platform.system()} is supported in part; Linux is fully supported")


def packages() -> Iterator[Finding]:
    """Check the versions of meshbook's requirements."""
    wanted = [Requirement(line) for line in metadata.requires("meshbook") or []]
    needed = [each for each in wanted if each.marker is None or each.marker.evaluate({"extra": ""})]
    installed = {each.name: version for each in needed if (version := _version_of(each.name))}
    yield from judge_packages(needed, installed)


def judge_packages(needed: list[Requirement], installed: Mapping[str, str]) -> Iterator[Finding]:
    """Yield a finding for each requirement that is missing or does not fit; or one for all, if all fit."""
    wrong = [
        each
        for each in needed
        if each.name not in installed or not each.specifier.contains(installed[each.name], prereleases=True)
    ]
    for each in wrong:
        found = f"{installed[each.name]} is installed" if each.name in installed else "is not installed"
        yield Finding("problem", each.name, f"{found}; meshbook needs {each}", f'pip install "{each}"')
    if not wrong:
        listed = ", ".join(f"{each.name} {installed[each.name]}" for each in needed)
        yield Finding("ok", "packages", listed)


def _version_of(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def extras() -> Iterator[Finding]:
    """Check the packages that optional features need."""
    for package, (purpose, remedy) in OPTIONAL.items():
        version = _version_of(package)
        if version:
            yield Finding("ok", package, version)
        else:
            yield Finding("note", package, f"is not installed; needed for: {purpose}", remedy)


def gpus() -> Iterator[Finding]:
    """Check the GPUs, and whether torch can use them."""
    import torch  # weight: up to seconds

    # Not torch.cuda: it would open a CUDA context, whose memory stays with this process.
    yield judge_gpus(count_gpus(), torch.__version__, torch.version.cuda or torch.version.hip)


def judge_gpus(present: int, torch_version: str, torch_built_for: str | None) -> Finding:
    """Judge whether torch's build fits the driver."""
    if present and torch_built_for is None:
        text = f"{present} found, but torch {torch_version} is built for CPUs only: ranks compute on the CPU"
        return Finding("warning", "GPUs", text, "install a build of torch with CUDA (pytorch.org/get-started)")
    if present:
        return Finding("ok", "GPUs", f"{present}; torch {torch_version} is built for CUDA {torch_built_for}")
    return Finding("note", "GPUs", f"none: each rank computes on the CPU (torch {torch_version})")


def kernelspec() -> Iterator[Finding]:
    """Check whether Jupyter finds the kernel, and which interpreter it would start."""
    try:
        spec = KernelSpecManager().get_kernel_spec(KERNEL)
    except NoSuchKernel:
        text = "Jupyter has no kernel named meshbook; in other kernels, use %load_ext meshbook"
        yield Finding("warning", "kernelspec", text, REGISTER)
        return
    # Jupyter replaces a bare "python" with the server's own interpreter, whatever the path says.
    written = sys.executable if spec.argv[0] in ("python", f"python{sys.version_info[0]}") else spec.argv[0]
    yield judge_kernelspec(spec.resource_dir, shutil.which(written), written)


def judge_kernelspec(folder: str, started: str | None, written: str) -> Finding:
    """Judge a kernelspec that starts `written`; `started` is the interpreter found under that name."""
    if started is None:
        return Finding("problem", "kernelspec", f"{folder} starts {written}, which does not exist", REGISTER)
    # Not resolved: the python of a virtual environment is a link, whose place identifies the environment.
    if Path(started).parent != Path(sys.executable).parent:
        text = f"{folder} starts {started}, but this is {sys.executable}: the kernel may use another meshbook"
        return Finding("note", "kernelspec", text, REGISTER)
    return Finding("ok", "kernelspec", folder)
