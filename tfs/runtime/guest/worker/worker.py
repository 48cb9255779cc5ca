"""A worker process: some threads answer calls, others do everything else.

If it runs one call at a time, the main thread answers; it sleeps on one eventfd. A model
that batches a part of itself (``tfs.runtime.batched``) takes several calls at once,
because a part can join only calls that are under way together: then there is a thread
for each call. The control thread reads the control channel and
has versions loaded. When that channel ends, because the host closed it or is gone, the
process exits.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

import torch

from tfs.core.errors import ServingError, serving_error
from tfs.core.loop.pacing import SpinBackoff, Traffic, follow
from tfs.core.system.thread_priority import give_way
from tfs.runtime.guest import control_channel
from tfs.runtime.guest.control_channel import tell
from tfs.runtime.guest.own_process import FORKS, seed_random
from tfs.runtime.guest.side_effects import KnownFunctions
from tfs.runtime.guest.slab import HOST_TRAFFIC, REQUESTS, Slab
from tfs.runtime.guest.worker.call_slots import CallAnswerer, CallSlots, StagedCalls
from tfs.runtime.guest.worker.worker_model import MemoryLimit, WorkerModel
from tfs.runtime.guest.worker_options import WorkerOptions

if TYPE_CHECKING:
    from tfs.runtime.guest.sessions.session_guest import SessionGuest


class WorkerControl:
    """Serves requests from the control channel until that ends, and the process with it.

    Background requests are served on a thread of the lowest CPU priority. It is made
    for each, because a thread without privileges cannot raise its priority again. All
    other requests are served on the control thread.

    Args:
        control: The channel; owned from now on.
        model: Serves most of the requests.
        slab: The slab of the main thread's calls.
        limit: The limit of the process's memory.

    """

    def __init__(
        self,
        control: socket.socket,
        model: WorkerModel,
        slab: Slab,
        limit: MemoryLimit,
    ) -> None:
        self._control = control
        self._slab = slab
        self._limit = limit
        self._handlers: dict[
            object, Callable[[Mapping[str, object], list[int]], dict[str, object]]
        ] = {
            "load": model.load,
            "scale": model.scale,
            "rehearse": model.rehearse,
            "seed": _seed,
        }
        self._sessions: SessionGuest | None = None
        self._makes_way = False

    def start(self) -> None:
        """Starts the control thread."""
        follow(self._host_traffic)
        threading.Thread(target=self._run, name="worker-control", daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                message = control_channel.receive(self._control)
            except OSError:
                message = None
            if message is None:
                # This includes what the model started, because nobody else knows the
                # group.
                with contextlib.suppress(OSError):
                    os.killpg(os.getpid(), signal.SIGKILL)
                os._exit(0)
            body, fds = message
            # From the host, over a channel nobody else holds: pickle is safe here.
            request = pickle.loads(body)
            if request["background"]:
                thread = threading.Thread(
                    target=self._serve_in_background,
                    args=(request, fds),
                    name="worker-load",
                    daemon=True,
                )
                try:
                    thread.start()
                except (
                    RuntimeError
                ):  # no thread is to be had; the host must be answered
                    self._serve(request, fds)
            else:
                self._serve(request, fds)

    def _serve_in_background(
        self, request: Mapping[str, object], fds: list[int]
    ) -> None:
        self._makes_way = True
        _give_way()
        self._serve(request, fds)
        self._makes_way = False

    def _host_traffic(self) -> Traffic:
        # What is loaded on the control thread is in a hurry: it follows a crash.
        if not self._makes_way:
            return Traffic.NONE
        return Traffic(self._slab.words[HOST_TRAFFIC])

    def _serve(self, request: Mapping[str, object], fds: list[int]) -> None:
        payload, reply_fds = b"", list[int]()
        try:
            if request["op"] == "session":
                payload, reply_fds = self._session(request, fds)
                reply: dict[str, object] = {"code": 0}
            else:
                reply = self._handlers[request["op"]](request, fds)
        except ServingError as error:
            reply = {"code": int(error.code), "message": error.message}
        except BaseException as error:  # the process must answer whatever happens
            fault = serving_error(error, "an interpreter's control thread")
            reply = {"code": int(fault.code), "message": fault.message}
        finally:
            control_channel.close_all(fds)
        tell(self._control, {"id": request["id"], **reply}, payload, reply_fds)
        control_channel.close_all(reply_fds)

    def _session(
        self, request: Mapping[str, object], fds: list[int]
    ) -> tuple[bytes, list[int]]:
        if self._sessions is None:
            # Only library use needs it, and its imports.
            session_guest = importlib.import_module(
                "tfs.runtime.guest.sessions.session_guest"
            )
            self._limit.count_from_here()  # counts this thread and its heap
            self._sessions = session_guest.SessionGuest(on_map=self._limit.allow)
        body = request["body"]
        assert isinstance(body, bytes)
        return self._sessions.handle(body, fds)


def _seed(request: Mapping[str, object], _fds: list[int]) -> dict[str, object]:
    seed = request["seed"]
    assert seed is None or isinstance(seed, int)
    seed_random(seed)
    return {"code": 0}


def _give_way() -> None:
    """Gives this thread the lowest priority, for good."""
    give_way()
    torch.set_num_threads(1)


_CANNOT_GO_ON: Final = 70  # as exit status


class Worker:
    """One worker process. ``run`` is confined to the main thread.

    Args:
        options: How it spins, how many calls it runs at once, and how much memory its
            models may add.
        call_fds: Bring calls, see :class:`CallSlots`.
        control: Brings everything else.
        known: The functions that models can replace, as they were before the fork.

    """

    def __init__(
        self,
        options: WorkerOptions,
        call_fds: list[int],
        control: socket.socket,
        known: KnownFunctions,
    ) -> None:
        self._control_socket = control
        self._spin_s = options.spin_us / 1e6
        self._spin_backoff = SpinBackoff()
        self._depth = FORKS.depth
        self._is_staged = options.is_staged
        self._num_threads = 1 if options.is_staged else options.concurrency
        self._limit = MemoryLimit(options.memory_limit_bytes)
        self._model = WorkerModel(self._limit, known)
        self._slots = CallSlots(call_fds, options.concurrency)
        self._control = WorkerControl(
            control, self._model, self._slots.slab, self._limit
        )

    def run(self) -> None:
        """Answers calls until the process ends."""
        os.register_at_fork(after_in_child=self._become_copy)
        if self._num_threads > 1:
            self._start_threads()
        self._limit.count_from_here()
        self._control.start()
        if self._num_threads > 1:
            threading.Event().wait()
        self._answer_calls()

    def _start_threads(self) -> None:
        have_begun = threading.Barrier(self._num_threads + 1)
        for index in range(self._num_threads):
            threading.Thread(
                target=self._answer_or_exit,
                args=(have_begun,),
                name=f"request-{index}",
                daemon=True,
            ).start()
        have_begun.wait()

    def _answer_calls(self) -> None:
        slots = self._slots
        answerer = CallAnswerer(slots.slab, self._model, self._limit.leave_if_leaking)
        with torch.inference_mode():
            if self._is_staged:
                StagedCalls(slots, answerer).run()
            while True:
                if self._spin_s:
                    self._spin()
                for _ in range(slots.wait()):
                    slots.answer_next(answerer)

    def _answer_or_exit(self, have_begun: threading.Barrier) -> None:
        try:
            torch.zeros(1024)  # takes what a heap of its own begins with
            have_begun.wait()
            self._answer_calls()
        except BaseException as error:  # a model may have closed all descriptors
            # As on the main thread: otherwise calls would wait until they time out.
            print(f"process {os.getpid()}: {error!r}", file=sys.stderr, flush=True)
            os._exit(_CANNOT_GO_ON)

    def _spin(self) -> None:
        if not self._spin_backoff.may_look():
            return
        words, now = self._slots.slab.words, time.perf_counter
        sequence = self._slots.num_taken
        limit_s = now() + self._spin_s
        while words[REQUESTS] == sequence and now() < limit_s:
            pass
        self._spin_backoff.note(found=words[REQUESTS] != sequence)

    def _become_copy(self) -> None:
        """Runs first in a process that a model forks from this one.

        The copy must not answer calls: that is for the process that took them. It
        belongs to the worker's process group, and ends with it.
        """
        if FORKS.depth != self._depth + 1:
            return  # a copy's copy: all is closed
        self._slots.close_descriptors()
        self._control_socket.close()
