"""Random programs on random meshes give what they give in one process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.runtime.tensor.programs import OPERATIONS, Step, run_program

if TYPE_CHECKING:
    from tests.runtime.tensor.rank_pool import RankPool

pytestmark = pytest.mark.process

numbers = st.integers(0, 11)
steps = st.lists(st.builds(Step, st.sampled_from(OPERATIONS), numbers, numbers, numbers), min_size=1, max_size=12)
shapes = st.lists(st.integers(0, 6), max_size=3).map(tuple)


@settings(max_examples=60, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    mesh=st.sampled_from(["1", "2", "3", "4", "2x2"]),
    shape=shapes,
    layout=st.tuples(numbers, numbers),
    program=steps,
)
def test_a_program_gives_the_same_values_as_in_one_process(
    ranks: RankPool, mesh: str, shape: tuple[int, ...], layout: tuple[int, int], program: list[Step]
) -> None:
    assert ranks.run(mesh, run_program, shape, layout, program) is None
