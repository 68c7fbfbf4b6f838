"""`%mesh profile`: show in which functions the ranks spend their time."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from meshbook.magics.errors import MeshError, UsageError
from meshbook.magics.meshes import lifecycle
from meshbook.magics.meshes.whereabouts import collect_whereabouts
from meshbook.magics.notebook import Notebook
from meshbook.magics.output.publisher import publisher_for
from meshbook.magics.shell.cell_interrupts import interruptible
from meshbook.magics.syntax.argparsing import Parser, seconds, selector
from meshbook.magics.tracing.profiler import ProfileRequest, ProfileTarget, make_profile_run, profile_for, save_as
from meshbook.magics.verbs import Verb
from meshbook.runtime.formats import name_ranks

ANNOUNCED_SECONDS = 2.0  # seconds; a longer profile is announced
DEFAULT_SECONDS = 5.0  # of a profile of running code


@dataclass(frozen=True)
class ProfileVerb(Verb):
    """Profile these ranks (None: all), now for some seconds or in the next cell; or save the last profile."""

    word = "profile"
    description = (
        "Show in which functions the ranks spend their time, and where they differ. Profiles the running cell, or else "
        "the next %%mesh cell. %%mesh --profile profiles its own cell."
    )

    selection: str | None = None
    seconds: float | None = None
    torch: bool = False
    out: str | None = None
    save: str | None = None
    off: bool = False

    @staticmethod
    def add_arguments(parser: Parser) -> None:
        parser.add_argument(
            "selection",
            metavar="SEL",
            nargs="?",
            type=selector,
            help="ranks to profile (default: all of the mesh or cell)",
        )
        parser.add_argument(
            "--seconds",
            metavar="S",
            type=seconds,
            help="profile running cells and actors now, for S seconds (default while a cell runs: "
            f"{DEFAULT_SECONDS:g}); "
            "an interrupt ends it early",
        )
        parser.add_argument(
            "--torch",
            action="store_true",
            help="profile torch operators in the next cell, with torch.profiler on each rank",
        )
        parser.add_argument(
            "-o", "--out", metavar="FILE", help="save the profile (.json or .json.gz), with a lane for each rank"
        )
        parser.add_argument("--save", metavar="FILE", help="save the last profile, and take no new one")
        parser.add_argument("--off", action="store_true", help="do not profile the next cell")

    def run(self, notebook: Notebook) -> None:
        if self.save is not None:
            if notebook.profiling.last is None:
                raise MeshError("no profile has been taken yet; take one with %%mesh --profile")
            print(save_as(notebook.profiling.last, self.save))
        elif self.off:
            notebook.profiling.armed = None
            print("the next cell will not be profiled")
        elif self.torch and self.seconds is not None:
            raise UsageError("%mesh profile: --torch profiles a whole cell and cannot be combined with --seconds")
        elif not self.torch and (self.seconds is not None or self._is_busy(notebook)):
            self._profile_now(notebook)
        else:
            notebook.profiling.armed = ProfileRequest(self.selection, self.torch, self.out)
            print("the next %%mesh cell will be profiled (%mesh profile --off cancels this)")

    def _is_busy(self, notebook: Notebook) -> bool:
        """Return whether any of the ranks runs a cell."""
        if not len(notebook.meshes):
            return False
        mesh, ranks = notebook.meshes.ranks_of(self.selection or "all")
        whereabouts = lifecycle.wait_for(collect_whereabouts(mesh, [rank for rank in ranks if rank not in mesh.dead]))
        return any(where.said is None or not where.said.is_idle for where in whereabouts.values())

    def _profile_now(self, notebook: Notebook) -> None:
        mesh, ranks = notebook.meshes.ranks_of(self.selection or "all")
        living = [rank for rank in ranks if rank not in mesh.dead]
        if not living:
            raise MeshError(f"all of these ranks of {mesh.name} are dead; restart them with %mesh heal")
        stop, target = threading.Event(), ProfileTarget(mesh.name, living, publisher_for(notebook.shell))
        profile_run = make_profile_run(mesh, living, torch=False)
        length = self.seconds or DEFAULT_SECONDS
        with interruptible(stop.set):
            if length >= ANNOUNCED_SECONDS:
                print(f"profiling {name_ranks(living)} of {mesh.name} for {length:g} s; an interrupt ends it early")
            profile = lifecycle.wait_for(profile_for(profile_run, length, stop, target))
        notebook.profiling.show(profile, target.publisher)
        if self.out is not None:
            print(save_as(profile, self.out))
