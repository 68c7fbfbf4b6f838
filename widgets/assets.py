"""The front end of the dashboard as one script and one style sheet, joined from `static/`.

anywidget takes a single ES module, and there is no build step. So the files stay ES modules, which a browser can load
one by one. This module joins them, without comments: each becomes a function that returns its exports, so names of
different modules do not collide.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from functools import cache
from importlib.resources import files
from typing import Final

ENTRY: Final = "dashboard.js"

_IMPORT = re.compile(r"^import\s*\{(?P<names>[^}]*)\}\s*from\s*['\"](?P<path>\./[^'\"]+)['\"];?[ \t]*$", re.MULTILINE)
_DECLARED = re.compile(r"^export\s+(?=(?:async\s+)?(?:function\*?|const|let|class)\s+(?P<name>[\w$]+))", re.MULTILINE)
_LISTED = re.compile(r"^export\s*\{(?P<names>[^}]*)\};?[ \t]*$", re.MULTILINE)
_DEFAULT = re.compile(r"^export\s+default\s+", re.MULTILINE)
_LEFT = re.compile(r"^(?:import|export)\b.*$", re.MULTILINE)
_AS = re.compile(r"\s+as\s+")
# JSDoc and line comments on lines of their own. A cast, `/** @type {A} */ (x)`, is followed by code.
_COMMENT = re.compile(r"^[ \t]*(?:/\*\*(?:(?!\*/).)*\*/[ \t]*|//[^\n]*)\n", re.MULTILINE | re.DOTALL)


class AssetError(ValueError):
    """A module of `static/` that cannot be joined; names it, and the line."""


@cache
def script() -> str:
    """Return the whole front end as one ES module, for `_esm` of the widget."""
    return join_modules(_read, ENTRY)


@cache
def style() -> str:
    """Return all style sheets as one, for `_css` of the widget; those of libraries, then ours, by their names."""
    static = files(__package__).joinpath("static")
    folders = [static.joinpath("vendor"), static]
    sheets = [sorted((item for item in folder.iterdir() if item.name.endswith(".css")), key=str) for folder in folders]
    return "\n".join(sheet.read_text("utf-8") for of_folder in sheets for sheet in of_folder)


def join_modules(read: Callable[[str], str], entry: str) -> str:
    """Return the module `entry` and all its imports as one module with the same default export.

    `read` returns the text of a module by its path. Supported: `import {a, b as c} from "./other.js"`, `export` before
    a declaration, `export {a, b as c}`, and `export default` in the entry. Anything else, and a circular import, raises
    AssetError.
    """
    texts = _in_order(read, entry)
    return "\n".join(_enclosed(path, _COMMENT.sub("", text), is_entry=path == entry) for path, text in texts.items())


def _read(path: str) -> str:
    return files(__package__).joinpath("static", *path.split("/")).read_text("utf-8")


def _in_order(read: Callable[[str], str], entry: str) -> dict[str, str]:
    """Return the modules by their paths, each after the modules that it imports."""
    ordered: dict[str, str] = {}

    def visit(path: str, importers: tuple[str, ...]) -> None:
        if path in importers:
            raise AssetError(f"circular import: {' -> '.join((*importers, path))}")
        if path in ordered:
            return
        text = read(path)
        for found in _IMPORT.finditer(text):
            visit(_resolved(path, found["path"]), (*importers, path))
        ordered[path] = text

    visit(entry, ())
    return ordered


def _resolved(importer: str, path: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(importer), path))


def _enclosed(path: str, text: str, *, is_entry: bool) -> str:
    """Return a module as a constant that holds its exports; the entry stays a module."""
    body = _IMPORT.sub(
        lambda found: f"const {{{_renamed(found['names'])}}} = {_name(_resolved(path, found['path']))};", text
    )
    if is_entry:
        return _checked(path, body, allowed=_DEFAULT)
    exports = [found["name"] for found in _DECLARED.finditer(body)]
    exports += [_exported(found["names"]) for found in _LISTED.finditer(body)]
    body = _checked(path, _LISTED.sub("", _DECLARED.sub("", body)))
    return f"const {_name(path)} = (() => {{\n{body}\nreturn {{{', '.join(exports)}}};\n}})();"


def _checked(path: str, body: str, allowed: re.Pattern[str] | None = None) -> str:
    for left in _LEFT.finditer(body):
        if allowed is None or not allowed.match(left[0]):
            raise AssetError(f"static/{path}: this line cannot be joined with other modules: {left[0].strip()}")
    return body


def _renamed(names: str) -> str:
    """Return `a, b as c` of an import as a destructuring pattern: `a, b: c`."""
    return ", ".join(_AS.sub(": ", name.strip()) for name in names.split(",") if name.strip())


def _exported(names: str) -> str:
    """Return `a, b as c` of an export as an object literal: `a, c: b`."""
    pairs = [_AS.split(name.strip()) for name in names.split(",") if name.strip()]
    return ", ".join(f"{pair[-1]}: {pair[0]}" for pair in pairs)


def _name(path: str) -> str:
    return "$" + re.sub(r"\W", "_", path)
