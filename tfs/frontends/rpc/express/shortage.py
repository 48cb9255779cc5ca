"""Decides which clients go on while memory is short.

Clients wait for two things: for the receive budget, to finish an upload; and for
readers, if there is no room for further answers. They get both in turns, so that
many that keep what they got do not keep others out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf
from typing import Final

from tfs.frontends.rpc.express.backlog import CUT_OFF_AT_ONCE
from tfs.frontends.rpc.express.client_uploads import ClientUploads
from tfs.frontends.rpc.express.express_call import ExpressCall
from tfs.frontends.rpc.express.feeding import Feeding
from tfs.frontends.rpc.express.shared_state import SharedState

_MIN_GRANT_BYTES: Final = 16_384
_SCARCITY_INTERVAL_S: Final = 0.5  # a trim takes milliseconds
_FEW_STARVED: Final = 2  # with more, messages take no more memory than has arrived
_PROBED_AT_ONCE: Final = 8  # waiting clients that are probed at the same time
# Interrupted uploads may take this fraction (1/4) of the limit, and those of clients that
# are not slow half of that.
_HELD_SHARE: Final = 4
_RESPONSIVE_S: Final = 2.0  # a client that made use of a probe is trusted this long


class Shortage:
    """The turns of clients that wait for memory. Confined to the serving loop.

    Args:
        shared: The state of the transport, with the clients that are starved or wait.
        on_scarcity: Called while requests wait for memory: at once, and then about once
            a second.

    """

    def __init__(self, shared: SharedState, on_scarcity: Callable[[], None]) -> None:
        self._shared = shared
        self._loop = shared.loop
        self._now = shared.loop.clock.now
        self._on_scarcity = on_scarcity
        self._scarce_at_s = -inf  # when on_scarcity was last called
        self._num_turns = 0  # turns given to starved clients
        self._had_turn: ClientUploads | None = None  # favoured last
        self._feeding = Feeding(shared)

    def feed_starved(self) -> None:
        """Grants what the budget has left, and its reserve to one client at a time."""
        shared = self._shared
        favoured = shared.favoured
        is_over = False
        if favoured is not None:
            is_stalled = favoured.is_stalled
            is_over = (is_stalled or self._has_had_turn(favoured)) and any(
                each.wants_favour for each in shared.starved if each is not favoured
            )
            if is_over and is_stalled:
                favoured.give_up()
        if favoured is not None and (
            is_over
            or not favoured.keeps_favour
            or favoured.num_finished != shared.num_favoured_uploads
        ):
            # It has finished what it was favoured for, or takes long: the others first.
            favoured.was_slow = is_over
            favoured.favour(False)
            if favoured in shared.starved or favoured.is_held_back:
                shared.starved.pop(favoured, None)
                shared.starved[favoured] = None
            favoured = shared.favoured = None
        if favoured is None and self._may_favour:
            favoured = self._next_favoured()
            if favoured is not None:
                favoured.favour(True)
                shared.favoured = favoured
                shared.num_favoured_uploads = favoured.num_finished
        self._look_at_scarcity()
        if shared.budget.free_to_favoured_bytes >= _MIN_GRANT_BYTES:
            self._feeding.feed()

    def look_at_waiting(self) -> None:
        """Begins requests that waited for unread answers in the next round, if possible."""
        shared = self._shared
        shared.room.forget_ended()
        if shared.waiting:
            self._look_at_scarcity()
        if any(each.may_begin for each in shared.waiting):
            self._loop.post(self._begin_waiting)

    def relieve(self) -> None:
        """Closes connections that read too slowly, until unread answers fit again."""
        shared = self._shared
        slow = shared.backlog.excess(self._now(), shared.is_contested)
        for reader in slow:
            reader.cut_off_reader()
        if len(slow) == CUT_OFF_AT_ONCE:
            self._loop.post(self.relieve)  # the others in the next round

    def sweep(self, now_s: float) -> None:
        """Updates what depends on time; called whenever timeouts are checked."""
        shared = self._shared
        shared.is_contested = (
            (bool(shared.waiting) and shared.headroom.is_tight)
            or any(each.is_held_up for each in shared.waiting)
            or any(each.wants_favour for each in shared.starved)
        )
        self._look_at_scarcity()
        self._ask_newcomer(now_s)
        self._feeding.forget_fed()
        shared.headroom.look(
            shared.is_contested,
            shared.counters.timeouts,
            shared.budget.uploaded_bytes,
        )
        self.relieve()

    @property
    def _may_favour(self) -> bool:
        """Whether the reserve may be lent to anybody.

        Requests that arrived with its help are in progress afterwards. It is not lent
        while these take as much as is open to all. Otherwise clients of a slow model,
        or with requests that take long to read, would fill all of it.
        """
        shared = self._shared
        shared.uploaded = [each for each in shared.uploaded if _is_worked_on(each[0]())]
        in_work_bytes = sum(num_bytes for _, num_bytes in shared.uploaded)
        return in_work_bytes < shared.headroom.open_bytes

    def _has_had_turn(self, favoured: ClientUploads) -> bool:
        """Tells whether the upload in turn may be interrupted, and has had its turn.

        It keeps what was sent of it. So not much may be held in this way, or there would
        be no room for a long message, and in the end for none.
        """
        budget = self._shared.budget
        held_bytes = budget.used_bytes - self._shared.headroom.open_bytes
        most_bytes = budget.limit_bytes // _HELD_SHARE
        return held_bytes <= most_bytes and favoured.has_had_turn(
            may_be_long=2 * held_bytes > most_bytes
        )

    def _begin_waiting(self) -> None:
        """Begins requests that waited for unread answers, one of each connection."""
        waiting = list(self._shared.waiting)
        self._num_turns += 1
        for each in waiting if self._num_turns & 1 else reversed(waiting):
            each.begin()

    def _next_favoured(self) -> ClientUploads | None:
        """Returns the client that may finish an upload next.

        It is, in turn, the one that has waited longest, the one that came last and was
        not favoured yet, and one that finished an upload before. The last two go to those
        that were slow only if there are no others. Many clients that came
        earlier and keep what they got must not keep the others out. So a few waiting
        clients at a time are granted next to nothing, and one that makes use of it is
        next.
        """
        if not self._feeding.may_ask():
            return None
        wanting = [each for each in self._shared.starved if each.wants_favour]
        wanting = [each for each in wanting if each.can_be_answered] or wanting
        if len(wanting) < 2:
            return wanting[0] if wanting else None
        now_s = self._now()
        budget = self._shared.budget
        may_probe = 2 * budget.free_bytes >= budget.limit_bytes
        lately_s = now_s - _RESPONSIVE_S if may_probe else -inf
        ready: list[ClientUploads] = []
        num_probed = 0
        newest = _newcomer(reversed(wanting)) or wanting[-1]
        wanting.remove(newest)
        wanting.sort(key=lambda each: each.num_finished == 0)
        for each in (newest, *wanting):
            if not each.is_responsive:
                num_probed += 1
            elif each.probed_s >= lately_s:
                ready.append(each)
            elif num_probed < _PROBED_AT_ONCE:
                each.probe()
                num_probed += 1
        if not ready:
            return None
        self._num_turns += 1
        turn = self._num_turns % 3
        if turn == 0:  # the longest waiting one that has finished uploads
            order = [each for each in ready if each is not newest] or ready
        elif turn == 1:
            order = ready
        else:
            order = [each for each in self._shared.starved if each in ready]
        if turn < 2:
            order = [each for each in order if not each.was_slow] or order
        others = (each for each in order if each is not self._had_turn)
        self._had_turn = next(others, order[0])
        return self._had_turn

    def _ask_newcomer(self, now_s: float) -> None:
        """Grants the latest client a little, to see whether it goes on."""
        newcomer = _newcomer(
            each for each in reversed(self._shared.starved) if each.wants_favour
        )
        if (
            newcomer is not None
            and newcomer is not self._shared.favoured
            and newcomer.is_responsive
            and newcomer.probed_s < now_s - _RESPONSIVE_S / 2
        ):
            newcomer.probe()

    def _look_at_scarcity(self) -> None:
        """Reports scarcity while requests wait for memory."""
        shared = self._shared
        is_scarce = shared.buffers.is_scarce = len(shared.starved) > _FEW_STARVED
        if is_scarce or shared.waiting or shared.is_contested:
            now_s = self._now()
            if now_s - self._scarce_at_s >= _SCARCITY_INTERVAL_S:
                self._scarce_at_s = now_s
                self._on_scarcity()


def _is_worked_on(call: ExpressCall | None) -> bool:
    """Tells whether a request still holds its message, even if it was cut off."""
    return call is not None and (not call.is_finished or call.cancel.error is not None)


def _newcomer(latest_first: Iterable[ClientUploads]) -> ClientUploads | None:
    """Returns the latest client among those that were not favoured yet."""
    return next((each for each in latest_first if not each.had_favour), None)
