"""Monarch's jobs: sources of hosts that a program applies, stores in a file, finds again, and kills.

    job = ProcessJob({"trainers": 2})
    state = job.state()          # starts it, or attaches to the one of an earlier program
    procs = state.trainers.spawn_procs(per_host={"gpus": 8})

`ProcessJob` and `SlurmJob` run worker loops, which outlive the client; `LocalJob` ends with it. `commands` has the
functions that run programs on the hosts of a job.
"""

from __future__ import annotations

import contextlib
import math
import os
import pickle
import re
import secrets
import shlex
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from meshbook import hosts
from meshbook.runtime.config import current_settings, open_private, runtime_root
from meshbook.runtime.errors import LaunchError
from meshbook.runtime.hosts.launchers import agent_environment
from meshbook.runtime.hosts.worker_loop import COMMAND, worker_key
from meshbook.runtime.mesh.hosts import HostMesh

CACHE = ".monarch/job_state.pkl"
KILL_SECONDS = 5.0
LOOK_SECONDS = 0.2
LIVING = {"CONFIGURING", "COMPLETING", "PENDING", "RUNNING", "SUSPENDED"}  # states of squeue(1)


class JobState:
    """The hosts of a job: an attribute for each of its meshes."""

    def __init__(self, meshes: Mapping[str, HostMesh]) -> None:
        self._meshes = dict(meshes)

    def __getattr__(self, name: str) -> HostMesh:
        if name.startswith("_") or name not in self._meshes:
            raise AttributeError(f"the job has no mesh {name!r}; it has: {', '.join(self.__dict__.get('_meshes', ()))}")
        return self._meshes[name]


class JobTrait(ABC):
    """A job. A subclass starts it, finds its hosts, and ends it."""

    def __init__(self) -> None:
        self.apply_id = ""  # of the present start; empty: not applied
        self._attached: dict[str, HostMesh] = {}

    def apply(self, client_script: str | None = None) -> None:
        """Start the job, unless it is active. With a script, the job runs it as its client, and this call returns."""
        if not self.active:
            self._attached = {}
            self._start(client_script)
            self.apply_id = secrets.token_hex(8)

    def state(self, cached_path: str | os.PathLike[str] | None = CACHE) -> JobState:
        """Return the hosts of the job, which is started if it is not active.

        A job that is active and stored at `cached_path`, and can run this one's spec, is used instead. Otherwise a job
        that is stored there is killed, and this one is stored. Raises LaunchError if a host cannot be reached.
        """
        if not self.active and cached_path is not None and (cached := _load_cached(cached_path)) is not None:
            if cached.can_run(self) and cached.active:
                self.__dict__.update(cached.__dict__)
            else:
                cached.kill()
        self.apply()
        if cached_path is not None:
            self.dump(cached_path)
        if not self._attached or any(mesh.is_shut_down for mesh in self._attached.values()):
            self._attached = self._attach()
        return JobState(self._attached)

    def dump(self, filename: str | os.PathLike[str]) -> None:
        """Store the job in a file, for `job_load`."""
        path = Path(filename)
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "wb", opener=open_private) as file:
            file.write(self.dumps())

    def dumps(self) -> bytes:
        """Return the job as bytes, for `job_loads`."""
        return pickle.dumps(self)

    def kill(self) -> None:
        """End the job and all processes on its hosts."""
        self._end()
        self.apply_id, self._attached = "", {}

    @property
    @abstractmethod
    def active(self) -> bool:
        """Whether the job has been applied and has not ended."""

    def can_run(self, spec: JobTrait) -> bool:
        """Whether this job, if it is active, has what `spec` asks for."""
        return type(self) is type(spec) and self._spec() == spec._spec()

    @abstractmethod
    def _spec(self) -> Any: ...

    @abstractmethod
    def _start(self, client_script: str | None) -> None: ...

    @abstractmethod
    def _attach(self) -> dict[str, HostMesh]: ...

    @abstractmethod
    def _end(self) -> None: ...

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_attached": {}}  # another program attaches by itself


def job_load(filename: str | os.PathLike[str]) -> JobTrait:
    """Return the job that is stored in a file. Load only files that you trust: it is a pickle."""
    return job_loads(Path(filename).read_bytes())


def job_loads(data: bytes) -> JobTrait:
    """Return the job of `JobTrait.dumps`. Load only data that you trust: it is a pickle."""
    job = pickle.loads(data)
    if not isinstance(job, JobTrait):
        raise TypeError(f"the data holds a {type(job).__name__}, not a job")
    return job


def _load_cached(path: str | os.PathLike[str]) -> JobTrait | None:
    with contextlib.suppress(OSError):
        if Path(path).stat().st_uid == os.getuid():
            with contextlib.suppress(Exception):  # of another version, or damaged
                return job_load(path)
    return None


class LocalJob(JobTrait):
    """A host on this machine for each name; they end with this program."""

    def __init__(self, hosts: Sequence[str] = ("hosts",)) -> None:
        super().__init__()
        self._names = tuple(hosts)
        self._is_active = False

    @property
    def active(self) -> bool:
        return self._is_active

    def _spec(self) -> Any:
        return self._names

    def _start(self, client_script: str | None) -> None:
        if client_script is not None:
            subprocess.run([sys.executable, client_script], check=True)
            return
        self._is_active = True

    def _attach(self) -> dict[str, HostMesh]:
        return {name: hosts.local(1) for name in self._names}

    def _end(self) -> None:
        for ending in [mesh.shutdown() for mesh in self._attached.values() if not mesh.is_shut_down]:
            ending.get()
        self._is_active = False

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_is_active": False}


@dataclass(frozen=True)
class LoopProcess:
    """The process of a worker loop. Its start time tells it from a later process with the same pid."""

    pid: int
    started: float
    address: str

    def find(self) -> psutil.Process | None:
        """Return the process, or None if it has ended."""
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(self.pid)
            if process.create_time() == self.started and process.status() != psutil.STATUS_ZOMBIE:
                return process
        return None


class ProcessJob(JobTrait):
    """So many hosts for each mesh, as worker loops on this machine: a cluster to try programs.

    They outlive this program, until `kill` or the `shutdown` of their HostMesh. `env` is added to their environment.
    """

    def __init__(self, meshes: Mapping[str, int], env: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self._sizes = dict(meshes)
        self._env = dict(env or {})
        self._loops: dict[str, list[LoopProcess]] = {}

    @property
    def active(self) -> bool:
        return bool(self._loops) and all(loop.find() for loops in self._loops.values() for loop in loops)

    def _spec(self) -> Any:
        return self._sizes, self._env

    def _start(self, client_script: str | None) -> None:
        self._end()  # the rest of a job that has lost a process
        worker_key()
        folder = runtime_root(current_settings())
        for name, size in self._sizes.items():
            mark = secrets.token_hex(4)
            addresses = [f"ipc://{folder}/loop-{mark}-{index}" for index in range(size)]
            self._loops[name] = [self._start_loop(address) for address in addresses]
        if client_script is not None:
            self.dump(CACHE)
            subprocess.Popen([sys.executable, client_script], start_new_session=True)

    def _start_loop(self, address: str) -> LoopProcess:
        process = subprocess.Popen(
            [sys.executable, *COMMAND, "serve", address],
            env=agent_environment() | self._env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,  # it outlives this program: a reader of its output would wait for the loop
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        return LoopProcess(process.pid, psutil.Process(process.pid).create_time(), address)

    def _attach(self) -> dict[str, HostMesh]:
        return {
            name: hosts.attach([loop.address for loop in loops], name=name, environment=self._env)
            for name, loops in self._loops.items()
        }

    def _end(self) -> None:
        loops = [loop for loops in self._loops.values() for loop in loops]
        processes = [process for loop in loops if (process := loop.find()) is not None]
        for process in processes:
            with contextlib.suppress(psutil.Error):
                process.terminate()
        for process in psutil.wait_procs(processes, timeout=KILL_SECONDS)[1]:
            with contextlib.suppress(psutil.Error):
                process.kill()
        for loop in loops:
            Path(loop.address.removeprefix("ipc://")).unlink(missing_ok=True)
        self._loops = {}


class SlurmJob(JobTrait):
    """A Slurm job with a worker loop on each node: so many nodes for each mesh.

    A node belongs to the job alone unless `exclusive` is False. `slurm_args` are further options of sbatch. The loops
    listen at `monarch_port` of their nodes, which must share the home directory with this machine, or have a copy of
    its key (`worker_key`). `state` raises LaunchError if the job waits for more than `job_start_timeout` seconds; it
    then still waits, until `kill`.
    """

    def __init__(
        self,
        meshes: Mapping[str, int],
        python_exe: str = "",
        slurm_args: Sequence[str] = (),
        monarch_port: int = 22222,
        *,
        job_name: str = "meshbook",
        time_limit: str | None = None,
        partition: str | None = None,
        gpus_per_node: int | None = None,
        log_dir: str | None = None,
        exclusive: bool = True,
        ntasks_per_node: int = 1,
        cpus_per_task: int | None = None,
        mem: str | None = None,
        account: str | None = None,
        qos: str | None = None,
        job_start_timeout: float | None = None,
    ) -> None:
        super().__init__()
        self._sizes = dict(meshes)
        self._python = python_exe or sys.executable
        self._port = monarch_port
        self._start_timeout = math.inf if job_start_timeout is None else job_start_timeout
        named = {
            "job-name": job_name,
            "time": time_limit,
            "partition": partition,
            "gpus-per-node": gpus_per_node,
            "ntasks-per-node": ntasks_per_node,
            "cpus-per-task": cpus_per_task,
            "mem": mem,
            "account": account,
            "qos": qos,
        }
        self._options = [f"--{name}={value}" for name, value in named.items() if value is not None]
        self._options += ["--exclusive"] if exclusive else []
        self._options += [*slurm_args, f"--output={Path(log_dir) / 'slurm-%j.log' if log_dir else '/dev/null'}"]
        self._job = ""

    @property
    def active(self) -> bool:
        return self._job != "" and self._query("%T") in LIVING

    def _spec(self) -> Any:
        return self._sizes, self._python, self._port, self._options

    def _start(self, client_script: str | None) -> None:
        worker_key()
        loop = shlex.join([self._python, *COMMAND, "serve", f"tcp://0.0.0.0:{self._port}"])
        nodes = sum(self._sizes.values())
        # One loop on each node, whatever number of tasks the job has.
        script = f"#!/bin/sh\nsrun --ntasks={nodes} --ntasks-per-node=1 --overlap {loop}"
        if client_script is not None:
            script += f" &\n{shlex.quote(self._python)} {shlex.quote(client_script)}"
        hold = [] if client_script is None else ["--hold"]
        command = ["sbatch", "--parsable", *hold, f"--nodes={nodes}", *self._options]
        self._job = _run(command, script + "\n").strip().partition(";")[0]
        if client_script is not None:
            self.dump(CACHE)  # where its client finds the job
            _run(["scontrol", "release", self._job])

    def _attach(self) -> dict[str, HostMesh]:
        addresses = self._wait_for_nodes()
        found = {}
        for name, size in self._sizes.items():
            mine, addresses = addresses[:size], addresses[size:]
            found[name] = hosts.attach(mine, name=name)
        return found

    def _wait_for_nodes(self) -> list[str]:
        """Wait until the job runs; return the addresses of its loops. LaunchError if it ends before, or waits on."""
        end = time.monotonic() + self._start_timeout
        while (state := self._query("%T")) != "RUNNING":
            if state not in LIVING:
                raise LaunchError(f"Slurm job {self._job} is not running: {state or 'unknown'}")
            if time.monotonic() >= end:
                raise LaunchError(
                    f"Slurm job {self._job} has not started in {self._start_timeout:g} s: {state}; "
                    "wait on by state(), or end it by kill()"
                )
            time.sleep(LOOK_SECONDS)
        names = _run(["scontrol", "show", "hostnames", self._query("%N")]).split()
        return [f"tcp://{self._address_of(name)}:{self._port}" for name in names]

    def _address_of(self, node: str) -> str:
        found = re.search(r"NodeAddr=(\S+)", _run(["scontrol", "show", "node", node]))
        return found[1] if found else node

    def _query(self, what: str) -> str:
        try:
            return _run(["squeue", "-h", "-j", self._job, "-o", what]).strip()
        except LaunchError as error:
            if "Invalid job id" not in str(error):
                raise  # the job may be running
            return ""  # Slurm has forgotten it

    def _end(self) -> None:
        if self._job:
            with contextlib.suppress(LaunchError):
                _run(["scancel", self._job])
        self._job = ""


def _run(command: Sequence[str], script: str | None = None) -> str:
    try:
        done = subprocess.run(
            command, input=script, capture_output=True, text=True, check=False, env=agent_environment()
        )
    except FileNotFoundError as error:
        raise LaunchError(f"Slurm is not installed here: {error.filename} was not found") from error
    if done.returncode:
        raise LaunchError(f"`{' '.join(command)}` failed: {done.stderr.strip()}")
    return done.stdout
