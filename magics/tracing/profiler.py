"""Taking of profiles: of the next cell, of exactly this one, or of whatever ranks run for some seconds.

py-spy samples from outside, if the host has it and permits it; otherwise each rank samples itself. Not for merging
(`profile`).
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec

from meshbook.magics.errors import MeshError
from meshbook.magics.meshes.registry import NotebookMesh
from meshbook.magics.meshes.whereabouts import answers_of, count_ranks
from meshbook.magics.output.publisher import Display, Publisher, StreamText
from meshbook.magics.tracing.profile import Profile, SampleProfile, TorchProfile, save
from meshbook.runtime.cells.failures import is_user_code
from meshbook.runtime.cells.operator_profiles import OperatorProfile, OperatorProfiler
from meshbook.runtime.cells.sampling import Sampler
from meshbook.runtime.formats import format_bytes, format_seconds, name_ranks
from meshbook.runtime.hosts.py_spy import begin_spying, end_spying
from meshbook.runtime.mesh.procs import ProcMesh, handle_failures
from meshbook.runtime.telemetry.samples import RATE, RankSamples, from_speedscope

ANSWER_SECONDS = 10.0  # seconds for ranks and hosts to begin, or to return their samples; it takes less than one
T = TypeVar("T")
Title = Callable[[float], str]  # of a profile that took this many seconds


@dataclass(frozen=True)
class ProfileRequest:
    """A request to profile a cell: on these ranks (a selector; None: all of the cell), and how."""

    selection: str | None = None
    torch: bool = False
    out: str | None = None


class ProfileRun(Protocol):
    """A profile in progress on some ranks."""

    async def begin(self) -> None:
        """Start; returns once all ranks are being profiled."""

    async def end(self, title: Title, seconds: float) -> Profile:
        """Stop, and return the profile of the `seconds` since the start."""


@dataclass
class ProfilerState:
    """The profiles of a notebook: the request for the next cell, and the last one taken."""

    armed: ProfileRequest | None = None
    last: Profile | None = None

    def take_request(self, *, wanted: bool) -> ProfileRequest | None:
        """Remove and return the request for the cell that begins: its own option, or one made before it."""
        request, self.armed = self.armed, None
        return request if request is not None or not wanted else ProfileRequest()

    async def around(
        self, work: Coroutine[Any, Any, T], mesh: NotebookMesh, request: ProfileRequest, target: ProfileTarget
    ) -> T:
        """Run and profile a cell, and show the profile below its output, however it ends."""
        run = make_profile_run(mesh, target.ranks, torch=request.torch)
        try:
            await run.begin()
        except BaseException:
            work.close()
            await run.end(str, 0.0)
            raise
        started = time.monotonic()
        try:
            return await work
        finally:
            profile = await run.end(target.title, time.monotonic() - started)
            self.show(profile, target.publisher)
            if request.out is not None:
                try:
                    text = save_as(profile, request.out)
                except MeshError as error:  # printed, so that the cell keeps its result
                    text = str(error)
                target.publisher.publish([StreamText("stdout", f"{text}\n")])

    def show(self, profile: Profile, publisher: Publisher) -> None:
        """Show the summary, and keep the profile for `--save`."""
        self.last = profile
        summary = profile.summary
        publisher.publish([Display({"text/plain": summary.text(), "text/html": summary.html()}, {})])


@dataclass(frozen=True)
class ProfileTarget:
    """What a profile covers, and where it is shown."""

    what: str
    ranks: Sequence[int]
    publisher: Publisher

    def title(self, seconds: float) -> str:
        """Return `profile of cell 7: 3.21 s on 4 ranks [0-3]`."""
        return f"profile of {self.what}: {format_seconds(seconds)} on {count_ranks(self.ranks)}"


def save_as(profile: Profile, name: str) -> str:
    """Save the profile; return its location as a line. Raises MeshError if it cannot be saved."""
    path = Path(name).expanduser()
    try:
        size = save(profile, path)
    except OSError as error:
        raise MeshError(f"cannot save the profile as {path}: {error.strerror or error}") from error
    return f"saved as {path} ({format_bytes(size)}); open it in {profile.viewer}"


async def profile_for(run: ProfileRun, seconds: float, stop: threading.Event, target: ProfileTarget) -> Profile:
    """Profile for this many seconds, or until `stop` is set."""
    started = time.monotonic()
    try:
        await run.begin()
        started = time.monotonic()
        await asyncio.to_thread(stop.wait, seconds)
    finally:
        profile = await run.end(target.title, time.monotonic() - started)
    return profile


def make_profile_run(mesh: NotebookMesh, ranks: Sequence[int], *, torch: bool) -> ProfileRun:
    """Return a profile run of these ranks, by samples or of torch's operators."""
    return OperatorProfileRun(mesh, ranks) if torch else SampleProfileRun(mesh, ranks)


class SampleProfileRun:
    """Samples of some ranks: from outside where that works, otherwise from within."""

    def __init__(self, mesh: NotebookMesh, ranks: Sequence[int], rate: int = RATE) -> None:
        self._mesh = mesh
        self._ranks = list(ranks)
        self._rate = rate
        self._why: dict[int, str] = {}  # ranks that sample themselves, and why
        self._samplers: Any = None

    async def begin(self) -> None:
        procs = slice_of(self._mesh, self._ranks)
        answers = [each or {} for each in await answers_of(begin_spying(procs, self._rate), ANSWER_SECONDS)]
        why = {node: reason for each in answers for node, reason in each.items()}
        nodes = self._mesh.procs.nodes
        found = {rank: why.get(nodes[rank].node, "its host did not answer") for rank in self._ranks}
        self._why = {rank: reason for rank, reason in found.items() if reason}
        if self._why:
            self._samplers = spawn_on(self._mesh, list(self._why), "sampler", Sampler)
            await answers_of(self._samplers.begin.call_each(self._rate), ANSWER_SECONDS)

    async def end(self, title: Title, seconds: float) -> SampleProfile:
        spied = await self._end_spies()
        seen = spied | await self._end_samplers()
        return SampleProfile(f"{title(seconds)}, {self._rate} samples a second", seen, tuple(self._notes(seen)))

    async def _end_spies(self) -> dict[int, RankSamples]:
        answers = [
            each or {} for each in await answers_of(end_spying(slice_of(self._mesh, self._ranks)), ANSWER_SECONDS)
        ]
        data = {node: content for each in answers for node, content in each.items()}
        found = {rank: _read(data.get(self._mesh.procs.nodes[rank].node, b"")) for rank in self._ranks}
        return {rank: samples for rank, samples in found.items() if samples is not None}

    async def _end_samplers(self) -> dict[int, RankSamples]:
        if self._samplers is None:
            return {}
        answers: list[RankSamples | None] = await answers_of(self._samplers.end.call_each(), ANSWER_SECONDS)
        self._samplers.stop("the profile ended")
        return {rank: each for rank, each in zip(self._why, answers, strict=True) if each is not None}

    def _notes(self, seen: Mapping[int, RankSamples]) -> list[str]:
        reasons: dict[str, list[int]] = {}
        for rank, why in self._why.items():
            reasons.setdefault(why, []).append(rank)
        notes = [f"{name_ranks(ranks)} sampled themselves, because {why}" for why, ranks in reasons.items()]
        notes += ["such samples do not show C code that holds the GIL"] if reasons else []
        if missing := [rank for rank in self._ranks if rank not in seen]:
            notes.append(f"no profile from {name_ranks(missing)}")
        if seen and not any(thread.length for each in seen.values() for thread in each.threads):
            notes.append("no samples in your code: it was too short, or the ranks were idle")
        return notes


def _read(data: bytes) -> RankSamples | None:
    try:
        return from_speedscope(data, is_user_code) if data else None
    except (msgspec.DecodeError, KeyError):  # the profiler was killed while it wrote
        return None


class OperatorProfileRun:
    """torch.profiler on some ranks, around the next cell."""

    def __init__(self, mesh: NotebookMesh, ranks: Sequence[int]) -> None:
        self._mesh = mesh
        self._ranks = list(ranks)
        self._profilers: Any = None

    async def begin(self) -> None:
        self._profilers = spawn_on(self._mesh, self._ranks, "operators", OperatorProfiler)
        await answers_of(self._profilers.begin.call_each(), ANSWER_SECONDS)

    async def end(self, title: Title, seconds: float) -> TorchProfile:
        asked = self._profilers.end.call_each() if self._profilers is not None else []
        answers: list[OperatorProfile | None] = await answers_of(asked, 6 * ANSWER_SECONDS)
        if self._profilers is not None:
            self._profilers.stop("the profile ended")
        seen = {rank: each for rank, each in zip(self._ranks, answers, strict=False) if each is not None}
        missing = [rank for rank in self._ranks if rank not in seen]
        took = max((each.seconds for each in seen.values()), default=seconds)
        return TorchProfile(title(took), seen, (f"no profile from {name_ranks(missing)}",) if missing else ())


def slice_of(mesh: NotebookMesh, ranks: Sequence[int]) -> ProcMesh:
    """Return the processes of these ranks."""
    return mesh.procs._with_region(mesh.procs.region.pick(ranks))


def spawn_on(mesh: NotebookMesh, ranks: Sequence[int], name: str, cls: type[Any]) -> Any:
    """Spawn an internal actor on these ranks. Its failure is not escalated: calls to it report the failure."""
    actors = slice_of(mesh, ranks).spawn(name, cls)
    handle_failures(actors, lambda failure: True)
    return actors
