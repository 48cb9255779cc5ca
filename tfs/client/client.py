"""The blocking client: TensorFlow Serving's inference API, typed, without tensorflow.

What is asked and how replies are read is in ``requests``, when to repeat a call in
``retry_policy``. :class:`tfs.client.aio.AsyncClient` has the same calls: they do no more
than to say what is asked, and each client has a ``_call`` of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Self, TypeVar

import grpc

from tfs.client import requests
from tfs.client.arguments import (
    DEFAULT_TIMEOUT_S,
    call_timeout_s,
    channel_options,
    checked_address,
    checked_retry,
    default_timeout_s,
)
from tfs.client.requests import Features, Rpc, Target, read_reply
from tfs.client.results import (
    Classification,
    ModelMetadata,
    Prediction,
    Regression,
    VersionStatus,
)
from tfs.client.retry_policy import Attempts, RetryPolicy
from tfs.codec.call_error import read_error
from tfs.core.clock import Clock, MonotonicClock
from tfs.core.errors import Cancelled

R = TypeVar("R")


class Client:
    """Calls one server, or several equal ones, over one channel.

    Thread-safe; every call blocks.

    Every method raises :class:`tfs.core.errors.ServingError` (a subclass by code)
    when the server or the way to it fails, within ``timeout_s``.

    Args:
        address: "host:port" or "unix:/path".
        timeout_s: Deadline of each call that names none.
        retry: When to repeat a failed call.
        credentials: TLS credentials made by grpc; None speaks plain text.
        balanced: Whether the address stands for several equal servers
            ("ipv4:10.0.0.1:8500,10.0.0.2:8500", "dns:///tfs:8500"). Calls go to them in
            turn, but to none that says by its health that it starts or drains.

    Raises:
        InvalidArgument: No address, a timeout that is not positive, or no policy.

    """

    def __init__(
        self,
        address: str,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        retry: RetryPolicy | None = None,
        credentials: grpc.ChannelCredentials | None = None,
        balanced: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self._address = address = checked_address(address)
        self._timeout_s = default_timeout_s(timeout_s)
        self._retry = checked_retry(retry)
        self._clock = clock or MonotonicClock()
        # Wakes a pause between tries when the client is closed; guards _closed.
        self._closing = threading.Condition()
        self._closed = False
        options = channel_options(balanced=balanced)
        if credentials is None:
            self._channel = grpc.insecure_channel(address, options)
        else:
            self._channel = grpc.secure_channel(address, credentials, options)

    def predict(
        self,
        model: str,
        inputs: Mapping[str, object],
        *,
        version: int | None = None,
        label: str | None = None,
        signature: str = "",
        outputs: Sequence[str] = (),
        routing_key: str | bytes = "",
        timeout_s: float | None = None,
        idempotent: bool = False,
    ) -> Prediction:
        """Returns the model's outputs for ``inputs`` (arrays or nested lists by name).

        Args:
            model: The model's name.
            inputs: Dimension 0 of each is the batch, as a rule. Dtypes numpy lacks are
                sent as :class:`tfs.client.Typed`.
            version: Ask exactly this version.
            label: Ask the version this label means.
            signature: Other than the default one.
            outputs: Only these; empty means all.
            routing_key: Stands for the caller while a canary answers a share of the
                callers: the same key always gets the same version. If empty, each call
                is assigned at random.
            timeout_s: Seconds that this call may take, repeats included.
            idempotent: Whether the call may be repeated even if it may have been computed
                already.

        """
        target = Target(model, version, label, signature)
        return self._call(
            requests.predict(target, inputs, outputs, routing_key),
            timeout_s,
            idempotent,
        )

    def classify(
        self,
        model: str,
        examples: Sequence[Features],
        *,
        context: Features | None = None,
        version: int | None = None,
        label: str | None = None,
        signature: str = "",
        timeout_s: float | None = None,
        idempotent: bool = False,
    ) -> Classification:
        """Returns the classes of each example; ``context`` holds common features."""
        target = Target(model, version, label, signature)
        return self._call(
            requests.classify(target, examples, context), timeout_s, idempotent
        )

    def regress(
        self,
        model: str,
        examples: Sequence[Features],
        *,
        context: Features | None = None,
        version: int | None = None,
        label: str | None = None,
        signature: str = "",
        timeout_s: float | None = None,
        idempotent: bool = False,
    ) -> Regression:
        """Returns one value for each example; ``context`` holds common features."""
        target = Target(model, version, label, signature)
        return self._call(
            requests.regress(target, examples, context), timeout_s, idempotent
        )

    def metadata(
        self,
        model: str,
        *,
        version: int | None = None,
        label: str | None = None,
        timeout_s: float | None = None,
    ) -> ModelMetadata:
        """Returns the signatures of a version."""
        target = Target(model, version, label)
        return self._call(requests.metadata(target), timeout_s, True)

    def status(
        self, model: str, *, version: int | None = None, timeout_s: float | None = None
    ) -> Sequence[VersionStatus]:
        """Returns the state of every version of a model, newest first."""
        target = Target(model, version)
        return self._call(requests.status(target), timeout_s, True)

    def send(
        self,
        method: str,
        message: bytes,
        *,
        timeout_s: float | None = None,
        idempotent: bool = False,
    ) -> bytes:
        """Returns the serialized reply to a serialized request.

        Args:
            method: The RPC's path.
            message: The request message of the method.
            timeout_s: Seconds that this call may take, repeats included.
            idempotent: Whether the call may be repeated even if it may have been computed
                already.

        """
        return self._call(Rpc(method, message, bytes), timeout_s, idempotent)

    def close(self) -> None:
        """Closes the channel and ends pauses between tries; idempotent."""
        with self._closing:
            self._closed = True
            self._closing.notify_all()
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call(self, what: Rpc[R], timeout_s: float | None, is_idempotent: bool) -> R:
        attempts = Attempts(
            self._retry,
            self._clock.now,
            call_timeout_s(timeout_s, self._timeout_s),
            is_idempotent=is_idempotent,
        )
        call = self._channel.unary_unary(what.method, None, None)
        while True:
            try:
                reply = call(what.message, timeout=attempts.remaining_s)
            except grpc.RpcError as rpc_error:
                error = read_error(rpc_error, self._address, what.inputs)
            except ValueError as fault:  # grpcio's, for a channel that is closed
                if not self._closed:
                    raise
                raise Cancelled("the client is closed") from fault
            else:
                return read_reply(what, reply)
            pause_s = attempts.pause_after(error)
            if pause_s is None or not self._pause(pause_s):
                raise error

    def _pause(self, pause_s: float) -> bool:
        """Waits; returns False if the client was closed meanwhile."""
        until_s = self._clock.now() + pause_s
        with self._closing:
            while not self._closed and self._clock.now() < until_s:
                self._clock.wait(self._closing, until_s)
            return not self._closed
