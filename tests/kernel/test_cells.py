"""`%%mesh` cells through the real kernel: what the grammar asks for, what a cell finds, what IPython keeps of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.kernel.conftest import KernelNotebook

pytestmark = pytest.mark.kernel


@pytest.mark.parametrize(
    ("selector", "ranks"),
    [
        ("", "0-3"),
        ("all", "0-3"),
        ("0", "0"),
        ("-1", "3"),
        ("0,3", "0,3"),
        ("1:3", "1-2"),
        ("::2", "0,2"),
        ("!3", "0-2"),
        ("gpus=1:3", "1-2"),
        ("mesh", "0-3"),
        ("mesh[gpus=0]", "0"),
    ],
)
def test_a_selector_chooses_the_ranks(notebook: KernelNotebook, selector: str, ranks: str) -> None:
    cell = notebook.run(f"%%mesh {selector}\nprint('here')")
    assert cell.stdout == f"[{ranks}] here\n"


def test_failed_and_ok_are_the_ranks_of_the_last_cell(notebook: KernelNotebook) -> None:
    notebook.run_failing("%%mesh\nif rank in (1, 3): raise ValueError('odd')")
    assert notebook.run("%%mesh failed\nprint(1)").stdout == "[1,3] 1\n"
    notebook.run_failing("%%mesh --on-error finish\nif rank == 2: raise ValueError('two')")
    assert notebook.run("%%mesh ok\nprint(1)").stdout == "[0-1,3] 1\n"


def test_changed_are_the_ranks_on_which_the_last_cell_bound_variables(notebook: KernelNotebook) -> None:
    notebook.run("%%mesh\nif rank in (1, 2): fresh = [rank]")
    assert notebook.run("%%mesh changed\nprint(1)").stdout == "[1-2] 1\n"
    notebook.run("%%mesh 1,2\nif rank == 2: del fresh\nif rank == 1: fresh.append(0)")
    assert notebook.run("%%mesh changed\nprint(1)").stdout == "[2] 1\n"
    assert "changed no variable" in notebook.run_failing("%%mesh changed\n1").error["evalue"]


def test_the_comment_form_is_the_same_as_the_magic(notebook: KernelNotebook) -> None:
    assert notebook.run("#mesh: 1:3 -o kept\nrank * 10").result == "[1] 10\n[2] 20"
    assert notebook.evaluate("kept.values") == [10, 20]


def test_out_keeps_the_result(notebook: KernelNotebook) -> None:
    notebook.run("%%mesh 1: -o kept\nprint('line', rank)\nrank * 2;")
    assert notebook.evaluate("kept.ranks, kept[2].stdout, len(kept)") == ((1, 2, 3), "line 2\n", 3)
    notebook.run("%%mesh --out=kept\nx = 1")
    assert notebook.evaluate("kept.has_value, kept.values") == (False, [None] * 4)


def test_show_prints_some_ranks_and_loses_nothing(notebook: KernelNotebook) -> None:
    cell = notebook.run("%%mesh --show 0 -o kept\nprint('line', rank)")
    assert cell.stdout == "[0] line 0\n… output of [1-3] not shown (%mesh log RANK)\n"
    assert notebook.evaluate("kept[2].stdout") == "line 2\n"


def test_quiet_prints_nothing_and_loses_nothing(notebook: KernelNotebook) -> None:
    cell = notebook.run("%%mesh -q -o kept\nimport sys\nprint('out'); print('err', file=sys.stderr)")
    assert (cell.stdout, cell.stderr) == ("", "")
    assert notebook.evaluate("kept[3].stdout, kept[3].stderr") == ("out\n", "err\n")


def test_time_shows_a_table(notebook: KernelNotebook) -> None:
    (table,) = notebook.run("%%mesh 1: -T\nx = 1").displays
    first, *rows, skew = table["text/plain"].splitlines()
    assert first.split()[:4] == ["rank", "wall", "CPU", "peak"]
    assert [row.split()[0] for row in rows] == ["1", "2", "3"]
    assert skew.startswith("wall ")
    assert "<table>" in table["text/html"]


@pytest.mark.parametrize("group", ["auto", "same", "rank"])
def test_group_says_how_output_is_put_together(notebook: KernelNotebook, group: str) -> None:
    cell = notebook.run(f"%%mesh -g {group}\nprint('same' if rank else 'first')")
    others = "[1] same\n[2] same\n[3] same\n" if group == "rank" else "[1-3] same\n"
    assert cell.stdout == "[0] first\n" + others


@pytest.mark.parametrize(("group", "line"), [("order", "[{}] mine {}"), ("none", "mine {}")])
def test_group_by_order_of_arrival(notebook: KernelNotebook, group: str, line: str) -> None:
    text = notebook.run(f"%%mesh -g {group}\nprint('mine', rank)").stdout
    assert sorted(text.splitlines()) == [line.format(rank, rank) for rank in range(4)]


@pytest.mark.parametrize("body", ["", "\n", "\n\n   \n", "\n# only this", "\n'one';", "\npass", "\nNone"])
def test_a_cell_may_be_empty_or_have_no_value(notebook: KernelNotebook, body: str) -> None:
    cell = notebook.run(f"%%mesh{body}")
    assert cell.outputs == []


def test_in_out_and_the_underscore_are_ipythons(notebook: KernelNotebook) -> None:
    cell = notebook.run("%%mesh\nrank + 1")
    number = cell.reply["execution_count"] if cell.reply else None
    assert notebook.evaluate("_.values") == [1, 2, 3, 4]
    assert notebook.evaluate(f"Out[{number}].values") == [1, 2, 3, 4]
    assert notebook.evaluate(f"_i{number}, _ih[{number}] == In[{number}]") == ("%%mesh\nrank + 1", True)
    assert "rank + 1" in notebook.run(f"%history {number}").stdout


def test_the_runner_is_not_a_name_of_the_users(notebook: KernelNotebook) -> None:
    assert "__mesh_run__" not in notebook.run("%who").stdout


@pytest.mark.parametrize(
    ("mesh_cell", "like"),
    [
        ("%%mesh\nx = 1", "%%time\nx = 1"),
        ("%%mesh\nfor i in range(3):", "%%time\nfor i in range(3):"),
        ("%%mesh\nx = 1\n\n", "%%time\nx = 1\n\n"),
        ("#mesh: 0\nx = 1", "#else\nx = 1"),
        ("#mesh: 0\nfor i in range(3):", "#else\nfor i in range(3):"),
        ("#mesh: 0\n1 +* 2", "#else\n1 +* 2"),
    ],
)
def test_completeness_is_judged_as_of_any_cell(notebook: KernelNotebook, mesh_cell: str, like: str) -> None:
    assert notebook.ask("is_complete", mesh_cell) == notebook.ask("is_complete", like)


@pytest.mark.parametrize(
    ("question", "part"),
    [("%%mesh?", "Run the cell on ranks of the mesh"), ("%mesh?", "Control the meshes of this notebook")],
)
def test_a_question_mark_shows_help(notebook: KernelNotebook, question: str, part: str) -> None:
    reply = notebook.run(question).reply
    assert reply is not None
    assert part in reply["payload"][0]["data"]["text/plain"]


def test_the_magics_are_listed_and_completed(notebook: KernelNotebook) -> None:
    listed = notebook.run("%lsmagic").result
    assert listed is not None
    assert "%%mesh" in listed.split()
    assert "%mesh" in listed.split()
    assert "%%mesh" in notebook.ask("complete", "%%me", 4)["matches"]


def test_help_is_printed_and_runs_nothing(notebook: KernelNotebook) -> None:
    assert "--on-error" in notebook.run("%%mesh --help\nraise ValueError").stdout


def test_ipython_syntax_works_in_the_body(notebook: KernelNotebook) -> None:
    assert notebook.run("%%mesh\n!echo from the shell $((40 + 2))").stdout.split() == [
        "[0-3]",
        "from",
        "the",
        "shell",
        "42",
    ]
    assert notebook.run("%%mesh 0\nlines = !printf 'a\\nb'\nlist(lines)").result == "[0] ['a', 'b']"
    assert "Wall time" in notebook.run("%%mesh 0\n%time sum(range(10))").stdout


def test_top_level_await_works_on_ranks(notebook: KernelNotebook) -> None:
    notebook.run("%%mesh\nimport asyncio\nlater = asyncio.ensure_future(asyncio.sleep(0, rank))")
    assert notebook.run("%%mesh -o kept\nawait later").result == "\n".join(f"[{rank}] {rank}" for rank in range(4))


@pytest.mark.parametrize("name", ["{name}", "$name"])
def test_the_magics_line_is_taken_literally(notebook: KernelNotebook, name: str) -> None:
    notebook.run("name = 0")
    assert name in notebook.run_failing(f"%%mesh --out {name}\nx").error["evalue"]
    # A line magic's variables are expanded, as in any other.
    assert "rank 9 is out of range" in notebook.run_failing(f"name = 9\n%mesh log {name}").error["evalue"]


def test_a_mesh_cell_runs_from_code_as_well(notebook: KernelNotebook) -> None:
    cell = notebook.run("x = 1\nget_ipython().run_cell_magic('mesh', '0', 'print(rank + 10)')")
    assert cell.stdout == "[0] 10\n"


def test_a_cell_finds_its_place_by_name(notebook: KernelNotebook) -> None:
    cell = notebook.run("%%mesh 2\n(rank, world_size, local_rank, str(device), dict(point))")
    assert cell.result == "[2] (2, 4, 2, 'cpu', {'gpus': 2})"


def test_names_may_be_overwritten_and_last(notebook: KernelNotebook) -> None:
    notebook.run("%%mesh\ntrue_rank, rank = rank, 'mine'")
    assert notebook.run("%%mesh 1\nrank, true_rank").result == "[1] ('mine', 1)"
    notebook.run("%%mesh\nrank = true_rank")


def test_the_environment_is_that_of_torchrun(notebook: KernelNotebook) -> None:
    names = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"]
    notebook.run(f"%%mesh -o kept\nimport os\n[os.environ[name] for name in {names}]")
    values = notebook.evaluate("kept.values")
    assert [row[:4] for row in values] == [[str(rank), str(rank), "4", "4"] for rank in range(4)]
    assert len({tuple(row[4:]) for row in values}) == 1


def test_what_is_a_front_ends_does_not_leak_into_ranks(notebook: KernelNotebook) -> None:
    names = ["JPY_PARENT_PID", "FORCE_COLOR", "CLICOLOR_FORCE"]
    assert notebook.run(f"%%mesh\nimport os\n[name for name in {names} if name in os.environ]").result == "[0-3] []"


def test_collectives_of_torch_need_no_arguments(notebook: KernelNotebook) -> None:
    notebook.run("%%mesh\nimport torch\nimport torch.distributed as dist\ndist.init_process_group('gloo')")
    notebook.run("%%mesh\nx = torch.tensor([float(rank)])\ndist.all_reduce(x)")
    assert notebook.run("%%mesh\nx.item()").result == "[0-3] 6.0"
    notebook.run("%%mesh\ndist.destroy_process_group()")


def test_ranks_keep_what_cells_defined(notebook: KernelNotebook) -> None:
    notebook.run("%%mesh\ndef double(x):\n    return 2 * x\nclass Thing:\n    size = 3")
    assert notebook.run("%%mesh\ndouble(Thing.size), __name__, Thing.__module__").result == (
        "[0-3] (6, '__main__', '__main__')"
    )


def test_a_mesh_cell_does_not_touch_the_kernels_names(notebook: KernelNotebook) -> None:
    notebook.run("x = 'mine'")
    notebook.run("%%mesh\nx = 'theirs'")
    assert notebook.evaluate("x") == "mine"


def test_process_groups_are_made_again_while_the_last_one_is_held(notebook: KernelNotebook) -> None:
    again = """%%mesh --timeout 30
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
held = []
for _ in range(3):
    dist.init_process_group("gloo")
    held.append(init_device_mesh("cpu", (world_size,)))
    dist.barrier()
    dist.destroy_process_group()
"""
    notebook.run(again)
    notebook.run(again)


# --- errors of GPUs ---


OUT_OF_MEMORY = """%%mesh 0
import torch, weakref
class Held: pass
def allocate():
    global held
    kept = Held()
    held = weakref.ref(kept)
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")
allocate()"""


def test_an_error_about_gpu_memory_keeps_no_local_variables(notebook: KernelNotebook) -> None:
    cell = notebook.run_failing(OUT_OF_MEMORY)
    assert cell.error["ename"] == "OutOfMemoryError"
    assert "in allocate" in cell.traceback
    assert "local variables of its frames were dropped, which freed 0 B" in cell.traceback
    assert notebook.run("%%mesh 0\nheld() is None").result == "[0] True"


def test_ranks_that_share_a_gpu_learn_which_backend_works(notebook: KernelNotebook) -> None:
    text = "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 30"
    source = f"%%mesh\nimport torch.distributed as dist\nraise dist.DistBackendError({text!r})"
    assert 'dist.init_process_group("gloo")' in notebook.run_failing(source).traceback


def test_no_watchdog_of_nccl_ends_the_ranks_of_a_notebook(notebook: KernelNotebook) -> None:
    source = "import os\nos.environ['TORCH_NCCL_ASYNC_ERROR_HANDLING'], os.environ['TORCH_NCCL_ENABLE_MONITORING']"
    assert notebook.run(f"%%mesh 0\n{source}").result == "[0] ('0', '0')"
