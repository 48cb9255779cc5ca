"""What a fleet learns from what its servers report."""

from __future__ import annotations

import pytest

from tfs.hosted.reports import report_of
from tfs.proto.tfs.v1 import admin_service_pb2

DAMAGED = "model.pt is damaged"
MISSING = "version 9 of m is wanted, but is not under /m"


@pytest.mark.parametrize(
    ("primary", "failed", "missing", "said"),
    [
        (None, 1, False, DAMAGED),
        (2, None, False, None),
        (2, 1, False, None),  # an old one, which nobody waits for
        (2, 3, False, DAMAGED),
        (2, None, True, MISSING),
    ],
)
def test_a_model_that_answers_may_lack_what_was_asked_for(
    primary: int | None, failed: int | None, missing: bool, said: str | None
) -> None:
    """A promoted version that is not there, or a new one that fails, shows in the fleet."""
    reply = admin_service_pb2.ListModelsResponse()
    model = reply.models.add(name="m", base_path="/m", primary=primary)
    if failed is not None:
        version = model.versions.add(version=failed)
        version.error.code, version.error.message = 15, DAMAGED
    if missing:
        model.error.code, model.error.message = 5, MISSING
    report = report_of(reply)
    assert report.models["m"].problem == (said or "")
    assert report.models["m"].primary == primary


def test_a_registered_model_answers_and_waits_for_nothing() -> None:
    """What a request will have loaded counts as served: it is routed there."""
    reply = admin_service_pb2.ListModelsResponse()
    model = reply.models.add(name="m", primary=2)
    model.residency = admin_service_pb2.ModelReport.REGISTERED
    model.versions.add(version=3).error.code = 15
    model.versions.add(version=2, state=10)
    model.canary.canary.version = 4
    model.canary.phase = admin_service_pb2.CanaryReport.WAITING
    report = report_of(reply)
    assert report.models["m"].failed == (3,)
    assert report.models["m"].primary == 2
    assert report.models["m"].versions == (2,)
    assert report.models["m"].coming == ()
    assert report.models["m"].canary == 4


def test_a_report_of_changes_goes_on_from_the_one_before() -> None:
    """Models that are left out are as they were; a reply with all of them begins anew."""
    said = admin_service_pb2.ListModelsResponse(revision=7)
    for name in ("a", "b", "c"):
        said.models.add(name=name, primary=1)
    before = report_of(said)
    changes = admin_service_pb2.ListModelsResponse(revision=8, since=7, gone=["c"])
    changes.models.add(name="b", primary=2)
    now = report_of(changes, before)
    assert now.revision == 8
    assert {name: each.primary for name, each in now.models.items()} == {"a": 1, "b": 2}
    changes.since = 0
    assert [*report_of(changes, before).models] == ["b"]
