"""What a view gets of the logs, for any request."""

from __future__ import annotations

import json
from typing import Any

import pytest

from meshbook.runtime.telemetry.logbook import Logbook
from meshbook.runtime.telemetry.patterns import QueryError
from meshbook.widgets.sections import answer_logs


@pytest.fixture
def logbook() -> Logbook:
    logbook = Logbook(clock=lambda: 100.5)
    logbook.take("mesh-1.4", "9.0.1", "stderr", "<script>\nsecond\nhalf", "10%")
    return logbook


def test_a_reply_is_plain_json(logbook: Logbook) -> None:
    request = {"kind": "logs", "id": 3, "sel": "0", "query": {"text": "SCRIPT", "cell": 9, "stream": ""}, "limit": 10}
    assert json.loads(json.dumps(answer_logs(logbook, {"mesh-1.4": 0}, request))) == {
        "lines": [[1, 100.5, 0, "stderr", 9, "<script>"]],
        "live": [],
        "first": 1,
        "next": 3,
        "end": 3,
        "dropped": 0,
        "matches": 1,
        "partial": False,
    }
    assert answer_logs(logbook, {"mesh-1.4": 0}, {"after": 2})["live"] == [(0, "stderr", 9, "half10%")]
    assert answer_logs(logbook, {}, {})["lines"] == []


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        ({"query": {"text": "(", "regex": True}}, "invalid regular expression"),
        ({"query": {"text": 3}}, r"Expected `str`, got `int` - at `\$.query.text`"),
        ({"query": None}, "invalid log query"),
        ({"after": -1}, "invalid log query"),
        ({"limit": 0}, "between 1 and 5000 lines, not 0"),
    ],
)
def test_a_request_that_cannot_be_read_is_refused(logbook: Logbook, request_: dict[str, Any], says: str) -> None:
    with pytest.raises(QueryError, match=says):
        answer_logs(logbook, {"mesh-1.4": 0}, request_)
