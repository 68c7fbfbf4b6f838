"""The notebook's requests about variables of a rank: a class for each, which the cell actor carries out.

They wait behind cells, on the main thread, so each request sees the effects of the cells before it. A
`VariableTransfer` has the variables sent with a cell: set before its source runs, and returned with its outcome.
`packed_values` packs values.
"""

from __future__ import annotations

import difflib
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from meshbook.runtime.actor.context import context
from meshbook.runtime.cells.failures import format_interrupt
from meshbook.runtime.cells.interrupts import INTERRUPTS
from meshbook.runtime.cells.outcome import CellCost, CellOutcome, CellValue, RankError
from meshbook.runtime.cells.packed_values import PackedValues, format_excess, pack
from meshbook.runtime.cells.shell import RankShell
from meshbook.runtime.cells.values import describe_text
from meshbook.runtime.errors import PickleError
from meshbook.runtime.wire.functions import binding_to


@dataclass(frozen=True)
class Namespace:
    """The variables of a rank; `names` returns the user's, `formatter` is IPython's for display.

    `most_bytes` is the maximum size of a message. `brought` has the variables that functions have brought along.
    """

    values: dict[str, Any]
    names: Callable[[], Sequence[str]]
    formatter: Any
    most_bytes: int = 4 << 30
    brought: dict[str, Any] = field(default_factory=dict)

    def bring(self, brought: Mapping[str, Any]) -> None:
        """Set variables of the notebook that pushed functions use, but for those that the rank has of its own."""
        for name, value in brought.items():
            if name not in self.values or (name in self.brought and self.values[name] is self.brought[name]):
                self.values[name] = self.brought[name] = value


@dataclass(frozen=True)
class RequestError:
    """The reason why a rank has not carried out a request: `x is not defined`."""

    reason: str
    hint: str = ""


@dataclass(frozen=True)
class TooLarge:
    """Values that were not sent because of their size, in bytes."""

    size: int


class VariableRequest(ABC):
    """A request about a rank's variables."""

    @abstractmethod
    def handle(self, namespace: Namespace) -> Any:
        """Carry out the request and return the answer. It is a RequestError if the request fails."""


def handle(request: VariableRequest, namespace: Namespace, operation: str) -> Any:
    """Carry out a request as user code. An interrupt refers to it by `operation`."""
    try:
        with INTERRUPTS.during(operation), INTERRUPTS.user_code():
            return request.handle(namespace)
    except KeyboardInterrupt:
        return RequestError("the request was interrupted")


@dataclass(frozen=True)
class PushRequest(VariableRequest):
    """Set variables: all, or none if one cannot be unpickled here."""

    parcel: PackedValues

    def handle(self, namespace: Namespace) -> RequestError | None:
        try:
            with binding_to(namespace.values) as brought:
                values = self.parcel.open()
        except PickleError as error:
            return RequestError(str(error))
        namespace.bring(brought)
        namespace.values.update(values)
        for name in values:
            namespace.brought.pop(name, None)
        return None


@dataclass(frozen=True)
class PullRequest(VariableRequest):
    """Send variables; if they have more bytes than `limit`, only their size."""

    names: tuple[str, ...]
    limit: float

    def handle(self, namespace: Namespace) -> PackedValues | TooLarge | RequestError:
        if (missing := missing_from(namespace, self.names)) is not None:
            return missing
        try:
            parcel = pack({name: namespace.values[name] for name in self.names})
        except PickleError as error:
            return RequestError(str(error))
        if excess := format_excess(parcel, namespace.most_bytes):
            return RequestError(excess)
        return parcel if parcel.size <= self.limit else TooLarge(parcel.size)


@dataclass(frozen=True)
class ShowRequest(VariableRequest):
    """Show a variable like the last expression of a cell."""

    name: str

    def handle(self, namespace: Namespace) -> CellValue | RequestError:
        if (missing := missing_from(namespace, [self.name])) is not None:
            return missing
        try:
            return describe_text(namespace.values[self.name], namespace.formatter)
        except Exception as error:  # of the user's own `__repr__`
            return RequestError(f"{self.name} cannot be shown: {type(error).__name__}: {error}")


@dataclass(frozen=True)
class HasRequest(VariableRequest):
    """Return whether there is a variable of this name."""

    name: str

    def handle(self, namespace: Namespace) -> bool:
        return self.name in namespace.values


@dataclass(frozen=True)
class DeleteRequest(VariableRequest):
    """Delete variables."""

    names: tuple[str, ...]

    def handle(self, namespace: Namespace) -> RequestError | None:
        if (missing := missing_from(namespace, self.names)) is not None:
            return missing
        for name in self.names:
            del namespace.values[name]
        return None


@dataclass(frozen=True)
class VariableForm:
    """What the controller has to know of a tensor on a rank; `offset` and `stride` count elements."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: Any  # a torch.dtype
    device: str  # its type: ranks of one host have GPUs of different numbers

    @classmethod
    def of(cls, tensor: Any) -> VariableForm:
        return cls(
            *(tuple(tensor.shape), tuple(tensor.stride()), tensor.storage_offset(), tensor.dtype, tensor.device.type)
        )

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')}{list(self.shape)} on {self.device}"


@dataclass(frozen=True)
class TensorRequest(VariableRequest):
    """Describe a variable that is a tensor."""

    name: str

    def handle(self, namespace: Namespace) -> VariableForm | RequestError:
        if (missing := missing_from(namespace, [self.name])) is not None:
            return missing
        value, torch = namespace.values[self.name], sys.modules.get("torch")
        if torch is None or not isinstance(value, torch.Tensor):
            return RequestError(f"{self.name} is a {type(value).__name__}, not a tensor")
        if value.layout is not torch.strided:
            return RequestError(f"{self.name} has the layout {value.layout}, and tensors of a mesh must be dense")
        return VariableForm.of(value)


@dataclass(frozen=True)
class TakeRequest(VariableRequest):
    """Set variables to values that the tensor engine has offered here."""

    names: tuple[str, ...]

    def handle(self, namespace: Namespace) -> RequestError | None:
        offers = RankShell.instance().offers
        if missing := [name for name in self.names if name not in offers]:
            return RequestError(f"{missing[0]} is not on this rank")
        namespace.values.update({name: offers.pop(name) for name in self.names})
        return None


def missing_from(namespace: Namespace, names: Sequence[str]) -> RequestError | None:
    """Return an error if any of these variables does not exist."""
    missing = [name for name in names if name not in namespace.values]
    if not missing:
        return None
    if len(missing) > 1:
        return RequestError(f"{', '.join(missing)} are not defined")
    close = difflib.get_close_matches(missing[0], namespace.names(), n=1)
    return RequestError(f"{missing[0]} is not defined", hint=f"did you mean {close[0]}?" if close else "")


def variable_here(mesh: str, name: str) -> Any:
    """Resolve a reference to a variable on a rank of its mesh: the rank's own value."""
    names = _shell_here(mesh, name).user_ns
    if name not in names:
        raise NameError(f"name {name!r} is not defined")
    return names[name]


def tensor_here(mesh: str, name: str, form: VariableForm) -> Any:
    """Return a rank's own tensor, on a thread of the tensor engine. ValueError: it has changed its shape since."""
    tensor = variable_here(mesh, name)
    if (found := VariableForm.of(tensor)) != form:
        raise ValueError(f"{name} was {form} when the notebook asked, and is {found} now")
    return tensor


def offer_here(mesh: str, values: Mapping[str, Any]) -> None:
    """Keep values for a `TakeRequest`, on a thread of the tensor engine."""
    _shell_here(mesh, ", ".join(values)).offers.update(values)


def _shell_here(mesh: str, name: str) -> RankShell:
    spec = context().actor_instance.spec
    if spec is None or spec.world.mesh != mesh or not RankShell.initialized():
        raise LookupError(f"{name} is a variable of the mesh {mesh}; this process is not one of its ranks")
    shell: RankShell = RankShell.instance()
    return shell


_NOTHING = CellCost(wall=0.0, cpu=0.0, peak_rss=0)


@dataclass(frozen=True)
class VariableTransfer:
    """The variables to set, and the names to return: on every rank (`pulled`), and on some ranks (`pulled_at`).

    It is part of the cell, so no other message comes between, and one interrupt ends both.
    """

    pushed: PackedValues | None = None
    pulled: tuple[str, ...] = ()
    pulled_at: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    limit: float = 0  # bytes that one rank may send without confirmation

    def around(self, run: Callable[[], CellOutcome], namespace: Namespace, rank: int, origin: str) -> CellOutcome:
        """Set the variables, run the cell and pull.

        If a variable cannot be set, the cell does not run. If the cell fails, it pulls nothing.
        """
        try:
            with INTERRUPTS.during(origin), INTERRUPTS.user_code():
                refused = None if self.pushed is None else PushRequest(self.pushed).handle(namespace)
            if refused is not None:
                text = f"the cell did not run because its variables were not pushed: {refused.reason}"
                return CellOutcome(_NOTHING, error=RankError("raised", "VariableError", text))
        except KeyboardInterrupt as error:
            return CellOutcome(_NOTHING, error=format_interrupt(error))
        return self._taken_along(run(), namespace, rank, origin)

    def _taken_along(self, outcome: CellOutcome, namespace: Namespace, rank: int, origin: str) -> CellOutcome:
        names = (*self.pulled, *self.pulled_at.get(rank, ()))
        if outcome.error is not None or not names:
            return outcome
        try:
            with INTERRUPTS.during(origin), INTERRUPTS.user_code():
                return msgspec.structs.replace(outcome, pulled=PullRequest(names, self.limit).handle(namespace))
        except KeyboardInterrupt as error:
            return msgspec.structs.replace(outcome, error=format_interrupt(error))


NO_TRANSFER = VariableTransfer()
