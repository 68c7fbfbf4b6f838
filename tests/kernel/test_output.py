"""What ranks print and display, through the real kernel: grouped, in its own cell, bounded, and nothing lost."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.kernel.conftest import KernelNotebook, Signs

pytestmark = [pytest.mark.kernel, pytest.mark.without_torch]


# --- quick cells ---


def test_a_quick_cell_prints_plain_grouped_streams(notebook: KernelNotebook) -> None:
    cell = notebook.run("%%mesh\nprint('same')\nif rank == 2: print('more')")
    assert [output.output_type for output in cell.outputs] == ["stream"]
    assert cell.stdout == "[0-1,3] same\n[2] same\n[2] more\n"


def test_stderr_is_a_stream_of_its_own(notebook: KernelNotebook) -> None:
    cell = notebook.run("%%mesh\nimport sys\nprint('out')\nprint('err', file=sys.stderr)")
    assert (cell.stdout, cell.stderr) == ("[0-3] out\n", "[0-3] err\n")


def test_the_level_of_logging_is_pythons(notebook: KernelNotebook) -> None:
    own = notebook.evaluate("__import__('logging').root.level")
    assert notebook.run("%%mesh\nimport logging\nlogging.root.level").result == f"[0-3] {own}"


def test_warnings_and_logging_reach_stderr(notebook: KernelNotebook) -> None:
    cell = notebook.run(
        "%%mesh 0\nimport logging, warnings\nwarnings.warn('careful')\nlogging.getLogger('mine').warning('logged')"
    )
    assert "UserWarning: careful" in cell.stderr
    assert "logged" in cell.stderr


@pytest.mark.parametrize(
    ("source", "stdout", "stderr"),
    [
        ("os.system('echo from a child; echo complaint >&2')", "[0-3] from a child\n", "[0-3] complaint\n"),
        ("os.write(1, b'raw\\n'); os.write(2, b'raw too\\n')", "[0-3] raw\n", "[0-3] raw too\n"),
        ("os.write(1, 'é'.encode()[:1]); os.write(1, 'é\\n'.encode()[1:])", "[0-3] é\n", ""),
        ("import ctypes; libc = ctypes.CDLL(None); libc.puts(b'from C'); libc.fflush(None)", "[0-3] from C\n", ""),
        ("sys.stdout.buffer.write('übung\\n'.encode())", "[0-3] übung\n", ""),
        ("subprocess.run(['echo', 'inherited'])", "[0-3] inherited\n", ""),
    ],
)
def test_what_goes_past_python_is_captured(notebook: KernelNotebook, source: str, stdout: str, stderr: str) -> None:
    cell = notebook.run(f"%%mesh\nimport os, subprocess, sys\n{source};")
    assert (cell.stdout, cell.stderr) == (stdout, stderr)


def test_order_is_kept_within_a_rank(notebook: KernelNotebook) -> None:
    cell = notebook.run("%%mesh 0\nfor i in range(500): print(i, end=' ' if i % 7 else '\\n')")
    assert cell.stdout.replace("[0] ", "").split() == [str(i) for i in range(500)]


def test_text_of_python_c_and_children_keeps_its_order(notebook: KernelNotebook) -> None:
    source = "import ctypes, os\nfor n in range(2): print('python'); os.system('echo child'); "
    cell = notebook.run(f"%%mesh 0\n{source}print(); ctypes.CDLL(None).puts(b'c')")
    assert cell.stdout == "[0] python\n[0] child\n[0]\n[0] c\n" * 2


def test_what_is_printed_before_an_interrupted_repr_is_shown(notebook: KernelNotebook) -> None:
    shy = "class Shy:\n    def __repr__(self):\n        print('half', end='')\n        raise KeyboardInterrupt"
    cell = notebook.run_failing(f"%%mesh 0\n{shy}\nShy()")
    assert (cell.stdout, cell.error["ename"]) == ("[0] half\n", "KeyboardInterrupt")


def test_progress_by_carriage_returns_shows_the_last_state(notebook: KernelNotebook) -> None:
    cell = notebook.run("%%mesh 0\nfor i in range(101): print(f'\\r{i}%', end='')\nprint()")
    assert cell.stdout == "[0] 100%\n"


def test_bars_of_all_ranks_are_one_line(notebook: KernelNotebook) -> None:
    cell = notebook.run(
        "%%mesh -o bars\nimport os\nfrom tqdm.notebook import trange\n"
        "for epoch in trange(2, desc='epochs'):\n"
        "    for step in trange(3, desc='steps', leave=False): os.write(1, f'\\r{step} of C++'.encode())"
    )
    text = "".join(output.get("text") or output.data["text/plain"] for output in cell.outputs)
    assert re.search(
        r"^\[0-3\] epochs: 100%\|█+\| 2/2 \[00:0\d<00:00, [^]]*it/s\]( · r\d slowest)?$", text, re.MULTILINE
    )
    assert re.search(r"^\[0-3\] 2 of C\+\+$", text, re.MULTILINE)
    assert notebook.evaluate("[bars[rank].stderr.count('\\n') for rank in range(4)]") == [1] * 4


def test_a_widget_of_a_rank_is_its_text_and_what_to_do_instead(notebook: KernelNotebook) -> None:
    cell = notebook.run("%%mesh\nimport ipywidgets\ndisplay(ipywidgets.IntSlider(1))\nipywidgets.IntSlider(2)")
    (shown,) = cell.displays
    assert shown.keys() == {"text/plain"}
    for text, value in ((shown["text/plain"], 1), (cell.result, 2)):
        assert f"IntSlider(value={value})" in text
        assert "without %%mesh" in text


# --- longer cells ---


def test_a_longer_cell_has_one_area_that_ends_static(notebook: KernelNotebook, signs: Signs) -> None:
    notebook.run(f"%%mesh\n{signs.definition}\nimport threading, time\ngo = threading.Event()")
    cell = notebook.start(
        "%%mesh\nend = time.monotonic() + 2.4\nprint('begin')\n"
        "while time.monotonic() < end: print('tick', rank); go.wait(0.3)\nprint('end')\nrank"
    )
    notebook.wait(cell)
    (live,) = cell.displays
    assert live["text/plain"].startswith("4 ranks · 4 running · 00:02\n")
    assert 1 <= len(cell.updates) <= 12, "at most four updates a second"
    displays = [m["content"]["transient"] for m in cell.messages if m["msg_type"].endswith("display_data")]
    assert len({each["display_id"] for each in displays}) == 1
    area, value = cell.outputs
    assert area.data["text/plain"].startswith("4 ranks · 4 done · 00:02\n")
    first, *ticks, last, footer = area.data["text/plain"].splitlines()[1:]
    assert re.fullmatch(r"wall .* s( · slowest r\d \+.* s over the median)? · peak mem r\d .*B", footer)
    assert (first, last) == ("[0-3] begin", "[0-3] end")
    assert ticks
    assert all(re.fullmatch(r"\[[0-3,-]+\] tick \d( … \d)?", tick) for tick in ticks), ticks
    assert "4 ranks · 4 done · 00:02" in area.data["text/html"]
    assert value.output_type == "execute_result"
    assert not cell.contents("stream")


def test_a_cell_that_fails_late_keeps_its_area(notebook: KernelNotebook) -> None:
    cell = notebook.run_failing(
        "%%mesh\nimport time\nprint('before')\nend = time.monotonic() + 2.3\n"
        "while time.monotonic() < end: sum(range(10_000))\nassert rank != 1, 'one'"
    )
    area, error = cell.outputs
    header, line, _ = area.data["text/plain"].splitlines()
    assert header.startswith("4 ranks · 3 done · 1 failed · 00:0")
    assert line == "[0-3] before"
    assert error.ename == "AssertionError"


# --- every chunk to the cell that caused it ---


def test_a_thread_prints_into_the_cell_that_started_it(notebook: KernelNotebook, signs: Signs) -> None:
    notebook.run(f"%%mesh\nimport threading\n{signs.definition}\ngo, go_on = threading.Event(), threading.Event()")
    first = notebook.run(
        "%%mesh\ndef work():\n    go.wait(); print('during B'); tell('printed'); go_on.wait(); print('after B')\n"
        "thread = threading.Thread(target=work); thread.start()\nprint('A')"
    )
    second = notebook.start("%%mesh\nprint('B begins'); go.set()\nbarrier = threading.Event(); barrier.wait(1)")
    signs.wait_for("printed", 4)
    notebook.wait(second)
    third = notebook.run("%%mesh\ngo_on.set(); thread.join()\nprint('C')")
    # Late text comes when it comes: what ranks print alike may be in more than one line.
    notebook.wait_until(lambda: _ranks_of("after B", first.stdout) == {0, 1, 2, 3})
    assert first.stdout.startswith("[0-3] A\n")
    assert _ranks_of("during B", first.stdout) == {0, 1, 2, 3}
    assert second.stdout == "[0-3] B begins\n"
    assert third.stdout == "[0-3] C\n"


def test_a_task_prints_into_the_cell_that_started_it(notebook: KernelNotebook) -> None:
    notebook.run("%%mesh\nimport asyncio\nready = asyncio.Event()")
    first = notebook.run(
        "%%mesh\nasync def work():\n    await ready.wait(); print('from A')\ntask = asyncio.ensure_future(work())"
    )
    second = notebook.run("%%mesh\nready.set(); await task; print('B')")
    notebook.wait_until(lambda: bool(first.stdout))
    assert (first.stdout, second.stdout) == ("[0-3] from A\n", "[0-3] B\n")


def test_a_task_goes_on_once_its_cell_has_ended(notebook: KernelNotebook) -> None:
    first = notebook.run(
        "%%mesh 0\nimport asyncio\nasync def work():\n    for step in range(3):\n        await asyncio.sleep(0.01)\n"
        "    print('late'); await asyncio.sleep(0.01); raise ValueError('of the task')\n"
        "task = asyncio.create_task(work()); del task"
    )
    # No other cell runs meanwhile.
    notebook.wait_until(lambda: "ValueError: of the task" in first.stderr and first.stdout == "[0] late\n")
    assert notebook.run("%%mesh 0\nrank").result == "[0] 0"


def test_late_output_comes_also_when_the_kernel_runs_a_local_cell(notebook: KernelNotebook, signs: Signs) -> None:
    notebook.run(f"%%mesh\nimport threading\n{signs.definition}\ngo = threading.Event()")
    first = notebook.run(
        "%%mesh\nthreading.Thread(target=lambda: (go.wait(), print('late'), tell('printed'))).start()\nprint('A')"
    )
    notebook.run("%%mesh\ngo.set()")
    signs.wait_for("printed", 4)
    local = notebook.run("print('local')")
    notebook.wait_until(lambda: "late" in first.stdout)
    assert (first.stdout, local.stdout) == ("[0-3] A\n[0-3] late\n", "local\n")


def test_actors_print_into_the_ordinary_cell_that_called_them(notebook: KernelNotebook) -> None:
    notebook.run(
        "from meshbook import Actor, endpoint\n"
        "class Talker(Actor):\n"
        "    @endpoint\n"
        "    def say(self, text, end='\\n'):\n"
        "        print(text, end=end)\n"
        "        return text\n"
        "    @endpoint\n"
        "    def fail(self, text):\n"
        "        os.system(f'echo {text}')\n"
        "        raise ValueError(text)\n"
        "import os\n"
        "talkers = mesh.spawn('talkers', Talker)"
    )
    # All of it comes before the reply, after which batch runs read no more.
    for number in range(3):
        first = notebook.run(f"talkers.say.call('first').get(); {number};")
        assert _ranks_in(first.stdout) == {0, 1, 2, 3}
        assert set(re.findall("[a-z]+$", first.stdout, re.MULTILINE)) == {"first"}
        second = notebook.run("await talkers.slice(gpus=2).say.call_one('second');")
        assert second.stdout == "[mesh 2] second\n"
        unfinished = notebook.run("talkers.slice(gpus=1).say.call_one('no end', end='').get();")
        assert unfinished.stdout == "[mesh 1] no end\n"
        failing = notebook.run_failing("talkers.slice(gpus=3).fail.call_one('failed').get()")
        assert failing.stdout == "[mesh 3] failed\n"


def test_what_actors_log_is_shown_like_what_they_print_until_that_is_turned_off(notebook: KernelNotebook) -> None:
    notebook.run(
        "from meshbook import Actor, endpoint\n"
        "class Logger(Actor):\n"
        "    @endpoint\n"
        "    def log(self, text): self.logger.info(text)\n"
        "loggers = mesh.slice(gpus=2).spawn('loggers', Logger)"
    )
    heard = notebook.run("loggers.log.call_one('heard').get()")
    notebook.wait_until(lambda: "heard" in heard.stderr)
    assert re.fullmatch(r"\[mesh 2\] INFO:__main__:\[actor=<.*>\] heard\n", heard.stderr)
    quiet = notebook.run("await mesh.logging_option()\nloggers.log.call_one('quiet').get()")
    # With the options of before again, what was printed under those has arrived.
    notebook.run("await mesh.logging_option(stream_to_client=True)")
    again = notebook.run("loggers.log.call_one('again').get()")
    notebook.wait_until(lambda: "again" in again.stderr)
    assert quiet.stderr == ""


def test_a_notebook_that_does_not_want_it_shows_cells_alone(open_notebook: Any) -> None:
    notebook = open_notebook(MESHBOOK_ENABLE_LOG_FORWARDING="0")
    notebook.run(
        "%mesh up --gpus 1\n"
        "from meshbook import Actor, endpoint\n"
        "class Talker(Actor):\n"
        "    @endpoint\n"
        "    def say(self): print('said')\n"
        "talkers = mesh.spawn('talkers', Talker)"
    )
    talked = notebook.run("talkers.say.call_one().get()")
    assert notebook.run("%%mesh\nprint('shown')").stdout == "[0] shown\n"
    assert notebook.run("%mesh log 0").stdout == "said\nshown\n"
    assert talked.stdout == ""


def _ranks_in(text: str) -> set[int]:
    """The ranks in labels such as `[mesh 0-1,3]`. What ranks print alike may come in more than one line."""
    runs = [run for label in re.findall(r"^\[(?:mesh )?(.*?)\]", text, re.MULTILINE) for run in label.split(",")]
    return {rank for run in runs for rank in range(int(run.split("-")[0]), int(run.split("-")[-1]) + 1)}


def _ranks_of(words: str, text: str) -> set[int]:
    """The ranks that have said this."""
    return _ranks_in("\n".join(line for line in text.splitlines() if line.endswith(words)))


def test_bars_of_actors_are_one_area_of_the_ordinary_cell(notebook: KernelNotebook) -> None:
    cell = notebook.run(
        "from meshbook import Actor, endpoint\n"
        "class Trainer(Actor):\n"
        "    @endpoint\n"
        "    def train(self):\n"
        "        from tqdm import trange\n"
        "        for epoch in trange(2, desc='epochs'):\n"
        "            for step in trange(3, desc='steps', leave=False): pass\n"
        "mesh.spawn('trainers', Trainer).train.call().get();"
    )
    done = r"mesh:\n\[0-3\] epochs: 100%\|█+\| 2/2 \[[^]]*\]( · r\d slowest)?\n"
    notebook.wait_until(lambda: any(re.fullmatch(done, each["text/plain"]) for each in [*cell.displays, *cell.updates]))
    assert cell.stdout + cell.stderr == ""
    assert len(cell.displays) == 1


# --- rich displays ---


def test_a_display_that_all_ranks_share_appears_once(notebook: KernelNotebook) -> None:
    cell = notebook.run("%%mesh\nfrom IPython.display import HTML, display\ndisplay(HTML('<b>bold</b>'))")
    (bundle,) = cell.displays
    assert bundle["text/html"].endswith("<b>bold</b>")
    assert "[0-3]" in bundle["text/html"]


def test_displays_that_differ_are_side_by_side(notebook: KernelNotebook) -> None:
    cell = notebook.run(
        "%%mesh -o kept\nfrom IPython.display import HTML, display\ndisplay(HTML(f'<b>{rank // 2}</b>'))"
    )
    (bundle,) = cell.displays
    assert re.findall(r"\[[-0-9]+\]|<b>\d</b>", bundle["text/html"]) == ["[0-1]", "<b>0</b>", "[2-3]", "<b>1</b>"]
    assert [line.split()[0] for line in bundle["text/plain"].splitlines()] == ["[0-1]", "[2-3]"]
    again = notebook.run("display(kept[2].displays[0])")
    assert [shown["text/html"] for shown in again.displays] == ["<b>1</b>"]


def test_figures_are_drawn_as_in_any_notebook(notebook: KernelNotebook) -> None:
    notebook.run("%%mesh\nimport matplotlib.pyplot as plt")
    cell = notebook.run(
        "%%mesh\nfig, ax = plt.subplots(figsize=(1, 1))\nax.plot([0, rank == 3])\nprint('drawn')\nplt.show()"
    )
    *_, bundle = cell.displays
    assert bundle["text/html"].count("<img") == 2, "one for ranks 0 to 2, one for rank 3"
    assert [line.split()[0] for line in bundle["text/plain"].splitlines()] == ["[0-2]", "[3]"]


def test_a_rank_replaces_and_takes_back_what_it_has_shown(notebook: KernelNotebook) -> None:
    first = notebook.run(
        "%%mesh\nfrom IPython.display import clear_output, display, update_display\n"
        "print('gone'); display('gone')\nclear_output()\n"
        "for step in range(100):\n    clear_output(wait=True); print('step', step)\n"
        "handle = display('begun', display_id='mine')"
    )
    assert first.stdout == "[0-3] step 99\n"
    assert first.displays == [{"text/plain": "[0-3] 'begun'"}]
    second = notebook.run("%%mesh 0:2\nupdate_display('done', display_id='mine')")
    notebook.wait_until(lambda: bool(first.updates))
    assert first.updates == [{"text/plain": "[0-1] 'done'\n[2-3] 'begun'"}]
    assert second.outputs == []


def test_a_figure_shows_at_the_end_of_its_cell_without_show(notebook: KernelNotebook) -> None:
    cell = notebook.run("%%mesh 0\nimport matplotlib.pyplot as plt\nplt.figure(figsize=(1, 1)); plt.plot([1, 2]);")
    assert sum("image/png" in bundle for bundle in cell.displays) == 1


def test_a_rich_value_is_shown_rich(notebook: KernelNotebook) -> None:
    cell = notebook.run("%%mesh\nfrom IPython.display import HTML\nHTML('<i>it</i>')")
    (result,) = cell.contents("execute_result")
    assert "<i>it</i>" in result["data"]["text/html"]
    assert result["data"]["text/html"].count("<i>it</i>") == 1


# --- timing ---


def test_a_cell_is_timed_from_above_and_from_below(notebook: KernelNotebook) -> None:
    above = notebook.run("%%time\n%%mesh\n6 * 7")
    assert re.fullmatch(r"CPU times: .* on 4 ranks, most .* on r\d\nWall time: .*s\n", above.stdout)
    assert above.result == "[0-3] 42"
    below = notebook.run("%%mesh 0\n%%time\n6 * 7")
    assert re.fullmatch(r"\[0\] CPU times: .*\n\[0\] Wall time: .*\n", below.stdout)
    assert below.result == "[0] 42"


def test_a_cell_is_timed_again_and_again(notebook: KernelNotebook) -> None:
    notebook.run("%%mesh\nruns = 0")
    cell = notebook.run("%%timeit -n 2 -r 3\n%%mesh\nruns += 1; print('quiet')\nruns")
    assert re.fullmatch(r".* per loop \(mean ± std\. dev\. of 3 runs, 2 loops each\)\n", cell.stdout)
    assert cell.result is None
    assert notebook.run("%%mesh\nruns").result == "[0-3] 6"


def test_other_cell_magics_work_on_ranks(notebook: KernelNotebook) -> None:
    cell = notebook.run("%%mesh 0\n%%capture kept\nprint('kept')")
    assert cell.stdout == ""
    assert notebook.run("%%mesh 0\nkept.stdout").result == "[0] 'kept\\n'"


def test_a_mesh_cell_runs_within_other_cell_magics(notebook: KernelNotebook) -> None:
    source = "from IPython.display import HTML, display\nprint('kept', rank)\ndisplay(HTML('<b>shown</b>'))\nrank"
    cell = notebook.run(f"%%capture kept\n%%mesh 0:2 -o ran --pull rank\n{source}")
    assert (cell.outputs, cell.result) == ([], None)
    assert notebook.evaluate("kept.stdout, kept.stderr") == ("[0] kept 0\n[1] kept 1\n", "")
    assert notebook.evaluate("any('<b>shown</b>' in output.data.get('text/html', '') for output in kept.outputs)")
    assert notebook.evaluate("ran[1].value, rank") == (1, [0, 1])
    profiled = notebook.run("%%prun -q\n%%mesh 0\nprint('from a rank')")
    assert profiled.stdout.startswith("[0] from a rank\n")
    cell = notebook.run(f"%%capture --no-display kept\n%%mesh 0\n{source}")
    assert (cell.stdout, notebook.evaluate("kept.stdout")) == ("", "[0] kept 0\n")
    assert any("<b>shown</b>" in display.get("text/html", "") for display in cell.displays)
    cell = notebook.run(
        "import contextlib, io, time\n"
        "with contextlib.redirect_stdout(io.StringIO()) as kept:\n"
        "    %on 0 import time; time.sleep(2.1); print('kept', rank)"
    )
    assert cell.stdout == ""
    assert "[0] kept 0\n" in notebook.evaluate("kept.getvalue()")
    failed = notebook.run("%%capture\n#mesh: 0\n1 / 0")  # IPython lets a captured cell fail in silence
    assert "[rank 0] ZeroDivisionError" in failed.traceback
    refused = notebook.run("%%capture\n%%mesh --local\n1")
    assert "--local cannot be used in" in refused.traceback


# --- floods ---


def test_a_flood_of_messages_ends_and_says_what_is_not_shown(notebook: KernelNotebook) -> None:
    cell = notebook.run("%%mesh 0 -o flood\nfor n in range(20_000): print(n)\nfor n in range(1040): display(n)")
    assert len(cell.messages) < 200
    shown = "".join(output.get("text") or output.data["text/plain"] for output in cell.outputs)
    assert "lines not shown (%mesh log 0; with -o NAME, NAME[0].stdout has all" in shown
    assert "… 1,000 more displays of [0] are not shown (with -o NAME, NAME[0].displays has them)" in shown
    assert notebook.evaluate("flood[0].stdout.count('\\n'), len(flood[0].displays)") == (20_000, 1040)


def test_a_flood_in_a_quick_cell_is_bounded_too(notebook: KernelNotebook) -> None:
    cell = notebook.run("%%mesh 0 -o flood\nfor number in range(30_000): print('a line of some length', number)")
    assert len(cell.as_notebook()) < 600_000
    assert notebook.evaluate("flood[0].stdout.count('\\n')") == 30_000


def test_a_line_without_end_is_bounded(notebook: KernelNotebook) -> None:
    cell = notebook.run("%%mesh 0 -o flood\nprint('x' * 3_000_000)")
    assert len(cell.as_notebook()) < 600_000
    assert notebook.evaluate("len(flood[0].stdout)") == 3_000_001


# --- curves ---

HISTORY = "[(row['metric'], row['rank'], row['step'], row['value']) for row in mesh.history({}).to_arrow().to_pylist()]"


def test_what_cells_log_is_the_history_of_the_mesh(notebook: KernelNotebook) -> None:
    pytest.importorskip("pyarrow")
    notebook.run("import meshbook\nmeshbook.log(step=7, local=0.5)")
    notebook.run("%%mesh 1-2\nimport meshbook\nfor step in range(2):\n    meshbook.log(step=step, loss=rank + step)")
    assert notebook.evaluate(HISTORY.format("'local'")) == [("local", -1, 7.0, 0.5)]
    found = notebook.evaluate(HISTORY.format("'loss'"))
    assert sorted(found, key=lambda row: row[1:]) == [
        *[("loss", 1, step, 1.0 + step) for step in (0.0, 1.0)],
        *[("loss", 2, step, 2.0 + step) for step in (0.0, 1.0)],
    ]
    rest = notebook.evaluate("[row['step'] for row in mesh.slice(gpus=2).history('loss').to_arrow().to_pylist()]")
    assert rest == [0.0, 1.0]
    runs = notebook.evaluate("{row['run'] for row in mesh.history('loss').to_arrow().to_pylist()}")
    assert [run.split()[0] for run in runs] == ["cell"]


def test_the_error_of_a_value_that_is_no_number_has_its_name(notebook: KernelNotebook) -> None:
    cell = notebook.run_failing("%%mesh 0\nimport meshbook\nmeshbook.log(loss='low')")
    assert cell.error["ename"] == "TypeError"
    assert "loss is a str: 'low'" in cell.traceback


def test_numbers_in_the_postfix_of_a_bar_are_points(notebook: KernelNotebook) -> None:
    pytest.importorskip("pyarrow")
    pytest.importorskip("tqdm")
    notebook.run(
        "%%mesh 0\nfrom tqdm.auto import tqdm\n"
        "with tqdm(range(3), desc='train', mininterval=0) as bar:\n"
        "    for step in bar: bar.set_postfix(accuracy=step / 4)"
    )
    found = notebook.evaluate(HISTORY.format("'train/accuracy'"))
    assert found[-1] == ("train/accuracy", 0, 3.0, 0.5)
