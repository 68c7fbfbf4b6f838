"""Settings from the environment, and the folder that messages pass through."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from meshbook.runtime.config import (
    RUN_WIDE,
    Overrides,
    Settings,
    check_private,
    current_settings,
    in_a_notebook,
    runtime_root,
)


@pytest.fixture(autouse=True)
def _only_what_the_test_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("MESHBOOK_")]:
        monkeypatch.delenv(name)


def test_without_variables_the_defaults_hold() -> None:
    assert Settings.from_environment() == Settings()


@pytest.mark.parametrize(
    ("variable", "text", "value"),
    [
        ("RUNTIME_DIR", "/somewhere", "/somewhere"),
        ("MAX_MESSAGE_BYTES", "1000", 1000),
        ("HIGH_WATER_MARK", "5", 5),
        ("LAUNCH_TIMEOUT", "2", 2.0),
        ("STOP_TIMEOUT", "0.5", 0.5),
        ("STOP_TIMEOUT", "0", 0.0),
        ("STDERR_LINES", "0", 0),
        ("PRELOAD", "", ""),
        ("ENABLE_LOG_FORWARDING", "1", True),
        ("ENABLE_LOG_FORWARDING", "True", True),
        ("ENABLE_LOG_FORWARDING", "on", True),
        ("ENABLE_LOG_FORWARDING", "no", False),
        ("ENABLE_LOG_FORWARDING", "0", False),
    ],
)
def test_a_variable_sets_its_field(monkeypatch: pytest.MonkeyPatch, variable: str, text: str, value: Any) -> None:
    monkeypatch.setenv(f"MESHBOOK_{variable}", text)
    found = getattr(Settings.from_environment(), variable.lower())
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("variable", "text", "wanted"),
    [
        ("MAX_MESSAGE_BYTES", "4 GiB", "an integer"),
        ("MAX_MESSAGE_BYTES", "1.5", "an integer"),
        ("HIGH_WATER_MARK", "-1", "an integer"),
        ("STDERR_LINES", "", "an integer"),
        ("STOP_TIMEOUT", "soon", "a number"),
        ("STOP_TIMEOUT", "-0.1", "a number"),
        ("LAUNCH_TIMEOUT", "nan", "a number"),
        ("LAUNCH_TIMEOUT", "inf", "a number"),
    ],
)
def test_a_value_that_does_not_fit_names_the_variable(
    monkeypatch: pytest.MonkeyPatch, variable: str, text: str, wanted: str
) -> None:
    monkeypatch.setenv(f"MESHBOOK_{variable}", text)
    said = f"MESHBOOK_{variable} must be {wanted} that is not negative, not {text!r}"
    with pytest.raises(ValueError, match=f"^{said}$"):
        Settings.from_environment()


@pytest.mark.parametrize("text", ["", "2", "perhaps"])
def test_a_switch_is_on_or_off(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("MESHBOOK_ENABLE_LOG_FORWARDING", text)
    with pytest.raises(ValueError, match=f"^MESHBOOK_ENABLE_LOG_FORWARDING must be 1 or 0, not {text!r}$"):
        Settings.from_environment()


def test_a_variable_wins_over_a_default_of_the_place(monkeypatch: pytest.MonkeyPatch) -> None:
    place = {"enable_log_forwarding": True, "stderr_lines": 7}
    assert Settings.from_environment(**place) == Settings(enable_log_forwarding=True, stderr_lines=7)
    monkeypatch.setenv("MESHBOOK_ENABLE_LOG_FORWARDING", "0")
    assert Settings.from_environment(**place) == Settings(enable_log_forwarding=False, stderr_lines=7)


def test_a_shell_of_ipythons_makes_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("IPython.get_ipython", lambda: None)
    assert not in_a_notebook()
    monkeypatch.setattr("IPython.get_ipython", lambda: object())
    assert in_a_notebook()
    monkeypatch.delitem(sys.modules, "IPython")
    assert not in_a_notebook()


def test_collectives_have_a_day_in_a_notebook_and_limits_of_torch_in_a_script(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("IPython.get_ipython", lambda: None)
    assert current_settings().collective_timeout == 0.0
    monkeypatch.setattr("IPython.get_ipython", lambda: object())
    assert current_settings().collective_timeout == 86_400.0
    monkeypatch.setenv("MESHBOOK_COLLECTIVE_TIMEOUT", "600")
    assert current_settings().collective_timeout == 600.0


def test_unknown_variables_are_others_business(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MESHBOOK_TEST_ID", "x")
    assert Settings.from_environment() == Settings()


# -- changes from within a program ----------------------------------------------------------


@pytest.fixture
def overrides() -> Overrides:
    return Overrides()


def test_without_changes_settings_stay_the_same(overrides: Overrides) -> None:
    assert overrides.applied_to(Settings(stop_timeout=9.0)) == Settings(stop_timeout=9.0)


def test_a_lasting_change_holds_and_the_last_one_wins(overrides: Overrides) -> None:
    overrides.set({"stop_timeout": 1.0, "stderr_lines": 5})
    overrides.set({"stop_timeout": 2.0})
    assert overrides.applied_to(Settings()) == Settings(stop_timeout=2.0, stderr_lines=5)
    overrides.clear()
    assert overrides.applied_to(Settings()) == Settings()


def test_a_block_takes_away_its_own_change_alone(overrides: Overrides) -> None:
    first, second = overrides.during({"stop_timeout": 1.0}), overrides.during({"stop_timeout": 1.0, "stderr_lines": 5})
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert overrides.applied_to(Settings()) == Settings(stop_timeout=1.0, stderr_lines=5)
    second.__exit__(None, None, None)
    assert overrides.applied_to(Settings()) == Settings()


def test_what_is_handed_down_is_merged(overrides: Overrides) -> None:
    overrides.set({"extra": {"a": 1}})
    overrides.set({"extra": {"b": 1}})
    with overrides.during({"extra": {"b": 2}}):
        assert overrides.applied_to(Settings(extra={"c": 0})).extra == {"a": 1, "b": 2, "c": 0}
    assert overrides.applied_to(Settings()).extra == {"a": 1, "b": 1}


def test_a_mesh_keeps_what_the_run_has_agreed_upon(overrides: Overrides) -> None:
    assert set(Settings.__struct_fields__) >= RUN_WIDE
    changes = {"runtime_dir": "/other", "max_message_bytes": 1, "high_water_mark": 1, "launch_timeout": 1.0}
    overrides.set(changes | {"preload": "os", "stop_timeout": 1.0})
    assert overrides.applied_to_mesh(Settings()) == Settings(stop_timeout=1.0)


# -- the folder ------------------------------------------------------------------------


def test_the_folder_is_the_chosen_one_then_the_users_then_a_temporary_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    temporary = tmp_path / f"meshbook-{os.getuid()}"
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    assert runtime_root(Settings()) == temporary
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "is not there"))
    assert runtime_root(Settings()) == temporary
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert runtime_root(Settings()) == tmp_path / "meshbook"
    chosen = tmp_path / "deep" / "down"
    assert runtime_root(Settings(runtime_dir=str(chosen))) == chosen
    assert [path.stat().st_mode & 0o777 for path in (temporary, tmp_path / "meshbook", chosen)] == [0o700] * 3


def test_a_relative_folder_stays_the_same_when_the_process_goes_elsewhere(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert runtime_root(Settings(runtime_dir="here")) == tmp_path / "here"


@pytest.mark.parametrize("mode", [0o701, 0o710, 0o770, 0o755, 0o777], ids=oct)
def test_a_folder_that_is_open_to_others_is_refused(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(mode)
    for look in (lambda: check_private(folder), lambda: runtime_root(Settings(runtime_dir=str(folder)))):
        with pytest.raises(PermissionError, match=r"chmod 700.*MESHBOOK_RUNTIME_DIR"):
            look()


def test_a_link_to_a_private_folder_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Another user may put one where the default folder would be, to have the runs in it swept."""
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    (tmp_path / f"meshbook-{os.getuid()}").symlink_to(private)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    with pytest.raises(PermissionError, match=r"symbolic link.*MESHBOOK_RUNTIME_DIR"):
        runtime_root(Settings())


def test_a_folder_of_another_user_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    check_private(tmp_path)
    somebody = os.getuid() + 1
    monkeypatch.setattr(os, "getuid", lambda: somebody)
    with pytest.raises(PermissionError, match="must be owned by you"):
        check_private(tmp_path)
