"""Chooses the rule that would have served the recent arrivals best.

The candidates are simulated on the live table, on a thread beside the model. What a rule
then really makes of its arrivals is compared with what was simulated of the same ones; a
rule that falls behind that gives way to greedy.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from tfs.core.executor import Executor
from tfs.runtime.guest.layered.rules import GREEDY, Rule
from tfs.runtime.guest.layered.simulation import OF_RATE, Arrival, best_rule, simulate
from tfs.runtime.guest.layered.stage_times import StageTimes

_NUM_ARRIVALS: Final = 1500  # that a choice looks back at
_LEAST_ARRIVALS: Final = 200  # fewer say little
_REVIEWED: Final = 200  # requests that are compared with the simulation
_OF_LOAD: Final = 500  # arrivals whose rate is the load: it is known to 5 % then
_CHOOSE_EVERY_S: Final = 60.0
_CHOOSE_AGAIN_S: Final = 15.0  # at the earliest, when the load has changed
_OTHER_LOAD: Final = 0.2  # a load that differs by so much calls for another choice
_WORSE: Final = 1.05  # a rule that takes so much longer than simulated gives way
_REST_S: Final = 0.01

_KINDS: Final = ("greedy", "lbci", "look-ahead")


@dataclass(frozen=True, slots=True)
class AutoStatus:
    """Which rule runs, and what it was worth. Immutable.

    Attributes:
        rule: Its name.
        gain: By what share the mean latency was lower than greedy's by simulation, over
            the requests that were reviewed last; 0 before the first.
        num_joined: Requests that joined a running batch so far.

    """

    rule: str
    gain: float
    num_joined: int

    @property
    def as_word(self) -> int:
        """Rule and gain as one number, for memory that is shared."""
        kind = next(i for i, name in enumerate(_KINDS) if self.rule.startswith(name))
        return kind + (round(1000 * max(-9.0, min(self.gain, 1.0))) << 8)

    @classmethod
    def of_words(cls, word: int, num_joined: int) -> AutoStatus:
        """Returns what ``as_word`` has left of it; whatever the words are."""
        kind = _KINDS[(word & 0xFF) % len(_KINDS)]
        return cls(kind, (word >> 8) / 1000, max(num_joined, 0))


class Auto:
    """The rule of a model that is being served. Confined to the model's thread.

    Args:
        times: The live table.
        executor: Simulates, beside the model; with one that does so at once, the caller
            waits for it.
        rest: Called between portions of half a millisecond of that.

    Attributes:
        rule: The rule of the next run.
        gain: See :class:`AutoStatus`.

    """

    def __init__(
        self,
        times: StageTimes,
        executor: Executor,
        rest: Callable[[], None] = lambda: time.sleep(_REST_S),
    ) -> None:
        self.rule: Rule = GREEDY
        self.gain = 0.0
        self._times = times
        self._executor = executor
        self._rest = rest
        self._arrivals: deque[Arrival] = deque(maxlen=_NUM_ARRIVALS)
        self._chosen_s = -math.inf
        self._chosen_load = 0.0
        self._is_busy = False
        self._is_closed = False
        # What is to be reviewed: the requests of a time that began with an empty queue.
        self._reviewed: list[tuple[Arrival, float]] | None = None

    def note_arrival(self, at_s: float, num_rows: int) -> None:
        """Notes a request that came."""
        self._arrivals.append(Arrival(at_s, num_rows))

    def note_ended(self, arrived_s: float, num_rows: int, now_s: float) -> None:
        """Notes a request that was answered."""
        reviewed = self._reviewed  # who simulates may end it
        if reviewed is not None:
            reviewed.append((Arrival(arrived_s, num_rows), now_s - arrived_s))

    def rate(self, now_s: float, num: int = OF_RATE) -> float:
        """Returns how many rows a second came with the last ``num`` arrivals."""
        last = list(islice(reversed(self._arrivals), num))
        if len(last) < 2:
            return 0.0
        return sum(each.num_rows for each in last) / max(now_s - last[-1].at_s, 1e-9)

    def begin_run(self, now_s: float, *, was_idle: bool) -> None:
        """Looks before a run whether it is time to choose or to review.

        Args:
            now_s: The time.
            was_idle: Whether nothing ran and nobody waited before.

        """
        if self._is_busy or not self._times.are_known:
            return
        reviewed = self._reviewed
        if reviewed is None:
            self._reviewed = [] if was_idle else None
        elif len(reviewed) >= _REVIEWED and was_idle:
            self._reviewed = None
            self._start(lambda times: self._review(times, reviewed))
            return
        if self._is_due(now_s):
            arrivals, present = list(self._arrivals), self.rule
            self._start(lambda times: self._choose(times, arrivals, present))

    def close(self) -> None:
        """Ends what is being simulated."""
        self._is_closed = True

    def _is_due(self, now_s: float) -> bool:
        """Whether there is reason to choose again."""
        since_s = now_s - self._chosen_s
        if len(self._arrivals) < _LEAST_ARRIVALS or since_s < _CHOOSE_AGAIN_S:
            return False
        load, known = self.rate(now_s, _OF_LOAD), self._chosen_load
        if abs(load - known) <= _OTHER_LOAD * known and since_s < _CHOOSE_EVERY_S:
            return False
        self._chosen_s, self._chosen_load = now_s, load
        return True

    def _start(self, work: Callable[[StageTimes], None]) -> None:
        """Has something simulated beside the model, on a copy of the table."""
        times = self._times.frozen()

        def run() -> None:
            try:
                work(times)
            except _Closed:
                pass
            finally:
                self._is_busy = False

        self._is_busy = True
        try:
            self._executor.submit(run)
        except RuntimeError:  # the interpreter is ending
            self._is_busy = False

    # -- beside the model ----------------------------------------------------------------

    def _pace(self) -> None:
        """Rests, because who simulates has the interpreter's lock, which the model needs.

        Without it a choice of a second would hold up every operator of the model.
        """
        if self._is_closed:
            raise _Closed
        self._rest()

    def _choose(
        self, times: StageTimes, arrivals: Sequence[Arrival], present: Rule
    ) -> None:
        self.rule = best_rule(times, arrivals, present, self._pace)
        if self.rule != present:
            self._reviewed = None  # of two rules nothing could be said

    def _review(self, times: StageTimes, reviewed: list[tuple[Arrival, float]]) -> None:
        reviewed = sorted(reviewed, key=lambda each: each[0].at_s)
        arrivals = [arrival for arrival, _ in reviewed]
        realised_s = math.fsum(took_s for _, took_s in reviewed) / len(reviewed)

        def simulated_s(rule: Rule) -> float:
            return simulate(times, arrivals, rule, self._pace).mean_s

        self.gain = 1.0 - realised_s / simulated_s(GREEDY)
        if self.rule != GREEDY and realised_s > _WORSE * simulated_s(self.rule):
            self.rule = GREEDY


class _Closed(Exception):
    """Nobody waits for the choice any more."""
