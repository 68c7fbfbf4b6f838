"""The verbs of `%mesh` as a table, and what a line of it asks for.

Selectors stay text here; they are read when the verb is done.
"""

from __future__ import annotations

import textwrap

from meshbook.magics.parsing import (
    HELP_WORDS,
    HelpAsked,
    HelpRequested,
    UsageError,
    quoted,
    read,
    suggestion,
    words,
)
from meshbook.magics.verbs.attach import Attach
from meshbook.magics.verbs.cancel import Cancel
from meshbook.magics.verbs.config import Config
from meshbook.magics.verbs.dash import Dash
from meshbook.magics.verbs.debug import Debug
from meshbook.magics.verbs.detach import Detach
from meshbook.magics.verbs.diff import Diff
from meshbook.magics.verbs.doctor import Doctor
from meshbook.magics.verbs.down import Down
from meshbook.magics.verbs.heal import Heal
from meshbook.magics.verbs.interrupt import Interrupt
from meshbook.magics.verbs.jobs import ListJobs
from meshbook.magics.verbs.log import Log
from meshbook.magics.verbs.metrics import MetricsVerb
from meshbook.magics.verbs.mode import Mode
from meshbook.magics.verbs.profile import ProfileVerb
from meshbook.magics.verbs.pull import Pull
from meshbook.magics.verbs.push import Push
from meshbook.magics.verbs.resize import Resize
from meshbook.magics.verbs.restart import Restart
from meshbook.magics.verbs.result import Result
from meshbook.magics.verbs.stack import Stack
from meshbook.magics.verbs.status import Status
from meshbook.magics.verbs.trace import TraceVerb
from meshbook.magics.verbs.up import Up
from meshbook.magics.verbs.use import Use
from meshbook.magics.verbs.verb import Verb
from meshbook.magics.verbs.who import Who, Whos

# As the overview lists them: a mesh's life, then cells that run, then variables, then what to look at.
_ALL: tuple[type[Verb], ...] = (
    Up,
    Use,
    Status,
    Dash,
    Down,
    Resize,
    Heal,
    Interrupt,
    Restart,
    Detach,
    Attach,
    Push,
    Pull,
    Who,
    Whos,
    Diff,
    ListJobs,
    Result,
    Cancel,
    Mode,
    Config,
    Stack,
    Debug,
    TraceVerb,
    MetricsVerb,
    ProfileVerb,
    Log,
    Doctor,
)
VERBS = {verb.word: verb for verb in _ALL}
WIDTH = 100  # as argparse's texts have it (`parsing.Parser`)


def parse_verb(line: str) -> Verb | HelpRequested:
    """What follows `%mesh` on its line; nothing is a brief `status`."""
    if not (found := words(line)):
        return Status(brief=True)
    word, *arguments = found
    if word in ("help", *HELP_WORDS):
        verb_asked = next((each for each in arguments if each not in HELP_WORDS and each != "help"), None)
        return HelpRequested(overview()) if verb_asked is None else parse_verb(f"{verb_asked} --help")
    if word not in VERBS:
        raise UsageError(f"%mesh: no verb {quoted(word)}{suggestion(word, VERBS)} The verbs are {', '.join(VERBS)}.")
    verb = VERBS[word]
    try:
        return verb(**vars(read(verb.parser(), arguments)))
    except HelpAsked as asked:
        return HelpRequested(asked.text)


def overview() -> str:
    """The verbs, each with the first sentence of what it does."""
    wide = max(map(len, VERBS)) + 4
    lines = [
        textwrap.fill(
            verb.description.partition(". ")[0].removesuffix("."),
            WIDTH,
            initial_indent=f"  {word}".ljust(wide),
            subsequent_indent=" " * wide,
        )
        for word, verb in VERBS.items()
    ]
    end = "%mesh alone is a line of status; %mesh VERB --help says more, and so does %mesh help VERB."
    return "\n".join(["usage: %mesh VERB ...", "", *lines, "", end])
