"""What the page says of versions, and what it leaves out."""

from __future__ import annotations

import pytest

from tfs.core.errors import without_paths
from tfs.core.stats import HistogramSnapshot
from tfs.proto.tfs.v1 import admin_service_pb2 as pb
from tfs.server.page.charts import latency_lines, moving, quantile
from tfs.server.page.words import (
    ago,
    count,
    duration,
    share,
    state_of,
)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("latest(1) of /models/digits: found 1, 2", "latest(1) of …: found 1, 2"),
        ("all of s3://bucket/models/x: found 7", "all of …: found 7"),
        ("cannot open '/etc/passwd'", "cannot open '…'"),
        ("(see /var/log/tfs.log, line 3)", "(see …, line 3)"),
        ("digits/3 and/or 3/4 of 16.5 ms", "digits/3 and/or 3/4 of 16.5 ms"),
    ],
)
def test_paths_and_urls_are_left_out(text: str, shown: str) -> None:
    """A slash within a word is none of a path."""
    assert without_paths(text) == shown


def test_values_have_few_digits_and_a_unit() -> None:
    """People compare them at a glance."""
    assert [ago(0.0, each) for each in (0.4, 59, 200, 7200)] == [
        "now",
        "59 s",
        "3 min",
        "2 h",
    ]
    assert [duration(each) for each in (0, 3.1e-4, 2.5)] == ["0", "310 µs", "2.5 s"]
    assert [count(each) for each in (1234, 12_345_678)] == ["1,234", "12.3M"]
    assert [share(each) for each in (1.0, 0.0123)] == ["100 %", "1.23 %"]


def test_a_version_that_refuses_requests_is_not_called_available() -> None:
    """Quarantined and failed versions are bad; ended ones, and those not loaded yet, quiet."""
    version = pb.VersionReport(state=30)  # type: ignore[arg-type]
    assert state_of(version) == ("available", "good")
    version.quarantined = True
    assert state_of(version) == ("quarantined", "bad")
    registered = pb.VersionReport(state=10)  # type: ignore[arg-type]
    assert state_of(registered) == ("registered", "past")
    registered.since_s = 1
    assert state_of(registered) == ("found", "busy")
    ended = pb.VersionReport(state=50)  # type: ignore[arg-type]
    assert state_of(ended) == ("ended", "past")
    ended.error.code = 13
    assert state_of(ended) == ("failed", "bad")


def test_charts_lie_within_their_frames() -> None:
    """Nothing is drawn of nothing; the highest value reaches the top."""
    one = pb.Histogram(bounds=[1, 2, 4], counts=[0, 8, 0, 0], total=16)
    other = pb.Histogram(bounds=[1, 2, 4], counts=[1, 1, 0, 0], total=3)
    lines = latency_lines(one, other)
    assert lines is not None
    assert lines.primary == "M0.0 27.0L50.0 1.0L100.0 27.0"
    assert (lines.low, lines.high) == ("1 s", "2 s")
    assert latency_lines(one, pb.Histogram(bounds=[1, 2, 4], counts=[0] * 4)) is None
    path, limit_y = moving([1.0, None, 2.0, 2.0], 2.0)
    assert path == "M0.0 15.7h1M66.7 4.4L100.0 4.4"
    assert limit_y == pytest.approx(4.4, abs=0.1)
    assert moving([None, None], 0) == ("", None)
    assert quantile(HistogramSnapshot.merged([one, other]), 0.99) == "2 s"
    assert quantile(HistogramSnapshot((), (), 0.0), 0.5) == ""
