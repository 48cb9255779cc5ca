"""Requests are read a few at a time through grpcio, and by whose turn it is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

import pytest

from tests.frontends.fake_connections import FakeConnections
from tfs.core.errors import Unavailable
from tfs.frontends.rpc.grpcio.sender_watch import LOOK_S
from tfs.frontends.rpc.grpcio.uploads import LOOKAHEAD_BYTES, Upload, Uploads
from tfs.testing.fake_clock import FakeClock

MIB = 1 << 20
PLACES = 2  # for clients that are new


class Rig:
    """Uploads, their clients' connections, and whose answers are unread."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.connections = FakeConnections()
        self.closed: set[str] = set()
        self.readers: set[str] = set()
        self.uploads = Uploads(
            self.clock.now,
            lambda peer: peer not in self.closed,
            self.connections,
            self.readers.__contains__,
        )

    def begin(self, peer: str) -> Upload:
        """Returns a place that is free."""
        upload = self.uploads.take(peer)
        assert upload is not None
        return upload

    def fill(self, held_bytes: int = 0) -> list[Upload]:
        """Has new clients take all places that they may have, and send that much each."""
        for number in range(PLACES):
            self.connections.received_bytes[f"p{number}"] = held_bytes
        return [self.begin(f"p{number}") for number in range(PLACES)]

    def wait(self, peer: str, unasked_bytes: int = 0) -> asyncio.Task[Upload]:
        """Returns a place that is not; the client sends what it may meanwhile."""
        assert self.uploads.take(peer) is None
        self.connections.received_bytes[peer] += unasked_bytes
        return asyncio.ensure_future(self.uploads.wait(peer))

    def call(self, peer: str, size: int = 100) -> None:
        """Has a request read at once."""
        upload = self.begin(peer)
        self.uploads.note_whole(upload, size)
        self.uploads.end(upload)

    async def look(self, num_looks: int = 1, **pace: int) -> None:
        """Looks so often; between, each peer sends as many bytes as given."""
        for _ in range(num_looks):
            self.clock.advance(LOOK_S)
            for peer, num_bytes in pace.items():
                self.connections.received_bytes[peer] += num_bytes
            self.uploads.look()
            await asyncio.sleep(0)


def run(test: Callable[[Rig], Coroutine[None, None, None]]) -> None:
    async def main() -> None:
        rig = Rig()
        await test(rig)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
            await asyncio.wait([task])
        assert not rig.uploads.num_waiting
        assert not rig.uploads._waiting

    asyncio.run(main())


def test_new_clients_have_a_few_places_and_those_of_short_requests_more() -> None:
    """Clients wait when all of their places are taken, until one is free."""

    async def test(rig: Rig) -> None:
        rig.call("known")
        held = rig.fill()
        new = rig.wait("new")
        first, second = rig.begin("known"), rig.begin("known")
        last = rig.wait("known")
        await asyncio.sleep(0)
        assert rig.uploads.num_waiting == 2
        rig.uploads.end(first)
        assert await last
        assert not new.done()
        rig.uploads.end(second)
        rig.uploads.end(last.result())
        rig.uploads.end(held[0])
        assert await new

    run(test)


def test_who_sends_nothing_goes_sooner_where_others_wait() -> None:
    """A client that has sent nothing for long goes when another waits; senders stay."""

    async def test(rig: Rig) -> None:
        rig.fill()
        await rig.look(200, p1=10_000)
        assert rig.connections.gone == []
        waiting = rig.wait("late", LOOKAHEAD_BYTES)
        await asyncio.sleep(0)
        await rig.look(1, p1=10_000)
        assert rig.connections.gone == ["p0"]
        assert not waiting.done()

    run(test)


def test_what_the_system_has_and_grpcio_did_not_read_is_no_silence() -> None:
    """Bytes that the server has not read yet count as sent, so nobody goes for them."""

    async def test(rig: Rig) -> None:
        rig.fill()
        rig.wait("late")
        rig.connections.unread_bytes = 1000
        await rig.look(40)
        assert rig.connections.gone == []

    run(test)


def test_a_new_client_that_sent_little_is_read_as_one_with_short_requests() -> None:
    """A new client that did not fill its look-ahead counts as one of short requests."""

    async def test(rig: Rig) -> None:
        rig.fill()
        probe, large = rig.wait("probe", 300), rig.wait("large", LOOKAHEAD_BYTES)
        await asyncio.sleep(0)
        await rig.look()
        assert probe.done()
        assert not large.done()

    run(test)


def test_clients_that_all_send_are_given_more_places() -> None:
    """Places are added after half a second, and taken away when nobody waits."""

    async def test(rig: Rig) -> None:
        held = rig.fill()
        waiting = [rig.wait(f"w{number}", LOOKAHEAD_BYTES) for number in range(6)]
        pace = {f"p{number}": 10_000 for number in range(PLACES)}
        pace.update({f"w{number}": 10_000 for number in range(6)})
        await rig.look(2, **pace)
        assert not any(task.done() for task in waiting)
        await rig.look(4, **pace)
        assert all(task.done() for task in waiting)
        assert rig.connections.gone == []
        for upload in [*held, *(task.result() for task in waiting)]:
            rig.uploads.end(upload)
        await rig.look(8)
        rig.fill()
        assert rig.uploads.take("another") is None

    run(test)


def test_what_a_client_sent_before_is_not_held_by_what_it_sends_now() -> None:
    """Bytes that a client sent before its turn do not keep places from being added."""

    async def test(rig: Rig) -> None:
        for number in range(PLACES):
            rig.call(f"p{number}")
            rig.connections.received_bytes[f"p{number}"] = 100 * MIB
        rig.call("known")
        held = [rig.begin(f"p{number}") for number in range(PLACES)]
        held += [rig.begin("known") for _ in range(2)]
        waiting = rig.wait("late", LOOKAHEAD_BYTES)
        await rig.look(4, p0=10_000, p1=10_000, known=10_000)
        assert waiting.done()
        assert rig.connections.gone == []

    run(test)


def test_no_more_places_are_opened_when_those_who_have_one_sent_much() -> None:
    """No places are opened while partial requests hold much memory."""

    async def test(rig: Rig) -> None:
        rig.fill(9 * MIB)
        late = rig.wait("late", LOOKAHEAD_BYTES)
        await rig.look(20, p0=10_000, p1=10_000)
        assert not late.done()
        assert rig.connections.gone == []

    run(test)


def test_long_requests_that_are_there_keep_other_long_ones_waiting() -> None:
    """Long requests wait until there is room for their answers; short ones are read."""

    async def test(rig: Rig) -> None:
        rig.call("known")
        held = rig.fill()
        for upload in held:
            rig.uploads.note_whole(upload, MIB)
        new = rig.wait("new")
        await asyncio.sleep(0)
        for _ in range(100):
            rig.call("known")
        assert not new.done()
        assert rig.uploads.most_bytes == MIB
        rig.uploads.end(held[0])
        assert await new

    run(test)


def test_long_requests_of_clients_with_short_ones_are_refused_beyond_a_bound() -> None:
    """Long requests in the places of short ones are refused beyond a bound."""

    async def test(rig: Rig) -> None:
        for number in range(6):
            rig.call(f"p{number}")
        for number in range(4):
            rig.uploads.note_whole(rig.begin(f"p{number}"), MIB)
        upload = rig.begin("p5")
        with pytest.raises(Unavailable, match="too many long requests"):
            rig.uploads.note_whole(upload, MIB)
        rig.uploads.end(upload)
        assert rig.uploads.take("p5") is None

    run(test)


def test_whose_answers_are_unread_has_no_requests_read() -> None:
    """A client's requests are not read until it reads answers; those of others are."""

    async def test(rig: Rig) -> None:
        rig.closed.add("deaf")
        waiting = rig.wait("deaf")
        await asyncio.sleep(0)
        rig.call("other")
        rig.closed.clear()
        rig.uploads.go_on()
        assert await waiting

    run(test)


def test_in_a_jam_a_few_calls_of_each_client_wait_and_the_others_are_refused() -> None:
    """In a jam eight calls of a client go on waiting, and its others are refused."""

    async def test(rig: Rig) -> None:
        rig.fill(9 * MIB)
        crowd = [rig.wait("many", LOOKAHEAD_BYTES) for _ in range(500)]
        await asyncio.sleep(0)
        await rig.look(4)
        assert not any(task.done() for task in crowd)
        for number in range(20):
            rig.wait(f"one of {number}")
        await asyncio.sleep(0)
        await rig.look()
        assert sum(task.done() for task in crowd) == 492
        assert all(isinstance(task.exception(), Unavailable) for task in crowd[8:])
        late = rig.wait("many")
        with pytest.raises(Unavailable, match="too many requests"):
            await late

    run(test)


@pytest.mark.parametrize("is_given", [False, True])
def test_a_call_that_is_cancelled_leaves_its_place_to_the_next(is_given: bool) -> None:
    """The next call gets the place, even one just given to the cancelled call."""

    async def test(rig: Rig) -> None:
        held = rig.fill()
        first, second = rig.wait("first"), rig.wait("second")
        await asyncio.sleep(0)
        if is_given:
            rig.uploads.end(held[0])
        first.cancel()
        if not is_given:
            rig.uploads.end(held[0])
        assert await second
        assert first.cancelled()

    run(test)


@pytest.mark.parametrize("is_popped", [False, True])
def test_a_client_is_forgotten_with_its_last_call(is_popped: bool) -> None:
    """Nothing of a client stays when its last call is cancelled, at any moment."""

    async def test(rig: Rig) -> None:
        held = rig.fill()
        first = rig.wait("first")
        await asyncio.sleep(0)
        first.cancel()
        if not is_popped:
            await asyncio.wait([first])
        for upload in held:
            rig.uploads.end(upload)
        await asyncio.wait([first])
        assert not rig.uploads._clients

    run(test)


def test_a_client_without_a_place_is_remembered_only_while_it_waits() -> None:
    """A client that got no place and does not wait is forgotten."""

    async def test(rig: Rig) -> None:
        held = rig.fill()
        assert rig.uploads.take("late") is None
        for upload in held:
            rig.uploads.end(upload)
        assert not rig.uploads._clients

    run(test)


def test_the_first_message_of_a_stream_tells_what_its_client_is_like() -> None:
    """After one long message a client's next request waits behind those of others."""

    async def test(rig: Rig) -> None:
        for peer in ("stream", "unary"):
            upload = rig.begin(peer)
            rig.uploads.note_message(upload, MIB)
            rig.uploads.end(upload)
        held = rig.fill()
        unary, stream = rig.wait("unary"), rig.wait("stream")
        await asyncio.sleep(0)
        rig.uploads.end(held[0])
        await asyncio.sleep(0)
        assert unary.done()
        assert not stream.done()

    run(test)


def test_who_is_known_to_read_answers_goes_before_strangers() -> None:
    """Strangers have one turn in four, however many requests such a client has."""

    async def test(rig: Rig) -> None:
        rig.readers.add("good")
        places = rig.fill()
        order: list[str] = []

        async def call(peer: str, turn: asyncio.Task[Upload]) -> None:
            upload = await turn
            order.append(peer)
            rig.uploads.end(upload)

        calls = [
            asyncio.ensure_future(call(peer, rig.wait(peer, LOOKAHEAD_BYTES)))
            for peer in ("a", "b", "c", *["good"] * 6)
        ]
        await asyncio.sleep(0)
        rig.uploads.end(places[0])
        await asyncio.gather(*calls)
        rig.uploads.end(places[1])
        assert order[:8].count("good") == 6
        assert [peer for peer in order if peer != "good"] == ["a", "b", "c"]

    run(test)


def test_clients_with_long_requests_take_turns() -> None:
    """Who has waited longest since it last had a place goes next, whoever came first."""

    async def test(rig: Rig) -> None:
        uploads = rig.fill()
        waiting: dict[str, list[asyncio.Task[Upload]]] = {}
        for peer in ("a", "b", "c"):
            waiting[peer] = [rig.wait(peer) for _ in range(2)]
            await asyncio.sleep(0)
        served = []
        for _ in range(6):
            rig.clock.advance(LOOK_S)
            rig.uploads.end(uploads.pop(0))
            await asyncio.sleep(0)
            for peer, tasks in waiting.items():
                for task in [each for each in tasks if each.done()]:
                    tasks.remove(task)
                    served.append(peer)
                    uploads.append(task.result())
        assert served == ["a", "b", "c"] * 2
        for upload in uploads:
            rig.uploads.end(upload)

    run(test)


def test_a_long_request_waits_for_a_few_short_ones_at_most() -> None:
    """One turn in four goes to who has waited longest, beside short ones without end."""

    async def test(rig: Rig) -> None:
        short = [f"s{number}" for number in range(8)]
        for peer in short:
            rig.call(peer)
        reading = [rig.begin(peer) for peer in short[:4]]
        long = rig.wait("long", LOOKAHEAD_BYTES)
        await asyncio.sleep(0)
        waiting = {peer: rig.wait(peer) for peer in short}
        num_turns = 0
        while not long.done():
            rig.clock.advance(LOOK_S / 100)
            rig.uploads.end(reading.pop(0))
            await asyncio.sleep(0)
            for peer in [each for each in short if waiting[each].done()]:
                reading.append(waiting[peer].result())
                waiting[peer] = rig.wait(peer)
                await asyncio.sleep(0)
            num_turns += 1
            assert num_turns <= 4
        for upload in (*reading, long.result()):
            rig.uploads.end(upload)

    run(test)
