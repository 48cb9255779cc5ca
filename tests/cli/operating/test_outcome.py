"""What commands say of trials, overrides and configurations."""

from __future__ import annotations

from tests.cli.operating.model_report import report
from tfs.cli.operating.model_table import canary_lines, outcome_lines
from tfs.proto.tfs.v1 import admin_service_pb2 as pb


def test_a_trial_shows_figures_and_limits() -> None:
    """Whoever watches a trial sees each figure beside its limit, and the verdict."""
    text = "\n".join(canary_lines(report()))
    assert "REJECTED: guard: mean_abs_diff 0.6 > 0.5" in text
    assert "exceeded" in text
    fresh = report()
    fresh.canary.guards[0].exceeded = False
    fresh.canary.canary.guard.min_samples = 20
    assert "over it, of fewer than 20 samples" in "\n".join(canary_lines(fresh))
    fresh.canary.guards[0].value = 0.5
    assert "kept" in "\n".join(canary_lines(fresh))
    fresh.canary.guards[0].ClearField("value")
    assert "not measured" in "\n".join(canary_lines(fresh))
    assert canary_lines(pb.ModelReport(name="a")) == ["a has no canary"]


def test_an_outcome_shows_the_override_and_the_notes() -> None:
    """An outcome names the override and the notes, or says that there is none."""
    outcome = pb.OverrideOutcome(changed=True, notes=["until restart"], model=report())
    outcome.override.config.name = "digits"
    outcome.override.config.traffic.primary = 1
    lines = outcome_lines(outcome)
    assert lines[0] == "override: traffic { primary: 1 }"
    assert lines[-1] == "note: until restart"
    assert outcome_lines(pb.OverrideOutcome())[0] == "nothing changed"
