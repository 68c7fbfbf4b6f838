"""`meshbook export notebook.ipynb`: the notebook's `%%mesh` cells as a plain script for torchrun.

The cells become the script's code in their order. A cell that has no meaning in a script is reported with the reason,
and nothing is written. Pure except for reading and writing the files.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nbformat

from meshbook.cli import print_note
from meshbook.cli.cell_code import (
    NotExportable,
    assigned_names,
    contains_await,
    free_names,
    group_arguments,
    indent,
    is_same_everywhere,
    parse_body,
    show_last_value,
)
from meshbook.magics.errors import UserError
from meshbook.magics.syntax.argparsing import HelpText
from meshbook.magics.syntax.cell_options import parse_cell_options
from meshbook.magics.syntax.selectors import (
    Dimension,
    Dimensions,
    Everything,
    Except,
    Index,
    Item,
    Range,
    Ranks,
    SpanSelector,
    parse,
)
from meshbook.magics.syntax.transform import find_first_line, next_line, read_first_line, read_timer
from meshbook.magics.verbs.start_stop import UpVerb
from meshbook.magics.verbs.verb_table import parse_verb

# Verbs that only look at a mesh, or start and stop it, which the launcher of a script does.
LEFT_OUT = frozenset(
    ("up", "down", "use", "status", "dash", "who", "whos", "stack", "trace", "curves", "metrics", "log", "doctor")
)
# The names that every rank has in a notebook, in the order in which they depend on each other.
NAMES = {
    "rank": 'rank = int(os.environ.get("RANK", 0))',
    "world_size": 'world_size = int(os.environ.get("WORLD_SIZE", 1))',
    "local_rank": 'local_rank = int(os.environ.get("LOCAL_RANK", 0))',
    "device": """if torch.cuda.is_available():
    device = torch.device("cuda", local_rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
else:
    device = torch.device("cpu")""",
}
GROUP = """import torch.distributed

torch.distributed.init_process_group({arguments})"""
LEAVE = """import torch.distributed

if torch.distributed.is_initialized():
    torch.distributed.destroy_process_group()"""
INIT = "init_process_group"
IN_NOTEBOOKS = {"point", "mesh", "display", "get_ipython"}  # names that cells have, and scripts do not


@dataclass
class Script:
    """The script so far: its parts, the names that cells assign, and the size of the mesh, if the notebook names it."""

    parts: list[str] = field(default_factory=list)
    on_ranks: set[str] = field(default_factory=set)  # names that `%%mesh` cells assign
    everywhere: set[str] = field(default_factory=set)  # names that other cells assign, which run on every rank here
    mesh: UpVerb | None = None
    has_shape: bool = False  # whether a mesh has dimensions other than hosts and gpus


def export(source: Path, output: Path) -> int:
    """Write the script; the status is 1 if the notebook cannot be read, or cells of it cannot be exported."""
    try:
        notebook = nbformat.read(source, as_version=4)
        text, refused = make_script(notebook, source.name)
        if refused:
            cells = "1 cell" if len(refused) == 1 else f"{len(refused)} cells"
            print_note(f"{cells} of {source.name} cannot be exported:")
            print_note("\n".join(refused))
            return 1
        compile(text, output, "exec")
        output.write_text(text, encoding="utf-8")
    except (OSError, SyntaxError, ValueError, nbformat.ValidationError) as error:
        print_note(f"cannot export {source}: {error}")
        return 1
    print(f"written: {output}")
    return 0


def make_script(notebook: Any, name: str) -> tuple[str, list[str]]:
    """Return the text of the script, and a line for each cell that cannot be exported, as Restart & Run All counts."""
    script, refused, number = Script(), [], 0
    for cell in notebook.cells:
        if cell.cell_type == "markdown" and cell.source.strip():
            script.parts.append("\n".join(f"# {line}".rstrip() for line in cell.source.splitlines()))
        if cell.cell_type != "code" or not cell.source.strip():
            continue
        number += 1
        try:
            if "raises-exception" in cell.metadata.get("tags", ()):
                raise NotExportable("it is expected to raise, which ends a script")
            add_cell(script, cell.source)
        except NotExportable as reason:
            first = next(line for line in cell.source.splitlines() if line.strip())
            refused.append(f"  cell {number} ({first.strip()}): {reason}")
    if any(INIT in part for part in script.parts):
        script.parts.append(LEAVE)
    return "\n\n".join([_head(script, name), *script.parts]) + "\n", refused


def _head(script: Script, name: str) -> str:
    """Return the docstring of the script, its first imports, and the names of ranks that its code uses."""
    code = "\n".join(script.parts)
    used = {node.id for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)}
    if INIT in code or "cuda" in code:  # a bare "cuda" means the GPU of the rank
        used.add("device")
    if "device" in used:
        used.add("local_rank")
    wanted = [line for known, line in NAMES.items() if known in used]
    imports = ["os"] * bool(wanted) + ["sys"] * ("sys.displayhook(" in code)
    about = f'"""Exported from {name} by `meshbook export`.\n\n    {_command(script.mesh, Path(name).stem)}\n"""'
    blocks = [about, "\n".join(f"import {each}" for each in imports)]
    blocks += ["import torch"] * ("device" in used) + ["\n".join(wanted)]
    return "\n\n".join(filter(None, blocks))


def _command(mesh: UpVerb | None, stem: str) -> str:
    """Return the command that runs the script with as many ranks as the notebook has."""
    gpus = None if mesh is None else mesh.gpus if mesh.shape is None else mesh.shape.nelements
    hosts = f"--hosts {mesh.hosts} " if mesh is not None and mesh.hosts is not None else ""
    size = f"--procs {gpus} " if gpus else ""
    other = f"  # or: torchrun --nproc-per-node {gpus or 'N'} {stem}.py" if not hosts else ""
    return f"meshbook run {hosts}{size}{stem}.py{other}"


def add_cell(script: Script, source: str) -> None:
    """Add a cell to the script. Raises NotExportable."""
    lines = source.splitlines()
    first = find_first_line(lines)
    assert first is not None
    timer = read_timer(lines[first].rstrip())
    second = next_line(lines, first + 1) if timer else first
    options = read_first_line(lines[second]) if second is not None else None
    if second is not None and options is not None:
        _add_mesh_cell(script, options, "\n".join(lines[second + 1 :]).strip("\n"))
    elif lines[first].startswith("%%"):
        raise NotExportable(f"the magic {lines[first].split()[0]} has no meaning in a script")
    else:
        _add_local_cell(script, lines)


# -- cells on ranks --------------------------------------------------------------------


def _add_mesh_cell(script: Script, line: str, body: str) -> None:
    """Add the code of a `%%mesh` cell; with a selector, in an `if`."""
    try:
        options = parse_cell_options(line)
        if isinstance(options, HelpText):
            raise NotExportable("it shows the help of %%mesh")
        condition = condition_of(options.selection, script)
    except UserError as error:
        raise NotExportable(str(error)) from error
    for name in ("first", "seq", "local", "pull"):
        if getattr(options, name):
            raise NotExportable(f"--{name} has no meaning in a script")
    if missing := set(options.push) - script.everywhere:
        raise NotExportable(f"--push {min(missing)}: no cell that can be exported assigns it")
    tree = parse_body(body)
    if any(map(contains_await, tree.body)):
        raise NotExportable("a script has no `await` outside of functions")
    if names := free_names(tree) & IN_NOTEBOOKS:
        raise NotExportable(f"a script has no {min(names)}")
    script.on_ranks |= assigned_names(tree)
    body = show_last_value(body, tree)
    if condition:
        body = f"if {condition}:\n" + indent(body, tree) + ("" if tree.body else "\n    pass")
    script.parts.append(body)


def condition_of(selection: str, script: Script) -> str:
    """Return the condition for the ranks of a selector; empty for all. UserError, NotExportable if there is none."""
    parsed = parse(selection)
    if parsed.mesh is not None:
        raise NotExportable("the selector names a mesh, and a script has only one")
    part, negated = parsed.part, isinstance(parsed.part, Except)
    if isinstance(part, Except):
        part = part.choice
    if isinstance(part, Everything):
        return "False" if negated else ""
    if isinstance(part, Ranks):
        condition = _one_of(part.items, "rank", "world_size")
    elif isinstance(part, Dimensions):
        condition = " and ".join(_in_dimension(each, script) for each in part.items)
    else:
        raise NotExportable(f"the selector {selection} depends on the cell before")
    return f"not ({condition})" if negated else condition


def _in_dimension(dimension: Dimension, script: Script) -> str:
    if script.has_shape or dimension.name != "gpus" or (script.mesh is not None and script.mesh.hosts is not None):
        raise NotExportable(f"the selector names the dimension {dimension.name}; a script has ranks only")
    return _one_of((dimension.item,), "rank", "world_size")


def _one_of(items: Iterable[Item], name: str, size: str) -> str:
    """Return the condition that a number is among these positions of a list."""
    tests = []
    for item in items:
        match item:
            case Index(value):
                tests.append(f"{name} == {value if value >= 0 else f'{size} - {-value}'}")
            case Range(first, last):
                tests.append(f"{first} <= {name} <= {last}")
            case SpanSelector(start, stop, step):
                words = ["" if each is None else str(each) for each in (start, stop, step)]
                cut = ":".join(words if step is not None else words[:2])
                tests.append(f"{name} in range({size})[{cut}]")
    return " or ".join(tests)


# -- cells of the notebook -------------------------------------------------------------


def _add_local_cell(script: Script, lines: list[str]) -> None:
    """Add a cell that runs in the notebook, if it does the same on every rank: imports, definitions and constants."""
    kept: list[str] = []
    for line in lines:
        words = line.split()
        if line.startswith("%mesh ") and len(words) > 1:
            _note_verb(script, line.removeprefix("%mesh "))
        elif line.startswith("%load_ext meshbook"):
            continue
        elif line.startswith(("%", "!", "?")):
            raise NotExportable(f"the magic {words[0]} has no meaning in a script")
        else:
            kept.append(line)
    body = "\n".join(kept).strip("\n")
    tree = parse_body(body)
    kept = body.splitlines()
    for statement in reversed(tree.body):  # so that the numbers of the lines above stay valid
        if (arguments := group_arguments(statement)) is not None:
            if any(INIT in part for part in script.parts):
                raise NotExportable("it starts a second process group")
            kept[statement.lineno - 1 : statement.end_lineno] = GROUP.format(arguments=arguments).splitlines()
        elif not is_same_everywhere(statement):
            raise NotExportable("it runs in the notebook, not on ranks; move what ranks need into a %%mesh cell")
    names = assigned_names(tree)
    if changed := names & script.on_ranks:
        raise NotExportable(f"it assigns {min(changed)} in the notebook, and ranks have a variable of this name")
    script.everywhere |= names
    if kept:
        script.parts.append("\n".join(kept))


def _note_verb(script: Script, line: str) -> None:
    word = line.split()[0]
    if word not in LEFT_OUT:
        raise NotExportable(f"%mesh {word} has no meaning in a script")
    if word != "up":
        return
    try:
        verb = parse_verb(line)
    except UserError:  # it has a variable of the notebook: `--gpus {ranks}`
        return
    if isinstance(verb, UpVerb):
        if script.mesh is not None:
            raise NotExportable("it starts a second mesh, and a script has only one")
        script.mesh = verb
        script.has_shape = verb.shape is not None
