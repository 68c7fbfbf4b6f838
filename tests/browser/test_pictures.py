"""The pictures of the README: the dashboard of a simulated mesh, light and dark.

    python -m pytest tests/browser/test_pictures.py --update-pictures

writes them anew to docs/images; without that they are only taken.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from meshbook.widgets.assets import script, style
from tests.browser.dashboards import Dashboard
from tests.browser.harness import BarePage, Theme
from tests.browser.simulation import Simulation

pytestmark = pytest.mark.browser
IMAGES = Path(__file__).parents[2] / "docs" / "images"
SIZE = {"width": 1100, "height": 900}


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_picture_can_be_taken_and_is_there(
    theme: Theme, open_bare: Callable[..., BarePage], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    simulation = Simulation(128, faults=0)
    simulation.mesh.advance(87.0)
    for kind, rank in (("silent", 100), ("paused", 3), ("failed", 52), ("killed", 77)):
        simulation.mesh.break_down(kind, rank)
        simulation.mesh.advance(1.9)
    bare = open_bare(script(), style(), simulation, theme=theme, viewport=SIZE, device_scale_factor=1.5)
    dashboard = Dashboard(bare.page.locator("body"))
    dashboard.root.locator(".meshbook-log-row").first.wait_for()
    folder = IMAGES if request.config.getoption("--update-pictures", default=False) else tmp_path
    picture = folder / f"dashboard-{theme}.png"
    dashboard.root.screenshot(path=picture, animations="disabled")
    assert picture.stat().st_size > 20_000
    assert (IMAGES / picture.name).exists()
