"""Checks the layers: a package imports only from lower layers, always by the full name.

Inside a package, modules have an order as well: no module imports itself by way of others.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("kernel", "magics", "runtime", "widgets")
OWN_FOLDERS = ("cli", "monarch", "testing")  # in meshbook/ itself

# By package, which is a folder or a single module; all modules of a folder belong to its package.
LAYERS: dict[str, int] = {
    "meshbook.__main__": 11,  # a command; no module imports it
    "meshbook.cli": 10,  # its verbs
    "meshbook.spmd": 9,  # a command as well, which `meshbook run` is for scripts
    "meshbook.kernel": 8,
    "meshbook.testing": 8,  # its simulated mesh parses selectors
    "meshbook": 7,  # the facade
    "meshbook.magics": 7,
    "meshbook.curves": 7,
    "meshbook.metrics": 7,
    "meshbook.monarch": 7,
    "meshbook.runs": 7,
    "meshbook.hosts": 6,  # magics start hosts by it
    "meshbook.runtime.tensor": 6,
    "meshbook.runtime.spmd": 6,
    "meshbook.runtime.cells": 6,
    "meshbook.runtime.hosts": 6,
    "meshbook.widgets": 6,
    "meshbook.runtime.mesh": 5,
    "meshbook.runtime.rdma": 5,
    "meshbook.runtime.node": 4,
    "meshbook.runtime.transport": 3,
    "meshbook.runtime.wire": 2,
    "meshbook.runtime.telemetry": 2,
    "meshbook.runtime.collectives": 2,
    "meshbook.checkpoint": 2,  # for code on ranks; knows no mesh
    "meshbook.runtime.memory": 1,
    "meshbook.runtime.geometry": 1,
    "meshbook.runtime.errors": 1,
    "meshbook.runtime.config": 1,
    "meshbook.runtime.resources": 1,
    "meshbook.runtime.actor": 1,
    "meshbook.runtime.traces": 0,
    "meshbook.runtime.formats": 0,
    "meshbook.runtime.monarch_texts": 0,
    "meshbook.runtime.error_page": 0,
    "meshbook.runtime.imports": 0,
    "meshbook.runtime.clock": 0,
    "meshbook.runtime.devices": 0,
    "meshbook.runtime.gpu_errors": 0,
    "meshbook.runtime.threads": 0,
    "meshbook.runtime.interrupts": 0,
    "meshbook.runtime": 0,  # the package itself: a docstring
}

# (from, to): the reason why this import may stay in its layer or go up. Each is a debt or a decision; say which.
EXCEPTIONS: dict[tuple[str, str], str] = {
    (
        "meshbook",
        "meshbook.magics",
    ): "`%load_ext meshbook` needs its hook in the facade; magics never imports the facade",
    ("meshbook", "meshbook.curves"): "a part of the facade in its own module, which never imports the facade",
    ("meshbook", "meshbook.metrics"): "a part of the facade in its own module, which never imports the facade",
    ("meshbook.hosts", "meshbook.runtime.hosts"): "the public functions over its launchers",
    ("meshbook.runtime.mesh", "meshbook.runtime.tensor"): "types only: `procs.activate()` begins the tensor engine",
    ("meshbook.runtime.actor", "meshbook.runtime.geometry"): (
        "authors of actors use points and value meshes, which have a shape"
    ),
    ("meshbook.runtime.threads", "meshbook.runtime.interrupts"): "a full queue holds up no sender that holds SIGINT",
}


def module_of(file: Path) -> str:
    """Return the dotted name under which `file` is imported."""
    parts = file.relative_to(ROOT).with_suffix("").parts
    if parts[0] != "meshbook":
        parts = ("meshbook", *parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def package_of(name: str) -> str:
    """Return the package of a module or of a name in it: `meshbook.runtime.wire.frames.Frame` is in wire."""
    while name not in LAYERS:
        name = name.rpartition(".")[0]
    return name


def sources() -> list[Path]:
    # meshbook/ has links to the other folders, so only its own files count.
    own = sorted((ROOT / "meshbook").glob("*.py"))
    own += [file for folder in OWN_FOLDERS for file in sorted((ROOT / "meshbook" / folder).rglob("*.py"))]
    return own + [file for folder in FOLDERS for file in sorted((ROOT / folder).rglob("*.py"))]


@functools.cache
def tree_of_file(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"), str(file))


@functools.cache
def imports_of_file(file: Path) -> list[tuple[int, str]]:
    return list(imports_of(tree_of_file(file)))


def imports_of(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield (line, dotted name) of each import: at the top, in a function, under TYPE_CHECKING."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            prefix = "." * node.level + (node.module or "")
            for alias in node.names:
                yield node.lineno, f"{prefix}.{alias.name}"


def running_imports_of(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the imports that run: at the top or in a function, but not under TYPE_CHECKING."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            waiting += node.orelse
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from imports_of(node)
        elif isinstance(node, ast.stmt | ast.mod | ast.excepthandler | ast.match_case):  # no import is in an expression
            waiting += ast.iter_child_nodes(node)


def module_graph() -> dict[str, set[str]]:
    """Return the modules that each module imports."""
    trees = {module_of(file): tree_of_file(file) for file in sources()}
    graph: dict[str, set[str]] = {}
    for module, tree in trees.items():
        names = [name for _, name in running_imports_of(tree)]
        # `from package import name` imports the module of that name, or a name that the package defines.
        graph[module] = {name if name in trees else name.rpartition(".")[0] for name in names} & trees.keys()
        graph[module].discard(module)
    return graph


def cycles_of(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the groups of modules of which each imports the others, directly or not."""
    reachable = {module: reached_from(module, graph) for module in graph}
    groups = {
        tuple(sorted(other for other in reached if module in reachable[other]))
        for module, reached in reachable.items()
        if module in reached
    }
    return [list(group) for group in sorted(groups)]


def reached_from(module: str, graph: dict[str, set[str]]) -> set[str]:
    found: set[str] = set()
    waiting = [module]
    while waiting:
        new = graph.get(waiting.pop(), set()) - found
        found |= new
        waiting += new
    return found


def is_allowed(source: str, target: str) -> bool:
    return source == target or LAYERS[target] < LAYERS[source] or (source, target) in EXCEPTIONS


def complaint(source: str, name: str) -> str | None:
    """Return what is wrong with an import of `name` in package `source`, or None."""
    top = name.partition(".")[0]
    if name.startswith("."):
        return "a relative import; use the full name of the defining module"
    if top in FOLDERS:
        return f"import meshbook.{name}: a second copy of a class pickles under the wrong name"
    if top != "meshbook":
        return None
    target = package_of(name)
    if is_allowed(source, target):
        return None
    return f"{source} (layer {LAYERS[source]}) imports {target} (layer {LAYERS[target]}), which is not below it"


def test_every_file_has_a_layer() -> None:
    missing = [
        module_of(file)
        for file in sources()
        if package_of(module_of(file)) in ("meshbook", "meshbook.runtime") and file.name != "__init__.py"
    ]
    assert not missing, f"add these to LAYERS: {missing}"


def test_imports_go_down() -> None:
    wrong = [
        f"{file.relative_to(ROOT)}:{line}: {why}"
        for file in sources()
        for line, name in imports_of_file(file)
        if (why := complaint(package_of(module_of(file)), name))
    ]
    assert not wrong, "\n" + "\n".join(wrong)


def test_every_exception_is_in_use() -> None:
    used = {
        (package_of(module_of(file)), package_of(name))
        for file in sources()
        for _, name in imports_of_file(file)
        if name.partition(".")[0] == "meshbook"
    }
    assert not set(EXCEPTIONS) - used


def test_no_module_imports_itself_by_way_of_others() -> None:
    graph = module_graph()
    found = [[f"{module} -> {sorted(graph[module] & set(group))}" for module in group] for group in cycles_of(graph)]
    assert not found, "\n" + "\n\n".join("\n".join(group) for group in found)


def test_the_runtime_asks_torch_about_gpus_in_one_module() -> None:
    """So that a fake replaces them all, and what must hold for each such call is said once."""
    uses = {
        module_of(file)
        for file in sources()
        if "cuda" in file.read_text(encoding="utf-8")
        for node in ast.walk(tree_of_file(file))
        if isinstance(node, ast.Attribute) and ast.unparse(node) in ("torch.cuda", "torch.accelerator")
    }
    assert uses == set()  # `devices.cuda` itself looks for the attribute


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ({"a": "import m.b", "b": "import m.c", "c": "import m.a"}, [["m.a", "m.b", "m.c"]]),
        ({"a": "import m.b", "b": "def f():\n    from m import a"}, [["m.a", "m.b"]]),
        ({"a": "import m.b", "b": "if TYPE_CHECKING:\n    import m.a"}, []),
        ({"a": "import m.b, m.c", "b": "import m.c", "c": ""}, []),
    ],
)
def test_cycles_are_found(code: dict[str, str], expected: list[list[str]]) -> None:
    graph = {f"m.{name}": {target for _, target in running_imports_of(ast.parse(text))} for name, text in code.items()}
    assert cycles_of(graph) == expected


@pytest.mark.parametrize(
    ("source", "code", "expected"),
    [
        ("meshbook.runtime.node", "from meshbook.runtime.wire.frames import Frame", None),
        ("meshbook.runtime.node", "import meshbook.runtime.node.inbox", None),
        ("meshbook.runtime.node", "import numpy, os.path", None),
        ("meshbook.runtime.node", "from meshbook.runtime.mesh import handles", "not below"),
        ("meshbook.runtime.node", "from meshbook.runtime import mesh", "not below"),
        ("meshbook.runtime.node", "from meshbook import Actor", "not below"),
        ("meshbook.runtime.node", "def f():\n    import meshbook.magics", "not below"),
        ("meshbook.runtime.node", "if TYPE_CHECKING:\n    from meshbook.magics import Result", "not below"),
        ("meshbook.widgets", "import meshbook.runtime.cells.outcome", "not below"),
        ("meshbook.magics", "from . import grouping", "relative"),
        ("meshbook.magics", "from runtime.wire import frames", "second copy"),
        ("meshbook.magics", "import kernel", "second copy"),
    ],
)
def test_the_check_finds(source: str, code: str, expected: str | None) -> None:
    found = [complaint(source, name) for _, name in imports_of(ast.parse(code))]
    if expected is None:
        assert found
        assert not any(found)
    else:
        assert any(expected in (why or "") for why in found)
