"""A fake of `torch.cuda` for `runtime.devices`: it records calls with their threads, and has no GPU.

gpus = FakeCuda(count=4)
monkeypatch.setattr(devices, "cuda", lambda: gpus)
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from meshbook.runtime import devices


def install_fake(patch: pytest.MonkeyPatch, count: int = 4) -> FakeCuda:
    """Let this process have fake GPUs, of which it has used none."""
    made = FakeCuda(count)
    patch.setattr(devices, "cuda", lambda: made)
    patch.setattr(devices, "OWN_GPU", devices.OwnGpu())
    devices.OWN_GPU.install()
    devices.uuid_of.cache_clear()
    return made


def install_fake_in_rank() -> None:
    """Give this rank fake GPUs: a bootstrap."""
    made = FakeCuda(2)
    setattr(devices, "cuda", lambda: made)  # noqa: B010  # mypy: not assigned
    devices.OWN_GPU.install()


def use_gpu(size: int = 0) -> int:
    """Use the fake on this thread, in a rank, and allocate bytes; return the GPU."""
    devices.cuda().allocate(size)
    return int(devices.cuda().use())


def list_contexts() -> list[int]:
    """Return the GPUs on which this rank has a CUDA context."""
    return sorted(devices.cuda().contexts)


class FakeCuda:
    """The calls of `torch.cuda` that the runtime makes. `use()` is the first use of CUDA by the user's code."""

    def __init__(self, count: int = 1) -> None:
        self.count = count
        self.calls: list[tuple[Any, ...]] = []  # (name, thread, arguments...)
        self.memory = {"allocated": {"current": 0, "peak": 0, "allocated": 0}, "reserved": {"current": 0}}
        self.is_lost = False
        self.contexts: set[int] = set()  # the GPUs on which the process has a CUDA context
        self.capturing: set[int] = set()  # threads that capture a graph
        self._is_initialized = False
        self._queued: list[Callable[[], object]] = []
        self._local = threading.local()

    def use(self) -> int:
        """Use CUDA on this thread, as `torch.zeros(1, device="cuda")` does; return the GPU."""
        if not self._is_initialized:
            self._note("initialize")
            self._is_initialized = True
            for call in self._queued:
                call()
        return self.make_context()

    def make_context(self) -> int:
        """Create a context on the current GPU of this thread, as most calls do; return the GPU."""
        self.contexts.add(self.current_device())
        return self.current_device()

    def allocate(self, size: int) -> None:
        """Allocate bytes for tensors, or free them (a negative size)."""
        allocated = self.memory["allocated"]
        allocated["current"] += size
        allocated["allocated"] += max(0, size)
        allocated["peak"] = max(allocated["peak"], allocated["current"])
        self.memory["reserved"]["current"] = allocated["peak"]

    def named(self, *names: str) -> list[tuple[Any, ...]]:
        """Return the calls with these names."""
        return [call for call in self.calls if call[0] in names]

    def _note(self, name: str, *arguments: Any) -> None:
        self.calls.append((name, threading.current_thread().name, *arguments))

    # -- as in torch.cuda ----------------------------------------------------------------

    def is_initialized(self) -> bool:
        return self._is_initialized

    def _is_compiled(self) -> bool:
        return True

    def _lazy_call(self, call: Callable[[], object]) -> None:
        if self._is_initialized:
            call()
        else:
            self._queued.append(call)

    def device_count(self) -> int:
        return self.count

    def set_device(self, number: int) -> None:
        self._note("set_device", number)
        self._local.number = number
        self.make_context()

    @contextlib.contextmanager
    def device(self, which: Any) -> Iterator[None]:
        before = self.current_device()
        self._local.number = before if which is None else int(str(which).removeprefix("cuda:"))
        try:
            yield
        finally:
            self._local.number = before

    def current_device(self) -> int:
        return getattr(self._local, "number", 0)

    def set_stream(self, stream: FakeStream) -> None:
        self._note("set_stream", stream)
        self._local.stream = stream

    def current_stream(self, device: Any = None) -> FakeStream:
        return getattr(self._local, "stream", None) or FakeStream(self, "default")

    def Stream(self) -> FakeStream:
        return FakeStream(self, f"of {threading.current_thread().name}")

    def Event(self, enable_timing: bool = False) -> FakeEvent:
        return FakeEvent(self)

    def is_current_stream_capturing(self) -> bool:
        self.make_context()
        return threading.get_ident() in self.capturing

    def synchronize(self, device: Any = None) -> None:
        self._note("synchronize the device", device)

    def memory_stats_as_nested_dict(self) -> dict[str, Any]:
        if self.is_lost:
            raise RuntimeError("CUDA error: device-side assert triggered")
        return {f"{kind}_bytes": {"all": dict(figures)} for kind, figures in self.memory.items()}

    def mem_get_info(self) -> tuple[int, int]:
        return 1000 - self.memory["reserved"]["current"], 1000

    def get_device_properties(self, number: int) -> SimpleNamespace:
        return SimpleNamespace(uuid=f"uuid-{number}")


class FakeStream:
    """A stream: `name` is that of the thread which made it."""

    def __init__(self, gpus: FakeCuda, name: str) -> None:
        self._gpus = gpus
        self.name = name


class FakeEvent:
    """An event, which happens once `has_happened` is set; a wait for it is recorded and returns."""

    def __init__(self, gpus: FakeCuda) -> None:
        self._gpus = gpus
        self.stream = ""
        self.has_happened = True

    def record(self) -> None:
        self.stream = self._gpus.current_stream().name
        self._gpus.make_context()
        self._gpus._note("record", self.stream)

    def query(self) -> bool:
        self._gpus.make_context()
        self._gpus._note("query")
        return self.has_happened

    def synchronize(self) -> None:
        self._gpus.make_context()
        self._gpus._note("wait", self.stream)

    def wait(self, stream: FakeStream | None = None) -> None:
        self._gpus._note("stream waits", (stream or self._gpus.current_stream()).name)
