"""Sends every request to a serving job that has its model, and a late one to a second job.

The idlest replica comes first, which is the one with the fewest requests of this router
under way. If a job could not take a request, because it cannot be reached, drains, or
gave up the model a moment ago, the request goes to the next one. A failure of the model
itself goes to the caller. A late request is hedged (:mod:`~tfs.hosted.routing.hedging`): the
first answer wins, and the other request is given up. So a prediction may run twice,
which has no visible effect. A request that nobody is left to ask waits for other routes,
and asks all again each second: for a model that the router does not know yet or that has no
server, for seconds; for one of Temp that may have none, and is given one now, for a minute,
but for seconds if its servers do not know it: routes lag behind those that give it up.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Final, Protocol

from tfs.core.call import Call, ListenerOptions, Metadata, RpcMethod
from tfs.core.errors import Code, NotFound, ServingError, Unavailable
from tfs.core.loop.serving_loop import ServingLoop, Timer
from tfs.core.tensor_view import Buffer
from tfs.frontends.http2.unary_request import Outcome
from tfs.hosted.routing.fleet_router import FORWARDED, Routes
from tfs.hosted.routing.hedging import Hedging
from tfs.hosted.routing.requested_model import requested_model


class RequestSender(Protocol):
    """Sends requests to jobs. Confined to the serving loop, as what it calls back.

    Implementors promise: nothing blocks, and ``on_done`` is told how a request ended, once,
    not from within ``send``, and not after it was given up.
    """

    def send(
        self,
        address: str,
        method: str,
        message: Buffer,
        timeout_s: float | None,
        metadata: Metadata,
        on_done: Callable[[Outcome], None],
    ) -> Callable[[], None]:
        """Sends a message to a job's address; returns what gives the request up.

        The server is told its timeout, and nobody else.
        """
        ...

    def keep(self, addresses: Collection[str]) -> None:
        """Lets all other jobs go, once their requests have ended."""
        ...

    def close(self) -> None:
        """Ends the requests under way."""
        ...


_ELSEWHERE: Final = frozenset({Code.UNAVAILABLE, Code.NOT_FOUND, Code.CANCELLED})
"""Codes of requests that another replica may answer. A server that ends cancels what it
has begun; a call that its own client cancels asks nobody again."""

_LEAST_TIMEOUT_S: Final = 0.001
_AGAIN_S: Final = 1.0
_UNKNOWN_S: Final = 1.0
_KNOWN_S: Final = 3.0  # for what the fleet knows: a busy machine is slow to tell
_WAKING_S: Final = 60.0  # of the deadline, at most


class PythonRouter:
    """Implements :class:`~tfs.hosted.routing.fleet_router.FleetRouter` in this process.

    Args:
        listeners: Where it answers.
        loop: Its thread; has the timers of deadlines and hedges.
        jobs: Sends requests to them; owned, and closed with this.
        hedge_budget: Most late requests that are sent a second time, as a share of all.
        missed: Told of a model that a request found on no server; returns whether the model
            may have none, and gets one now. Must not block.

    """

    def __init__(
        self,
        listeners: Sequence[ListenerOptions],
        loop: ServingLoop,
        jobs: RequestSender,
        hedge_budget: float = 0.05,
        missed: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self.listeners = listeners
        self.loop = loop
        self._jobs = jobs
        self._hedge_budget = hedge_budget
        self._routes: Routes = {}
        self._in_flight: dict[str, int] = {}
        self._missed = missed
        # Those that nobody is left to ask for, oldest first.
        self.waiting: dict[_Request, None] = {}
        self.hedging: dict[str, Hedging] = {}  # by model

    def methods(self) -> Sequence[RpcMethod]:
        return [RpcMethod(path, self.handle) for path in FORWARDED]

    def drain(self, deadline_s: float) -> bool:
        return True  # the transport waits for its calls

    def close(self) -> None:
        self.loop.post(self._jobs.close)

    def set_routes(self, routes: Routes) -> None:
        self._routes = routes
        self._jobs.keep({each for addresses in routes.values() for each in addresses})
        for name in [each for each in self.hedging if each not in routes]:
            del self.hedging[name]
        for request in [each for each in self.waiting if routes.get(each.name)]:
            request.ask_all()

    def handle(self, call: Call) -> None:
        """Answers a call, now or later; see :class:`tfs.core.call.RpcMethod`."""
        try:
            name = requested_model(call.method, call.message)
        except ServingError as error:
            call.fail(error)
            return
        request = _Request(self, call, name)
        call.on_cancel(request.end)
        request.ask_all()

    # -- for requests -------------------------------------------------------------

    def idlest(self, name: str, tried: set[str]) -> str | None:
        """Returns the model's job with the fewest requests among those not tried yet."""
        left = [each for each in self._routes.get(name, ()) if each not in tried]
        return min(left, key=lambda each: self._in_flight.get(each, 0), default=None)

    def send(
        self, address: str, call: Call, on_done: Callable[[Outcome], None]
    ) -> Callable[[], None]:
        """Sends a call's request to a job; returns what gives it up."""
        self._in_flight[address] = self._in_flight.get(address, 0) + 1

        def over() -> None:
            self._in_flight[address] -= 1
            if not self._in_flight[address]:
                del self._in_flight[address]

        def done(outcome: Outcome) -> None:
            over()
            on_done(outcome)

        deadline_s = call.deadline_s
        timeout_s = None
        if deadline_s is not None:
            timeout_s = max(deadline_s - self.loop.clock.now(), _LEAST_TIMEOUT_S)
        cancel = self._jobs.send(
            address, call.method, call.message, timeout_s, call.metadata, done
        )

        def give_up() -> None:
            over()
            cancel()

        return give_up

    def outlook(
        self, name: str, said: ServingError | None
    ) -> tuple[float, ServingError]:
        """Returns how long a request waits that nobody is left to ask, and its error then.

        ``said`` is what the last server said, if any was asked.
        """
        may_have_none = self._missed(name)
        if self._routes.get(name) and said is not None:
            is_away = said.code is Code.UNAVAILABLE
            wait_s = _WAKING_S if is_away else _KNOWN_S
            return wait_s if may_have_none else 0.0, said
        wait_s = _KNOWN_S if name in self._routes else _UNKNOWN_S
        error: ServingError = NotFound(f"no model {name} is served by this fleet")
        if name in self._routes:
            why = f"model {name} is available on no server yet"
            error = Unavailable(why, retry_after_s=1.0)
        return _WAKING_S if may_have_none else wait_s, error

    def hedging_of(self, name: str) -> Hedging:
        """Returns the hedging of a model that has routes."""
        return self.hedging.setdefault(name, Hedging(self._hedge_budget))


class _Request:
    """One call on its way through jobs. Confined to the loop."""

    def __init__(self, router: PythonRouter, call: Call, name: str) -> None:
        self.name = name
        self._router = router
        self._loop = router.loop
        self._now = router.loop.clock.now
        self._call = call
        self._begun_s = self._asked_s = self._now()
        self._hedging: Hedging | None = None  # once it was sent
        self._tried: set[str] = set()
        # What gives up the requests under way.
        self._running: dict[str, Callable[[], None]] = {}
        self._timer: Timer | None = None
        self._is_ended = False

    def ask_all(self) -> None:
        """Sends the request to a job, and to the next ones if it has to."""
        if self._is_ended:
            return
        self._router.waiting.pop(self, None)
        if self._timer is not None:  # it may be other routes that have it ask
            self._timer.cancel()
        self._asked_s = self._now()
        self._tried.clear()
        if not self._ask_next():
            self._wait(None)
            return
        if self._hedging is None:
            self._hedging = self._router.hedging_of(self.name)
            self._hedging.note_request()
        delay_s = self._hedging.delay_s
        if delay_s is not None and not self._is_ended:
            self._set_timer(self._asked_s + delay_s, self._late)

    def end(self) -> None:
        """Gives up requests under way: the call is answered, or its client has gone."""
        if self._is_ended:
            return
        self._is_ended = True
        self._router.waiting.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
        for give_up in self._running.values():
            give_up()

    def _ask_next(self) -> bool:
        """Sends the request to a job that has not had it; False if none is left."""
        address = self._router.idlest(self.name, self._tried)
        if address is None:
            return False
        self._tried.add(address)
        done = partial(self._done, address)
        self._running[address] = self._router.send(address, self._call, done)
        return True

    def _late(self) -> None:
        if self._is_ended or not self._router.idlest(self.name, self._tried):
            return
        if self._hedging is not None and self._hedging.take():
            self._ask_next()
            return
        # Others were late at the same time, and used the budget up. Where a job hangs,
        # this one must not wait until its deadline: it asks again, the later the more
        # rarely.
        now_s = self._now()
        late_s = max(now_s - self._asked_s, _LEAST_TIMEOUT_S)
        self._set_timer(now_s + late_s, self._late)

    def _done(self, address: str, outcome: Outcome) -> None:
        del self._running[address]
        if self._is_ended:
            return
        if isinstance(outcome, ServingError):
            if outcome.code not in _ELSEWHERE:
                self._fail(outcome)
            elif not self._running and not self._ask_next():
                self._wait(outcome)
            return
        if self._hedging is not None:
            self._hedging.note_latency(self._now() - self._asked_s)
        self.end()
        self._call.reply(outcome)

    def _wait(self, said: ServingError | None) -> None:
        """Asks all again in a while, or when there are other routes; or gives up."""
        wait_s, error = self._router.outlook(self.name, said)
        left_s = self._begun_s + wait_s - self._now()
        if left_s <= 0:
            self._fail(error)
            return
        self._router.waiting[self] = None
        until_s = self._now() + min(left_s, _AGAIN_S)
        self._set_timer(until_s, self.ask_all)

    def _fail(self, error: ServingError) -> None:
        self.end()
        self._call.fail(error)

    def _set_timer(self, when_s: float, fn: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(when_s, fn)
