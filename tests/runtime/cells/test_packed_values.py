"""Values as they travel between the notebook and a rank."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

from meshbook.runtime.cells.packed_values import ROOM, format_excess, pack
from meshbook.runtime.cells.variables import Namespace, PullRequest, RequestError, TooLarge
from meshbook.runtime.errors import PickleError


def test_what_is_large_is_no_part_of_the_pickle_and_is_not_copied() -> None:
    tensor, array = torch.zeros(100_000), np.zeros(100_000)
    parcel = pack({"tensor": tensor, "array": array, "text": "x"})
    assert len(parcel.stream) < 2000
    assert 1_200_000 <= parcel.size < 1_203_000
    array[0] = 7
    assert parcel.open()["array"][0] == 7
    copied = parcel.copied()
    array[0] = 8
    assert copied.open()["array"][0] == 7


def test_values_share_what_they_shared() -> None:
    shared = [1]
    opened = pack({"a": shared, "b": [shared]}).open()
    assert opened["b"][0] is opened["a"]


def test_tensors_arrive_without_their_graph() -> None:
    leaf = torch.ones(2, requires_grad=True)
    model = torch.nn.Linear(2, 1)
    opened = pack({"leaf": leaf, "loss": (leaf * 2).sum(), "model": model}).open()
    assert opened["leaf"].requires_grad
    assert (opened["loss"].item(), opened["loss"].requires_grad) == (4.0, False)
    assert isinstance(opened["model"].weight, torch.nn.Parameter)
    assert torch.equal(opened["model"].weight, model.weight)


def test_the_value_that_cannot_be_pickled_is_named() -> None:
    with pytest.raises(PickleError, match=r"lock cannot be pickled: TypeError: cannot pickle '_thread.lock' object"):
        pack({"fine": 1, "lock": threading.Lock()})


class Unmakeable:
    def __reduce__(self) -> tuple[type[int], tuple[str]]:
        return int, ("no number",)


def test_a_value_that_cannot_be_made_says_why() -> None:
    with pytest.raises(PickleError, match="cannot be unpickled: ValueError: invalid literal"):
        pack({"x": Unmakeable()}).open()


def test_what_is_too_large_is_held_back_and_what_fits_into_no_message_refused() -> None:
    parcel = pack({"x": bytes(1000)})
    assert format_excess(parcel, parcel.size + ROOM) == ""
    problem = f"{parcel.size:,} bytes exceed the maximum message size ({ROOM:,})"
    assert format_excess(parcel, ROOM).startswith(problem)
    values = {"x": bytes(1000)}
    assert PullRequest(("x",), 100).handle(Namespace(values, list, None)) == TooLarge(parcel.size)
    refused = PullRequest(("x",), 100).handle(Namespace(values, list, None, most_bytes=ROOM))
    assert isinstance(refused, RequestError)
    assert refused.reason.startswith(problem)
