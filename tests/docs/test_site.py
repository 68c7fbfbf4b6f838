"""Builds the site of docs/ as `make docs` does, without a network, and reads the built pages and their search index."""

from __future__ import annotations

import argparse
import ast
import json
import runpy
import socket
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

import meshbook
from meshbook.runtime.config import PREFIX, Settings
from tests.test_layers import sources, tree_of_file

pytest.importorskip("mkdocs")
pytest.importorskip("material")
pytest.importorskip("mkdocstrings")

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]  # git, for the dates of benchmark results

ROOT = Path(__file__).parents[2]
ERROR_ROOTS = {"MeshbookError", "UserError"}
LOADING = {("script", "src"), ("img", "src"), ("source", "srcset"), ("link", "href"), ("iframe", "src")}


@dataclass
class BuiltPage(HTMLParser):
    """The anchors of a page, its links, and the files that a browser loads for it."""

    file: Path
    anchors: set[str] = field(default_factory=set)
    links: set[str] = field(default_factory=set)
    loaded: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__()
        self.feed(self.file.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" or (name, tag) == ("name", "a"):
                self.anchors.add(value or "")
            if (tag, name) in LOADING:
                self.loaded.add(value or "")
            elif (tag, name) == ("a", "href"):
                self.links.add(value or "")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built site. A warning is an error, and so is a connection."""
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    def refuse(*_: object) -> None:
        raise AssertionError("the build of the site uses the network")

    folder = tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", refuse)
        patch.setattr(socket, "getaddrinfo", refuse)
        config = load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder), strict=True)
        build(config)
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, BuiltPage]:
    return {file: BuiltPage(file) for file in sorted(site.rglob("*.html")) if file.name != "404.html"}


@pytest.fixture(scope="module")
def search(site: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((site / "search" / "search_index.json").read_text())["docs"]
    return found


def test_every_page_of_docs_is_in_the_navigation(pages: dict[Path, BuiltPage], site: Path) -> None:
    start = pages[site / "index.html"]
    for page in (ROOT / "docs").rglob("*.md"):
        if page.name != "index.md":
            assert page.relative_to(ROOT / "docs").with_suffix(".html").as_posix() in start.links


def test_every_link_and_anchor_of_the_site_resolves(pages: dict[Path, BuiltPage], site: Path) -> None:
    missing = []
    for file, page in pages.items():
        for link in page.links | page.loaded:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            target = target / "index.html" if target.is_dir() else target
            anchor = unquote(parts.fragment)
            if not target.is_file() or (anchor and target in pages and anchor not in pages[target].anchors):
                missing.append((str(file.relative_to(site)), link))
    assert not missing


def test_a_page_loads_nothing_from_other_hosts(pages: dict[Path, BuiltPage]) -> None:
    for page in pages.values():
        assert [url for url in page.loaded if urlsplit(url).scheme or urlsplit(url).netloc] == []


def test_no_marker_remains_in_a_page(pages: dict[Path, BuiltPage]) -> None:
    for file in pages:
        text = file.read_text("utf-8")
        assert [marker for marker in ("setup", "not run", "raises", "results") if f"<!-- {marker}" in text] == []


def public_errors() -> set[str]:
    """Return the names of the error classes of the package that users can see."""
    bases = {
        node.name: {getattr(base, "id", getattr(base, "attr", "")) for base in node.bases}
        for file in sources()
        for node in ast.walk(tree_of_file(file))
        if isinstance(node, ast.ClassDef)
    }
    found = set(ERROR_ROOTS)
    while added := {name for name, of in bases.items() if of & found} - found:
        found |= added
    warnings = {name for name, of in bases.items() if "Warning" in of}
    return {name for name in found | warnings if not name.startswith("_")}


@pytest.mark.parametrize("name", sorted(public_errors()))
def test_an_error_is_found_by_the_search_and_has_an_anchor(
    search: list[dict[str, Any]], pages: dict[Path, BuiltPage], site: Path, name: str
) -> None:
    found = [entry for entry in search if entry["title"] == name and "reference/" in entry["location"]]
    assert found, f"add {name} to docs/reference/errors.md"
    path, _, anchor = found[0]["location"].partition("#")
    assert anchor in pages[site / path].anchors
    assert found[0]["text"]


def test_every_option_is_found_by_the_search_and_has_an_anchor(
    search: list[dict[str, Any]], pages: dict[Path, BuiltPage], site: Path
) -> None:
    script = runpy.run_path(str(ROOT / "docs/write_options.py"))
    anchors = pages[site / "options.html"].anchors
    texts = {entry["location"]: entry["text"] for entry in search}
    parsers: dict[str, argparse.ArgumentParser] = {"%%mesh": script["cell_parser"]()}
    parsers |= {f"%mesh {word}": verb.parser() for word, verb in script["VERBS"].items()}
    parsers |= {parser.prog: parser for parser in script["command_parsers"]()}
    for heading, parser in parsers.items():
        section = script["anchor_of"](heading)
        for action in script["documented_actions"](parser):
            word = action.option_strings[-1] if action.option_strings else action.dest
            assert script["option_anchor"](section, word) in anchors
            for option in action.option_strings:
                assert option in texts[f"options.html#{section}"]


def test_every_public_name_has_an_anchor(pages: dict[Path, BuiltPage], site: Path) -> None:
    anchors = {anchor for file, page in pages.items() if file.parent == site / "reference" for anchor in page.anchors}
    names = {*meshbook.__all__, *meshbook._TENSORS}
    assert {name for name in names if f"meshbook.{name}" not in anchors} == set()


def test_every_setting_is_listed_with_its_default() -> None:
    text = (ROOT / "docs/reference/settings.md").read_text("utf-8")
    defaults = Settings()
    for name in set(Settings.__struct_fields__) - {"extra", "preload_for_torch"}:
        value = getattr(defaults, name)
        default = f"`{value}` " if value != "" else ""
        assert f"| `{PREFIX}{name.upper()}` | {default}|" in text


def test_results_of_benchmarks_become_tables(pages: dict[Path, BuiltPage], site: Path) -> None:
    text = (site / "performance.html").read_text("utf-8")
    assert "SIGKILL to the exception, waiting" in text
    assert "4 KiB read, process memory" in text
    assert "1 MiB read, process memory" not in text  # not selected by the page
