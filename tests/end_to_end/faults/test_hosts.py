"""More hosts than one, as agents of their own on this machine: all is as on one host, and one that ends takes no other
with it. What only a network can do to them is in `test_network.py`."""

from __future__ import annotations

import contextlib
import os
import queue
import secrets
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import msgspec
import psutil
import pytest

import meshbook
from meshbook import ActorError, HostMesh, RDMABuffer, TransferError, context, current_rank, this_host
from meshbook.runtime.actor.context import CURRENT, Context
from meshbook.runtime.cells.actor import CellActor
from meshbook.runtime.errors import LaunchError
from meshbook.runtime.hosts.launch import sweep
from meshbook.runtime.hosts.launchers import CommandLauncher
from meshbook.runtime.hosts.session import Session
from meshbook.runtime.mesh.resizing import Resize
from meshbook.runtime.transport.gateway_connections import MOST_UNKNOWN, UNREAD_EVENTS
from meshbook.runtime.transport.home import describe, host_of
from tests.support import (
    PATIENCE,
    Probe,
    StatementInterrupts,
    await_death,
    died,
    environment,
    pids,
    still_running,
    wait_forever,
)

pytestmark = pytest.mark.process


def ask_all(others: Any) -> list[int]:
    return list(others.run.call(os.getpid).get(PATIENCE).values())


def agent_of(host: str, session: Session) -> psutil.Process:
    [found] = [each for each in session.remote if each.name == host]
    return psutil.Process(found.process.pid)


@pytest.fixture(scope="module", autouse=True)
def _light() -> Iterator[None]:
    """Fork servers import nothing that is not asked for: there are many here. What killed agents left is swept, as
    the next start of one would do it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MESHBOOK_PRELOAD", "")
        yield
    sweep(Path(os.environ["MESHBOOK_RUNTIME_DIR"]))


@pytest.fixture(scope="module")
def hosts(session: Session) -> Iterator[HostMesh]:
    """Two more hosts, whose fork servers are warm."""
    hosts = meshbook.hosts.command({"h1": [], "h2": []})
    warm = hosts.spawn_procs()
    warm.initialized.get(PATIENCE)
    warm.stop().get(PATIENCE)
    yield hosts
    hosts.shutdown().get(PATIENCE)


@pytest.fixture
def spawn(hosts: HostMesh) -> Iterator[Callable[..., Any]]:
    """A probe on each of so many processes on both hosts."""
    spawned = []

    def make(gpus: int = 1, **keywords: Any) -> Any:
        procs = hosts.spawn_procs(per_host={"gpus": gpus}, **keywords)
        spawned.append(procs)
        return procs, procs.spawn("probe", Probe)

    yield make
    for procs in spawned:
        procs.stop().get(PATIENCE)


# -- as on one host ------------------------------------------------------------------------


def test_a_mesh_spans_hosts(hosts: HostMesh, spawn):
    procs, probe = spawn(2)
    assert dict(probe.extent) == {"hosts": 2, "gpus": 2}
    assert procs.host_ranks == (0, 0, 1, 1)

    def who() -> tuple[Any, ...]:
        names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK")
        return (dict(current_rank()), *(os.environ[name] for name in names))

    found = list(probe.run.call(who).get(PATIENCE).values())
    assert found == [
        ({"hosts": rank // 2, "gpus": rank % 2}, str(rank), str(rank % 2), "4", "2", str(rank // 2))
        for rank in range(4)
    ]
    parents = {psutil.Process(pid).parent() for pid in pids(probe)}
    assert len(parents) == 2  # a fork server on each host


def test_actors_call_each_other_wherever_they_are(spawn, spawn_procs):
    _, probe = spawn()
    home = spawn_procs().spawn("home", Probe)
    one, two = probe.slice(hosts=0), probe.slice(hosts=1)
    for reply_handler, asked in [(one, two), (two, one), (one, home), (home, probe)]:
        assert reply_handler.run.call_one(ask_all, asked).get(PATIENCE) == pids(asked)


def test_actors_know_their_whole_mesh(spawn):
    procs, probe = spawn()

    def hosts_of_all() -> tuple[dict[str, int], tuple[str, ...]]:
        mesh = context().actor_instance.proc_mesh
        return dict(mesh.extent), tuple(node.url for node in mesh.nodes)

    for extent, urls in probe.run.call(hosts_of_all).get(PATIENCE).values():
        assert extent == {"hosts": 2, "gpus": 1}
        assert urls == tuple(node.url for node in procs.nodes)


def test_an_actor_spawns_on_its_own_host_and_on_another(hosts: HostMesh, spawn):
    _, probe = spawn()

    def spawn_on(where: HostMesh | None) -> int:
        procs = (where or this_host()).spawn_procs()
        return psutil.Process(pids(procs.spawn("inner", Probe))[0]).ppid()

    servers = [psutil.Process(pid).ppid() for pid in pids(probe)]
    assert list(probe.run.call(spawn_on, None).get(PATIENCE).values()) == servers
    assert probe.slice(hosts=0).run.call_one(spawn_on, hosts.slice(hosts=1)).get(PATIENCE) == servers[1]


def test_a_broadcast_reads_each_host_once(spawn):
    procs, probe = spawn(2)
    data = memoryview(bytearray(range(256)) * 40_000)
    buffer = RDMABuffer(data)
    assert buffer.broadcast_to(procs).get(PATIENCE).sizes == {"hosts": 2, "gpus": 2}
    assert list(probe.run.call(lambda there: there.here() == data, buffer).get(PATIENCE).values()) == [True] * 4
    read = [(row.by, row.owner, row.bytes) for row in procs.transfers().get(PATIENCE)]
    assert read == [
        (f"rank {rank}", owner, data.nbytes) for rank, owner in enumerate(("controller", "rank 0", "rank 0", "rank 2"))
    ]
    # A receiver whose predecessor does not continue fetches from the source.
    stopped = pids(probe)[0]
    os.kill(stopped, signal.SIGSTOP)
    try:
        with pytest.raises(TransferError, match=r"3 of 4 ranks; these ranks failed:\n +rank 0"):
            buffer.broadcast_to(procs, timeout=2.5).get(PATIENCE)
    finally:
        os.kill(stopped, signal.SIGCONT)


CONNECTIONS = 4000
# Connects to an address, as often as it may, and says nothing. Ends with its input.
SILENT = f"""
import resource, socket, sys
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
kept = [socket.create_connection((sys.argv[1], int(sys.argv[2]))) for _ in range(min({CONNECTIONS}, hard - 100))]
print(len(kept), flush=True)
sys.stdin.read()
"""


def test_thousands_of_silent_connections(hosts: HostMesh, session: Session, spawn):
    _, probe = spawn()
    living, agent = pids(probe), agent_of("h1", session)
    [address] = [each.address for each in session.remote if each.name == "h1"]
    assert address is not None
    ip, _, port = describe(host_of(address)).rpartition(":")
    before = most = agent.num_fds()
    command = [sys.executable, "-c", SILENT, ip, port]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as strangers:
        assert strangers.stdin is not None
        assert strangers.stdout is not None
        while not select.select([strangers.stdout], [], [], 0)[0]:
            most = max(most, agent.num_fds())
            assert pids(probe) == living
        late = meshbook.hosts.command({"h3": []})  # which connects to h1
        there = late.spawn_procs().spawn("late", Probe)
        assert there.run.call_one(ask_all, probe).get(PATIENCE) == living
        connected = int(strangers.stdout.readline())
        strangers.stdin.close()
    if connected < CONNECTIONS:
        pytest.skip(f"this process may open no more than {connected} connections")
    assert most - before <= MOST_UNKNOWN + UNREAD_EVENTS + 100
    while session.remote._ask(address, "refused").get(PATIENCE) < connected:
        pass
    late.shutdown().get(PATIENCE)


GREETING = b"\xff\0\0\0\0\0\0\0\1\x7f\3\1CURVE" + bytes(15) + b"\0" + bytes(31)  # of ZeroMQ
COMMANDS = (b"\x04\x5a\x05READY", b"\x04\xc8\x05HELLO\1\0", b"\x06\0\0\0\0\0\0\0\xff\x08INITIATE", b"\0\x05hello")


def make_garbage(random: Random) -> bytes:
    """What a client without the keys may send: the greeting and commands of the protocol, whole or not, and noise."""
    parts = [random.choice((GREETING, GREETING[:64], b"GET / HTTP/1.1\r\n\r\n", b""))]
    parts += [random.choice(COMMANDS) + random.randbytes(random.randrange(300)) for _ in range(random.randrange(4))]
    data = bytearray(b"".join(parts))
    for _ in range(random.randrange(4) if data else 0):
        data[random.randrange(len(data))] = random.randrange(256)
    return bytes(data[: random.randrange(len(data) + 1)] if random.random() < 0.2 else data)


def test_clients_without_keys_that_send_garbage(hosts: HostMesh, session: Session, spawn):
    """For a second, or MESHBOOK_FUZZ_SECONDS; MESHBOOK_FUZZ_SEED repeats what a failed run has sent."""
    _, probe = spawn()
    living, agent = pids(probe), agent_of("h1", session)
    [address] = [each.address for each in session.remote if each.name == "h1"]
    assert address is not None
    ip, _, port = describe(host_of(address)).rpartition(":")
    seed = int(os.environ.get("MESHBOOK_FUZZ_SEED", "0")) or secrets.randbits(32)
    print(f"MESHBOOK_FUZZ_SEED={seed}")
    random = Random(seed)
    fds, memory = agent.num_fds(), agent.memory_info().rss
    end, sent = time.monotonic() + float(os.environ.get("MESHBOOK_FUZZ_SECONDS", "1")), 0
    while time.monotonic() < end or sent < 100:
        stranger = socket.create_connection((ip, int(port)), timeout=PATIENCE)
        with stranger, contextlib.suppress(ConnectionError):
            stranger.sendall(make_garbage(random))
            if random.random() < 0.5:
                with contextlib.suppress(OSError):  # it has been hung up on
                    stranger.shutdown(socket.SHUT_WR)
                while stranger.recv(4096):
                    pass
        sent += 1
        if not sent % 100:
            assert pids(probe) == living, "the mesh works meanwhile"
    assert pids(probe) == living
    late = meshbook.hosts.command({"h4": []})  # a host with the keys is let in
    assert late.spawn_procs().spawn("late", Probe).run.call_one(ask_all, probe).get(PATIENCE) == living
    late.shutdown().get(PATIENCE)
    until = time.monotonic() + PATIENCE
    while agent.num_fds() > fds + MOST_UNKNOWN + UNREAD_EVENTS:
        assert time.monotonic() < until
        time.sleep(0.02)
    assert agent.memory_info().rss < memory + (64 << 20)
    print(f"{sent} connections")


def test_what_an_actor_owns_on_another_host_ends_with_it(hosts: HostMesh, spawn):
    _, probe = spawn()

    def spawn_there(where: HostMesh) -> int:
        return pids(where.spawn_procs().spawn("inner", Probe))[0]

    inner = psutil.Process(probe.slice(hosts=0).run.call_one(spawn_there, hosts.slice(hosts=1)).get(PATIENCE))
    psutil.Process(pids(probe)[0]).kill()
    assert psutil.wait_procs([inner], timeout=PATIENCE)[1] == []
    assert len(pids(probe.slice(hosts=1))) == 1


def test_torch_reduces_over_hosts(spawn):
    def reduce() -> list[float]:
        import torch
        import torch.distributed as dist

        dist.init_process_group("gloo")
        tensor = torch.ones(2) * (dist.get_rank() + 1)
        dist.all_reduce(tensor)
        dist.destroy_process_group()
        return list(tensor.tolist())

    procs, probe = spawn()
    assert list(probe.run.call(reduce).get(PATIENCE).values()) == [[3.0, 3.0]] * 2

    def reduce_in_group() -> float:
        import torch
        import torch.distributed as dist

        total = torch.tensor(float(dist.get_rank()))
        dist.all_reduce(total)
        return total.item()

    # Made from here; and by ranks that have their first one on the second host.
    assert procs.init_process_group().get(PATIENCE) is None
    assert list(probe.run.call(reduce_in_group).get(PATIENCE).values()) == [1.0, 1.0]
    assert procs.slice(hosts=1).init_process_group().get(PATIENCE) is None
    assert probe.slice(hosts=1).run.call_one(reduce_in_group).get(PATIENCE) == 0.0


def test_output_comes_from_every_host(spawn, heard):
    _, probe = spawn()
    probe.run.call(lambda: print("from", current_rank().rank)).get(PATIENCE)
    for rank in range(2):
        heard.wait_until(lambda rank=rank: heard.text("stdout", rank) == f"from {rank}\n")


def test_cells_run_on_every_host(spawn, session: Session):
    chunks: queue.SimpleQueue[Any] = queue.SimpleQueue()
    session.output.open("a-cell", chunks.put)
    procs, _ = spawn()
    cells = procs.spawn_on_main("cells", CellActor)
    token = CURRENT.set(Context(session.context.actor_instance, origin="a-cell"))
    outcomes = cells.run.call("print('from a cell')", 1).get(PATIENCE)
    CURRENT.reset(token)
    assert [outcome.error for outcome in outcomes.values()] == [None, None]
    assert {chunks.get(timeout=PATIENCE).rank for _ in range(2)} == {0, 1}
    session.output.close("a-cell")


def test_a_slice_of_hosts_and_a_stop(hosts: HostMesh, spawn):
    procs = hosts.slice(hosts=1).spawn_procs(per_host={"gpus": 2})
    processes = [psutil.Process(pid) for pid in pids(procs.spawn("probe", Probe))]
    procs.stop().get(PATIENCE)
    assert still_running(processes) == []


# -- deaths ----------------------------------------------------------------------------------


def test_a_dead_worker_is_reported_with_its_host_and_healed(spawn, spawn_procs):
    procs, probe = spawn()
    home = spawn_procs().spawn("home", Probe)
    one, two = probe.slice(hosts=0), probe.slice(hosts=1)
    before = pids(probe)
    waiting = one.run.call_one(await_death, two)
    at_home = home.run.call_one(await_death, two)
    own = two.run.call_one(wait_forever)
    os.kill(before[1], signal.SIGKILL)
    report = died(own).report
    assert (report.host, report.signal_name) == ("h2", "SIGKILL")
    for told in (waiting, at_home):
        assert f"{report.node}, pid {before[1]} on h2" in told.get(PATIENCE)
    assert procs.heal().get(PATIENCE) == [1]
    after = pids(probe)
    assert after[0] == before[0]
    assert after[1] != before[1]
    assert one.run.call_one(ask_all, two).get(PATIENCE) == after[1:]
    assert two.run.call_one(ask_all, one).get(PATIENCE) == after[:1]
    assert home.run.call_one(ask_all, probe).get(PATIENCE) == after


# -- hosts that end ------------------------------------------------------------------------------


@pytest.fixture
def doomed(session: Session) -> Iterator[HostMesh]:
    """Two hosts that a test may end."""
    hosts = meshbook.hosts.command({"d1": [], "d2": []})
    yield hosts
    hosts.shutdown().get(PATIENCE)


def test_an_agent_that_is_killed_takes_its_own_processes_alone(doomed: HostMesh, session: Session, spawn_procs):
    procs = doomed.spawn_procs(per_host={"gpus": 2})
    probe = procs.spawn("probe", Probe)
    on_lost, on_other = probe.slice(hosts=0), probe.slice(hosts=1)
    agent = agent_of("d1", session)
    pids(probe)
    family = [agent, *agent.children(recursive=True)]
    waiting = [on_lost.slice(gpus=0).run.call_one(wait_forever), procs.slice(hosts=0).spawn("late", Probe).initialized]
    told = on_other.slice(gpus=0).run.call_one(await_death, on_lost.slice(gpus=1))
    agent.kill()
    assert f"its host agent ended: Killed(sig=9) ({_agent_name(session, agent)}, pid {agent.pid} on d1)" in str(
        died(waiting[0])
    )
    assert "d1" in told.get(PATIENCE)
    assert still_running(family) == []
    assert len(pids(on_other)) == 2
    with pytest.raises(LaunchError, match="d1"):
        procs.heal().get(PATIENCE)
    newborn = spawn_procs().spawn("newborn", Probe)  # has heard of nothing
    assert "d1" in newborn.run.call_one(await_death, on_lost.slice(gpus=0)).get(PATIENCE)
    victim, fellow = on_other.slice(gpus=0), on_other.slice(gpus=1)
    os.kill(pids(on_other)[0], signal.SIGKILL)
    assert "SIGKILL" in fellow.run.call_one(await_death, victim).get(PATIENCE)
    died(victim.run.call_one(os.getpid))  # the controller may receive the report later than the other rank
    with pytest.raises(LaunchError, match="d1"):  # those that were there; but not those of the host that lives
        procs.heal().get(PATIENCE)
    assert len(pids(on_other)) == 2
    ip = procs.slice(hosts=1).nodes[0].url.removeprefix("tcp://").rpartition(":")[0]
    assert victim.run.call_one(os.getenv, "MASTER_ADDR").get(PATIENCE) == ip  # of a host that lives
    assert any(event.kind == "host lost" and event.mesh == "d1" for event in session.events)


def _agent_name(session: Session, agent: psutil.Process) -> str:
    [found] = [each for each in session.remote._hosts if each.process.pid == agent.pid]
    return found.node


def test_a_host_that_joins_later_knows_which_processes_have_ended(
    hosts: HostMesh, session: Session, spawn, spawn_procs
):
    """Of the controller's host and of another one. Its workers call one of each without a time limit."""
    dead = [spawn_procs().spawn("here", Probe), spawn()[1].slice(hosts=0)]
    for probe in dead:
        died(probe.run.call_one(os._exit, 3))
    late = meshbook.hosts.command({"late": []})
    procs = late.spawn_procs()
    caller = procs.spawn("caller", Probe)

    def ask(probe: Any) -> str:
        return str(probe.run.call_one(os.getpid).exception())

    for probe in dead:
        assert "exit code 3" in caller.run.call_one(ask, probe).get(PATIENCE)
    procs.stop().get(PATIENCE)
    late.shutdown().get(PATIENCE)


def test_hosts_that_are_shut_down(session: Session):
    hosts = meshbook.hosts.command({"s1": []})
    agent = agent_of("s1", session)
    probe = hosts.spawn_procs().spawn("probe", Probe)
    pids(probe)
    family = [agent, *agent.children(recursive=True)]
    hosts.shutdown().get(PATIENCE)
    assert still_running(family) == []
    assert [event for event in session.events if event.mesh == "s1"] == []
    with pytest.raises(RuntimeError):
        hosts.spawn_procs()


def test_each_host_has_its_own_environment(session: Session):
    hosts = meshbook.hosts.local(2, environment={"COMMON": "1", "OWN": "1", "local-1": {"OWN": "2"}})
    probe = hosts.spawn_procs(env={"COMMON": "chosen"}).spawn("probe", Probe)
    found = probe.run.call(environment, "COMMON", "OWN").get(PATIENCE)
    assert list(found.values()) == [["chosen", "1"], ["chosen", "2"]]
    assert hosts.names == ("local-0", "local-1")
    hosts.shutdown().get(PATIENCE)


def test_a_workspace_is_copied_and_its_modules_are_imported_again(hosts: HostMesh, spawn, tmp_path: Path):
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    (here / "recipe.py").write_text("VALUE = 1\n")
    (here / "old.py").touch()
    workspace = {here: str(there)}
    first = hosts.sync_workspace(workspace).get(PATIENCE)
    # Both hosts are this machine, so the second one has the files already.
    assert {name: sorted(files) for name, files in first.items()} == {
        "h1": [str(there / "old.py"), str(there / "recipe.py")],
        "h2": [],
    }
    (there / "theirs.py").touch()

    def value() -> int:
        sys.path.insert(0, str(there))
        import recipe  # type: ignore[import-not-found]

        return int(recipe.VALUE)

    _, probe = spawn()
    assert list(probe.run.call(value).get(PATIENCE).values()) == [1, 1]
    (here / "recipe.py").write_text("VALUE = 23\n")
    (here / "old.py").unlink()
    changed = hosts.sync_workspace(workspace, auto_reload=True).get(PATIENCE)
    assert changed["h1"] == [str(there / "old.py"), str(there / "recipe.py")]
    assert list(probe.run.call(value).get(PATIENCE).values()) == [23, 23]
    assert (there / "theirs.py").exists(), "no sync has written it"
    (here / "data").touch()  # a file that becomes a folder, and a file again
    hosts.sync_workspace(workspace).get(PATIENCE)
    (here / "data").unlink()
    (here / "data").mkdir()
    (here / "data" / "part").touch()
    hosts.sync_workspace(workspace).get(PATIENCE)
    assert (there / "data" / "part").exists()
    (here / "data" / "part").unlink()
    (here / "data").rmdir()
    (here / "data").touch()
    hosts.sync_workspace(workspace).get(PATIENCE)
    assert (there / "data").is_file()
    (here / "recipe.py").write_text("1 / 0\n")
    with pytest.raises(ActorError, match="ZeroDivisionError"):
        hosts.sync_workspace(workspace, auto_reload=True).get(PATIENCE)
    with pytest.raises(RuntimeError, match="slice"):
        hosts.slice(hosts=0).sync_workspace(workspace).get(PATIENCE)


# -- hosts that do not come up --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["/no/such/program"], "host bad: cannot run its command: .*No such file"),
        (["sh", "-c", "echo the reason >&2; exit 3", "sh"], "host bad: its agent did not start; .*\n    the reason"),
        (["sh", "-c", "echo hello"], "host bad: its agent did not start; instead of its answer it printed: hello"),
    ],
    ids=["no command", "one that ends", "another answer"],
)
def test_a_host_that_does_not_come_up_is_named_and_leaves_nothing(own_session: Session, command: list[str], said: str):
    before = set(psutil.Process().children())
    launcher = CommandLauncher({"good": [], "bad": command})
    with pytest.raises(LaunchError, match=f"(?s){said}"):
        own_session.remote.start(launcher, ["good", "bad"])
    assert still_running(set(psutil.Process().children()) - before) == []


def test_a_host_whose_login_shell_prints_a_banner(own_session: Session) -> None:
    banner = """echo Welcome; printf 'caf\\351 \\033[1mbold\\033[0m'; echo 'Last login: today' >&2; exec "$@" """
    started = own_session.remote.start(CommandLauncher({"talkative": ["sh", "-c", banner, "login"]}), ["talkative"])
    procs = started.spawn_procs(per_host={"gpus": 1})
    procs.initialized.get(PATIENCE)
    procs.stop().get(PATIENCE)


def test_a_host_that_never_answers_is_named(own_session: Session, monkeypatch: pytest.MonkeyPatch):
    own_session.remote._open_gateway()
    monkeypatch.setattr(
        own_session.remote, "_settings", msgspec.structs.replace(own_session.settings, launch_timeout=0.2)
    )
    launcher = CommandLauncher({"silent": ["sh", "-c", "exec sleep 1000", "sh"]})
    with pytest.raises(LaunchError, match=r"host silent: .* did not answer within 0\.2 s \(MESHBOOK_LAUNCH_TIMEOUT\)"):
        own_session.remote.start(launcher, ["silent"])
    assert list(own_session.remote) == []


def test_a_host_with_another_version_of_python_is_named(own_session: Session, monkeypatch: pytest.MonkeyPatch):
    others = SimpleNamespace(version_info=(3, 9, 0), executable=sys.executable)
    monkeypatch.setattr("meshbook.runtime.hosts.remote_hosts.sys", others)
    with pytest.raises(LaunchError, match=r"host old: .* is Python 3\.1\d, and the controller's is 3\.9: .*python="):
        own_session.remote.start(CommandLauncher({"old": []}), ["old"])


def listeners(agent: psutil.Process) -> set[str]:
    return {entry.laddr.ip for entry in agent.net_connections("tcp") if entry.status == psutil.CONN_LISTEN}


def test_agents_of_this_machine_are_reached_from_it_alone(
    own_session: Session, hosts: HostMesh, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert listeners(agent_of("h1", session)) == {"127.0.0.1"}
    monkeypatch.setattr("meshbook.runtime.hosts.remote_hosts.own_addresses", lambda: ["192.0.2.1"])
    launcher = CommandLauncher({"local": [], "remote": ["env"]})
    here = own_session.remote.start(launcher, ["local"])
    with pytest.raises(LaunchError, match=r"remote cannot be linked with host local, .*addresses"):
        own_session.remote.start(launcher, ["remote"])
    here.shutdown().get(PATIENCE)


def test_an_address_that_is_not_the_hosts(session: Session):
    with pytest.raises(LaunchError, match=r"host h9: the gateway cannot listen on 203\.0\.113\.7"):
        meshbook.hosts.command({"h9": []}, addresses={"h9": "203.0.113.7"})


@pytest.mark.parametrize("commands", [{}, {"": []}, {"a b": []}, {"h/1": []}, {"h1": "ssh h1"}, {"h1": [1]}], ids=str)
def test_names_and_commands_that_cannot_be(commands: dict[str, Any]):
    with pytest.raises(ValueError, match="host"):
        meshbook.hosts.command(commands)


def test_only_the_client_starts_hosts(spawn):
    _, probe = spawn()

    def start() -> str:
        try:
            meshbook.hosts.command({"inner": []})
        except RuntimeError as error:
            return str(error)
        return ""

    assert "only the client can start hosts" in probe.slice(hosts=0).run.call_one(start).get(PATIENCE)


def test_closing_the_session_ends_all_hosts(own_session: Session):
    hosts = own_session.remote.start(CommandLauncher({"c1": []}), ["c1"])
    agent = agent_of("c1", own_session)
    pids(hosts.spawn_procs().spawn("probe", Probe))
    family = [agent, *agent.children(recursive=True)]
    own_session.close()
    assert still_running(family) == []
    assert hosts.is_shut_down


# -- meshes that change --------------------------------------------------------------------


def test_a_mesh_on_hosts_grows_heals_and_shrinks(spawn):
    """On each host by as many; a rank that dies is started where it was, from that host's spare."""

    def who() -> Any:
        here = context().actor_instance
        return os.getpid(), here.rank.rank, os.environ["RANK"], os.environ["LOCAL_RANK"], os.environ["WORLD_SIZE"]

    procs, probe = spawn(1, spares=1)
    first = pids(probe)
    grown = procs.resize(gpus=2)
    everybody = grown.all_of(probe)
    assert grown.initialized.get(PATIENCE) is True
    found = list(everybody.run.call(who).get(PATIENCE).values())
    assert [told[1:] for told in found] == [(rank, str(rank), str(rank % 2), "4") for rank in range(4)]
    assert [found[0][0], found[2][0]] == first
    lost = everybody.slice(hosts=1, gpus=1).run.call_one(wait_forever)
    psutil.Process(found[3][0]).kill()
    died(lost)
    assert procs.heal().get(PATIENCE) == [3]
    again = everybody.slice(hosts=1, gpus=1).run.call_one(who).get(PATIENCE)
    assert again[1:] == found[3][1:]
    assert psutil.Process(again[0]).parent() == psutil.Process(found[2][0]).parent()
    shrunk = grown.resize(gpus=1)
    assert shrunk.initialized.get(PATIENCE) is True
    assert pids(shrunk.all_of(probe)) == first


@pytest.fixture
def elastic(session: Session) -> Iterator[tuple[Any, Any]]:
    """A mesh on three hosts of its own, and actors on it."""
    hosts = meshbook.hosts.command({"e0": [], "e1": [], "e2": []})
    procs = hosts.spawn_procs(per_host={"gpus": 1}, spares=1)
    yield procs, procs.spawn("probe", Probe)
    if not hosts.is_shut_down:
        hosts.shutdown().get(PATIENCE)


def places(probe: Any) -> list[Any]:
    """The environment of each rank: what torch reads."""

    def place() -> Any:
        names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE")
        return context().actor_instance.rank.rank, *(int(os.environ[name]) for name in names)

    return list(probe.run.call(place).get(PATIENCE).values())


def expected_places(hosts: int) -> list[Any]:
    return [(rank, rank, 0, hosts, rank, hosts) for rank in range(hosts)]


def test_hosts_drain_and_join_while_the_others_keep_their_state(elastic: Any, session: Session):
    """The first host leaves, on which ranks of torch would meet; another one joins, and all reduce together."""
    procs, probe = elastic
    before = pids(probe)
    agent = agent_of("e0", session)
    family = [agent, *agent.children(recursive=True)]

    rest = procs.drain("e0")
    assert rest.initialized.get(PATIENCE) is True
    assert rest.host_mesh.names == ("e1", "e2")
    assert psutil.wait_procs(family, timeout=PATIENCE)[1] == []
    assert [event for event in session.events if event.mesh == "e0"] == [], "it is not lost"
    two = rest.all_of(probe)
    assert places(two) == expected_places(2)
    assert pids(two) == before[1:]
    assert rest.init_process_group("gloo").get(PATIENCE) is None

    more = meshbook.hosts.command({"e3": []})
    grown = rest.join(more)
    assert grown.initialized.get(PATIENCE) is True
    three = grown.all_of(probe)
    assert places(three) == expected_places(3)
    assert pids(three)[:2] == before[1:]
    assert grown.process_group_generation == 2, "of all ranks again"
    until = time.monotonic() + PATIENCE
    while grown.spares().get(PATIENCE) < 3:  # on each host
        assert time.monotonic() < until
        time.sleep(0.02)

    def total() -> float:
        import torch
        import torch.distributed as dist

        value = torch.tensor(float(os.environ["RANK"]))
        dist.all_reduce(value)
        return value.item()

    assert list(three.run.call(total).get(PATIENCE).values()) == [3.0] * 3
    started = {each.name: psutil.Process(each.process.pid) for each in session.remote if each.name in ("e2", "e3")}
    more.shutdown().get(PATIENCE)
    assert psutil.wait_procs(list(started.values()), timeout=PATIENCE)[1] == [], "they have become one with the others"


def test_a_host_is_released_however_soon_its_ranks_end(
    elastic: Any, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All steps of the drain are done before the caller's thread goes on."""
    procs, _ = elastic
    agent = agent_of("e0", session)
    begin = Resize.begin

    def begin_and_wait(resize: Resize, *given: Any) -> Any:
        done = begin(resize, *given)
        done.get(PATIENCE)
        return done

    monkeypatch.setattr(Resize, "begin", begin_and_wait)
    assert procs.drain("e0").initialized.get(PATIENCE) is True
    assert still_running([agent]) == []


def test_a_lost_host_is_drained_and_a_heal_is_not_needed(elastic: Any, session: Session):
    procs, probe = elastic
    before = pids(probe)
    lost = probe.slice(hosts=1, gpus=0).run.call_one(wait_forever)
    agent_of("e1", session).kill()
    died(lost)
    rest = procs.drain("e1")
    assert rest.initialized.get(PATIENCE) is True
    assert pids(rest.all_of(probe)) == [before[0], before[2]]
    assert rest.heal().get(PATIENCE) == []


def test_a_host_stays_until_the_last_mesh_has_left_it(elastic: Any, session: Session):
    procs, _ = elastic
    other = procs.host_mesh.spawn_procs()
    agent = agent_of("e2", session)
    assert procs.drain("e2").initialized.get(PATIENCE) is True
    assert pids(other.spawn("probe", Probe))
    assert other.drain("e2").initialized.get(PATIENCE) is True
    assert psutil.wait_procs([agent], timeout=PATIENCE)[1] == []


def test_hosts_that_cannot_leave_or_join(elastic: Any, hosts: HostMesh, spawn_procs):
    procs, _ = elastic
    with pytest.raises(ValueError, match="no host is named 'e9'; the hosts are e0, e1, e2"):
        procs.drain("e9")
    with pytest.raises(ValueError, match="no host would stay"):
        procs.drain("e0", "e1", "e2")
    with pytest.raises(ValueError, match="part of the mesh already"):
        procs.join(procs.host_mesh)
    with pytest.raises(ValueError, match="one dimension"):
        spawn_procs().join(hosts)
    with pytest.raises(RuntimeError, match="reference"):
        procs.join(hosts.slice(hosts=slice(0, 1)))


def test_hosts_whose_start_is_interrupted_are_handed_over_or_end(session: Session) -> None:
    """As an allocation of Slurm has to be returned."""
    interrupts, made = StatementInterrupts(stride=20), list[HostMesh]()
    others = psutil.Process().children()
    while interrupts.are_left:
        before = len(list(session.remote))
        interrupt = interrupts.run(lambda: made.append(meshbook.hosts.command({"interrupted": []})))
        assert (interrupt is None) == (len(made) == 1), interrupts.where
        for hosts in made:
            hosts.shutdown().get(PATIENCE)
        made.clear()
        for host in list(session.remote)[before:]:
            assert host.watcher is not None
            host.watcher.join(PATIENCE)
        assert len(list(session.remote)) == before, interrupts.where
        assert psutil.Process().children() == others, interrupts.where
