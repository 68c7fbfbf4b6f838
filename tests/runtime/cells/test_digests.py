"""Variables taken apart: what is the same has the same digests, wherever it lies and whatever address it has."""

from __future__ import annotations

import datetime
import threading
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch

from meshbook.runtime.cells import digests
from meshbook.runtime.cells.digests import DigestPart, DigestRequest, FetchBlocks, VariableDigest
from meshbook.runtime.cells.variables import Namespace, RequestError


def anatomy_of(value: Any) -> VariableDigest:
    found = DigestRequest("x").handle(Namespace({"x": value}, list, None))
    assert isinstance(found, VariableDigest)
    return found


def parts_of(value: Any) -> dict[str, DigestPart]:
    return {part.path: part for part in anatomy_of(value).parts}


class Config:
    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


def ring() -> list[Any]:
    made: list[Any] = [1]
    made.append(made)
    return made


@pytest.mark.parametrize(
    ("value", "paths"),
    [
        (5, [""]),
        ({}, [""]),
        ({"a": 1, "b": [2, {3: 4}]}, ["['a']", "['b'][0]", "['b'][1][3]"]),
        (Config(lr=0.1, more=(1, 2)), [".lr", ".more[0]", ".more[1]"]),
        (torch.nn.Linear(1, 1), [".weight", ".bias"]),
        (list(range(100)), [""]),
        ("text", [""]),
        (Config, [""]),
        (print, [""]),
        (ring(), ["[0]", "[1]"]),
        (torch.ones(2), [""]),
        (torch.tensor(1.0), [""]),
        (np.array(1.0), [""]),
        (torch.nn.BatchNorm1d(1), [".weight", ".bias", ".running_mean", ".running_var", ".num_batches_tracked"]),
    ],
)
def test_a_value_is_taken_apart(value: Any, paths: list[str]) -> None:
    assert list(parts_of(value)) == paths


TABLE = {
    "n": [3, 1, 2],
    "s": ["a", None, "longer than the twelve bytes of a view"],
    "c": ["x", "x", None],
    "g": [1, None, 3],
}


def test_a_table_is_taken_apart_by_columns() -> None:
    for table in (pl.DataFrame(TABLE), pa.table(TABLE), pa.table(TABLE).to_batches()[0]):
        parts = parts_of({"table": table})
        assert [*parts] == ["['table']['n']", "['table']['s']", "['table']['c']", "['table']['g']"]
        assert parts["['table']['n']"].numbers is not None  # so the report has the rows that differ, and by how much
    assert [*parts_of(pd.DataFrame(TABLE))] == [".index", "['n']", "['s']", "['c']", "['g']"]
    assert parts_of(pl.Series([1, 2]))[""].numbers is not None
    assert len(parts_of(pl.DataFrame({"wide": pl.Series([1 << 100], dtype=pl.Int128)}))) == 1
    assert [*parts_of(pa.table({}))] == [*parts_of(pl.DataFrame())] == [""]
    assert len(anatomy_of(pa.table([[1], [2]], names=["a", "a"])).parts) == 2


def test_equal_columns_have_equal_digests_however_they_lie() -> None:
    frame, table = pl.DataFrame(TABLE), pa.table(TABLE)
    # Of both the rows are those of TABLE, in other chunks, out of a larger one, with something else in the gap.
    cut = pa.concat_tables([table.slice(2, 1), table, table]).slice(1, 3)
    gap = pa.array([1, 7, 3], mask=np.array([False, True, False]))
    chunks = pa.concat_tables([cut.slice(0, 1), cut.slice(1)]).set_column(3, "g", gap)
    assert parts_of(chunks) == parts_of(table)
    assert parts_of(pl.concat([frame[:1], frame[1:]], rechunk=False)) == parts_of(frame)
    for column in TABLE:
        digests_of = {parts_of(each)[f"['{column}']"].digest for each in (frame, frame.reverse(), frame.clear())}
        assert len(digests_of) == 3, column


def test_a_long_list_ends_in_one_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digests, "MOST_PARTS", 3)
    before, after = ([str(index) for index in range(count)] for count in (10, 11))
    assert list(parts_of(before)) == ["[0]", "[1]", "[2]", "from [3] on"]
    *firsts, rest = anatomy_of(before).parts
    assert (rest.kind, rest.text) == ("parts", "7 parts")
    assert firsts == list(anatomy_of(after).parts[:3])
    assert rest.digest != anatomy_of(after).parts[3].digest


@pytest.mark.parametrize(
    "make",
    [
        lambda: {"a": [1, 2.5, "x"], "b": {"c", "d"}, "e": None},
        lambda: torch.arange(6).reshape(2, 3),
        lambda: torch.ones(2, 2, dtype=torch.bfloat16).t(),
        lambda: np.array(["x"]),
        lambda: object(),
        lambda: threading.Lock(),
        lambda: lambda x: x + 1,
        lambda: torch.ones(2).to_sparse(),
        lambda: torch.ones(3).to_sparse(),
        lambda: torch.eye(3).to_sparse_csr(),
        lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
        lambda: torch.ones(3, device="meta"),
        lambda: np.array(["x", ["y"]], dtype=object),
        lambda: {("a" * 2, 1), frozenset({2})},
        lambda: torch.ones(0),
        lambda: torch.tensor(1.0),
        lambda: np.array(1),
    ],
)
def test_what_is_made_alike_is_the_same(make: Any) -> None:
    assert anatomy_of(make()) == anatomy_of(make())


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 2),
        (1, True),
        ("1", 1),
        (torch.ones(2), torch.ones(2, 1)),
        (torch.ones(2), torch.ones(2, dtype=torch.float64)),
        (torch.ones(2), np.ones(2, dtype="float32")),
        (torch.tensor([0.0]), torch.tensor([-0.0])),
        (lambda x: x + 1, lambda x: x + 2),
        ("x" * 1000 + "a", "x" * 1000 + "b"),
        (list(range(100)), [*range(99), 0]),
        (np.array(["x"]), np.array(["y"])),
        ({1, 2}, {1, 3}),
        (np.array(["x"] * 5000), np.array(["x"] * 2500 + ["y"] + ["x"] * 2499)),
        (torch.eye(3000).to_sparse(), (torch.eye(3000) * 2).to_sparse()),
        (torch.eye(3).to_sparse_csc(), (torch.eye(3) * 2).to_sparse_csc()),
        (
            torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
            torch.nested.nested_tensor([torch.ones(3), torch.ones(2)], layout=torch.jagged),
        ),
        (datetime.date(2026, 1, 1), datetime.date(2026, 1, 2)),
    ],
)
def test_what_is_not_the_same_has_other_digests(one: Any, other: Any) -> None:
    assert [part.digest for part in anatomy_of(one).parts] != [part.digest for part in anatomy_of(other).parts]


def test_numbers_have_a_digest_for_each_block_and_are_sent_by_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digests, "BLOCK", 8)
    for value in (torch.arange(10, dtype=torch.int32).reshape(2, 5), np.arange(10, dtype="int32")):
        (part,) = anatomy_of(value).parts
        assert part.numbers is not None
        assert (part.numbers.item_size, part.numbers.block_length, len(part.numbers.blocks)) == (4, 2, 5)
        sent = FetchBlocks("x", {"": (1, 4), "gone": (0,)}).handle(Namespace({"x": value}, list, None)).open()
        assert {path: array.tolist() for path, array in sent.items()} == {"": [2, 3, 8, 9]}


class Broken:
    def state_dict(self) -> Any:
        raise ValueError("no")


def test_what_cannot_be_taken_apart_says_why() -> None:
    assert DigestRequest("x").handle(Namespace({}, list, None)) is None
    refused = DigestRequest("x").handle(Namespace({"x": Broken()}, list, None))
    assert refused == RequestError("x cannot be compared: ValueError: no")
