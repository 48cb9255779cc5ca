"""A real server outlives hostile clients, and goes on serving the others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.certificates import Certificates
from tests.e2e import hostile
from tests.e2e.regular import Regular
from tests.e2e.serving import Serving
from tests.frontends.tls_client import trusting
from tests.runtime.process_host import until

_MOST_GROWTH = 1.2
_TIMES = {"dropped": 70, "truncated": 10, "noise": 10}  # the quick ones


@pytest.fixture(params=["express", "express over TLS"])
def serving(
    scale: Path,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    certificates: Certificates,
) -> Iterator[Serving]:
    transport, _, is_tls = request.param.partition(" over ")
    flags = [
        "--model_name=scale",
        f"--model_base_path={scale}",
        f"--grpc_transport={transport}",
    ]
    if is_tls:
        flags.append(f"--ssl_config_file={certificates.write_config(tmp_path)}")
    with Serving(*flags) as server:
        server.wait_for("scale/2 is available")
        yield server


@pytest.fixture(scope="module")
def certificates() -> Certificates:
    return Certificates()


def _besiege(
    serving: Serving, certificates: Certificates, num_each: int, num_rounds: int
) -> tuple[int, int]:
    """Returns the bytes resident after the first round, and after the last.

    The first round has one of each kind of message pass, the largest that are taken
    included: what it leaves is what honest ones of that size would leave as well.
    """
    process = psutil.Process(serving.process.pid)
    is_tls = serving.flag("ssl_config_file") is not None
    regular = Regular(serving.address, certificates if is_tls else None)
    tls = trusting(certificates) if is_tls else None
    regular.start()
    seed = 0
    before = 0
    for number in range(num_rounds):
        for name in hostile.ATTACKS:
            for _ in range(num_each * _TIMES.get(name, 1)):
                hostile.attack(serving.address, name, seed, tls)
                seed += 1
            assert serving.process.poll() is None, f"{name} ended the server"
            assert regular.error is None, f"{name}: {regular.error}"
        if number == 0:
            before = process.memory_info().rss
    regular.stop()
    after = process.memory_info().rss
    print(f"resident before {before >> 20} MiB, after {after >> 20} MiB")
    return before, after


def test_hostile_clients_are_outlived(
    serving: Serving, certificates: Certificates
) -> None:
    """Each kind a few times: the server lives, a regular client is served throughout.

    What they took is given back once they are gone.
    """
    process = psutil.Process(serving.process.pid)
    at_first = process.memory_info().rss
    _besiege(serving, certificates, 2, 2)
    # The last answers are still being let go of when the last client is gone.
    until(
        lambda: process.memory_info().rss < _MOST_GROWTH * at_first,
        "the memory of large messages to be returned",
    )


@pytest.mark.stress
@pytest.mark.timeout(1800)
def test_crowds_of_hostile_clients_are_outlived(
    serving: Serving, certificates: Certificates
) -> None:
    """Each kind 180 times, and 10,000 connections opened and dropped: memory stays
    within 1.2 times of what the first round left.
    """
    before, after = _besiege(serving, certificates, 30, 6)
    assert after < _MOST_GROWTH * before
