"""A dashboard in an open page, as a person reads and uses it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # it may be missing
    from playwright.sync_api import Locator

# How many ranks are in which state, by the name of the state.
COUNTS = """root => Object.fromEntries([...root.querySelectorAll('.meshbook-chip')].map(
  chip => [chip.dataset.state, Number(chip.querySelector('b').textContent)]))"""
SHOWS = f"""([root, wanted]) => {{
  const found = ({COUNTS})(root);
  return Object.keys(found).length === Object.keys(wanted).length
    && Object.entries(wanted).every(([state, count]) => found[state] === count);
}}"""


class Dashboard:
    """The one in this place. What is waited for is waited for as long as the page allows."""

    def __init__(self, place: Locator) -> None:
        self.root = place.locator(".meshbook-dashboard")
        self.root.wait_for()

    def wait_for(self, **counts: int) -> float:
        """Until so many ranks are in these states and none in others; the seconds that took."""
        start = time.monotonic()
        self.root.page.wait_for_function(SHOWS, arg=[self.root.element_handle(), counts])
        return time.monotonic() - start

    def wait_for_cell(self, title: str) -> None:
        """Until that cell is said to run."""
        self.root.locator(".meshbook-cell[data-running]").filter(has_text=title).wait_for()

    def wait_for_rest(self) -> None:
        """Until no cell runs."""
        self.root.locator(".meshbook-cell:not([data-running])").wait_for()

    def press(self, action: str) -> None:
        """Press one of the buttons, once it can be."""
        self.root.locator(f"button[data-action='{action}']:not([aria-disabled])").click()

    def select(self, selector: str) -> None:
        """Select ranks by the field for it."""
        field = self.root.get_by_label("Select ranks", exact=True)
        field.fill(selector)
        field.press("Enter")

    def show(self, title: str) -> Locator:
        """Bring a panel into view; the panel."""
        self.root.get_by_role("tab", name=title).click()
        return self.root.get_by_role("tabpanel", name=title)
