"""What is known of a running cell, and the events that reach it from other threads."""

from __future__ import annotations

import asyncio
import threading

from meshbook.magics.cells.state import CellInbox, CellState
from meshbook.runtime.cells.outcome import CellCost, CellOutcome, RankError
from tests.support import PATIENCE

DONE = CellOutcome(CellCost(wall=0.1, cpu=0.1, peak_rss=1))
BAD = RankError("raised", "ValueError", "bad")


def in_thread(work: object) -> None:
    thread = threading.Thread(target=work)  # type: ignore[arg-type]
    thread.start()
    thread.join(PATIENCE)


def test_a_rank_is_silent_until_it_has_an_outcome() -> None:
    state = CellState(range(3))
    state.note(2, CellOutcome(DONE.cost, error=BAD))
    state.note(0, DONE)
    assert (state.silent, state.failed, state.errors) == ({1}, [2], {2: BAD})
    more = RankError("died", "ProcessDied", "worse")
    state.replace_errors({2: more})
    assert (state.errors, state.outcomes[0]) == ({2: more}, DONE)


def test_an_event_wakes_the_loop_and_runs_there() -> None:
    async def main() -> None:
        inbox, ran = CellInbox(), []
        in_thread(lambda: inbox.put(lambda: ran.append(threading.current_thread())))
        await inbox.wait(PATIENCE)
        assert ran == []
        inbox.handle()
        assert ran == [threading.main_thread()]

    asyncio.run(main())


def test_an_event_that_is_not_urgent_waits_for_one_that_is() -> None:
    async def main() -> None:
        inbox, ran = CellInbox(), []
        waiting = asyncio.ensure_future(inbox.wait(PATIENCE))
        await asyncio.sleep(0)
        in_thread(lambda: inbox.put(lambda: ran.append(1), urgent=False))
        await asyncio.sleep(0)
        assert not waiting.done()
        in_thread(lambda: inbox.put(lambda: ran.append(2)))
        await waiting
        inbox.handle()
        assert ran == [1, 2]

    asyncio.run(main())


def test_the_loop_waits_no_longer_than_its_limit() -> None:
    async def main() -> None:
        await CellInbox().wait(0.0)

    asyncio.run(main())


def test_after_the_end_an_event_runs_where_it_comes() -> None:
    ran: list[str] = []

    async def main() -> CellInbox:
        inbox = CellInbox()
        inbox.put(lambda: ran.append("before"), urgent=False)
        inbox.close()
        return inbox

    inbox = asyncio.run(main())
    assert ran == ["before"]
    in_thread(lambda: inbox.put(lambda: ran.append(threading.current_thread().name[:6])))
    assert ran == ["before", "Thread"]


def test_each_event_runs_once_though_threads_put_some_while_the_inbox_closes() -> None:
    ran: list[int] = []

    async def main() -> None:
        inbox = CellInbox()

        def put() -> None:
            for _ in range(1000):
                inbox.put(lambda: ran.append(1))

        threads = [threading.Thread(target=put) for _ in range(4)]
        for thread in threads:
            thread.start()
        inbox.close()
        for thread in threads:
            thread.join(PATIENCE)

    asyncio.run(main())
    assert len(ran) == 4000
