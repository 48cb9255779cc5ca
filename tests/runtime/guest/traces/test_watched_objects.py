"""Changes of modules, seen in the memory of what they hold."""

from __future__ import annotations

import gc
import sys
import types
from collections.abc import Callable, Iterator
from types import ModuleType

import pytest

from tfs.runtime.guest.traces.all_objects import all_objects
from tfs.runtime.guest.traces.watched_objects import WatchedObjects


class _Base:
    def method(self, first: int = 1, *, second: int = 2) -> int:
        return first + second


class _Inner(_Base):
    class Deep:
        flag = False


class _Settings:
    """An instance whose attributes are numbers alone."""

    def __init__(self) -> None:
        self.level = 1
        self.by_name: dict[str, int] = {}


@pytest.fixture
def module() -> Iterator[ModuleType]:
    """A module with one of everything that is looked at."""

    def function(first: int = 1, *, second: int = 2) -> int:
        return first + second

    counted = 0

    def count() -> int:
        nonlocal counted
        counted += 1
        return counted

    made = ModuleType("watched_sample")
    made.__dict__.update(
        function=function,
        count=count,
        settings=_Settings(),
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
    "a variable of a closure": ("count", lambda m: m.count()),
    "an instance's attribute": ("_Settings", lambda m: _set(m.settings, "level", 2)),
    "a new one": ("_Settings", lambda m: _set(m.settings, "other", 2)),
    "what an instance holds": (
        "_Settings.by_name",
        lambda m: m.settings.by_name.update(a=1),
    ),
    "a function's attribute": ("<lambda>", lambda m: _set(m.other, "own", 1)),
    "a function's code": (
        "<lambda>",
        lambda m: _set(m.other, "__code__", (lambda: 1).__code__),
    ),
    "a function's defaults": (
        "function",
        lambda m: _set(m.function, "__defaults__", (3,)),
    ),
    "its keyword defaults": (
        "function",
        lambda m: _set(m.function, "__kwdefaults__", {"second": 3}),
    ),
}


@pytest.mark.parametrize("what", CHANGES)
def test_each_change_is_named(module: ModuleType, what: str) -> None:
    """Whatever code replaces, adds or patches: it is found, and nothing beside it."""
    name, change = CHANGES[what]
    watched = WatchedObjects(_objects_of(module))
    before = watched.read()
    assert watched.changes(before) == []
    change(module)
    (found,) = watched.changes(before)
    assert found.endswith(name)


def test_using_modules_changes_nothing(module: ModuleType) -> None:
    """Calls, look-ups, subclasses, instances and collections of garbage are no change."""
    watched = WatchedObjects(_objects_of(module))
    before = watched.read()
    for _ in range(100):  # Python adapts code to what it sees
        instance = type("Sub", (module.Kind,), {})()
        assert module.function() == instance.method() == 3
        assert module.table["a"] in module.numbers
    gc.collect()
    assert watched.changes(before) == []


def test_what_is_dropped_can_still_be_looked_at(module: ModuleType) -> None:
    """Their memory stays where it is, whatever becomes of what held them."""
    watched = WatchedObjects(_objects_of(module))
    before = watched.read()
    module.__dict__.clear()
    gc.collect()
    assert watched.changes(before)


def test_what_is_left_out_may_change(module: ModuleType) -> None:
    """What the caller looks at by himself."""
    watched = WatchedObjects(_objects_of(module), but=[module.table])
    before = watched.read()
    module.table["a"] = 3
    assert watched.changes(before) == []
    module.numbers.append(3)
    assert watched.changes(before) == ["watched_sample.numbers"]


def test_what_changed_before_it_was_read_is_no_change(module: ModuleType) -> None:
    """Each process notes by itself how it was; what the first one held is not the rule."""
    watched = WatchedObjects(_objects_of(module))
    module.numbers.extend(range(100))
    module.names.update(range(100))
    module.table["b"] = 1
    before = watched.read()
    assert watched.changes(before) == []
    module.numbers[-1] = object()
    assert watched.changes(before) == ["watched_sample.numbers"]
    assert len(watched.changes(watched.read())) == 0


def test_all_that_can_be_changed_is_found(module: ModuleType) -> None:
    """Objects unknown to the collector, or made on demand, are found as well."""
    found = {id(each) for each in all_objects()}
    closure = module.count.__closure__
    sample = [module.table, module.numbers, module.names, module.function]
    sample += [vars(module), module.settings.by_name, vars(module.settings), closure[0]]
    assert {*map(id, sample)} <= found


def _objects_of(module: ModuleType) -> list[object]:
    """What lies in the module, and in the classes, instances and closures of this one."""
    found: dict[int, object] = {}
    todo: list[object] = [vars(module)]
    while todo:
        each = todo.pop()
        is_own_class = isinstance(each, type) and each.__module__ == __name__
        is_own = is_own_class or type(each).__module__ == __name__
        kinds = (dict, list, set, tuple, types.FunctionType, types.CellType)
        if id(each) in found or not (is_own or isinstance(each, kinds)):
            continue
        found[id(each)] = each
        if isinstance(each, types.FunctionType):
            todo += [each.__closure__ or ()]
        elif isinstance(each, type):
            todo += gc.get_referents(vars(each))
        else:
            todo += [vars(each)] if is_own else gc.get_referents(each)
    return list(found.values())
