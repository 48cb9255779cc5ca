"""What many messages have: errors and histograms."""

from __future__ import annotations

from tfs.core.errors import ServingError
from tfs.core.stats import HistogramSnapshot
from tfs.proto.google.rpc import status_pb2
from tfs.proto.tfs.v1 import admin_service_pb2 as pb


def fill_error(status: status_pb2.Status, error: ServingError | None) -> None:
    """Writes a status; None is OK."""
    status.SetInParent()
    if error is not None:
        status.code = int(error.code)
        status.message = error.message


def histogram(found: HistogramSnapshot) -> pb.Histogram:
    """Returns a histogram as a message."""
    return pb.Histogram(bounds=found.bounds, counts=found.counts, total=found.total)
