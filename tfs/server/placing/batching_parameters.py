"""Reads text ``BatchingParameters``: TensorFlow Serving's fields, and ours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final, TypeVar

from google.protobuf.message import Message

from batching.batching_options import (
    BatchingOptions,
    Padding,
    QueuePolicy,
    options_from_parameters,
)
from batching.deadline_window import WindowOptions
from tfs.core.batch.batch_queue_options import LowPriority, Mixing
from tfs.core.errors import FailedPrecondition, InvalidArgument
from tfs.proto._text_form import ParseError, read_text
from tfs.proto.tensorflow_serving.servables.tensorflow import session_bundle_config_pb2
from tfs.proto.tfs.v1 import batching_policy_pb2

T = TypeVar("T")


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
        in_stages=_choice(_MODES, ours.layered.mode, "policy.layered.mode"),
    )


def _policy(message: batching_policy_pb2.BatchingPolicy) -> QueuePolicy:
    policy = QueuePolicy(
        padding=_choice(_PADDINGS, message.padding, "policy.padding"),
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


def _low_priority(message: batching_policy_pb2.LowPriority) -> LowPriority:
    low = LowPriority(
        max_rows=message.max_enqueued_rows or None,
        timeout_s=message.batch_timeout_micros / 1e6,
        mixing=_choice(_MIXINGS, message.mixing, "policy.low_priority.mixing"),
    )
    if message.HasField("ageing_micros"):
        low = replace(low, ageing_s=message.ageing_micros / 1e6)
    return low


def _choice(choices: Mapping[int, T], number: int, field: str) -> T:
    """Returns the meaning of an enum's number; the text form accepts any number for it."""
    if number not in choices:
        raise InvalidArgument(f"{field}: no such value: {number}")
    return choices[number]


_PADDINGS: Final[Mapping[int, Padding]] = {
    batching_policy_pb2.BatchingPolicy.PADDING_UNSPECIFIED: Padding.UP,
    batching_policy_pb2.BatchingPolicy.UP: Padding.UP,
    batching_policy_pb2.BatchingPolicy.DOWN: Padding.DOWN,
    batching_policy_pb2.BatchingPolicy.CHEAPEST: Padding.CHEAPEST,
}

_MODES: Final[Mapping[int, bool]] = {
    batching_policy_pb2.Layered.MODE_UNSPECIFIED: False,
    batching_policy_pb2.Layered.OFF: False,
    batching_policy_pb2.Layered.AUTO: True,
}

_MIXINGS: Final[Mapping[int, Mixing]] = {
    batching_policy_pb2.LowPriority.MIXING_UNSPECIFIED: Mixing.PAD_TO_MAX,
    batching_policy_pb2.LowPriority.ISOLATE: Mixing.ISOLATE,
    batching_policy_pb2.LowPriority.PAD_TO_ALLOWED: Mixing.PAD_TO_ALLOWED,
    batching_policy_pb2.LowPriority.PAD_TO_MAX: Mixing.PAD_TO_MAX,
    batching_policy_pb2.LowPriority.MERGE: Mixing.MERGE,
}


def _wrapped(message: Message, name: str) -> int | None:
    if not message.HasField(name):
        return None
    value: int = getattr(message, name).value
    return value
