"""Measures the code itself: sizes, names, import cycles and documents. Uses no mesh.

    python benchmarks/code_metrics.py [--json FILE]

An import cycle is a set of modules of which each imports the others, directly or not, at any level of their code, but
not under TYPE_CHECKING.
"""

from __future__ import annotations

import argparse
import ast
import collections
import json
import statistics
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = ("kernel", "magics", "runtime", "widgets")
SMALL_LINES = 60
LOCKS = {"Lock", "RLock", "Condition", "Semaphore", "BoundedSemaphore", "allocate_lock"}


def modules() -> dict[str, Path]:
    """Return the source files by module name, like `meshbook.runtime.node.node`."""
    paths = (path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py")))
    return {f"meshbook.{'.'.join(path.relative_to(ROOT).with_suffix('').parts)}": path for path in paths}


def function_lengths(tree: ast.Module) -> Iterator[int]:
    """Yield the number of lines of each function's body, without its signature and docstring."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[1:] if ast.get_docstring(node, clean=False) is not None else node.body
            if body:
                yield (body[-1].end_lineno or 0) - body[0].lineno + 1


def imports(tree: ast.Module, known: set[str]) -> set[str]:
    """Return the modules of the project that a module imports when it runs."""
    typing_only = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    found = set()
    for node in ast.walk(tree):
        if node in typing_only:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found & known


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the strongly connected components of more than one module (Tarjan's algorithm)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in graph[name]:
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            component = stack[stack.index(name) :]
            del stack[stack.index(name) :]
            if len(component) > 1:
                found.append(sorted(component))

    for name in graph:
        if name not in index:
            visit(name)
    return found


def words(name: str) -> int:
    """Return the number of words of a document."""
    return len((ROOT / name).read_text().split())


def without_namesake(package: str) -> list[str]:
    """Return the modules of a package without a test file of their name."""
    tests = {path.name for path in (ROOT / "tests").rglob("test_*.py")}
    paths = sorted((ROOT / package).rglob("*.py"))
    return [str(path.relative_to(ROOT)) for path in paths if path.stem[0] != "_" and f"test_{path.name}" not in tests]


def measure() -> dict[str, object]:
    """Return all figures by name."""
    sources = {name: path.read_text() for name, path in modules().items()}
    trees = {name: ast.parse(source) for name, source in sources.items()}
    lines = {name: source.count("\n") for name, source in sources.items()}
    lengths = sorted(length for tree in trees.values() for length in function_lengths(tree))
    nodes = [node for tree in trees.values() for node in ast.walk(tree)]
    classes = collections.Counter(node.name for node in nodes if isinstance(node, ast.ClassDef))
    called = (node.func for node in nodes if isinstance(node, ast.Call))
    names = (func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "") for func in called)
    circles = cycles({name: imports(tree, set(trees)) - {name} for name, tree in trees.items()})
    of_core = (size for name, size in lines.items() if ".node." in name or ".transport." in name)
    return {
        "lines": sum(lines.values()),
        "lines of runtime/node and runtime/transport": sum(of_core),
        "files": len(lines),
        f"files under {SMALL_LINES} lines": sum(size < SMALL_LINES for size in lines.values()),
        "median function, lines": statistics.median(lengths),
        "90th percentile of functions, lines": lengths[len(lengths) * 9 // 10],
        "class names defined more than once": sum(count > 1 for count in classes.values()),
        "file names used more than once": sum(
            count > 1
            for name, count in collections.Counter(name.rpartition(".")[2] for name in lines).items()
            if name != "__init__"
        ),
        "import cycles": len(circles),
        "modules in import cycles": sum(map(len, circles)),
        "locks": sum(name in LOCKS for name in names),
        "modules of magics without a test of their name": len(without_namesake("magics")),
        "lines of README.md": (ROOT / "README.md").read_text().count("\n"),
        "words of README.md": words("README.md"),
        "words of ARCHITECTURE.md": words("ARCHITECTURE.md"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the code: sizes, names, import cycles and documents.")
    parser.add_argument("--json", type=Path, help="write the figures there")
    options = parser.parse_args()
    figures = measure()
    width = max(map(len, figures))
    for name, figure in figures.items():
        print(f"{name:{width}}  {figure:>8,}")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
