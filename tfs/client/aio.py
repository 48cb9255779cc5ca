"""The client for asyncio: the same calls as :class:`tfs.client.client.Client`, awaited."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, Final, ParamSpec, Self, TypeVar

import grpc
import grpc.aio

from tfs.client.arguments import (
    DEFAULT_TIMEOUT_S,
    call_timeout_s,
    channel_options,
    checked_address,
    checked_retry,
    default_timeout_s,
)
from tfs.client.client import Client
from tfs.client.requests import Rpc, read_reply
from tfs.client.retry_policy import Attempts, RetryPolicy
from tfs.codec.call_error import read_error
from tfs.core.errors import Cancelled

P = ParamSpec("P")
R = TypeVar("R")

_CLOSE_S: Final = 5.0


def _awaited(
    call: Callable[Concatenate[Client, P], R],
) -> Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, R]]:
    """Returns a call of ``Client`` that is awaited: what it does is up to ``_call``."""
    calls: Any = call

    @functools.wraps(call)
    async def awaited(client: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> R:
        result: R = await calls(client, *args, **kwargs)
        return result

    return awaited


class AsyncClient:
    """Calls as ``Client`` does, over one channel for each event loop that asks.

    It may be made before any event loop runs, and used on one loop after another
    (``asyncio.run`` makes a new one each time) or on several, each in its own thread.

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
    ) -> None:
        self._timeout_s = default_timeout_s(timeout_s)
        self._retry = checked_retry(retry)
        self._address = checked_address(address)
        self._credentials = credentials
        self._options = channel_options(balanced=balanced)
        # Guards the fields below; leaf.
        self._lock = threading.Lock()
        # Made by a loop's first call, because grpcio ties a channel to its loop.
        self._channels: dict[asyncio.AbstractEventLoop, grpc.aio.Channel] = {}
        self._pauses: set[asyncio.Future[None]] = set()  # pauses between attempts
        self._closed = False

    predict = _awaited(Client.predict)
    classify = _awaited(Client.classify)
    regress = _awaited(Client.regress)
    metadata = _awaited(Client.metadata)
    status = _awaited(Client.status)
    send = _awaited(Client.send)

    async def close(self) -> None:
        """Closes the channels of all loops; calls in flight fail (Cancelled). Idempotent.

        Calls that pause between two attempts fail as the last attempt did.
        """
        with self._lock:
            self._closed = True
            channels, self._channels = self._channels, {}
            pauses = list(self._pauses)
        for each in pauses:
            with contextlib.suppress(RuntimeError):  # the channel's loop is closed
                each.get_loop().call_soon_threadsafe(_end, each)
        here = asyncio.get_running_loop()
        for loop, channel in channels.items():
            if loop is here:
                await channel.close(None)
            elif loop.is_running():
                closing = asyncio.run_coroutine_threadsafe(channel.close(None), loop)
                with contextlib.suppress(TimeoutError):  # that loop ended meanwhile
                    await asyncio.wait_for(asyncio.wrap_future(closing), _CLOSE_S)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _call(
        self, what: Rpc[R], timeout_s: float | None, is_idempotent: bool
    ) -> R:
        attempts = Attempts(
            self._retry,
            asyncio.get_running_loop().time,
            call_timeout_s(timeout_s, self._timeout_s),
            is_idempotent=is_idempotent,
        )
        call = self._open().unary_unary(what.method, None, None)
        while True:
            try:
                reply = await call(what.message, timeout=attempts.remaining_s)
            except grpc.RpcError as rpc_error:
                error = read_error(rpc_error, self._address, what.inputs)
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if self._closed and (task is None or not task.cancelling()):
                    raise Cancelled("the client was closed") from None
                raise  # the caller has cancelled the call
            else:
                return read_reply(what, reply)
            pause_s = attempts.pause_after(error)
            if pause_s is None:
                raise error
            await self._pause(pause_s)
            if self._closed:
                raise error

    async def _pause(self, pause_s: float) -> None:
        """Waits, but not for longer than until the client is closed."""
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        with self._lock:
            if self._closed:
                return
            self._pauses.add(ended)
        try:
            await asyncio.wait((ended,), timeout=pause_s)
        finally:
            with self._lock:
                self._pauses.discard(ended)

    def _open(self) -> grpc.aio.Channel:
        """Returns the running loop's channel."""
        loop = asyncio.get_running_loop()
        with self._lock:
            if self._closed:
                raise Cancelled("the client is closed")
            channel = self._channels.get(loop)
            if channel is None:
                for ended in [each for each in self._channels if each.is_closed()]:
                    del self._channels[ended]
                channel = self._channels[loop] = self._make_channel()
            return channel

    def _make_channel(self) -> grpc.aio.Channel:
        address, credentials = self._address, self._credentials
        if credentials is None:
            return grpc.aio.insecure_channel(address, self._options)
        return grpc.aio.secure_channel(address, credentials, self._options)


def _end(pause: asyncio.Future[None]) -> None:
    if not pause.done():
        pause.set_result(None)
