"""Lines of `%mesh`: verbs, their arguments, and their help."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest

from meshbook.magics.errors import UsageError
from meshbook.magics.syntax.argparsing import HelpText, PullSpec
from meshbook.magics.verbs import Verb
from meshbook.magics.verbs.curves import CurvesVerb
from meshbook.magics.verbs.debugging import InterruptVerb, StackVerb
from meshbook.magics.verbs.elastic import DrainVerb, JoinVerb
from meshbook.magics.verbs.explain import ExplainVerb
from meshbook.magics.verbs.log import LogVerb
from meshbook.magics.verbs.start_stop import DownVerb, HealVerb, ResizeVerb, RestartVerb, StartProgress, UpVerb
from meshbook.magics.verbs.status import MetricsVerb, StatusVerb
from meshbook.magics.verbs.variables import DiffVerb, PullVerb, PushVerb
from meshbook.magics.verbs.verb_table import parse_verb
from meshbook.runtime.geometry import Extent


@pytest.mark.parametrize(
    ("line", "verb"),
    [
        ("", StatusVerb(brief=True)),
        ("status", StatusVerb()),
        ("status trainers", StatusVerb("trainers")),
        ("up", UpVerb()),
        ("up --gpus 4", UpVerb(gpus=4)),
        ("up --gpus=4 --name trainers", UpVerb(gpus=4, name="trainers")),
        ("up --gpus 4 --spares 2", UpVerb(gpus=4, spares=2)),
        ("up --shape hosts=2,gpus=4", UpVerb(shape=Extent.of(hosts=2, gpus=4))),
        ("up --shape gpus=4,hosts=2", UpVerb(shape=Extent.of(gpus=4, hosts=2))),
        ("down", DownVerb()),
        ("down --now", DownVerb(now=True)),
        ("down --all", DownVerb(every=True)),
        ("diff model --mesh b", DiffVerb("model", mesh="b")),
        ("down trainers --now", DownVerb("trainers", now=True)),
        ("resize --gpus 6", ResizeVerb(gpus=6)),
        ("drain gpu1 gpu2 --now", DrainVerb(["gpu1", "gpu2"], now=True)),
        ("join ssh:gpu9 --name mesh", JoinVerb("ssh:gpu9", name="mesh")),
        ("resize trainers --shape hosts=2,gpus=4", ResizeVerb(shape=Extent.of(hosts=2, gpus=4), name="trainers")),
        ("heal", HealVerb()),
        ("heal trainers", HealVerb("trainers")),
        ("interrupt", InterruptVerb()),
        ("interrupt !3 --kill", InterruptVerb("!3", kill=True)),
        ("restart -1", RestartVerb("-1")),
        ("push a,b 0:2", PushVerb(("a", "b"), "0:2")),
        ("pull c@-1,d", PullVerb((PullSpec("c", -1), PullSpec("d")))),
        ("pull c !0 --force", PullVerb((PullSpec("c"),), "!0", force=True)),
        ("stack trainers[0,3]", StackVerb("trainers[0,3]")),
        ("curves", CurvesVerb()),
        ("curves train *loss --mesh trainers", CurvesVerb(["train", "*loss"], "trainers")),
        ("curves loss --export run.csv", CurvesVerb(["loss"], export=["run.csv"])),
        ("curves --export tensorboard runs", CurvesVerb(export=["tensorboard", "runs"])),
        ("metrics", MetricsVerb()),
        ("metrics --prometheus", MetricsVerb(prometheus=9464)),
        ("metrics --prometheus 0 --opentelemetry", MetricsVerb(prometheus=0, opentelemetry=True)),
        ("metrics --off", MetricsVerb(off=True)),
        ("log", LogVerb()),
        ("log 3", LogVerb("3")),
        ("log -n 20 0", LogVerb("0", lines=20)),
        ("log failed -g 'loss 0' -c --cell 9", LogVerb("failed", grep="loss 0", case=True, cell=9)),
        ("explain", ExplainVerb()),
        ("explain GroupError", ExplainVerb("grouperror")),
        ("explain process groups were broken", ExplainVerb("process-groups-were-broken-initialize-them-again")),
        ("log --grep -0.5", LogVerb(grep="-0.5")),
        ("log -1 --grep ?", LogVerb("-1", grep="?")),
        ("log --grep ^loss -r --stderr -t", LogVerb(grep="^loss", regex=True, stderr=True, time=True)),
    ],
)
def test_verbs(line: str, verb: Verb) -> None:
    assert parse_verb(line) == verb


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("dwon", "%mesh: unknown verb 'dwon'. Did you mean 'down'? The verbs are up, use, status, dash, down, resize,"),
        ("resize", "one of the arguments --gpus --shape is required"),
        ("grow", "unknown verb 'grow'"),
        ("heal 1 2", "%mesh heal: unexpected argument '2'"),
        ("stack --kill", "%mesh stack: unknown option '--kill'"),
        ("--now", "unknown verb '--now'"),
        ("up 4", "unexpected argument '4'; the number of workers is --gpus 4"),
        ("up --gpu 4", "%mesh up: unknown option '--gpu'. Did you mean '--gpus'?"),
        ("up --gpus 0", "--gpus: '0' is not a whole number of 1 or more"),
        ("up --gpus -1", "--gpus: '-1' is not a whole number"),
        ("up --gpus two", "--gpus: 'two' is not a whole number"),
        ("up --gpus 4 --shape gpus=4", "not allowed with argument"),
        ("up --shape gpus", "--shape: 'gpus' is not a valid shape"),
        ("up --shape gpus=", "'gpus=' is not a valid shape"),
        ("up --shape =4", "'=4' is not a valid shape"),
        ("up --shape gpus=4,", "'gpus=4,' is not a valid shape"),
        ("up --shape gpus=2=2", "'2=2' is not a whole number of 1 or more"),
        ("up --shape gpus=0", "'0' is not a whole number of 1 or more"),
        ("up --shape gpus=2,gpus=2", "Duplicate dimension name 'gpus'"),
        ("up --name 3", "--name: '3' is not a valid variable name"),
        ("status a b", "%mesh status: unexpected argument 'b'"),
        ("explain groperror", "no section is about 'groperror'; did you mean grouperror"),
        ("log 0 -n 0", "-n: '0' is not a whole number of 1 or more"),
        pytest.param("log -n " + "9" * 5000, "…' is not a whole number", id="endless number"),
    ],
)
def test_invalid_verbs(line: str, problem: str) -> None:
    with pytest.raises(UsageError, match=re.escape(problem)):
        parse_verb(line)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("?", "  up         Start a mesh\n"),
        ("--help", "  log        Show the last output of ranks,"),
        ("help", "shows the help of a verb"),
        ("help up", "number of workers"),
        ("--help help", "shows the help of a verb"),
        ("up ?", "usage: %mesh up [-h] [--gpus N | --shape DIM=N,...] [--name NAME]"),
        ("up --help", "number of workers"),
        ("down ?", "usage: %mesh down "),
        ("log -h", "usage: %mesh log "),
    ],
)
def test_help_of_verbs(line: str, said: str) -> None:
    asked = parse_verb(line)
    assert isinstance(asked, HelpText)
    assert said in asked.text


def test_the_progress_of_a_start_that_ends_early_says_so() -> None:
    shown: list[str] = []
    progress = StartProgress(SimpleNamespace())
    progress._publisher = SimpleNamespace(  # type: ignore[assignment]
        publish=lambda items: shown.extend(item.data["text/plain"] for item in items)
    )
    progress.stop()
    progress(1, 2)
    progress.stop()
    assert shown == [
        "starting ranks ██████████░░░░░░░░░░ 1/2",
        "starting ranks ██████████░░░░░░░░░░ 1/2; not completed",
    ]
