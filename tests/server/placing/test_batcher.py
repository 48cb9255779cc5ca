"""tfs.server.placing.batcher."""

from __future__ import annotations

from pathlib import Path

import pytest

from batching.batching_options import BatchingOptions
from batching.cost_table import Padding
from tests.present import present
from tests.server.puppet import PuppetServable
from tfs.core.batch.batch_queue_options import Mixing
from tfs.core.dtype import FLOAT32
from tfs.core.errors import InvalidArgument
from tfs.core.loop.serving_loop import ServingLoop
from tfs.core.servable import InferenceTask, Outcome
from tfs.core.servable_id import ServableId
from tfs.core.signature import DEFAULT_SIGNATURE
from tfs.core.tensor_view import TensorView
from tfs.core.version_directory import BATCHING_PARAMETERS
from tfs.runtime.placement import Backend
from tfs.servables.joining.batched import BatchedServable
from tfs.server.placing.batcher import Batcher, read_batching_parameters


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


UPSTREAM = """
max_batch_size { value: 64 }
batch_timeout_micros { value: 2000 }
max_enqueued_batches { value: 20 }
num_batch_threads { value: 4 }
thread_pool_name { value: "batching" }
allowed_batch_sizes: 16
allowed_batch_sizes: 64
pad_variable_length_inputs: true
"""


def test_parameters_of_tensorflow_serving_are_read_unchanged() -> None:
    """Its wrapper fields too; what it leaves out has our defaults."""
    found = read_batching_parameters(UPSTREAM, "here")
    assert found.queue.max_batch_rows == 64
    assert found.queue.timeout_s == 0.002
    assert found.queue.max_rows == 20 * 64
    assert found.queue.allowed_rows == (16, 64)
    assert (found.num_batch_threads, found.pads_variable_length) == (4, True)
    assert (found.policy.padding, found.policy.window) == (Padding.UP, None)
    assert found.policy.weight == 1.0
    assert found.length_buckets == ()
    low = present(found.queue.low)
    assert (low.mixing, low.ageing_s, low.max_rows) == (Mixing.PAD_TO_MAX, 1.0, None)


def test_a_policy_says_what_tensorflow_serving_cannot() -> None:
    """Weight, padding, buckets, deadlines, and the second class of priority."""
    found = read_batching_parameters(
        """
        max_batch_size { value: 32 }
        policy {
          weight: 2.5 max_in_flight_batches: 3 padding: CHEAPEST
          length_buckets: 64 length_buckets: 512
          deadline_window { margin: 1.2 }
          low_priority {
            mixing: ISOLATE ageing_micros: 250000 batch_timeout_micros: 1000
            max_enqueued_rows: 8
          }
        }
        """,
        "here",
    )
    policy, low = found.policy, found.queue.low
    assert (policy.weight, policy.max_in_flight) == (2.5, 3)
    assert policy.padding is Padding.CHEAPEST
    assert present(policy.window).margin == 1.2
    assert found.length_buckets == (64, 512)
    assert low is not None
    assert (low.mixing, low.ageing_s) == (Mixing.ISOLATE, 0.25)
    assert (low.timeout_s, low.max_rows) == (0.001, 8)
    plain = read_batching_parameters("policy { deadline_window {} }", "here")
    assert present(plain.policy.window).margin == 1.05


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("max_batch_size: 3", "Invalid protobuf file: 'here'"),
        ("policy { weight: 0 }", "here: .*weight must be positive"),
        ("policy { padding: 77 }", "here: .*policy.padding: no such value: 77"),
        ("policy { padding: 9999999999 }", "'here': Value out of range"),
        (
            "policy { low_priority { mixing: -1 } }",
            "here: .*policy.low_priority.mixing: no such value: -1",
        ),
        (
            "max_batch_size { value: 32 } allowed_batch_sizes: 16",
            "here: .*Last entry in allowed_batch_sizes must match max_batch_size",
        ),
        ("policy { length_buckets: 4 length_buckets: 2 }", "must be positive and incr"),
        ("policy { low_priority { ageing_micros: -1 } }", "ageing_s must be non-neg"),
        (
            "enable_large_batch_splitting { value: true } "
            "policy { deadline_window {} }",
            "leave out enable_large_batch_splitting",
        ),
    ],
)
def test_parameters_that_make_no_sense_are_refused(text: str, words: str) -> None:
    """Bad parameters are refused when they are read, and the message names them."""
    with pytest.raises(InvalidArgument, match=words):
        read_batching_parameters(text, "here")
