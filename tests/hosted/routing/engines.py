"""Whether Envoy can be tried here."""

from __future__ import annotations

import os

import pytest

from tfs.core.errors import FailedPrecondition
from tfs.hosted.routing.ads import AdsServer
from tfs.hosted.routing.envoy_router import find_envoy


def skip_without_envoy() -> None:
    """Skips the test where Envoy is missing; fails it where engines are required."""
    try:
        AdsServer()
        find_envoy()
    except FailedPrecondition as error:
        if os.environ.get("TFS_ENGINES") == "required":
            pytest.fail(str(error))
        pytest.skip(str(error))
