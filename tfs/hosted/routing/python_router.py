"""Sends every request to a serving job that has its model, and a late one to a second job.

The idlest replica comes first, which is the one with the fewest requests of this router
under way. If a job could not take a request, because it cannot be reached, drains, or
gave up the model a moment ago, the request goes to the next one. A failure of the model
itself goes to the caller. A late request is hedged (:mod:`~tfs.hosted.routing.hedging`): the
first answer wins, and the other request is given up. So a prediction may run twice,
which has no visible effect. A request for a model that nothing is known to answer for waits
for seconds while the router looks again: a model is there for who was told that it is.
One for a model of Temp that may have no server has it given one, and waits for that for a
minute; it is sent again each second while servers for it cannot be reached, and for three
seconds while they do not know the model: routes lag behind servers that give it up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from tfs.core.call import Call, ListenerOptions, Metadata, RpcMethod
from tfs.core.errors import Code, NotFound, ServingError, Unavailable
from tfs.core.loop.serving_loop import ServingLoop, Timer
from tfs.hosted.routing.fleet_router import FORWARDED, Routes
from tfs.hosted.routing.hedging import HedgeOptions, Hedging
from tfs.hosted.routing.requested_model import requested_model

Outcome = bytes | ServingError
SendRequest = Callable[
    [str, str, bytes, float | None, Metadata, Callable[[Outcome], None]],
    Callable[[], None],
]
"""Sends a message to a job's address, for a method, within seconds, with metadata.

Never blocks. Returns a function that gives the request up; its outcome is told once, on any
thread, even after that.
"""

_ELSEWHERE: Final = frozenset({Code.UNAVAILABLE, Code.NOT_FOUND, Code.CANCELLED})
"""Codes of requests that another replica may answer. A server that ends cancels what it
has begun; a call that its own client cancels asks nobody again."""

_LEAST_TIMEOUT_S: Final = 0.001
_UNKNOWN_S: Final = 1.0
_KNOWN_S: Final = 3.0  # for what the fleet knows: a busy machine is slow to tell
_WAKING_S: Final = 60.0  # of the deadline, at most


@dataclass(slots=True)
class _Attempt:
    """A request as it was sent to one job."""

    address: str
    give_up: Callable[[], None] = field(default=lambda: None)


class PythonRouter:
    """Implements :class:`~tfs.hosted.routing.fleet_router.FleetRouter` in this process.

    Args:
        listeners: Where it answers.
        loop: Its thread; has the timers of deadlines and hedges.
        send: Sends requests to the jobs.
        options: How requests are hedged.
        missed: Told of a model that a request found on no server, to have it looked for;
            returns whether the model may have none, and gets one now. Must not block.

    Attributes:
        hedging: Decides when a second request is sent, by model.

    """

    def __init__(
        self,
        listeners: Sequence[ListenerOptions],
        loop: ServingLoop,
        send: SendRequest,
        options: HedgeOptions | None = None,
        missed: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self.listeners = listeners
        self._loop = loop
        self._now = loop.clock.now
        self._send = send
        self._options = options or HedgeOptions()
        self._routes: Routes = {}
        self._in_flight: dict[str, int] = {}
        self._missed = missed
        # Calls for models that nothing is known to answer for, oldest first.
        self._waiting: dict[Call, tuple[str, Timer]] = {}
        self.hedging: dict[str, Hedging] = {}

    def methods(self) -> Sequence[RpcMethod]:
        return [RpcMethod(path, self.handle) for path in FORWARDED]

    def drain(self, deadline_s: float) -> bool:
        return True  # the transport waits for its calls

    def close(self) -> None:
        """Does nothing: calls under way end with the transport."""

    def set_routes(self, routes: Routes) -> None:
        self._routes = routes
        for name in [each for each in self.hedging if each not in routes]:
            del self.hedging[name]
        for call, (name, _) in list(self._waiting.items()):
            if routes.get(name):
                self._forget(call)
                self._begin(call, name)

    def handle(self, call: Call) -> None:
        """Answers a call, now or later; see :class:`tfs.core.call.RpcMethod`."""
        try:
            name = requested_model(call.method, call.message)
        except ServingError as error:
            call.fail(error)
            return
        if self._routes.get(name):
            self._begin(call, name)
            return
        self._wait(call, name)

    def retry(self, call: Call, name: str, begun_s: float, code: Code) -> bool:
        """Asks again in a while, for a model that may have just lost its last server."""
        limit_s = _WAKING_S if code is Code.UNAVAILABLE else _KNOWN_S
        if self._now() - begun_s > limit_s or not self._missed(name):
            return False

        def again() -> None:
            if self._routes.get(name):
                self._begin(call, name, begun_s)
            else:
                self._wait(call, name)

        timer = self._loop.call_at(self._now() + _UNKNOWN_S, again)
        call.on_cancel(timer.cancel)
        return True

    def _wait(self, call: Call, name: str) -> None:
        """Holds a call back until something answers for its model."""
        wait_s = _KNOWN_S if name in self._routes else _UNKNOWN_S
        if self._missed(name):
            wait_s = _WAKING_S
        timer = self._loop.call_at(
            self._now() + wait_s, partial(self._give_up, call, name)
        )
        self._waiting[call] = (name, timer)
        call.on_cancel(lambda: self._forget(call))

    def _begin(self, call: Call, name: str, begun_s: float | None = None) -> None:
        hedging = self.hedging.get(name)
        if hedging is None:
            hedging = self.hedging[name] = Hedging(self._options)
        _Request(self, call, name, hedging, begun_s).start()

    def _give_up(self, call: Call, name: str) -> None:
        if call not in self._waiting:
            return
        del self._waiting[call]
        if name in self._routes:
            said = f"model {name} is available on no server yet"
            call.fail(Unavailable(said, retry_after_s=1.0))
        else:
            call.fail(NotFound(f"no model {name} is served by this fleet"))

    def _forget(self, call: Call) -> None:
        known = self._waiting.pop(call, None)
        if known is not None:
            known[1].cancel()

    # -- for requests -------------------------------------------------------------

    def idlest(self, name: str, tried: set[str]) -> str | None:
        """Returns the model's job with the fewest requests among those not tried yet."""
        left = [each for each in self._routes.get(name, ()) if each not in tried]
        return min(left, key=lambda each: self._in_flight.get(each, 0), default=None)

    def send(
        self, attempt: _Attempt, call: Call, on_done: Callable[[Outcome], None]
    ) -> None:
        """Sends a call's request to a job; ``on_done`` runs on the loop, once."""
        address = attempt.address
        self._in_flight[address] = self._in_flight.get(address, 0) + 1

        def done(outcome: Outcome) -> None:
            left = self._in_flight[address] - 1
            if left:
                self._in_flight[address] = left
            else:
                del self._in_flight[address]
            on_done(outcome)

        deadline_s = call.deadline_s
        timeout_s = None
        if deadline_s is not None:
            timeout_s = max(deadline_s - self._now(), _LEAST_TIMEOUT_S)
        attempt.give_up = self._send(
            address,
            call.method,
            bytes(call.message),
            timeout_s,
            call.metadata,
            lambda outcome: self._loop.post(partial(done, outcome)),
        )

    def call_at(self, when_s: float, fn: Callable[[], None]) -> Timer:
        """Runs ``fn`` at a time."""
        return self._loop.call_at(when_s, fn)

    def now(self) -> float:
        """Returns the time."""
        return self._now()


class _Request:
    """One call on its way through jobs. Confined to the loop."""

    def __init__(
        self,
        router: PythonRouter,
        call: Call,
        name: str,
        hedging: Hedging,
        begun_s: float | None,
    ) -> None:
        self._router = router
        self._call = call
        self._name = name
        self._hedging = hedging
        self._started_s = router.now()
        self._begun_s = self._started_s if begun_s is None else begun_s
        self._tried: set[str] = set()
        self._running: list[_Attempt] = []
        self._timer: Timer | None = None
        self._is_ended = False

    def start(self) -> None:
        """Sends the request; the call is answered when the request is."""
        self._hedging.note_request()
        self._call.on_cancel(self._end)
        if self._is_ended:
            return
        self._try_next()
        delay_s = self._hedging.delay_s
        if delay_s is not None and not self._is_ended:
            self._timer = self._router.call_at(self._started_s + delay_s, self._late)

    def _try_next(self) -> bool:
        """Sends the request to a job that has not had it; False if none is left."""
        address = self._router.idlest(self._name, self._tried)
        if address is None:
            return False
        self._tried.add(address)
        attempt = _Attempt(address)
        self._running.append(attempt)
        self._router.send(attempt, self._call, partial(self._done, attempt))
        return True

    def _late(self) -> None:
        if self._is_ended or not self._router.idlest(self._name, self._tried):
            return
        if self._hedging.take():
            self._try_next()
            return
        # Others were late at the same time, and used the budget up. Where a job hangs,
        # this one must not wait until its deadline: it asks again, the later the more
        # rarely.
        now_s = self._router.now()
        late_s = max(now_s - self._started_s, _LEAST_TIMEOUT_S)
        self._timer = self._router.call_at(now_s + late_s, self._late)

    def _done(self, attempt: _Attempt, outcome: Outcome) -> None:
        self._running.remove(attempt)
        if self._is_ended:
            return
        if isinstance(outcome, ServingError):
            if outcome.code in _ELSEWHERE:
                if self._running:
                    return  # the other request will answer
                if self._try_next():
                    return
                if self._router.retry(
                    self._call, self._name, self._begun_s, outcome.code
                ):
                    self._end()
                    return
            self._end()
            self._call.fail(outcome)
            return
        self._hedging.note_latency(self._router.now() - self._started_s)
        self._end()
        self._call.reply(outcome)

    def _end(self) -> None:
        """Gives up requests under way: the call is answered, or its client has gone."""
        if self._is_ended:
            return
        self._is_ended = True
        if self._timer is not None:
            self._timer.cancel()
        for attempt in self._running:
            attempt.give_up()
