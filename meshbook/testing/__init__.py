"""Tests of programs that run on meshbook: reproducible fault injection, and simulated meshes of any size.

    plan (pure: kind, time and rank of each fault) -> injection (a thread that does it, and its report)
    simulated -> `fake_mesh`: a mesh of thousands of ranks on a dashboard, without a process

Needs no test framework. Agents send the signals. A link is disturbed in the worker, by
`meshbook.runtime.transport.disturbed` around its transport.
"""

from meshbook.testing.injection import Chaos, ChaosReport, Injected, chaos
from meshbook.testing.plan import Event, Kind, Rates, plan
from meshbook.testing.simulated.mesh import FakeMesh, fake_mesh

__all__ = ["Chaos", "ChaosReport", "Event", "FakeMesh", "Injected", "Kind", "Rates", "chaos", "fake_mesh", "plan"]
