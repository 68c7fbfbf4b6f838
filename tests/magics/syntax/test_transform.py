"""The input transform: which cells are mesh cells, and the calls that replace them."""

from __future__ import annotations

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbook.magics.syntax.mode import count_local_lines
from meshbook.magics.syntax.transform import RUNNER, RUNNER_WITHIN, Transform, read_first_line, transform


def run_transform(source: str) -> str:
    return "".join(transform(source.splitlines(keepends=True)))


def read_call(source: str) -> tuple[str, str]:
    """Return the option line and the body that the transformed cell passes to the runner."""
    (statement,) = ast.parse(run_transform(source), mode="exec").body
    assert isinstance(statement, ast.Expr)
    assert isinstance(statement.value, ast.Await)
    call = statement.value.value
    assert isinstance(call, ast.Call)
    assert ast.unparse(call.func) == RUNNER
    line, body = map(ast.literal_eval, call.args)
    return line, body


@pytest.mark.parametrize(
    ("source", "line", "body"),
    [
        ("%%mesh\nx = 1\n", "", "#%%mesh\nx = 1\n"),
        ("%%mesh", "", "#%%mesh\n"),
        ("%%mesh 0:4 -o y\nx", "0:4 -o y", "#%%mesh 0:4 -o y\nx"),
        ("%%mesh\t 0 \nx", "0", "#%%mesh\t 0\nx"),
        ("%%mesh 0\r\nx\r\n", "0", "#%%mesh 0\nx\r\n"),
        ("#mesh: 0\nx", "0", "#mesh: 0\nx"),
        ("# mesh:\nx", "", "# mesh:\nx"),
        ("\n  \n%%mesh\nx", "", "#\n#\n#%%mesh\nx"),
        ("# note\n\n# more\n%%mesh 0\nx", "0", "# note\n#\n# more\n#%%mesh 0\nx"),
        ("%%mesh --out {name} $x\nx", "--out {name} $x", "#%%mesh --out {name} $x\nx"),
        ("%%mesh\n%%time\nx", "", "#%%mesh\n%%time\nx"),
    ],
)
def test_a_mesh_cell_becomes_a_call(source: str, line: str, body: str) -> None:
    assert read_call(source) == (line, body)


@pytest.mark.parametrize(
    "source",
    [
        "",
        "\n\n",
        "x = 1\n",
        "x\n%%mesh\n",
        " %%mesh\nx",
        "%%meshes\nx",
        "%%mesh-x\ny",
        "%mesh up",
        "# a\n#mesh: 0\nx",
        "# a\nx\n%%mesh\n",
    ],
)
def test_any_other_cell_is_left_alone(source: str) -> None:
    assert run_transform(source) == source
    assert transform(lines := source.splitlines(keepends=True)) is lines


@given(st.text())
def test_the_body_keeps_its_lines(body: str) -> None:
    lines = [line + "\n" for line in body.split("\n")]
    (call,) = transform(["%%mesh 0\n", *lines])
    assert call.count("\n") == 1
    assert ast.literal_eval(call.removeprefix(f"await {RUNNER}('0', ").removesuffix(")\n")) == "".join(
        ["#%%mesh 0\n", *lines]
    )


@pytest.mark.parametrize(("line", "options"), [("%%mesh", ""), ("%%mesh  0 ", "0"), ("#mesh: 0", "0"), ("x", None)])
def test_the_first_line_alone(line: str, options: str | None) -> None:
    assert read_first_line(line) == options


def test_within_another_cell_the_call_is_a_plain_one() -> None:
    lines = ["%%mesh 0\n", "x\n"]
    assert transform(lines, is_within=True) == [f"{RUNNER_WITHIN}('0', '#%%mesh 0\\nx\\n')\n"]


def test_completeness_checks_leave_it_out() -> None:
    assert Transform.has_side_effects


@pytest.mark.parametrize(
    ("source", "arguments"),
    [
        ("%%time\n%%mesh 0\nx", ("0", "#%%time\n#%%mesh 0\nx", "%%time")),
        ("\n%%timeit -n 3\n\n#mesh:\nx", ("", "#\n#%%timeit -n 3\n#\n#mesh:\nx", "%%timeit -n 3")),
    ],
)
def test_timed_cells(source: str, arguments: tuple[str, ...]) -> None:
    assert run_transform(source) == f"await {RUNNER}({', '.join(map(repr, arguments))})\n"


@pytest.mark.parametrize("source", ["%%time\nx", "%%time", "%%timed\n%%mesh\nx", "%%time\nx\n%%mesh"])
def test_other_timed_cells_are_left_alone(source: str) -> None:
    assert run_transform(source) == source


# --- mesh mode ---


def run_by_mode(source: str, mode: str | None = "0:2 -q") -> str:
    return "".join(transform(source.splitlines(keepends=True), mode))


@pytest.mark.parametrize(
    ("source", "rewritten"),
    [
        ("x = 1\n", "await __mesh_run__('0:2 -q', 'x = 1\\n', by_mode=True)\n"),
        ("%time x\ny", "await __mesh_run__('0:2 -q', '%time x\\ny', by_mode=True)\n"),
        ("%%time\ny", "await __mesh_run__('0:2 -q', '#\\ny', '%%time', by_mode=True)\n"),
        ("%%prun\ny", "await __mesh_run__('0:2 -q', '%%prun\\ny', by_mode=True)\n"),
        ("x = %magic\n", "await __mesh_run__('0:2 -q', 'x = %magic\\n', by_mode=True)\n"),
        ("%cd /\n\nx\n", "%cd /\n\nawait __mesh_run__('0:2 -q', '#\\n#\\nx\\n', by_mode=True)\n"),
        ("%%mesh 1\nx", "await __mesh_run__('1', '#%%mesh 1\\nx')\n"),
        ("# note\n%%here\nx", "#\n#\nx"),
        ("#mesh: 1\nx", "await __mesh_run__('1', '#mesh: 1\\nx')\n"),
        ("await __mesh_run__('all', '#%%px\\nx')\n", "await __mesh_run__('all', '#%%px\\nx')\n"),
        ("__mesh_refuse__('unknown option')\n", "__mesh_refuse__('unknown option')\n"),
        ("%%here\nx = 1\n", "#\nx = 1\n"),
        ("\n%%here  \nawait x", "#\n#\nawait x"),
        ("%%here\n%%time\nx", "%%time\nx"),
        ("%mesh mode off", "%mesh mode off"),
        ("%%bash\necho", "%%bash\necho"),
        ("", ""),
    ],
)
def test_in_mesh_mode_code_runs_on_ranks(source: str, rewritten: str) -> None:
    assert run_by_mode(source) == rewritten


@pytest.mark.parametrize(("source", "left"), [("%%here\nx", "#\nx"), ("x", "x"), ("%%hereby\nx", "%%hereby\nx")])
def test_here_changes_nothing_where_the_mode_is_off(source: str, left: str) -> None:
    assert run_by_mode(source, None) == left


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("x", 0),
        ("%mesh up\nx", 1),
        ("  %mesh up \\\n  --gpus 4\nx\n%mesh down", 2),
        ("# why\n!pip list\nx", 2),
        ("# why\nx", 1),
        ("!ls\n# no code", 2),
        ("%prun f()\n", 0),
        ("%%capture out\nx", 0),
        ("%%writefile a.py\nx\ny", 3),
        ("\n%%html\n<b>", 3),
    ],
)
def test_local_lines(source: str, count: int) -> None:
    assert count_local_lines(source.splitlines(keepends=True)) == count
