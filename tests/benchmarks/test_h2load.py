"""What h2load's report is worth."""

from __future__ import annotations

import pytest

from tests.benchmarks import h2load

REPORT = """\
finished in 250.00ms, 400.00 req/s, 616.00KB/s
requests: 100 total, 100 started, 100 done, {ok} succeeded, {failed} failed, 0 errored
status codes: {ok} 2xx, 0 3xx, 0 4xx, {failed} 5xx
traffic: 14.2KB (14900) total, 3.05KB (3200) headers (space savings 15%), 7KB ({data}) data
"""
LOG = (
    "1700000000000001\t200\t90\n1700000000000002\t200\t30\n1700000000000003\t200\t60\n"
)


def report(*, ok: int = 100, data: int = 7500) -> str:
    return REPORT.format(ok=ok, failed=100 - ok, data=data)


def test_a_report_is_read() -> None:
    """Counts, rate and latencies are h2load's, in base units."""
    load = h2load.parse(report(), LOG)
    assert (load.num_asked, load.num_done, load.num_data_bytes) == (100, 100, 7500)
    assert load.num_answered == 100
    assert load.rate_per_s == pytest.approx(400)
    assert load.latency_us(0.5) == 60
    load.check(reply_bytes=70)


@pytest.mark.parametrize(
    "text", [report(ok=99), report(data=7425), report(data=7501), report(data=0)]
)
def test_replies_that_are_not_the_right_size_are_found(text: str) -> None:
    """One request that failed, or one reply without its message, is enough."""
    with pytest.raises(ValueError, match="100 requests done"):
        h2load.parse(text, LOG).check(reply_bytes=70)


def test_what_is_no_report_is_said() -> None:
    """h2load changes its words: the benchmark stops rather than count nothing."""
    with pytest.raises(ValueError, match="not h2load's report"):
        h2load.parse("no such option\n", "")
