"""Lists every text that users can see, with its place in the code. Uses no mesh.

    python benchmarks/user_texts.py [--out FILE]

Each line has the place, the kind and the text, separated by tabs; `{...}` stands for an inserted value. The kinds:

- error: the message of an exception
- warning, log, print: the text that is written
- help: help and descriptions of options, verbs and settings
- text: a string in a function whose name begins with `format_`, `render_` or similar, or in a constant
- dashboard: a label or sentence in JavaScript
"""

from __future__ import annotations

import argparse
import ast
import builtins
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
FOLDERS = ("kernel", "magics", "runtime", "widgets", "meshbook/monarch", "meshbook/testing")
BUILTIN_ERRORS = {name for name, value in vars(builtins).items() if isinstance(value, type)} & {
    error.__name__ for error in (*Exception.__subclasses__(), *LookupError.__subclasses__(), *OSError.__subclasses__())
} | {"Exception", "SystemExit", "KeyboardInterrupt", "NotImplementedError", "ArgumentTypeError"}
LOG_CALLS = {"debug", "info", "warning", "error", "exception", "critical"}
HELP_KEYWORDS = {"help", "description", "epilog", "usage", "meaning"}
HELP_CALLS = {"Setting", "Parser", "ArgumentParser", "add_name"}
TEXT_FUNCTION = re.compile(r"_?(format|render|describe|tell|explain|summar|complain|advice|hint|notice|banner)|__str__")
JS_TEXT = re.compile(
    r"""\b(?:title|label|text|"aria-label"|placeholder)\s*[:=]\s*("[^"\n]*"|`[^`]*`)|("[^"\n]*"|`[^`]*`)"""
)


class Text(NamedTuple):
    """A text in the code."""

    file: Path
    line: int
    kind: str
    text: str


def python_files() -> list[Path]:
    """Return the source files of the package, each once."""
    own = sorted((ROOT / "meshbook").glob("*.py"))
    return own + [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]


def error_names(trees: dict[Path, ast.Module]) -> set[str]:
    """Return the names of Python's exceptions and of the project's own classes that derive from them."""
    bases = {
        node.name: {ast.unparse(base).rpartition(".")[2] for base in node.bases}
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }
    found = set(BUILTIN_ERRORS)
    while new := {name for name, parents in bases.items() if parents & found} - found:
        found |= new
    return found


def words_of(node: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each string in an expression or a block, without docstrings."""
    if isinstance(node, ast.JoinedStr):
        parts = [part.value if isinstance(part, ast.Constant) else "{...}" for part in node.values]
        yield node.lineno, "".join(map(str, parts))
        return
    if isinstance(node, ast.Constant):
        if isinstance(node.value, str):
            yield node.lineno, node.value
        return
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)):
            yield from words_of(child)


def kind_of_call(call: ast.Call, errors: set[str]) -> str | None:
    """Return the kind of the texts in the arguments of a call, or None if users do not see them."""
    function = ast.unparse(call.func)
    owner, _, name = function.rpartition(".")
    if name in errors or (name == "error" and owner.endswith("parser")):
        return "error"
    if name == "warn":
        return "warning"
    if name in LOG_CALLS and "log" in owner.lower():
        return "log"
    if function == "print" or function.endswith(("stderr.write", "stdout.write")):
        return "print"
    return "help" if name in HELP_CALLS else None


def texts_of(file: Path, tree: ast.Module, errors: set[str]) -> Iterator[Text]:
    """Yield the texts of a Python file, some of them more than once."""
    for node in ast.walk(tree):
        kind: str | None = None
        parts: list[ast.AST] = []
        if isinstance(node, ast.Call):
            kind = kind_of_call(node, errors)
            parts = [*node.args, *node.keywords]
            if kind is None:
                kind, parts = "help", [keyword.value for keyword in node.keywords if keyword.arg in HELP_KEYWORDS]
        elif isinstance(node, ast.Raise):
            kind, parts = "error", [node.exc] if node.exc else []
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and TEXT_FUNCTION.match(node.name):
            kind, parts = "text", list(node.body[1:] if ast.get_docstring(node) else node.body)
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            name = ast.unparse(node).split()[0].rstrip(":")
            kind = "help" if name == "description" else "text"
            parts = [node.value] if kind == "help" or name.isupper() else []
        for line, text in (found for part in parts for found in words_of(part)):
            if re.search(r"[A-Za-z]{2,}[^A-Za-z]* [^ ]*[A-Za-z]", text) and "\nimport " not in text:
                yield Text(file, line, kind or "text", text)


def javascript_texts() -> Iterator[Text]:
    """Yield the labels, titles and sentences of the dashboard's JavaScript."""
    for file in sorted((ROOT / "widgets/static").glob("*.js")):
        for number, line in enumerate(file.read_text("utf-8").splitlines(), 1):
            if line.lstrip().startswith(("//", "*", "/*", "import", "} from")):
                continue
            for label, other in JS_TEXT.findall(line):
                if label or (re.search(r"[A-Za-z]{2,} [A-Za-z{$]", other) and "meshbook-" not in other):
                    yield Text(file, number, "dashboard", re.sub(r"\$\{[^}]*\}", "{...}", (label or other)[1:-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description="List every text that users can see, with its place in the code.")
    parser.add_argument(
        "--out", type=argparse.FileType("w"), default=sys.stdout, help="the file to write (default: standard output)"
    )
    arguments = parser.parse_args()
    trees = {file: ast.parse(file.read_text("utf-8")) for file in python_files()}
    errors = error_names(trees)
    found = [text for file, tree in trees.items() for text in texts_of(file, tree, errors)]
    once = {(each.file, each.line, each.text): each for each in reversed([*found, *javascript_texts()])}
    for file, line, text in sorted(once):
        arguments.out.write(f"{file.relative_to(ROOT)}:{line}\t{once[file, line, text].kind}\t{text!r}\n")


if __name__ == "__main__":
    main()
