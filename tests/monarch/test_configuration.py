"""`monarch.config`: keys, types, layers, and what they change in the settings of what is started.

`parametrize_config` and its twin, used as a test would use them.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import warnings
from typing import Any

import pytest

from meshbook.monarch.configuration import (
    clear_runtime_config,
    configure,
    configured,
    get_global_config,
    get_runtime_config,
    parametrize_config,
    parametrize_config_pointwise,
)
from meshbook.monarch.keys import KEYS, ChannelTransport, Encoding
from meshbook.runtime.config import OVERRIDES, Settings, current_settings, set_inherited_settings


def value_of(key: str) -> Any:
    return get_global_config()[key]


def test_without_changes_the_defaults_hold(monkeypatch):
    monkeypatch.delenv("MESHBOOK_STOP_TIMEOUT", raising=False)
    found = get_global_config()
    assert len(found) == len(KEYS) == 84
    assert found["supervision_watchdog_timeout"] == "2m"
    assert found["default_encoding"] is Encoding.Multipart
    assert found["process_exit_timeout"] == "3s"  # ours
    assert get_runtime_config() == {}


@pytest.mark.parametrize(
    ("key", "given", "kept"),
    [
        ("enable_log_forwarding", True, True),
        ("message_delivery_timeout", "90s", "1m 30s"),
        ("message_ttl_default", 255, 255),
        ("max_cast_fanout", 1 << 40, 1 << 40),
        ("rdma_max_nics_per_buffer", 2, 2),
        ("rdma_max_nics_per_buffer", None, None),
        ("message_latency_sampling_rate", 1, 1.0),
        ("mesh_admin_addr", "[::]:1", "[::]:1"),
        ("default_encoding", Encoding.Json, Encoding.Json),
        ("default_transport", "tcp", "tcp"),
        ("default_transport", "tcp://10.0.0.1:99", "tcp://10.0.0.1:99"),
        ("default_transport", ChannelTransport.Unix, "unix"),
    ],
)
def test_a_value_that_fits_is_kept(key, given, kept):
    configure(**{key: given})
    assert (value_of(key), get_runtime_config()) == (kept, {key: kept})


@pytest.mark.parametrize(
    ("key", "given", "wanted"),
    [
        ("enable_log_forwarding", 1, "True or False"),
        ("enable_log_forwarding", None, "True or False"),
        ("codec_max_frame_length", "10", "a whole number that is not negative"),
        ("codec_max_frame_length", 1.5, "a whole number that is not negative"),
        ("codec_max_frame_length", -1, "a whole number that is not negative"),
        ("codec_max_frame_length", True, "a whole number that is not negative"),
        ("message_ttl_default", 256, "a whole number from 0 to 255"),
        ("process_exit_timeout", 3, "a duration"),
        ("process_exit_timeout", "3", "a duration"),
        ("message_latency_sampling_rate", "1", "a number"),
        ("pyspy_bin", None, "a str"),
        ("default_encoding", "json", "a member of monarch.config.Encoding"),
        ("default_transport", 3, "a ChannelTransport, or a str"),
    ],
)
def test_a_value_that_does_not_fit_names_the_key(key, given, wanted):
    with pytest.raises(TypeError) as caught:
        configure(**{key: given})
    assert str(caught.value).startswith(f"configuration key `{key}` must be {wanted}")
    assert get_runtime_config() == {}


@pytest.mark.parametrize("transport", ["carrier pigeon", "pigeon://10.0.0.1:99", ""])
def test_an_unknown_transport_is_an_error(transport):
    with pytest.raises(ValueError, match="`default_transport` must be the name of a transport"):
        configure(default_transport=transport)


def test_the_text_names_an_invalid_duration_as_monarch_does():
    with pytest.raises(TypeError, match="Invalid duration format"):
        configure(cleanup_timeout="soon")


@pytest.mark.usefixtures("alias")
def test_under_the_alias_the_defaults_are_those_of_monarch(monkeypatch):
    monkeypatch.setenv("MESHBOOK_LAUNCH_TIMEOUT", "45")
    importlib.import_module("monarch")
    found = get_global_config()
    times = {"mesh_terminate_timeout": "10s", "process_exit_timeout": "10s", "host_spawn_ready_timeout": "45s"}
    for key, value in {"tail_log_lines": 0, "codec_max_frame_length": 10 << 30, **times}.items():
        assert found[key] == value, key
    assert get_runtime_config() == {}


def test_an_unknown_key_lists_what_is_like_it():
    with pytest.raises(ValueError, match=r"`process_exit_timeuot`; did you mean `process_exit_timeout`"):
        configure(process_exit_timeuot="1s")
    with pytest.raises(ValueError, match=r"`zzz`$"):
        configure(zzz=1)


@pytest.mark.parametrize("bad", [{"nope": 3}, {"process_exit_timeout": 3}])
def test_all_are_set_or_none(bad):
    with pytest.raises((TypeError, ValueError)):
        configure(read_log_buffer=5, **bad)
    assert value_of("read_log_buffer") == 100


# -- layers ---------------------------------------------------------------------------------


def test_a_block_wins_while_it_runs():
    configure(read_log_buffer=1, max_cast_fanout=2)
    with configured(read_log_buffer=3) as found:
        assert (found["read_log_buffer"], found["max_cast_fanout"]) == (3, 2)
        with configured(read_log_buffer=4):
            assert value_of("read_log_buffer") == 4
            configure(read_log_buffer=9, max_cast_fanout=8)
            assert (value_of("read_log_buffer"), value_of("max_cast_fanout")) == (4, 8)
        assert value_of("read_log_buffer") == 3
    assert (value_of("read_log_buffer"), value_of("max_cast_fanout")) == (9, 8)


def test_blocks_may_end_in_any_order():
    first, second = configured(read_log_buffer=1), configured(read_log_buffer=2)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert value_of("read_log_buffer") == 2
    second.__exit__(None, None, None)
    assert value_of("read_log_buffer") == 100


def test_a_block_ends_with_an_error_too():
    with pytest.raises(RuntimeError, match="in the block"), configured(read_log_buffer=1):
        raise RuntimeError("in the block")
    assert value_of("read_log_buffer") == 100


def test_a_function_can_be_decorated():
    @configured(read_log_buffer=1)
    def look() -> Any:
        return value_of("read_log_buffer")

    assert (look(), look(), value_of("read_log_buffer")) == (1, 1, 100)


def test_clearing_forgets_everything():
    configure(read_log_buffer=1)
    with configured(max_cast_fanout=2):
        clear_runtime_config()
        assert get_runtime_config() == {}


# -- what they change -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value", "field", "seconds_or_number"),
    [
        ("process_exit_timeout", "1m 30s", "stop_timeout", 90.0),
        ("mesh_terminate_timeout", "250ms", "stop_timeout", 0.25),
        ("host_spawn_ready_timeout", "2m", "launch_timeout", 120.0),
        ("tail_log_lines", 7, "stderr_lines", 7),
        ("codec_max_frame_length", 1000, "max_message_bytes", 1000),
    ],
)
def test_a_key_of_ours_changes_the_settings_of_a_run(key, value, field, seconds_or_number):
    with configured(**{key: value}) as found:
        assert found[key] == value
        assert getattr(current_settings(), field) == seconds_or_number
    assert getattr(current_settings(), field) == getattr(Settings.from_environment(), field)


def test_a_variable_is_seen_as_its_key(monkeypatch):
    monkeypatch.setenv("MESHBOOK_STOP_TIMEOUT", "0.5")
    assert value_of("process_exit_timeout") == "500ms"


def test_a_mesh_gets_what_need_not_be_agreed_upon_in_the_whole_run():
    run = Settings(max_message_bytes=5000, stop_timeout=5.0)
    with configured(codec_max_frame_length=1000, process_exit_timeout="1s", read_log_buffer=1):
        mesh = OVERRIDES.applied_to_mesh(run)
    assert (mesh.max_message_bytes, mesh.stop_timeout) == (5000, 1.0)
    assert mesh.extra == {"codec_max_frame_length": 1000, "process_exit_timeout": "1s", "read_log_buffer": 1}


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is a worker, until the test ends."""
    monkeypatch.setattr("meshbook.runtime.config._Inherited.settings", Settings())


def test_a_worker_sees_what_was_handed_down(worker):
    with configured(process_exit_timeout="1s", read_log_buffer=1):
        born = OVERRIDES.applied_to_mesh(Settings())
    set_inherited_settings(born)
    assert (value_of("process_exit_timeout"), value_of("read_log_buffer")) == ("1s", 1)
    with configured(read_log_buffer=2):
        grandchild = OVERRIDES.applied_to_mesh(born)
    assert (grandchild.stop_timeout, grandchild.extra["read_log_buffer"]) == (1.0, 2)


def test_what_comes_too_late_is_said(worker):
    for change in (configure, lambda **keys: configured(**keys).__enter__()):
        with pytest.warns(UserWarning, match="codec_max_frame_length: fixed for the current run") as warned:
            change(codec_max_frame_length=1000, read_log_buffer=1)
        assert warned[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        configure(read_log_buffer=1, process_exit_timeout="1s")


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
