"""The skeleton area's own logic: which replies are right, and when a swap is over."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.benchmarks import skeleton
from tests.benchmarks.load import Check, LoadResult
from tfs.proto.tensorflow.core.framework import types_pb2
from tfs.proto.tensorflow_serving.apis import predict_pb2


def make_reply(version: int, factor: float, *, raw: bool = False) -> bytes:
    """Returns a reply that names `version` and holds the input times `factor`."""
    response = predict_pb2.PredictResponse()
    response.model_spec.version.value = version
    tensor = response.outputs["y"]
    tensor.dtype = types_pb2.DT_FLOAT
    values = (skeleton.INPUT * factor).numpy()
    if raw:
        tensor.tensor_content = values.tobytes()
    else:
        tensor.float_val.extend(values.ravel().tolist())
    return response.SerializeToString()


@pytest.mark.parametrize("raw", [True, False])
def test_a_reply_is_right_only_for_the_version_it_names(raw: bool) -> None:
    """Version 2 must have multiplied by 2; anything else was another version."""
    assert skeleton.read_version(make_reply(2, 2.0, raw=raw)) == 2
    assert skeleton.read_version(make_reply(2, 1.0, raw=raw)) is None
    assert skeleton.read_version(make_reply(0, 0.0, raw=raw)) is None


def test_the_first_right_reply_of_each_version_is_timed() -> None:
    """Later replies, and wrong ones, do not move the time of a swap."""
    now_s = iter([1.0, 2.0, 3.0])
    check = skeleton.ReplyCheck(clock=lambda: next(now_s))
    assert check(make_reply(1, 1.0))
    assert check(make_reply(1, 1.0))
    assert not check(make_reply(3, 1.0))
    assert check(make_reply(2, 2.0))
    assert check.first_seen_s == {1: 1.0, 2: 2.0}


def stage(folder: Path, *versions: int) -> dict[int, Path]:
    """Returns an empty directory per version, ready to be renamed."""
    (folder / "times").mkdir()
    staged = {version: folder / "staged" / str(version) for version in versions}
    for path in staged.values():
        path.mkdir(parents=True)
    return staged


async def answer_latest(base_path: Path, *, stop: asyncio.Event, check: Check) -> None:
    """Answers from the highest version below `base_path`, as a server would."""
    while not stop.is_set():
        versions = [int(path.name) for path in base_path.iterdir()]
        if versions:
            check(make_reply(max(versions), float(max(versions))))
        await asyncio.sleep(0)


def test_each_version_is_renamed_after_the_last_one_answered(tmp_path: Path) -> None:
    """Every swap is seen through before the next, and each has its time."""
    staged = stage(tmp_path, 2, 3, 4)

    async def load(*, stop: asyncio.Event, check: Check) -> LoadResult:
        await answer_latest(tmp_path / "times", stop=stop, check=check)
        return LoadResult(num_ok=7)

    result, times_s = asyncio.run(
        skeleton._swap_under(load, staged, tmp_path / "times")
    )
    assert result.num_ok == 7
    assert len(times_s) == 3
    assert sorted(path.name for path in (tmp_path / "times").iterdir()) == [*"234"]


def test_a_version_that_never_answers_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A swap that does not happen ends the measurement with its version."""
    monkeypatch.setattr(skeleton, "SWAP_TIMEOUT_S", 0.05)
    staged = stage(tmp_path, 2)

    async def load(*, stop: asyncio.Event, check: Check) -> LoadResult:
        await stop.wait()
        return LoadResult()

    with pytest.raises(TimeoutError, match="version 2 did not answer"):
        asyncio.run(skeleton._swap_under(load, staged, tmp_path / "times"))


def test_the_error_of_the_load_is_not_taken_for_a_slow_swap(tmp_path: Path) -> None:
    """When the client breaks, its own error is what the run reports."""
    staged = stage(tmp_path, 2)

    async def load(*, stop: asyncio.Event, check: Check) -> LoadResult:
        raise ConnectionError("the client broke")

    with pytest.raises(ConnectionError, match="the client broke"):
        asyncio.run(skeleton._swap_under(load, staged, tmp_path / "times"))
