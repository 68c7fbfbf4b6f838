"""The table of the verbs of `%mesh`, and the parser of its lines.

Selectors stay text here; `run` resolves them.
"""

from __future__ import annotations

import textwrap

from meshbook.magics.errors import UsageError
from meshbook.magics.syntax.argparsing import (
    HELP_WORDS,
    HelpRequested,
    HelpText,
    parse_words,
    quoted,
    split_words,
    suggestion,
)
from meshbook.magics.verbs import Verb
from meshbook.magics.verbs.attach import AttachVerb
from meshbook.magics.verbs.curves import CurvesVerb
from meshbook.magics.verbs.debugging import DebugVerb, InterruptVerb, StackVerb
from meshbook.magics.verbs.detach import DetachVerb
from meshbook.magics.verbs.elastic import DrainVerb, JoinVerb
from meshbook.magics.verbs.explain import ExplainVerb
from meshbook.magics.verbs.jobs import CancelVerb, JobsVerb, ResultVerb
from meshbook.magics.verbs.log import LogVerb
from meshbook.magics.verbs.notebook_settings import ConfigVerb, ModeVerb
from meshbook.magics.verbs.profile import ProfileVerb
from meshbook.magics.verbs.start_stop import DownVerb, HealVerb, ResizeVerb, RestartVerb, UpVerb, UseVerb
from meshbook.magics.verbs.status import DashVerb, DoctorVerb, MetricsVerb, StatusVerb
from meshbook.magics.verbs.trace import TraceVerb
from meshbook.magics.verbs.variables import DiffVerb, PullVerb, PushVerb, WhosVerb, WhoVerb

# In the order of the overview: a mesh's lifecycle, then variables, running cells, settings, and inspection.
_VERB_CLASSES: tuple[type[Verb], ...] = (
    UpVerb,
    UseVerb,
    StatusVerb,
    DashVerb,
    DownVerb,
    ResizeVerb,
    DrainVerb,
    JoinVerb,
    HealVerb,
    InterruptVerb,
    RestartVerb,
    DetachVerb,
    AttachVerb,
    PushVerb,
    PullVerb,
    WhoVerb,
    WhosVerb,
    DiffVerb,
    JobsVerb,
    ResultVerb,
    CancelVerb,
    ModeVerb,
    ConfigVerb,
    StackVerb,
    DebugVerb,
    TraceVerb,
    CurvesVerb,
    MetricsVerb,
    ProfileVerb,
    LogVerb,
    DoctorVerb,
    ExplainVerb,
)
VERBS = {verb.word: verb for verb in _VERB_CLASSES}
WIDTH = 100  # as in the texts of argparse (`argparsing.Parser`)


def parse_verb(line: str) -> Verb | HelpText:
    """Parse the text after `%mesh` on its line; an empty line means a brief `status`."""
    if not (found := split_words(line)):
        return StatusVerb(brief=True)
    word, *arguments = found
    if word in ("help", *HELP_WORDS):
        verb_asked = next((each for each in arguments if each not in HELP_WORDS and each != "help"), None)
        return HelpText(overview()) if verb_asked is None else parse_verb(f"{verb_asked} --help")
    if word not in VERBS:
        raise UsageError(
            f"%mesh: unknown verb {quoted(word)}{suggestion(word, VERBS)} The verbs are {', '.join(VERBS)}."
        )
    verb = VERBS[word]
    try:
        return verb(**vars(parse_words(verb.parser(), arguments)))
    except HelpRequested as asked:
        return HelpText(asked.text)


def overview() -> str:
    """Return a list of the verbs, each with the first sentence of its description."""
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
    end = "%mesh alone shows a brief status. %mesh VERB --help or %mesh help VERB shows the help of a verb."
    return "\n".join(["usage: %mesh VERB ...", "", *lines, "", end])
