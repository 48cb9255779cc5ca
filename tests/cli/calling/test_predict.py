"""tfs.cli.calling.predict, with a client that answers from memory."""

from __future__ import annotations

import argparse
from typing import Any

import pytest

from tfs.cli.calling.predict import wait_until_served
from tfs.core.errors import InvalidArgument, NotFound, ServingError, Unavailable
from tfs.testing.fake_clock import FakeClock


class Models:
    """A client that describes a model after some errors; each takes a second."""

    def __init__(self, clock: FakeClock, *errors: ServingError) -> None:
        self.clock = clock
        self.errors = list(errors)

    def metadata(self, model: str, **which: object) -> None:
        assert (model, which) == ("digits", {"version": 3, "label": None})
        self.clock.advance(1)
        if self.errors:
            raise self.errors.pop(0)


def wait(*errors: ServingError, wait_s: float = 10.0) -> int:
    """Returns how many errors were left."""
    clock = FakeClock()
    models: Any = Models(clock, *errors)
    asked = argparse.Namespace(model="digits", version=3, label=None, wait=wait_s)
    wait_until_served(models, asked, clock)
    return len(models.errors)


def test_a_model_that_is_still_loaded_is_waited_for() -> None:
    """The server may not be up yet, and then not know the model."""
    assert wait(Unavailable("not up"), NotFound("not yet"), NotFound("not yet")) == 0


def test_waiting_ends_with_what_the_server_said_last() -> None:
    """A typing error in a name looks the same as a model that is still loaded."""
    with pytest.raises(NotFound, match="no such"):
        wait(*[NotFound("no such")] * 99, wait_s=3.0)
    with pytest.raises(InvalidArgument):  # it will not go away
        wait(InvalidArgument("no name"))
