"""Parts of error texts that Monarch programs match: these words are fixed, whatever the text around them.

A constant is a piece of a text; a function formats one with names.
"""

from __future__ import annotations

from collections.abc import Iterable

MIXES_KINDS = "mixes both async and sync"
STOPPED_WITH_PROCS = "actor mesh is stopped due to proc mesh shutdown"
PROCS_STOPPED = "`ProcMesh` has already been stopped"
PROCS_NOT_OWNED = "ProcMesh is not owned; must be stopped by an owner"
HOSTS_SHUT_DOWN = "HostMesh has already been shut down"
HOSTS_NOT_OWNED = "cannot shut down `HostMesh` that is a reference instead of owned"
NO_REASON = "no reason provided"
INVALID_DURATION = "Invalid duration format"
PROCESS_FAILED = "the process this actor was running on failed"


def endpoint_failed(mesh: str, endpoint: str) -> str:
    """Return the beginning of each SupervisionError of a call."""
    return f"Endpoint call {mesh}.{endpoint}() failed"


def actor_failed(actor: object, process: str) -> str:
    """Return the text about an actor that has failed, and about each owner that failed with it."""
    return f"The actor {actor} in {process} and all its descendants have failed"


def actor_call_failed(actor: str, endpoint: str) -> str:
    """Return the end of each ActorError of a call."""
    return f"Actor call {actor}.{endpoint} failed"


def owner_lost(controller: str, mesh: str) -> str:
    """Return the text for callers of an actor whose owner has ended."""
    return f"timed out reaching controller {controller} for mesh {mesh}"


def wrong_binding(given: int, wanted: int) -> str:
    """Return the beginning of the error of a `proc_bind` of another length."""
    return f"proc_bind length ({given}) must equal procs_per_host ({wanted})"


def crashed_ranks(ranks: Iterable[int]) -> str:
    """Return `crashed_ranks=[0, 3]`, for the text of a MeshFailure."""
    return f"crashed_ranks={list(ranks)}"


def killed(name: str, number: int) -> str:
    """Return `Killed(sig=9)`, which follows `PROCESS_FAILED` and a colon."""
    return f"{name}(sig={number})"
