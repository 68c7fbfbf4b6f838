"""The dashboard as a front end has it: its comm is opened, read and spoken to, in our kernel and in a stock one."""

from __future__ import annotations

import importlib.util
import os
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy
import pytest

from meshbook.widgets.protocol import RankState
from tests.support import FRONT_DOORS

if TYPE_CHECKING:
    from tests.kernel.conftest import KernelNotebook, Signs

pytestmark = [pytest.mark.kernel, pytest.mark.without_torch]
WIDGET = "application/vnd.jupyter.widget-view+json"
PROMISED = 1.0  # seconds in which a dead rank is seen


class View:
    """A view of the dashboard of `mesh`. It merges updates as the front end does."""

    def __init__(self, notebook: KernelNotebook) -> None:
        self.notebook = notebook
        self.name = uuid.uuid4().hex[:8]
        self.heard = notebook.follow("", "")  # what a dashboard says has no parent
        shown = notebook.run("mesh.dashboard()").displays[0]
        self.comm = shown[WIDGET]["model_id"]
        self._ids = 0

    def say(self, **content: Any) -> str:
        return self.send({"method": "custom", "content": content})

    def send(self, data: dict[str, Any], comm: str = "", kind: str = "comm_msg", **more: Any) -> str:
        message = self.notebook.client.session.msg(kind, {"comm_id": comm or self.comm, "data": data, **more})
        message["metadata"]["version"] = "1.0.0"
        self.notebook.client.shell_channel.send(message)
        return str(message["header"]["msg_id"])

    def open(self) -> dict[str, Any]:
        """The full state, as a new view gets it."""
        before = len(self.states)
        self.say(kind="open", view=self.name)
        self.notebook.wait_until(lambda: any(state["full"] for state in self.states[before:]))
        return self.state

    def ask(self, **content: Any) -> dict[str, Any]:
        """The reply to a request, buffers included."""
        return self.wait_for_reply(self.request(**content))

    def request(self, **content: Any) -> int:
        self._ids += 1
        self.say(**content, id=self._ids)
        return self._ids

    def wait_for_reply(self, number: int) -> dict[str, Any]:
        self.notebook.wait_until(lambda: number in self.replies)
        return self.replies[number]

    def wait(self, is_reached: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Until what it shows is so."""
        self.notebook.wait_until(lambda: is_reached(self.state))
        return self.state

    @property
    def messages(self) -> list[dict[str, Any]]:
        return [
            message["content"]["data"]["content"] | {"arrays": message["buffers"]}
            for message in self.heard.messages
            if message["content"].get("comm_id") == self.comm and message["content"]["data"].get("method") == "custom"
        ]

    @property
    def states(self) -> list[dict[str, Any]]:
        return [message for message in self.messages if message["kind"] == "state"]

    @property
    def replies(self) -> dict[int, dict[str, Any]]:
        return {message["id"]: message for message in self.messages if message["kind"] == "reply"}

    @property
    def state(self) -> dict[str, Any]:
        shown: dict[str, Any] = {}
        for state in self.states:
            shown.update(state)
            arrays = dict(zip(state["buffers"], state["arrays"], strict=True))
            if "states" in arrays:
                shown["by_rank"] = numpy.frombuffer(arrays["states"], numpy.uint8).copy()
            if "state_ranks" in arrays:
                ranks = numpy.frombuffer(arrays["state_ranks"], "<u4")
                shown["by_rank"][ranks] = numpy.frombuffer(arrays["state_values"], numpy.uint8)
        return shown

    def close(self) -> None:
        self.say(kind="close", view=self.name)


@pytest.fixture(scope="module", params=FRONT_DOORS)
def kernel(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def shared(kernel: str, make_notebook: type[KernelNotebook]) -> Iterator[KernelNotebook]:
    with make_notebook(kernel, torch=False) as notebook:
        notebook.run("%mesh up --gpus 4")
        yield notebook


@pytest.fixture
def view(shared: KernelNotebook) -> Iterator[View]:
    view = View(shared)
    yield view
    view.close()


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """What a cell reads waits until it is written to."""
    os.mkfifo(tmp_path / "gate")
    return tmp_path / "gate"


def test_a_view_that_opens_gets_everything(shared: KernelNotebook, view: View) -> None:
    state = view.open()
    assert state["mesh"]["dims"] == [["gpus", 4]]
    assert state["mesh"]["alive"]
    assert state["counts"] == {"idle": 4}
    assert state["by_rank"].tolist() == [RankState.IDLE] * 4
    assert {"cell", "worst", "hosts", "topology", "stacks", "pauses", "bars", "events", "selected"} <= state.keys()
    again, picture = view.notebook.run("mesh").displays
    assert again[WIDGET]["model_id"] == view.comm
    assert again["text/plain"] == shared.evaluate("repr(mesh)")
    assert "4 idle" in picture["text/html"]  # for where no widget is shown
    assert "4 idle" in picture["text/plain"]
    assert WIDGET not in shared.run("mesh.slice(gpus=0)").contents("execute_result")[0]["data"]
    assert shared.run("%mesh dash").displays[0][WIDGET]["model_id"] == view.comm


def test_what_a_view_asks_for_wrongly_is_refused(view: View) -> None:
    view.open()
    assert "what" in view.ask(kind="select", sel="0-what")["error"]
    assert "invalid rank 9" in view.ask(kind="history", ranks=[9], metrics=["memory"])["error"]
    assert "heat" in view.ask(kind="history", ranks=[0], metrics=["heat"])["error"]
    assert "explode" in view.ask(kind="act", action="explode", sel="")["error"]
    assert "dance" in view.ask(kind="dance")["error"]
    assert "view" in view.ask(kind="open", view=7)["error"]
    assert view.ask(kind="select", sel="1:3")["ranks"] == "1-2"
    view.wait(lambda state: state["selected"]["count"] == 2)
    assert view.ask(kind="select", sel="")["count"] == 0


def test_a_sync_cell_shows_and_keeps_its_output(shared: KernelNotebook, view: View, gate: Path) -> None:
    view.open()
    code = f"import threading\nprint('began')\nopen({str(gate)!r}).read()\nprint('over')\n"
    cell = shared.start(
        f"{code}thread = threading.Thread(target=print, args=('of a thread',))\nthread.start(); thread.join()"
    )
    view.wait(lambda state: state["cell"] is not None and "in the notebook" in state["cell"]["title"])
    assert view.ask(kind="select", sel="0")["ranks"] == "0"
    assert not cell.is_idle
    gate.write_text("")
    assert shared.wait(cell).stdout.split("\n") == ["began", "over", "of a thread", ""]
    view.wait(lambda state: state["cell"] is None)
    held = shared.start("import time\ntime.sleep(60)")
    view.wait(lambda state: state["cell"] is not None)
    assert "interrupted cell" in view.ask(kind="act", action="interrupt", sel="")["text"]
    assert shared.wait_failed(held).error["ename"] == "KeyboardInterrupt"
    view.wait(lambda state: state["cell"] is None)
    assert [message["id"] for message in view.messages if message["kind"] == "reply"] == [1, 2]  # each once


def test_buttons_work_while_a_mesh_cell_runs(shared: KernelNotebook, view: View, signs: Signs) -> None:
    view.open()
    shared.run(f"%%mesh\n{signs.definition}")
    cell = shared.start(
        "%%mesh --on-error finish\nimport threading\nprint('<script>loss 0.5')\ntell('in')\nthreading.Event().wait(60)"
    )
    signs.wait_for("in", 4)
    shown = view.wait(lambda state: state["counts"] == {"running": 4} and state["cell"] is not None)
    assert shown["cell"]["ranks"] == "0-3"
    assert view.ask(kind="act", action="stacks", sel="0")["text"] == "took the stacks of rank 0"
    (group,) = view.wait(lambda state: state["stacks"] is not None)["stacks"]["groups"]
    assert group["frames"][0][0].startswith("cell ")
    lines = view.ask(kind="logs", sel="", query={"text": "<SCRIPT>"})["lines"]
    assert sorted((line[2], line[5]) for line in lines) == [(rank, "<script>loss 0.5") for rank in range(4)]
    assert len(view.ask(kind="timeline", cell=None)["lanes"]) == 4
    assert view.ask(kind="act", action="interrupt", sel="1")["text"].startswith("interrupted rank 1")
    view.wait(lambda state: state["counts"].get("running") == 3)
    assert not cell.is_idle
    number = view.state["cell"]["number"]
    assert "nothing was interrupted" in view.ask(kind="act", action="interrupt", sel="", cell=number - 1)["text"]
    assert not cell.is_idle
    assert "interrupted cell" in view.ask(kind="act", action="interrupt", sel="", cell=number)["text"]
    assert shared.wait_failed(cell).error["ename"] == "KeyboardInterrupt"
    view.wait(lambda state: state["counts"] == {"idle": 4} and state["cell"] is None)
    shared.run_failing("%%mesh\n1 / 0")
    view.wait(lambda state: state["counts"] == {"error": 4})
    shared.run("%%mesh\npass")
    view.wait(lambda state: state["counts"] == {"idle": 4})


def test_a_rank_that_failed_is_seen_before_the_others_are_done(
    shared: KernelNotebook, view: View, signs: Signs
) -> None:
    view.open()
    cell = shared.start(
        f"%%mesh --on-error finish\n{signs.definition}\nimport threading\ntell('in')\nassert rank != 2\n"
        "rank == 3 or threading.Event().wait(60)"
    )
    signs.wait_for("in", 4)
    state = view.wait(lambda state: state["counts"] == {"running": 2, "error": 1, "idle": 1})
    assert state["by_rank"][2] == RankState.ERROR
    shared.interrupt()
    shared.wait_failed(cell)
    view.wait(lambda state: state["counts"] == {"error": 1, "idle": 3})


def test_a_picture_right_after_a_cell_shows_its_ranks_as_idle(shared: KernelNotebook) -> None:
    shared.run("%%mesh\nimport time\ntime.sleep(1.5)")  # longer than it takes until the rank is measured
    assert "4 idle" in shared.run("%mesh dash").displays[1]["text/plain"]


def test_a_wrong_selector_selects_nothing(shared: KernelNotebook, view: View) -> None:
    view.open()
    view.ask(kind="select", sel="1:3")
    view.wait(lambda state: state["selected"]["count"] == 2)
    assert "out of range" in view.ask(kind="select", sel="9")["error"]
    view.wait(lambda state: state["selected"] == {"sel": "", "ranks": "", "count": 0})


def test_a_job_is_interrupted_where_no_cell_holds_the_notebook(
    shared: KernelNotebook, view: View, signs: Signs
) -> None:
    view.open()
    shared.run(f"%%mesh\n{signs.definition}")
    shared.run("%%mesh -a -o job\nimport threading\ntell('in')\nthreading.Event().wait(60)")
    signs.wait_for("in", 4)
    view.wait(lambda state: state["cell"] is not None and state["cell"]["jobs"] == 1)
    assert "job 1" in view.ask(kind="act", action="interrupt", sel="")["text"]
    view.wait(lambda state: state["cell"] is None)
    assert shared.evaluate("job.cancelled()")


def test_a_rank_that_its_cell_ended_without_is_stuck_and_can_be_interrupted(
    kernel: str, open_notebook: Callable[..., KernelNotebook], signs: Signs
) -> None:
    notebook = open_notebook(kernel)
    notebook.run("%mesh up --gpus 2")
    view = View(notebook)
    view.open()
    go = notebook.folder / "go"
    cell = notebook.start(
        f"%%mesh\n{signs.definition}\nimport os, signal, time\ntell('in')\nwhile rank == 0:\n"
        f"    try:\n        while True: time.sleep(0.01)\n"
        f"    except KeyboardInterrupt:\n        if os.path.exists({str(go)!r}): raise\n"
        "    except BaseException: pass\n"
        "os.kill(os.getpid(), signal.SIGKILL) if rank == 1 else None"
    )
    signs.wait_for("in", 2)
    notebook.wait_failed(cell)
    view.wait(lambda state: state["counts"].get("stuck") == 1 and state["by_rank"][0] == RankState.STUCK)
    assert "rank 0 is still at cell" in view.ask(kind="act", action="interrupt", sel="")["text"], "it still runs"
    go.touch()
    view.ask(kind="act", action="interrupt", sel="")
    view.wait(lambda state: "stuck" not in state["counts"])


def test_ranks_and_meshes_that_end_are_seen_and_come_back(
    kernel: str, open_notebook: Callable[..., KernelNotebook]
) -> None:
    notebook = open_notebook(kernel)
    notebook.run("%mesh up --gpus 4")
    view = View(notebook)
    # Of no cell: else nbclient would save the widget in the notebook, and its script.
    assert view.comm in [opened["comm_id"] for opened in view.heard.contents("comm_open")]
    view.open()
    notebook.run("%%mesh\nimport os\npid = os.getpid()")
    pid = notebook.evaluate("mesh.slice(gpus=2).pull('pid')")
    view.wait(lambda state: state["cell"] is None)
    os.kill(pid, signal.SIGKILL)
    killed = time.monotonic()
    state = view.wait(lambda state: state["counts"].get("dead") == 1)
    assert time.monotonic() - killed < PROMISED
    assert state["by_rank"][2] == RankState.DEAD
    assert "restarted rank 2" in view.ask(kind="act", action="heal", sel="")["text"]
    view.wait(lambda state: state["counts"] == {"idle": 4} and state["events"][-1]["kind"] == "healed")
    assert view.ask(kind="act", action="kill", sel="0,3")["text"].startswith("killed 2 ranks [0,3]")
    view.wait(lambda state: state["counts"] == {"idle": 2, "dead": 2})
    assert "ended by the dashboard" in notebook.run("%mesh status").stdout
    assert "Heal" in view.ask(kind="act", action="kill", sel="0")["error"]
    assert "restarted" in view.ask(kind="act", action="restart", sel="1:3")["text"]
    view.wait(lambda state: state["counts"] == {"idle": 4})
    notebook.run("%mesh down")
    view.wait(lambda state: not state["mesh"]["alive"])
    assert "%mesh up" in view.ask(kind="act", action="heal", sel="")["error"]
    notebook.run("%mesh up --gpus 2")
    assert view.wait(lambda state: state["mesh"]["alive"])["counts"] == {"idle": 2}


def test_without_views_no_thread_works(shared: KernelNotebook, view: View) -> None:
    threads = "sorted(t.name for t in __import__('threading').enumerate() if t.name == 'meshbook dashboard')"
    view.open()
    assert shared.evaluate(threads) == ["meshbook dashboard"]
    view.close()
    shared.wait_until(lambda: not shared.evaluate(threads))
    assert sum(view.open()["counts"].values()) == 4


def test_a_dashboard_that_a_front_end_has_closed_makes_room_for_another(shared: KernelNotebook, view: View) -> None:
    view.send({}, kind="comm_close")
    shared.wait_until(lambda: View(shared).comm != view.comm)
    again = View(shared)
    assert sum(again.open()["counts"].values()) == 4
    again.close()


def test_a_page_that_is_loaded_anew_finds_its_widgets_while_a_cell_runs(
    kernel: str, shared: KernelNotebook, view: View, gate: Path
) -> None:
    if kernel != "meshbook":
        pytest.skip("a stock kernel hears nothing of a front end while sync code runs")
    cell = shared.start(f"open({str(gate)!r}).read()")
    asked = shared.follow(view.send({"method": "request_state"}), "")
    shared.wait_until(lambda: bool(asked.contents("comm_msg")))  # by its parent a front end knows the answer
    assert "_esm" in asked.contents("comm_msg")[0]["data"]["state"]
    control = uuid.uuid4().hex
    view.send({}, control, "comm_open", target_name="jupyter.widget.control")
    view.send({"method": "request_states"}, control)
    of_control = (content for heard in (cell, view.heard) for content in heard.contents("comm_msg"))
    shared.wait_until(lambda: any(content["comm_id"] == control for content in cell.contents("comm_msg")))
    (told,) = (content["data"]["states"] for content in of_control if content["comm_id"] == control)
    assert view.comm in told
    assert not cell.is_idle
    gate.write_text("")
    shared.wait(cell)


# --- curves ---


def test_what_ranks_log_comes_as_curves_live_and_as_a_picture(
    shared: KernelNotebook, view: View, tmp_path: Path
) -> None:
    version = view.open()["curves"]
    source = "for step in range(50):\n    meshbook.log(step=step, **{'train/loss': 1 / (step + 1) + 9 * (rank == 3)})"
    shared.run(f"%%mesh\nimport meshbook\n{source}")
    view.wait(lambda state: state["curves"] > version)
    metrics = [*view.ask(kind="curves", sel="", names=[])["metrics"]]
    assert "train/loss" in metrics
    curve = view.ask(kind="curves", sel="!0", names=["train/loss"])["curves"][0]
    assert (curve["points"], curve["ranks"]) == (50, 2)
    assert [(line["rank"], line["kind"]) for line in curve["lines"]] == [(3, "diverging"), (1, "rank"), (2, "rank")]
    assert "nonsense" in view.ask(kind="curves", sel="nonsense", names=[])["error"]

    shown = shared.run("%mesh curves train").displays
    assert WIDGET in shown[0]
    assert shown[1]["text/html"].count("<svg") == 1
    assert "rank 3 diverges" in shown[1]["text/plain"]
    missing = shared.run("%mesh curves nothing").displays[1]["text/plain"]
    assert "no metric is named nothing" in missing
    path = tmp_path / "run.csv"
    assert f"wrote 200 points to {path}" in shared.run(f"%mesh curves train --export {path}").plain
    assert len(path.read_text().splitlines()) == 201
    if importlib.util.find_spec("pyarrow") is not None:
        lengths = "[len(each.history('train/loss')) for each in (mesh, mesh.slice(gpus=0))]"
        assert shared.run(lengths).result == "[200, 50]"
    assert "no metric 'lost'" in str(shared.run_failing("%mesh curves lost --export run.csv").error)


def test_an_export_may_be_of_one_mesh(shared: KernelNotebook, tmp_path: Path) -> None:
    shared.run("%mesh up --gpus 1 --name other\n%mesh use mesh")
    for ranks in ("other", "mesh[0:2]"):
        shared.run(f"%%mesh {ranks}\nimport meshbook\nmeshbook.log(elsewhere=1)")
    for option, count in (("--mesh other", 1), ("--mesh mesh", 2), ("", 3)):
        line = f"%mesh curves elsewhere {option} --export {tmp_path / 'run.csv'}"
        assert shared.run(line).plain.startswith(f"wrote {count} points")
    shared.run("%mesh down other")
