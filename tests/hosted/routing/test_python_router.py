"""Every request to a job that has its model, a late one to a second, the first answer wins."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

import pytest

from tfs.core.call import Metadata
from tfs.core.errors import (
    InvalidArgument,
    NotFound,
    ServingError,
    Unavailable,
)
from tfs.core.loop.serving_loop import ServingLoop
from tfs.core.tensor_view import Buffer
from tfs.frontends.http2.unary_request import Outcome
from tfs.hosted.routing.python_router import PythonRouter
from tfs.proto.tensorflow_serving.apis import predict_pb2
from tfs.testing.fake_call import FakeCall
from tfs.testing.fake_clock import FakeClock

PREDICT = "/tensorflow.serving.PredictionService/Predict"


@dataclass
class Sent:
    """A request as a job got it."""

    address: str
    message: Buffer
    timeout_s: float | None
    metadata: Metadata
    done: Callable[[Outcome], None]
    is_given_up: bool = False

    def give_up(self) -> None:
        self.is_given_up = True


@dataclass
class Sender:
    """Keeps what is sent until a test answers it."""

    sent: list[Sent] = field(default_factory=list)
    kept: set[str] = field(default_factory=set)

    def send(
        self,
        address: str,
        method: str,
        message: Buffer,
        timeout_s: float | None,
        metadata: Metadata,
        on_done: Callable[[Outcome], None],
    ) -> Callable[[], None]:
        assert method == PREDICT
        self.sent.append(Sent(address, message, timeout_s, metadata, on_done))
        return self.sent[-1].give_up

    def keep(self, addresses: Collection[str]) -> None:
        self.kept = set(addresses)

    def close(self) -> None:
        """Has nothing to close."""


class Fleet:
    """A router with its clock and what it sent."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.loop = ServingLoop(self.clock)
        self.sender = Sender()
        self.missed: list[str] = []
        self.router = PythonRouter([], self.loop, self.sender, 0.5, self.miss)
        self.router.set_routes({"m": ("a", "b"), "none": ()})

    def miss(self, model: str) -> bool:
        self.missed.append(model)
        return model == "temp"

    def ask(self, model: str = "m", deadline_s: float | None = None) -> FakeCall:
        request = predict_pb2.PredictRequest()
        request.model_spec.name = model
        call = FakeCall(
            request.SerializeToString(),
            method=PREDICT,
            deadline_s=deadline_s,
            metadata=(("tfs-priority", "low"),),
        )
        self.router.handle(call)
        return call

    def answer(self, index: int, outcome: Outcome) -> None:
        self.sender.sent[index].done(outcome)
        self.loop.step()

    def addresses(self) -> list[str]:
        return [each.address for each in self.sender.sent]

    def learn_latency(self) -> None:
        """Has twenty requests answered in 10 ms, after which the next is late."""
        for _ in range(20):
            self.ask()
            self.clock.advance(0.01)
            self.answer(-1, b"")
        self.sender.sent.clear()


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    made = Fleet()
    yield made
    made.loop.close()


def test_a_request_goes_as_it_came_to_the_idlest_job(fleet: Fleet) -> None:
    """Bytes, metadata and what is left of the deadline; fewest under way first."""
    assert fleet.sender.kept == {"a", "b"}
    calls = [fleet.ask(deadline_s=fleet.clock.now() + 3) for _ in range(3)]
    assert fleet.addresses() == ["a", "b", "a"]
    sent = fleet.sender.sent[0]
    assert sent.message == calls[0].message
    assert sent.timeout_s == pytest.approx(3)
    assert sent.metadata == (("tfs-priority", "low"),)
    fleet.answer(1, b"second")
    assert calls[1].reply_bytes() == b"second"
    assert not calls[0].is_finished
    fleet.ask()
    assert fleet.addresses()[-1] == "b"


@pytest.mark.parametrize("refusal", [Unavailable("draining"), NotFound("gone")])
def test_what_a_job_could_not_take_goes_to_the_next(
    fleet: Fleet, refusal: ServingError
) -> None:
    """A job that ends or gave the model up fails nobody; the last one's word counts."""
    call = fleet.ask()
    fleet.answer(0, refusal)
    assert fleet.addresses() == ["a", "b"]
    fleet.answer(1, b"here")
    assert call.reply_bytes() == b"here"
    call = fleet.ask()
    fleet.answer(2, refusal)
    fleet.answer(3, Unavailable("here too"))
    assert call.error().message == "here too"


def test_a_failure_of_the_model_s_is_the_caller_s(fleet: Fleet) -> None:
    """What would fail anywhere is not tried elsewhere."""
    call = fleet.ask()
    fleet.answer(0, InvalidArgument("wrong shape"))
    assert call.error().message == "wrong shape"
    assert fleet.addresses() == ["a"]


def test_a_late_request_is_sent_a_second_time_and_the_first_answer_wins(
    fleet: Fleet,
) -> None:
    """The loser is given up, and its server is as idle as the other."""
    fleet.learn_latency()
    call = fleet.ask()
    fleet.clock.advance(0.011)
    fleet.loop.step()
    assert fleet.addresses() == ["a", "b"]
    fleet.answer(1, b"quick")
    assert call.reply_bytes() == b"quick"
    assert fleet.sender.sent[0].is_given_up
    for _ in range(2):
        fleet.ask()
    assert fleet.addresses()[2:] == ["a", "b"]


def test_a_late_request_that_found_no_budget_is_looked_at_again(fleet: Fleet) -> None:
    """A job that hangs keeps no caller to the deadline because others were late at once."""
    fleet.learn_latency()
    hedging = fleet.router.hedging["m"]
    call = fleet.ask()
    while hedging.take():
        pass
    fleet.clock.advance(0.011)
    fleet.loop.step()
    assert fleet.addresses() == ["a"]
    for _ in range(40):
        hedging.note_request()
    fleet.clock.advance(0.05)
    fleet.loop.step()
    assert fleet.addresses() == ["a", "b"]
    fleet.answer(1, b"quick")
    assert call.reply_bytes() == b"quick"


def test_a_second_request_that_is_refused_leaves_the_first(fleet: Fleet) -> None:
    """The caller hears of neither a job that drains nor of the hedge."""
    fleet.learn_latency()
    call = fleet.ask()
    fleet.clock.advance(0.011)
    fleet.loop.step()
    fleet.answer(1, Unavailable("draining"))
    assert not call.is_finished
    fleet.answer(0, b"slow")
    assert call.reply_bytes() == b"slow"


def test_an_answer_in_time_sends_nothing_twice(fleet: Fleet) -> None:
    """The timer goes with the request."""
    fleet.learn_latency()
    fleet.ask()
    fleet.answer(0, b"")
    fleet.clock.advance(1)
    fleet.loop.step()
    assert fleet.addresses() == ["a"]


def test_who_is_gone_is_not_worked_for(fleet: Fleet) -> None:
    """A cancelled call gives up what is under way and frees its place."""
    fleet.learn_latency()
    call = fleet.ask()
    call.client_cancels()
    assert fleet.sender.sent[0].is_given_up
    fleet.clock.advance(1)
    fleet.loop.step()
    assert fleet.addresses() == ["a"]
    fleet.ask()
    assert fleet.addresses() == ["a", "a"]


def test_what_is_not_served_is_told(fleet: Fleet) -> None:
    """An unknown model is NOT_FOUND; one that is still to be loaded asks for patience."""
    unknown, unloaded = fleet.ask("other"), fleet.ask("none")
    assert not unknown.is_finished
    fleet.clock.advance(1.01)
    fleet.loop.step()
    assert isinstance(unknown.error(), NotFound)
    assert not unloaded.is_finished, "a busy machine is slow to tell"
    fleet.clock.advance(4.0)
    fleet.loop.step()
    error = unloaded.error()
    assert isinstance(error, Unavailable)
    assert error.retry_after_s == 1.0
    call = FakeCall(b"\xff", method=PREDICT)
    fleet.router.handle(call)
    assert isinstance(call.error(), InvalidArgument)


def test_a_model_that_the_router_does_not_know_yet_is_looked_for(fleet: Fleet) -> None:
    """Who was told that a model is there is answered, however far the router is behind."""
    call, gone = fleet.ask("new"), fleet.ask("new")
    assert fleet.missed == ["new", "new"]
    gone.client_cancels()
    fleet.router.set_routes({"m": ("a",)})
    assert not fleet.sender.sent
    fleet.router.set_routes({"m": ("a",), "new": ("b",)})
    assert fleet.addresses() == ["b"]
    fleet.answer(0, b"here")
    assert call.reply_bytes() == b"here"
    fleet.clock.advance(2)
    fleet.loop.step()
    assert call.num_finishes == 1


def test_a_request_that_waited_is_sent_once(fleet: Fleet) -> None:
    """However long its server takes: the time at which it would ask again is over."""
    call = fleet.ask("none")
    fleet.router.set_routes({"none": ("a", "b")})
    fleet.clock.advance(1.5)
    fleet.loop.step()
    assert fleet.addresses() == ["a"]
    fleet.answer(0, b"late")
    assert call.reply_bytes() == b"late"


def test_a_request_waits_for_a_model_that_rests(fleet: Fleet) -> None:
    """It has one replica brought back, and is answered then; not for ever."""
    fleet.router.set_routes({"temp": ()})
    call, late = fleet.ask("temp"), fleet.ask("temp")
    fleet.clock.advance(30)
    fleet.loop.step()
    fleet.router.set_routes({"temp": ("a",)})
    fleet.answer(0, b"awake")
    assert call.reply_bytes() == b"awake"
    fleet.answer(1, b"awake")
    assert late.reply_bytes() == b"awake"
    fleet.router.set_routes({"temp": ()})
    never = fleet.ask("temp")
    fleet.clock.advance(61)
    fleet.loop.step()
    assert isinstance(never.error(), Unavailable)


def test_a_request_whose_servers_end_with_its_model_waits_for_the_next(
    fleet: Fleet,
) -> None:
    """However long the router takes to hear of it: for a minute it asks again each second."""
    fleet.router.set_routes({"temp": ("a",)})
    call = fleet.ask("temp")
    for number in range(3):
        fleet.answer(number, Unavailable("cannot be reached"))
        fleet.clock.advance(1.01)
        fleet.loop.step()
    assert not call.is_finished
    fleet.answer(3, b"there")
    assert call.reply_bytes() == b"there"
    call = fleet.ask("temp")
    fleet.clock.advance(60.01)
    fleet.answer(4, Unavailable("cannot be reached"))
    assert isinstance(call.error(), Unavailable)


@pytest.mark.parametrize("is_back", [True, False])
def test_a_request_whose_model_went_to_rest_is_sent_again(
    fleet: Fleet, is_back: bool
) -> None:
    """A server may give it up before the router knows; what nobody knows fails all the same."""
    fleet.router.set_routes({"temp": ("a",)})
    call = fleet.ask("temp")
    fleet.answer(0, NotFound("gone"))
    assert not call.is_finished
    if not is_back:
        fleet.router.set_routes({"temp": ()})
        fleet.clock.advance(1.01)
        fleet.loop.step()
        assert len(fleet.sender.sent) == 1
        fleet.router.set_routes({"temp": ("b",)})
        fleet.answer(1, b"there")
        assert call.reply_bytes() == b"there"
        return
    for number in range(1, 4):
        assert not call.is_finished
        fleet.clock.advance(1.01)
        fleet.loop.step()
        fleet.answer(number, NotFound("no such version"))
    assert isinstance(call.error(), NotFound)
