"""One Chromium for all browser tests; they skip, with the reason, where it or Playwright is missing.

A test fails if anything was thrown or logged as an error on a page of its own (`open_page`).
"""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.browser.harness import BarePage

if TYPE_CHECKING:  # it may be missing
    from playwright.sync_api import Browser, ConsoleMessage, Page

PATIENCE = 60.0  # seconds; what a page may take on a busy machine before a test gives up
CHROMIUMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# Without a sandbox, since continuous integration is root; and without what asks the network of its own accord.
ARGUMENTS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"),
)
SIZE = {"width": 1280, "height": 800}


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """Chromium. Not for the session: Playwright's event loop runs on the main thread, where later tests want theirs."""
    path = next(filter(None, map(shutil.which, CHROMIUMS)), None)
    if path is None:
        pytest.skip("no Chromium on the PATH: make chromium, or apt-get install chromium fonts-dejavu-core")
    if importlib.util.find_spec("playwright") is None:
        pytest.skip("Playwright is not installed: pip install 'meshbook[test]'")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=[*ARGUMENTS])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def make_page(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Opens empty pages for fixtures that live as long as a module; the errors of each are in `page.errors`."""
    contexts = []

    def make(**options: Any) -> Page:
        contexts.append(browser.new_context(**{"viewport": SIZE} | options))
        page = contexts[-1].new_page()
        page.set_default_timeout(PATIENCE * 1000)
        watch(page)
        return page

    yield make
    for context in contexts:
        context.close()


def watch(page: Page) -> None:
    """Gather what goes wrong on the page, in `page.errors`."""
    errors: list[str] = []
    page.errors = errors  # type: ignore[attr-defined]
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(_told(message)) if message.type == "error" else None)


def _told(message: ConsoleMessage) -> str:
    return f"{message.text} ({message.location.get('url', '')})"


@pytest.fixture
def open_page(make_page: Callable[..., Page]) -> Iterator[Callable[..., Page]]:
    """Opens empty pages for one test, with options of Playwright's `new_context`; no error may come up on one."""
    pages: list[Page] = []

    def open_one(**options: Any) -> Page:
        pages.append(make_page(**options))
        return pages[-1]

    yield open_one
    found = [error for page in pages for error in page.errors]  # type: ignore[attr-defined]
    for page in pages:
        page.context.close()
    assert not found, "errors on the page:\n" + "\n".join(found)


@pytest.fixture
def open_bare(open_page: Callable[..., Page]) -> Callable[..., BarePage]:
    """Opens an ES module on a page without Jupyter: `open_bare(esm, css, kernel, theme="dark")`, see harness.py."""

    def open_one(esm: str, css: str = "", kernel: Any = lambda content, buffers: [], **options: Any) -> BarePage:
        about_model = {name: options.pop(name) for name in ("theme", "traits") if name in options}
        return BarePage(open_page(**options), esm, css, kernel, **about_model)

    return open_one
