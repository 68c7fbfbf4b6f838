"""Hooks of MkDocs for the site of docs/ (mkdocs.yml): files outside of docs/, markers of code blocks, benchmark tables.

Pages link to files of the repository. Those files become part of the site, so that no link leads outside. Markdown
files among them become pages.
"""

from __future__ import annotations

import os.path
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.structure.files import File, InclusionLevel

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
RESULTS = ROOT / "benchmarks" / "results"
OUTSIDE = "source"  # the folder of the site for files that are not in docs/
LINK = re.compile(r"""(?:(?<=\]\()|(?<=src=")|(?<=srcset="))(?!\w+:)([^)\s#"]+)""")
# What tests/docs/test_code_blocks.py reads.
MARKER = re.compile(r"^<!-- (?:setup\n|not run:|raises:).*?-->\n", re.MULTILINE | re.DOTALL)
TABLE = re.compile(r"^<!-- results: (\w+)(?: \| (.+?))? -->$", re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files outside of docs/ that pages link to, and those that these link to."""
    waiting = [DOCS / file.src_uri for file in files.documentation_pages()]
    while waiting:
        page = waiting.pop()
        for target in linked_files(page):
            if target.is_relative_to(DOCS) or uri_of(target) in files.src_uris:
                continue
            # Included, or MkDocs would leave out files such as .github/workflows/ci.yml.
            file = File.generated(config, uri_of(target), abs_src_path=str(target), inclusion=InclusionLevel.INCLUDED)
            files.append(file)
            if target.suffix == ".md":
                waiting.append(target)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Remove markers, insert tables, and lead links to where the files are in the site."""
    uri = page.file.src_uri
    source = ROOT / uri.removeprefix(f"{OUTSIDE}/") if uri.startswith(f"{OUTSIDE}/") else DOCS / uri
    if not source.is_relative_to(DOCS):
        page.meta["search"] = {"exclude": True}  # the search finds the documentation alone
    markdown = MARKER.sub("", markdown)
    markdown = TABLE.sub(lambda found: benchmark_table(found[1], found[2] or ""), markdown)
    return LINK.sub(lambda found: link_in_site(source, found[1]), markdown)


def linked_files(page: Path) -> Iterator[Path]:
    """Yield the files of the repository that a page links to."""
    for link in LINK.findall(page.read_text("utf-8")):
        target = (page.parent / link).resolve()
        if target.is_file() and target.is_relative_to(ROOT):
            yield target


def link_in_site(source: Path, link: str) -> str:
    """Return the link from one page of the site to another, for a link between files; broken ones stay as they are."""
    target = (source.parent / link).resolve()
    if not target.is_file() or not target.is_relative_to(ROOT):
        return link
    return os.path.relpath(uri_of(target), os.path.dirname(uri_of(source)))  # noqa: PTH120 - URIs


def uri_of(file: Path) -> str:
    """Return the place of a file in the site."""
    if file.is_relative_to(DOCS):
        return file.relative_to(DOCS).as_posix()
    return f"{OUTSIDE}/{file.relative_to(ROOT).as_posix()}"


def benchmark_table(name: str, pattern: str) -> str:
    """Return the figures of `benchmarks/results/NAME.txt` whose names match, as a table, with when they were measured.

    The file has a heading, a row of column names and a row for each figure, up to the first empty line.
    """
    file = RESULTS / f"{name}.txt"
    heading, columns, *rows = file.read_text("utf-8").partition("\n\n")[0].splitlines()
    unit, aim = columns.index("unit"), columns.index("aim")
    lines = ["| | median | rounds | unit | aim |", "|---|--:|--:|---|---|"]
    for row in rows:
        figure, median, rounds, *_ = re.split(r"\s{2,}", row[:unit].rstrip())
        if re.search(pattern, figure):
            cells = (figure, median, rounds, row[unit:aim].strip(), row[aim:].strip())
            lines.append(f"| {' | '.join(cells)} |")
    if len(lines) == 2:
        raise ValueError(f"{file.name} has no figure that matches {pattern!r}")
    return "\n".join([f"`{name}`: {heading}{recorded(file)}.", "", *lines])


def recorded(file: Path) -> str:
    """Return the date and commit that last changed a file; the empty string outside of a git checkout."""
    command = ["git", "-C", str(ROOT), "log", "-1", "--format=%cs, commit %h", "--", str(file)]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
    return f"; recorded {found}" if found else ""
