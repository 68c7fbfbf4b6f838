"""What a network does to hosts: three of them, in network namespaces of this machine, whose links are really cut."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from meshbook import Actor, HostMesh, RDMABuffer, endpoint
from meshbook.runtime.actor.context import CURRENT
from meshbook.runtime.config import Settings
from meshbook.runtime.errors import LaunchError, OwnerGone, ProcessDied, TransferTimeout
from meshbook.runtime.hosts.launch import sweep
from meshbook.runtime.hosts.launchers import CommandLauncher
from meshbook.runtime.hosts.session import Session
from meshbook.runtime.transport.home import describe, host_of
from tests.support import AT_ONCE, PATIENCE, await_death, has_no_runs, pids, still_running, wait_forever

pytestmark = pytest.mark.process


class Probe(Actor):
    """Runs what it is sent, and notes."""

    def __init__(self) -> None:
        self.notes: list[tuple[str, int]] = []

    @endpoint
    def run(self, function: Any, *arguments: Any) -> Any:
        return function(*arguments)

    @endpoint
    def note(self, sender: str, number: int) -> None:
        self.notes.append((sender, number))

    @endpoint
    def noted(self) -> list[tuple[str, int]]:
        return self.notes


def pause(seconds: float) -> None:
    """A cut takes its time."""
    threading.Event().wait(seconds)


# -- the network -----------------------------------------------------------------------------

# Of the command of an agent nothing is left by which its controller could end it: the first line of the input is
# passed on, and neither its end nor the end of this shell is felt. As over a network that is cut.
DETACHED = ["sh", "-c", 'IFS= read -r line; { printf "%s\\n" "$line"; exec sleep 1000; } | setsid "$@"', "sh"]


class Network:
    """Hosts h1, h2 ..., joined with this machine by a bridge."""

    def __init__(self, hosts: Sequence[str] = ("h1", "h2")) -> None:
        self._hosts = hosts
        self._name = f"mb{os.getpid() % 10000}"
        self._net = f"10.213.{os.getpid() % 250}"
        self._ip("link add", f"{self._name}b", "type bridge")
        self._ip("addr add", f"{self._net}.254/24", "dev", f"{self._name}b")
        self._ip("link set", f"{self._name}b", "up")
        for number in range(1, len(hosts) + 1):
            self._add(number)

    def _add(self, number: int) -> None:
        space, link = self._space(f"h{number}"), f"{self._name}v{number}"
        self._ip("netns add", space)
        self._ip("link add", link, "type veth peer name eth0 netns", space)
        self._ip("link set", link, "master", f"{self._name}b", "up")
        self._ip("-n", space, "addr add", f"{self._net}.{number}/24 dev eth0")
        for name in ("eth0", "lo"):
            self._ip("-n", space, "link set", name, "up")

    def _space(self, host: str) -> str:
        return f"{self._name}{host}"

    def _ip(self, *words: str) -> None:
        subprocess.run(["ip", *" ".join(words).split()], check=True, capture_output=True, text=True)

    def address(self, host: str) -> str:
        return f"{self._net}.{host.removeprefix('h')}"

    def command(self, host: str) -> list[str]:
        return ["ip", "netns", "exec", self._space(host)]

    def cut(self, host: str) -> None:
        self._ip("-n", self._space(host), "link set eth0 down")

    def mend(self, host: str) -> None:
        self._ip("-n", self._space(host), "link set eth0 up")

    def part(self, one: str, other: str) -> None:
        """These two do not reach each other any more; all others do."""
        self._ip("-n", self._space(one), "route add blackhole", f"{self._net}.{other.removeprefix('h')}/32")

    def unite(self, one: str, other: str) -> None:
        self._ip("-n", self._space(one), "route del blackhole", f"{self._net}.{other.removeprefix('h')}/32")

    def close(self) -> None:
        ends = [f"v{host.removeprefix('h')}" for host in self._hosts]
        links = [f"link del {self._name}{end}" for end in (*ends, "b")]  # first: a namespace may end later
        for words in (*links, *(f"netns del {self._space(host)}" for host in self._hosts)):
            with contextlib.suppress(subprocess.CalledProcessError):
                self._ip(words)


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    if os.geteuid() or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and the program ip (iproute2)")
    try:
        made = Network()
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespaces here: {error.stderr}")
    yield made
    made.close()


class Hosts:
    """A session with the hosts h1 and h2, and an actor on each."""

    def __init__(self, network: Network, before: list[str], rdma_backends: str = "host agent") -> None:
        # Without naming a way, what is on this machine is reached by its memory, hosts or not.
        folder = os.environ["MESHBOOK_RUNTIME_DIR"]
        self.session = Session(Settings(runtime_dir=folder, preload="", rdma_backends=rdma_backends))
        self.token = CURRENT.set(self.session.context)
        launcher = CommandLauncher({host: [*before, *network.command(host)] for host in ("h1", "h2")})
        self.mesh: HostMesh = self.session.remote.start(launcher, ["h1", "h2"])
        self.procs = self.mesh.spawn_procs()
        self.probe: Any = self.procs.spawn("probe", Probe)
        self.pids = pids(self.probe)

    def on(self, host: str) -> Any:
        return self.probe.slice(hosts=int(host[1]) - 1)

    def family(self, host: str) -> list[psutil.Process]:
        """The agent of this host, and what it has started."""
        worker = psutil.Process(self.pids[int(host[1]) - 1])
        agent = worker.parents()[1]
        assert "meshbook.runtime.hosts.agent" in agent.cmdline()
        return [agent, *agent.children(recursive=True)]

    def launched(self) -> list[psutil.Process]:
        """What the launcher has started that is not of the agents."""
        agents = {process for host in ("h1", "h2") for process in self.family(host)}
        roots = [psutil.Process(host.process.pid) for host in self.session.remote]
        return [each for root in roots for each in (root, *root.children(recursive=True)) if each not in agents]

    def close(self) -> None:
        CURRENT.reset(self.token)
        self.session.close()
        sweep(Path(os.environ["MESHBOOK_RUNTIME_DIR"]))


@pytest.fixture(scope="module")
def shared(network: Network) -> Iterator[Hosts]:
    hosts = Hosts(network, [])
    CURRENT.reset(hosts.token)
    yield hosts
    hosts.token = CURRENT.set(hosts.session.context)
    hosts.close()


@pytest.fixture
def hosts(shared: Hosts) -> Iterator[Hosts]:
    """Hosts that are well at the end of the test, as they were at its beginning."""
    token = CURRENT.set(shared.session.context)
    yield shared
    assert pids(shared.probe) == shared.pids
    CURRENT.reset(token)


@pytest.fixture
def doomed(network: Network) -> Iterator[Hosts]:
    """Hosts that the test may lose."""
    made = Hosts(network, [])
    yield made
    made.close()


@pytest.fixture
def detached(network: Network) -> Iterator[Hosts]:
    """The same, and nothing reaches an agent but the network."""
    made = Hosts(network, DETACHED)
    rest = made.launched()
    yield made
    made.close()
    for process in rest:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(rest, timeout=PATIENCE)


# -- cuts that are over in time --------------------------------------------------------------------


def test_a_short_cut_loses_nothing_and_messages_resume_in_order(hosts: Hosts, network: Network) -> None:
    def send(other: Any, sender: str, count: int) -> None:
        for number in range(count):
            other.note.broadcast(sender, number)

    one, two = hosts.on("h1"), hosts.on("h2")
    count = 400
    network.cut("h1")
    send(one, "controller", count)
    sent = [two.run.call_one(send, one, "h2", count), one.run.call_one(send, two, "h1", count)]
    pause(hosts.session.settings.host_timeout * 0.5)
    network.mend("h1")
    for future in sent:
        future.get(PATIENCE)
    for receiver, senders in ((one, ["controller", "h2"]), (two, ["h1"])):
        while len(notes := receiver.noted.call_one().get(PATIENCE)) < count * len(senders):
            pass  # what others have sent may come later than our question
        for sender in senders:
            assert [number for by, number in notes if by == sender] == list(range(count))
    assert pids(hosts.probe) == hosts.pids


def test_busy_or_stopped_processes_are_not_silent(hosts: Hosts) -> None:
    """A controller in C code that never lets Python run, and a worker that is stopped: their hosts are heard."""
    worker = psutil.Process(hosts.pids[0])
    worker.suspend()
    ctypes.PyDLL(None).usleep(int(hosts.session.settings.host_timeout * 1.3e6))
    worker.resume()
    assert pids(hosts.probe) == hosts.pids


def test_an_unauthenticated_connection_is_refused(hosts: Hosts) -> None:
    [address, _] = [host.address for host in hosts.session.remote]
    assert address is not None
    ip, _, port = describe(host_of(address)).rpartition(":")

    def refused() -> int:
        return int(hosts.session.remote._ask(address, "refused").get(PATIENCE))

    before = refused()
    with socket.create_connection((ip, int(port))) as stranger, contextlib.suppress(ConnectionResetError):
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        stranger.settimeout(PATIENCE)
        while stranger.recv(4096):
            pass  # until it is hung up on
    while refused() == before:
        pass
    assert refused() == before + 1


# -- bulk data --------------------------------------------------------------------------------------


def lend(size: int) -> RDMABuffer:
    return RDMABuffer(bytearray(random.Random(size).randbytes(size)))


def read(buffer: RDMABuffer, timeout: float = PATIENCE) -> bool:
    target = bytearray(buffer.size())
    buffer.read_into(target, timeout=timeout).get(PATIENCE)
    return target == random.Random(len(target)).randbytes(len(target))


def write(buffer: RDMABuffer) -> None:
    buffer.write_from(bytes(buffer.size())).get(PATIENCE)


def test_memory_of_other_hosts_is_read_and_written_by_their_agents(hosts: Hosts) -> None:
    size = 2_000_003
    ours, one, two = lend(size), hosts.on("h1"), hosts.on("h2")
    of_one = one.run.call_one(lend, size).get(PATIENCE)
    assert "-> host agent" in of_one.explain()
    assert read(of_one)
    assert two.run.call_one(read, of_one).get(PATIENCE)
    assert two.run.call_one(read, ours).get(PATIENCE)
    two.run.call_one(write, ours).get(PATIENCE)
    two.run.call_one(write, of_one).get(PATIENCE)
    assert not read(ours)
    assert not read(of_one)
    ours.drop().get(PATIENCE)


def test_hosts_whose_processes_have_numbers_of_their_own(network: Network) -> None:
    """As on other machines. The address is found without any setting."""
    hosts = Hosts(network, ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"], rdma_backends="")
    try:
        buffer = hosts.on("h1").run.call_one(lend, 1_000_003).get(PATIENCE)
        assert "-> host agent" in buffer.explain()
        assert "the owner is on another host" in buffer.explain()
        assert read(buffer)
        assert hosts.on("h2").run.call_one(read, buffer).get(PATIENCE)
        hosts.on("h2").run.call_one(write, buffer).get(PATIENCE)
        assert not read(buffer)
    finally:
        hosts.close()


def test_a_transfer_over_a_link_that_is_cut_ends_in_its_time(hosts: Hosts, network: Network) -> None:
    buffer = hosts.on("h1").run.call_one(lend, 2_000_003).get(PATIENCE)
    assert read(buffer)
    network.cut("h1")
    try:
        with pytest.raises(TransferTimeout):
            read(buffer, timeout=0.3)
    finally:
        network.mend("h1")
    assert read(buffer)


# -- hosts that are lost -----------------------------------------------------------------------------


def test_a_host_that_is_cut_off_is_lost_and_ends_itself_and_the_rest_goes_on(detached: Hosts, network: Network) -> None:
    one, two = detached.on("h1"), detached.on("h2")
    buffer = one.run.call_one(lend, 2_000_003).get(PATIENCE)
    assert read(buffer)
    waiting = one.run.call_one(wait_forever)
    told = two.run.call_one(await_death, one)
    family = detached.family("h1")
    begun = time.monotonic()
    network.cut("h1")
    try:
        with pytest.raises(OwnerGone, match="received nothing from it"):
            read(buffer)
        with pytest.raises(ProcessDied) as caught:
            waiting.get(PATIENCE)
        assert time.monotonic() - begun < AT_ONCE
        text = str(caught.value)
        assert "host h1 (" in text
        assert "received nothing from it for" in text
        assert "MESHBOOK_HOST_TIMEOUT" in text
        assert caught.value.report.host == "h1"
        assert "host h1 (" in told.get(PATIENCE)
        assert still_running(family) == []
        assert pids(two) == detached.pids[1:]
        with pytest.raises(LaunchError, match="host h1"):
            detached.procs.heal().get(PATIENCE)
        assert len(pids(detached.mesh.slice(hosts=1).spawn_procs().spawn("new", Probe))) == 1
    finally:
        network.mend("h1")


def test_an_abandoned_host_ends_itself_when_it_returns(detached: Hosts) -> None:
    family = detached.family("h1")
    waiting = detached.on("h1").run.call_one(wait_forever)
    family[0].suspend()
    with pytest.raises(ProcessDied):
        waiting.get(PATIENCE)
    assert len(pids(detached.on("h2"))) == 1
    assert all(process.is_running() for process in family)
    family[0].resume()
    assert still_running(family) == []
    assert len(pids(detached.on("h2"))) == 1


def test_of_two_hosts_that_do_not_reach_each_other_one_goes_on(doomed: Hosts, network: Network) -> None:
    family = doomed.family("h2")
    network.part("h1", "h2")
    try:
        told = doomed.on("h1").run.call_one(await_death, doomed.on("h2")).get(PATIENCE)
        assert "host h2 (" in told
        assert "host h1 (" in told
        assert still_running(family) == []
        assert pids(doomed.on("h1")) == doomed.pids[:1]
    finally:
        network.unite("h1", "h2")


# -- controllers that are killed ---------------------------------------------------------------------------

CONTROLLER = """
import os, sys
from meshbook import Actor, endpoint, this_host, hosts

class Probe(Actor):
    @endpoint
    def pid(self): return os.getpid()

commands = COMMANDS
away = hosts.command(commands).spawn_procs().spawn("probe", Probe)
here = this_host().spawn_procs().spawn("probe", Probe)
print(*away.pid.call().get(60).values(), *here.pid.call().get(60).values(), flush=True)
input()
"""


@pytest.mark.parametrize("with_agent", [False, True], ids=["", "with its agent"])
def test_a_killed_controller_leaves_nothing_on_any_host(
    network: Network, run_script: Callable[..., Any], runtime_dir: Path, with_agent: bool
) -> None:
    commands = {host: [*DETACHED, *network.command(host)] for host in ("h1", "h2")}
    script = run_script(CONTROLLER.replace("COMMANDS", repr(commands)), MESHBOOK_PRELOAD="")
    workers = [psutil.Process(int(pid)) for pid in script.read_line().split()]
    agents = {worker.parents()[1] for worker in workers}
    assert len(agents) == 3
    family = {process for agent in agents for process in (agent, *agent.children(recursive=True))}
    launched = [process for process in script.processes() if process not in family]
    [own] = [agent for agent in agents if agent.ppid() == script.process.pid and "ip" not in agent.cmdline()]
    script.process.kill()
    if with_agent:  # without a notice: the others detect it by themselves
        own.send_signal(signal.SIGKILL)
    left = still_running(family)
    for process in launched:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    assert left == []
    psutil.wait_procs(launched, timeout=PATIENCE)
    assert has_no_runs(runtime_dir)
