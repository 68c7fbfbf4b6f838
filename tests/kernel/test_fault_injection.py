"""Faults on purpose from a notebook: in a cell, beside cells that run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.kernel.conftest import KernelNotebook

pytestmark = [pytest.mark.kernel, pytest.mark.without_torch]


def test_a_cell_injects_faults_into_the_mesh(bare_notebook: KernelNotebook) -> None:
    notebook = bare_notebook
    notebook.run("%mesh up --gpus 3")
    notebook.run(
        "import asyncio\n"
        "from meshbook.testing import chaos\n"
        "async with chaos(mesh, stop=20, drop=20, kill=100, only=[1, 2], lasting=(0.01, 0.02), most=20) as report:\n"
        "    while len(report.events) < 20: await asyncio.sleep(0.01)\n"
        "mesh.heal().get()"
    )
    assert notebook.run("%%mesh\nrank").result == "[0] 0\n[1] 1\n[2] 2"
    assert notebook.evaluate("report.counts()")["kill"] >= 1
    notebook.run("%mesh down --now")
