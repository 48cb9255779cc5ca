"""The server process: starts everything in order, waits for a signal, drains.

It starts in this order: loop, transports (the ports are open at once, and health says
NOT_SERVING), manager and source, and then torch, which takes longest (where a fleet is
awaited, once it has come). It ends in this order: health says NOT_SERVING, transports drain, source and manager unload,
interpreters, loop.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from types import NoneType
from typing import Final

from tfs.core.clock import Clock, MonotonicClock
from tfs.core.errors import Cancelled, InvalidArgument, is_out_of_threads
from tfs.core.event_bus import EventAndTime
from tfs.core.servable_id import ServableId
from tfs.core.servable_state import ManagerState, ServableState
from tfs.core.system.limits import thread_limits
from tfs.runtime.process.zygote_process import ZygoteProcess
from tfs.server.config.config_file import (
    ConfigFileWatch,
    look_at_config_file,
    read_config_file,
)
from tfs.server.config.running_config import Origin
from tfs.server.config.server_config import (
    ServerConfig,
    parse_config_text,
    read_config,
    read_config_text,
    single_model,
)
from tfs.server.config.waiting import ConfigOutcome
from tfs.server.core import log_outcome
from tfs.server.fleet_source import awaits_fleet, read_told
from tfs.server.model_server import ModelServer
from tfs.server.options import ServerOptions, SourceKind
from tfs.server.system.process_settings import freeze_imported, hand_over_soon
from tfs.server.system.signal_inbox import LOOK, SignalInbox

log = logging.getLogger(__name__)

Say = Callable[[str], None]
"""Prints one line for the operator."""

FORCED_EXIT: Final = 130
_CLOSE_GRACE_S: Final = 2.0  # for unloading, if draining has used up all of its time
_CLOSE_S: Final = 5.0  # for unloading, if all requests were answered
_ONE_WISH_S: Final = 0.05  # signals that come this close together count as one
_ENDING: Final = (signal.SIGTERM, signal.SIGINT)


def run_server(
    options: ServerOptions,
    say: Say,
    inbox: SignalInbox,
    zygote: ZygoteProcess | None = None,
) -> int:
    """Serves until SIGTERM or SIGINT; returns the exit code.

    SIGHUP makes it look at its config file and base paths now, unless it was started
    with SIGHUP ignored (nohup). A second SIGTERM or SIGINT ends the process at once.

    Args:
        options: What to serve, and how.
        say: Prints lines for the operator.
        inbox: Receives SIGHUP, unless that is ignored, since before the config was
            read, so that a SIGHUP does not end a server that is starting. Owned by the
            caller.
        zygote: One that runs already. Owned by the caller.

    Returns:
        0 after a complete drain, 1 if something was still running at its deadline.

    Raises:
        ServingError: The config is wrong or a port is taken; nothing was served.

    """
    hand_over_soon()
    text, config = first_config(options)
    clock = MonotonicClock()
    server = ModelServer(options, clock, zygote=zygote)
    freeze_imported()  # a collection would stop other threads, so it comes before them
    announcer = Announcer(say)
    subscription = server.bus.subscribe(announcer.take)
    server.core.on_change(
        lambda: announcer.take_problems(server.core.sources.source.problems())
    )
    watch: ConfigFileWatch | None = None
    inbox.hear(*_ENDING)
    try:
        server.call_when_claimed(inbox.notify)
        addresses = server.start(config)
        for address in addresses:
            say(f"tfs: listening on {address}")
        if options.model_repository:
            say(f"tfs: watching {options.model_repository} for models")
        for settings in config.models.values():
            say(f"tfs: watching {settings.name} in {settings.base_path}")
        if options.model_config_file:
            watch = _watch_config(options, text, server, clock)
            watch.start()
        if not awaits_fleet(options):
            server.prepare()  # else it answers the fleet's first call before that
        while (name := inbox.receive()) in ("", LOOK.name):
            if not name:
                server.prepare()
                continue
            say(f"tfs: {name}: looking at the config file and base paths")
            if watch is not None:
                watch.look_soon()
            server.core.sources.source.look_soon()
        inbox.drop_repeats(_ONE_WISH_S)
    except BaseException as error:
        try:
            server.close(clock.now() + options.drain_timeout_s)
        except RuntimeError:  # some part was never started
            if not is_out_of_threads(error):
                raise
        raise
    server.call_when_claimed(lambda: None)  # "" says from now on that it has drained
    server.leave()  # whoever reads the line finds it not ready
    say(f"tfs: {name}: draining; again to end at once")
    timeout_s = options.drain_wait_s + options.drain_timeout_s
    code = _drain(server, watch, clock, timeout_s, inbox)
    subscription.close()
    say("tfs: stopped")
    return code


def first_config(options: ServerOptions) -> tuple[str, ServerConfig]:
    """Returns the config to start with, and the file's text if it came from one.

    Raises:
        InvalidArgument: The file has a syntax error or a bad value.
        FailedPrecondition: The file cannot be read, or is no regular one.
        DataLoss: What a fleet said last is damaged.

    """
    path = options.model_config_file
    if path:
        with contextlib.suppress(OSError):  # an error is reported when the file is read
            look_at_config_file(path)
        text = read_config_file(path)
        return text, read_config_text(text, path)
    if options.source is SourceKind.RPC:
        return "", read_config(read_told(options.state_dir).config)
    repository, base_path = options.model_repository, options.model_base_path
    if repository:
        _require_absolute("--model_repository", repository)
        # The models come with the first look at the directory.
        return "", read_config_text("model_config_list {}", repository)
    _require_absolute("--model_base_path", base_path)
    return "", single_model(options.model_name, base_path)


def _require_absolute(flag: str, path: str) -> None:
    if not path.startswith("/") and "://" not in path:
        raise InvalidArgument(
            f"{flag} must be an absolute path or a URL: {path}; here that is "
            f"{os.path.abspath(path)}"
        )


def _watch_config(
    options: ServerOptions, text: str, server: ModelServer, clock: Clock
) -> ConfigFileWatch:
    path = options.model_config_file

    def apply(edited: str) -> None:
        def done(outcome: ConfigOutcome) -> None:
            if outcome.error is None:
                return
            if outcome.is_applied:
                log_outcome(outcome.error)
                return
            log.error(
                "event=config_file_refused path=%s running_config=kept problem=%s",
                path,
                outcome.error,
            )

        server.core.config.apply(
            lambda: parse_config_text(edited, path),
            Origin.CONFIG_FILE,
            f"edit of {path}",
            done,
            path=path,
        )

    def note_problem(problem: str) -> None:
        server.core.config.file_problem = problem

    return ConfigFileWatch(
        path,
        text,
        apply,
        clock,
        options.model_config_file_poll_wait_s,
        note_problem,
    )


class Announcer:
    """Tells the operator what loads, what answers, and what fails and why.

    A state is published again whenever more is known about a version; only changes that
    matter to its clients are announced. Each method is confined to whoever calls it.
    """

    def __init__(self, say: Say) -> None:
        self._say = say
        self._told: dict[ServableId, str] = {}
        self._begun_s: dict[ServableId, float] = {}
        self._leaving: set[ServableId] = set()
        self._problems: Mapping[str, Sequence[str]] = {}

    def take(self, event: EventAndTime[ServableState]) -> None:
        """Takes a state from the bus."""
        state, who = event.event, event.event.id.slashed
        if state.manager_state is ManagerState.AVAILABLE:
            self._take_available(state, event.time_s)
            return
        self._told.pop(state.id, None)
        if state.manager_state is ManagerState.LOADING:
            if state.id not in self._begun_s:
                self._begun_s[state.id] = event.time_s
                self._say(f"tfs: loading {who}")
        elif state.manager_state is ManagerState.UNLOADING:
            self._leaving.add(state.id)
        elif state.manager_state is ManagerState.END:
            self._begun_s.pop(state.id, None)
            was_loaded = state.id in self._leaving
            self._leaving.discard(state.id)
            is_failure = not isinstance(state.error, Cancelled | NoneType)
            if is_failure and not was_loaded:
                self._say(f"tfs: {who} cannot be loaded: {state.error}")

    def take_problems(self, problems: Mapping[str, Sequence[str]]) -> None:
        """Takes what is wrong with base paths, by model."""
        for name, told in problems.items():
            if told and told != self._problems.get(name):
                self._say(f"tfs: {name}: {'; '.join(told)}")
        self._problems = dict(problems)

    def _take_available(self, state: ServableState, now_s: float) -> None:
        begun_s = self._begun_s.pop(state.id, None)
        after = "" if begun_s is None else f" after {max(0.0, now_s - begun_s):.1f} s"
        what = "is available" if state.error is None else f"fails: {state.error}"
        told, self._told[state.id] = self._told.get(state.id), what
        if told == what:
            return
        if told is None and state.error is not None:
            what = f"is available{after}, but {what}"
        elif state.error is None:
            what += after
        self._say(f"tfs: {state.id.slashed} {what}")


def _drain(
    server: ModelServer,
    watch: ConfigFileWatch | None,
    clock: Clock,
    timeout_s: float,
    inbox: SignalInbox,
) -> int:
    """Drains on a thread of its own, while this one listens for a second signal."""
    outcome: list[bool] = []

    def drain() -> None:
        try:
            if watch is not None:
                watch.close()
            deadline_s = clock.now() + timeout_s
            outcome.append(server.drain(deadline_s))
            # Draining and closing share one deadline, so that a hanging call uses up
            # its time only once; unloading then gets a little more. If all requests
            # were answered, nobody waits for calls that still run, and a hanging one
            # delays the end only a little.
            now_s = clock.now()
            deadline_s = min(deadline_s, now_s + _CLOSE_S)
            server.close(max(deadline_s, now_s + _CLOSE_GRACE_S))
        except Exception:
            log.exception("event=drain_failed")
        finally:
            inbox.notify()

    thread = threading.Thread(target=drain, name="drain", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # the system allows no more threads: no second signal is heard
        log.warning("event=drain_without_thread limits=%r", thread_limits())
        drain()
        return 0 if outcome == [True] else 1
    while (name := inbox.receive()) == LOOK.name:
        pass  # everything is unloaded anyway
    if name:
        log.warning("event=forced_end signal=%s", name)
        logging.shutdown()
        os._exit(FORCED_EXIT)
    thread.join()
    return 0 if outcome == [True] else 1
