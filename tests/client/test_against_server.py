"""Both clients against a real transport: deadlines, retries, errors."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tfs.client import AsyncClient, Client, RetryPolicy
from tfs.client.arguments import channel_options
from tfs.client.requests import PREDICT
from tfs.core.call import Call, ListenerOptions, RpcMethod
from tfs.core.errors import (
    Cancelled,
    Code,
    DeadlineExceeded,
    Internal,
    InvalidArgument,
    ServingError,
    Unavailable,
)
from tfs.core.loop.serving_loop import ServingLoop
from tfs.frontends.grpcio.transport import GrpcioTransport
from tfs.testing.patience import PATIENCE_S

PATH = "/test.Service/Ask"
QUICK = RetryPolicy(max_attempts=4, first_pause_s=0.001)

Ask = Callable[..., bytes]


class Answers:
    """Fails as often as a test says, then answers; counts the attempts."""

    def __init__(self) -> None:
        self.errors: list[ServingError | None] = []
        self.num_attempts = 0
        self.on_call: Callable[[], object] = lambda: None

    def __call__(self, call: Call) -> None:
        self.num_attempts += 1
        self.on_call()
        if not self.errors:
            call.reply(bytes(call.message[::-1]))
            return
        error = self.errors.pop(0)
        if error is not None:  # None never answers
            call.fail(error)


@pytest.fixture
def answers() -> Answers:
    return Answers()


@contextmanager
def serving(
    answers: Answers, where: str = "127.0.0.1:0", path: str = PATH
) -> Iterator[str]:
    loop = ServingLoop()
    loop.start()
    transport = GrpcioTransport(loop)
    try:
        (found,) = transport.start(
            [ListenerOptions("grpc", where)], {path: RpcMethod(path, answers)}
        )
        yield found
    finally:
        transport.close()
        loop.close()


@pytest.fixture
def address(answers: Answers) -> Iterator[str]:
    with serving(answers) as found:
        yield found


@contextmanager
def blocking(address: str) -> Iterator[Ask]:
    with Client(address, timeout_s=PATIENCE_S, retry=QUICK) as client:
        yield lambda **words: client.send(PATH, b"abc", **words)


@contextmanager
def asynchronous(address: str) -> Iterator[Ask]:
    async def ask(**words: object) -> bytes:
        client = AsyncClient(address, timeout_s=PATIENCE_S, retry=QUICK)
        async with client:
            return await client.send(PATH, b"abc", **words)  # type: ignore[arg-type]

    yield lambda **words: asyncio.run(ask(**words))


@pytest.fixture(params=[blocking, asynchronous], ids=["sync", "asyncio"])
def ask(request: pytest.FixtureRequest, address: str) -> Iterator[Ask]:
    with request.param(address) as made:
        yield made


@pytest.fixture(params=[Client, AsyncClient], ids=["sync", "asyncio"])
def ask_predict(
    request: pytest.FixtureRequest, answers: Answers
) -> Iterator[Callable[[object], object]]:
    async def predict(value: object, address: str) -> object:
        async with AsyncClient(address, timeout_s=PATIENCE_S) as client:
            return await client.predict("m", {"x": value})

    with serving(answers, path=PREDICT) as address:
        if request.param is AsyncClient:
            yield lambda value: asyncio.run(predict(value, address))
        else:
            with Client(address, timeout_s=PATIENCE_S) as client:
                yield lambda value: client.predict("m", {"x": value})


def test_a_call_is_answered(ask: Ask, answers: Answers) -> None:
    """One attempt, when all is well."""
    assert ask() == b"cba"
    assert answers.num_attempts == 1


def test_a_hint_is_followed(ask: Ask, answers: Answers) -> None:
    """A call that was turned away with RetryInfo did not run: it is sent again."""
    answers.errors = [Unavailable("full", retry_after_s=0.001)] * 3
    assert ask() == b"cba"
    assert answers.num_attempts == 4


def test_attempts_are_bounded(ask: Ask, answers: Answers) -> None:
    """The last error is the caller's, with the server's words and hint."""
    answers.errors = [Unavailable("full", retry_after_s=0.001)] * 9
    with pytest.raises(Unavailable) as caught:
        ask()
    assert answers.num_attempts == QUICK.max_attempts
    assert caught.value.message == "full"
    assert caught.value.retry_after_s == 0.001


def test_a_hint_beyond_the_deadline_ends_the_call_now(
    ask: Ask, answers: Answers
) -> None:
    """Waiting for what cannot come in time helps nobody."""
    answers.errors = [Unavailable("full", retry_after_s=10 * PATIENCE_S)]
    with pytest.raises(Unavailable):
        ask()
    assert answers.num_attempts == 1


@pytest.mark.parametrize(("idempotent", "attempts"), [(False, 1), (True, 2)])
def test_without_a_hint_only_idempotent_calls_are_repeated(
    ask: Ask, answers: Answers, idempotent: bool, attempts: int
) -> None:
    """A call that broke may have run; only its caller knows whether that matters."""
    answers.errors = [Unavailable("lost")] * (attempts if not idempotent else 1)
    if idempotent:
        assert ask(idempotent=True) == b"cba"
    else:
        with pytest.raises(Unavailable):
            ask()
    assert answers.num_attempts == attempts


def test_other_errors_are_not_repeated(ask: Ask, answers: Answers) -> None:
    """An INTERNAL error would come again; its class tells its code."""
    answers.errors = [Internal("m/3: broken")]
    with pytest.raises(Internal, match="broken"):
        ask(idempotent=True)
    assert answers.num_attempts == 1


def test_a_deadline_ends_the_call(ask: Ask, answers: Answers) -> None:
    """A server that never answers costs no more than the timeout."""
    answers.errors = [None]
    with pytest.raises(DeadlineExceeded, match=r"no answer from .* in time") as caught:
        ask(timeout_s=0.2)
    assert caught.value.code is Code.DEADLINE_EXCEEDED


@pytest.mark.parametrize("timeout_s", [0, -0.5, -math.inf])
def test_without_time_no_call_is_made(
    ask: Ask, answers: Answers, timeout_s: float
) -> None:
    """What is left of somebody's time may be nothing; the server hears nothing then."""
    assert ask() == b"cba"  # connected: the next would be there at once
    with pytest.raises(DeadlineExceeded, match="no time for the call"):
        ask(timeout_s=timeout_s)
    assert answers.num_attempts == 1


@pytest.mark.parametrize("kind", [blocking, asynchronous], ids=["sync", "asyncio"])
def test_a_server_that_is_not_there_is_unavailable(kind: Callable[..., object]) -> None:
    """The way to the server fails with the same errors as the server, and is named."""
    with (
        kind("127.0.0.1:1") as ask,  # type: ignore[attr-defined]
        pytest.raises(Unavailable, match=r"at 127\.0\.0\.1:1; is it there"),
    ):
        ask(timeout_s=5.0)


def test_a_server_that_comes_back_is_found_by_a_patient_call(
    answers: Answers, tmp_path: Path
) -> None:
    """The channel tries again within seconds, however long the server was away."""
    where = f"unix:{tmp_path}/server.sock"
    patient = RetryPolicy(max_attempts=10_000, first_pause_s=0.01, pause_factor=1)
    with Client(where, timeout_s=PATIENCE_S, retry=patient) as client:
        with pytest.raises(Unavailable):
            client.send(PATH, b"abc")
        with serving(answers, where):
            assert client.send(PATH, b"abc", idempotent=True) == b"cba"
    options = dict(channel_options(balanced=False))
    assert int(options["grpc.max_reconnect_backoff_ms"]) <= 2000


def test_an_asyncio_client_may_be_made_before_its_loop(address: str) -> None:
    """An asyncio client may be made at import time, before there is a loop."""
    client = AsyncClient(address, timeout_s=PATIENCE_S)

    async def ask() -> bytes:
        async with client:
            return await client.send(PATH, b"abc")

    assert asyncio.run(ask()) == b"cba"
    with pytest.raises(Cancelled, match="closed"):
        asyncio.run(client.send(PATH, b"abc"))


def test_an_asyncio_client_follows_its_callers_from_loop_to_loop(address: str) -> None:
    """A script calls asyncio.run again and again; threads have a loop each."""
    client = AsyncClient(address, timeout_s=PATIENCE_S)

    async def ask() -> bytes:
        return await client.send(PATH, b"abc")

    assert asyncio.run(ask()) == asyncio.run(ask()) == b"cba"
    others = asyncio.new_event_loop()
    thread = threading.Thread(target=others.run_forever)
    thread.start()
    try:

        def elsewhere() -> bytes:
            return asyncio.run_coroutine_threadsafe(ask(), others).result(PATIENCE_S)

        assert elsewhere() == b"cba"

        async def ask_and_close() -> None:
            assert await ask() == b"cba"
            await client.close()

        asyncio.run(ask_and_close())
        with pytest.raises(Cancelled, match="closed"):
            elsewhere()
    finally:
        others.call_soon_threadsafe(others.stop)
        thread.join()
        others.close()


async def _call_under_way(client: AsyncClient, answers: Answers) -> asyncio.Task[bytes]:
    """Returns a call that has reached the server, which does not answer it."""
    begun = asyncio.Event()
    answers.on_call = partial(
        asyncio.get_running_loop().call_soon_threadsafe, begun.set
    )
    task = asyncio.create_task(client.send(PATH, b"abc"))
    await begun.wait()
    return task


def test_closing_an_asyncio_client_fails_its_calls(
    address: str, answers: Answers
) -> None:
    """Nobody cancelled the tasks that made them: they get an error like any other."""
    answers.errors = [None]

    async def main() -> None:
        client = AsyncClient(address)
        task = await _call_under_way(client, answers)
        await client.close()
        with pytest.raises(Cancelled, match="closed"):
            await task

    asyncio.run(main())


def test_a_cancelled_task_is_cancelled_though_its_client_is_closed(
    address: str, answers: Answers
) -> None:
    """Who cancels a task waits for it to end so."""
    answers.errors = [None]

    async def main() -> None:
        client = AsyncClient(address)
        task = await _call_under_way(client, answers)
        task.cancel()
        await client.close()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())


def test_an_asyncio_client_closed_in_a_pause_tries_no_more(
    address: str, answers: Answers
) -> None:
    """The call fails at once, as its last try did, not with an error of grpcio's own."""
    answers.errors = [Unavailable("busy", retry_after_s=600)]

    async def main() -> None:
        client = AsyncClient(address, timeout_s=1000)
        task = asyncio.create_task(client.send(PATH, b"abc"))
        while not client._pauses and not task.done():
            await asyncio.sleep(0)
        await client.close()
        with pytest.raises(Unavailable, match="busy"):
            await asyncio.wait_for(task, PATIENCE_S)
        assert not client._pauses

    asyncio.run(main())
    assert answers.num_attempts == 1


@pytest.mark.parametrize("kind", [Client, AsyncClient])
@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("/run/tfs.sock", "give unix:/run/tfs.sock"),
        ("::1:8500", "brackets"),
        ("HTTP://tfs:8500", "without HTTP://, tfs:8500"),
        (8500, "an address is a text, host:port, not 8500"),
        ("127.0.0.1:65536", "no port beyond 65535"),
        ("", "no address"),
        ("http://h:8500", "without http://, h:"),
        ("grpc://h:8500", "without grpc://, h:"),
        ("tcp://h:1", "without tcp://, h:"),
    ],
)
def test_what_is_almost_an_address_is_told_what_to_be(
    kind: Callable[[Any], object], address: object, words: str
) -> None:
    """grpcio would take it for a host's name, for another address at port 443, or for a
    port modulo 65,536; an empty variable it would try to resolve.
    """
    with pytest.raises(InvalidArgument, match=words):
        kind(address)


@pytest.mark.parametrize("address", ["[::1]:8500", "ipv6:[::1]:8500", "unix:/a:b:c"])
def test_addresses_with_many_colons_are_taken(address: str) -> None:
    """Brackets and schemes say what they are."""
    Client(address).close()


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_what_is_no_retry_policy_is_refused_at_once(kind: Any) -> None:
    """It would show only once a call fails."""
    with pytest.raises(InvalidArgument, match="a RetryPolicy, such as"):
        kind("127.0.0.1:1", retry=3)


def test_a_call_of_a_closed_client_is_an_error_of_ours() -> None:
    """Who catches what calls raise also catches this one, of either client."""

    async def ask() -> None:
        client = AsyncClient("127.0.0.1:1")
        await client.close()
        await client.send(PATH, b"abc")

    with pytest.raises(Cancelled, match="the client is closed"):
        asyncio.run(ask())
    client = Client("127.0.0.1:1")
    client.close()
    with pytest.raises(Cancelled, match="the client is closed"):
        client.send(PATH, b"abc")


def test_a_dtype_that_is_not_the_models_is_told_by_numpys_name(
    ask_predict: Callable[[object], object], answers: Answers
) -> None:
    """The wire's "float" is another type than numpy's, which astype would make."""
    fault = "input 'x' expected to be float but double is provided"
    answers.errors = [InvalidArgument(fault)] * 2
    for value in ([[1, 2]], np.array([[1.0, 2.0]])):
        with pytest.raises(InvalidArgument) as caught:
            ask_predict(value)
        assert caught.value.message == (
            f"{fault}; send an array of dtype float32, or Typed(values, 'float32')"
        )


def test_what_should_be_text_is_not_told_to_become_it(
    ask_predict: Callable[[object], object], answers: Answers
) -> None:
    """No dtype makes text of numbers."""
    fault = "input 'x' expected to be string but float is provided"
    answers.errors = [InvalidArgument(fault)]
    with pytest.raises(InvalidArgument) as caught:
        ask_predict([[1.0]])
    assert caught.value.message == f"{fault}; send text or bytes"


def test_a_timeout_may_be_endless_but_must_be_a_number(ask: Ask) -> None:
    """grpcio counts beyond its clock, and a call of infinity would end at once."""
    assert ask(timeout_s=math.inf) == ask(timeout_s=1e12) == b"cba"
    with pytest.raises(InvalidArgument):
        ask(timeout_s=math.nan)
    with pytest.raises(InvalidArgument):
        Client("127.0.0.1:1", timeout_s=math.nan)
    with pytest.raises(InvalidArgument, match="a number of seconds, not '5'"):
        ask(timeout_s="5")
    with pytest.raises(InvalidArgument, match="a number of seconds, not None"):
        Client("127.0.0.1:1", timeout_s=None)  # type: ignore[arg-type]
