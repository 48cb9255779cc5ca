"""What tests of processes share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.runtime.process_host import ProcessHost, process_host


@pytest.fixture(scope="session")
def shared_host() -> Iterator[ProcessHost]:
    """One loop and one zygote, which somebody may kill; then there is another."""
    with process_host() as host:
        yield host


@pytest.fixture
def host(shared_host: ProcessHost) -> Iterator[ProcessHost]:
    """The shared host; pools a test makes are closed after it.

    A test may kill the zygote: whoever wants one next gets another.
    """
    yield shared_host
    shared_host.close_pools()
