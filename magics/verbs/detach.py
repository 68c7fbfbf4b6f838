"""`%mesh detach`: keep the meshes running without this notebook, for a later `%mesh attach`."""

from __future__ import annotations

import argparse
import re
import time
from dataclasses import dataclass

from meshbook.magics.cells.detach import detach_meshes, plan_to_detach
from meshbook.magics.errors import MeshError
from meshbook.magics.notebook import Notebook
from meshbook.magics.syntax.argparsing import Parser
from meshbook.magics.verbs import Verb
from meshbook.runtime.actor.context import CURRENT
from meshbook.runtime.hosts.detaching import DAY, DetachError
from meshbook.runtime.hosts.session import running_session

UNITS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": DAY, "w": 7 * DAY}


def duration(text: str) -> float:
    """Parse `90`, `90s`, `30m`, `2h`, `1d` as seconds; ArgumentTypeError for anything else."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text.strip())
    unit = found.group(2) or "s" if found else ""
    if found is None or unit not in UNITS or not float(found.group(1)):
        raise argparse.ArgumentTypeError(f"invalid duration {text!r}; examples: 90 (seconds), 30m, 2h, 1d")
    return float(found.group(1)) * UNITS[unit]


@dataclass(frozen=True)
class DetachVerb(Verb):
    """Detach all meshes from this notebook; they end after so many seconds unless a notebook attaches."""

    word = "detach"
    description = (
        "Keep all meshes running without this notebook; %mesh attach takes them back. Their variables, actors, jobs "
        "and output are kept, and running cells continue. Actors in the notebook process end."
    )

    seconds: float = DAY
    at_exit: str | None = None

    @staticmethod
    def add_arguments(parser: Parser) -> None:
        parser.add_argument(
            "--for",
            dest="seconds",
            metavar="TIME",
            type=duration,
            default=DAY,
            help="end the meshes after this time if no notebook attaches: 30m, 2h, 1d (default: 1d)",
        )
        parser.add_argument(
            "--at-exit",
            nargs="?",
            choices=("on", "off"),
            const="on",
            help="detach when this kernel shuts down or restarts, not now; jobs continue, but a cell in the foreground "
            "is interrupted",
        )

    def run(self, notebook: Notebook) -> None:
        if self.at_exit is not None:
            plan_to_detach(notebook, None if self.at_exit == "off" else self.seconds)
            if notebook.detaches_for is None:
                print("the meshes of this notebook end with it")
            else:
                when = "when its kernel shuts down or restarts, but not if the kernel is killed"
                print(f"the meshes of this notebook will be detached {when}")
            return
        if not len(notebook.meshes):
            raise MeshError("nothing to detach: no mesh is up")
        meshes = ", ".join(f"{mesh.name} ({mesh.extent.nelements} ranks)" for mesh in notebook.meshes)
        jobs = [job for job in notebook.jobs if not job.done()]
        try:
            run = detach_meshes(notebook, self.seconds)
        except DetachError as error:
            raise MeshError(str(error)) from error
        finally:
            if running_session() is None:
                CURRENT.set(None)  # it belongs to the session that was detached
        going = "" if not jobs else "; 1 job continues" if len(jobs) == 1 else f"; {len(jobs)} jobs continue"
        ends = time.strftime("%b %d, %H:%M", time.localtime(time.time() + self.seconds))
        print(
            f"run {run} is detached: {meshes}{going}\n"
            "%mesh attach takes it back, here or in another notebook on this host. "
            f"Without that, it ends on {ends}"
        )
