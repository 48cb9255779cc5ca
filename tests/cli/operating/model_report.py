"""A report about a model, for tests of what commands print."""

from __future__ import annotations

from tfs.proto.tfs.v1 import admin_service_pb2 as pb


def report() -> pb.ModelReport:
    """Returns a model with a failed version and a rejected canary."""
    model = pb.ModelReport(name="digits", primary=1, overridden=True)
    failed = model.versions.add(version=2, state=50, reason="latest(1)")
    failed.error.message = "bad\nfile"
    failed.load.num_retries = 0
    model.versions.add(version=1, state=30, since_s=1.0).memory.resident_bytes = 1 << 20
    model.labels.add(label="stable", version=1)
    canary = model.canary
    canary.phase = pb.CanaryReport.REJECTED
    canary.reason = "guard: mean_abs_diff 0.6 > 0.5"
    canary.canary.version = 2
    canary.total.mean_abs_diff = 0.6
    canary.guards.add(name="max_mean_abs_diff", limit=0.5, value=0.6, exceeded=True)
    return model
