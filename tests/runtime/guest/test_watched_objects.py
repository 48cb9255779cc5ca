"""Changes of modules, seen in the memory of what they hold."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from types import ModuleType

import pytest

from tfs.runtime.guest.watched_objects import WatchedObjects


class _Base:
    def method(self, first: int = 1, *, second: int = 2) -> int:
        return first + second


class _Inner(_Base):
    class Deep:
        flag = False


@pytest.fixture
def module() -> Iterator[ModuleType]:
    """A module with one of everything that is looked at."""

    def function(first: int = 1, *, second: int = 2) -> int:
        return first + second

    made = ModuleType("watched_sample")
    made.__dict__.update(
        function=function,
        other=lambda: 0,
        Kind=type("Kind", (_Inner,), {"own": 1, "table": {}}),
        numbers=[1, 2, 3],
        names={"a", "b"},
        table={"a": 1},
        value=object(),
    )
    sys.modules[made.__name__] = made
    yield made
    del sys.modules["watched_sample"]


def _set(owner: object, name: str, value: object) -> None:
    setattr(owner, name, value)


CHANGES: dict[str, tuple[str, Callable[[ModuleType], object]]] = {
    "another value": ("watched_sample", lambda m: _set(m, "value", object())),
    "one more name": ("watched_sample", lambda m: _set(m, "more", 1)),
    "one name less": ("watched_sample", lambda m: m.__dict__.pop("value")),
    "an item of a dict": ("watched_sample.table", lambda m: m.table.update(a=2)),
    "a longer list": ("watched_sample.numbers", lambda m: m.numbers.append(4)),
    "another item of a list": (
        "watched_sample.numbers",
        lambda m: m.numbers.__setitem__(0, object()),
    ),
    "a larger set": ("watched_sample.names", lambda m: m.names.add("c")),
    "another member of a set": (
        "watched_sample.names",
        lambda m: (m.names.remove("a"), m.names.add("d")),
    ),
    "a class attribute": ("Kind", lambda m: _set(m.Kind, "own", 2)),
    "a class' container": ("Kind.table", lambda m: m.Kind.table.update(a=1)),
    "a function's code": (
        "watched_sample.other",
        lambda m: _set(m.other, "__code__", (lambda: 1).__code__),
    ),
    "a function's defaults": (
        "watched_sample.function",
        lambda m: _set(m.function, "__defaults__", (3,)),
    ),
    "its keyword defaults": (
        "watched_sample.function",
        lambda m: _set(m.function, "__kwdefaults__", {"second": 3}),
    ),
}


@pytest.mark.parametrize("what", CHANGES)
def test_each_change_is_named(module: ModuleType, what: str) -> None:
    """Whatever code replaces, adds or patches: it is found, and nothing beside it."""
    name, change = CHANGES[what]
    watched = WatchedObjects(_all_but(module))
    before = watched.read()
    assert watched.changes(before) == []
    change(module)
    (found,) = watched.changes(before)
    assert found.endswith(name)


def test_using_modules_changes_nothing(module: ModuleType) -> None:
    """Calls, look-ups, subclasses, instances and collections of garbage are no change."""
    watched = WatchedObjects(_all_but(module))
    before = watched.read()
    for _ in range(100):  # Python adapts code to what it sees
        instance = type("Sub", (module.Kind,), {})()
        assert module.function() == instance.method() == 3
        assert module.table["a"] in module.numbers
    gc.collect()
    assert watched.changes(before) == []


def test_what_is_dropped_can_still_be_looked_at(module: ModuleType) -> None:
    """Their memory stays where it is, whatever becomes of what held them."""
    watched = WatchedObjects(_all_but(module))
    before = watched.read()
    module.__dict__.clear()
    gc.collect()
    assert watched.changes(before) == ["watched_sample"]


def _all_but(module: ModuleType) -> frozenset[str]:
    return frozenset(sys.modules) - {module.__name__}
