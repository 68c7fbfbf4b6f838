"""Real clusters on this machine, each of three nodes: sshd in network namespaces, Slurm, and Ray."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from meshbook.runtime.hosts.ray_launcher import AgentRunner
from tests.end_to_end.faults.test_network import Network
from tests.support import PATIENCE

SSH_OPTIONS = ("StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "LogLevel=ERROR")


def need(*programs: str) -> None:
    """Skip the test where one of these programs is missing, or where it may not start them."""
    if missing := [name for name in programs if find(name) is None]:
        pytest.skip(f"not installed here: {', '.join(missing)}")
    if os.geteuid():
        pytest.skip("needs root")


def find(program: str) -> str | None:
    return shutil.which(program, path=os.pathsep.join([os.environ["PATH"], "/usr/sbin", "/sbin"]))


def run(*words: str, **more: Any) -> str:
    done = subprocess.run([find(words[0]) or words[0], *words[1:]], check=True, capture_output=True, text=True, **more)
    return done.stdout


class SshCluster:
    """Three machines with sshd, each a network namespace of its own."""

    launcher = "ssh"
    environment: dict[str, str] = {}

    def __init__(self, scratch: Path) -> None:
        need("sshd", "ssh", "ssh-keygen", "ip")
        try:
            self.network = Network(("h1", "h2", "h3"))
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no network namespaces here: {error.stderr}")
        self.addresses = [self.network.address(host) for host in ("h1", "h2", "h3")]
        self.key = scratch / "key"
        Path("/run/sshd").mkdir(exist_ok=True)  # sshd's own, where it drops its privileges
        for name in ("key", "host"):
            run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(scratch / name))
        settings = {
            "AuthorizedKeysFile": scratch / "key.pub",
            "StrictModes": "no",
            "UsePAM": "no",
            "PermitRootLogin": "prohibit-password",
            "PidFile": "none",
            "PermitUserEnvironment": "no",
            "SetEnv": f"MESHBOOK_TEST_ID={os.environ['MESHBOOK_TEST_ID']} CUDA_VISIBLE_DEVICES=3",
        }
        options = [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]
        self._daemons = [
            subprocess.Popen(
                [
                    *(*self.network.command(host), str(find("sshd")), "-D", "-f", "/dev/null", "-h", scratch / "host"),
                    *(*options, "-o", f"ListenAddress={address}"),
                ],
                stdin=subprocess.DEVNULL,
            )
            for host, address in zip(("h1", "h2", "h3"), self.addresses, strict=True)
        ]
        try:
            for address in self.addresses:
                wait_for_port(address, 22)
        except AssertionError:
            self.close()
            pytest.skip("sshd cannot be started here")

    @property
    def arguments(self) -> dict[str, Any]:
        options = [word for option in SSH_OPTIONS for word in ("-o", option)]
        return {
            "hosts": self.addresses,
            "options": ["-i", str(self.key), *options],
        }

    @property
    def second(self) -> str:
        """The name of the second host."""
        return self.addresses[1]

    def launcher_of_second(self, controller: int, pids: list[int]) -> psutil.Process:
        """The process by which the controller has started the second host, which has these workers."""
        return child_with(controller, "ssh", self.second)

    def variables(self, host: int) -> dict[str, str]:
        """The variables of that host that a worker there has, of those that the program shows."""
        return {"CUDA_VISIBLE_DEVICES": "3"}

    def lose_second(self, pids: list[int]) -> None:
        """Cut the second host off."""
        self.network.cut("h2")

    def restore(self) -> None:
        self.network.mend("h2")

    def close(self) -> None:
        for daemon in self._daemons:
            daemon.terminate()
            daemon.wait(PATIENCE)
        self.network.close()


SLURM_CONF = """
ClusterName=meshbook
SlurmctldHost=localhost(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={scratch}/munge
CryptoType=crypto/munge
MpiDefault=none
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
StateSaveLocation={scratch}/state
SlurmdSpoolDir={scratch}/%n
SlurmctldLogFile={scratch}/slurmctld.log
SlurmdLogFile={scratch}/%n.log
SlurmctldPidFile={scratch}/slurmctld.pid
SlurmdPidFile={scratch}/%n.pid
SlurmctldPort={ports[0]}
ReturnToService=2
SlurmdTimeout=30
KillWait=2
MessageTimeout=20
SlurmdParameters=config_overrides
NodeName=n1 NodeHostname=localhost NodeAddr=127.0.0.1 Port={ports[1]} CPUs=2 RealMemory=4000 State=UNKNOWN
NodeName=n2 NodeHostname=localhost NodeAddr=127.0.0.1 Port={ports[2]} CPUs=2 RealMemory=4000 State=UNKNOWN
NodeName=n3 NodeHostname=localhost NodeAddr=127.0.0.1 Port={ports[3]} CPUs=2 RealMemory=4000 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
"""


class SlurmCluster:
    """A slurmctld and three slurmd, with a munged of their own."""

    launcher = "slurm"

    def __init__(self, scratch: Path) -> None:
        need("slurmctld", "slurmd", "salloc", "srun", "munged")
        (scratch / "state").mkdir()
        scratch.chmod(0o755)  # munged's socket is for all
        ports = free_ports(4)
        conf = scratch / "slurm.conf"
        conf.write_text(SLURM_CONF.format(scratch=scratch, ports=ports))
        key = scratch / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        self.environment = {"SLURM_CONF": str(conf)}
        files = {"socket": "munge", "key-file": "munge.key", "pid-file": "munge.pid"}
        files |= {"log-file": "munge.log", "seed-file": "munge.seed"}
        self._daemons: list[subprocess.Popen[bytes]] = []
        try:
            options = [f"--{name}={scratch / file}" for name, file in files.items()]
            self._start("munged", "--foreground", "--force", *options)
            wait_until((scratch / "munge").exists)
            self._start("slurmctld", "-D")
            for name in ("n1", "n2", "n3"):
                self._start("slurmd", "-D", "-N", name)
            wait_until(lambda: self._ask("sinfo", "-h", "-t", "idle", "-o", "%D").strip() == "3")
        except AssertionError:
            self.close()
            pytest.skip("Slurm cannot be started here")

    def _start(self, program: str, *options: str) -> subprocess.Popen[bytes]:
        daemon = subprocess.Popen(
            [str(find(program)), *options],
            env=os.environ | self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._daemons.append(daemon)
        return daemon

    def _ask(self, *words: str) -> str:
        with contextlib.suppress(subprocess.CalledProcessError):
            return run(*words, env=os.environ | self.environment)
        return ""

    def jobs(self) -> str:
        """The jobs that Slurm has not ended."""
        return self._ask("squeue", "-h", "-t", "pending,running,suspended")

    def nodes_in_use(self) -> str:
        """How many nodes the job has that runs."""
        return self._ask("squeue", "-h", "-t", "running", "-o", "%D").strip()

    @property
    def arguments(self) -> dict[str, Any]:
        return {"nodes": 3}

    second = "n2"

    def launcher_of_second(self, controller: int, pids: list[int]) -> psutil.Process:
        return child_with(controller, "srun", "--nodelist=n2")

    def variables(self, host: int) -> dict[str, str]:
        return {"SLURMD_NODENAME": f"n{host + 1}"}

    def lose_second(self, pids: list[int]) -> None:
        """Kill all that runs on the second node, but for what Slurm could notice: its slurmd."""
        for process in family_of_agent(pids):
            process.send_signal(signal.SIGSTOP)

    def restore(self) -> None:
        """Nothing to do: the processes of the node were killed with the run."""

    def close(self) -> None:
        for daemon in reversed(self._daemons):
            daemon.terminate()
            daemon.wait(PATIENCE)


# Without the processes that these tests do not need, since each imports Ray: that takes three seconds of a core.
RAY = """
import os
import sys
os.environ |= {
    "RAY_USAGE_STATS_ENABLED": "0", "RAY_enable_worker_prestart": "0", "RAY_prestart_worker_first_driver": "0"
}
from ray.cluster_utils import Cluster
unused = {"include_dashboard": False, "include_log_monitor": False, "no_monitor": True}
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, **unused})
for _ in range(2):
    cluster.add_node(num_cpus=1, include_log_monitor=False)
print(cluster.address, flush=True)
sys.stdin.readline()
cluster.shutdown()
"""


class RayCluster:
    """A head and two nodes, in a process of their own."""

    launcher = "ray"

    def __init__(self, scratch: Path) -> None:
        pytest.importorskip("ray")
        self._server = subprocess.Popen(
            [sys.executable, "-c", RAY],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        assert self._server.stdout is not None
        self.address = self._server.stdout.readline().decode().strip()
        if not self.address:
            self._server.communicate(timeout=PATIENCE)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._server.pid, signal.SIGKILL)  # what Ray leaves behind when it fails to start
            pytest.skip("a Ray cluster cannot be started here")

    environment = {"MESHBOOK_LAUNCH_TIMEOUT": "180"}  # seconds: on a busy machine an actor of Ray may take a minute

    @property
    def arguments(self) -> dict[str, Any]:
        return {"num_hosts": 3, "address": self.address}

    @property
    def second(self) -> str:
        return f"{AgentRunner().host()}-1"

    def launcher_of_second(self, controller: int, pids: list[int]) -> psutil.Process:
        parent = family_of_agent(pids)[0].parent()
        assert parent is not None
        return parent

    def variables(self, host: int) -> dict[str, str]:
        return {}

    def lose_second(self, pids: list[int]) -> None:
        """Stop all processes of the second host, without their connections being closed."""
        for process in family_of_agent(pids):
            process.send_signal(signal.SIGSTOP)

    def restore(self) -> None:
        """Nothing to do: the processes of the node were killed with the run."""

    def close(self) -> None:
        self._server.communicate(b"\n", timeout=PATIENCE)


def family_of_agent(pids: list[int]) -> list[psutil.Process]:
    """The agent above these workers, and all processes that it has started."""
    # Its fork server has the same command line.
    [*_, agent] = [
        each for each in psutil.Process(pids[0]).parents() if "meshbook.runtime.hosts.agent" in each.cmdline()
    ]
    return [agent, *agent.children(recursive=True)]


def child_with(parent: int, name: str, word: str) -> psutil.Process:
    """The child of this name that has this word in its command."""
    [found] = [each for each in psutil.Process(parent).children() if each.name() == name and word in each.cmdline()]
    return found


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def wait_for_port(address: str, port: int) -> None:
    def answers() -> bool:
        with contextlib.suppress(OSError), socket.create_connection((address, port), timeout=1):
            return True
        return False

    wait_until(answers)


def wait_until(holds: Any) -> None:
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end, "it did not come up"
        time.sleep(0.05)
