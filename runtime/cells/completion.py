"""IPython's completion beside running code: the completions of the name before the cursor.

Not with jedi: it runs the user's properties, and briefly swaps the warnings filters of the whole process, so that a
cell on the main thread would lose its own. IPython's guarded evaluation does neither.

A `Snapshot` summarizes the namespace, for completion while the rank itself cannot answer.
"""

from __future__ import annotations

import builtins
import inspect
import itertools
import keyword
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from IPython.core.completer import IPCompleter, completions_sorting_key
from IPython.core.guarded_eval import EVALUATION_POLICIES

from meshbook.runtime.clock import sleep, thread_time

MOST_MATCHES = 500
# Also allowed for attribute and item lookup: their lookups only read dictionaries.
_MODULES = ("torch", "nn", "Module")
_CONTAINERS = (*(("torch", "nn", name) for name in ("Sequential", "ModuleList", "ModuleDict", "ParameterList")),)
UNKNOWN = "<unknown>"  # IPython's own marker
_OWNER = re.compile(r"([^\W\d]\w*(?:\.[^\W\d]\w*)*)\.\w*\Z")


@dataclass(frozen=True, slots=True)
class Match:
    """A replacement for the text from `start` to `end` (code points of the source).

    `kind` is IPython's type: `function`, `instance`, `module`, `magic`.
    """

    text: str
    start: int
    end: int
    kind: str = UNKNOWN
    signature: str = ""


def make_completer(shell: Any) -> IPCompleter:
    """Create a completer for `complete`: of this shell, with its hooks, but not the one that its main thread uses."""
    completer = IPCompleter(shell=shell, namespace=shell.user_ns, global_namespace=shell.user_global_ns, parent=shell)
    completer.use_jedi = False
    completer.custom_completers = shell.strdispatchers.get("complete_command")
    limited: Any = EVALUATION_POLICIES["limited"]
    completer.policy_overrides = {
        "allowed_getattr_external": {*limited.allowed_getattr_external, _MODULES},
        "allowed_getitem_external": {*limited.allowed_getitem_external, *_CONTAINERS},
    }
    return completer


def complete(completer: IPCompleter, source: str, cursor: int) -> list[Match]:
    """Return the matches at a cursor of the source, the best first; the source need not be valid Python."""
    before = source[:cursor]
    line_start = before.rfind("\n") + 1
    # Not the public method: it is made for the main thread, and warns about being provisional at each match.
    found = completer._complete(
        full_text=source, cursor_line=before.count("\n"), cursor_pos=cursor - line_start
    ).values()
    kinds = _Kinds(completer, before[line_start:])
    ordered = [each for result in found if result.get("ordered") for each in _matches(result, cursor, kinds)]
    sortable = [each for result in found if not result.get("ordered") for each in _matches(result, cursor, kinds)]
    sortable.sort(key=lambda match: completions_sorting_key(match.text))
    return list(itertools.islice(_once([*ordered, *sortable]), MOST_MATCHES))


def _matches(result: Any, cursor: int, kinds: _Kinds) -> Iterator[Match]:
    fragment = str(result["matched_fragment"])
    for found in result["completions"]:
        text, start = found.text, cursor - len(fragment)
        if text.startswith(".") and fragment.startswith("."):  # the dot stays in place
            text, start = text[1:], start + 1
        yield Match(text, start, cursor, kinds.of(text, found.type or UNKNOWN))


def _once(matches: Iterable[Match]) -> Iterator[Match]:
    seen: set[tuple[int, str]] = set()
    for match in matches:
        if (match.start, match.text) not in seen:
            seen.add((match.start, match.text))
            yield match


class _Kinds:
    """Refines IPython's kinds `variable` and `attribute`, without running the user's code."""

    def __init__(self, completer: IPCompleter, line: str) -> None:
        self._names = completer.namespace
        self._owner: Any = None
        if owner := _OWNER.search(line):
            # The object at the end of a dotted path, as far as that is possible without running code.
            first, *path = owner.group(1).split(".")
            self._owner = self._names.get(first)
            for name in path:
                self._owner = _static(self._owner, name)
                if isinstance(self._owner, property):
                    self._owner = None
                    break

    def of(self, text: str, kind: str) -> str:
        if kind == "attribute":
            return kind_of(_static(self._owner, text)) if self._owner is not None else "instance"
        if kind != "variable":
            return kind
        if text in self._names:
            return kind_of(self._names[text])
        return "keyword" if keyword.iskeyword(text) else kind_of(getattr(builtins, text, None))


def kind_of(value: Any) -> str:
    """Return `module`, `class`, `function`, `property` or `instance`, for which front ends have icons."""
    if isinstance(value, ModuleType):
        return "module"
    if isinstance(value, type):
        return "class"
    if isinstance(value, property):
        return "property"
    is_function = inspect.isroutine(value) or isinstance(value, staticmethod | classmethod)
    return "function" if is_function else "instance"


def _static(owner: Any, name: str) -> Any:
    try:
        return inspect.getattr_static(owner, name, None)
    except Exception:  # of an unusual metaclass
        return None


MOST_SECONDS = 0.05  # of processor time: on a busy machine a snapshot is late, not incomplete
MOST_ATTRIBUTES = 400  # of one object


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The kinds of names, and the public attributes of their objects, as far as time allowed."""

    kinds: Mapping[str, str] = field(default_factory=dict)
    attributes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def take_snapshot(namespace: Mapping[str, Any], names: Iterable[str]) -> Snapshot:
    """Take a snapshot of these names, the newest first. Other threads may run between two of them."""
    end = thread_time() + MOST_SECONDS
    kinds: dict[str, str] = {}
    attributes: dict[str, tuple[str, ...]] = {}
    shared: dict[tuple[str, ...], tuple[str, ...]] = {}  # the attributes of one class are sent once
    for name in reversed(list(names)):
        if name not in namespace:
            continue
        value = namespace[name]
        kinds[name] = kind_of(value)
        if thread_time() < end:
            try:
                found = tuple(name for name in dir(value) if not name.startswith("_"))[:MOST_ATTRIBUTES]
            except Exception:  # of a `__dir__` of the user's
                found = ()
            attributes[name] = shared.setdefault(found, found)
            sleep(0)  # the main thread may have begun its next cell
    return Snapshot(kinds, attributes)
