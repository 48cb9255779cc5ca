"""tfs.handlers.admin_access and tfs.handlers.admin: who may operate the server."""

from __future__ import annotations

from typing import Any

import pytest

from tfs.core.call import Peer
from tfs.core.errors import InvalidArgument, PermissionDenied
from tfs.handlers.admin import Asked, admin_methods
from tfs.handlers.admin_access import (
    DEFAULT_ADMIN_FROM,
    AdminAccess,
    AdminFrom,
    read_admin_from,
)
from tfs.handlers.model_service import ReloadConfigHandler
from tfs.proto.tfs.v1 import admin_service_pb2 as pb
from tfs.testing.fake_call import FakeCall

LOCAL = Peer("127.0.0.1:1", "grpc", is_loopback=True)
SOCKET = Peer("unix:/run/tfs.sock", "grpc-unix", is_loopback=True)
REMOTE = Peer("10.0.0.9:1", "grpc")
KNOWN = Peer("10.0.0.9:1", "grpc", identity=("operator",))
ADMIN = Peer("unix:/run/admin.sock", "admin", is_loopback=True)


@pytest.mark.parametrize(
    ("allowed", "welcome"),
    [
        (DEFAULT_ADMIN_FROM, [LOCAL, SOCKET, ADMIN]),
        (frozenset({AdminFrom.LOOPBACK}), [LOCAL, ADMIN]),
        (frozenset({AdminFrom.SOCKET}), [SOCKET, ADMIN]),
        (frozenset({AdminFrom.MTLS}), [KNOWN, ADMIN]),
        (frozenset({AdminFrom.ANY}), [LOCAL, SOCKET, REMOTE, KNOWN, ADMIN]),
        (frozenset[AdminFrom](), [ADMIN]),
    ],
)
def test_callers_are_told_apart_by_their_way_in(
    allowed: frozenset[AdminFrom], welcome: list[Peer]
) -> None:
    """The admin socket's permissions are its own rule; a socket is not loopback."""
    access = AdminAccess(allowed)
    for peer in (LOCAL, SOCKET, REMOTE, KNOWN, ADMIN):
        if peer in welcome:
            access.check(FakeCall(peer=peer))
        else:
            with pytest.raises(PermissionDenied, match="--admin_from"):
                access.check(FakeCall(peer=peer))


@pytest.mark.parametrize(
    ("headers", "is_welcome"),
    [
        ({}, True),
        ({"origin": "https://h:8501"}, True),
        ({"origin": "https://evil.example"}, False),
        ({"origin": "null"}, False),
        ({"origin": "https://evil.example", "authorization": "Bearer key"}, True),
    ],
)
@pytest.mark.parametrize("cookie", ["", "tfs_key=key"])
def test_what_browsers_show_by_themselves_counts_for_our_own_page(
    headers: dict[str, str], is_welcome: bool, cookie: str
) -> None:
    """A page of others can send a form with the operator's cookie, or certificate."""
    sent = {"host": "h:8501", **headers} | ({"cookie": cookie} if cookie else {})
    peer = Peer("10.0.0.9:1", "http", identity=() if cookie else ("operator",))
    call = FakeCall(peer=peer, metadata=tuple(sent.items()))
    access = AdminAccess(frozenset({AdminFrom.MTLS}), "key")
    if is_welcome:
        access.check(call)
    else:
        with pytest.raises(PermissionDenied, match="tfs page"):
            access.check(call)


def test_the_flag_takes_a_list() -> None:
    """Words and commas; anything else is named."""
    assert read_admin_from("loopback, mtls") == {AdminFrom.LOOPBACK, AdminFrom.MTLS}
    assert read_admin_from("") == frozenset()
    with pytest.raises(ValueError, match=r"^everybody is none of: loopback,"):
        read_admin_from("everybody")


class Refuser:
    """A config applier that must not be reached."""

    def __getattr__(self, name: str) -> object:
        raise AssertionError(f"{name} was reached")


def test_a_stranger_reloads_nothing() -> None:
    """HandleReloadConfigRequest has the same rule; the request is not even read."""
    call = FakeCall(b"\xff", peer=REMOTE)
    ReloadConfigHandler(Refuser(), AdminAccess())(call)  # type: ignore[arg-type]
    assert isinstance(call.outcome, PermissionDenied)


class Recorder:
    """Answers every request, and notes it."""

    def __init__(self) -> None:
        self.seen: list[tuple[object, str]] = []

    def __call__(self, asked: Asked[Any, Any]) -> None:
        self.seen.append((asked.request, asked.caller))
        if isinstance(asked.request, pb.PromoteRequest):
            asked.done(pb.PromoteResponse(version=3))
        else:
            asked.done(InvalidArgument("no"))


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


def handle(recorder: Recorder, method: str, call: FakeCall) -> None:
    """Sends a call to a method of the service."""
    methods = {each.path: each for each in admin_methods(recorder, AdminAccess())}
    methods[f"/tfs.v1.AdminService/{method}"].handler(call)


def test_every_method_of_the_service_is_answered(recorder: Recorder) -> None:
    """The table and the .proto file agree."""
    service = pb.DESCRIPTOR.services_by_name["AdminService"]
    methods = admin_methods(recorder, AdminAccess())
    assert {each.path.rpartition("/")[2] for each in methods} == {
        each.name for each in service.methods
    }


def test_a_request_and_its_reply_pass_through(recorder: Recorder) -> None:
    """The caller is passed on, and both replies and errors come back."""
    call = FakeCall(pb.PromoteRequest(model="a").SerializeToString())
    handle(recorder, "Promote", call)
    assert call.outcome == pb.PromoteResponse(version=3).SerializeToString()
    assert recorder.seen == [(pb.PromoteRequest(model="a"), "127.0.0.1:1")]
    call = FakeCall(b"")
    handle(recorder, "GetConfig", call)
    assert isinstance(call.outcome, InvalidArgument)


@pytest.mark.parametrize("peer", [REMOTE, KNOWN])
def test_strangers_are_refused(recorder: Recorder, peer: Peer) -> None:
    """Strangers are refused before their request is read."""
    call = FakeCall(b"\xff\xff", peer=peer)
    handle(recorder, "ListModels", call)
    assert isinstance(call.outcome, PermissionDenied)
    assert recorder.seen == []


def test_garbage_is_refused(recorder: Recorder) -> None:
    """Bytes that are no request."""
    call = FakeCall(b"\xff\xff")
    handle(recorder, "ListModels", call)
    assert isinstance(call.outcome, InvalidArgument)
