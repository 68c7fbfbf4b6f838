"""`compile`: record the commands of a function once, and replay them as one command.

A recording stays on the ranks. Its commands use ids of their own, so each replay starts from the same state: the ranks
put the inputs there, run the commands, take the outputs, and drop the rest.

`coalescing` holds commands back and sends them as one message.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from meshbook.runtime.tensor.arguments import find_faults
from meshbook.runtime.tensor.device_mesh import active_place, get_active_mesh
from meshbook.runtime.tensor.engine import Engine
from meshbook.runtime.tensor.executor import Recording
from meshbook.runtime.tensor.failures import format_call
from meshbook.runtime.tensor.lanes import Lane, Ref
from meshbook.runtime.tensor.mesh_value import Place
from meshbook.runtime.tensor.metadata import Meta
from meshbook.runtime.tensor.templates import FIRST_SLOT, Command, Template, user_place
from meshbook.runtime.tensor.tensor import MeshTensor, make_tensor

MOST_RECORDINGS: Final = 100  # of one function
# Commands that are not part of a recording.
_DEFINITIONS: Final = frozenset({"template", "group", "forget", "random_state", "default_dtype", "settle"})
_serial = itertools.count(1)
Key = tuple[Any, ...]


def compile(function: Callable[..., Any] | None = None, *, verify: bool = True) -> Any:  # noqa: A001
    """Return a function that records its operations at the first call, and replays them as one command later.

    There is a recording for each combination of shapes and other arguments. The function runs on one mesh, and may
    change its inputs and tensors that it finds elsewhere, such as parameters. What it reads of Python while it is
    recorded stays the same in each replay: a learning rate, a random choice.

    With `verify`, a function that keeps a new tensor elsewhere than in its result raises RuntimeError: replays would
    not renew it. Raises TypeError for inputs that require grad or are borrowed, RuntimeError for a function that asks
    for values, and NotImplementedError for operations that cannot be recorded: remote functions, copies between meshes.
    """
    if function is None:
        return functools.partial(compile, verify=verify)
    return Compiled(function, verify)


class _Entry:
    """One recording, and what the controller needs to replay it."""

    def __init__(self, name: int, lane: Lane, spec: Any, leaves: list[Any], held: dict[int, Ref]) -> None:
        self.name = name
        self.lane = lane
        self.spec = spec
        self.leaves = leaves  # of the result: a `Meta` for a new tensor, an `_InputIndex` for an input, else itself
        self.held = held  # values that the commands use and that are no inputs; they live as long as this

    def replay(self, inputs: Sequence[MeshTensor], place: Place) -> Any:
        """Issue the recording as one command."""
        metas = [leaf for leaf in self.leaves if isinstance(leaf, Meta)]
        engine = self.lane.engine
        first = engine.new_ids(len(metas)) if metas else 0
        numbers = list(range(first, first + len(metas)))
        command = "replay", self.name, [tensor._ref.id for tensor in inputs], numbers
        engine.issue(self.lane, command, user_place(1))
        new = iter([make_tensor(m, self.lane.new_ref(n), place) for m, n in zip(metas, numbers, strict=True)])
        leaves = [
            next(new) if isinstance(leaf, Meta) else inputs[leaf.index] if isinstance(leaf, _InputIndex) else leaf
            for leaf in self.leaves
        ]
        return tree_unflatten(leaves, self.spec)


@dataclass(frozen=True, slots=True)
class _InputIndex:
    """In a result: the input with this index, itself."""

    index: int


class Compiled:
    """A function that is recorded. Made by `compile`."""

    def __init__(self, function: Callable[..., Any], verify: bool) -> None:
        self._function = function
        self._verify = verify
        self._entries: dict[Key, _Entry] = {}
        self._name = getattr(function, "__qualname__", repr(function))
        functools.update_wrapper(self, function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        leaves, spec = tree_flatten((args, kwargs))
        inputs = [leaf for leaf in leaves if isinstance(leaf, MeshTensor)]
        place = active_place()
        if place is None:
            raise ValueError("a compiled function needs an active mesh: call it in `with mesh.activate():`")
        _check_inputs(self._name, inputs, place)
        ids = [tensor._ref.id for tensor in inputs]
        pattern = tuple(map(ids.index, ids))  # which inputs are the same value
        arguments = (leaf._meta if isinstance(leaf, MeshTensor) else (type(leaf), leaf) for leaf in leaves)
        key = place, spec, pattern, torch.get_default_dtype(), *arguments
        entry = self._entries.get(key)
        if entry is not None:
            if place.is_global:
                place.engine.share_random()
            return entry.replay(inputs, place)
        if len(self._entries) >= MOST_RECORDINGS:
            for old in self._entries.values():
                old.lane.engine.issue(old.lane, ("forget_recording", old.name), None)
            self._entries.clear()
        recorder = _Recorder(place, inputs)
        with recorder:
            result = self._function(*args, **kwargs)
        self._entries[key] = recorder.finish(result, verify=self._verify)
        return result


def _check_inputs(name: str, inputs: Sequence[MeshTensor], place: Place) -> None:
    faults = [(tensor, fault) for tensor in inputs for fault in find_faults(tensor, place)]
    faults += [(each, "requires grad, and a recording has no backward") for each in inputs if each.requires_grad]
    faults += [(each, "borrowed, and it could be mutated") for each in inputs if each._ref.borrows]
    if faults:
        raise TypeError(format_call(name, inputs, {}, faults))


class _Recorder:
    """Takes down the commands that are issued in its block."""

    def __init__(self, place: Place, inputs: Sequence[MeshTensor]) -> None:
        self._lane = place.lane
        self._engine = place.engine
        self._inputs = inputs
        self._commands: list[Command] = []
        self._dead: set[int] = set()
        self.held: dict[int, Ref] = {}

    def __enter__(self) -> None:
        if self._engine.recorder is not None:
            raise RuntimeError("compile() is already recording a function: call other compiled functions outside of it")
        self._thread = threading.current_thread()
        self._first = self._engine.new_ids(1)  # what the function makes has larger ids
        self._delete, self._lane.delete = self._lane.delete, self._note_death
        self._engine.recorder = self

    def __exit__(self, *_: object) -> None:
        self._engine.recorder = None
        self._lane.delete = self._delete
        self._last = self._engine.new_ids(1)

    def _note_death(self, number: int) -> None:
        self._dead.add(number)
        self._delete(number)

    def note(self, lane: Lane, command: Command) -> None:
        """Take down a command. Raises RuntimeError in another thread of the program."""
        thread = threading.current_thread()
        if thread is not self._thread and not isinstance(thread, threading._DummyThread):  # one of torch's own
            raise RuntimeError(
                f"the thread {self._thread.name} records a function of this mesh with compile(), and operations of "
                "other threads would become part of the recording: wait until it has ended"
            )
        if command[0] in _DEFINITIONS:
            return
        if lane is not self._lane:
            raise NotImplementedError(
                "compile() records operations on one mesh and stream, but this operation is on another one"
            )
        self._commands.append(command)

    def hold(self, tensors: Iterable[MeshTensor]) -> None:
        """Keep values that a command uses and that the function has not made."""
        for tensor in tensors:
            if tensor._ref.id < self._first:
                self.held[tensor._ref.id] = tensor._ref

    def finish(self, result: Any, *, verify: bool) -> _Entry:
        """Send the recording to the ranks. Raises RuntimeError if the function keeps what it has made."""
        leaves, spec = tree_flatten(result)
        tensors = [leaf for leaf in leaves if isinstance(leaf, MeshTensor)]
        if any(tensor.requires_grad for tensor in tensors):
            raise TypeError(
                "a compiled function returned a tensor that requires grad, but replays create no graph: return "
                "tensor.detach()"
            )
        ids = [tensor._ref.id for tensor in self._inputs]
        given = {number: index for index, number in enumerate(ids)}
        base = self._engine.new_ids(self._last - self._first + len(ids))
        end = base + self._last - self._first
        renamed = _Renamer(self._engine, {n: end + i for n, i in given.items()}, self._first, base)
        commands = [renamed.rename(command) for command in self._commands]
        returned = [tensor._ref.id for tensor in tensors]
        # A view keeps the tensor that it is of, also if the function drops that.
        viewed = {tensor._base._ref.id for tensor in tensors if isinstance(tensor._base, MeshTensor)}
        if verify and (kept := renamed.made - self._dead - viewed - set(returned)):
            raise RuntimeError(
                f"a compiled function keeps {len(kept)} new tensors that it does not return, and replays would not "
                "update them: return them, or create them before the first call (call optimizer.step() once, for "
                "example)"
            )
        for number in given:
            self.held.pop(number, None)
        outputs = [renamed.number(number) for number in returned if number > self._first]
        described = [self._describe(leaf, given) for leaf in leaves]
        inputs = [renamed.number(number) for number in ids]
        name, lane = next(_serial), self._lane
        recording = Recording(commands, inputs, outputs, base, end)
        self._engine.issue(lane, ("record", name, recording), None, 0)
        return _Entry(name, lane, spec, described, self.held)

    def _describe(self, leaf: Any, given: dict[int, int]) -> Any:
        if not isinstance(leaf, MeshTensor):
            return leaf
        if leaf._ref.id in given:
            return _InputIndex(given[leaf._ref.id])
        return leaf._meta.as_constant(False) if leaf._ref.id > self._first else leaf


class _Renamer:
    """Gives the ids of recorded commands names of the recording's own."""

    def __init__(self, engine: Engine, inputs: dict[int, int], first: int, base: int) -> None:
        self._templates: dict[int, Template] = {plan.number: plan.template for plan in engine.cache.values()}
        self._inputs = inputs
        self._first = first
        self._base = base
        self.made: set[int] = set()

    def number(self, number: int) -> int:
        if number in self._inputs:
            return self._inputs[number]
        return number - self._first + self._base if number > self._first else number

    def rename(self, command: Command) -> Command:
        """Return a command with its ids renamed. NotImplementedError: it cannot be recorded."""
        head = command[0]
        if type(head) is int:
            template = self._templates[head]
            count = len(template.outputs or ())
            end = FIRST_SLOT + template.values
            ids = [self.number(number) for number in command[FIRST_SLOT:end]]
            output: Any = self._make(command[1], count) if count else 0
            if template.is_check:
                output = tuple(map(self.number, command[1]))
            return (head, output, *ids, *command[end:])
        if head in ("constant", "numbers"):
            return (head, self._make(command[1]), *command[2:])
        if head == "alias":
            return head, self._make(command[1]), self.number(command[2])
        if head == "redistribute":
            return head, self._make(command[1]), self.number(command[2]), command[3]
        if head == "align":
            return head, self._make(command[1]), self.number(command[2]), self.number(command[3])
        if head == "reduce":
            _, output, source, group, reduction, scatter, into, meta = command
            target = self.number(into) if into else self._make(output)
            return head, target, self.number(source), group, reduction, scatter, into and target, meta
        raise NotImplementedError(
            f"compile() cannot record {head!r}: it does not support remote functions and copies between meshes"
        )

    def _make(self, number: int, count: int = 1) -> int:
        self.made.update(range(number, number + count))
        return self.number(number)


@contextlib.contextmanager
def coalescing() -> Iterator[None]:
    """While the block runs, hold the commands of the active mesh back; its end sends them together.

    The ranks begin later, and the controller sends less often: for bursts of short operations. Blocks can be nested.
    Raises ValueError if no mesh is active; a fetch in the block raises NotImplementedError.
    """
    engine = get_active_mesh().engine
    engine.holds += 1
    try:
        yield
    finally:
        engine.holds -= 1
        if not engine.holds:
            engine.flush()
