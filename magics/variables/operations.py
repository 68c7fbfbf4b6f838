"""Operations on variables of a mesh's ranks: push, pull, scatter, delete, as steps (`requests`).

Not for their interfaces in a notebook: `mesh_handle` has the methods of `mesh`, `verbs` and `cells` the magics.
"""

from __future__ import annotations

import keyword
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from IPython.core.error import StdinNotImplementedError

from meshbook.magics.errors import VariableError
from meshbook.magics.meshes.registry import NotebookMesh
from meshbook.magics.syntax.argparsing import PullSpec
from meshbook.magics.variables.reduce import ReduceError, Reduction, reduce_values
from meshbook.magics.variables.requests import RankRequest, Steps
from meshbook.magics.variables.split import split
from meshbook.runtime.cells.inventory import Entry, Inventory
from meshbook.runtime.cells.packed_values import PackedValues, format_excess, pack
from meshbook.runtime.cells.variables import DeleteRequest, HasRequest, PullRequest, PushRequest, TooLarge
from meshbook.runtime.errors import PickleError
from meshbook.runtime.formats import name_ranks

CONFIRM_ABOVE = 1 << 30  # bytes of one pull without confirmation, of all ranks together
Ask = Callable[[str], str]


def refuse_prompt(prompt: str) -> str:
    """Raise StdinNotImplementedError, since no person waits for the pulled values."""
    raise StdinNotImplementedError(prompt)


def push(mesh: NotebookMesh, ranks: Sequence[int], values: Mapping[str, Any]) -> Steps[None]:
    """Set variables to the same values on all of these ranks."""
    request = PushRequest(pack_all(mesh, values))
    yield RankRequest(mesh, dict.fromkeys(ranks, request), f"push {', '.join(values)}")
    record_names(mesh, ranks, values)


def scatter(
    mesh: NotebookMesh, ranks: Sequence[int], name: str, data: Any, dim: int, places: Sequence[int] | None = None
) -> Steps[None]:
    """Set a variable to one piece of the data on each rank; `places` are the pieces' indices if ranks share pieces."""
    places = range(len(ranks)) if places is None else places
    try:
        pieces = split(data, max(places) + 1, dim)
    except ReduceError as error:
        raise VariableError(f"cannot scatter {name}: {error}") from None
    pushes = [PushRequest(pack_all(mesh, {name: piece})) for piece in pieces]
    requests = {rank: pushes[place] for rank, place in zip(ranks, places, strict=True)}
    yield RankRequest(mesh, requests, f"scatter {name}")
    record_names(mesh, ranks, [name])


def pack_all(mesh: NotebookMesh, values: Mapping[str, Any]) -> PackedValues:
    """Pack values for the transfer. Raises VariableError for one that cannot be packed or has no valid name."""
    check_names(values)
    if not values:
        raise VariableError("nothing to push; name variables, as in mesh.push(lr=0.1)")
    try:
        parcel = pack(values)
    except PickleError as error:
        raise VariableError(f"nothing was pushed: {error}") from error
    if excess := format_excess(parcel, mesh.session.node.settings.max_message_bytes):
        raise VariableError(f"nothing was pushed: {excess}")
    return parcel


def check_names(names: Iterable[Any]) -> None:
    """Raise VariableError for a name that no variable can have."""
    for name in names:
        if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
            raise VariableError(f"{name!r} is not a valid variable name")


def record_names(mesh: NotebookMesh, ranks: Sequence[int], names: Sequence[str] | Mapping[str, Any]) -> None:
    """Record these names, in case the rank dies before its next cell reports them."""
    for rank in ranks:
        known = mesh.names.get(rank, ())
        mesh.names[rank] = (*known, *(name for name in names if name not in known))


def delete(mesh: NotebookMesh, ranks: Sequence[int], name: str) -> Steps[None]:
    """Delete a variable on the ranks."""
    yield RankRequest(mesh, dict.fromkeys(ranks, DeleteRequest((name,))), f"delete {name}")


def is_defined(mesh: NotebookMesh, ranks: Sequence[int], name: str) -> Steps[bool]:
    """Return whether all of the ranks have a variable of this name."""
    answers = yield RankRequest(mesh, dict.fromkeys(ranks, HasRequest(name)), f"look for {name}")
    return all(answers.values())


def inventory(mesh: NotebookMesh, ranks: Sequence[int]) -> Steps[dict[int, list[Entry]]]:
    """Return the variables that cells have made, by rank."""
    return (yield RankRequest(mesh, dict.fromkeys(ranks, Inventory()), "list variables"))


def pull(
    mesh: NotebookMesh, ranks: Sequence[int], wanted: Sequence[PullSpec], *, ask: Ask | None, dim: int = 0
) -> Steps[dict[str, Any]]:
    """Return the values of variables by name: a list in the order of the ranks, or reduced as `PullSpec.how` says.

    More than 1 GiB needs a confirmation by `ask`, unless that is None. A kernel replaces `input` for each cell, so the
    caller passes it from where the cell runs.
    """
    if not wanted:
        raise VariableError("nothing to pull; name a variable, as in mesh.pull('loss')")
    sources = {each.name: sources_of(each, ranks, mesh) for each in wanted}
    names_of = names_by_rank(sources)
    requests = _requests(names_of, CONFIRM_ABOVE / len(names_of))
    answers = yield RankRequest(mesh, requests, f"pull {', '.join(sources)}")
    return (yield from collect(mesh, wanted, sources, answers, ask=ask, dim=dim))


def sources_of(wanted: PullSpec, ranks: Sequence[int], mesh: NotebookMesh) -> Sequence[int]:
    """Return the ranks that a value is taken from. Raises VariableError if its rank is not among `ranks`."""
    if wanted.how == "first":
        return ranks[:1]
    if not isinstance(wanted.how, int):
        return ranks
    rank = wanted.how + (mesh.extent.nelements if wanted.how < 0 else 0)
    if rank not in ranks:
        raise VariableError(f"cannot pull {wanted}: its rank is not among {name_ranks(ranks)} of {mesh.name}")
    return [rank]


def names_by_rank(sources: Mapping[str, Sequence[int]]) -> dict[int, tuple[str, ...]]:
    """Return the names that each rank is to send."""
    asked = {rank for ranks in sources.values() for rank in ranks}
    return {rank: tuple(name for name in sources if rank in sources[name]) for rank in asked}


def collect(
    mesh: NotebookMesh,
    wanted: Sequence[PullSpec],
    sources: Mapping[str, Sequence[int]],
    answers: Mapping[int, Any],
    *,
    ask: Ask | None,
    dim: int = 0,
) -> Steps[dict[str, Any]]:
    """Return the values in the ranks' answers. After a confirmation, request again what ranks withheld for its size."""
    names, what = ", ".join(sources), f"pull {', '.join(sources)}"
    if held := {rank: answer.size for rank, answer in answers.items() if isinstance(answer, TooLarge)}:
        sent = sum(answer.size for answer in answers.values() if isinstance(answer, PackedValues))
        _confirm_size(names, sum(held.values()) + sent, len(answers), ask)
        names_of = names_by_rank(sources)
        rest = yield RankRequest(mesh, _requests({rank: names_of[rank] for rank in held}, math.inf), what)
        answers = {**answers, **rest}
    found: dict[int, dict[str, Any]] = {}
    for rank, answer in answers.items():
        try:
            found[rank] = answer.open()
        except PickleError as error:
            problem = f"the value of rank {rank} cannot be unpickled here: {error}"
            raise VariableError(f"cannot {what}: {problem}") from error
    return {each.name: _reduce([found[rank][each.name] for rank in sources[each.name]], each, dim) for each in wanted}


def _requests(names_of: Mapping[int, tuple[str, ...]], limit: float) -> dict[int, PullRequest]:
    """Return one request object for ranks with the same names, so that it is sent as one message."""
    made = {names: PullRequest(names, limit) for names in names_of.values()}
    return {rank: made[names] for rank, names in names_of.items()}


def _confirm_size(names: str, size: int, count: int, ask: Ask | None) -> None:
    """Raise VariableError if this much needs a confirmation and does not get it."""
    if ask is None or size <= CONFIRM_ABOVE:
        return
    amount = f"{size / (1 << 30):.1f} GiB from {count} {'rank' if count == 1 else 'ranks'}"
    try:
        answer = ask(f"pull {names}: {amount}? [y/N] ")
    except (StdinNotImplementedError, EOFError):
        raise VariableError(
            f"pulling {names} ({amount}) needs a confirmation, which cannot be requested here; use "
            "mesh.pull(..., force=True) or %mesh pull --force, or pull from fewer ranks"
        ) from None
    if answer.strip().lower() not in ("y", "yes"):
        raise VariableError(f"did not pull {names} ({amount}): the confirmation was declined")


def _reduce(values: list[Any], wanted: PullSpec, dim: int) -> Any:
    if wanted.how is None:
        return values
    how: Reduction = "first" if isinstance(wanted.how, int) else wanted.how
    try:
        return reduce_values(values, how, dim)
    except ReduceError as error:
        raise VariableError(f"cannot pull {wanted}: {error}") from None
