"""A script as `__main__` of this very process, and how its end is reported."""

from __future__ import annotations

import contextlib
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from meshbook.runtime.spmd.run_policy import EndRun
from meshbook.runtime.spmd.script import ScriptExited, ending_of, main_restored, own_trace, run_as_main

LOOK = """
import json, sys
from pathlib import Path
import beside
main = sys.modules["__main__"]
assert vars(main) is globals() and beside.name == "beside"
Path(sys.argv[1]).write_text(json.dumps([__name__, __file__, __package__, sys.argv, sys.path[0]]))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, with scripts and modules; the process is afterwards as it was."""
    for name in ("scripts", "package"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "beside.py").write_text("name = __name__")
        (tmp_path / name / "look.py").write_text(LOOK)
    (tmp_path / "beside.py").write_text("name = __name__")
    (tmp_path / "package" / "__init__.py").touch()
    (tmp_path / "package" / "__main__.py").write_text("from package.look import *")
    monkeypatch.chdir(tmp_path)
    before = signal.getsignal(signal.SIGINT)
    with main_restored():
        sys.excepthook = sys.__excepthook__  # a test before may have made a process group
        yield tmp_path
    assert signal.getsignal(signal.SIGINT) is before
    for name in ("beside", "package", "package.look"):
        sys.modules.pop(name, None)


@pytest.mark.process
@pytest.mark.parametrize("arguments", [["scripts/look.py"], ["-m", "package.look"]], ids=["file", "module"])
def test_a_script_finds_what_python_gives_it(folder: Path, arguments: list[str]) -> None:
    run_as_main([*arguments, "ours", "--lr", "1"])
    # In a process of its own, for python is the measure.
    subprocess.run([sys.executable, *arguments, "theirs", "--lr", "1"], check=True, timeout=60)
    ours, theirs = (Path(name).read_text() for name in ("ours", "theirs"))
    assert ours == theirs.replace("theirs", "ours")


def test_a_script_is_compiled_as_it_is(folder: Path) -> None:
    (folder / "train.py").write_text("def step(x: int): ...\nassert step.__annotations__ == {'x': int}")
    run_as_main(["train.py"])


def test_a_package_runs_by_its_main(folder: Path) -> None:
    (folder / "package" / "__main__.py").write_text("import sys; sys.exit(__package__)")
    with pytest.raises(SystemExit) as caught:
        run_as_main(["-m", "package"])
    assert caught.value.code == "package"


def test_main_is_restored(folder: Path) -> None:
    (folder / "hook.py").write_text("import sys\nsys.excepthook = print")
    before = sys.argv, list(sys.path), sys.modules["__main__"], sys.excepthook
    with main_restored():
        run_as_main(["hook.py"])
        assert sys.modules["__main__"] is not before[2]
        assert sys.excepthook is print
    assert (sys.argv, sys.path, sys.modules["__main__"], sys.excepthook) == before


@pytest.mark.parametrize("arguments", [[], ["-m"]])
def test_a_script_must_be_named(arguments: list[str]) -> None:
    with pytest.raises(ValueError, match="no script in"):
        run_as_main(arguments)


def test_a_script_receives_an_interrupt(folder: Path) -> None:
    (folder / "stop.py").write_text("import signal\nsignal.raise_signal(signal.SIGINT)")
    with pytest.raises(KeyboardInterrupt):
        run_as_main(["stop.py"])


def test_a_handler_of_the_scripts_goes_with_it(folder: Path) -> None:
    (folder / "deaf.py").write_text("import signal\nsignal.signal(signal.SIGINT, print)")
    run_as_main(["deaf.py"])  # the fixture looks


# -- endings ---------------------------------------------------------------------


def end_of(folder: Path, source: str) -> EndRun:
    (folder / "train.py").write_text(source)
    with contextlib.suppress(BaseException):
        try:
            run_as_main(["train.py"])
        except BaseException as error:
            return ending_of(error)
    return EndRun(0)


RAISES = """
def step(x):
    return 1 / x

step(0)
"""


@pytest.mark.parametrize(
    ("source", "ending", "printed"),
    [
        ("import sys; sys.exit()", EndRun(0), ""),
        ("import sys; sys.exit(0)", EndRun(0), ""),
        ("import sys; sys.exit(3)", EndRun(3, "exited with code 3"), ""),
        ("import sys; sys.exit(-1)", EndRun(255, "exited with code 255"), ""),
        ("import sys; sys.exit('no\\nway')", EndRun(1, "exited with code 1: no"), "no\nway\n"),
        ("raise KeyboardInterrupt", EndRun(130, "KeyboardInterrupt", "train.py:1", interrupted=True), ""),
    ],
)
def test_exits(folder: Path, capsys: pytest.CaptureFixture[str], source: str, ending: EndRun, printed: str) -> None:
    assert end_of(folder, source) == ending
    assert capsys.readouterr().err == printed


@pytest.mark.process
def test_an_exception_is_printed_as_python_does(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert end_of(folder, RAISES) == EndRun(1, "ZeroDivisionError: division by zero", "train.py:3 in step")
    script = folder / "train.py"
    theirs = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60).stderr
    assert capsys.readouterr().err == theirs


def test_the_place_is_the_scripts_own_and_not_a_librarys(folder: Path) -> None:
    assert end_of(folder, "import json\n\njson.loads('{')").place == "train.py:3"


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("1 +", "SyntaxError: invalid syntax (train.py, line 1)"),
        ("import nothing_of_this_name", "ModuleNotFoundError: No module named 'nothing_of_this_name'"),
        ("class Bad(Exception):\n    def __str__(self): 1 / 0\nraise Bad", "Bad: <exception str() failed>"),
        ("raise ValueError('x' * 1000)", f"ValueError: {'x' * 488}…"),
    ],
)
def test_what_is_said_of_an_exception(folder: Path, source: str, text: str) -> None:
    assert end_of(folder, source).text == text


def test_a_hook_of_the_scripts_prints(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hook = "import sys\nsys.excepthook = lambda kind, error, trace: print('hooked', error)\nraise ValueError(7)"
    assert end_of(folder, hook).code == 1
    assert capsys.readouterr().out == "hooked 7\n"
    assert end_of(folder, hook.replace("print", "int")).text == "ValueError: 7"
    assert "TypeError" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["nowhere.py"], ["-m", "nowhere"]])
def test_a_script_that_is_not_there_has_no_frames(folder: Path, arguments: list[str]) -> None:
    with pytest.raises((FileNotFoundError, ImportError), match="nowhere") as caught:
        run_as_main(arguments)
    assert own_trace(caught.value) is None


def test_the_error_of_an_exit_travels() -> None:
    error = pickle.loads(pickle.dumps(ScriptExited("train.py exited with code 3 on rank 1", 1, 3)))
    assert (str(error), error.rank, error.code) == ("train.py exited with code 3 on rank 1", 1, 3)


def test_the_current_folder_is_not_searched_for_a_script(folder: Path) -> None:
    (folder / "scripts" / "beside.py").unlink()
    sys.path[:] = [path for path in sys.path if path not in ("", str(folder))]
    with pytest.raises(ModuleNotFoundError, match="beside"):
        run_as_main(["scripts/look.py", "out"])
