"""The executor of a rank: a table of values by id, and the commands that change it.

Commands never raise. A command that fails leaves `Failed` in its outputs. A command with a failed input passes that
failure on, so the first error is what a fetch raises.

A tensor that a failed command was to change is `Failed` as well, with all tensors that share its memory. These keep
their values, and the controller restores them once it has raised the error (`settle`). So they have the values that
they have in one process, where the program leaves at the line of the error. A check, which is a command without outputs
that changes nothing, marks the results that it is about (`guarded`), and the next fetch raises its failure.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from meshbook.runtime.tensor.failures import Failed
from meshbook.runtime.tensor.groups import Grouping, Groups
from meshbook.runtime.tensor.lanes import OpaqueRef
from meshbook.runtime.tensor.metadata import Meta
from meshbook.runtime.tensor.operators import call
from meshbook.runtime.tensor.streams import HandOffs
from meshbook.runtime.tensor.templates import (
    FIRST_SLOT,
    Build,
    Command,
    Pickled,
    Template,
    compile_template,
    find_operator,
    flatten_result,
)
from meshbook.runtime.traces import headline

MISSING = "this value was not made, since the tensor engine has failed on its rank"
Apply = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]
Member = str


@dataclass(frozen=True, slots=True)
class ValueRef:
    """An id among the arguments of a remote function."""

    id: int


@dataclass(frozen=True, slots=True)
class GroupRef:
    """A process group among the arguments of a remote function."""

    name: str


def ids_in(tree: Any) -> list[int]:
    """Return the ids among the arguments of a function."""
    return [leaf.id for leaf in tree_leaves(tree) if isinstance(leaf, ValueRef)]


@dataclass(frozen=True, slots=True)
class Recording:
    """The commands of a recorded function. They use ids of their own, from `first` up to `last`, for what they make."""

    commands: Sequence[Command]
    inputs: Sequence[int]
    outputs: Sequence[int]
    first: int
    last: int


class Step:
    """A template, ready to run. An operator that this rank lacks fails when it runs."""

    __slots__ = ("build", "func", "is_check", "makes_views", "mutated", "outputs", "reshapes", "template", "values")

    def __init__(self, template: Template) -> None:
        self.template = template
        try:
            self.func = find_operator(template.name)
        except LookupError as error:
            self.func = _Missing(str(error))
        self.reshapes = torch.Tag.inplace_view in getattr(self.func, "tags", ())
        self.makes_views = self.reshapes or getattr(self.func, "is_view", False)
        self.build: Build = compile_template(template)
        self.outputs = template.outputs
        self.values = template.values
        self.mutated = template.mutated
        self.is_check = template.is_check


class _Missing:
    def __init__(self, why: str) -> None:
        self._why = why

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise LookupError(self._why)


# Stands for a template that this rank lacks: the command fails, and the others of its batch are run.
_UNKNOWN = Step(Template("a template that this rank lacks", (), {}, 0, (0,)))


class _DefaultDtype:
    """The default dtype that this process has outside of commands. Several streams may run commands at once."""

    lock = threading.Lock()
    streams = 0
    outside: torch.dtype


class Executor:
    """Runs the commands of one stream of a rank, in order. `apply` runs each operator; DTensors need a special one."""

    def __init__(self, rank: int, groups: Groups, apply: Apply = call, hand_offs: HandOffs | None = None) -> None:
        self.rank = rank
        self.groups = groups
        self.values: dict[int, Any] = {}
        self.dtype = torch.float32  # the default dtype of the controller
        self._present: int | str | None = None  # the head of the command that runs
        self.failed_check: Failed | None = None  # the first one that no fetch has raised
        self._apply = apply
        self._hand_offs = hand_offs or HandOffs()
        self._steps: dict[int, Step] = {}
        self._recordings: dict[int, Recording] = {}
        self._functions: dict[int, Any] = {}  # remote functions
        self._failures: list[Failed] = []  # of the present batch: first errors, not those passed on
        self._lost = Failed(0, rank, "", MISSING, is_lost=True)  # stands for a value that no command has made
        self._handlers: dict[str, Callable[..., None]] = {
            "delete": self._delete,
            "default_dtype": self._set_default_dtype,
            "settle": self._settle,
            "template": self._define,
            "forget": self._forget,
            "constant": self._constant,
            "numbers": self._numbers,
            "alias": self._alias,
            "unpack": self._unpack,
            "hand over": self._hand_over,
            "accept": self._accept,
            "record": self._record,
            "replay": self._replay,
            "forget_recording": self._forget_recording,
            "group": self._join,
            "reduce": self._reduce,
            "send": self._send,
            "receive": self._receive,
            "function": self._keep_function,
            "call": self._call,
        }

    def run(self, first: int, commands: Iterable[Command]) -> list[Failed]:
        """Run commands that are numbered from `first` on; return the first errors among them."""
        self._failures = []
        self._run_all(itertools.count(first), commands)
        self._present = None
        return self._failures

    @property
    def present(self) -> str:
        """The operator that runs, or "" between batches."""
        head = self._present  # read once: another thread asks
        if head is None or isinstance(head, str):
            return head or ""
        step = self._steps.get(head)
        return "" if step is None else step.template.name

    def _run_all(self, numbers: Iterable[int], commands: Iterable[Command]) -> None:
        values, steps, apply = self.values, self._steps, self._apply
        for number, command in zip(numbers, commands, strict=False):
            self._present = head = command[0]
            if type(head) is not int:
                self._handlers[head](number, *command[1:])
                continue
            try:
                step = steps[head]
                result = apply(step.func, *step.build(values, command))
                outputs = step.outputs
                if outputs == (0,):
                    values[command[1]] = result[0] if type(result) in (tuple, list) else result
                elif outputs is None:
                    values[command[1]] = result
                elif outputs:
                    leaves = flatten_result(result)
                    for output, leaf in enumerate(outputs, command[1]):
                        values[output] = leaves[leaf]
                elif step.reshapes:
                    # A DTensor cannot change its shape: the result is another one.
                    values[command[FIRST_SLOT]] = result
            except Exception as error:
                self._fail_step(number, steps.get(head, _UNKNOWN), command, error)

    def _fail_step(self, number: int, step: Step, command: Command, error: Exception) -> None:
        inputs = command[FIRST_SLOT : FIRST_SLOT + step.values]
        if step.is_check:
            self._fail_check(number, error, inputs, command[1])
            return
        if step.makes_views and self._view_kept(step, command, inputs):
            return
        count = 1 if step.outputs is None else len(step.outputs)
        written = [command[index] for index in step.mutated]
        self._fail(number, error, inputs, range(command[1], command[1] + count), written)

    def _fail(
        self,
        number: int,
        error: Exception,
        inputs: Iterable[int],
        outputs: Iterable[int],
        written: Iterable[int] = (),
        *,
        is_between_ranks: bool = False,
    ) -> None:
        """Mark the outputs, and what the command was to write to, with the failure of an input or else this error."""
        failed = self.find_failed(inputs)
        if failed is None:
            failed = self._describe(number, error, is_between_ranks)
            self._failures.append(failed)
        for output in outputs:
            self.values[output] = failed
        self._mark_memory(written, failed, keep=True)

    def _fail_check(self, number: int, error: Exception, inputs: Iterable[int], guarded: Iterable[int]) -> None:
        """Mark the results that a failed check is about; the next fetch raises it, unless an input has failed."""
        failed = self.find_failed(inputs)
        if failed is None:
            failed = dataclasses.replace(self._describe(number, error, False), is_check=True)
            self._failures.append(failed)
            self.failed_check = self.failed_check or failed
        self._mark_memory(guarded, failed, keep=False)

    def _mark_memory(self, ids: Iterable[int], failed: Failed, *, keep: bool) -> None:
        """Mark all values that share memory with these ones; a tensor and its views are of one value."""
        keep = keep and self._is_as_before(failed)
        found = [self.values.get(each) for each in ids]
        memory = {self._memory_of(value) for value in found if isinstance(value, torch.Tensor)}
        for each, value in list(self.values.items()) if memory else ():
            if isinstance(value, torch.Tensor) and self._memory_of(value) in memory:
                self.values[each] = failed.keeping(value if keep else None)

    def _memory_of(self, value: Any) -> int:
        """Return a number that tensors with the same memory have in common."""
        return int(value.untyped_storage()._cdata)

    def _is_as_before(self, failed: Failed) -> bool:
        """Return whether tensors that a failed command was to change have the values that one process leaves."""
        return True

    def _view_kept(self, step: Step, command: Command, inputs: Sequence[int]) -> bool:
        """Make a view of a failed tensor whose value is kept: it fails with the tensor, and is restored with it."""
        failed = self.find_failed(inputs)
        found = {each: self.find(each) for each in inputs}
        table = {each: value.kept if type(value) is Failed else value for each, value in found.items()}
        if failed is None or any(value is None for value in table.values()):
            return False
        try:
            result = self._apply(step.func, *step.build(table, command))
        except Exception:
            return False
        leaves = flatten_result(result)
        made = {output: leaves[leaf] for output, leaf in enumerate(step.outputs or (), command[1])}
        if step.reshapes:
            made[command[FIRST_SLOT]] = result
        self.values.update({each: failed.keeping(value) for each, value in made.items()})
        return True

    def _settle(self, number: int, failed: int) -> None:
        """Restore the tensors that the failed command with this number was to change: its error was raised."""
        for each, value in self.values.items():
            if type(value) is Failed and value.kept is not None and value.command == failed:
                self.values[each] = value.kept
        if self.failed_check is not None and self.failed_check.command >= failed:
            self.failed_check = None  # later checks would not have run in one process

    def _describe(self, number: int, error: Exception, is_between_ranks: bool) -> Failed:
        trace = "".join(traceback.format_exception(error)).rstrip()
        return Failed(number, self.rank, headline(error), trace, is_between_ranks)

    def find(self, value: int) -> Any:
        """Return a value of the table; a failure if a command did not make it."""
        return self.values.get(value, self._lost)

    def find_failed(self, ids: Iterable[int]) -> Failed | None:
        """Return the failure among these values that happened first, for what depends on it."""
        found = [value for each in ids if type(value := self.find(each)) is Failed]
        first = min(found, key=lambda failed: failed.command, default=None)
        return None if first is None else first.keeping(None)

    @contextlib.contextmanager
    def using_default_dtype(self) -> Iterator[None]:
        """Make the controller's default dtype that of this process, while the block runs; cells may have another."""
        state = _DefaultDtype
        with state.lock:
            if not state.streams:
                state.outside = torch.get_default_dtype()
            state.streams += 1
            torch.set_default_dtype(self.dtype)
        try:
            yield
        finally:
            with state.lock:
                state.streams -= 1
                if not state.streams and torch.get_default_dtype() is self.dtype:  # else a cell has changed it
                    torch.set_default_dtype(state.outside)

    def _set_default_dtype(self, number: int, dtype: torch.dtype) -> None:
        self.dtype = dtype
        torch.set_default_dtype(dtype)

    # -- the table --------------------------------------------------------------------

    def _delete(self, number: int, ids: Iterable[int]) -> None:
        pop = self.values.pop
        for each in ids:
            pop(each, None)

    def _define(self, number: int, head: int, template: Template) -> None:
        self._steps[head] = Step(template)

    def _forget(self, number: int, limit: int) -> None:
        self._steps = {head: step for head, step in self._steps.items() if head >= limit}

    def _constant(self, number: int, output: int, tensor: torch.Tensor, meta: Meta) -> None:
        try:
            value = torch.empty_strided(meta.shape, meta.stride, dtype=meta.dtype, device=meta.device)
            self.values[output] = value.copy_(tensor)
        except Exception as error:
            self._fail(number, error, (), (output,))

    def _numbers(self, number: int, output: int, numbers: dict[int, int]) -> None:
        self.values[output] = torch.tensor(numbers[self.rank])

    def _alias(self, number: int, output: int, source: int) -> None:
        value = self.find(source)
        if type(value) is Failed:
            self.values[output] = value.keeping(None if value.kept is None else self._detach(value.kept))
        else:
            self.values[output] = self._detach(value)

    def _detach(self, value: Any) -> Any:
        return value.detach()

    def _unpack(self, number: int, source: int, outputs: Sequence[int]) -> None:
        """Give the tensors of a whole result ids of their own."""
        result = self.values.pop(source, self._lost)
        if type(result) is Failed:
            leaves: Sequence[Any] = [result] * len(outputs)
        else:
            leaves = [leaf for leaf in tree_leaves(result) if isinstance(leaf, (torch.Tensor, OpaqueRef))]
        self.values.update(zip(outputs, leaves, strict=True))

    # -- between streams --------------------------------------------------------------

    def _hand_over(self, number: int, tag: int, source: int, as_copy: bool) -> None:
        """Hand a value off to another stream of this rank, which accepts it."""
        value = self.find(source)
        try:
            if as_copy:
                value = value.keeping(None) if type(value) is Failed else value.clone()
            self._hand_offs.put(tag, value)
        except Exception as error:  # out of memory
            self._failures.append(failed := self._describe(number, error, False))
            self._hand_offs.put(tag, failed)

    def _accept(self, number: int, tag: int, output: int) -> None:
        """Wait for a value of another stream, and store it unless `output` is 0."""
        try:
            value = self._hand_offs.take(tag)
            if not output:
                return
            if type(value) is Failed and output in self.values:  # a borrower was to change it
                self._mark_memory([output], value, keep=True)
            else:
                self.values[output] = value
        except Exception as error:
            self._fail(number, error, (), (output,) if output else ())

    # -- recordings -------------------------------------------------------------------

    def _record(self, number: int, name: int, recording: Recording) -> None:
        self._recordings[name] = recording

    def _forget_recording(self, number: int, name: int) -> None:
        self._recordings.pop(name, None)

    def _replay(self, number: int, name: int, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        """Run recorded commands with other inputs; a failure has the number of this command."""
        recording, values = self._recordings[name], self.values
        values.update(zip(recording.inputs, [self.find(each) for each in inputs], strict=True))
        self._run_all(itertools.repeat(number), recording.commands)
        results = [self.find(each) for each in recording.outputs]
        self._delete(number, (*recording.inputs, *range(recording.first, recording.last)))
        values.update(zip(outputs, results, strict=True))

    # -- between ranks ----------------------------------------------------------------

    def _join(self, number: int, grouping: Grouping) -> None:
        self.groups.join(grouping)

    def _reduce(
        self, number: int, output: int, source: int, group: str, reduction: str, scatter: bool, into: int, meta: Meta
    ) -> None:
        """Reduce a value over the ranks of a group, into the value `into` if that is not zero."""
        value, failed = self._take(source, meta)
        try:
            over = self.groups.find(group)
            if reduction == "stack":
                result = over.exchange(value, failed) if scatter else over.gather(value, failed)
            elif scatter:
                result = over.scatter_reduce(value, reduction, failed)
            else:
                result = over.reduce(value, reduction, failed)
            self.values[into or output] = self.values[into].copy_(result) if into else result
        except Exception as error:
            new, written = ((), (into,)) if into else ((output,), ())
            self._fail(number, error, (source, *written), new, written, is_between_ranks=True)

    def _take(self, source: int, meta: Meta) -> tuple[torch.Tensor, bool]:
        """Return a value, or one of the same shape in place of one that has failed, and whether it has."""
        value = self.find(source)
        if type(value) is Failed:
            return torch.zeros(meta.shape, dtype=meta.dtype, device=meta.device), True
        return value, False

    def _send(
        self, number: int, source: int, group: str, targets: dict[int, Sequence[Member]], tag: int, meta: Meta
    ) -> None:
        """Send this rank's value to the members that are its targets."""
        if not (members := targets.get(self.rank, ())):
            return
        value, failed = self._take(source, meta)
        try:
            ranks = [self.groups.rank_in(group, member) for member in members]
            self.groups.find(group).send(value, ranks, tag, failed)
        except Exception as error:
            self._fail(number, error, (source,), (), is_between_ranks=True)

    def _receive(
        self, number: int, output: int, group: str, sources: dict[int, Member | int], tag: int, meta: Meta
    ) -> None:
        """Take the value that another rank sends to this one, or a copy of a value of this rank."""
        source = sources[self.rank]
        try:
            if isinstance(source, int):
                value = self.values[source].clone()
            else:
                rank = self.groups.rank_in(group, source)
                value = self.groups.find(group).receive(meta.shape, meta.dtype, rank, tag)
            room = torch.empty_strided(meta.shape, meta.stride, dtype=meta.dtype, device=meta.device)
            self.values[output] = room.copy_(value)
        except Exception as error:
            inputs = (source,) if isinstance(source, int) else ()
            self._fail(number, error, inputs, (output,), is_between_ranks=True)

    # -- remote functions -------------------------------------------------------------

    def _keep_function(self, number: int, name: int, function: Pickled) -> None:
        try:
            self._functions[name] = function.load()
        except Exception as error:
            self._functions[name] = _Missing(str(error))

    def _call(
        self, number: int, function: int, arguments: Pickled, outputs: Sequence[int] | int, metas: Sequence[Any] = ()
    ) -> None:
        """Call a function; its tensors get the ids `outputs`, or its whole result one id, for `unpack`.

        `metas` are what the controller expects: a `Meta` for a tensor, else an `OpaqueRef`.
        """
        ids: Sequence[int] = ()
        try:
            tree = arguments.load()
            ids = ids_in(tree)
            if (failed := self.find_failed(ids)) is not None:
                if outputs == []:  # nothing else shows that it was not called
                    self.failed_check = self.failed_check or failed
                raise RuntimeError("an argument has failed")  # `_fail` passes that failure on
            result = self.apply_function(self._functions[function], tree)
            if isinstance(outputs, int):
                self.values[outputs] = result
            else:
                leaves = [leaf for leaf in tree_leaves(result) if isinstance(leaf, (torch.Tensor, OpaqueRef))]
                if len(leaves) != len(outputs):
                    raise ValueError(
                        f"returned {len(leaves)} tensors or references, but its propagation rule gave {len(outputs)}"
                    )
                for leaf, meta in zip(leaves, metas, strict=True):
                    form = (meta.shape, meta.dtype) if isinstance(meta, Meta) else None
                    if form != (None if isinstance(leaf, OpaqueRef) else (tuple(leaf.shape), leaf.dtype)):
                        raise ValueError(f"returned {leaf!r:.200}, but its propagation rule gave {meta}")
                self.values.update(zip(outputs, leaves, strict=True))
        except Exception as error:
            if outputs == []:
                self._fail_check(number, error, ids, ())
            else:
                self._fail(number, error, ids, (outputs,) if isinstance(outputs, int) else outputs)

    def apply_function(self, function: Any, tree: Any) -> Any:
        """Call a remote function with the values of this rank; tensors of the result are detached."""
        args, kwargs = tree_map_only(ValueRef, lambda ref: self.values[ref.id], tree)
        args, kwargs = tree_map_only(GroupRef, lambda ref: self.groups.find(ref.name).handle, (args, kwargs))
        with torch.enable_grad():
            result = function(*args, **kwargs)
        return tree_map_only(torch.Tensor, lambda tensor: tensor.detach(), result)
