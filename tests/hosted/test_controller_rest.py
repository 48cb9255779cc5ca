"""The Controller API over HTTP: the same answers as over gRPC, and a stricter door."""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.certificates import Certificates
from tests.hosted.fleets import MIB, server, state_in
from tfs.cli.hosted.run import control_options
from tfs.core.call import ListenerOptions
from tfs.core.clock import MonotonicClock
from tfs.hosted import edits
from tfs.hosted.edit_reader import EditReader
from tfs.hosted.identities import ControlOptions
from tfs.hosted.service import HostedService, ServiceOptions
from tfs.hosted.synchronizer import SynchronizerOptions
from tfs.proto.tfs.v1 import controller_pb2 as pb
from tfs.server.config.server_config import read_model
from tfs.testing.patience import PATIENCE_S

KEY = "a-key"
BEARER = {"Authorization": f"Bearer {KEY}"}
CERTIFICATES = Certificates()
UNARY = [
    method.name
    for method in pb.DESCRIPTOR.services_by_name["Controller"].methods
    if not method.server_streaming
]


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[int]]:
    """Two doors of a controller: plain, and for verified certificates."""
    state = state_in(tmp_path_factory.mktemp("fleet"))
    state.change(edits.put_job(server("127.0.0.1:1", 100 * MIB)))
    tls = CERTIFICATES.tls(mutual=True)
    doors = [
        ListenerOptions("http", "127.0.0.1:0", protocol="http/1.1"),
        ListenerOptions("http", "127.0.0.1:0", tls=tls, protocol="http/1.1"),
    ]
    service = HostedService(
        state,
        ServiceOptions(
            ControlOptions(http_listeners=doors, http_key=KEY),
            None,
            SynchronizerOptions(only_routes=True),
        ),
        reader=EditReader(read_model),
    )
    yield [int(each.rpartition(":")[2]) for each in service.start()]
    service.close(MonotonicClock.now() + PATIENCE_S)
    state.store.close()


def ask(
    port: int,
    path: str,
    body: Any = None,
    headers: dict[str, str] = BEARER,
    verb: str = "POST",
    tls: ssl.SSLContext | None = None,
) -> tuple[int, Any, dict[str, str]]:
    """Returns status, document and headers of an answer."""
    if tls is None:
        client = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    else:
        client = http.client.HTTPSConnection(
            "127.0.0.1", port, timeout=PATIENCE_S, context=tls
        )
    text = body if isinstance(body, str) else json.dumps({} if body is None else body)
    with contextlib.closing(client):
        client.request(verb, path, text, headers)
        answer = client.getresponse()
        return answer.status, json.loads(answer.read()), dict(answer.headers)


def test_requests_act_once_and_are_told_of(ports: list[int], tmp_path: Path) -> None:
    """What is added by JSON is there, and a repeated request gets the same answer."""
    (tmp_path / "models" / "1").mkdir(parents=True)
    body = {
        "edit": {"request_id": "r1", "wait_s": 0},
        "model": "digits",
        "base_path": str(tmp_path / "models"),
        "hints": {"memory_bytes": MIB},
    }
    status, op, _ = ask(ports[0], "/v1/AddModel", body)
    assert (status, op["what"]) == (200, "add-model digits")
    assert op["waits_for"]
    again = ask(ports[0], "/v1/AddModel", body)[1]
    assert again["revision"] == op["revision"]
    model = ask(ports[0], "/v1/GetModel", {"model": "digits"})[1]
    assert model["jobs"] == ["127.0.0.1:1"]
    assert [each["model"] for each in ask(ports[0], "/v1/ListModels")[1]["models"]] == [
        "digits"
    ]


@pytest.mark.parametrize(
    ("path", "body", "verb", "status", "said"),
    [
        ("/v1/GetModel", {"model": "none"}, "POST", 404, "no model none"),
        ("/v1/GetModel", {"modell": "x"}, "POST", 400, "modell"),
        ("/v1/GetModel", '{"model": ', "POST", 400, "no GetModelRequest"),
        ("/v1/GetModel", "[" * 100_000, "POST", 400, "no GetModelRequest"),
        ("/v1/AddModel", {"model": "m"}, "POST", 400, "request_id"),
        ("/v1/GetModel", None, "GET", 405, "takes POST"),
        ("/v1/WatchModel", None, "POST", 404, "/v1/ListModels"),
        ("/v1", None, "GET", 404, "/v1/AddModel"),
    ],
)
def test_errors_are_json_with_the_status_of_their_code(
    ports: list[int], path: str, body: Any, verb: str, status: int, said: str
) -> None:
    """Whoever may ask is told what is wrong."""
    got, document, sent = ask(ports[0], path, body, verb=verb)
    assert (got, said in document["error"]) == (status, True), document
    assert sent.get("Allow") == ("POST" if status == 405 else None)


@pytest.mark.parametrize("path", [*UNARY, "WatchModel", "Nothing"])
def test_loopback_alone_allows_nothing(ports: list[int], path: str) -> None:
    """Any web page that an operator visits can send from loopback: no route answers it."""
    form = {
        "Origin": "http://elsewhere.example",
        "Content-Type": "application/x-www-form-urlencoded",
    }
    for verb in ("POST", "GET", "OPTIONS"):
        for headers in ({}, form, {"Authorization": "Bearer another"}):
            status, document, sent = ask(
                ports[0], f"/v1/{path}", headers=headers, verb=verb
            )
            assert status == 403
            assert "may not operate this fleet" in document["error"]
            assert not [key for key in sent if key.lower().startswith("access-control")]


def test_a_verified_certificate_needs_no_key(ports: list[int], tmp_path: Path) -> None:
    """Who shows one is known; who shows none does not come in at all."""
    tls = ssl.create_default_context(cadata=CERTIFICATES.authority.decode())
    with pytest.raises((ssl.SSLError, ConnectionError, http.client.HTTPException)):
        ask(ports[1], "/v1/ListModels", tls=tls)
    pem = tmp_path / "client.pem"
    pem.write_bytes(b"".join(CERTIFICATES.client_pem()))
    tls.load_cert_chain(pem)
    assert ask(ports[1], "/v1/ListModels", headers={}, tls=tls)[0] == 200


def test_the_key_is_new_and_its_owner_s_alone(tmp_path: Path) -> None:
    """Its file is made anew at each start, whoever could read an older one."""
    arguments = argparse.Namespace(
        control="127.0.0.1:0",
        control_http="127.0.0.1:0",
        control_ssl_config_file="",
        identities="",
    )
    file = tmp_path / "control.key"
    file.write_text("old")
    file.chmod(0o644)
    made = control_options(arguments, file)
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.read_text().strip() == made.http_key != "old"
    assert made.http_key not in repr(made)
    without = control_options(arguments, None)
    assert not without.http_key
    arguments.control_http = ""
    closed = control_options(arguments, file)
    assert not closed.http_listeners
