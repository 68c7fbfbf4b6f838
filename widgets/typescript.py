"""Generate `static/protocol.d.ts` from `protocol`: the types of the messages, for the checker of the JavaScript.

    python -m meshbook.widgets.typescript            # writes the file
    python -m meshbook.widgets.typescript --check    # fails if the file is out of date

It supports only the types of `protocol`: TypedDicts, dataclasses, named tuples, literals, unions, lists, dicts, tuples.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import sys
import types
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any, Literal, NotRequired, Union, get_args, get_origin, get_type_hints, is_typeddict

from meshbook.widgets import protocol

PATH = Path(__file__).parent / "static" / "protocol.d.ts"
_HEAD = "// Generated from protocol.py by `python -m meshbook.widgets.typescript`. Do not edit.\n"
_PRIMITIVES: dict[Any, str] = {str: "string", int: "number", float: "number", bool: "boolean", type(None): "null"}
_UNIONS = (Union, types.UnionType)


class UnknownTypeError(TypeError):
    """A type that has no rendering in TypeScript; names it."""


def declarations(module: types.ModuleType) -> str:
    """Return all public types of a module as TypeScript, in the order of their definition."""
    public = {name: value for name, value in vars(module).items() if name[0] != "_"}
    exported = {
        name: value
        for name, value in public.items()
        if get_origin(value) in (Literal, tuple, *_UNIONS) or (isinstance(value, type) and not issubclass(value, Enum))
    }
    names = {value: name for name, value in exported.items()}
    return "\n".join([_HEAD, *(_declaration(name, value, names) for name, value in exported.items())])


def _declaration(name: str, value: Any, names: dict[Any, str]) -> str:
    if not isinstance(value, type) or get_origin(value) is not None:
        return f"export type {name} = {_definition(value, names)};\n"
    if issubclass(value, tuple):
        members = (f"{field}: {_render(hint, names)}" for field, hint in get_type_hints(value).items())
        return f"{_comment(value)}export type {name} = [{', '.join(members)}];\n"
    return f"{_comment(value)}export interface {name} {{\n{''.join(_fields(value, names))}}}\n"


def _comment(value: type) -> str:
    lines = inspect.cleandoc(value.__doc__ or "").splitlines()
    if len(lines) == 1:
        return f"/** {lines[0]} */\n"
    return "".join(["/**\n", *(f" * {line}".rstrip() + "\n" for line in lines), " */\n"])


def _fields(value: type, names: dict[Any, str]) -> Iterator[str]:
    optional = _optional_fields(value)
    for field, hint in get_type_hints(value, include_extras=True).items():
        is_optional = field in optional or get_origin(hint) is NotRequired
        yield f"  {field}{'?' if is_optional else ''}: {_render(hint, names)};\n"


def _optional_fields(value: type) -> frozenset[str]:
    if is_typeddict(value):
        # `__optional_keys__` misses fields with `NotRequired` in string annotations; the caller checks for those.
        return frozenset(value.__optional_keys__)  # type: ignore[attr-defined]
    if dataclasses.is_dataclass(value):
        return frozenset(field.name for field in dataclasses.fields(value) if field.default is not dataclasses.MISSING)
    raise UnknownTypeError(f"{value} is neither a TypedDict nor a dataclass")


def _render(hint: Any, names: dict[Any, str]) -> str:
    """Return a type as it is used: by its name, if it has one."""
    if hint in names:
        return names[hint]
    return _definition(hint, names)


def _definition(hint: Any, names: dict[Any, str]) -> str:
    if hint in _PRIMITIVES:
        return _PRIMITIVES[hint]
    parts = get_args(hint)
    match get_origin(hint):
        case origin if origin in _UNIONS:
            return " | ".join(_render(part, names) for part in parts)
        case origin if origin is Literal:
            return " | ".join(json.dumps(part) for part in parts)
        case origin if origin is NotRequired:
            return _render(parts[0], names)
        case origin if origin is tuple:
            return f"[{', '.join(_render(part, names) for part in parts)}]"
        case origin if origin is list:
            item = _render(parts[0], names)
            return f"({item})[]" if " | " in item else f"{item}[]"
        case origin if origin is dict:
            return f"Record<{_render(parts[0], names)}, {_render(parts[1], names)}>"
    raise UnknownTypeError(f"{hint!r} has no rendering in TypeScript; add one to {__name__}")


def main() -> None:
    """Write the file, or with `--check` compare it."""
    text = declarations(protocol)
    if "--check" not in sys.argv[1:]:
        PATH.write_text(text, "utf-8")
    elif not PATH.exists() or PATH.read_text("utf-8") != text:
        sys.exit(f"{PATH} is out of date; run python -m {__spec__.name}")


if __name__ == "__main__":
    main()
