"""`python -m meshbook.monarch script.py`: runs a program of Monarch's on meshbook, its `import monarch` unchanged.

A new interpreter runs the script, with the flags of this one, so that the script is `__main__` as usual: its
definitions are pickled by value for workers.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from meshbook.monarch import python_path

USAGE = """\
usage: python [flags] -m meshbook.monarch script.py [arguments]
       python [flags] -m meshbook.monarch -m module [arguments]

Run a program written for PyTorch Monarch on meshbook: `import monarch` imports meshbook, in the program, in its
workers, and in their subprocesses that inherit PYTHONPATH. The flags are Python's own; the program's interpreter gets
them too. In a notebook: import meshbook.monarch; meshbook.monarch.install()"""
MODULE = "meshbook.monarch"


def main(arguments: Sequence[str]) -> int:
    """Replace this process by the program; returns, with an exit status, only if the arguments are invalid."""
    if arguments[:1] in (["-h"], ["--help"]):
        print(USAGE)
        return 0
    error = find_argument_error(arguments)
    if not error:
        exec_program(arguments)
    print(f"python -m {MODULE}: {error}", file=sys.stderr)
    return 2


def exec_program(arguments: Sequence[str]) -> NoReturn:
    """Replace this process by a new interpreter with our package on its path."""
    flags = interpreter_flags(sys.orig_argv[1:], len(arguments))
    environment = os.environ | {"PYTHONPATH": python_path(os.environ.get("PYTHONPATH", ""))}
    os.execve(sys.executable, [sys.executable, *flags, *arguments], environment)


def find_argument_error(arguments: Sequence[str]) -> str:
    """Return why these arguments cannot be run, or the empty string."""
    first = next(iter(arguments), "")
    if not first or (first == "-m" and len(arguments) == 1):
        return f"a script or a module is required\n{USAGE}"
    if first.startswith("-") and first != "-m":
        return f"unknown option {first}; put Python's own flags before -m {MODULE}\n{USAGE}"
    if first != "-m" and not Path(first).exists():
        return f"no script {first!r} in {Path.cwd()}"
    if sys.flags.ignore_environment:
        return "-E and -I make Python ignore PYTHONPATH, so the program would not find `monarch`"
    folder = Path.cwd() if first == "-m" else Path(first).resolve().parent
    has_monarch = (folder / "monarch.py").is_file() or (folder / "monarch" / "__init__.py").is_file()
    if not sys.flags.safe_path and has_monarch:
        return f"the program would import the `monarch` in {folder} instead of meshbook's; move it, or run python -P"
    return ""


def interpreter_flags(original: Sequence[str], count: int) -> list[str]:
    """Return Python's flags from a command line `FLAGS -m meshbook.monarch ARGUMENTS` with `count` arguments."""
    flags = list(original[: len(original) - count])
    # All of these are the same to Python: -m NAME, -mNAME, -um NAME, -umNAME.
    last = flags.pop()
    joined = last if last != MODULE else flags.pop() + last
    kept = joined.removesuffix("m" + MODULE)
    return flags if kept == "-" else [*flags, kept]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
