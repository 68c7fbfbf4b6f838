"""Starts host agents on the nodes of a Slurm allocation: the one this process runs in, or one that it requests.

    salloc (outside an allocation) -> nodes -> one `srun` per node -> agent

A shell holds `salloc`. It ends `salloc` when this process closes its input or dies, also while the request is pending.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import re
import subprocess
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

from meshbook.runtime.errors import LaunchError
from meshbook.runtime.hosts.launchers import (
    DEVICES,
    AgentProcess,
    ForeignProcess,
    LaunchedProcess,
    ProcessReference,
    agent_environment,
    start_process,
)
from meshbook.runtime.interrupts import allow_interrupts

logger = logging.getLogger(__name__)

# What `salloc` runs: it prints the allocation, and lasts until the end of the input. `salloc` then releases it.
SHOW = 'echo "$SLURM_JOB_ID $SLURM_JOB_NODELIST"; read -r _'
# Runs its arguments until the end of its input. Only a request that is still pending then needs the signal: `salloc`
# deadlocks in its handler when a signal arrives while it writes a message, as it does when it releases an allocation.
# The waits are short, because the last one lasts longer than the shell.
HOLD = """
exec 3<&0
"$@" <&3 & job=$!
(read -r _ <&3; for _ in $(seq 30); do sleep 0.1; kill -0 $job || exit; done; kill $job) >/dev/null 2>&1 &
wait $job; kill $!
"""
RELEASE_SECONDS = 10.0
# A step has all CPUs and the memory of its node, beside other steps of the same job. Output is not buffered.
STEP = ("--nodes=1", "--ntasks=1", "--overlap", "--mem=0", "--cpu-bind=none", "--unbuffered", "--quiet")


class SlurmLauncher:
    """The nodes of a Slurm allocation. `options` are those of `salloc` and `srun`.

    Inside an allocation it uses its first `nodes` nodes; by default, all. Outside, it waits until Slurm grants one;
    `log` is for the messages of `salloc`. LaunchError if there are fewer nodes, or if Slurm refuses.
    """

    outlives_controller = True

    def __init__(self, nodes: int | None, *, gpus_per_node: int | None, options: Sequence[str], log: Path) -> None:
        self._gpus = [f"--gpus-per-node={gpus_per_node}"] if gpus_per_node else []
        self._holder: LaunchedProcess | ForeignProcess | None = None
        try:
            if job := os.environ.get("SLURM_JOB_ID"):
                node_list = os.environ.get("SLURM_JOB_NODELIST", "")
            else:
                job, node_list = self._allocate(nodes or 1, options, log)
            self._job = job
            self.hosts = _expand(node_list)
        except FileNotFoundError as error:
            raise LaunchError(f"Slurm is not installed here: {error.filename} was not found") from error
        except BaseException:
            self.close()
            raise
        if nodes is not None:
            if len(self.hosts) < nodes:
                self.close()
                raise LaunchError(f"{nodes} nodes are needed, and Slurm job {job} has {len(self.hosts)}: {node_list}")
            self.hosts = self.hosts[:nodes]

    def _allocate(self, nodes: int, options: Sequence[str], log: Path) -> tuple[str, str]:
        command = ["salloc", f"--nodes={nodes}", *self._gpus, "--job-name=meshbook", *options]
        self._holder = start_process(["sh", "-c", HOLD, "sh", *command, "sh", "-c", SHOW], log)
        assert self._holder.stdin is not None
        # Otherwise the copy of a forked child would hold the allocation.
        os.register_at_fork(after_in_child=functools.partial(_close_copy, weakref.ref(self._holder.stdin)))
        assert self._holder.stdout is not None
        with allow_interrupts():
            granted = self._holder.stdout.readline()
        job, _, node_list = granted.decode().strip().partition(" ")
        if not node_list:
            self._holder.wait()
            said = log.read_text(errors="replace").strip()
            raise LaunchError(f"Slurm granted no allocation of {nodes} nodes (`{' '.join(command)}`):\n{said}")
        return job, node_list

    @property
    def lifelines(self) -> Sequence[Path]:
        return [] if self._holder is None else [self._holder.lifeline]

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_holder": None if self._holder is None else ProcessReference.of(self._holder)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state
        self._holder = None if state["_holder"] is None else ForeignProcess(state["_holder"])

    def is_local(self, host: str) -> bool:
        return False

    def start(self, host: str, agent: Sequence[str], log: Path) -> AgentProcess:
        command = ["srun", f"--jobid={self._job}", f"--nodelist={host}", *STEP, *self._gpus, *agent]
        # srun passes its environment on, and Slurm replaces the variables of devices only on nodes that have some.
        kept = {name: value for name, value in agent_environment().items() if not re.fullmatch(DEVICES, name)}
        return start_process(command, log, kept)

    def give_back(self, host: str) -> None:
        """Take this node out of an allocation of its own."""
        if self._holder is None or host not in self.hosts:
            return
        self.hosts.remove(host)
        command = ["scontrol", "update", f"JobId={self._job}", f"NodeList={','.join(self.hosts)}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:  # some sites forbid it; then the node returns with the allocation
            logger.warning("Slurm keeps node %s in job %s: %s", host, self._job, done.stderr.strip())

    def close(self) -> None:
        """Release an allocation of its own."""
        holder, self._holder = self._holder, None
        if holder is None:
            return
        assert holder.stdin is not None
        with contextlib.suppress(OSError):
            holder.stdin.close()
        try:
            holder.wait(RELEASE_SECONDS)
        except subprocess.TimeoutExpired:
            holder.kill()
            holder.wait()
        if holder.stdout is not None:
            holder.stdout.close()


def can_request_gpus() -> bool:
    """Whether a new allocation can be asked for GPUs: Slurm refuses the request if the cluster has none."""
    if "SLURM_JOB_ID" in os.environ:
        return False  # a step has all GPUs of its allocation
    try:
        done = subprocess.run(["sinfo", "-h", "-o", "%G"], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return False  # the launcher reports that Slurm is not installed
    return "gpu" in done.stdout


def _close_copy(find_pipe: Callable[[], IO[bytes] | None]) -> None:
    if (pipe := find_pipe()) is not None:
        with contextlib.suppress(OSError):
            pipe.close()


def _expand(node_list: str) -> list[str]:
    """Return the names of a node list such as `n[1-3]`."""
    done = subprocess.run(["scontrol", "show", "hostnames", node_list], capture_output=True, text=True, check=False)
    if done.returncode:
        raise LaunchError(f"scontrol cannot expand the node list {node_list!r}: {done.stderr.strip()}")
    return done.stdout.split()
