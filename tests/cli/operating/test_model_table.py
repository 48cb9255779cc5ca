"""What commands say of models: what is wrong, in words."""

from __future__ import annotations

from tests.cli.operating.model_report import report
from tfs.cli.operating.model_table import (
    models_table,
    versions_table,
)
from tfs.proto.tfs.v1 import admin_service_pb2 as pb
from tfs.server.admin.report_words import problems_of, state_word


def test_what_a_version_waits_for_shows_until_it_is_there() -> None:
    """A load that hangs, or waits for memory, is why nothing answers."""
    model = pb.ModelReport(name="digits")
    version = model.versions.add(version=1, state=20, reason="latest(1)")
    version.load.waiting = "it hangs"
    assert "; ".join(problems_of(model)) == "version 1: it hangs"
    assert "it hangs" in versions_table([model])
    arrived = model.versions.add(version=1, state=30, reason="latest(1)")
    arrived.notes.append("runs in front")
    del model.versions[0]
    assert problems_of(model) == []
    assert "latest(1)" in versions_table([model])


def test_what_failed_before_the_primary_came_is_no_problem_any_more() -> None:
    """Otherwise one damaged version would show until sixteen others have ended."""
    model = report()
    model.primary = 3
    model.versions.add(version=3, state=30)
    assert problems_of(model) == []
    model.error.message = "base path is gone"
    assert "; ".join(problems_of(model)) == "base path is gone"
    failed = model.versions.add(version=4, state=50)
    failed.error.message = "damaged"
    failed.load.num_retries = 0
    assert (
        "; ".join(problems_of(model)) == "version 4 FAILED: damaged; base path is gone"
    )
    failed.ClearField("load")  # it is not asked for any more
    assert "; ".join(problems_of(model)) == "base path is gone"
    model.ClearField("primary")
    assert (
        "; ".join(problems_of(model))
        == "version 2 FAILED: bad\nfile; base path is gone"
    )


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
    assert "; ".join(problems_of(model)) == f"version 2 FAILED: damaged; {beside}"
    (_, serving, _, last) = versions_table([model]).splitlines()
    assert "empty" not in serving
    assert last.endswith(beside)


def test_a_version_that_ended_and_is_tried_again_says_so() -> None:
    """Who is called at night need not do by hand what comes by itself."""
    model = pb.ModelReport(name="digits", primary=1)
    version = model.versions.add(version=2, state=50)
    version.error.message = "busy"
    version.load.waiting = "the next one in 58 s"
    assert (
        "; ".join(problems_of(model)) == "version 2 FAILED: busy; the next one in 58 s"
    )
    assert "busy; the next one in 58 s" in versions_table([model])


def test_a_version_that_fails_on_its_own_example_is_a_problem() -> None:
    """It is available, and answers nobody: the host lacks what its author had."""
    model = pb.ModelReport(name="digits", primary=1)
    version = model.versions.add(version=1, state=30, reason="latest(1)")
    version.signatures.add(name="embed").example_error = "no module foo"
    told = "embed fails on its own example: no module foo"
    assert "; ".join(problems_of(model)) == f"version 1: {told}"
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
