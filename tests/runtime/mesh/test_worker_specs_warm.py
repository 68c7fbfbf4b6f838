"""Which meshes are born warm, and which settings say so."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy.testing
import pytest

from meshbook.runtime.collectives import membership
from meshbook.runtime.config import CELLS, OVERRIDES, TORCH, Settings, current_settings
from meshbook.runtime.mesh import worker_specs
from meshbook.runtime.mesh.worker_specs import imports_torch_later


def module(folder: Path, source: str) -> ModuleType:
    file = folder / "train.py"
    file.write_text(source)
    made = ModuleType("train")
    made.__file__ = str(file)
    return made


@pytest.mark.parametrize(
    ("source", "later"),
    [
        ("def train():\n    import torch", True),
        ("def train():\n\tfrom torch.nn import Module", True),
        ("import torch", True),
        ("import torchmetrics\nfrom torch_geometric import nn", False),
        ("# import torch\nwords = 'we import torch'", False),
    ],
)
def test_code_of_the_users_that_imports_torch(tmp_path: Path, source: str, later: bool) -> None:
    assert imports_torch_later([sys, module(tmp_path, source)]) == later


def test_code_that_is_not_the_users() -> None:
    """meshbook imports torch in functions, and so do packages."""
    assert not imports_torch_later([membership, numpy.testing, ModuleType("without a file")])


def test_a_module_whose_source_was_removed(tmp_path: Path) -> None:
    gone = module(tmp_path, "import torch")
    (tmp_path / "train.py").unlink()
    assert not imports_torch_later([gone])


@pytest.mark.parametrize("torch", [False, True])
@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("workers", [4, 5])
@pytest.mark.parametrize("settings", [Settings(), Settings(preload_for_torch=True)])
def test_which_processes_start_warm_on_four_cores(
    monkeypatch: pytest.MonkeyPatch, settings: Settings, workers: int, later: bool, torch: bool
) -> None:
    monkeypatch.setattr(worker_specs, "count_cores", lambda: 4)
    monkeypatch.setattr(worker_specs, "imports_torch_later", lambda modules: later)
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    if not torch:
        monkeypatch.delitem(sys.modules, "torch")
    at_once = torch or not settings.preload_for_torch
    assert worker_specs.is_agent_warm(settings) == at_once
    assert worker_specs.starts_warm(settings, workers) == (at_once or (later and workers == 5))


# -- the settings of a script ---------------------------------------------------------------


@pytest.fixture(autouse=True)
def _script(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("MESHBOOK_PRELOAD", raising=False)
    monkeypatch.setattr("meshbook.runtime.config.in_a_notebook", lambda: False)
    yield
    OVERRIDES.clear()


def test_a_script_preloads_for_torch_alone() -> None:
    settings = current_settings()
    assert (settings.preload, settings.preload_for_torch) == (TORCH, True)


def test_a_notebook_preloads_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshbook.runtime.config.in_a_notebook", lambda: True)
    settings = current_settings()
    assert (settings.preload, settings.preload_for_torch) == (f"{TORCH},{CELLS}", False)


@pytest.mark.parametrize("chosen", ["", "numpy", TORCH])
def test_a_preload_of_the_environment_is_honoured(monkeypatch: pytest.MonkeyPatch, chosen: str) -> None:
    monkeypatch.setenv("MESHBOOK_PRELOAD", chosen)
    settings = current_settings()
    assert (settings.preload, settings.preload_for_torch) == (chosen, False)


def test_a_preload_of_the_program_is_honoured() -> None:
    OVERRIDES.set({"preload": "numpy"})
    settings = current_settings()
    assert (settings.preload, settings.preload_for_torch) == ("numpy", False)
