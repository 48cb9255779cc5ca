"""What a version must pass before it takes the place of one that serves."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from tests.e2e.serving import (
    Serving,
    config_text,
    export_scale,
    run_command,
    write_whole,
)
from tests.handlers.plan_desk import Lookup
from tests.server.environment import config, model
from tests.server.puppet import PuppetServable
from tests.server.validated import save_for, write_requests, write_statistics
from tfs.client import Client
from tfs.core.errors import (
    DataLoss,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    ServingError,
)
from tfs.core.servable import Servable
from tfs.core.servable_id import ServableId
from tfs.core.stats import Stats
from tfs.core.version.input_statistics import (
    MIN_VALUES,
    STATISTICS,
    Value,
)
from tfs.core.version_directory import WARMUP_REQUESTS
from tfs.proto.tfs.v1.model_config_pb2 import Guard, Skew
from tfs.proto.tfs.v1.model_config_pb2 import Validation as ValidationSettings
from tfs.server.config.server_config import read_config_text
from tfs.server.validation import Validation
from tfs.testing.fake_clock import FakeClock
from tfs.testing.patience import PATIENCE_S

FEW = Guard(max_mean_abs_diff=0.5, max_error_rate=0.0)


def servable(version: int, factor: float) -> PuppetServable:
    """Returns a version that multiplies by this factor."""
    made = PuppetServable(ServableId("a", version))
    made.factor = factor
    return made


def none(_: ServableId) -> Mapping[str, Sequence[Value]]:
    """Says that requests brought nothing of late."""
    return {}


def checked(
    serving: Servable | None,
    candidate: Servable,
    settings: ValidationSettings | None,
    path: str = "/nowhere",
    live: Callable[[ServableId], Mapping[str, Sequence[Value]]] = none,
) -> str:
    """Returns why a version is refused; "" if it is not."""
    lookup = Lookup() if serving is None else Lookup(serving)
    made = Validation(lambda _: settings, lookup, live, FakeClock(), Stats())
    check = made.check
    try:
        check(candidate, path)
    except FailedPrecondition as refusal:
        return refusal.message
    return ""


@pytest.fixture
def requests(tmp_path: Path) -> str:
    return write_requests(tmp_path / "requests")


def test_a_version_that_answers_otherwise_is_refused_with_the_figures(
    requests: str,
) -> None:
    """The limit, what was measured, and over how many requests."""
    why = checked(
        servable(1, 1.0),
        servable(2, 3.0),
        ValidationSettings(limits=FEW, requests=requests),
    )
    assert why == (
        "a/2: validation against version 1: mean_abs_diff 2 > 0.5 "
        "(after 3 requests, 3 rows compared)"
    )


def test_a_version_that_passes_has_its_figures_until_it_goes(requests: str) -> None:
    """Beside the limits; and how versions fared is counted for each model."""
    settings, stats = ValidationSettings(limits=FEW, requests=requests), Stats()
    lookup = Lookup(servable(1, 1.0))
    validation = Validation(lambda _: settings, lookup, none, FakeClock(), stats)
    passed = ServableId("a", 2)
    validation.check(servable(2, 1.25), "/nowhere")
    assert validation.report(passed) == (
        "validation against version 1: mean_abs_diff 0.25 <= 0.5, "
        "error_rate 0 <= 0 (after 3 requests, 3 rows compared)"
    )
    with pytest.raises(FailedPrecondition):
        validation.check(servable(3, 9.0), "/nowhere")
    assert not validation.report(ServableId("a", 3))
    validation.forget(passed)
    assert not validation.report(passed)
    assert [(dict(labels), value) for _, labels, value in stats.counters()] == [
        ({"model": "a", "outcome": "passed"}, 1),
        ({"model": "a", "outcome": "refused"}, 1),
    ]


def test_a_version_within_the_limits_passes(requests: str) -> None:
    """A difference as large as the limit is allowed."""
    settings = ValidationSettings(limits=FEW, requests=requests)
    assert not checked(servable(1, 1.0), servable(2, 1.5), settings)


def test_errors_count_where_the_serving_version_has_none(requests: str) -> None:
    """A request that both fail says nothing about the new one."""
    settings = ValidationSettings(limits=FEW, requests=requests)
    fails, too = servable(2, 1.0), servable(1, 1.0)
    fails.error = too.error = DataLoss("gone")
    assert "error_rate 1 > 0" in checked(servable(1, 1.0), fails, settings)
    assert not checked(too, fails, settings)


def test_requests_that_do_not_fit_the_new_version_count(tmp_path: Path) -> None:
    """What fits neither version is nobody's fault."""
    requests = write_requests(tmp_path / "wide", width=3)
    settings = ValidationSettings(limits=FEW, requests=requests)
    assert not checked(servable(1, 1.0), servable(2, 1.0), settings)


def test_nothing_is_compared_without_settings_or_a_serving_version(
    requests: str,
) -> None:
    """The first version of a model always passes."""
    wrong = servable(2, 9.0)
    assert not checked(servable(1, 1.0), wrong, None)
    assert not checked(None, wrong, ValidationSettings(limits=FEW, requests=requests))


def test_without_a_file_the_versions_own_requests_are_asked(tmp_path: Path) -> None:
    """Those that it is warmed up with."""
    write_requests(tmp_path / "2" / WARMUP_REQUESTS)
    settings = ValidationSettings(limits=FEW)
    path = str(tmp_path / "2")
    assert checked(servable(1, 1.0), servable(2, 3.0), settings, path)


def test_a_version_of_which_nothing_can_be_asked_does_not_pass(tmp_path: Path) -> None:
    """It brings neither requests nor examples, so nobody knows how it answers."""
    path, limits = str(tmp_path), ValidationSettings(limits=FEW)
    said = checked(servable(1, 1.0), servable(2, 1.0), limits, path)
    assert "no request to compare answers by" in said
    assert not checked(
        servable(1, 1.0), servable(2, 1.0), ValidationSettings(limits=Guard())
    )


@pytest.mark.parametrize("content", [None, b"no TFRecords"])
def test_requests_that_cannot_be_read_fail_the_load(
    tmp_path: Path, content: bytes | None
) -> None:
    """A version is not let through because what it must pass is not there."""
    path = tmp_path / "requests"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ServingError):
        Validation(
            lambda _: ValidationSettings(limits=FEW, requests=str(path)),
            Lookup(servable(1, 1.0)),
            none,
            FakeClock(),
            Stats(),
        ).check(servable(2, 1.0), "/nowhere")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ('requests: "log"', "absolute"),
        ('requests: "/log"', "limits is required"),
        ("limits { max_error_rate: 2 }", "limits.max_error_rate"),
        ('skew { statistics: "s.json" }', "skew.statistics must be an absolute path"),
        ("skew { max_drift: 2 }", "skew.max_drift"),
        ("max_size_ratio: 0.5", "max_size_ratio must be at least 1"),
    ],
)
def test_what_makes_no_sense_in_the_config_is_refused(fields: str, said: str) -> None:
    """The refusal names the field that is wrong, and what it takes."""
    text = config(model("a", "", f"validation {{ {fields} }}"))
    with pytest.raises(InvalidArgument, match=said):
        read_config_text(text, "test")


@pytest.mark.parametrize("is_recorded", [True, False])
def test_a_server_goes_on_with_the_version_from_before(
    tmp_path: Path, is_recorded: bool
) -> None:
    """A refused version ends with the report; the next good one takes over, and so does
    one that was refused once the limits are others.

    Where nobody recorded requests, the examples that it was saved with are asked.
    """
    requests = write_requests(tmp_path / "requests") if is_recorded else ""
    extra = (
        f'validation {{ requests: "{requests}" limits {{ max_mean_abs_diff: 0.5 }} }}'
    )
    base_path, file = tmp_path / "scale", tmp_path / "models"
    export_scale(base_path, 1)
    write_whole(file, config_text("scale", base_path, extra))
    with Serving(f"--model_config_file={file}") as server:
        server.wait_for("scale/1 is available")
        export_scale(base_path, 2, 30.0)
        said = server.wait_for("servable_end servable=scale/2.*")
        assert re.search(r"against version 1: mean_abs_diff [0-9.]+ > 0\.5", said)
        export_scale(base_path, 3, 1.25)
        server.wait_for("scale/3 is available")
        with Client(server.address) as client:
            x = client.predict("scale", {"x": [[2.0, 2.0]]}, timeout_s=PATIENCE_S)
        assert x.version == 3
        code, printed = run_command("models", "--json", f"--address={server.address}")
        assert (code, "validation against version 1: mean" in printed) == (0, True)
        export_scale(base_path, 4, 30.0)
        server.wait_for("servable_end servable=scale/4")
        extra = "validation { limits { max_mean_abs_diff: 500 } }"
        write_whole(file, config_text("scale", base_path, extra))
        server.wait_for("scale/4 is available")
        assert server.stop() == 0


@pytest.mark.parametrize(
    ("recorded", "said"),
    [
        ([1.0, 1.0, 0.0, 2.0], ""),
        ([5.0, 6.0, 7.0], "skew: x drift 1 > 0.5, x out_of_range 1 > 0"),
    ],
)
def test_a_version_made_for_other_inputs_is_refused(
    tmp_path: Path, recorded: list[float], said: str
) -> None:
    """Whatever it answers; the recorded figures lie in its directory."""
    write_statistics(tmp_path / "2", recorded)
    requests = write_requests(tmp_path / "requests", num=MIN_VALUES // 2)
    skew = Skew(max_drift=0.5, max_out_of_range=0.0)
    settings = ValidationSettings(limits=Guard(), requests=requests, skew=skew)
    one, other = servable(1, 1.0), servable(2, 1.0)
    why = checked(one, other, settings, str(tmp_path / "2"))
    assert why == (said and f"a/2: validation against version 1: {said}")


def test_what_live_requests_brought_counts_beside_the_recorded_ones(
    tmp_path: Path, requests: str
) -> None:
    """Few recorded requests are no way around it; a named file of figures is looked at."""
    write_statistics(tmp_path / "elsewhere", [1.0, 2.0])
    figures = str(tmp_path / "elsewhere" / STATISTICS)
    settings = ValidationSettings(
        limits=Guard(),
        requests=requests,
        skew=Skew(statistics=figures, max_out_of_range=0.1),
    )

    def live(_: ServableId) -> Mapping[str, Sequence[Value]]:
        return {"x": [7.0] * MIN_VALUES}

    one, other = servable(1, 1.0), servable(2, 1.0)
    assert not checked(one, other, settings)
    assert "x out_of_range 0.94" in checked(one, other, settings, live=live)


def test_few_requests_say_nothing_of_skew(tmp_path: Path) -> None:
    """The report of the version that passed says so."""
    write_statistics(tmp_path / "2", [5.0])
    requests = write_requests(tmp_path / "requests")
    settings = ValidationSettings(
        limits=FEW, requests=requests, skew=Skew(max_drift=0.0)
    )
    lookup = Lookup(servable(1, 1.0))
    validation = Validation(lambda _: settings, lookup, none, FakeClock(), Stats())
    validation.check(servable(2, 1.0), str(tmp_path / "2"))
    assert validation.report(ServableId("a", 2)).endswith(
        "; skew: fewer than 100 values of each input"
    )


@pytest.mark.parametrize("sizes", [(100, 301), (301, 100)])
def test_a_version_of_quite_another_size_is_refused(
    tmp_path: Path, sizes: tuple[int, int]
) -> None:
    """Whichever is larger: half a vocabulary is as wrong as one twice as long."""
    settings = ValidationSettings(limits=Guard(), max_size_ratio=3.0)
    for version, size in enumerate(sizes, 1):
        (tmp_path / f"{version}").mkdir()
        (tmp_path / f"{version}" / "weights").write_bytes(bytes(size))
    lookup = Lookup(servable(1, 1.0))
    validation = Validation(lambda _: settings, lookup, none, FakeClock(), Stats())
    validation.check(servable(1, 1.0), str(tmp_path / "1"))
    with pytest.raises(FailedPrecondition, match=r"size_ratio 3\.01 > 3"):
        validation.check(servable(2, 1.0), str(tmp_path / "2"))


def test_a_version_whose_files_are_gone_has_no_size(tmp_path: Path) -> None:
    """What takes its place is not compared with nothing; nor does a file that goes count."""
    settings = ValidationSettings(limits=Guard(), max_size_ratio=3.0)
    lookup = Lookup(servable(1, 1.0))
    validation = Validation(lambda _: settings, lookup, none, FakeClock(), Stats())
    for version in (1, 2):
        write_statistics(tmp_path / f"{version}", [1.0])
        (tmp_path / f"{version}" / "gone").symlink_to(tmp_path / "gone")
        validation.check(servable(version, 1.0), str(tmp_path / f"{version}"))
    shutil.rmtree(tmp_path / "1")
    validation.check(servable(2, 1.0), str(tmp_path / "2"))


def test_skew_without_recorded_inputs_fails_the_load(requests: str) -> None:
    """As a version is not let through without the requests it must pass."""
    settings = ValidationSettings(limits=FEW, requests=requests, skew=Skew())
    validation = Validation(
        lambda _: settings, Lookup(servable(1, 1.0)), none, FakeClock(), Stats()
    )
    with pytest.raises(NotFound, match=STATISTICS):
        validation.check(servable(2, 1.0), "/nowhere")


def test_a_server_refuses_a_version_saved_for_other_inputs(tmp_path: Path) -> None:
    """The exporter writes the figures, and the config names the limits."""
    requests = write_requests(tmp_path / "requests", num=MIN_VALUES // 2)
    base_path, file = tmp_path / "scale", tmp_path / "models"
    extra = f'validation {{ requests: "{requests}" skew {{ max_out_of_range: 0 }} }}'
    export_scale(base_path, 1)
    write_whole(file, config_text("scale", base_path, extra))
    with Serving(f"--model_config_file={file}") as server:
        server.wait_for("scale/1 is available")
        save_for(base_path, [5.0, 7.0])
        said = server.wait_for("servable_end servable=scale/2.*")
        assert "skew: x out_of_range 1 > 0" in said
        save_for(base_path, [0.0, 2.0])
        server.wait_for("scale/3 is available")
        code, printed = run_command("models", "--json", f"--address={server.address}")
        assert (code, "x out_of_range 0" in printed) == (0, True)
        assert server.stop() == 0
