"""For tests of programs that run on meshbook: faults on purpose, and the same ones again for the same seed.

    plan (pure: what happens when, to which rank) -> injection (a thread that does it) -> report

Needs no test framework.
"""

from meshbook.testing.injection import Chaos, chaos
from meshbook.testing.plan import Event, Kind, Rates, plan
from meshbook.testing.report import Injected, Report

__all__ = ["Chaos", "Event", "Injected", "Kind", "Rates", "Report", "chaos", "plan"]
