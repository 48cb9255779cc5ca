from __future__ import annotations

from dataclasses import replace

import pytest

from tfs.core.errors import FailedPrecondition
from tfs.core.version.model_profile import ModelProfile, SignatureProfile
from tfs.runtime.placement import Backend, PlacementOptions, place

AUTO = PlacementOptions()


def profile(
    import_s: float | None = 0.01,
    scaling: float | None = 1.2,
    *batches_s: float | None,
) -> ModelProfile:
    return ModelProfile(
        import_s=import_s,
        two_thread_scaling=scaling,
        signatures={
            f"s{index}": SignatureProfile(full_batch_s=batch_s)
            for index, batch_s in enumerate(batches_s)
        },
    )


@pytest.mark.parametrize(
    ("measured", "backend"),
    [
        (None, Backend.PROCESS),
        (ModelProfile(), Backend.PROCESS),
        (profile(0.01, 1.2, 100e-6), Backend.FRONT),
        (profile(0.01, 1.2, 150e-6), Backend.FRONT),
        (profile(0.01, 2.0, 251e-6), Backend.INLINE),
        # a time within a quarter of its limit decides for the process
        (profile(0.01, 2.0, 151e-6), Backend.PROCESS),
        (profile(0.01, 2.0, 200e-6), Backend.PROCESS),
        (profile(0.01, 2.0, 250e-6), Backend.PROCESS),
        (profile(0.01, 1.7, 0.02), Backend.INLINE),
        (profile(0.01, 1.69, 0.02), Backend.PROCESS),
        (profile(0.01, None, 0.02), Backend.PROCESS),
        (profile(0.01, None, 100e-6), Backend.FRONT),
        # the slowest signature decides
        (profile(0.01, 1.2, 100e-6, 0.02), Backend.PROCESS),
        (profile(0.01, 1.8, 100e-6, 0.02), Backend.INLINE),
        # one that was not measured could be the slowest
        (profile(0.01, 1.2, 100e-6, None), Backend.PROCESS),
        (profile(0.01, 1.8, 100e-6, None), Backend.INLINE),
        (profile(0.01, 1.8), Backend.INLINE),
        (profile(0.01, 1.2), Backend.PROCESS),
        # slow imports stay out of the server process
        (profile(0.022, 1.2, 100e-6), Backend.FRONT),
        (profile(0.023, 1.2, 100e-6), Backend.PROCESS),
        (profile(0.031, 1.2, 100e-6), Backend.PROCESS),
        (profile(0.031, 2.0, 0.02), Backend.PROCESS),
        (profile(None, 2.0, 100e-6), Backend.PROCESS),
    ],
)
def test_measurements_decide(measured: ModelProfile | None, backend: Backend) -> None:
    """The rule of automatic placement, case by case."""
    placement = place(AUTO, measured)
    assert placement.backend is backend
    assert placement.reason


QUICK = profile(0.01, 2.0, 100e-6)


@pytest.mark.parametrize(
    ("options", "backend"),
    [
        (PlacementOptions(device="cuda:1"), Backend.INLINE),
        (PlacementOptions(isolation_required=True), Backend.PROCESS),
        (PlacementOptions(isolation_required=True, device="cuda"), Backend.PROCESS),
        (
            PlacementOptions(backend=Backend.PROCESS, isolation_required=True),
            Backend.PROCESS,
        ),
        (PlacementOptions(backend=Backend.PROCESS), Backend.PROCESS),
        (PlacementOptions(backend=Backend.INLINE), Backend.INLINE),
        (PlacementOptions(backend=Backend.FRONT), Backend.FRONT),
        (PlacementOptions(backend=Backend.DLMOPEN), Backend.DLMOPEN),
    ],
)
@pytest.mark.parametrize("measured", [None, QUICK])
def test_options_and_host_come_before_measurements(
    options: PlacementOptions, backend: Backend, measured: ModelProfile | None
) -> None:
    """What is asked for, or the only thing possible, is taken whatever was measured."""
    assert place(options, measured).backend is backend


@pytest.mark.parametrize(
    "options",
    [
        PlacementOptions(isolation_required=True, backend=Backend.INLINE),
        PlacementOptions(isolation_required=True, backend=Backend.DLMOPEN),
        PlacementOptions(device="cuda", backend=Backend.DLMOPEN),
    ],
)
def test_what_cannot_be_had_is_refused(options: PlacementOptions) -> None:
    """No silent second choice for what was asked for."""
    with pytest.raises(FailedPrecondition):
        place(options, QUICK)


@pytest.mark.parametrize(
    ("options", "backend"),
    [
        (AUTO, Backend.PROCESS),
        (PlacementOptions(device="cuda"), Backend.PROCESS),
        (PlacementOptions(backend=Backend.INLINE), Backend.INLINE),
    ],
)
@pytest.mark.parametrize("concurrency", [1, 4])
def test_code_that_reaches_further_runs_apart_whatever_was_measured(
    options: PlacementOptions, backend: Backend, concurrency: int
) -> None:
    """What its files say does not change with the load; who asks for a place gets it."""
    for measured in (None, QUICK):
        placement = place(options, measured, concurrency, "imports ctypes")
        assert placement.backend is backend
    assert place(AUTO, QUICK, 1, "imports ctypes").reason == "imports ctypes"


def test_the_reason_carries_the_numbers() -> None:
    """What is logged lets an operator see how close it was."""
    reason = place(AUTO, profile(0.01, 1.25, 0.0123)).reason
    assert "12300 us" in reason
    assert "1.25 < 1.7" in reason


def test_what_changes_its_process_keeps_one_to_itself() -> None:
    """Other models in the server's own process would compute otherwise."""
    measured = replace(profile(0.01, 2.0, 100e-6), process_changes="the default dtype")
    placement = place(AUTO, measured)
    assert placement.backend is Backend.PROCESS
    assert "changes the default dtype" in placement.reason


def test_what_ended_its_process_keeps_one_to_itself() -> None:
    """It would end the server, with a batch of a size that nobody has sent yet."""
    measured = profile(0.01, 2.0, 100e-6)
    (name, found), *_ = measured.signatures.items()
    dying = replace(found, death="killed by SIGABRT when run was called (rows: 32)")
    placement = place(AUTO, replace(measured, signatures={name: dying}))
    assert placement.backend is Backend.PROCESS
    assert "SIGABRT" in placement.reason


@pytest.mark.parametrize(
    ("options", "measured", "backend"),
    [
        (AUTO, None, Backend.PROCESS),
        (AUTO, profile(0.01, 1.2, 0.02), Backend.INLINE),
        (AUTO, profile(0.01, None, 100e-6), Backend.INLINE),
        (AUTO, profile(0.031, 2.0, 0.02), Backend.PROCESS),
        (
            PlacementOptions(isolation_required=True),
            profile(0.01, 2.0, 0.02),
            Backend.PROCESS,
        ),
    ],
)
def test_a_version_that_takes_several_requests_runs_inline_where_it_may(
    options: PlacementOptions, measured: ModelProfile | None, backend: Backend
) -> None:
    """Only there do they meet; isolation and slow imports come first."""
    assert place(options, measured, concurrency=4).backend is backend
