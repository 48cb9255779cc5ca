"""The requests to a worker besides calls, and the threads that serve them."""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
import signal
import socket
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch

from tfs.core.errors import ServingError, serving_error
from tfs.core.loop.pacing import Traffic, follow
from tfs.core.system.thread_priority import give_way
from tfs.runtime.guest import control_channel
from tfs.runtime.guest.control_channel import tell
from tfs.runtime.guest.own_process import seed_random
from tfs.runtime.guest.slab import HOST_TRAFFIC, Slab
from tfs.runtime.guest.worker.memory_limit import MemoryLimit
from tfs.runtime.guest.worker.worker_model import WorkerModel

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
    """Sets the process's random numbers."""
    seed = request["seed"]
    assert seed is None or isinstance(seed, int)
    seed_random(seed)
    return {"code": 0}


def _give_way() -> None:
    """Gives this thread the lowest priority, for good."""
    give_way()
    torch.set_num_threads(1)
