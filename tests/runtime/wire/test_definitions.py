"""Classes of `__main__` by value: which are one definition, in several processes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from meshbook.runtime.wire import pickling
from meshbook.runtime.wire.definitions import digest_of
from meshbook.runtime.wire.functions import binding_to

CLASSES = """
import abc, collections, dataclasses, enum, typing

class Stage(enum.Enum):
    WARM = 1
    DONE = 2
    def following(self): return Stage.DONE

class Flags(enum.Flag):
    A = enum.auto()
    B = enum.auto()

@dataclasses.dataclass
class Setting:
    lr: float = 0.5
    names: list[str] = dataclasses.field(default_factory=list)
    stage: Stage = Stage.WARM

@dataclasses.dataclass(frozen=True, slots=True)
class Slotted:
    _known = []
    x: int = 1

class Pair(typing.NamedTuple):
    first: int
    second: "str" = ""

class Base(abc.ABC):
    @abc.abstractmethod
    def run(self, x: int | None = None): ...
    @property
    def size(self): return 1
    @staticmethod
    def made(): return Model()
    class Inner:
        pass

class Model(Base):
    __slots__ = ("x",)
    kinds = {"a", "b"}
    def __init__(self): super().__init__()
    def run(self, x=(1, 2), *, y={"a": [1]}): return [lambda z: z for _ in x]
    @classmethod
    def of(cls): return cls()

class Failure(ValueError):
    def __init__(self, code): super().__init__(code)
"""
NAMES = ["Stage", "Flags", "Setting", "Slotted", "Pair", "Base", "Model", "Failure"]
Run = Callable[..., dict[str, Any]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a program as a `__main__` of its own, and return its names."""

    def run_program(source: str = CLASSES, filename: str = "<cell>") -> dict[str, Any]:
        module = ModuleType("__main__")
        monkeypatch.setitem(sys.modules, "__main__", module)
        exec(compile(source, filename, "exec"), vars(module))
        return vars(module)

    return run_program


def arrive(value: Any, names: dict[str, Any]) -> Any:
    """Return a value as it arrives among these variables."""
    body = pickling.dumps(value, "a value")
    with binding_to(names):
        return pickling.loads(body, "a value")


@pytest.mark.parametrize("name", NAMES)
def test_a_definition_that_ran_twice_is_one(run: Run, name: str) -> None:
    """Also where its file has another name, and of the class that was made from a message."""
    here, there = run(), run(filename="<another>")
    digest = digest_of(here[name])
    assert digest is not None
    assert digest == digest_of(there[name])
    assert arrive(here[name], there) is there[name]
    assert digest_of(arrive(here[name], {})) == digest


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("Stage", "DONE = 2", "DONE = 3"),
        ("Setting", "lr: float = 0.5", "lr: float = 0.25"),
        ("Setting", "WARM = 1", "WARM = 0"),
        ("Model", "def made(): return Model()", "def made(): return None"),
        ("Model", "[lambda z: z for", "[lambda z: -z for"),
        ("Model", "kinds = {", "kinds = {'c', "),
        ("Model", "x=(1, 2)", "x=(1, 3)"),
    ],
)
def test_an_edited_definition_is_another(run: Run, name: str, old: str, new: str) -> None:
    assert old in CLASSES
    here, there = run(), run(CLASSES.replace(old, new))
    assert digest_of(here[name]) != digest_of(there[name])
    assert arrive(here[name], there) is not there[name]


def test_a_class_that_was_changed_is_another(run: Run) -> None:
    here, there = run(), run()
    for name, change in (
        ("Setting", lambda cls: setattr(cls, "lr", 0.25)),
        ("Model", lambda cls: cls.kinds.add("c")),
        ("Slotted", lambda cls: cls._known.append(1)),
        ("Failure", lambda cls: setattr(cls, "__init__", lambda self: None)),
    ):
        assert digest_of(here[name]) == digest_of(there[name])
        change(here[name])
        assert digest_of(here[name]) != digest_of(there[name])


def test_a_number_in_the_memory_of_the_one_before_is_another(run: Run) -> None:
    cls = run("class A: count = 1000")["A"]
    digests = set()
    for _ in range(20):
        digests.add(digest_of(cls))
        for _ in range(2):  # the second takes the memory of the present one
            cls.count += 1
    assert len(digests) == 20


def test_values_of_one_definition_are_equal(run: Run) -> None:
    here, there = run(), run()
    stage, setting = arrive((here["Stage"].DONE, here["Setting"](0.25)), there)
    assert stage is there["Stage"].DONE
    assert isinstance(setting, there["Setting"])
    assert setting == there["Setting"](0.25)


def test_classes_of_several_senders_are_one_where_none_is_defined(run: Run) -> None:
    one, other = run(), run()
    first, second = (arrive((names["Stage"].DONE, names["Setting"]()), {}) for names in (one, other))
    assert first == second
    assert first[0] is second[0]


@pytest.mark.parametrize(
    "source", ["def make():\n    class A: pass\n    return A\nA = make()", "class A: x = object()"]
)
def test_what_has_an_identity_of_its_own_keeps_it(run: Run, source: str) -> None:
    here = run(source)
    assert digest_of(here["A"]) is None
    came = arrive(here["A"](), {})
    assert type(came) is here["A"]  # in the same process
