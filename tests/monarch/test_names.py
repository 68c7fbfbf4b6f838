"""The modules of `monarch`: which names they have, and what they say of those that they have not."""

from __future__ import annotations

import importlib
import pickle
from types import SimpleNamespace
from typing import Any

import cloudpickle
import pytest

import meshbook
from meshbook.runtime import geometry
from meshbook.runtime.actor.future import Future
from meshbook.runtime.hosts import faults

MODULES = [
    *("monarch", "monarch.actor", "monarch.actor.concurrent", "monarch.config"),
    *("monarch.exceptions", "monarch.job", "monarch.rdma", "monarch.spmd"),
    "monarch._rust_bindings.monarch_hyperactor.supervision",
]
OURS_ALONE = {
    *("heal_mesh", "ActorMesh", "MeshbookError", "Restarts", "TransferError", "close_session", "events", "span"),
    *("Histogram", "log"),
}
OF_RDMA = {"RDMAAction", "RDMABuffer", "get_rdma_backend"}


def load(name: str) -> Any:
    return importlib.import_module(name)


def test_actor_has_the_names_of_the_facade(alias):
    actor = load("monarch.actor")
    for name in set(meshbook.__all__) - OURS_ALONE - OF_RDMA:
        assert getattr(actor, name) is getattr(meshbook, name), name


def test_each_module_has_its_names(alias):
    assert load("monarch").Shape is geometry.Shape
    assert load("monarch").configure is load("monarch.config").configure
    assert load("monarch.actor.concurrent").concurrent_endpoint is meshbook.concurrent_endpoint
    for name in OF_RDMA:
        assert getattr(load("monarch.rdma"), name) is getattr(meshbook, name), name
    assert load("monarch.actor").ChannelTransport is load("monarch.config").ChannelTransport


def test_errors_and_spmd_are_those_of_meshbook(alias):
    assert load("monarch.exceptions").ActorError is meshbook.ActorError
    supervision = load("monarch._rust_bindings.monarch_hyperactor.supervision")
    assert supervision.SupervisionError is meshbook.SupervisionError
    assert supervision.MeshFailure is meshbook.MeshFailure
    assert load("monarch.spmd").SPMDActor is load("meshbook.spmd").SPMDActor


def test_the_older_question_about_rdma_is_answered_and_deprecated(alias):
    asked = load("monarch.rdma")
    with pytest.warns(DeprecationWarning, match="get_rdma_backend"):
        assert asked.is_rdma_available() is asked.is_ibverbs_available()
    for kind in ("Read", "Write"):
        assert issubclass(getattr(asked, f"RDMA{kind}TransferWarning"), Warning)


def test_a_mesh_is_healed_by_its_name(alias):
    mesh = SimpleNamespace(heal=lambda: Future.completed([1]))
    assert load("monarch").heal_mesh(mesh) is mesh
    mesh.heal = lambda: Future.failed(RuntimeError("stopped"))
    with pytest.raises(RuntimeError, match="stopped"):
        load("monarch").heal_mesh(mesh)


@pytest.mark.parametrize("module", MODULES)
def test_nothing_of_ours_lies_about(alias, module):
    public = {name: value for name, value in vars(load(module)).items() if not name.startswith("_")}
    assert not {"sys", "Path", "AliasModule", "ActorModule", "TYPE_CHECKING"} & public.keys()


def test_a_module_is_an_attribute_of_the_one_above(alias):
    assert load("monarch").actor.Actor is meshbook.Actor


@pytest.mark.parametrize(
    ("code", "error"),
    [
        # What no version is meant to have.
        ("from monarch.rdma import RDMAManager", ImportError),
        ("from monarch.actor import sim_proc_mesh", ImportError),
        ("from monarch import mast_reserve", ImportError),
        ("from monarch.job import MastJob", ImportError),
        ("import monarch.notebook", ModuleNotFoundError),
        ("from monarch._rust_bindings.monarch_hyperactor.proc import ActorId", ModuleNotFoundError),
        ("import monarch.rdma; monarch.rdma.RDMAManager", AttributeError),
        ("import monarch; monarch.notebook", AttributeError),
    ],
)
def test_what_is_not_here_is_said_to_be_so(alias, code, error):
    with pytest.raises(error, match=r"monarch\.[\w.]+ is not part of this version of meshbook"):
        exec(code, {})


def test_a_program_can_ask_whether_a_name_is_here(alias):
    actor = load("monarch.actor")
    assert hasattr(actor, "Actor")
    assert not hasattr(actor, "sim_proc_mesh")
    assert getattr(actor, "sim_proc_mesh", None) is None


def test_names_of_others_are_not_our_business(alias):
    with pytest.raises(ModuleNotFoundError, match="No module named 'monarchy'"):
        load("monarchy")


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize("dumps", [pickle.dumps, cloudpickle.dumps])
def test_a_module_travels_by_its_name(alias, module, dumps):
    data = dumps(load(module))
    assert len(data) < 200
    assert pickle.loads(data) is load(module)


# -- the hook -------------------------------------------------------------------------


def test_assigning_the_hook_puts_it_in_force(alias):
    actor = load("monarch.actor")
    heard: list[Any] = []
    assert actor.unhandled_fault_hook is faults.unhandled_fault_hook()
    actor.unhandled_fault_hook = heard.append
    faults.unhandled_fault_hook()("a failure")
    exec("from monarch.actor import unhandled_fault_hook; unhandled_fault_hook('another')", {})
    meshbook.unhandled_fault_hook("a third")
    assert heard == ["a failure", "another", "a third"]
