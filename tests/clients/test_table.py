"""Every line of the conformance table, with the suite's clients over both transports."""

from __future__ import annotations

import urllib.parse
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients import table
from tests.e2e.serving import Serving
from tests.frontends.peers import PEERS, Peer
from tfs.core.errors import Code

CASES = table.cases()


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return table.export(tmp_path_factory.mktemp("table"))


@pytest.fixture(scope="module", params=["grpcio", "express"])
def address(config: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    with Serving(
        f"--model_config_file={config}", f"--grpc_transport={request.param}"
    ) as server:
        server.wait_for_each("echo/1 is available", "echo/2 is available")
        yield server.address


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_every_call_ends_as_the_table_says(address: str, peer: Peer) -> None:
    """Every method, dtype and error; all that differ are listed at once."""
    wrong = []
    for case in CASES:
        answer = peer.call(address, case.path, case.message)
        details = answer.trailers.get("grpc-message")
        if details is not None:
            details = urllib.parse.unquote(
                details if isinstance(details, str) else details.decode("ascii")
            )
        try:
            case.judge(answer.code, details, answer.message)
        except table.WrongReplyError as error:
            wrong.append(str(error))
    assert not wrong, "\n".join(wrong)


def test_the_table_has_every_dtype_code_and_method() -> None:
    """What the table does not ask for, it does not show."""
    assert len({case.name for case in CASES}) == len(CASES)
    assert {Code.OK, Code.INVALID_ARGUMENT, Code.NOT_FOUND} < {
        case.code for case in CASES
    }
    methods = {case.path.rpartition("/")[2] for case in CASES}
    assert methods >= {
        "Predict",
        "Classify",
        "Regress",
        "MultiInference",
        "GetModelMetadata",
        "GetModelStatus",
        "HandleReloadConfigRequest",
        "SessionRun",
        "Check",
    }
