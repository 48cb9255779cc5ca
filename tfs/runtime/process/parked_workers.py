"""Workers whose version was unloaded, kept for the next version of the same code.

A swap costs a fork and the end of a process. Each takes milliseconds in the kernel,
during which nothing else runs on that core. If the next version of a servable runs the
same code with other weights, the worker of the version before will do: it drops its
model and checks whether it is as it was before it had one
(``guest/traces/clean_slate.py``). Only if it is, it waits here. If it finds anything
changed, it ends like any other worker.

    waiting   until another one has cleaned up            -> cleaning, ended
    cleaning  drops its model, and checks itself          -> parked, ended
    parked    has no model, waits for the next version    -> taken, ended
    taken     belongs to an interpreter, like any worker
    ended     by death or age, or because its servable is gone; at the lowest priority

"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import Final

from tfs.core.serving_loop import ServingLoop, Timer
from tfs.runtime.guest.model_source import ModelSource
from tfs.runtime.process.load_sign import LoadSign
from tfs.runtime.process.process_options import ProcessOptions
from tfs.runtime.process.spare_worker import has_ended
from tfs.runtime.process.worker_conversation import WorkerConversation, WorkerReply
from tfs.runtime.process.worker_link import WorkerLink

log = logging.getLogger(__name__)

_MOST_PARKED: Final = 4  # more only if one version has more workers
_MOST_USES: Final = 64  # of one process; each use may leave a little behind unnoticed
_CLEANING_S: Final = 5.0
_AGE_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class SameCode:
    """What versions must have in common to follow each other in a worker. Immutable.

    Attributes:
        servable: The name.
        code_digest: Digest of everything in a version except the bytes of its tensors.
        platform: What loads it.
        device: The device that the model computes on.

    """

    servable: str
    code_digest: str
    platform: str
    device: str


def same_code_of(source: ModelSource) -> SameCode | None:
    """Returns which versions may follow this one in its worker; None if none may."""
    if not source.code_digest or source.device != "cpu" or source.concurrency > 1:
        return None
    return SameCode(source.id.name, source.code_digest, source.platform, source.device)


@dataclass(slots=True, eq=False)
class _Parked:
    code: SameCode
    link: WorkerLink
    conversation: WorkerConversation
    model_id: int
    until_s: float = math.inf
    is_asked: bool = False
    is_clean: bool = False


class ParkedWorkers:
    """Keeps a few workers, first come, first served. Loop-confined.

    Args:
        loop: Watches them; its clock says when they have waited too long.
        options: Tell whether the server has requests, for which cleaning up pauses.
        most: How many workers to keep at a time.

    """

    def __init__(
        self,
        loop: ServingLoop,
        options: ProcessOptions | None = None,
        *,
        most: int = _MOST_PARKED,
    ) -> None:
        self._loop = loop
        self._options = options or ProcessOptions()
        self._most = most
        self._parked: list[_Parked] = []
        self._timer: Timer | None = None
        self._closed = False
        self.num_reused = 0
        """How many were taken so far."""

    def expect(self, num_workers: int) -> None:
        """Makes room for all workers of a version that has so many."""
        self._most = max(self._most, num_workers)

    @property
    def pids(self) -> list[int]:
        """The processes that can be taken now."""
        return [each.link.pid for each in self._parked if each.is_clean]

    @property
    def all_pids(self) -> list[int]:
        """All processes here, also those that clean up or wait for it. Any thread."""
        return [each.link.pid for each in list(self._parked)]

    def park(self, code: SameCode, link: WorkerLink, model_id: int) -> bool:
        """Takes over a worker that answers no calls any more; False if it does not.

        Does not block: the worker drops its model and cleans up by itself. If False is
        returned, the worker is still the caller's.

        Args:
            code: Which versions may take it.
            link: The worker; nobody watches it any more.
            model_id: The model that it has loaded.

        """
        is_worn = link.num_uses >= _MOST_USES
        if self._closed or is_worn or not link.knows_itself:
            return False
        if len(self._parked) >= self._most:
            return False
        options = self._options
        sign = LoadSign(
            self._loop, link.calls.slab, options.is_answering, options.has_traffic
        )
        conversation = WorkerConversation(
            link, lambda _: None, lambda _: self._end(parked), sign
        )
        parked = _Parked(code, link, conversation, model_id)
        self._parked.append(parked)
        self._loop.watch(link.pidfd, lambda _: self._end(parked))
        self._loop.watch(link.control.fileno(), lambda _: conversation.read())
        self._clean_next()
        return True

    def take(self, code: SameCode) -> WorkerLink | None:
        """Returns a clean worker for that code; None if there is none.

        The caller owns it.
        """
        for parked in list(self._parked):
            if parked.code == code and parked.is_clean:
                if has_ended(parked.link.pidfd):
                    self._end(parked)
                    continue
                self._forget(parked)
                self.num_reused += 1
                log.info(
                    "event=worker_reused servable=%s pid=%d num_versions=%d",
                    code.servable,
                    parked.link.pid,
                    parked.link.num_uses + 1,
                )
                return parked.link
        return None

    def forget(self, servable: str) -> None:
        """Ends the workers of a servable that will have no next version."""
        for parked in list(self._parked):
            if parked.code.servable == servable:
                self._end(parked)

    def close(self) -> None:
        """Ends them all and takes no more; idempotent."""
        self._closed = True
        for parked in list(self._parked):
            self._end(parked)

    def _clean_next(self) -> None:
        """Lets the next worker clean up, one at a time.

        Several at once would keep as many cores from answering requests.
        """
        waiting = [each for each in self._parked if not each.is_asked]
        if waiting and all(each.is_clean for each in self._parked if each.is_asked):
            parked = waiting[0]
            parked.is_asked = True
            parked.until_s = self._loop.clock.now() + _CLEANING_S
            parked.conversation.send(
                "rest",
                {"model": parked.model_id},
                (),
                lambda reply: self._take_word(parked, reply),
                background=True,
            )
        self._arm()

    def _take_word(self, parked: _Parked, reply: WorkerReply | None) -> None:
        """Takes the result of a worker's check of itself."""
        if reply is None:
            return  # the worker has ended
        fields = reply.fields
        why = fields.get("changed") if reply.error() is None else fields.get("message")
        if why:
            self._refuse(parked, why)
            return
        parked.is_clean = True
        parked.until_s = self._loop.clock.now() + _AGE_S
        self._clean_next()

    def _arm(self) -> None:
        """Sets the timer for the next one that will have waited too long."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        when_s = min((each.until_s for each in self._parked), default=math.inf)
        if when_s < math.inf:
            self._timer = self._loop.call_at(when_s, self._end_old)

    def _end_old(self) -> None:
        now_s = self._loop.clock.now()
        for parked in list(self._parked):
            if parked.until_s > now_s:
                continue
            if parked.is_clean:
                self._end(parked)
            else:
                self._refuse(parked, f"it did not clean up within {_CLEANING_S:g} s")
        self._arm()

    def _refuse(self, parked: _Parked, why: object) -> None:
        """Ends a worker that no version may have."""
        log.info(
            "event=worker_not_reused servable=%s pid=%d why=%r",
            parked.code.servable,
            parked.link.pid,
            why,
        )
        self._end(parked)

    def _forget(self, parked: _Parked) -> None:
        self._parked.remove(parked)
        self._loop.unwatch(parked.link.pidfd)
        self._loop.unwatch(parked.link.control.fileno())
        # Ended before the memory that holds its sign is unmapped.
        parked.conversation.end()
        self._arm()

    def _end(self, parked: _Parked) -> None:
        if parked in self._parked:
            self._forget(parked)
            parked.link.close()
            if not self._closed:
                self._clean_next()
