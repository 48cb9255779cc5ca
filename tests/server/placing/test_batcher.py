"""tfs.server.placing.batcher."""

from __future__ import annotations

from pathlib import Path

import pytest

from batching.batching_options import BatchingOptions
from tests.server.puppet import PuppetServable
from tfs.core.dtype import FLOAT32
from tfs.core.loop.serving_loop import ServingLoop
from tfs.core.servable import InferenceTask, Outcome
from tfs.core.servable_id import ServableId
from tfs.core.signature import DEFAULT_SIGNATURE
from tfs.core.tensor_view import TensorView
from tfs.core.version_directory import BATCHING_PARAMETERS
from tfs.runtime.placement import Backend
from tfs.servables.joining.batched import BatchedServable
from tfs.server.placing.batcher import Batcher


@pytest.mark.parametrize("own", [False, True])
def test_a_versions_own_parameters_come_first(tmp_path: Path, own: bool) -> None:
    """What its author measured is closer to it than what holds for all models."""
    if own:
        (tmp_path / BATCHING_PARAMETERS).write_text(
            "max_batch_size { value: 6 } allowed_batch_sizes: 3 allowed_batch_sizes: 6"
        )
    batcher = Batcher(
        ServingLoop(),
        enabled=True,
        trusts_versions=True,
        common=BatchingOptions(batches_unproven=True),
        num_parallel=dict.fromkeys(Backend, 1),
    )
    servable = PuppetServable(ServableId("m", 1))
    found = batcher.batch(servable, str(tmp_path), None, Backend.INLINE)
    assert isinstance(found, BatchedServable)
    sizes = {options.allowed_rows for options in found.queue_options.values()}
    assert sizes == {(3, 6) if own else ()}


def test_what_a_round_brings_a_new_version_is_computed_in_that_round(
    tmp_path: Path,
) -> None:
    """Schedulers take part in rounds from their first version on, and at once."""
    loop = ServingLoop()
    loop.step()
    batcher = Batcher(
        loop,
        enabled=True,
        trusts_versions=True,
        common=BatchingOptions(batches_unproven=True),
        num_parallel=dict.fromkeys(Backend, 1),
    )
    outcomes: list[Outcome] = []
    backends = (Backend.INLINE, Backend.FRONT, Backend.INLINE)
    for version, backend in enumerate(backends, 1):
        servable = PuppetServable(ServableId("m", version))
        found = batcher.batch(servable, str(tmp_path), None, backend)
        found.submit(
            InferenceTask(
                DEFAULT_SIGNATURE,
                servable.signatures[DEFAULT_SIGNATURE],
                {"x": TensorView(FLOAT32, (1, 2), bytes(8))},
                outcomes.append,
            )
        )
        loop.step()
        assert len(outcomes) == version
    loop.close()
