"""`parametrize_config` and its twin, used as a test would use them."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest

from meshbook.monarch.configuration import get_runtime_config
from meshbook.monarch.parametrizing import parametrize_config, parametrize_config_pointwise


def cases(function: Any) -> list[dict[str, Any]]:
    """The configurations that pytest would run it under."""
    (mark,) = function.pytestmark
    return mark.args[1]


@parametrize_config(read_log_buffer={1, 2}, enable_log_forwarding={True})
def test_a_test_runs_under_each_configuration(tmp_path):
    assert tmp_path.is_dir()
    assert get_runtime_config()["read_log_buffer"] in (1, 2)
    assert get_runtime_config()["enable_log_forwarding"] is True


class TestOfAClass:
    @pytest.mark.parametrize("value", [1])
    @parametrize_config(read_log_buffer={3})
    @parametrize_config(max_cast_fanout={4})
    def test_methods_and_stacks_work_too(self, value):
        assert get_runtime_config() == {"read_log_buffer": 3, "max_cast_fanout": 4}


def test_all_combinations_or_one_after_the_other():
    def test(): ...

    assert cases(parametrize_config(read_log_buffer={2, 1}, max_cast_fanout={3, 4})(test)) == [
        {"read_log_buffer": buffer, "max_cast_fanout": fanout} for buffer in (1, 2) for fanout in (3, 4)
    ]
    assert cases(parametrize_config_pointwise(read_log_buffer=[2, 1], max_cast_fanout=[3, 4])(test)) == [
        {"read_log_buffer": 2, "max_cast_fanout": 3},
        {"read_log_buffer": 1, "max_cast_fanout": 4},
    ]


def test_an_async_test_stays_one():
    @parametrize_config(read_log_buffer={5})
    async def test() -> Any:
        await asyncio.sleep(0)
        return get_runtime_config()

    assert inspect.iscoroutinefunction(test)
    assert asyncio.run(test(config_of_read_log_buffer={"read_log_buffer": 5})) == {"read_log_buffer": 5}
    assert get_runtime_config() == {}


def test_mistakes():
    with pytest.raises(ValueError, match="configuration key"):
        parametrize_config()
    with pytest.raises(ValueError, match="shorter"):
        parametrize_config_pointwise(read_log_buffer=[1, 2], max_cast_fanout=[3])
