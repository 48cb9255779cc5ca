"""The calls that there are: method, request and how its reply is read, put together."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from tfs.client import requests
from tfs.client.requests import Features, Target
from tfs.client.results import (
    Classification,
    ModelMetadata,
    Prediction,
    Regression,
    VersionStatus,
)
from tfs.core.errors import DeadlineExceeded, InvalidArgument

R = TypeVar("R")

_LONGEST_S: Final = 1e9
"""grpcio's clock overflows beyond some ten times this, and a call ends at once."""


def checked_address(address: str) -> str:
    """Returns the address.

    Raises:
        InvalidArgument: There is none; grpcio would say so at the first call, at length.

    """
    if not address:
        raise InvalidArgument("no address; give host:port or unix:/path")
    return address


def default_timeout_s(timeout_s: float) -> float:
    """Returns the timeout of calls that name none.

    Raises:
        InvalidArgument: It is not positive.

    """
    if not timeout_s > 0:  # nor is NaN
        raise InvalidArgument(f"timeout_s must be positive: {timeout_s}")
    return min(timeout_s, _LONGEST_S)


def call_timeout_s(timeout_s: float | None, default_s: float) -> float:
    """Returns what a call has; None is the default, infinity as long as can be said.

    Raises:
        InvalidArgument: It is not a number.
        DeadlineExceeded: It is not positive: whoever hands on what is left of a time
            has none. grpcio rounds up, and sends such a call now and then.

    """
    if timeout_s is None:
        return default_s
    if math.isnan(timeout_s):
        raise InvalidArgument("timeout_s is not a number")
    if timeout_s <= 0:
        raise DeadlineExceeded(f"no time for the call: timeout_s is {timeout_s}")
    return min(timeout_s, _LONGEST_S)


@dataclass(frozen=True, slots=True)
class Rpc(Generic[R]):
    """One call, ready to be made by either client. Immutable.

    Attributes:
        method: The RPC's path.
        message: The serialized request.
        read: Turns the serialized reply into the result.

    """

    method: str
    message: bytes
    read: Callable[[bytes], R]


def predict(
    target: Target, inputs: Mapping[str, object], outputs: Sequence[str]
) -> Rpc[Prediction]:
    """Returns the call that runs a signature on ``inputs``."""
    message = requests.predict_request(target, inputs, outputs)
    return Rpc(requests.PREDICT, message, requests.read_prediction)


def classify(
    target: Target, examples: Sequence[Features], context: Features | None
) -> Rpc[Classification]:
    """Returns the call that asks for each example's classes."""
    message = requests.classify_request(target, examples, context)
    return Rpc(requests.CLASSIFY, message, requests.read_classification)


def regress(
    target: Target, examples: Sequence[Features], context: Features | None
) -> Rpc[Regression]:
    """Returns the call that asks for each example's value."""
    message = requests.regress_request(target, examples, context)
    return Rpc(requests.REGRESS, message, requests.read_regression)


def metadata(target: Target) -> Rpc[ModelMetadata]:
    """Returns the call that asks for a version's signatures."""
    message = requests.metadata_request(target)
    return Rpc(requests.METADATA, message, requests.read_metadata)


def status(target: Target) -> Rpc[tuple[VersionStatus, ...]]:
    """Returns the call that asks for the states of a model's versions."""
    message = requests.status_request(target)
    return Rpc(requests.STATUS, message, requests.read_status)
