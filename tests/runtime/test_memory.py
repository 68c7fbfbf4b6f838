"""Whether memory ran out: the kernel's words and the counters of cgroups, over files that look like theirs."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshbook.runtime.hosts.oom import KernelLog, MemoryCgroups, OomDetector, OomKill, find_kill, read_limit

OF_GROUP = [
    "6,1,2,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/job,"
    "task_memcg=/job/step,task=python3,pid=4711,uid=0\n",
    "3,2,3,-;Memory cgroup out of memory: Killed process 4711 (python3) total-vm:323784kB, anon-rss:102400kB, "
    "file-rss:1024kB, shmem-rss:0kB, UID:0 pgtables:264kB oom_score_adj:0\n",
]
OF_MACHINE = ["3,4,5,-;Out of memory: Killed process 4712 (python3) total-vm:9kB, anon-rss:2097152kB, file-rss:0kB\n"]


@pytest.mark.parametrize(
    ("log", "pid", "found"),
    [
        (OF_GROUP, 4711, OomKill(101 << 20, True, "/job")),
        (OF_GROUP, 471, None),
        (OF_MACHINE, 4712, OomKill(2 << 30)),
        ([*OF_MACHINE, *OF_GROUP], 4712, OomKill(2 << 30)),
        ([*OF_GROUP, *OF_MACHINE], 4711, OomKill(101 << 20, True, "/job")),
        (OF_GROUP[1:], 4711, OomKill(101 << 20, True)),
        ([], 4711, None),
        (["6,1,2,-;Killed process 4711 by a person\n"], 4711, None),
    ],
)
def test_what_the_kernel_has_logged(log: list[str], pid: int, found: OomKill | None) -> None:
    assert find_kill(log, pid) == found


class Machine:
    """The files of a machine, of which this process is in the group `/job/step`."""

    def __init__(self, folder: Path, version: int) -> None:
        self.version = version
        self.proc, self.root = folder / "proc", folder / "cgroup"
        self.top = self.root / "memory" if version == 1 else self.root
        self.proc.mkdir()
        lines = ["3:cpu:/other", "2:memory:/job/step", "0::/"] if version == 1 else ["0::/job/step"]
        (self.proc / "cgroup").write_text("\n".join(lines) + "\n")
        for group in ("", "job", "job/step"):
            (self.top / group).mkdir(parents=True)
            self.kills(group, 0)

    def kills(self, group: str, count: int) -> None:
        name = "memory.oom_control" if self.version == 1 else "memory.events"
        (self.top / group / name).write_text(f"low 3\nunder_oom 0\noom_kill {count}\n")

    def limit(self, group: str, limit: str) -> None:
        name = "memory.limit_in_bytes" if self.version == 1 else "memory.max"
        (self.top / group / name).write_text(f"{limit}\n")

    def groups(self) -> MemoryCgroups:
        return MemoryCgroups(self.proc, self.root)


@pytest.fixture(params=[1, 2], ids=["version 1", "version 2"])
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Machine:
    return Machine(tmp_path, request.param)


def test_counters_that_have_risen_since(machine: Machine) -> None:
    machine.kills("job", 3)  # before: none of ours
    groups = machine.groups()
    assert groups.killed() is None
    machine.kills("job", 4)
    assert groups.killed() == machine.top / "job"
    assert groups.killed() is None
    machine.kills("job", 5)
    machine.kills("job/step", 1)
    assert groups.killed() == machine.top / "job/step"


def test_in_a_container_the_path_may_be_the_hosts(machine: Machine) -> None:
    (machine.proc / "cgroup").write_text("2:memory:/docker/0815\n" if machine.version == 1 else "0::/docker/0815\n")
    groups = machine.groups()
    machine.kills("", 1)
    assert groups.killed() == machine.top


def test_a_machine_without_groups(tmp_path: Path) -> None:
    assert MemoryCgroups(tmp_path / "proc", tmp_path / "cgroup").killed() is None


@pytest.mark.parametrize(
    ("limit", "read"),
    [("104857600", 100 << 20), ("max", None), ("9223372036854771712", None), ("", None)],
)
def test_limits(machine: Machine, limit: str, read: int | None) -> None:
    machine.limit("job", limit)
    assert read_limit(machine.top / "job") == read
    assert read_limit(machine.top / "nothing") is None


def explain(machine: Machine, log: list[str], *, pid: int = 4711, readable: bool = True, killed: str = "") -> str:
    class Log(KernelLog):
        def __init__(self) -> None:
            self._file = -1
            self._recent = log

        @property
        def is_readable(self) -> bool:
            return readable

    memory = OomDetector(Log(), machine.groups())
    machine.limit("job", str(512 << 20))
    if killed:
        machine.kills(killed, 1)
    return memory.explain(pid, 200 << 20)


def test_an_out_of_memory_kill_is_reported_as_far_as_it_is_known(machine: Machine) -> None:
    job = machine.top / "job"
    told = explain(machine, OF_GROUP)
    limit = f"(out of memory): its cgroup {job} may use 512 MiB"
    assert told.startswith(f"the operating system killed it {limit}, and it used 101 MiB")
    told = explain(machine, OF_MACHINE, pid=4712)
    assert told.startswith("the operating system killed it (out of memory): the machine has ")
    assert "and it used 2.0 GiB; add memory" in told
    told = explain(machine, [], killed="job")
    said = f"probably the operating system killed it {limit}, and it used up to 200 MiB"
    assert told.startswith(said)


@pytest.mark.parametrize(
    ("readable", "said"),
    [
        (True, "; the kernel's log shows no out-of-memory kill of this process"),
        (False, ", or the operating system was out of memory (see dmesg)"),
    ],
)
def test_nothing_is_known(machine: Machine, readable: bool, said: str) -> None:
    told = explain(machine, OF_MACHINE, readable=readable)
    assert told == f"a user or a program outside meshbook sent the signal{said}"
