"""Whether Envoy, or ADS alone, can be tried here."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from tfs.core.errors import FailedPrecondition
from tfs.hosted.routing.ads import AdsServer
from tfs.hosted.routing.envoy_router import find_envoy


def skip_without_envoy() -> None:
    """Skips the test where Envoy is missing; fails it where engines are required."""
    _skip_without(AdsServer, find_envoy)


def skip_without_ads() -> None:
    """Does so where the messages of ADS are missing."""
    _skip_without(AdsServer)


def _skip_without(*parts: Callable[[], object]) -> None:
    try:
        for part in parts:
            part()
    except FailedPrecondition as error:
        if os.environ.get("TFS_ENGINES") == "required":
            pytest.fail(str(error))
        pytest.skip(str(error))
