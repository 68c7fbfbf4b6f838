"""The kernel as the protocol of Jupyter has it: the published conformance tests, and what they leave out."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jupyter_kernel_test
import pytest

import meshbook
from tests.support import PATIENCE

if TYPE_CHECKING:
    from tests.kernel.conftest import KernelNotebook

pytestmark = [pytest.mark.kernel, pytest.mark.without_torch]
WARM_UP = (
    "import meshbook\nwith_it = meshbook.this_host().spawn_procs()\nwith_it.initialized.get()\nwith_it.stop().get()"
)


class TestConformance(jupyter_kernel_test.KernelTests):
    """Ordinary cells: an IPython kernel's behaviour, unchanged."""

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        # The kernel starts its agent and fork server in the background: no test shall be blamed for them.
        cls.kc.execute_interactive(WARM_UP, store_history=False, timeout=60)

    kernel_name = "meshbook"
    language_name = "python"
    file_extension = ".py"

    code_hello_world = "print('hello, world')"
    code_stderr = "import sys; print('test', file=sys.stderr)"
    completion_samples = [
        {"text": "zi", "matches": {"zip"}},
        {"text": "%%mes", "matches": {"%%mesh"}},
        {"text": "%mes", "matches": {"%mesh", "%%mesh"}},
    ]
    complete_code_samples = ["1", "print('hello, world')", "def f(x):\n  return x*2\n\n\n"]
    incomplete_code_samples = ["print('''hello", "def f(x):\n  x*2"]
    invalid_code_samples = ["import = 7q"]
    code_page_something = "zip?"
    code_generate_error = "raise ValueError"
    code_execute_result = [{"code": "6*7", "result": "42"}, {"code": "None or 1", "result": "1"}]
    code_display_data = [
        {"code": "from IPython.display import HTML, display; display(HTML('<b>test</b>'))", "mime": "text/html"},
        {"code": "from IPython.display import Math, display; display(Math('x'))", "mime": "text/latex"},
    ]
    code_history_pattern = "6*7"
    supported_history_operations = ("tail", "search")  # IPython answers "range" with session 0, for the running one
    code_inspect_sample = "zip"
    code_clear_output = "from IPython.display import clear_output; clear_output()"


class TestConformanceOfMeshCells(TestConformance):
    """The same with cells that run on ranks, as far as their output has the same form."""

    code_hello_world = "%%mesh\nprint('hello, world')"
    code_stderr = "%%mesh\nimport sys; print('test', file=sys.stderr)"
    completion_samples = [{"text": "%%mesh\nzi", "matches": {"zip"}}]
    complete_code_samples = ["%%mesh\n1\n\n", "#mesh: 0\n1"]
    incomplete_code_samples = ["#mesh: 0\nprint('''hello", "#mesh: 0\ndef f(x):\n  x*2"]
    invalid_code_samples = ["#mesh: 0\nimport = 7q"]
    code_page_something = "%%mesh?"
    code_generate_error = "%%mesh\nraise ValueError"
    code_execute_result = [{"code": "%%mesh\n6*7", "result": "[0-1] 42"}, {"code": "#mesh: 1\n1", "result": "[1] 1"}]
    code_display_data = [
        {
            "code": "%%mesh\nfrom IPython.display import HTML, display; display(HTML('<b>test</b>'))",
            "mime": "text/html",
        }
    ]
    code_inspect_sample = "%%mesh"
    code_clear_output = ""

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls.kc.execute("%mesh up --gpus 2", reply=True, timeout=60)

    test_clear_output = None  # a rank does not clear what others show


# --- what a kernel says of itself ---


def test_kernel_info(notebook: KernelNotebook) -> None:
    info = notebook.ask("kernel_info")
    assert (info["implementation"], info["implementation_version"]) == ("meshbook", meshbook.__version__)
    assert info["language_info"]["name"] == "python"
    assert info["banner"].startswith(f"meshbook {meshbook.__version__}")
    assert "IPython" in info["banner"]


# --- what a front end may ask for besides the code; for ordinary cells and mesh cells alike ---

CELLS = pytest.mark.parametrize("prefix", ["", "%%mesh 0\n"], ids=["ordinary", "mesh"])


@CELLS
def test_user_expressions_are_evaluated_after_the_cell(notebook: KernelNotebook, prefix: str) -> None:
    expressions = {"sum": "6 * 7", "last": "type(_).__name__", "bad": "1 / 0"}
    notebook.run("%%mesh 0\n'result'")
    cell = notebook.wait(notebook.start(f"{prefix}x = 1", user_expressions=expressions))
    found = reply_of(cell)["user_expressions"]
    assert found["sum"]["data"]["text/plain"] == "42"
    assert found["last"]["data"]["text/plain"] == "'MeshResult'"
    assert (found["bad"]["status"], found["bad"]["ename"]) == ("error", "ZeroDivisionError")


@CELLS
def test_a_silent_cell_runs_and_leaves_no_trace(notebook: KernelNotebook, prefix: str) -> None:
    count = reply_of(notebook.run("1"))["execution_count"]
    cell = notebook.wait(notebook.start(f"{prefix}ran = 'silently'\nran", silent=True))
    assert reply_of(cell)["status"] == "ok"
    assert [kind for kind in kinds_of(cell) if kind != "stream"] == []
    after = notebook.run(f"{prefix}ran")
    assert "silently" in (after.result or "")
    assert reply_of(after)["execution_count"] == count + 1


@CELLS
def test_a_silent_cell_that_fails_says_so(notebook: KernelNotebook, prefix: str) -> None:
    cell = notebook.wait(notebook.start(f"{prefix}1 / 0", silent=True))
    assert (reply_of(cell)["status"], reply_of(cell)["ename"]) == ("error", "ZeroDivisionError")


@CELLS
def test_a_cell_outside_the_history_is_shown_and_not_counted(notebook: KernelNotebook, prefix: str) -> None:
    count = reply_of(notebook.run("1"))["execution_count"]
    cell = notebook.wait(notebook.start(f"{prefix}print('shown')\n6 * 7", store_history=False))
    assert "shown" in cell.stdout
    assert cell.result in ("42", "[0] 42")
    assert notebook.evaluate(f"len(In), {cell.code!r} in In") == (count + 2, False)


@CELLS
@pytest.mark.parametrize(("stop_on_error", "status"), [(True, "aborted"), (False, "ok")])
def test_a_failure_stops_what_waits_unless_asked_otherwise(
    notebook: KernelNotebook, prefix: str, stop_on_error: bool, status: str, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    os.mkfifo(go)
    failing = notebook.start(f"{prefix}open({str(go)!r}).read()\n1 / 0", stop_on_error=stop_on_error)
    waiting = notebook.start(f"{prefix}'ran'")
    go.write_text("go")  # once the cell has opened it
    notebook.wait_failed(failing)
    notebook.wait_until(lambda: waiting.reply is not None)
    assert reply_of(waiting)["status"] == status


@CELLS
def test_busy_comes_first_and_idle_last(notebook: KernelNotebook, prefix: str) -> None:
    cell = notebook.run(f"{prefix}print('out')\n'value'")
    assert kinds_of(cell) == ["execute_input", "stream", "execute_result"]
    assert cell.contents("execute_input")[0]["code"] == cell.code


@CELLS
def test_the_last_state_is_busy_while_a_cell_runs(notebook: KernelNotebook, prefix: str, tmp_path: Path) -> None:
    client = notebook.client
    subshell = notebook.ask_control("create_subshell_request")["subshell_id"]
    go = tmp_path / "go"
    os.mkfifo(go)
    client.wait_for_ready(timeout=PATIENCE)  # the states that came before are read
    cell = client.execute(f"{prefix}open({str(go)!r}).read()")
    assert ("busy", cell) in states_until(client, "busy", cell)
    on_subshell = client.session.msg("comm_msg", {"comm_id": "unknown", "data": {}})
    on_subshell["header"]["subshell_id"] = subshell
    on_control = client.session.msg("list_subshell_request")
    requests = [
        (client.shell_channel, on_subshell),
        (client.shell_channel, client.session.msg("kernel_info_request")),
        (client.control_channel, on_control),
    ]
    for channel, request in requests:
        channel.send(request)
        name = request["header"]["msg_id"]
        assert ("idle", name) in states_until(client, "idle", name)
        assert states_until(client, "busy", cell) == [("busy", cell)]
    go.write_text("go")
    assert states_until(client, "idle", cell) == [("idle", cell)]
    client.control_channel.send(client.session.msg("delete_subshell_request", {"subshell_id": subshell}))


def states_until(client: Any, state: str, request: str) -> list[tuple[str, str]]:
    """Return the states of the kernel, with their requests, up to this one."""
    seen: list[tuple[str, str]] = []
    while (state, request) not in seen:
        message = client.get_iopub_msg(timeout=PATIENCE)
        if message["msg_type"] == "status":
            seen.append((message["content"]["execution_state"], message["parent_header"]["msg_id"]))
    return seen


def reply_of(cell: Any) -> dict[str, Any]:
    assert cell.reply is not None
    reply: dict[str, Any] = cell.reply
    return reply


def kinds_of(cell: Any) -> list[str]:
    return [message["msg_type"] for message in cell.messages]
