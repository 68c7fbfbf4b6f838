"""`%mesh up --hosts` in a kernel: meshes on several hosts, which are agents of their own on this machine."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.support import PATIENCE

if TYPE_CHECKING:
    from tests.kernel.conftest import KernelNotebook, Signs

pytestmark = [pytest.mark.kernel, pytest.mark.without_torch]
AGENT = "meshbook.runtime.hosts.agent"


def agents(notebook: KernelNotebook) -> list[psutil.Process]:
    """The agents of hosts beyond the kernel's own."""
    kernel = psutil.Process(int(notebook.run("import os; os.getpid()").result or 0))
    return [each for each in kernel.children() if each.cmdline()[2:4] == ["-m", AGENT]]


def test_meshes_share_hosts_which_end_with_the_last(bare_notebook: KernelNotebook) -> None:
    """Two meshes on three hosts at once."""
    up = bare_notebook.run("%mesh up --hosts local:3 --gpus 1")
    first, last = up.displays[0]["text/plain"], up.updates[-1]["text/plain"]
    assert first == "waiting for hosts"
    assert any("starting hosts" in each["text/plain"] for each in up.updates)
    assert last.startswith("mesh: 3 ranks (hosts=3, gpus=1), on CPU (no GPU there), on local:3; ranks 0-2 up in ")
    assert bare_notebook.run("%mesh up --hosts local:3 --gpus 1").stdout.endswith("; already up\n")
    started = agents(bare_notebook)
    assert len(started) == 3

    bare_notebook.run("%mesh up --hosts mesh --name judge --shape a=2")
    assert len(agents(bare_notebook)) == 3, "no new ones"
    here = bare_notebook.run("%%mesh judge\nimport os, psutil\npsutil.Process().ppid(), dict(point)").result or ""
    assert "judge[3]" in here
    assert "{'hosts': 1, 'a': 1}" in here
    status = bare_notebook.run("%mesh status judge").stdout.splitlines()
    assert status[1] == "  hosts: local-0 (ranks 0-1), local-1 (ranks 2-3), local-2 (ranks 4-5)"

    shown = str(bare_notebook.run("%mesh dash judge").displays)
    assert "local-0" in shown
    assert "local-1" in shown
    assert "local-2" in shown
    # Beside the dashboard of a large mesh, which is simulated.
    large = str(
        bare_notebook.run("from meshbook.testing import fake_mesh\nfake_mesh(512, per_host=8).dashboard()").displays
    )
    assert "node000" in large
    assert "512" in large
    assert bare_notebook.run("%%mesh judge\nrank").result.count("\n") == 5

    bare_notebook.run("%mesh down mesh")
    assert len(agents(bare_notebook)) == 3, "the other mesh needs them"
    bare_notebook.run("%mesh down judge")
    assert psutil.wait_procs(started, timeout=PATIENCE)[1] == []


def test_hosts_leave_and_join_a_mesh_that_runs(bare_notebook: KernelNotebook, signs: Signs) -> None:
    """A host leaves once the job there has ended; the other ranks keep their variables, and a host joins them."""
    bare_notebook.run("%mesh up --hosts local:2 --gpus 1")
    first, second = agents(bare_notebook)
    bare_notebook.run("%%mesh\nx = rank + 1")
    assert "no host is named 'gpu9'" in bare_notebook.run_failing("%mesh drain gpu9").error["evalue"]
    gate = signs.path.with_name("gate")
    bare_notebook.run(f"%%mesh 0 -a\nimport os, time\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.005)")
    drained = bare_notebook.start("%mesh drain local-0")
    bare_notebook.wait_until(lambda: "waiting for job" in drained.stdout)
    assert first.is_running()
    gate.touch()
    bare_notebook.wait(drained)
    summary = drained.stdout.splitlines()[-1]
    assert summary.startswith(
        "mesh: 1 rank (hosts=1, gpus=1), on CPU (no GPU there), on local:2 without local-0; drained"
    )
    assert psutil.wait_procs([first], timeout=PATIENCE)[1] == []
    assert second.is_running()
    assert bare_notebook.run("%%mesh\nx").result == "[0] 2"

    joined = bare_notebook.run("%mesh join local:1").updates[-1]["text/plain"]
    assert "mesh: 2 ranks (hosts=2, gpus=1)" in joined
    assert "on local:2 and local:1; joined in" in joined
    assert bare_notebook.run("%%mesh\n'x' in globals(), rank").result
    started = agents(bare_notebook)
    assert len(started) == 2
    bare_notebook.run("%mesh down")
    assert psutil.wait_procs(started, timeout=PATIENCE)[1] == []


def test_meshes_on_hosts_are_detached_with_a_job_and_attached_to_again(
    bare_notebook: KernelNotebook, signs: Signs
) -> None:
    bare_notebook.run("%mesh up --hosts local:2 --gpus 1\n%mesh up --hosts mesh --gpus 1 --name judge")
    started, gate = agents(bare_notebook), signs.path.with_name("gate")
    wait = f"import os, time\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.005)\nprint('released')\nrank + 1"
    bare_notebook.run(f"%%mesh mesh -a -o job\n{wait}")
    assert "is detached: mesh (2 ranks), judge (2 ranks); 1 job continues" in bare_notebook.run("%mesh detach").stdout
    gate.touch()
    attached = bare_notebook.run("%mesh attach").stdout
    assert attached.count("  hosts: local-0 (rank 0), local-1 (rank 1)") == 2
    assert bare_notebook.run("(await job).values").result == "[1, 2]"
    bare_notebook.run("%mesh down mesh")
    assert all(agent.is_running() for agent in started), "the other mesh needs them"
    assert bare_notebook.run("%%mesh judge\nrank").result == "[0] 0\n[1] 1"
    bare_notebook.run("%mesh down judge")
    assert psutil.wait_procs(started, timeout=PATIENCE)[1] == []


def test_a_host_that_is_lost_is_named_and_the_rest_ends_with_the_mesh(bare_notebook: KernelNotebook) -> None:
    bare_notebook.run("%mesh up --hosts local:2 --gpus 1")
    started = agents(bare_notebook)
    try:
        os.kill(started[1].pid, signal.SIGKILL)
        failed = bare_notebook.run_failing("%%mesh\nimport time\ntime.sleep(600)")
        assert "rank 1" in failed.error["evalue"]
        lines = bare_notebook.run("%mesh status").stdout.splitlines()
        assert lines[1:3] == ["  hosts: local-0 (rank 0)", "  lost hosts: local-1 (rank 1)"]
    finally:
        bare_notebook.run("%mesh down")
    assert psutil.wait_procs(started, timeout=PATIENCE)[1] == []


def test_hosts_that_do_not_come_up_leave_nothing(bare_notebook: KernelNotebook) -> None:
    """The launcher's own output is shown, with the name of the host."""
    bare_notebook.run(
        "from pathlib import Path\n"
        "_ = Path('cluster.toml').write_text('''[lab]\nlauncher = \"command\"\n"
        'commands = {good = [], bad = ["sh", "-c", "echo the reason >&2; exit 3", "sh"]}\n\'\'\')'
    )
    failed = bare_notebook.run_failing("%mesh up --hosts cluster.toml")
    assert failed.error["ename"] == "MeshError"
    assert "host bad" in failed.error["evalue"]
    assert "the reason" in failed.error["evalue"]
    failed = bare_notebook.run_failing("%mesh up --hosts local:1 --shape hosts=2")
    assert "'hosts' already" in failed.error["evalue"]
    assert bare_notebook.run("%mesh").stdout.startswith("no mesh is up")
    assert psutil.wait_procs(agents(bare_notebook), timeout=PATIENCE)[1] == []
    # Hosts of the user stay when a mesh on them ends.
    bare_notebook.run("import meshbook\nmine = meshbook.hosts.local(1)\n%mesh up --hosts mine --gpus 1\n%mesh down")
    [agent] = agents(bare_notebook)
    bare_notebook.run("mine.shutdown().get()")
    assert psutil.wait_procs([agent], timeout=PATIENCE)[1] == []


def test_an_interrupted_verb_leaves_no_hosts_behind(bare_notebook: KernelNotebook, signs: Signs) -> None:
    """In a join in which a host does not come up, and in a `%mesh down` that waits for a stopped rank."""
    waits = signs.path.with_name("waits")
    wait = f"slow = ['sh', '-c', 'touch {waits}; exec sleep 600', 'sh']"
    for name, commands in (("one", "first = ['env']"), ("two", f"second = ['env'], {wait}")):
        text = f"[lab]\nlauncher = 'command'\ncommands = {{{commands}}}\n"
        bare_notebook.run(f"from pathlib import Path\n_ = Path('{name}.toml').write_text({text!r})")
    bare_notebook.run("%mesh up --hosts one.toml --gpus 2")
    [first] = agents(bare_notebook)
    joined = bare_notebook.start("%mesh join two.toml")
    bare_notebook.wait_until(waits.exists)
    bare_notebook.interrupt()
    bare_notebook.wait_failed(joined)
    assert joined.error["ename"] == "KeyboardInterrupt"
    assert "the hosts were ended again" in "\n".join(joined.error["traceback"])
    assert agents(bare_notebook) == [first]
    assert "mesh: 2 ranks (hosts=1, gpus=2)" in bare_notebook.run("%mesh").stdout

    pids = bare_notebook.run("%%mesh\nimport os\nos.getpid()").result
    rank, stopped = (psutil.Process(int(line.split()[1])) for line in (pids or "").splitlines())
    stopped.suspend()
    down = bare_notebook.start("%mesh down")
    bare_notebook.wait_until(lambda: not rank.is_running())
    bare_notebook.interrupt()
    bare_notebook.wait_failed(down)
    assert down.error["ename"] == "KeyboardInterrupt"
    assert "%mesh down mesh waits for its end" in "\n".join(down.error["traceback"])
    assert first.is_running()
    stopped.resume()
    assert psutil.wait_procs([first], timeout=PATIENCE)[1] == []


def test_idle_hosts_are_returned_with_a_line_that_starts_them_again(bare_notebook: KernelNotebook) -> None:
    assert "needs --hosts" in bare_notebook.run_failing("%mesh up --idle 30m").error["evalue"]
    up = bare_notebook.start("%mesh up --hosts local:1 --gpus 1 --idle 2s")
    bare_notebook.wait(up)
    [agent] = agents(bare_notebook)
    bare_notebook.wait_until(lambda: "start again" in up.stdout)
    assert up.stdout.endswith("start again: %mesh up --hosts local:1 --shape gpus=1 --idle 2s\n")
    assert psutil.wait_procs([agent], timeout=PATIENCE)[1] == []
    assert "ended after 00:02 without a cell" in bare_notebook.run_failing("%%mesh 0\n1").error["evalue"]
