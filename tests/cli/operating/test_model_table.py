"""What commands say of models: one line each, with what is wrong."""

from __future__ import annotations

from tests.cli.operating.model_report import report
from tfs.cli.operating.model_table import (
    models_table,
    problem_of,
    state_word,
    stats_table,
    versions_table,
)
from tfs.cli.operating.queue_table import batching_table
from tfs.proto.tfs.v1 import admin_service_pb2 as pb


def test_a_model_is_one_line() -> None:
    """What answers, what is on trial, what is wrong."""
    (_, line) = models_table([report()]).splitlines()
    assert line.split() == [
        *("digits", "1", "1", "stable=1", "-", "-", "2", "rejected", "yes"),
        *("version", "2", "FAILED:", "bad", "file"),
    ]


def test_a_model_shows_what_half_and_99_percent_of_its_requests_took() -> None:
    """All signatures of all versions together, in milliseconds."""
    model = pb.ModelReport(name="digits", primary=1)
    for number, counts in ((1, [97, 0, 2]), (2, [0, 1, 0])):
        signature = model.versions.add(version=number, state=30).signatures.add()
        signature.requests.latency_s.bounds.extend([0.001, 0.004])
        signature.requests.latency_s.counts.extend(counts)
    heads, line = models_table([model]).splitlines()
    assert heads.split()[4:8] == ["P50", "MS", "P99", "MS"]
    assert line.split()[4:7] == ["-", "1", "4"]


def test_a_label_that_has_not_moved_yet_says_where_to_and_whether_it_will() -> None:
    """It moves when the version can answer, which one that nobody loads never can."""
    model = pb.ModelReport(name="digits")
    model.labels.add(label="stable", version=1, pending_version=2)
    model.labels.add(label="canary", pending_version=3)
    model.labels.add(label="next", version=1, pending_version=4)
    model.versions.add(version=2, state=20)
    model.versions.add(version=3, state=50).error.message = "damaged"
    (_, line) = models_table([model]).splitlines()
    assert "stable=1 (2 to come), canary=- (3 failed), next=1 (4 not loaded)" in line


def test_what_a_version_waits_for_shows_until_it_is_there() -> None:
    """A load that hangs, or waits for memory, is why nothing answers."""
    model = pb.ModelReport(name="digits")
    version = model.versions.add(version=1, state=20, reason="latest(1)")
    version.load.waiting = "it hangs"
    assert problem_of(model) == "version 1: it hangs"
    assert "it hangs" in versions_table([model])
    arrived = model.versions.add(version=1, state=30, reason="latest(1)")
    arrived.notes.append("runs in front")
    del model.versions[0]
    assert problem_of(model) == ""
    assert "latest(1)" in versions_table([model])


def test_what_failed_before_the_primary_came_is_no_problem_any_more() -> None:
    """Otherwise one damaged version would show until sixteen others have ended."""
    model = report()
    model.primary = 3
    model.versions.add(version=3, state=30)
    assert problem_of(model) == ""
    model.error.message = "base path is gone"
    assert problem_of(model) == "base path is gone"
    failed = model.versions.add(version=4, state=50)
    failed.error.message = "damaged"
    failed.load.num_retries = 0
    assert problem_of(model) == "version 4 FAILED: damaged; base path is gone"
    failed.ClearField("load")  # it is not asked for any more
    assert problem_of(model) == "base path is gone"
    model.ClearField("primary")
    assert problem_of(model) == "version 2 FAILED: bad\nfile; base path is gone"


def test_a_version_that_failed_hides_nothing_else_that_is_wrong() -> None:
    """Who mends a failed version by a next one sees why that one is not served either."""
    model = pb.ModelReport(name="digits", primary=1)
    model.versions.add(version=1, state=30, reason="latest(1)")
    failed = model.versions.add(version=2, state=50)
    failed.error.message = "damaged"
    failed.load.num_retries = 0
    model.error.message = "version 3 of digits is not served: it is empty"
    model.notes.append("its override is not in force")
    beside = f"{model.error.message}; its override is not in force"
    assert problem_of(model) == f"version 2 FAILED: damaged; {beside}"
    (_, serving, _, last) = versions_table([model]).splitlines()
    assert "empty" not in serving
    assert last.endswith(beside)


def test_a_version_is_one_line_with_the_processes_it_lost() -> None:
    """A version's line says where it runs, and how many of its processes died."""
    model = report()
    placement = model.versions[1].placement
    placement.place = pb.PlacementReport.PROCESS
    (_, failed, serving) = versions_table([model]).splitlines()
    assert failed.endswith("bad file")
    assert serving.split()[-1] == "process"
    placement.num_crashes = 2
    assert "process, 2 died" in versions_table([model])
    placement.place = pb.PlacementReport.PLACE_UNSPECIFIED  # not told yet
    assert " -, 2 died" in versions_table([model])


def test_a_batch_queue_is_one_line() -> None:
    """What waits, what ran, how full and how long; what left otherwise comes last."""
    model = pb.ModelReport(name="digits")
    version = model.versions.add(version=2)
    batching = version.signatures.add(name="scores").batching
    batching.enabled = True
    batching.parameters.max_batch_size.value = 8
    queue = batching.queues.add(
        num_waiting_tasks=3,
        num_completed_tasks=10,
        num_rejected_tasks=1,
        num_batches=4,
        num_rows=12,
        num_padding_rows=4,
    )
    queue.batch_fill.MergeFrom(pb.Histogram(bounds=[1], counts=[4, 0], total=1.5))
    queue.wait_s.MergeFrom(
        pb.Histogram(bounds=[0.001, 0.004], counts=[3, 1, 0], total=0.006)
    )
    batching.bypass.MergeFrom(
        pb.BypassStats(num_requests=2, num_rows=2000, num_calls=5)
    )
    version.signatures.add(name="words").batching.enabled = True
    version.signatures.add(name="norms").batching.why = "its rows depend on each other"
    _, queue_line, past_line, *lines = batching_table([model]).splitlines()
    idle_line, dependent_line = lines
    assert queue_line.split() == [
        *("digits", "2", "scores", "3", "10", "4", "3.0", "of", "8", "38", "%"),
        *("25", "%", "1.5,", "p99", "4", "-", "1", "refused"),
    ]
    assert past_line.split()[:7] == [*("digits", "2", "scores", "-", "2", "5", "400.0")]
    assert "past the queues" in past_line
    assert idle_line.endswith("no request yet")
    assert dependent_line.endswith("unbatched: its rows depend on each other")


def test_queues_of_one_signature_have_lines_that_differ() -> None:
    """What a queue's requests have in common comes first, then what left it."""
    model = pb.ModelReport(name="m")
    batching = model.versions.add(version=1).signatures.add(name="s").batching
    batching.enabled = True
    batching.queues.add(requests_in_common="tokens [up to 256]", num_expired_tasks=2)
    batching.queues.add(requests_in_common="tokens [up to 1024]")
    _, short, long = batching_table([model]).splitlines()
    assert short.endswith("tokens [up to 256], 2 late")
    assert long.endswith("tokens [up to 1024]")


def test_what_was_never_counted_takes_no_line() -> None:
    """Counters by name and labels, histograms as number and mean; zeros are left out."""
    stats = [
        pb.Stat(name="requests", labels={"model": "m", "code": "OK"}, value=12),
        pb.Stat(name="refused", value=0),
        pb.Stat(name="took_s", histogram=pb.Histogram(counts=[1, 3], total=2.0)),
        pb.Stat(name="waited_s", histogram=pb.Histogram(counts=[0, 0])),
    ]
    _, *lines = stats_table(stats).splitlines()
    assert [line.split() for line in lines] == [
        ["requests", "12", "code=OK,", "model=m"],
        ["took_s", "4", "x", "0.5", "-"],
    ]


def test_all_labels_of_a_stat_are_shown() -> None:
    """The last of many may be the version, which alone tells two lines apart."""
    labels = {"method": "Predict", "model": "digits", "signature": "serving_default"}
    stats = [
        pb.Stat(name="requests", labels={**labels, "version": version}, value=1)
        for version in ("1", "2")
    ]
    _, first, second = stats_table(stats).splitlines()
    assert first.endswith("signature=serving_default, version=1")
    assert second.endswith("signature=serving_default, version=2")


def test_a_version_is_one_line() -> None:
    """Its error where it has one, else its reason."""
    lines = versions_table([report(), pb.ModelReport(name="empty")]).splitlines()
    assert len(lines) == 4
    assert "FAILED" in lines[1]
    assert "bad file" in lines[1]
    assert "1.0 MiB" in lines[2]


def test_a_version_shows_what_is_reserved_for_it() -> None:
    """Under a limit the reserved memory is shown, because it decides what may load."""
    model = report()
    model.versions[1].memory.reserved_bytes = 5 << 20
    assert "1.0 MiB, 5.0 MiB reserved" in versions_table([model]).splitlines()[2]


def test_a_version_that_is_tried_again_shows_what_failed() -> None:
    """The table says what failed, instead of why the version is wanted."""
    model = pb.ModelReport(name="digits")
    version = model.versions.add(version=2, reason="appeared")
    version.state = 20  # type: ignore[assignment]
    version.load.waiting = "attempt 1 failed"
    (_, line) = versions_table([model]).splitlines()
    assert line.endswith("attempt 1 failed")


def test_a_version_that_ended_and_is_tried_again_says_so() -> None:
    """Who is called at night need not do by hand what comes by itself."""
    model = pb.ModelReport(name="digits", primary=1)
    version = model.versions.add(version=2, state=50)
    version.error.message = "busy"
    version.load.waiting = "the next one in 58 s"
    assert problem_of(model) == "version 2 FAILED: busy; the next one in 58 s"
    assert "busy; the next one in 58 s" in versions_table([model])


def test_a_version_that_fails_on_its_own_example_is_a_problem() -> None:
    """It is available, and answers nobody: the host lacks what its author had."""
    model = pb.ModelReport(name="digits", primary=1)
    version = model.versions.add(version=1, state=30, reason="latest(1)")
    version.signatures.add(name="embed").example_error = "no module foo"
    told = "embed fails on its own example: no module foo"
    assert problem_of(model) == f"version 1: {told}"
    assert told in versions_table([model])


def test_a_quarantined_version_is_not_called_available() -> None:
    """It is loaded and refuses everybody; a cancelled load has not failed."""
    model = pb.ModelReport(name="digits", primary=1)
    model.versions.add(version=1, state=30)
    broken = model.versions.add(version=2, state=30, quarantined=True)
    broken.error.message = "it crashed 3 times"
    (_, line) = models_table([model]).splitlines()
    assert line.split()[:3] == ["digits", "1", "1"]
    assert "version 2 QUARANTINED: it crashed 3 times" in line
    assert [state_word(each) for each in model.versions] == ["AVAILABLE", "QUARANTINED"]
    given_up = model.versions.add(version=3, state=50)
    given_up.error.code = 1
    assert state_word(given_up) == "END"
