"""`meshbook.hosts` without hosts: short texts and TOML files that describe hosts, and arguments of single hosts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from meshbook import hosts


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The calls of launchers, which start nothing here."""
    calls: list[Any] = []
    for name in ("command", "local", "slurm", "ssh"):

        def note(*arguments: Any, _name: str = name, progress: Any = None, **keywords: Any) -> None:
            del progress
            calls.append((_name, *arguments, keywords))

        monkeypatch.setattr(hosts, name, note)
        monkeypatch.setitem(hosts._LAUNCHERS, name, note)
    return calls


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with its own user's configuration."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ("ssh:gpu1,me@gpu2", ("ssh", ["gpu1", "me@gpu2"], {})),
        ("slurm:4", ("slurm", 4, {"gpus_per_node": None})),
        ("slurm", ("slurm", None, {"gpus_per_node": None})),
        ("local:2", ("local", 2, {})),
    ],
)
def test_a_text_names_a_launcher_and_its_hosts(
    started: list[Any], monkeypatch: pytest.MonkeyPatch, text: str, call: Any
) -> None:
    monkeypatch.setattr(hosts, "can_request_gpus", lambda: False)
    hosts.start(text, gpus_per_host=8)
    assert started == [call]


def test_slurm_is_asked_for_gpus_if_it_has_any(started: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "can_request_gpus", lambda: True)
    hosts.start("slurm:2", gpus_per_host=8)
    assert started == [("slurm", 2, {"gpus_per_node": 8})]


@pytest.mark.parametrize(
    "text", ["slurm:", "slurm:x", "slurm:0", "local:-1", "ray:many", "nothing", "", "ssh", "k8s:2"]
)
def test_texts_that_describe_no_hosts(folder: Path, text: str) -> None:
    with pytest.raises(ValueError, match="slurm:4"):
        hosts.start(text)


def test_a_set_up_is_found_by_its_name(folder: Path, started: list[Any]) -> None:
    (folder / "config" / "meshbook").mkdir(parents=True)
    (folder / "config" / "meshbook" / "hosts.toml").write_text('[lab]\nlauncher = "local"\nnum_hosts = 3\n')
    (folder / "hosts.toml").write_text('[mine]\nlauncher = "ssh"\nhosts = ["a"]\nenvironment = {a = {B = "1"}}\n')
    assert hosts.setup_names() == ["mine", "lab"]
    hosts.start("lab")
    hosts.start("mine")
    hosts.start("hosts.toml")
    hosts.start(f"{folder}/hosts.toml:mine")
    mine = ("ssh", {"hosts": ["a"], "environment": {"a": {"B": "1"}}})
    assert started == [("local", {"num_hosts": 3}), mine, mine, mine]
    with pytest.raises(ValueError, match="no table 'other'; it has: mine"):
        hosts.start("hosts.toml:other")


def test_variables_and_interpreters_of_single_hosts() -> None:
    environment = {"A": "1", "B": "2", "h2": {"B": "3", "C": "4"}}
    expected = {"h1": {"A": "1", "B": "2"}, "h2": {"A": "1", "B": "3", "C": "4"}}
    assert hosts._variables_by_host(environment, ["h1", "h2"]) == expected
    with pytest.raises(ValueError, match="no host is named 'h3'; the hosts are h1, h2"):
        hosts._variables_by_host({"h3": {"B": "1"}}, ["h1", "h2"])
    with pytest.raises(ValueError, match="value of A must be a string"):
        hosts._variables_by_host({"A": 1}, ["h1"])  # type: ignore[dict-item]
