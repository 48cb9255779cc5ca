"""tfs.handlers.model_service: the cases of TensorFlow Serving's own test.

(model_servers/get_model_status_impl_test.cc; each is named where it is asserted.)
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tfs.core.errors import InvalidArgument, NotFound
from tfs.core.servable_id import ServableId
from tfs.core.servable_state import ManagerState, ServableState
from tfs.handlers.model_service import ModelStatusHandler
from tfs.proto.tensorflow_serving.apis import get_model_status_pb2 as pb
from tfs.testing.fake_call import FakeCall


class Reader:
    """Knows two versions of m."""

    def version_states(self, name: str) -> Sequence[ServableState]:
        if name != "m":
            return ()
        return [
            ServableState(ServableId("m", version), ManagerState.AVAILABLE)
            for version in (2, 1)
        ]

    def problem(self, name: str) -> str:
        return ""


def ask(request: pb.GetModelStatusRequest) -> object:
    """Returns the outcome."""
    call = FakeCall(request.SerializeToString())
    ModelStatusHandler(Reader())(call)
    return call.outcome


def versions(outcome: object) -> list[int]:
    """Returns the versions of a reply."""
    assert isinstance(outcome, bytes)
    reply = pb.GetModelStatusResponse.FromString(outcome)
    assert {each.status.error_code for each in reply.model_version_status} == {0}
    return [each.version for each in reply.model_version_status]


def test_a_request_without_a_model_fails() -> None:
    """No spec, or an empty one (MissingOrEmptyModelSpecFailure)."""
    assert isinstance(ask(pb.GetModelStatusRequest()), InvalidArgument)
    empty = pb.GetModelStatusRequest()
    empty.model_spec.SetInParent()
    assert isinstance(ask(empty), NotFound | InvalidArgument)


@pytest.mark.parametrize(("name", "version"), [("x", None), ("m", 7)])
def test_what_is_not_there_is_not_found(name: str, version: int | None) -> None:
    """An unknown model or version is NOT_FOUND (InvalidModelNameFailure,
    InvalidModelVersionFailure).
    """
    request = pb.GetModelStatusRequest()
    request.model_spec.name = name
    if version is not None:
        request.model_spec.version.value = version
    assert isinstance(ask(request), NotFound)


def test_all_versions_are_told() -> None:
    """A request without a version gets the states of all (AllVersionsSuccess)."""
    request = pb.GetModelStatusRequest()
    request.model_spec.name = "m"
    assert versions(ask(request)) == [2, 1]


def test_one_version_is_told() -> None:
    """A request that names a version is told of that one alone (SingleVersionSuccess)."""
    request = pb.GetModelStatusRequest()
    request.model_spec.name = "m"
    request.model_spec.version.value = 1
    assert versions(ask(request)) == [1]
