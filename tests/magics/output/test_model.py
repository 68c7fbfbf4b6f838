"""The output area of a cell: what is published when, and that it stays small. The time is a number."""

import time
import tracemalloc
from dataclasses import replace

import pytest

from meshbook.magics.output.display_rows import MOST_OUTPUTS
from meshbook.magics.output.grouping import Block, OutputGroup
from meshbook.magics.output.model import CellOutput, OutputLimits
from meshbook.magics.output.publisher import Display, LiveDisplay, StreamText
from meshbook.magics.output.render import format_header, render_text
from meshbook.magics.output.text_buffer import TextBuffer
from meshbook.magics.output.truncation import LEAST_COST, fit
from meshbook.runtime.formats import format_elapsed

PNG = {"image/png": "iVBOR", "text/plain": "<Figure>"}


def cell(ranks=4, **options):
    return CellOutput(range(ranks), started=100.0, **options)


def say(output, texts, stream="stdout"):
    for rank, text in texts.items():
        output.add(rank, stream, text)


def plain(publication):
    return publication.data["text/plain"]


def texts_of(publications):
    return [publication.text for publication in publications if isinstance(publication, StreamText)]


# Quick cells


def test_a_quick_cell_publishes_plain_streams_at_its_end():
    output = cell()
    say(output, dict.fromkeys(range(4), "loaded\n"))
    say(output, {2: "careful\n"}, "stderr")

    assert output.due(101.9) == []
    assert output.close(101.95) == [StreamText("stdout", "[0-3] loaded\n"), StreamText("stderr", "[2] careful\n")]


def test_a_silent_cell_publishes_nothing():
    assert cell().close(101.0) == []


def test_chunks_of_a_rank_are_one_text():
    output = cell(1)
    say(output, {0: "lo"})
    say(output, {0: "aded\ndo"})
    say(output, {0: "ne\n"})

    assert texts_of(output.close(101.0)) == ["[0] loaded\n[0] done\n"]


def test_colours_stay_in_a_stream():
    output = cell(1)
    say(output, {0: "\x1b[31mred\x1b[0m\n"})

    assert texts_of(output.close(101.0)) == ["[0] \x1b[31mred\x1b[0m\n"]


def test_closing_twice_publishes_once():
    output = cell()
    say(output, {0: "a\n"})

    assert output.close(101.0)
    assert output.close(101.0) == []


CHUNKS = [(0, "a\n"), (1, "b"), (0, "c"), (0, "d\ne\n"), (1, "f\n")]
ARRIVALS = {
    "order": "[0] a\n[1] b\n[0] cd\n[0] e\n[1] f\n",
    "none": "a\nbcd\ne\nf\n",
    "rank": "[0] a\n[0] cd\n[0] e\n[1] bf\n",
}


@pytest.mark.parametrize(("mode", "expected"), ARRIVALS.items())
def test_group_modes(mode, expected):
    output = cell(2, group=mode)
    for rank, text in CHUNKS:
        output.add(rank, "stdout", text)

    assert texts_of(output.close(101.0)) == [expected]


# Longer cells


def test_a_longer_cell_has_one_live_area_replaced_once_at_its_end():
    output = cell()
    say(output, dict.fromkeys(range(4), "epoch 1\n"))
    (first,) = output.due(102.0)
    say(output, dict.fromkeys(range(4), "epoch 2\n"))
    (second,) = output.due(102.3)
    for rank in range(4):
        output.finish(rank)
    (last,) = output.close(105.0)

    assert [area.update for area in (first, second, last)] == [False, True, True]
    assert plain(first) == "4 ranks · 4 running · 00:02\n[0-3] epoch 1\n"
    assert plain(second) == "4 ranks · 4 running · 00:02\n[0-3] epoch 1\n[0-3] epoch 2\n"
    assert plain(last) == "4 ranks · 4 done · 00:05\n[0-3] epoch 1\n[0-3] epoch 2\n"
    assert "epoch 2" in last.data["text/html"]


def test_an_area_shows_that_a_silent_cell_runs():
    assert [plain(area) for area in cell().due(103.0)] == ["4 ranks · 4 running · 00:03\n"]


# (time, whether there is new text, whether an update is due)
TICKS = [
    (102.00, True, True),
    (102.10, True, False),  # 4 a second at most
    (102.24, False, False),
    (102.26, False, True),  # what came at 102.10
    (102.60, False, False),  # nothing new
    (103.00, False, True),  # another second in the header
    (103.30, False, False),
    (103.31, True, True),
]


def test_updates_are_few_and_only_for_news():
    output = cell()
    for now, is_new, is_due in TICKS:
        if is_new:
            say(output, {0: "more\n"})
        assert bool(output.due(now)) == is_due, now


def test_the_live_area_shows_a_tail_and_the_static_one_the_whole():
    output = cell()
    say(output, {rank: "".join(f"line {line}\n" for line in range(100)) for rank in range(4)})
    (live,) = output.due(103.0)
    (static,) = output.close(104.0)

    assert plain(live).splitlines()[1:] == [f"[0-3] line {line}" for line in range(88, 100)]
    assert plain(static).splitlines()[1:] == [f"[0-3] line {line}" for line in range(100)]


def test_stderr_has_its_own_part_of_the_area():
    output = cell(1)
    say(output, {0: "out\n"})
    say(output, {0: "<err>\n"}, "stderr")
    (area,) = output.due(103.0)

    assert plain(area).splitlines()[1:] == ["[0] out", "stderr:", "[0] <err>"]
    assert "[0] &lt;err&gt;" in area.data["text/html"]
    assert "<err>" not in area.data["text/html"]


def test_the_last_running_rank_is_named():
    output = cell()
    for rank in (0, 1, 2):
        output.finish(rank, "failed" if rank == 1 else "done")
    (live,) = output.due(112.0)
    output.finish(3)
    (static,) = output.close(113.0)

    assert plain(live) == "4 ranks · 1 running · 2 done · 1 failed · 00:12 · r3 slowest\n"
    assert plain(static) == "4 ranks · 3 done · 1 failed · 00:13 · r3 slowest\n"


HEADERS = [
    ({"total": 8, "running": 6, "endings": {"done": 2}, "elapsed": 12.9}, "8 ranks · 6 running · 2 done · 00:12"),
    ({"total": 1, "running": 0, "endings": {"failed": 1}, "elapsed": 0}, "1 rank · 1 failed · 00:00"),
    (
        {"total": 3, "running": 0, "endings": {"interrupted": 2, "skipped": 1}, "elapsed": 0},
        "3 ranks · 2 interrupted · 1 did not run · 00:00",
    ),
    (
        {"total": 8, "running": 1, "endings": {"done": 4, "failed": 3}, "elapsed": 75, "slowest": 3},
        "8 ranks · 1 running · 4 done · 3 failed · 01:15 · r3 slowest",
    ),
]


@pytest.mark.parametrize(("counts", "expected"), HEADERS)
def test_header(counts, expected):
    assert format_header(**counts) == expected


@pytest.mark.parametrize(("seconds", "expected"), [(0, "00:00"), (59.9, "00:59"), (3601, "1:00:01")])
def test_elapsed(seconds, expected):
    assert format_elapsed(seconds) == expected


# What is held back


def test_quiet_publishes_nothing():
    output = cell(quiet=True)
    say(output, {0: "a\n"})
    output.display(0, PNG, {})

    assert output.due(105.0) == []
    assert output.close(106.0) == []


def test_only_shown_ranks_print_and_the_others_are_named():
    output = cell(shown=frozenset({0}))
    say(output, {rank: f"from {rank}\n" for rank in range(4)})
    for rank in range(4):
        output.display(rank, {"text/plain": f"{rank}"}, {})

    text, picture = output.close(101.0)
    assert text == StreamText("stdout", "[0] from 0\n… output of [1-3] not shown (%mesh log RANK)\n")
    assert picture.data == {"text/plain": "[0] 0"}


# After the end


def test_late_text_follows_its_cell():
    output = cell()
    output.close(101.0)
    say(output, {1: "from a thread\n"})

    assert output.due(101.5) == []
    assert output.due(102.0) == [StreamText("stdout", "[1] from a thread\n")]
    assert output.due(104.0) == []


def test_endless_late_text_is_cut_with_an_announcement():
    output = cell(limits=replace(OutputLimits(), publication=3000))
    output.close(101.0)
    published = []
    for second in range(50):
        say(output, {0: "again and again\n" * 20})
        published += texts_of(output.due(102.0 + second))

    assert published[-1] == "… later output of this cell is not shown (%mesh log RANK)\n"
    assert sum(map(len, published)) < 5000


# Rich output


def test_figures_come_after_the_text():
    output = cell()
    for rank in range(4):
        output.display(rank, {**PNG, "text/plain": f"<Figure at 0x{rank}>"}, {"image/png": {"width": 3}})
    say(output, {0: "drawn\n"})

    text, figure = output.close(101.0)
    assert text == StreamText("stdout", "[0] drawn\n")
    assert figure.data["text/plain"] == "[0-3] <Figure at 0x0>"
    assert figure.metadata == {"image/png": {"width": 3}}
    assert [type(publication) for publication in output.final] == [StreamText, Display]


def test_a_figure_appears_once_every_running_rank_has_sent_one():
    output = cell(2)
    output.due(103.0)
    output.display(0, PNG, {})
    assert output.due(103.1) == []
    output.display(1, PNG, {})

    assert [plain(publication) for publication in output.due(103.2)] == ["[0-1] <Figure>"]


def test_a_figure_does_not_wait_for_ever():
    output = cell(2)
    output.display(0, PNG, {})
    assert [publication.name for publication in output.due(103.0)] == [""]
    assert output.due(103.5) == []

    assert [plain(publication) for publication in output.due(104.0)][1:] == ["[0] <Figure>"]


def test_a_rank_replaces_what_it_has_displayed():
    output = cell(2)
    for rank in range(2):
        output.display(rank, PNG, {}, "id")
    output.display(1, {"text/plain": "no figure"}, {}, "id", update=True)
    assert [plain(publication) for publication in output.close(101.0)] == ["[0] <Figure>\n[1] no figure"]
    output.display(0, {"text/plain": "no figure"}, {}, "id", update=True)
    (late,) = output.due(103.0)
    assert (late.update, plain(late)) == (True, "[0-1] no figure")


@pytest.mark.parametrize("wait", [False, True])
def test_a_rank_takes_back_what_it_has_shown(wait):
    output = cell(2)
    for rank in range(2):
        output.add(rank, "stdout", "one\n", "10%")
        output.display(rank, {"text/plain": "first"}, {})
    output.clear(0, wait=wait)
    output.add(0, "stdout", "two\n")
    text, figure = output.close(101.0)
    assert text.text == "[0] two\n[1] one\n[1] 10%\n"
    assert plain(figure) == "[1] first"


def test_what_is_to_be_cleared_stays_until_there_is_something_new():
    output = cell(1)
    say(output, {0: "one\n"})
    output.clear(0, wait=True)
    assert texts_of(output.close(101.0)) == ["[0] one\n"]


def test_a_flood_of_displays_is_announced():
    output = cell(1)
    for number in range(20_000):
        output.display(0, {"text/plain": str(number)}, {})
    *shown, note = output.close(101.0)
    assert len(shown) == MOST_OUTPUTS
    assert note.text == "… 19,960 more displays of [0] are not shown (with -o NAME, NAME[0].displays has them)\n"


# Bounds


def flood(output, ranks, line, size=20_000_000):
    chunk = line * (65_536 // len(line))
    for _ in range(size // len(chunk) // len(ranks)):
        for rank in ranks:
            output.add(rank, "stdout", chunk)


def size_of(publications):
    total = 0
    for publication in publications:
        parts = [publication.text] if isinstance(publication, StreamText) else publication.data.values()
        total += sum(len(part.encode()) for part in parts)
    return total


def test_a_flood_is_cut_with_a_count():
    output = cell(1)
    output.add(0, "stdout", "begin\n")
    flood(output, [0], "0123456789 & more\n")
    output.add(0, "stdout", "end\n")

    (stream,) = output.close(101.0)
    lines = stream.text.splitlines()
    (cut,) = [line for line in lines if "not shown" in line]
    assert (lines[0], lines[-1]) == ("[0] begin", "[0] end")
    assert cut.endswith("lines not shown (%mesh log 0; with -o NAME, NAME[0].stdout has all)")
    total = 2 + 20_000_000 // (65_536 // 18 * 18) * (65_536 // 18)
    assert int(cut.split()[2].replace(",", "")) == total - len(lines) + 1


def test_identical_floods_group_whatever_their_chunks():
    output = cell(2)
    text = "".join(f"line {number}\n" for number in range(50_000))
    output.add(0, "stdout", text)
    for start in range(0, len(text), 1000):
        output.add(1, "stdout", text[start : start + 1000])

    (stream,) = output.close(101.0)
    assert all(line.startswith("[0-1] ") for line in stream.text.splitlines())


def test_floods_that_differ_in_the_middle_do_not_group():
    output = cell(2)
    for rank in range(2):
        output.add(rank, "stdout", "x\n" * 200_000 + f"secret {'ab'[rank]}\n" + "x\n" * 200_000)

    (stream,) = output.close(101.0)
    assert {line.split()[0] for line in stream.text.splitlines()} == {"[0]", "[1]"}


# What each rank writes; every one is far more than may be published.
FLOODS = {
    "the same": lambda rank: "<&> the same line\n" * 3000,
    "different words": lambda rank: f"<&> {'xyz'[rank % 3] * (rank // 3 + 1)}\n" * 3000,
    "different numbers": lambda rank: "".join(f"<step {step}> loss {step / (rank + 1)}\n" for step in range(1500)),
    "one endless line": lambda rank: f"<{rank}é>" * 12_000,
    "short lines": lambda rank: f"{'ab'[rank % 2]}\n" * 50_000,
    "ragged": lambda rank: "\n".join("&" * (number % 300) for number in range(rank, rank + 400)) + "\n",
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "is_long"), [(1, False), (8, True), (200, False), (200, True)], ids=["1", "8-long", "200", "200-long"]
)
@pytest.mark.parametrize("write", FLOODS.values(), ids=FLOODS)
def test_a_cell_stays_small(ranks, is_long, write):
    output = cell(ranks)
    for rank in range(ranks):
        output.add(rank, "stdout", write(rank))
        output.add(rank, "stderr", write(rank))
    live = output.due(103.0) if is_long else []
    static = output.close(104.0)

    assert size_of(live) < 45_000
    assert 1000 < size_of(static) < 400_000


def test_many_ranks_with_different_words_are_announced_not_listed_without_end():
    output = cell(4096)
    for rank in range(4096):
        output.add(rank, "stdout", "w" * (rank % 500 + 100) + "x" * (rank // 500) + "\n")

    publications = output.close(101.0)
    assert size_of(publications) < 200_000
    assert "more groups not shown: [" in publications[0].text


def test_adding_is_cheap_and_memory_is_bounded():
    output = cell(8)
    tracemalloc.start()
    flood(output, range(8), "some line of output\n")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    started = time.perf_counter()
    for _ in range(100_000):
        output.add(0, "stdout", "tick\n")
    elapsed = time.perf_counter() - started

    assert peak < 4_000_000
    assert elapsed < 5.0  # a quadratic join would take minutes; measured 0.1 s


def test_a_capture_of_single_characters_is_bounded():
    capture = TextBuffer(2000)
    text = "".join(f"{number}\n" for number in range(5000))
    for character in text:
        capture.add(character)

    whole = TextBuffer(2000)
    whole.add(text)
    assert capture.block() == whole.block()
    assert capture.last_lines(3) == ("4997", "4998", "4999")
    assert capture.line_count == 5000


def test_a_line_without_end_is_kept_in_part():
    capture = TextBuffer(100)
    capture.add("a" * 500)

    assert capture.block().lines == (f"{'a' * 50} … (+400 characters) … {'a' * 50}",)
    assert capture.block().hidden == 0, "a part of it is shown"


def test_small_groups_stay_whole_beside_large_ones():
    small = OutputGroup((0,), Block(("small",)))
    large = OutputGroup((1,), Block(tuple(f"line {number}" for number in range(1000))))

    fitted = fit([small, large], 3000)

    assert fitted[0] == small
    assert fitted[1].lines[0] == "line 0"
    assert fitted[1].lines[-1] == "line 999"
    assert fitted[1].block.hidden == 1000 - len(fitted[1].lines)
    assert 3000 // LEAST_COST - 10 < len(render_text(fitted).splitlines()) < 3000 // LEAST_COST


def test_what_was_cut_twice_has_one_gap():
    group = OutputGroup(
        (0,), Block(tuple(f"line {number}" for number in range(1000)), hidden=500, cut=20, identity=b"x")
    )

    (fitted,) = fit([group], 3000)

    assert fitted.lines[fitted.block.cut - 1] == "line 19"
    assert fitted.lines[-1] == "line 999"
    assert fitted.block.hidden == 500 + 1000 - len(fitted.lines)


# Rows that may still change


@pytest.mark.parametrize(("group", "shown"), [("auto", "[0] a\n[0] 20%\n"), ("order", "[0] a\n[0] 20%\n")])
def test_rows_take_the_place_of_those_before(group, shown):
    output = cell(1, group=group)
    output.add(0, "stdout", "a\n", "10%")
    output.add(0, "stdout", "", "20%")
    assert texts_of(output.close(101.0)) == [shown]


def test_rows_are_shown_live():
    output = cell(1)
    output.add(0, "stderr", "", "10%")
    (area,) = output.due(103.0)
    assert plain(area) == "1 rank · 1 running · 00:03\nstderr:\n[0] 10%\n"


def test_after_its_end_a_cell_shows_rows_once_they_are_final():
    output = cell(1)
    output.close(101.0)
    output.add(0, "stderr", "\r", "10%")
    assert output.due(103.0) == []
    output.add(0, "stderr", "100%\n", "")
    assert output.due(105.0) == [StreamText("stderr", "[0] 100%\n")]


def test_after_a_prompt_there_is_another_area():
    output = cell(1)
    output.add(0, "stderr", "", "10%")
    names = [publication.name for publication in [*output.due(103.0), *output.pause(104.0)]]
    output.add(0, "stderr", "", "20%")
    assert output.due(105.0) == []
    output.resume(106.0)
    output.add(0, "stderr", "", "30%")
    names += [publication.name for publication in [*output.due(109.0), *output.close(110.0)]]
    assert names[0] == names[1] != names[2] == names[3]
    assert [plain(part).splitlines()[2] for part in output.final] == ["[0] 10%", "[0] 30%"]


# --- around a prompt ---


def test_output_before_a_prompt_is_above_it_and_the_rest_is_another_part() -> None:
    output = CellOutput([0, 1], started=0.0)
    output.add(0, "stdout", "before\n")
    output.add(1, "stdout", "before\n")
    assert output.pause(0.1) == [StreamText("stdout", "[0-1] before\n")]
    assert output.due(30.0) == []  # nothing new is shown while a person thinks
    output.resume(30.0)
    output.add(0, "stdout", "after\n")
    assert output.due(30.1) == []  # a part of its own, which may be a quick one
    assert output.close(30.2) == [StreamText("stdout", "[0] after\n")]


def test_what_others_print_while_a_prompt_is_shown_goes_above_it() -> None:
    output = CellOutput([0, 1], started=0.0)
    output.pause(0.1)
    output.add(1, "stdout", "meanwhile\n")
    assert output.due(0.2) == []
    assert output.due(0.5) == [StreamText("stdout", "[1] meanwhile\n")]
    assert output.due(9.0) == []


def test_a_live_area_ends_at_a_prompt_and_another_one_begins_after_it() -> None:
    output = CellOutput([0], started=0.0)
    output.add(0, "stdout", "before\n")
    (opened,) = output.due(2.5)
    assert isinstance(opened, LiveDisplay)
    (closed,) = output.pause(3.0)
    assert isinstance(closed, LiveDisplay)
    assert closed.is_final
    assert closed.data["text/plain"] == "up to the prompt · 00:03\n[0] before\n"
    output.resume(4.0)
    output.add(0, "stdout", "after\n")
    (again,) = output.due(6.5)
    assert isinstance(again, LiveDisplay)
    assert not again.update
    assert "before" not in again.data["text/plain"]
