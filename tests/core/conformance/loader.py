"""What every loader promises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import pytest

from tfs.core.errors import ServingError
from tfs.core.loader import Loader
from tfs.core.servable_id import ServableId


class LoaderUnderTest(Protocol):
    """Loaders of one good version and of a broken one."""

    id: ServableId

    def make(self) -> Loader[object]:
        """Returns a new loader of the good version."""
        ...

    def make_broken(self) -> Loader[object]:
        """Returns a loader of a version that cannot be loaded."""
        ...

    def num_held(self) -> int:
        """Returns how many servables their loaders hold somewhere."""
        ...


LoaderCheck = Callable[[LoaderUnderTest], None]


def the_estimate_is_steady_and_never_rises(under_test: LoaderUnderTest) -> None:
    """Before loading it is the same at every call; after it, no more than that."""
    loader = under_test.make()
    estimate = loader.estimate_resources()
    assert loader.estimate_resources() == estimate
    loader.load(under_test.id)
    assert estimate.subtract(loader.estimate_resources()) is not None
    loader.unload()


def estimating_loads_nothing(under_test: LoaderUnderTest) -> None:
    """A version that is only looked at holds nothing and runs nothing."""
    under_test.make().estimate_resources()
    assert under_test.num_held() == 0


def there_is_a_servable_only_while_it_is_loaded(under_test: LoaderUnderTest) -> None:
    """One servable, the same at every look, between ``load`` and ``unload``."""
    loader = under_test.make()
    with pytest.raises(ServingError):
        _ = loader.servable
    loader.load(under_test.id)
    assert loader.servable is loader.servable
    loader.unload()
    with pytest.raises(ServingError):
        _ = loader.servable


def unloading_frees_what_loading_took(under_test: LoaderUnderTest) -> None:
    """Nothing is held afterwards, and a new loader of the version loads it again."""
    for _ in range(2):
        loader = under_test.make()
        loader.load(under_test.id)
        assert under_test.num_held() == 1
        loader.unload()
        assert under_test.num_held() == 0


def two_loaders_of_a_version_are_independent(under_test: LoaderUnderTest) -> None:
    """A version that is loaded anew beside itself outlives its elder."""
    elder, heir = under_test.make(), under_test.make()
    elder.load(under_test.id)
    heir.load(under_test.id)
    assert elder.servable is not heir.servable
    elder.unload()
    assert under_test.num_held() == 1
    assert heir.servable is heir.servable
    heir.unload()


def a_failed_load_leaves_nothing(under_test: LoaderUnderTest) -> None:
    """It raises one of our errors, every time, and there is no servable."""
    loader = under_test.make_broken()
    for _ in range(2):
        with pytest.raises(ServingError):
            loader.load(under_test.id)
        with pytest.raises(ServingError):
            _ = loader.servable
        assert under_test.num_held() == 0


LOADER_CHECKS: tuple[LoaderCheck, ...] = (
    the_estimate_is_steady_and_never_rises,
    estimating_loads_nothing,
    there_is_a_servable_only_while_it_is_loaded,
    unloading_frees_what_loading_took,
    two_loaders_of_a_version_are_independent,
    a_failed_load_leaves_nothing,
)


def check_loader(under_test: LoaderUnderTest) -> None:
    """Runs every check of a loader."""
    for check in LOADER_CHECKS:
        check(under_test)
