"""Answer a view's request for logs: the request is untrusted, the reply is plain JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from meshbook.runtime.telemetry.logbook import Logbook
from meshbook.runtime.telemetry.logsearch import LogPage, LogQuery, find_lines
from meshbook.runtime.telemetry.patterns import QueryError
from meshbook.widgets.protocol import LogsReply


class LogsRequest(msgspec.Struct, frozen=True):
    """The part of a "logs" message that selects lines."""

    query: LogQuery = LogQuery()
    after: Annotated[int, msgspec.Meta(ge=0)] = 0
    before: int | None = None
    limit: int = 500


def answer_logs(logbook: Logbook, ranks: Mapping[str, int], content: Mapping[str, Any]) -> LogsReply:
    """Return the reply to a "logs" message, without its id. `ranks`: the processes to search, and their numbers.

    Takes half a second at most, from any thread. Raises QueryError if the message is invalid.
    """
    try:
        request = msgspec.convert(content, LogsRequest)
    except msgspec.ValidationError as error:
        raise QueryError(f"invalid log query: {error}") from error
    extract = logbook.extract(ranks, request.after)
    return reply_of(
        find_lines(extract, ranks, request.query, after=request.after, before=request.before, limit=request.limit)
    )


def reply_of(page: LogPage) -> LogsReply:
    """Return a page as the views receive it."""
    return {
        "lines": page.lines,
        "live": page.live,
        "first": page.first,
        "next": page.next,
        "end": page.end,
        "dropped": page.dropped,
        "matches": page.matches,
        "partial": page.partial,
    }
