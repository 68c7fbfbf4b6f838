"""The code of a notebook's cells, for `export_script`: what it assigns and uses, and changes to its text. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator


class NotExportable(Exception):
    """A cell has no meaning in a script; the text is the reason."""


def group_arguments(statement: ast.stmt) -> str | None:
    """Return the arguments of `await mesh.init_process_group(...)`; None for any other statement."""
    match statement:
        case ast.Expr(ast.Await(ast.Call(ast.Attribute(ast.Name(), "init_process_group"), arguments, keywords))) if all(
            isinstance(each, ast.Constant) for each in [*arguments, *(keyword.value for keyword in keywords)]
        ):
            words = [*map(ast.unparse, arguments)]
            return ", ".join([*words, *(f"{each.arg}={ast.unparse(each.value)}" for each in keywords)])
    return None


def is_same_everywhere(statement: ast.stmt) -> bool:
    """Whether a statement of the notebook does nothing but import, define, or assign constants."""
    match statement:
        case ast.Import() | ast.ImportFrom() | ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return True
        case ast.Assign(value=value) | ast.AnnAssign(value=value):
            return value is None or _is_constant(value)
        case ast.Expr(ast.Constant()) | ast.Pass():
            return True
    return False


def _is_constant(value: ast.expr) -> bool:
    try:
        ast.literal_eval(value)
    except ValueError:
        return False
    return True


def parse_body(body: str) -> ast.Module:
    """Parse the code of a cell. NotExportable if it has magics or is no Python."""
    try:
        return ast.parse(body)
    except SyntaxError as error:
        raise NotExportable(f"it is not plain Python: {(error.text or '').strip()}") from error


def contains_await(node: ast.AST) -> bool:
    """Whether code awaits something outside of its functions."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        return False
    awaits = isinstance(node, ast.Await | ast.AsyncFor | ast.AsyncWith)
    return awaits or any(map(contains_await, ast.iter_child_nodes(node)))


def free_names(tree: ast.Module) -> set[str]:
    """Return the names that the code uses and does not assign."""
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    return names - assigned_names(tree)


def assigned_names(tree: ast.Module) -> set[str]:
    """Return the names that the code assigns, imports or defines, in functions as well."""

    def found() -> Iterator[str]:
        for node in ast.walk(tree):
            match node:
                case ast.Name(name, ast.Store()) | ast.arg(name):
                    yield name
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                    yield name

    return set(found())


def show_last_value(body: str, tree: ast.Module) -> str:
    """Return the code with its last expression printed, as a cell prints it; not below a final `;`."""
    if not tree.body or not isinstance(last := tree.body[-1], ast.Expr):
        return body
    lines = body.encode().splitlines(keepends=True)
    start = sum(map(len, lines[: last.lineno - 1])) + last.col_offset
    end = sum(map(len, lines[: (last.end_lineno or 0) - 1])) + (last.end_col_offset or 0)
    code = body.encode()
    if code[end:].lstrip().startswith(b";"):
        return body
    return b"".join([code[:start], b"sys.displayhook(", code[start:end], b")", code[end:]]).decode()


def indent(body: str, tree: ast.Module) -> str:
    """Return the code indented, except for the lines within strings, which would change."""
    within = {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str | bytes))
        for line in range(node.lineno + 1, (node.end_lineno or 0) + 1)
    }
    lines = enumerate(body.splitlines(), 1)
    return "\n".join(line if number in within or not line.strip() else f"    {line}" for number, line in lines)
