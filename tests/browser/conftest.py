"""One Chromium for all browser tests; they skip, with the reason, where it or Playwright is missing.

A test fails if anything is thrown or logged as an error on a page meanwhile.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.browser.harness import BarePage, chromium, find_chromium
from tests.browser.jupyter import FrontEnd, NotebookPage, Server
from tests.support import PATIENCE

if TYPE_CHECKING:  # it may be missing
    from playwright.sync_api import Browser, ConsoleMessage, Page

# Notebook 7 says these at each start.
NOISE = (
    "Cannot read properties of undefined (reading 'schema')",
    "Command 'filebrowser:open-path' not registered.",
    "Could not restore the debugger state: Canceled future",  # the kernel ends while the page asks
)
SIZE = {"width": 1280, "height": 800}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-pictures", action="store_true", help="write the pictures in docs/images anew")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run them last: Playwright has an event loop on the main thread from its start on, and others want theirs."""
    here = Path(__file__).parent
    items.sort(key=lambda item: here in item.path.parents)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Chromium."""
    if find_chromium() is None:
        pytest.skip("no Chromium on the PATH: make chromium, or apt-get install chromium fonts-dejavu-core")
    if importlib.util.find_spec("playwright") is None:
        pytest.skip("Playwright is not installed: pip install 'meshbook[test]'")
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="session")
def errors() -> list[str]:
    """What has gone wrong on the pages."""
    return []


@pytest.fixture(autouse=True)
def _no_error_comes_up(errors: list[str]) -> Iterator[None]:
    errors.clear()
    yield
    assert not errors, "errors on the page:\n" + "\n".join(errors)


@pytest.fixture(scope="module")
def make_page(browser: Browser, errors: list[str]) -> Iterator[Callable[..., Page]]:
    """Opens empty pages, with options of Playwright's `new_context`, that stay for the tests of a module."""
    contexts = []

    def make(**options: Any) -> Page:
        contexts.append(browser.new_context(**{"viewport": SIZE} | options))
        page = contexts[-1].new_page()
        page.set_default_timeout(PATIENCE * 1000)
        watch(page, errors)
        return page

    yield make
    for context in contexts:
        context.close()


@pytest.fixture
def open_page(make_page: Callable[..., Page]) -> Iterator[Callable[..., Page]]:
    """Opens empty pages for one test."""
    pages: list[Page] = []

    def open_one(**options: Any) -> Page:
        pages.append(make_page(**options))
        return pages[-1]

    yield open_one
    for page in pages:
        page.context.close()


def watch(page: Page, errors: list[str]) -> None:
    """Gather what goes wrong on a page."""

    def note(error: str) -> None:
        if not error.startswith(NOISE):
            errors.append(error)

    page.on("pageerror", lambda error: note(str(error)))
    page.on("console", lambda message: note(_told(message)) if message.type == "error" else None)


def _told(message: ConsoleMessage) -> str:
    return f"{message.text} ({message.location.get('url', '')})"


@pytest.fixture(scope="session")
def server(browser: Browser) -> Iterator[Server]:
    """A Jupyter server with JupyterLab and Notebook 7."""
    server = Server()
    yield server
    server.close()


@pytest.fixture(scope="module")
def make_notebook(server: Server, make_page: Callable[..., Page]) -> Iterator[Callable[..., NotebookPage]]:
    """Opens new notebooks for the tests of a module: `make_notebook("lab", "name", [cell, ...])`."""
    opened: list[NotebookPage] = []

    def make(front_end: FrontEnd, name: str, cells: Sequence[str], **options: Any) -> NotebookPage:
        opened.append(NotebookPage(make_page(**options), server, front_end, server.write(name, cells)))
        return opened[-1]

    yield make
    for notebook in opened:
        notebook.close()


@pytest.fixture
def open_bare(open_page: Callable[..., Page]) -> Callable[..., BarePage]:
    """Opens an ES module on a page without Jupyter: `open_bare(esm, css, kernel, theme="dark")`, see harness.py."""

    def open_one(esm: str, css: str = "", kernel: Any = lambda content, buffers: [], **options: Any) -> BarePage:
        about_model = {name: options.pop(name) for name in ("theme", "traits") if name in options}
        return BarePage(open_page(**options), esm, css, kernel, **about_model)

    return open_one
