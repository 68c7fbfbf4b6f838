"""`%mesh log`: show the output of ranks."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from meshbook.magics.errors import MeshError
from meshbook.magics.notebook import Notebook
from meshbook.magics.syntax.argparsing import Parser, count
from meshbook.magics.verbs import Verb, add_selection
from meshbook.runtime.formats import name_ranks
from meshbook.runtime.telemetry.logbook import Logbook
from meshbook.runtime.telemetry.logsearch import MOST_LINES, LogLine, LogPage, LogQuery, find_lines
from meshbook.runtime.telemetry.patterns import QueryError

SEARCH_SECONDS = 10.0  # limit of a search; Ctrl-C ends it earlier


@dataclass(frozen=True)
class LogVerb(Verb):
    """Show the last lines that these ranks wrote, in order of arrival; with a filter, only the lines that match."""

    word = "log"
    description = (
        "Show the last output of ranks, in order of arrival. The log keeps 1 MiB of each rank; the result of a cell "
        "keeps more of its output (with -o NAME, NAME[3].stdout)."
    )

    selection: str = "all"
    lines: int = 100
    grep: str = ""
    regex: bool = False
    case: bool = False
    stderr: bool = False
    cell: int | None = None
    time: bool = False

    @staticmethod
    def add_arguments(parser: Parser) -> None:
        add_selection(parser)
        parser.add_argument(
            "-n", dest="lines", metavar="LINES", type=count, default=100, help="number of lines (default: %(default)s)"
        )
        parser.add_argument("-g", "--grep", metavar="TEXT", default="", help="show only lines that contain TEXT")
        parser.add_argument("-r", "--regex", action="store_true", help="TEXT is a regular expression")
        parser.add_argument("-c", "--case", action="store_true", help="match case")
        parser.add_argument("--stderr", action="store_true", help="show only stderr")
        parser.add_argument("--cell", metavar="N", type=count, help="show only the output of cell In[N]")
        parser.add_argument("-t", "--time", action="store_true", help="show the time at which each line arrived")

    def run(self, notebook: Notebook) -> None:
        mesh, ranks = notebook.meshes.ranks_of(self.selection)
        numbers = {mesh.procs.nodes[rank].node: rank for rank in ranks}
        try:
            page = last_lines(notebook.session().output.logbook, numbers, self._query(), self.lines)
        except QueryError as error:
            raise MeshError(str(error)) from error
        if shown := list(self._format_lines(page, labelled=len(ranks) > 1)):
            print("\n".join(shown))
        else:
            what = "no output yet" if self._query() == LogQuery() else "no matching line in the log"
            print(f"{what} from {name_ranks(ranks)} of {mesh.name}")

    def _query(self) -> LogQuery:
        return LogQuery(self.grep, self.regex, self.case, "stderr" if self.stderr else "", self.cell)

    def _format_lines(self, page: LogPage, *, labelled: bool) -> Iterator[str]:
        if page.partial:
            yield f"[meshbook: older lines were not searched: the search took more than {SEARCH_SECONDS:g} s]"
        elif page.dropped and len(page.lines) < self.lines:
            yield f"[meshbook: {page.dropped:,} older lines were discarded]"
        for line in page.lines:
            label = f"[{line.rank}] " if labelled else ""
            clock = time.strftime("%H:%M:%S ", time.localtime(line.at)) if self.time else ""
            yield f"{clock}{label}{line.text}"
        for row in page.live[: max(0, self.lines - len(page.lines))] if labelled else page.live:
            yield f"[{row.rank}] {row.text}" if labelled else row.text


def last_lines(logbook: Logbook, ranks: Mapping[str, int], query: LogQuery, most: int) -> LogPage:
    """Return the last lines that match, on one page of any size."""
    extract = logbook.extract(ranks)
    until = time.monotonic() + SEARCH_SECONDS
    lines: list[LogLine] = []
    before = extract.end
    while True:
        limit, left = min(most - len(lines), MOST_LINES), until - time.monotonic()
        page = find_lines(extract, ranks, query, before=before, limit=limit, seconds=left)
        lines = page.lines + lines
        if page.partial or not page.lines or len(lines) >= most:
            break
        before = lines[0].serial
    live = find_lines(extract, ranks, query, after=extract.end).live
    return LogPage(lines, page.first, page.next, page.end, page.dropped, len(lines), page.partial, live)
