"""Puts batch queues in front of versions, as their operator and they themselves ask.

Parameters come from ``--batching_parameters_file`` for all models, and from
``batching_params.pbtxt`` in a version directory for that version; the version's own take
precedence. Without either, a signature is batched as its measurements recommend.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

from google.protobuf.message import Message

from batching.batching_options import (
    BatchingOptions,
    QueuePolicy,
    SchedulerOptions,
    options_from_parameters,
)
from batching.cost_table import Padding
from batching.deadline_window import WindowOptions
from batching.shared_scheduler import SharedBatchScheduler
from tfs.core.batch.batch_queue_options import LowPriority, Mixing
from tfs.core.errors import FailedPrecondition, InvalidArgument
from tfs.core.loop.serving_loop import Phase, ServingLoop
from tfs.core.servable import Servable
from tfs.core.stats import Stats
from tfs.core.version.model_profile import ModelProfile
from tfs.core.version_directory import BATCHING_PARAMETERS
from tfs.proto._text_form import ParseError, read_text
from tfs.proto.tensorflow_serving.servables.tensorflow import session_bundle_config_pb2
from tfs.proto.tfs.v1 import batching_policy_pb2 as pb
from tfs.runtime.placement import Backend
from tfs.servables.joining.batched import BatchedServable

_UNBOUNDED: Final = 1 << 16


class Batcher:
    """Puts batch queues in front of servables. ``batch`` is thread-safe.

    There is one scheduler per backend. The serving loop steps it at the end of every
    round, so that everything a round brought can be joined. Models share the threads of
    the server, but each process belongs to one version. There the queues are bounded
    one by one, so that a model that hangs holds up no other.

    Args:
        loop: The serving loop; it does not run yet.
        enabled: Whether anything is batched.
        trusts_versions: Whether a version with parameters of its own is batched even if
            nothing was measured (because there is no probe budget).
        common: Parameters of versions without their own.
        num_parallel: Batches in flight, by backend; for processes, per version.
        stats: Where versions publish their batching statistics while they are loaded.

    """

    def __init__(
        self,
        loop: ServingLoop,
        *,
        enabled: bool,
        trusts_versions: bool,
        common: BatchingOptions | None,
        num_parallel: Mapping[Backend, int],
        stats: Stats | None = None,
    ) -> None:
        self._loop = loop
        self._enabled = enabled
        self._trusts_versions = trusts_versions
        self._common = common
        self._stats = stats
        self._max_in_flight = {Backend.PROCESS: num_parallel[Backend.PROCESS]}
        bounds = {**num_parallel, Backend.PROCESS: _UNBOUNDED}
        self._schedulers = {
            backend: SharedBatchScheduler(
                SchedulerOptions(num_batch_threads=num, serial=num == 1), loop.clock
            )
            for backend, num in bounds.items()
        }
        self._stepped: set[Backend] = set()  # only used on the loop

    def batch(
        self,
        servable: Servable,
        path: str,
        profile: ModelProfile | None,
        backend: Backend,
    ) -> Servable:
        """Returns the servable with queues in front, or unchanged if nothing is batched.

        Raises:
            InvalidArgument: The version's own parameters are wrong.

        """
        if not self._enabled:
            return servable
        own = os.path.join(path, BATCHING_PARAMETERS)
        options = self._common
        if os.path.isfile(own):
            options = replace(
                read_batching_file(own), batches_unproven=self._trusts_versions
            )
        # Posted before any task of the servable.
        self._loop.post(partial(self._begin, backend))
        return BatchedServable(
            servable,
            self._schedulers[backend],
            self._loop,
            options,
            profile,
            self._stats,
            max_in_flight=self._max_in_flight.get(backend),
        )

    def _begin(self, backend: Backend) -> None:
        """Has a scheduler stepped once it has a first version: most are never used."""
        if backend not in self._stepped:
            self._stepped.add(backend)
            self._loop.add_round_hook(self._schedulers[backend].step, Phase.SCHEDULE)


def read_batching_parameters(text: str, where: str) -> BatchingOptions:
    """Reads a text ``BatchingParameters``.

    Raises:
        InvalidArgument: A syntax error with its place, or a bad value.

    """
    message = session_bundle_config_pb2.BatchingParameters()
    try:
        read_text(text, message)
    except ParseError as error:
        raise InvalidArgument(f"Invalid protobuf file: '{where}': {error}") from error
    try:
        return _options(message)
    except InvalidArgument as error:
        raise InvalidArgument(f"{where}: {error.message}") from error


def read_batching_file(path: str) -> BatchingOptions:
    """Reads a file of text ``BatchingParameters``.

    Raises:
        FailedPrecondition: It cannot be read.
        InvalidArgument: It is wrong.

    """
    try:
        # Some editors add a byte order mark.
        with open(path, encoding="utf-8-sig") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise FailedPrecondition(
            f"cannot read batching parameters {path}: {why}"
        ) from error
    return read_batching_parameters(text, path)


def _options(message: session_bundle_config_pb2.BatchingParameters) -> BatchingOptions:
    ours = message.policy
    options = options_from_parameters(
        max_batch_size=_wrapped(message, "max_batch_size"),
        batch_timeout_micros=_wrapped(message, "batch_timeout_micros"),
        max_enqueued_batches=_wrapped(message, "max_enqueued_batches"),
        num_batch_threads=_wrapped(message, "num_batch_threads"),
        allowed_batch_sizes=tuple(message.allowed_batch_sizes),
        pad_variable_length_inputs=message.pad_variable_length_inputs,
        enable_large_batch_splitting=bool(
            _wrapped(message, "enable_large_batch_splitting")
        ),
        max_execution_batch_size=_wrapped(message, "max_execution_batch_size"),
        policy=_policy(ours),
    )
    return replace(
        options,
        queue=replace(options.queue, low=_low_priority(ours.low_priority)),
        length_buckets=tuple(ours.length_buckets),
        in_stages=_name(pb.Layered.Mode, ours.layered.mode, "policy.layered.mode")
        == "AUTO",
    )


def _policy(message: pb.BatchingPolicy) -> QueuePolicy:
    padding = _name(pb.BatchingPolicy.Padding, message.padding, "policy.padding")
    policy = QueuePolicy(
        padding=Padding.__members__.get(padding, Padding.UP),
        max_in_flight=message.max_in_flight_batches or None,
    )
    if message.HasField("weight"):
        policy = replace(policy, weight=message.weight)
    if message.HasField("deadline_window"):
        window = message.deadline_window
        options = WindowOptions()
        if window.HasField("margin"):
            options = WindowOptions(window.margin)
        policy = replace(policy, window=options)
    return policy


def _low_priority(message: pb.LowPriority) -> LowPriority:
    mixing = _name(pb.LowPriority.Mixing, message.mixing, "policy.low_priority.mixing")
    low = LowPriority(
        max_rows=message.max_enqueued_rows or None,
        timeout_s=message.batch_timeout_micros / 1e6,
        mixing=Mixing.__members__.get(mixing, Mixing.PAD_TO_MAX),
    )
    if message.HasField("ageing_micros"):
        low = replace(low, ageing_s=message.ageing_micros / 1e6)
    return low


def _name(wire: Any, number: int, field: str) -> str:
    """Returns the name of an enum's number; the text form accepts any number for it."""
    if number not in wire.values():
        raise InvalidArgument(f"{field}: no such value: {number}")
    return str(wire.Name(number))


def _wrapped(message: Message, name: str) -> int | None:
    if not message.HasField(name):
        return None
    value: int = getattr(message, name).value
    return value
