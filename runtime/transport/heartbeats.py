"""Heartbeat state of another host: how long it has been silent while this host listened. Time is passed in."""

from __future__ import annotations

STALL = 0.5  # seconds: a longer pause between two checks means that this process did not run


class HeartbeatState:
    """The silence of one host, and the heartbeats to it.

    A process that was stopped or got no CPU time has received nothing meanwhile. That time is not the peer's silence.
    """

    def __init__(self, now: float) -> None:
        self._heard = now
        self._looked = now
        self._beaten = now

    def note_message(self, now: float) -> None:
        """Reset the silence: the host has sent something."""
        self._heard = now

    def silence(self, now: float) -> float:
        """Return the seconds since the last message. Call this often: a pause over `STALL` does not count."""
        if (pause := now - self._looked) > STALL:
            self._heard = min(now, self._heard + pause)
        self._looked = now
        return now - self._heard

    def is_due(self, now: float, interval: float) -> bool:
        """Whether a heartbeat is due; if so, counts it as sent."""
        if now - self._beaten < interval:
            return False
        self._beaten = now
        return True
