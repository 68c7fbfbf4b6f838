"""A program for ipyparallel. It prints the same line of JSON with ipyparallel itself and with the stand-in."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import io
import itertools
import json
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

import ipyparallel as ipp
import joblib
from ipyparallel.client.asyncresult import AsyncResult
from ipyparallel.client.view import DirectView
from ipyparallel.controller.dependency import Dependency
from ipyparallel.error import CompositeError, RemoteError
from ipyparallel.util import interactive

found: dict[str, object] = {}


def name_error(work):
    try:
        work()
    except Exception as error:
        return getattr(error, "ename", None) or type(error).__name__
    return "nothing was raised"


def shown(work):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        work()
    return [out.getvalue(), err.getvalue()]


def square(x):
    return x * x


def invert(x):
    return 1 / x


def speak(x):
    import sys

    print("said", x)
    print("complained", x, file=sys.stderr)
    return x


def nap(seconds):
    import time

    time.sleep(seconds)
    return seconds


def publish(x):
    from ipyparallel.datapub import publish_data

    publish_data({"x": x, "last": x})
    publish_data({"last": [x]})


def begin(mark):
    import time

    open(mark, "w").close()
    time.sleep(60)


def engine():
    import os

    return os.getpid()


with ipp.Cluster(n=2, log_level=40) as rc:
    rc.wait_for_engines(2)
    dv, lv = rc[:], rc.load_balanced_view()
    pids = dv.apply_sync(engine)

    # -- which engines
    found["views"] = [
        rc.ids,
        len(rc),
        len(dv),
        len(lv),
        rc[0].targets,
        rc[-1].targets,
        rc[[0, 1]].targets,
        rc[::2].targets,
    ]
    found["no such engine"] = [name_error(lambda: rc[5]), name_error(lambda: rc.direct_view("some"))]
    found["one engine"] = [rc[1].apply_sync(engine) == pids[1], rc[[1]].apply_sync(engine) == pids[1:]]
    found["broadcast"] = rc.broadcast_view().apply_sync(engine) == pids
    found["targets"] = [
        lv.map_sync(lambda x: x, range(3)),
        rc.load_balanced_view(targets=[1]).apply_sync(engine) == pids[1],
    ]
    with lv.temp_flags(targets=[0]):
        found["flags"] = [lv.targets, lv.apply_sync(engine) == pids[0]]
    found["flags after"] = [lv.targets, name_error(lambda: lv.set_flags(colour=1))]
    with dv.temp_flags(block=True):
        found["blocking"] = dv.apply(square, 3)
    found["not blocking"] = type(dv.apply(square, 3)).__name__

    # -- results
    ar = dv.apply_async(speak, 1)
    called = threading.Event()
    got = []
    ar.add_done_callback(lambda result: (got.append(result is ar), called.set()))
    found["get"] = [ar.get(), ar.r, ar.result(), ar.get(timeout=1), ar.ready(), ar.done(), ar.successful(), len(ar)]
    called.wait(30)
    ar.wait_for_output(30)
    found["callback"] = got
    found["dictionary"] = [ar.get_dict(), ar.result_dict]
    found["progress"] = ar.progress
    found["times"] = [
        ar.elapsed >= 0,
        ar.wall_time >= ar.serial_time / 2 >= 0,
        ar.timedelta(ar.submitted, ar.received) >= 0,
        all(sent <= began for sent, began in zip(ar.submitted, ar.started, strict=True)),
    ]
    found["metadata"] = [
        sorted({*ar.metadata[0]} - {"is_broadcast", "is_coalescing"}),
        ar.engine_id,
        ar.status,
        ar.stdout,
        ar["stderr"],
        ar.metadata[0].engine_id,
    ]
    found["indexed"] = [ar[0], ar[0:2], list(ar)]
    found["shown"] = shown(ar.display_outputs)
    found["shown by engine"] = shown(lambda: ar.display_outputs("engine"))
    found["shown otherwise"] = name_error(lambda: ar.display_outputs("colour"))
    one = rc[0].apply_async(speak, 2)
    one.get()
    one.wait_for_output(30)
    found["single"] = [one.metadata.engine_id, one.stdout, len(one), one.get_dict(), shown(one.display_outputs)]
    found["single is no list"] = name_error(lambda: list(one))
    slow = rc[0].apply_async(nap, 0.5)
    found["not ready"] = [
        *(slow.ready(), slow.progress, repr(slow)),
        *(name_error(lambda: slow.get(0.01)), name_error(slow.successful), name_error(lambda: slow.wall_time)),
        slow.wait(0.01),
    ]
    found["ready"] = [slow.wait(), slow.get(), repr(slow), name_error(slow.abort)]
    parts = dv.apply_async(square, 4).split()
    found["split"] = [sorted(part.get() for part in parts), ipp.AsyncResult.join(*parts).get()]
    found["waited for"] = len(concurrent.futures.wait([dv.apply_async(square, 1), lv.apply_async(square, 1)]).done)
    found["again"] = rc.get_result(one.msg_ids[0]).get() in (2, [2])

    # -- maps
    lar = lv.map_async(square, range(10))
    found["map"] = [len(lar), lar.get(), lar.progress, list(lar)]
    found["map in chunks"] = [
        len(lv.map_async(square, range(10), chunksize=3)),
        lv.map_sync(square, range(10), chunksize=3),
    ]
    found["map as done"] = [
        sorted(lv.map_async(square, range(5), ordered=False)),
        sorted(lv.imap(square, range(5), ordered=False)),
    ]
    found["map of several"] = [lv.map_sync(pow, [2, 3], [4, 5]), dv.map_sync(pow, [2, 3, 4], [4, 5, 6])]
    dar = dv.map_async(square, range(7))
    found["direct map"] = [len(dar), dar.get(), list(dar), dar.progress, len(dar.msg_ids)]
    endless = lv.imap(square, itertools.count())
    found["endless"] = [next(endless) for _ in range(5)]
    endless.cancel()
    found["lazy in order"] = list(lv.imap(square, iter(range(6)), max_outstanding=2))

    @dv.parallel(block=True)
    def total(part):
        return [sum(part)]

    @lv.parallel(block=True, chunksize=2)
    def tripled(part):
        return [3 * x for x in part]

    @dv.remote(block=True)
    def plus(x, y=1):
        return x + y

    found["decorated"] = [total(range(10)), tripled(list(range(5))), plus(1, y=2), total.map([[1, 2], [3]])]

    # -- errors
    try:
        lv.apply_sync(invert, 0)
    except ipp.RemoteError as error:
        found["error"] = [error.ename, error.evalue, isinstance(error, ipp.error.RemoteError)]
        found["error shown"] = "division by zero" in shown(error.print_traceback)[0]
    try:
        dv.apply_sync(invert, 0)
    except ipp.CompositeError as error:
        found["errors"] = [len(error.elist), error.elist[0][:2], error.elist[1][3]["engine_id"], error.msg]
        found["errors shown"] = shown(error.print_traceback)[0].count("division by zero")
        found["error of one"] = name_error(error.raise_exception)
    mixed = lv.map_async(invert, [1, 0, 2], return_exceptions=True).get()
    found["errors as values"] = [mixed[0], getattr(mixed[1], "ename", None), mixed[2]]
    try:
        lv.map_sync(invert, [1, 0, 2, 0])
    except ipp.CompositeError as error:
        found["errors of a map"] = len(error.elist)
    failing = lv.apply_async(invert, 0)
    failing.wait()
    found["failed"] = [failing.successful(), failing.status, repr(failing), failing.exception().ename]

    # -- variables
    dv.push({"a": 1, "b": 2}, block=True)
    rc[0].push({"a": 10}, block=True)
    dv.push({"c": 3}, targets=1, block=True)
    found["pulled"] = [
        dv["a"],
        dv.pull(["a", "b"], block=True),
        dv.pull("b", targets=0, block=True),
        rc[0]["a"],
        dv.pull("a").get(),
    ]
    found["missing"] = [name_error(lambda: rc[0]["c"]), rc[0]["a + b"]]
    dv.scatter("part", list(range(7)), block=True)
    found["scattered"] = [dv["part"], dv.gather("part", block=True), dv.gather("part").get()]
    dv.scatter("id", rc.ids, flatten=True, block=True)
    found["flattened"] = dv["id"]
    found["reference"] = [dv.apply_sync(square, ipp.Reference("a")), dv.apply_sync(sum, [ipp.Reference("a"), 1])]
    dv.execute("import math\ntwice = 2 * a", block=True)
    found["executed"] = dv["twice"]
    found["some executed"] = [len(dv.execute("d = 4", targets=0, block=True)), rc[0]["d"]]
    said = dv.execute("print('from', id)\nid * 2", silent=False)
    said.get()
    said.wait_for_output(30)
    found["said"] = [said.stdout, [each["data"]["text/plain"] for each in said.execute_result]]
    with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
        file.write("ran = a + b\n")
        file.flush()
        dv.run(file.name, block=True)
    found["ran"] = dv["ran"]

    # -- dependencies
    @ipp.require("math", square, factor=3)
    def needs(x):
        return factor * square(math.sqrt(x))  # noqa: F821

    @ipp.interactive
    def sees():
        return b  # noqa: F821

    @ipp.depend(lambda wanted: id == wanted, 1)
    def only_on_one():
        return id

    found["required"] = [round(lv.apply_sync(needs, 4), 6), lv.apply_sync(sees)]
    found["depends"] = [lv.apply_sync(only_on_one) for _ in range(3)]
    first = lv.apply_async(engine)
    with lv.temp_flags(after=first):
        found["after"] = lv.apply_async(square, 5).get()
    failing = lv.apply_async(invert, 0)
    failing.wait()

    def after(*dependencies, **options):
        with lv.temp_flags(after=ipp.Dependency(*dependencies, **options)):
            return lv.apply_async(square, 6).get()

    found["dependencies"] = [
        after([first, first]),
        after(first.msg_ids),
        after(failing, success=False, failure=True),
        after([first, failing], all=False),
        name_error(lambda: after(failing)),
        name_error(lambda: after([first, failing])),
        name_error(lambda: after(first, success=False, failure=True)),
        name_error(lambda: ipp.Dependency(first, success=False)),
        issubclass(ipp.error.ImpossibleDependency, ipp.error.UnmetDependency),
    ]
    published = [dv.apply_async(publish, 3), lv.apply_async(publish, 4)]
    for each in published:
        each.get()
        each.wait_for_output()
    found["published"] = [each.data for each in published]
    chunks = lv.map_async(square, range(10), chunksize=4)
    found["chunks"] = [len(chunks.msg_ids), len(chunks), chunks.get(), chunks.progress]
    bad = lv.map_async(invert, [1, 0, 2, 4], chunksize=2, return_exceptions=True)
    found["chunks that fail"] = [getattr(each, "ename", each) for each in bad.get()]
    with lv.temp_flags(follow=first):
        found["follow"] = lv.apply_sync(engine) == first.get()

    # -- the client
    napping = rc[0].apply_async(nap, 0.5)
    found["waited"] = [
        rc.wait(dv.apply_async(square, 2)),
        rc.wait([lv.apply_async(square, 2)], 30),
        rc.wait(napping, 0.01),
    ]
    found["slept"] = napping.get()
    status = rc.queue_status()
    found["status"] = [sorted(map(str, status)), sorted(status[0]), status["unassigned"], rc.queue_status(0)["queue"]]
    with rc.executor() as pool:
        found["executor"] = [pool.submit(pow, 2, 3).result(), list(pool.map(square, range(4)))]
    ipp.register_joblib_backend()
    lv.register_joblib_backend("of a view")
    with joblib.parallel_backend("of a view"):
        found["joblib"] = joblib.Parallel(n_jobs=2)(joblib.delayed(pow)(x, 2) for x in range(6))
    rc.clear(block=True)
    found["cleared"] = name_error(lambda: rc[0]["a"])

# -- sets of engines

found["modules"] = [issubclass(CompositeError, RemoteError) or CompositeError is RemoteError, callable(interactive)]


async def use_sets():
    async with ipp.Cluster(n=1, log_level=40) as rc:
        return [len(rc), isinstance(rc[:], DirectView), isinstance(rc[:].apply_async(engine), AsyncResult)]


found["a cluster on an event loop"] = asyncio.run(use_sets())
cluster = ipp.Cluster(n=1, log_level=40)
cluster.start_controller_sync()
first = cluster.start_engines_sync()
second = cluster.start_engines_sync(n=1, engine_set_id="more")
rc = cluster.connect_client_sync()
rc.wait_for_engines(2)
found["sets"] = [len(rc), second, list(cluster.engines) == [first, second], isinstance(Dependency([]), set)]
mark = tempfile.mktemp()
running = rc[0].apply_async(begin, mark)
while not Path(mark).exists():
    time.sleep(0.01)
Path(mark).unlink()
cluster.signal_engines_sync(signal.SIGINT, first)
found["interrupted"] = name_error(running.get)
cluster.stop_engines_sync(second)
found["sets that are left"] = list(cluster.engines) == [first]
cluster.stop_cluster_sync()

print(json.dumps(found, default=str))
sys.stdout.flush()
