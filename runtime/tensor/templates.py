"""Templates: the constant part of a command, sent once. A command then holds only ids and numbers.

    template   aten::add.Tensor, args (Slot(2, is_value), Slot(3, is_value)), kwargs {"alpha": Slot(4)}
    command    (number of the template, first output id, id, id, 0.5)

A slot's index counts in the command. The rank compiles a template to a function that builds the arguments.

`user_place` finds the user's line that issued a command: the first frame that is neither ours nor torch's.
"""

from __future__ import annotations

import pickle
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch

from meshbook.runtime.traces import Place, SourceLine, is_ours
from meshbook.runtime.wire.frames import Buffer
from meshbook.runtime.wire.pickling import dumps, loads

Command = tuple[Any, ...]
Build = Callable[[Mapping[int, Any], Command], tuple[tuple[Any, ...], dict[str, Any]]]
FIRST_SLOT = 2  # after the template's number and the first output id


@dataclass(frozen=True, slots=True)
class Slot:
    """The place of an argument that each command brings: an id of a value, or a number."""

    index: int
    is_value: bool


@dataclass(frozen=True, slots=True)
class Template:
    """An operator by name, its arguments, and which leaves of its result are new values; None: all, unflattened."""

    name: str  # `aten::add.Tensor`
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    values: int  # how many ids the command has, from `FIRST_SLOT` on
    outputs: tuple[int, ...] | None
    mutated: tuple[int, ...] = ()  # indices in the command of values that are changed in place

    @property
    def is_check(self) -> bool:
        """Whether the operator can only fail. Its command has the ids that it guards in place of the first output."""
        return self.outputs == () and not self.mutated


@dataclass(frozen=True, slots=True)
class Pickled:
    """What the program has passed to a command, as it was then: a batch of commands is sent later."""

    body: tuple[Buffer, ...]

    @classmethod
    def of(cls, value: Any, what: str) -> Pickled:
        """Pickle a value. Raises PickleError, which calls it `what`."""
        return cls(tuple(map(bytes, dumps(value, what))))

    def load(self) -> Any:
        """Return the value. Raises PickleError if this process cannot make it."""
        return loads(list(self.body), "an argument of a command")

    @property
    def nbytes(self) -> int:
        return sum(memoryview(each).nbytes for each in self.body)

    def __reduce__(self) -> tuple[Any, ...]:
        return Pickled, (tuple(map(pickle.PickleBuffer, self.body)),)


def find_operator(name: str) -> Any:
    """Return the operator of a name such as `aten::add.Tensor`; LookupError if this process does not have it."""
    space, _, rest = name.partition("::")
    base, _, overload = rest.partition(".")
    try:
        return getattr(getattr(getattr(torch.ops, space), base), overload or "default")
    except (AttributeError, RuntimeError) as error:
        text = f"this rank has no operator {name}: import the module that defines it there, with a remote function"
        raise LookupError(text) from error


def compile_template(template: Template) -> Build:
    """Return a function from the table of values and a command to the arguments of the call."""
    names: dict[str, Any] = {}
    args = _source((*template.args,), names)
    sources = {name: _source(value, names) for name, value in template.kwargs.items()}
    if isinstance(template.kwargs.get("generator"), Slot):
        sources["generator"] = f"make_generator({sources['generator']})"
        names["make_generator"] = _make_generator
    kwargs = ", ".join(f"{name!r}: {source}" for name, source in sources.items())
    return eval(f"lambda values, command: ({args}, {{{kwargs}}})", names)  # type: ignore[no-any-return]


def _source(value: Any, names: dict[str, Any]) -> str:
    """Return an expression for an argument; constants get a name in `names`."""
    if isinstance(value, Slot):
        return f"values[command[{value.index}]]" if value.is_value else f"command[{value.index}]"
    if type(value) in (tuple, list) and _has_slot(value):
        parts = "".join(f"{_source(part, names)}, " for part in value)
        return f"({parts})" if type(value) is tuple else f"[{parts}]"
    if type(value) is tuple and not value:
        return "()"
    name = f"constant_{len(names)}"
    names[name] = value
    return name


def _make_generator(state: torch.Tensor) -> torch.Generator | None:
    local: torch.Tensor = state.to_local() if hasattr(state, "to_local") else state
    if local.is_meta:  # a simulation draws no numbers
        return None
    # The state of a generator of a GPU is a seed and an offset.
    generator = torch.Generator("cpu" if local.numel() > 16 else "cuda")
    generator.set_state(local.cpu())
    return generator


def _has_slot(value: Any) -> bool:
    if isinstance(value, Slot):
        return True
    return type(value) in (tuple, list) and any(map(_has_slot, value))


def flatten_result(result: Any) -> list[Any]:
    """Return the leaves of an operator's result: tensors, numbers and None, in order."""
    if isinstance(result, (tuple, list)):
        return [leaf for part in result for leaf in flatten_result(part)]
    return [result]


MOST_FILES: Final = 4096
_TORCH = torch.__path__[0] + "/"


def user_place(depth: int) -> Place | None:
    """Return the instruction of the first frame from `depth` up that is neither ours nor torch's."""
    frame = sys._getframe(depth)
    while _is_inner(frame.f_code.co_filename):
        if frame.f_back is None:
            return None
        frame = frame.f_back
    return frame.f_code, frame.f_lasti


class _Inner(dict[str, bool]):
    def __missing__(self, filename: str) -> bool:
        if len(self) > MOST_FILES:
            self.clear()
        found = self[filename] = is_ours(filename) or filename.startswith(_TORCH)
        return found


_is_inner = _Inner().__getitem__


def frame_of(place: Place) -> traceback.FrameSummary:
    line = SourceLine.of(place)
    return traceback.FrameSummary(line.filename, line.number, line.function)
