"""Profiles survive being written down."""

from __future__ import annotations

import json

import pytest

from tfs.core.version.model_profile import ModelProfile, SignatureProfile

FULL = ModelProfile(
    code_digest="ab12",
    import_s=0.5,
    load_s=1.5,
    load_peak_bytes=1 << 30,
    resident_bytes=1 << 20,
    two_thread_scaling=1.9,
    signatures={
        "serving_default": SignatureProfile(
            rows_independent=False,
            why_dependent="row 1 changed when row 0 did",
            call_s_by_rows={1: 0.001, 32: 0.01},
            full_batch_s=0.02,
            peak_bytes=4096,
            death="ended by SIGSEGV",
        ),
        "other": SignatureProfile(),
    },
)


@pytest.mark.parametrize("profile", [ModelProfile(), FULL])
def test_a_profile_reads_back_equal(profile: ModelProfile) -> None:
    """Nothing is lost, absent parts stay absent, sizes stay numbers."""
    assert ModelProfile.from_json(profile.to_json()) == profile


def test_unknown_fields_are_skipped() -> None:
    """A profile written by a newer server is read for what is known of it."""
    form = json.loads(FULL.to_json())
    form["new"] = form["signatures"]["other"]["new"] = 1
    assert ModelProfile.from_json(json.dumps(form)) == FULL


def test_a_signature_that_lacks_a_figure_is_measured_again() -> None:
    """What an earlier server kept is no profile once something else is measured."""
    form = json.loads(FULL.to_json())
    del form["signatures"]["other"]["full_batch_s"]
    with pytest.raises(ValueError, match="'other' lacks full_batch_s"):
        ModelProfile.from_json(json.dumps(form))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        '{"signatures": []}',
        '{"signatures": {"a": 1}}',
        '{"signatures": {"a": {"call_s_by_rows": [1]}}}',
        '{"signatures": {"a": {"call_s_by_rows": {"x": 1}}}}',
    ],
)
def test_what_is_no_profile_is_refused(text: str) -> None:
    """A damaged cache entry is a ValueError, whatever the damage."""
    with pytest.raises(ValueError, match=r"."):
        ModelProfile.from_json(text)
