"""`%mesh heal`, `restart`, `interrupt` and `stack`, and the line that a cell shows while its ranks are apart."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.kernel.conftest import Cell, KernelNotebook, Signs

pytestmark = pytest.mark.kernel

KILL_RANK_1 = "%%mesh\nimport os, signal\nif rank == 1: os.kill(os.getpid(), signal.SIGKILL)"


@pytest.fixture
def mesh(bare_notebook: KernelNotebook, signs: Signs) -> Iterator[KernelNotebook]:
    """A notebook with a mesh of three ranks, whatever becomes of them."""
    bare_notebook.run("%mesh up --gpus 3")
    bare_notebook.run(f"%%mesh\n{signs.definition}\nimport threading, time")
    yield bare_notebook
    bare_notebook.run("%mesh down --now")


# --- heal and restart ---


def test_heal_starts_the_dead_again_and_says_what_they_lost(mesh: KernelNotebook) -> None:
    mesh.run("%%mesh\nmodel, _hidden = rank * 11, 1")
    mesh.run_failing(KILL_RANK_1)
    healed = mesh.run("%mesh heal").stdout
    assert re.fullmatch(
        r"restarted rank 1 in \d\.\d\d s; it lost 6 names: tell, threading, time, model, os, signal\n", healed
    )
    assert mesh.run("%%mesh\nrank, world_size, str(device), dict(point), globals().get('model')").result == (
        "[0] (0, 3, 'cpu', {'gpus': 0}, 0)\n[1] (1, 3, 'cpu', {'gpus': 1}, None)\n[2] (2, 3, 'cpu', {'gpus': 2}, 22)"
    )
    assert mesh.run("%mesh heal").stdout == "all 3 ranks of mesh are alive\n"
    lines = mesh.run("%mesh status").stdout.splitlines()
    status = [line for line in lines if not line.startswith("  uses ")]  # which may not have been measured yet
    assert status[1:3] == [
        "  rank 1 was restarted; it lost 6 names: tell, threading, time, model, os, signal",
        "  last events:",
    ]
    assert re.fullmatch(r"    [\d:]{8} mesh rank 1 failed: .*Killed\(sig=9\).*", status[3])
    assert re.fullmatch(r"    [\d:]{8} mesh rank 1 healed: in 0\.\d+ s", status[-1])


def test_a_spare_takes_the_place_of_a_rank_that_died(bare_notebook: KernelNotebook) -> None:
    bare_notebook.run("%mesh up --gpus 2 --spares 1")
    bare_notebook.run("while mesh.spares().get() < 1: pass")
    assert bare_notebook.run("%mesh status").stdout.splitlines()[1] == "  1 of 1 spares are warm"
    bare_notebook.run_failing(KILL_RANK_1)
    bare_notebook.run("%mesh heal")
    assert bare_notebook.run("%%mesh\nrank, world_size").result == "[0] (0, 2)\n[1] (1, 2)"
    assert "rank 1 spare used: pid " in bare_notebook.run("%mesh status").stdout
    bare_notebook.run("%mesh down")


TORCH = "import torch, torch.distributed as dist"
REDUCE = f"%%mesh\n{TORCH}\nx = torch.ones(1)\ndist.all_reduce(x)\nx[0].item()"


def test_torch_meets_again_on_a_healed_mesh(mesh: KernelNotebook) -> None:
    init = f"%%mesh\n{TORCH}\ndist.init_process_group('gloo')"
    mesh.run(init)
    assert mesh.run(REDUCE).result == "[0-2] 3.0"
    mesh.run_failing(KILL_RANK_1)
    mesh.run("%mesh heal")
    mesh.run(init)
    assert mesh.run(REDUCE).result == "[0-2] 3.0"


def test_the_process_group_of_a_mesh_is_there_again_when_it_is_healed(mesh: KernelNotebook) -> None:
    assert mesh.run("await mesh.init_process_group()").result is None
    assert mesh.run(REDUCE).result == "[0-2] 3.0"
    mesh.run_failing(KILL_RANK_1)
    mesh.run("%mesh heal")
    assert mesh.run(REDUCE).result == "[0-2] 3.0"


def test_restart_ends_ranks_whatever_they_run(mesh: KernelNotebook, signs: Signs) -> None:
    mesh.run("%%mesh\nkept = rank")
    mesh.run("%%mesh 0 -a -o job\ntell('there'); threading.Event().wait()")
    signs.wait_for("there")
    restarted = mesh.run("%mesh restart 0,2").stdout
    assert re.fullmatch(r"restarted 2 ranks \[0,2\] in \d\.\d\d s; they lost 4 names: .*\n", restarted)
    ended = mesh.run_failing("await job").error["evalue"]
    assert re.search(r"rank 0 \(pid \d+\) was stopped during the cell by %mesh restart", ended)
    assert mesh.run("%%mesh\nglobals().get('kept')").result == "[1] 1\n[0,2] no value"
    status = mesh.run("%mesh status").stdout
    assert "mesh rank 0 ended: by %mesh restart" in status
    assert "failed" not in status


def test_an_interrupted_heal_leaves_a_mesh_that_can_be_healed(mesh: KernelNotebook, signs: Signs) -> None:
    mesh.run(
        "from meshbook import Actor\nclass Slow(Actor):\n    def __init__(self):\n"
        f"        import threading\n        open({str(signs.path)!r}, 'w').write('making ')\n"
        "        threading.Event().wait(0.5)\n"
        "slow = mesh.spawn('slow', Slow); slow.initialized.get();"
    )
    signs.wait_for("making", 3)
    mesh.run_failing(KILL_RANK_1)
    cell = mesh.start("%mesh heal")
    signs.wait_for("making")
    mesh.interrupt()
    mesh.wait_failed(cell)
    assert cell.error["ename"] == "KeyboardInterrupt"
    mesh.run("%mesh heal")
    assert mesh.run("%%mesh\nrank").result == "[0] 0\n[1] 1\n[2] 2"


# --- interrupt and stack, beside a cell that runs ---


def test_idle_ranks_are_not_interrupted_nor_killed(mesh: KernelNotebook) -> None:
    assert mesh.run("%mesh interrupt").stdout == "3 ranks [0-2] idle\n"
    assert mesh.run("%mesh interrupt 0 --kill").stdout == "rank 0 of mesh is idle; nothing was killed\n"
    assert mesh.run("%mesh stack").stdout == "[0-2] main thread: idle\n"


def run_beside(notebook: KernelNotebook, code: str) -> str:
    """What a cell prints in a subshell, while another one runs."""
    client = notebook.client
    subshell = notebook.ask_control("create_subshell_request")["subshell_id"]
    content: Any = {"code": code, "silent": False, "store_history": False, "user_expressions": {}}
    message = client.session.msg("execute_request", content | {"allow_stdin": False, "stop_on_error": True})
    message["header"]["subshell_id"] = subshell
    cell = notebook.follow(message["header"]["msg_id"], code)
    client.shell_channel.send(message)
    notebook.wait(cell)
    assert cell.reply is not None
    assert cell.reply["status"] == "ok", cell.traceback
    return cell.stdout


def test_a_running_cell_is_inspected_and_interrupted_from_a_subshell(mesh: KernelNotebook, signs: Signs) -> None:
    cell = mesh.start(
        "%%mesh\ndef wait():\n    threading.Event().wait()\n\ntell('there')\n"
        "if rank == 1:\n    await __import__('asyncio').sleep(600)\nwait()"
    )
    signs.wait_for("there", 3)
    stacks = ""
    # Each has just written, and may still be on its way.
    while not re.search(r"(?s)^\[0,2\] main thread\n.* in wait\b.*\n\[1\] main thread\n +cell \d+:7\b", stacks):
        stacks = run_beside(mesh, "%mesh stack")
    lines = stacks.splitlines()
    number = int(re.findall(r"cell (\d+):", stacks)[0])
    assert lines[1].split() == ["cell", f"{number}:8", "wait()"]
    assert lines[2].split()[:4] == ["cell", f"{number}:3", "in", "wait"]
    assert lines[lines.index("[1] main thread") + 1].split()[:2] == ["cell", f"{number}:7"]
    assert run_beside(mesh, "%mesh interrupt 1") == "interrupted rank 1\n"
    mesh.wait_failed(cell)
    assert cell.error["ename"] == "KeyboardInterrupt"


def test_stacks_include_the_users_actors(mesh: KernelNotebook, signs: Signs) -> None:
    mesh.run(
        "from meshbook import Actor, endpoint\nclass Loader(Actor):\n    @endpoint\n    def load(self):\n"
        f"        import threading\n        open({str(signs.path)!r}, 'w').write('loading ')\n"
        "        import __main__; __main__.go_on.wait()\n    @endpoint\n    def other(self): ...\n"
        "loaders = mesh.spawn('loaders', Loader)"
    )
    mesh.run("%%mesh\ngo_on = threading.Event()")
    mesh.run("loading = loaders.load.call()")
    signs.wait_for("loading", 3)
    stacks = ""
    while "[0-2] actor loaders" not in stacks:  # each may have just written
        stacks = mesh.run("%mesh stack").stdout
    assert stacks.startswith("[0-2] main thread: idle\n[0-2] actor loaders: in loaders.load(), called in cell "), stacks
    assert "__main__.go_on.wait()" in stacks
    mesh.run("%%mesh\ngo_on.set()")
    mesh.run("loading.get();")


# --- ranks that are apart ---


def test_a_cell_says_once_where_ranks_are_that_are_apart(mesh: KernelNotebook, signs: Signs) -> None:
    mesh.run("from meshbook.magics.cells import divergence; divergence.PATIENCE = 0.2")
    mesh.run("%%mesh\ngate = threading.Event()")
    cell = mesh.start("%%mesh\nif rank == 1:\n    tell('there'); gate.wait()")
    signs.wait_for("there")
    mesh.wait_until(lambda: "\n2 ranks [0,2] done, rank 1 at cell " in live_text(cell))
    assert live_text(cell).count("rank 1 at cell") == 1
    mesh.interrupt()
    mesh.wait_failed(cell)
    assert "rank 1 at cell" not in cell.outputs[0]["data"]["text/plain"], "it was true while the cell ran"
    assert "rank 1 was at cell" in cell.error["evalue"]


def live_text(cell: Cell) -> str:
    """What the live area of a running cell says."""
    shown = [*cell.displays, *cell.updates]
    text: str = shown[-1]["text/plain"] if shown else ""
    return text


# --- resize ---


def test_a_mesh_grows_and_shrinks_and_its_ranks_know_their_places(mesh: KernelNotebook) -> None:
    mesh.run("%%mesh\nkept = rank")
    mesh.run("%%mesh 0\nworld_size = 'mine'")
    assert re.fullmatch(
        r"mesh: 4 ranks \(gpus=4\), .*; resized in \d\.\d\d s\n", mesh.run("%mesh resize --gpus 4").stdout
    )
    known = "%%mesh\nimport os; rank, world_size, os.environ['WORLD_SIZE'], globals().get('kept')"
    assert mesh.run(known).result == (
        "[0] (0, 'mine', '4', 0)\n[1] (1, 4, '4', 1)\n[2] (2, 4, '4', 2)\n[3] (3, 4, '4', None)"
    )
    assert mesh.run("mesh.sizes, len(mesh.nodes)").result == "({'gpus': 4}, 4)"
    missing = mesh.run_failing("%%mesh\nkept").error["evalue"]
    assert "%mesh resize added rank 3" in missing
    assert "with %%mesh 3" in missing
    mesh.run("%mesh resize --gpus 2")
    assert mesh.run(known).result == "[0] (0, 'mine', '2', 0)\n[1] (1, 2, '2', 1)"
    assert "dimension 'hosts'" in mesh.run_failing("%mesh resize --shape hosts=2").error["evalue"]


def test_a_resize_says_what_it_waits_for_and_outlives_the_waiting(mesh: KernelNotebook, signs: Signs) -> None:
    mesh.run("from meshbook.magics.meshes import lifecycle as changes; changes.MOMENT = 0.1")
    mesh.run("%%mesh -a -o job\ntell('there'); threading.Event().wait()")
    signs.wait_for("there", 3)
    cell = mesh.start("%mesh resize --gpus 4")
    mesh.wait_until(lambda: "waiting for running cells: ranks 0-2 run job " in cell.stdout)
    mesh.interrupt()
    mesh.wait_failed(cell)
    assert cell.error["ename"] == "KeyboardInterrupt"
    assert "the resize of mesh continues" in cell.stdout
    mesh.run("%mesh cancel all\nwhile mesh.size() < 4: pass")
    assert mesh.run("%%mesh\nworld_size").result == "[0-3] 4"


def test_a_resize_by_code_is_one_of_the_cells_too(mesh: KernelNotebook) -> None:
    mesh.run("mesh = mesh.resize(gpus=4); mesh.initialized.get();")
    assert mesh.run("%%mesh\nrank, world_size").result == "[0] (0, 4)\n[1] (1, 4)\n[2] (2, 4)\n[3] (3, 4)"
    mesh.run_failing("%%mesh\nimport os\nif rank == 3: os._exit(3)")
    assert "rank 3 dead" in mesh.run("%mesh").stdout
    mesh.run("%mesh heal")
    assert mesh.run("%%mesh\nrank, world_size").result == "[0] (0, 4)\n[1] (1, 4)\n[2] (2, 4)\n[3] (3, 4)"
