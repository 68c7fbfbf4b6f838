"""Tests of `meshbook.log`: the values that it takes, the messages that leave, and what becomes of them."""

from __future__ import annotations

import contextvars
import enum
import fractions
import io
import math
import multiprocessing.process
import queue
import struct
import threading
from array import array
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy
import pytest

import meshbook
from meshbook import this_host
from meshbook.runtime.actor.context import CURRENT
from meshbook.runtime.hosts import session as sessions
from meshbook.runtime.hosts.in_process import InProcessSession
from meshbook.runtime.telemetry import point_recorder
from meshbook.runtime.telemetry.loggable import Histogram, Picture, loggable
from meshbook.runtime.telemetry.point_recorder import PointRecorder
from meshbook.runtime.telemetry.points import NOTEBOOK, Logged, LoggedMedia, LoggedPoints
from tests.support import PATIENCE, Probe


class Sink:
    """A recorder whose messages are kept."""

    def __init__(self) -> None:
        self.sent: queue.SimpleQueue[Logged] = queue.SimpleQueue()
        self.recorder = PointRecorder(self.sent.put, lambda: ("mesh", 3))

    def log(self, step: float = math.nan, origin: str = "cell", **values: Any) -> None:
        self.recorder.add(origin, step, values)

    def messages(self) -> list[Logged]:
        self.recorder.flush()
        return [self.sent.get() for _ in range(self.sent.qsize())]

    def curves(self) -> dict[str, list[float]]:
        found: dict[str, list[float]] = {}
        for message in self.messages():
            assert isinstance(message, LoggedPoints)
            for points in message.points:
                found.setdefault(points.metric, []).extend(array("d", points.values))
        return found


@pytest.fixture
def sink(monkeypatch: pytest.MonkeyPatch) -> Iterator[Sink]:
    """Its thread does not start, so that tests decide when messages leave."""
    made = Sink()
    monkeypatch.setattr(made.recorder, "_start", lambda thread: None)
    yield made
    made.recorder.close()


def test_calls_become_one_message_for_each_execution(sink: Sink) -> None:
    sink.log(0, loss=1.0, lr=0.5)
    sink.log(1, loss=2.0)
    sink.log(0, loss=3.0, origin="other")
    first, second = sink.messages()
    assert isinstance(first, LoggedPoints)
    assert isinstance(second, LoggedPoints)
    assert (first.mesh, first.rank, first.origin, second.origin) == ("mesh", 3, "cell", "other")
    loss, rate = first.points
    assert (loss.metric, list(array("d", loss.steps)), list(array("d", loss.values))) == ("loss", [0, 1], [1, 2])
    assert (rate.metric, list(array("d", rate.values))) == ("lr", [0.5])
    assert [points.metric for points in second.points] == ["loss"]


def test_default_steps_take_no_room(sink: Sink) -> None:
    sink.log(loss=1.0)
    [message] = sink.messages()
    assert isinstance(message, LoggedPoints)
    [points] = message.points
    assert points.steps == b""
    sink.log(loss=1.0)
    sink.log(7, loss=1.0)
    [message] = sink.messages()
    assert isinstance(message, LoggedPoints)
    first, second = array("d", message.points[0].steps)
    assert math.isnan(first)
    assert second == 7


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (3, 3.0),
        (True, 1.0),
        (10**308, 1e308),
        (math.inf, math.inf),
        (fractions.Fraction(1, 4), 0.25),
        (numpy.float32(0.5), 0.5),
        (numpy.int64(7), 7.0),
        (numpy.array(2.5), 2.5),
        (numpy.array([2.5]), 2.5),
    ],
    ids=str,
)
def test_numbers_of_any_kind(sink: Sink, value: Any, number: float) -> None:
    sink.log(x=value)
    assert sink.curves() == {"x": [number]}


@pytest.mark.parametrize("value", [10**400, -(10**400), fractions.Fraction(10**400), numpy.longdouble("1e400")])
def test_a_number_too_large_for_a_float_is_refused(sink: Sink, value: Any) -> None:
    if value == math.inf:
        pytest.skip("a long double is a double on this machine")
    with pytest.raises(ValueError, match="x is beyond the largest finite float"):
        sink.log(x=value)
    assert sink.curves() == {}


def test_nan_is_a_value(sink: Sink) -> None:
    sink.log(x=math.nan)
    assert math.isnan(sink.curves()["x"][0])


def test_tensors_with_one_element(sink: Sink) -> None:
    torch = pytest.importorskip("torch")
    sink.log(loss=torch.tensor(0.5, requires_grad=True), half=torch.tensor([2.0], dtype=torch.bfloat16))
    assert sink.curves() == {"loss": [0.5], "half": [2.0]}


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("abc", "loss is a str: 'abc'"),
        (None, "loss is a NoneType"),
        (1j, "loss is a complex"),
        (numpy.zeros((2, 3)), r"loss has 6 elements, shape \(2, 3\)"),
        (numpy.zeros(0), "loss has 0 elements"),
        ([1.0], "loss is a list"),
    ],
    ids=["text", "none", "complex", "matrix", "empty", "list"],
)
def test_other_values_are_refused_at_the_call(sink: Sink, value: Any, said: str) -> None:
    with pytest.raises(TypeError, match=said):
        sink.log(lr=0.1, loss=value)
    assert sink.messages() == []


class GpuNumber:
    """A value that is still on its way from a GPU."""

    def __init__(self) -> None:
        self.is_there = False
        self.waits = 0

    def has_arrived(self) -> bool:
        return self.is_there

    def read(self) -> float:
        self.waits += not self.is_there
        return 0.25


def test_a_value_on_a_gpu_is_sent_when_it_has_arrived(sink: Sink, monkeypatch: pytest.MonkeyPatch) -> None:
    there, copy = SimpleNamespace(is_cuda=True, shape=(), item=lambda: 1 / 0), GpuNumber()
    monkeypatch.setattr("meshbook.runtime.telemetry.loggable._Copy", lambda tensor: copy)
    sink.log(loss=1.0)
    sink.log(loss=there)
    sink.log(loss=3.0)
    assert sink.curves() == {"loss": [1.0]}  # what comes after it waits as well: points stay in order
    copy.is_there = True
    assert sink.curves() == {"loss": [0.25, 3.0]}
    assert copy.waits == 0


def test_closing_waits_for_values_on_a_gpu(sink: Sink, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = GpuNumber()
    monkeypatch.setattr("meshbook.runtime.telemetry.loggable._Copy", lambda tensor: copy)
    sink.log(loss=SimpleNamespace(is_cuda=True, shape=(), item=lambda: 1 / 0))
    sink.recorder.close()
    assert sink.curves() == {"loss": [0.25]}


def test_points_beyond_the_limit_are_dropped_and_counted(sink: Sink, monkeypatch: pytest.MonkeyPatch, caplog) -> None:
    monkeypatch.setattr(point_recorder, "MOST_ROWS", 2)
    for value in range(4):
        sink.log(a=value, b=value)
    first = sink.messages()[0]
    assert isinstance(first, LoggedPoints)
    assert first.dropped == 4
    assert "dropped 4 points" in caplog.text
    sink.log(a=9)
    assert sink.curves() == {"a": [9.0]}


def test_names_that_the_program_logs_are_known(sink: Sink) -> None:
    sink.recorder.add_own("cell", 1.0, {"loss": 1.0})
    sink.log(lr=1.0)
    assert sink.curves() == {"loss": [1.0], "lr": [1.0]}
    assert not sink.recorder.is_logged("loss")
    sink.log(loss=2.0)
    sink.messages()
    assert sink.recorder.is_logged("loss")


def test_the_thread_sends_by_itself() -> None:
    sink = Sink()
    sink.log(loss=1.0)
    assert isinstance(sink.sent.get(timeout=PATIENCE), LoggedPoints)
    sink.log(loss=2.0)  # it may be asleep by now
    assert isinstance(sink.sent.get(timeout=PATIENCE), LoggedPoints)
    sink.recorder.close()


def test_a_message_that_cannot_be_sent_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    sent: list[Logged] = []

    def send(logged: Logged) -> None:
        if not caplog.records:
            raise RuntimeError("no connection")
        sent.append(logged)

    recorder = PointRecorder(send, lambda: ("mesh", 0))
    recorder.add("", 0.0, {"a": 1.0})
    recorder.flush()
    recorder.close()
    recorder.add("", 1.0, {"a": 1.0})
    recorder.flush()
    assert len(sent) == 1


def test_threads_that_log_at_the_same_time_start_one_sender(monkeypatch: pytest.MonkeyPatch) -> None:
    sink, starts = Sink(), 0

    def start(thread: threading.Thread) -> None:
        nonlocal starts
        starts += 1
        if starts < 10:
            sink.log(loss=2.0)  # as another thread may, before the new one runs

    monkeypatch.setattr(threading.Thread, "start", start)
    sink.log(loss=1.0)
    assert starts == 1


def test_names_are_plain_text(sink: Sink) -> None:
    class Name(enum.StrEnum):
        LOSS = "loss"

    sink.recorder.add("cell", 0.0, {Name.LOSS: 1.0, "half \ud800": 2.0})
    [message] = sink.messages()
    assert isinstance(message, LoggedPoints)
    assert [(type(points.metric), points.metric) for points in message.points] == [(str, "loss"), (str, "half ?")]


def test_images_that_wait_are_bounded(sink: Sink, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(point_recorder, "MOST_IMAGE_BYTES", 10)
    for _ in range(4):
        sink.log(sample=Picture(b"1234567890"))
    dropped, *images = sink.messages()
    assert isinstance(dropped, LoggedPoints)
    assert (dropped.points, dropped.dropped, len(images)) == ((), 2, 2)
    sink.log(sample=Picture(b"1234567890"))
    assert len(sink.messages()) == 1


@pytest.mark.gpu
def test_logging_does_not_wait_for_a_gpu(sink: Sink) -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    values = torch.arange(8.0, device="cuda")
    pixels = torch.zeros(2, 4, dtype=torch.uint8, device="cuda").T
    torch.cuda.set_sync_debug_mode("error")
    try:
        sink.log(loss=values.mean(), weights=Histogram(values, bins=2), sample=pixels)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    sink.recorder.flush(wait=True)
    points, histogram, image = sink.messages()
    assert isinstance(image, LoggedMedia)
    assert (image.kind, struct.unpack(">II", image.data[16:24])) == ("image", (2, 4))
    assert isinstance(points, LoggedPoints)
    assert list(array("d", points.points[0].values)) == [3.5]
    assert isinstance(histogram, LoggedMedia)
    assert list(array("d", histogram.data)) == [4, 4, 0, 3.5, 7]


# -- histograms and images -----------------------------------------------------------


def media_of(sink: Sink) -> LoggedMedia:
    [message] = sink.messages()
    assert isinstance(message, LoggedMedia)
    return message


def test_a_histogram_counts_finite_values(sink: Sink) -> None:
    values = numpy.array([[0.0, 1.0], [3.9, 4.0], [math.nan, math.inf]])
    histogram = Histogram(values, bins=4)
    assert histogram.edges == [0, 1, 2, 3, 4]
    assert histogram.counts == [1, 1, 0, 2]
    sink.log(2, weights=histogram)
    sent = media_of(sink)
    assert (sent.metric, sent.kind, sent.step) == ("weights", "histogram", 2)
    assert list(array("d", sent.data)) == [1, 1, 0, 2, 0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    "values",
    [[], [2.0, 2.0], [math.nan], [1e300], [-1.7e308, 1.7e308]],
    ids=["empty", "flat", "nan", "large", "far apart"],
)
def test_a_histogram_has_rising_edges(values: list[float]) -> None:
    histogram = Histogram(values, bins=3)
    assert len(histogram.edges) == 4
    assert all(numpy.diff(histogram.edges) > 0)
    assert sum(histogram.counts) == sum(map(math.isfinite, values))


def test_a_histogram_of_tensors() -> None:
    torch = pytest.importorskip("torch")
    for dtype in (torch.float64, torch.bfloat16, torch.int64):
        assert Histogram(torch.tensor([0, 1, 1, 2], dtype=dtype), bins=2).counts == [1, 3]


def test_bins_that_are_counted_as_on_a_gpu() -> None:
    torch = pytest.importorskip("torch")
    from meshbook.runtime.telemetry import loggable as module

    class OnCpu:
        def __init__(self, tensor: Any) -> None:
            self.tensor = tensor

        def read_all(self) -> list[float]:
            return self.tensor.tolist()

    values = torch.tensor([0.0, 1.0, 3.9, 4.0, math.nan, math.inf])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_Copy", OnCpu)
        *counts, low, high = module._bin_on_gpu(values, 4).read_all()
    assert (counts, low, high) == ([1, 1, 0, 2], 0, 4)


@pytest.mark.parametrize(
    ("values", "bins", "error"), [(["a"], 4, TypeError), ([1j], 4, TypeError), ([1], 0, ValueError)]
)
def test_histograms_of_something_else(values: list[Any], bins: int, error: type[Exception]) -> None:
    with pytest.raises(error):
        Histogram(values, bins)


@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 1), (2, 3, 3), (2, 3, 4)], ids=str)
def test_arrays_of_bytes_are_images(sink: Sink, shape: tuple[int, ...]) -> None:
    image = pytest.importorskip("PIL.Image")
    pixels = numpy.arange(math.prod(shape), dtype=numpy.uint8).reshape(shape)
    sink.log(sample=pixels)
    sent = media_of(sink)
    assert sent.kind == "image"
    decoded = numpy.asarray(image.open(io.BytesIO(sent.data)))
    assert (decoded.reshape(shape) == pixels).all()


@pytest.mark.process  # matplotlib runs fc-list at its first import by this user
def test_pictures_and_figures_are_images(sink: Sink) -> None:
    image = pytest.importorskip("PIL.Image")
    figures = pytest.importorskip("matplotlib.figure")
    sink.log(picture=image.new("RGB", (5, 4)), figure=figures.Figure())
    for message in sink.messages():
        assert isinstance(message, LoggedMedia)
        assert message.data.startswith(b"\x89PNG")
        assert struct.unpack(">II", message.data[16:24])[0] > 0


def test_an_array_of_floats_is_no_image() -> None:
    with pytest.raises(TypeError, match="elements"):
        loggable("x", numpy.zeros((2, 3, 3)))


# -- meshbook.log in a run -------------------------------------------------------------


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Iterator[InProcessSession]:
    session = InProcessSession()
    monkeypatch.setattr(sessions._Current, "session", session)
    yield session
    session.close()


def values_of(session: InProcessSession, metric: str, rank: int) -> list[float]:
    session.curves.flush()
    return list(session.curves.series(metric, "script", rank)[2])


def test_points_of_an_endpoint_are_there_with_its_answer(run: InProcessSession) -> None:
    def train(start: float) -> None:
        for step in range(3):
            meshbook.log({"train/loss": start + step}, step=step, lr=0.1)

    probes = this_host().spawn_procs(per_host={"gpus": 2}).spawn("probe", Probe)
    probes.run.call(train, 10.0).get(PATIENCE)
    assert values_of(run, "train/loss", 1) == [10, 11, 12]
    assert run.curves.ranks("lr", "script") == [0, 1]
    # Also if it raises, and from a slice, whose ranks are those of the mesh.
    with pytest.raises(meshbook.ActorError):
        probes.slice(gpus=1).run.call(lambda: [train(5.0), 1 / 0]).get(PATIENCE)
    assert values_of(run, "train/loss", 1) == [10, 11, 12, 5, 6, 7]
    assert values_of(run, "train/loss", 0) == [10, 11, 12]


def test_threads_of_an_endpoint_log_for_their_rank(run: InProcessSession) -> None:
    def work() -> None:
        here = contextvars.copy_context()
        started = threading.Thread(target=here.run, args=(lambda: meshbook.log(x=1.0),))
        started.start()
        started.join()

    this_host().spawn_procs(per_host={"gpus": 1}).spawn("probe", Probe).run.call(work).get(PATIENCE)
    assert values_of(run, "x", 0) == [1]


def test_the_controller_logs_for_itself(run: InProcessSession) -> None:
    CURRENT.set(None)
    meshbook.log(step=4, loss=0.5)
    run.node.points.flush()
    assert values_of(run, "loss", NOTEBOOK) == [0.5]


def test_a_step_must_be_a_number(run: InProcessSession) -> None:
    with pytest.raises(TypeError, match="step is a str"):
        meshbook.log(step="one", loss=1.0)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="mapping"):
        meshbook.log(5, loss=1.0)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="strings"):
        meshbook.log({3: 1.0})  # type: ignore[dict-item]
    for step in (math.inf, math.nan, -(10**400)):
        with pytest.raises(ValueError, match="finite"):
            meshbook.log(step=step, loss=1.0)


def test_a_child_of_multiprocessing_starts_no_run(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sessions._Current, "session", None)
    monkeypatch.setattr(multiprocessing.process, "parent_process", lambda: SimpleNamespace())
    point_recorder.warn_in_child.cache_clear()
    token = CURRENT.set(None)
    try:
        for _ in range(2):
            meshbook.log(loss=1.0)
        meshbook.curves.SummaryWriter().flush()
    finally:
        CURRENT.reset(token)
    assert ["child process" in record.message for record in caplog.records] == [True]
    assert sessions.running_session() is None


def test_messages_are_small() -> None:
    sink = Sink()
    for step in range(5000):
        sink.recorder._rows.append(("", float(step), 1e9, {"loss": 1.0}))
    sizes = [len(message.points[0].values) // 8 for message in sink.messages() if isinstance(message, LoggedPoints)]
    assert sum(sizes) == 5000
    assert max(sizes) <= point_recorder.ROWS_AT_ONCE
