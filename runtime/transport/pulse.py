"""How long another host has been silent, counted while this one listened. Pure: time is passed in."""

from __future__ import annotations

STALL = 0.5  # seconds without a look after which it was us who did not listen


class Pulse:
    """The silence of one host.

    A process that was stopped, or got no processor, has heard nobody meanwhile, and must not blame others for it.
    """

    def __init__(self, now: float) -> None:
        self._heard = now
        self._looked = now
        self._beaten = now

    def hear(self, now: float) -> None:
        """Something came from there."""
        self._heard = now

    def silence(self, now: float) -> float:
        """The seconds since something came. To be asked often: what lies between two looks, if long, does not count."""
        if (pause := now - self._looked) > STALL:
            self._heard = min(now, self._heard + pause)
        self._looked = now
        return now - self._heard

    def is_due(self, now: float, interval: float) -> bool:
        """Whether it is time to say something; asked so, it counts as said."""
        if now - self._beaten < interval:
            return False
        self._beaten = now
        return True
