"""The servers of a fleet: what they last said, and what they were told.

Each is asked for its models and told the whole list of them (AdminService.Aspire), which is
idempotent, like aspired versions. One call of each kind is under way to a server at a time.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Protocol

from tfs.core.clock import Clock
from tfs.core.errors import ServingError
from tfs.core.executor import Executor
from tfs.hosted.reports import NOTHING, Configs, JobReport
from tfs.proto.tfs.v1 import admin_service_pb2

log = logging.getLogger(__name__)

_MOST_NAMES: Final = 20  # in a line of the log
# A server with so many models rests after a call that took so long, for so many times as
# long; with fewer, long calls are the machine's doing, not the server's.
_MANY: Final = 1000
_LONG_ASK_S, _ASK_REST = 0.05, 9
_LONG_TELL_S, _TELL_REST = 0.2, 3
_LONGEST_ASK_REST_S: Final = 0.8  # less than between two looks where nothing happens


class JobClient(Protocol):
    """AdminService of serving jobs. Thread-safe; each call blocks for seconds at most.

    It raises a ``ServingError`` if the server does not answer, or refuses.
    """

    def list_models(self, address: str, before: JobReport) -> JobReport:
        """Asks a server what changed of its models since ``before``, its last report."""
        ...

    def aspire(self, address: str, request: admin_service_pb2.AspireRequest) -> None:
        """Tells a server what to serve; returns when it is on that server's disk."""
        ...

    def keep(self, addresses: Collection[str]) -> None:
        """Closes all other connections; calls under way there go on to their end."""
        ...


@dataclass(frozen=True, slots=True)
class Told:
    """What a server was told. Immutable."""

    started_s: float  # when the process started that was told
    epoch: int  # by whom
    configs: Configs


@dataclass(slots=True)
class Server:
    """What is known of a server. Written by one call of each kind to it at a time."""

    silent_s: float = 0.0  # for so long it was asked and did not answer
    heard: JobReport = NOTHING
    read: JobReport = NOTHING  # the last answer, which may be a part
    told: Told | None = None  # and took in
    problem: str = ""
    # When it may be asked, or told, again: it rests, to serve; infinite during a call.
    ask_at_s: float = -math.inf
    tell_at_s: float = -math.inf


class Servers:
    """The servers. For the thread that looks; calls run on the executor's threads.

    Args:
        client: Calls the servers.
        clock: Times them.
        executor: Runs the calls. One that hangs holds up no other server while there are
            threads left.
        on_news: Called on a thread of the executor when a server says something new, was
            told something, or refused it.
        most_s: No more than so many seconds between two questions count as silence: this
            machine was asleep, or nobody asked.

    """

    def __init__(
        self,
        client: JobClient,
        clock: Clock,
        executor: Executor,
        on_news: Callable[[], None],
        most_s: float,
    ) -> None:
        self._client = client
        self._clock = clock
        self._executor = executor
        self._on_news = on_news
        self._most_s = most_s
        self._servers: dict[str, Server] = {}
        self._asked_s = clock.now()

    def ask(self, addresses: Iterable[str]) -> None:
        """Asks these servers for their models; forgets all others.

        One that has not answered the last question yet, or rests, is not asked again.
        """
        now_s, before_s = self._clock.now(), self._asked_s
        self._asked_s = now_s
        for server in self._servers.values():
            server.silent_s += min(now_s - before_s, self._most_s)
        wanted = dict.fromkeys(addresses)
        for address in self._servers.keys() - wanted.keys():
            del self._servers[address]
        self._client.keep(wanted)
        for address in wanted:
            server = self._servers.setdefault(address, Server())
            if now_s >= server.ask_at_s:
                server.ask_at_s = math.inf
                self._executor.submit(partial(self._ask, address, server))

    def heard(self, down_after_s: float) -> dict[str, JobReport]:
        """Returns what each server said; nothing of those silent for so long."""
        return {
            address: NOTHING
            if each.heard.is_silent and each.silent_s >= down_after_s
            else each.heard
            for address, each in self._servers.items()
        }

    def tell(
        self,
        address: str,
        wanted: Told,
        request: Callable[[bool], admin_service_pb2.AspireRequest],
        may_tell: Callable[[], bool],
    ) -> None:
        """Tells a server what it is to serve, unless that is what it was told last.

        One that is being told something, or rests, is told by a later call. ``request``
        returns the message, given whether it is the first to this server; ``may_tell``
        whether it may still be sent when its turn comes.
        """
        server = self._servers[address]
        if self._clock.now() < server.tell_at_s or server.told == wanted:
            return
        server.tell_at_s = math.inf
        message = request(server.told is None)
        self._executor.submit(
            partial(self._tell, address, server, wanted, message, may_tell)
        )

    def known(self, addresses: Iterable[str]) -> Mapping[str, Server]:
        """Returns those of these servers that were asked."""
        return {at: self._servers[at] for at in addresses if at in self._servers}

    def _ask(self, address: str, server: Server) -> None:
        if self._is_gone(address, server):  # while this waited for a thread
            return
        told, before, begun_s = server.told, server.heard, self._clock.now()
        rest_s = 0.0
        try:
            report = server.read = self._client.list_models(address, server.read)
            while report.is_part:  # each counts, also where the next is not answered
                report = server.read = self._client.list_models(address, report)
            server.silent_s, ended_s = 0.0, self._clock.now()
            configs: Configs = {}
            if told is not None and told.started_s == report.started_s:
                configs = before.told if report.is_behind else told.configs
            if before.is_silent:
                server.problem = ""
            server.heard = replace(report, at_s=ended_s, told=configs)
            took_s = ended_s - begun_s
            if len(report.models) > _MANY and took_s > _LONG_ASK_S:
                rest_s = min(_ASK_REST * took_s, _LONGEST_ASK_REST_S)
        except ServingError as error:
            server.heard = replace(before, is_silent=True)
            self._note_problem(address, server, error)
        finally:
            server.ask_at_s = self._clock.now() + rest_s
        if before != server.heard:
            self._on_news()

    def _tell(
        self,
        address: str,
        server: Server,
        wanted: Told,
        message: admin_service_pb2.AspireRequest,
        may_tell: Callable[[], bool],
    ) -> None:
        begun_s, rest_s = self._clock.now(), 0.0
        if self._is_gone(address, server) or not may_tell():
            server.tell_at_s = begun_s
            return
        try:
            self._client.aspire(address, message)
        except ServingError as error:
            self._note_problem(address, server, error)  # the next look tries again
        else:
            num_models, took_s = len(wanted.configs), self._clock.now() - begun_s
            if num_models > _MANY and took_s > _LONG_TELL_S:
                rest_s = _TELL_REST * took_s
            before = server.told.configs if server.told else {}
            server.told, server.problem = wanted, ""
            changed = wanted.configs.items() ^ before.items()
            names = ",".join(sorted({name for name, _ in changed})[:_MOST_NAMES])
            told = address, num_models, names
            log.info("event=job_told address=%s models=%d changed=%s", *told)
        finally:
            server.tell_at_s = self._clock.now() + rest_s
        if server.told is wanted:
            self._on_news()

    def _is_gone(self, address: str, server: Server) -> bool:
        return self._servers.get(address) is not server

    def _note_problem(self, address: str, server: Server, error: ServingError) -> None:
        if server.problem != str(error):
            # One that was never heard is probably starting.
            level = logging.INFO if server.heard == NOTHING else logging.WARNING
            log.log(level, "event=job_problem address=%s problem=%s", address, error)
        server.problem = str(error)
