"""The keys of `monarch.config`: the type and the default of each, and the equivalent field of our settings.

Most of them tune parts of Monarch that meshbook does not have. Their values are checked, stored and shown, and have no
effect. Durations are in Monarch's notation: `500ms`, `30s`, `1m 30s`, `1day 2h`, exact to a nanosecond.
"""

from __future__ import annotations

import difflib
import enum
import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from meshbook.runtime import monarch_texts
from meshbook.runtime.config import OVERRIDES, Settings

Value = str | int | float | bool | None


class Encoding(enum.Enum):
    """How Monarch encodes messages; meshbook has one encoding of its own."""

    Bincode = "bincode"
    Json = "json"
    Multipart = "multipart"


class ChannelTransport(enum.Enum):
    """The transports of Monarch. On one machine meshbook uses Unix sockets."""

    TcpWithLocalhost = "tcp-localhost"
    TcpWithHostname = "tcp"
    MetaTlsWithHostname = "metatls-hostname"
    MetaTlsWithIpV6 = "metatls"
    MetaQuicWithHostname = "metaquic-hostname"
    MetaQuicWithIpV6 = "metaquic"
    Tls = "tls"
    Quic = "quic"
    Local = "local"
    Unix = "unix"


_SCHEMES = ("inproc", "ipc", "local", "metaquic", "metatls", "quic", "tcp", "tls", "unix")
# returns the stored value; raises TypeError or ValueError, whose text names what is needed
Check = Callable[[Any], Value]


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError("True or False")
    return value


def _whole(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise TypeError("a whole number that is not negative")
    return value


def _byte(value: Any) -> int:
    if _whole(value) > 255:
        raise TypeError("a whole number from 0 to 255")
    return int(value)


def _whole_or_none(value: Any) -> int | None:
    return None if value is None else _whole(value)


def _number(value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError("a number")
    return float(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("a str")
    return value


def _duration(value: Any) -> str:
    try:
        return write_duration(read_duration(_text(value)))
    except (TypeError, ValueError) as error:
        fault = f" ({monarch_texts.INVALID_DURATION})" if isinstance(error, ValueError) else ""
        raise TypeError(f"a duration, such as '500ms', '30s' or '1m 30s'{fault}") from None


def _encoding(value: Any) -> str:
    if not isinstance(value, Encoding):
        raise TypeError("a member of monarch.config.Encoding")
    return value.value


def _transport(value: Any) -> str:
    if isinstance(value, ChannelTransport):
        return value.value
    if not isinstance(value, str):
        raise TypeError("a ChannelTransport, or a str")
    scheme, is_address, _ = value.partition("://")
    if value not in [transport.value for transport in ChannelTransport] and not (is_address and scheme in _SCHEMES):
        raise ValueError("the name of a transport, such as 'unix' or 'tcp', or an address such as 'tcp://host:port'")
    return value


@dataclass(frozen=True, slots=True)
class Key:
    """One key. `field` names the equivalent field of our Settings, if there is one."""

    name: str
    check: Check
    default: Value
    field: str = ""

    def checked(self, value: Any) -> Value:
        """Return the value in its stored form; raises TypeError or ValueError, as Monarch does, with the key's name."""
        try:
            return self.check(value)
        except (TypeError, ValueError) as error:
            raise type(error)(f"configuration key `{self.name}` must be {error}, not {value!r}") from None

    def changes(self, value: Value) -> dict[str, Value]:
        """Return the changes of our Settings for a stored value; times there are seconds."""
        if not self.field:
            return {}
        return {self.field: read_duration(str(value)) / SECOND if self.check is _duration else value}

    def value_in(self, settings: Settings) -> Any:
        """Return the value under these settings, as a program sets it."""
        if not self.field:
            return self.shown(settings.extra.get(self.name, self.default))
        found = getattr(settings, self.field)
        return write_duration(round(found * SECOND)) if self.check is _duration else found

    def shown(self, value: Value) -> Any:
        """Return a stored value as a program sets it."""
        return Encoding(value) if self.check is _encoding else value


def _keys(check: Check, **defaults: Value) -> list[Key]:
    return [Key(name, check, default, _FIELDS.get(name, "")) for name, default in defaults.items()]


_FIELDS = {
    "codec_max_frame_length": "max_message_bytes",
    "enable_log_forwarding": "enable_log_forwarding",
    "host_spawn_ready_timeout": "launch_timeout",
    "mesh_terminate_timeout": "stop_timeout",
    "process_exit_timeout": "stop_timeout",
    "tail_log_lines": "stderr_lines",
}

# Names, types and defaults of Monarch 0.7.0. The defaults of keys with a field apply under the alias only.
_ALL = [
    *_keys(
        _duration,
        actor_spawn_max_idle="30s",
        channel_net_rx_buffer_full_check_interval="5s",
        channel_reconnect_timeout="1m",
        channel_tcp_keepalive_idle="1m",
        cleanup_timeout="3s",
        forwarder_flush_timeout="5s",
        get_actor_state_max_idle="30s",
        get_proc_state_max_idle="1m",
        host_spawn_ready_timeout="30s",
        mesh_admin_config_dump_bridge_timeout="5s",
        mesh_admin_pyspy_bridge_timeout="13s",
        mesh_admin_pyspy_client_timeout="20s",
        mesh_admin_pyspy_max_profile_duration="5m",
        mesh_admin_pyspy_timeout="10s",
        mesh_admin_query_child_timeout="100ms",
        mesh_admin_resolve_actor_timeout="200ms",
        mesh_admin_single_host_timeout="3s",
        mesh_admin_tree_timeout="10s",
        mesh_attach_config_timeout="1m",
        mesh_orphan_timeout="1m",
        mesh_proc_spawn_max_idle="30s",
        mesh_terminate_timeout="10s",
        message_ack_time_interval="500ms",
        message_delivery_timeout="30s",
        otel_metric_export_interval="1s",
        pending_actor_delivery_timeout="30s",
        proc_stop_max_idle="30s",
        process_exit_timeout="10s",
        process_memory_metric_interval="5m",
        rdma_qp_init_timeout="30s",
        server_heartbeat_interval="1s",
        split_max_buffer_age="50ms",
        stop_grace_period="10s",
        stop_actor_timeout="10s",
        supervision_watchdog_timeout="2m",
    ),
    *_keys(
        _flag,
        enable_dest_actor_reordering_buffer=True,
        enable_file_capture=False,
        enable_log_forwarding=False,
        enable_otel_metrics=True,
        enable_otel_tracing=True,
        enable_recorder_tracing=True,
        enable_sqlite_tracing=False,
        enable_unawaited_python_task_traceback=False,
        force_file_log=False,
        mesh_bootstrap_enable_pdeathsig=True,
        prefix_with_rank=True,
        rdma_allow_tcp_fallback=True,
        rdma_cq_poller_per_device=True,
        rdma_disable_ibverbs=False,
        rdma_host_odp=False,
        scuba_log_enter_exit=False,
        use_direct_spawn=False,
    ),
    *_keys(
        _whole,
        codec_max_frame_length=10 << 30,
        max_cast_dimension_size=16,
        max_cast_fanout=16,
        mesh_admin_max_concurrent_resolves=2,
        mesh_terminate_concurrency=16,
        message_ack_every_n_messages=1000,
        rdma_max_chunk_size_mb=64,
        rdma_min_stripe_size_kb=512,
        rdma_qps_per_cq=64,
        rdma_qps_per_peer=4,
        rdma_runtime_worker_threads=4,
        rdma_tcp_fallback_parallelism=1,
        read_log_buffer=100,
        sequencer_max_locked_keys=128,
        small_write_threshold=256,
        split_max_buffer_size=5,
        tail_log_lines=0,
        terminated_snapshot_retention=100,
    ),
    *_keys(
        _text,
        channel_tcp_congestion="",
        file_log_level="",
        mesh_admin_addr="[::]:1729",
        monarch_log_suffix="",
        proc_launcher_kind="",
        pyspy_bin="",
        rdma_ibverbs_target="",
        rdma_peer_device_affinity="",
    ),
    *_keys(_whole_or_none, rdma_max_nics_per_buffer=None, tokio_worker_threads=None),
    *_keys(_byte, message_ttl_default=64),
    *_keys(_number, message_latency_sampling_rate=0.01),
    *_keys(_encoding, default_encoding=Encoding.Multipart.value),
    *_keys(_transport, default_transport=ChannelTransport.Unix.value),
]
KEYS: dict[str, Key] = {key.name: key for key in sorted(_ALL, key=lambda key: key.name)}


def use_defaults() -> None:
    """Apply the keys' defaults to processes that this one starts from now on; environment variables override them."""
    for key in _ALL:
        OVERRIDES.defaults |= key.changes(key.default)


def find_key(name: str) -> Key:
    """Return the key of this name; otherwise raises a ValueError that lists similar names."""
    if name in KEYS:
        return KEYS[name]
    # difflib's time grows with the square of the length, and a long name is not a typing error.
    close = difflib.get_close_matches(name[:60], list(KEYS), n=3)
    hint = f"; did you mean {' or '.join(f'`{other}`' for other in close)}?" if close else ""
    raise ValueError(f"invalid configuration key: `{name}`{hint}")


SECOND = 1_000_000_000
# In descending order. The first name is the one written; the last flag: whether it takes a plural s.
_UNITS: tuple[tuple[int, tuple[str, ...], bool], ...] = (
    (31_557_600 * SECOND, ("year", "years", "y"), True),  # 365.25 days
    (2_630_016 * SECOND, ("month", "months", "M"), True),  # 30.44 days
    (86_400 * SECOND, ("day", "days", "d"), True),
    (3_600 * SECOND, ("h", "hr", "hour", "hours"), False),
    (60 * SECOND, ("m", "min", "minute", "minutes"), False),
    (SECOND, ("s", "sec", "second", "seconds"), False),
    (1_000_000, ("ms", "msec", "millis"), False),
    (1_000, ("us", "usec", "micros"), False),
    (1, ("ns", "nsec", "nanos"), False),
)
_WEEKS = dict.fromkeys(("w", "week", "weeks"), 7 * 86_400 * SECOND)  # read, and written as days
_SIZES = {name: size for size, names, _ in _UNITS for name in names} | _WEEKS
_PART = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*")


def read_duration(text: str) -> int:
    """Return the nanoseconds of a duration; ValueError if the text is invalid."""
    place, total = 0, Decimal(0)
    while (part := _PART.match(text, place)) and part[2] in _SIZES:
        total += Decimal(part[1]) * _SIZES[part[2]]
        place = part.end()
    if not place or place < len(text):
        raise ValueError(f"invalid duration {text!r}; examples: 500ms, 30s, 1m 30s")
    return int(total)


def write_duration(nanoseconds: int) -> str:
    """Format a duration in the largest possible units."""
    if not nanoseconds:
        return "0s"
    parts = []
    for size, names, has_plural in _UNITS:
        count, nanoseconds = divmod(nanoseconds, size)
        if count:
            parts.append(f"{count}{names[0]}{'s' if has_plural and count > 1 else ''}")
    return " ".join(parts)
