"""What `pip install` gives: a light import, a kernelspec that Jupyter finds, the install command."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import meshbook

ROOT = Path(__file__).parent.parent


def run(*command: str | Path, cwd: Path) -> str:
    """The output of a command that has to succeed, away from the checkout and the user's Jupyter folders."""
    # PYTHONPATH and JUPYTER_PATH would show it another meshbook than the one that was installed.
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith(("JUPYTER", "PYTHON", "VIRTUAL_ENV"))
    }
    environment["HOME"] = str(cwd)
    finished = subprocess.run([*map(str, command)], cwd=cwd, env=environment, capture_output=True, text=True)
    assert finished.returncode == 0, f"{command}\n{finished.stdout}\n{finished.stderr}"
    return finished.stdout


def new_environment(folder: Path) -> Path:
    """The interpreter of a fresh environment that sees the packages of this one, so nothing is downloaded.

    Plain path lines make packages importable but don't run the .pth files there: an editable meshbook of this
    environment stays invisible to the new one.
    """
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder.parent)
    python = folder / "bin" / "python"
    own = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder).strip())
    paths = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (own / "test_environment.pth").write_text("\n".join(sorted(paths)) + "\n")
    return python


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheel and the source distribution, as `python -m hatchling build` writes them."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "hatchling", "build", "-d", folder, cwd=ROOT)
    (wheel,), (source,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return {"wheel": wheel, "source": source}


@pytest.mark.process
def test_both_distributions_are_valid_for_pypi(distributions: dict[str, Path], tmp_path: Path) -> None:
    run(sys.executable, "-m", "twine", "check", "--strict", *distributions.values(), cwd=tmp_path)
    assert {path.name.split("-")[1].removesuffix(".tar.gz") for path in distributions.values()} == {
        meshbook.__version__
    }


def test_the_changelog_begins_with_this_version() -> None:
    topmost = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert topmost is not None
    assert topmost[1] == meshbook.__version__


@pytest.mark.process
@pytest.mark.parametrize("kind", ["wheel", "source", "editable"])
def test_pip_install_brings_package_and_kernelspec(tmp_path: Path, kind: str, distributions: dict[str, Path]) -> None:
    environment = tmp_path / "environment"
    python = new_environment(environment)
    pip: list[str | Path] = [
        python,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
    ]
    # Away from its source, or the checkout's folder on sys.path would answer for the installed package.
    wanted = ["-e", ROOT] if kind == "editable" else [distributions[kind]]
    run(*pip, "--ignore-installed", *wanted, cwd=tmp_path)

    listed = json.loads(run(python, "-m", "jupyter_client.kernelspecapp", "list", "--json", cwd=tmp_path))
    found = listed["kernelspecs"]["meshbook"]
    assert Path(found["resource_dir"]).is_relative_to(environment)
    assert found["spec"]["interrupt_mode"] == "message"
    assert {path.name for path in Path(found["resource_dir"]).iterdir()} == {
        "kernel.json",
        "logo-32x32.png",
        "logo-64x64.png",
        "logo-svg.svg",
    }

    extension = environment / "share" / "jupyter" / "labextensions" / "meshbook"
    described = json.loads((extension / "package.json").read_text())
    assert described["version"] == meshbook.__version__
    assert (extension / described["jupyterlab"]["_build"]["load"]).is_file()

    code = "import meshbook, meshbook.runtime, meshbook.kernel; print(meshbook.__file__)"
    place = Path(run(python, "-c", code, cwd=tmp_path).strip())
    assert place.is_relative_to(ROOT if kind == "editable" else environment)
    assert (place.parent / "py.typed").is_file()

    assert run(python, "-m", "meshbook", "explain", "GroupError", cwd=tmp_path).startswith("GroupError\n")

    clone = tmp_path / "around" / "meshbook"  # with folders of the same names, as a clone has
    (clone / "kernel").mkdir(parents=True)
    (clone / "kernel" / "__init__.py").touch()
    assert run(python, "-m", "meshbook", "--version", cwd=clone.parent).startswith("meshbook ")
    assert "--procs" in run(python, "-m", "meshbook.spmd", "--help", cwd=clone.parent)

    if kind != "editable":  # node's packages and the types only check the JavaScript
        folder = place.parent / "widgets"
        assert {path.suffix for path in folder.rglob("*.*")} - {".pyc"} == {".py", ".js", ".css", ".LICENSE"}

    code = "from meshbook.widgets import assets; print(len(assets.script()) > 1000, '.meshbook-' in assets.style())"
    assert run(python, "-c", code, cwd=tmp_path).split() == ["True", "True"]

    code = (
        "import meshbook.monarch as m; m.install(); import monarch.actor, monarch.config; print(monarch.actor.__file__)"
    )
    alias = Path(run(python, "-c", code, cwd=tmp_path).strip())
    assert alias.is_relative_to(place.parent / "monarch")


@pytest.mark.process
def test_the_package_monarch_finds_the_rest_by_itself(tmp_path: Path) -> None:
    # As in what a worker of a checkout starts: PYTHONPATH leads to the one package, and to nothing else of ours.
    python = new_environment(tmp_path / "environment")
    folder = ROOT / "meshbook" / "monarch" / "alias"
    code = f"import sys; sys.path.insert(0, {str(folder)!r}); import monarch.actor, meshbook; print(meshbook.__file__)"
    assert Path(run(python, "-c", code, cwd=tmp_path).strip()) == ROOT / "meshbook" / "__init__.py"


@pytest.mark.process
def test_import_is_light(tmp_path: Path) -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); import meshbook; "
        "print(*sorted({'torch', 'IPython', 'ipykernel', 'numpy', 'matplotlib'} & set(sys.modules)))"
    )
    assert run(sys.executable, "-c", code, cwd=tmp_path).split() == []


@pytest.fixture
def meshbook_command() -> list[str]:
    code = f"import sys, runpy; sys.path.insert(0, {str(ROOT)!r}); runpy.run_module('meshbook', run_name='__main__')"
    return [sys.executable, "-c", code]


@pytest.mark.process
def test_install_names_this_interpreter(tmp_path: Path, meshbook_command: list[str]) -> None:
    prefix = tmp_path / "prefix"
    folder = prefix / "share" / "jupyter" / "kernels" / "meshbook"

    said = run(*meshbook_command, "install", "--prefix", prefix, cwd=tmp_path)
    assert str(folder) in said
    spec = json.loads((folder / "kernel.json").read_text())
    assert spec["argv"] == [sys.executable, "-P", "-m", "meshbook.kernel", "-f", "{connection_file}"]
    assert (folder / "logo-svg.svg").is_file()

    run(*meshbook_command, "uninstall", "--prefix", prefix, cwd=tmp_path)
    assert not folder.exists()


@pytest.mark.process
def test_install_is_for_the_user_by_default(tmp_path: Path, meshbook_command: list[str]) -> None:
    run(*meshbook_command, "install", cwd=tmp_path)
    (spec,) = tmp_path.rglob("kernel.json")  # the home folder of these commands
    # Not asked by name: this environment's own kernelspec, where there is one, comes before a user's.
    code = "from jupyter_core.paths import jupyter_path; print(*jupyter_path('kernels'), sep='\\n')"
    assert str(spec.parent.parent) in run(sys.executable, "-c", code, cwd=tmp_path).splitlines()

    run(*meshbook_command, "uninstall", "--user", cwd=tmp_path)
    assert not [*tmp_path.rglob("kernel.json")]


@pytest.mark.process
def test_uninstall_of_nothing_says_so(tmp_path: Path, meshbook_command: list[str]) -> None:
    command = [*meshbook_command, "uninstall", "--prefix", str(tmp_path)]
    finished = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert finished.returncode == 1
    assert "no kernelspec in" in finished.stderr
