"""A worker process: answers calls on its main thread, loads on another.

The main thread sleeps on one eventfd and does nothing but calls. The control thread
reads the control channel; what it is asked to do in the background it does on a
thread of the lowest CPU priority, made for it, because a thread without privileges
cannot raise its priority again. What it did quickly when it was asked last it does in
idle time only (``brief_work.py``). When the channel ends, because the host closed it or
is gone, the process exits.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import pickle
import resource
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import torch

from tfs.core.errors import ServingError, Unavailable, serving_error
from tfs.core.process_memory import data_bytes
from tfs.core.servable import Tensors
from tfs.core.spin_backoff import SpinBackoff
from tfs.core.thread_priority import answer_later, bring, give_way
from tfs.runtime.guest import control_channel
from tfs.runtime.guest.brief_work import BriefWork
from tfs.runtime.guest.call_answerer import CallAnswerer
from tfs.runtime.guest.call_channel import CallChannel
from tfs.runtime.guest.clean_slate import CleanSlate
from tfs.runtime.guest.device_memory import device_memory
from tfs.runtime.guest.device_weights import DeviceWeights
from tfs.runtime.guest.freed_memory import give_back
from tfs.runtime.guest.guest_model import load_guest_model, one_line
from tfs.runtime.guest.load_meter import LoadMeter
from tfs.runtime.guest.loaded_model import ForkWatch, LoadedModel
from tfs.runtime.guest.memory_exhaustion import EXIT_STATUS
from tfs.runtime.guest.model_source import ModelSource
from tfs.runtime.guest.platform_imports import imported_s
from tfs.runtime.guest.preloaded_model import PreloadedModel
from tfs.runtime.guest.process_state import ProcessState
from tfs.runtime.guest.process_surface import WatchedSurface
from tfs.runtime.guest.request_slots import RequestSlots
from tfs.runtime.guest.sealed_file import SealedFile, copy
from tfs.runtime.guest.slab import (
    FOLLOWER,
    NUM_SLOTS,
    REPLIES,
    REQUESTS,
    STARTED,
    Slab,
)
from tfs.runtime.guest.two_thread_scaling import two_thread_scaling
from tfs.runtime.guest.version_files import VersionFiles, unreadable
from tfs.runtime.guest.warm_up import warm_up
from tfs.runtime.guest.watched_objects import WatchedObjects
from tfs.runtime.guest.weights_lease import WeightsLease
from tfs.runtime.guest.worker_ops import RUN_CODE
from tfs.runtime.guest.worker_options import WorkerOptions

if TYPE_CHECKING:
    from tfs.runtime.guest.session_guest import SessionGuest


class Worker:
    """One worker process's state. ``run`` is confined to the main thread.

    Args:
        options: See there.
        channel: Where calls come from.
        control: Where everything else does.
        preloaded: A version that was loaded before the fork, perhaps.
        surface: What of torch models can replace, as it was before the fork.

    """

    def __init__(
        self,
        options: WorkerOptions,
        channel: CallChannel,
        control: socket.socket,
        preloaded: PreloadedModel | None = None,
        surface: WatchedSurface | None = None,
    ) -> None:
        self._channel = channel
        self._slab = Slab(channel.slab_fd)
        self._control = control
        self._spin_s = options.spin_us / 1e6
        self._spin_backoff = SpinBackoff()
        # Written by the control thread, read by the main thread; each change is one
        # dict operation.
        self._models: dict[int, LoadedModel] = {}
        # As the process was before each was loaded, while that may be asked for.
        self._states = WeakKeyDictionary[LoadedModel, ProcessState]()
        self._slots: dict[int, RequestSlots] = {}  # of models that take several calls
        # Of unloaded models that left references to shared weights behind.
        self._retained: list[DeviceWeights] = []
        self._sessions: SessionGuest | None = None
        self._memory_limit = MemoryLimit(options.memory_limit_bytes)
        self._forks = ForkWatch()
        self._preloaded = preloaded
        self._surface = surface or WatchedSurface()
        self._slate: CleanSlate | None = None
        self._brief_work = BriefWork()
        self._has_run_on_control = False  # a model's code: what it set is not looked at
        # To be run by the main thread, which is rung as for a call.
        self._errands: deque[Callable[[], None]] = deque()

    def run(self, archive: bytes = b"", watched: WatchedObjects | None = None) -> None:
        """Answers calls until the process ends.

        Args:
            archive: What a spare warms up with first, before it has models.
            watched: What modules hold; by it a spare knows itself again.

        """
        os.register_at_fork(after_in_child=self._become_copy)
        threading.Thread(
            target=self._run_control, name="worker-control", daemon=True
        ).start()
        if archive:
            threading.Thread(
                target=self._warm_up,
                args=(archive, watched),
                name="warm-up",
                daemon=True,
            ).start()
        slab, channel = self._slab, self._channel
        answerer = CallAnswerer(slab, self._models, self._forks, self._leave_if_leaking)
        sequence = 0
        with torch.inference_mode():
            while True:
                if self._spin_s:
                    self._spin(sequence)
                for _ in range(os.eventfd_read(channel.request_fd)):
                    if self._errands:
                        self._errands.popleft()()
                        continue
                    slot = slab.slots[sequence % NUM_SLOTS]
                    sequence += 1
                    slab.words[STARTED] = sequence
                    overflow_bytes = answerer.overflow_bytes(slot)
                    memory = None
                    if overflow_bytes:
                        memory = channel.receive_tensors(overflow_bytes)
                    loaded, overflow_fd = answerer.answer(slot, memory)
                    if overflow_fd is not None:
                        channel.send_tensors(overflow_fd)
                    slab.words[REPLIES] = sequence
                    if follower := slab.words[FOLLOWER]:
                        bring(follower)
                    channel.ring()
                    if loaded is not None:
                        self._note_call(loaded)
                    loaded = memory = None  # unloading must find the last reference

    # -- calls, on the main thread ----------------------------------------------

    def _spin(self, sequence: int) -> None:
        if not self._spin_backoff.may_look():
            return
        words, now = self._slab.words, time.perf_counter
        limit_s = now() + self._spin_s
        while words[REQUESTS] == sequence and now() < limit_s:
            pass
        self._spin_backoff.note(found=words[REQUESTS] != sequence)

    def _note_call(self, loaded: LoadedModel) -> None:
        """Tells the host once when a model wrote to its weights."""
        num_pages, num_shared = loaded.written_if_due()
        if num_pages or num_shared:
            self._tell(
                {
                    "event": "weights_written",
                    "model": str(loaded.source.id.slashed),
                    "num_pages": num_pages,
                    "num_shared_tensors": num_shared,
                }
            )

    def _leave_if_leaking(self) -> None:
        """Ends the worker over a call that found no memory, if the model keeps it.

        One that only asked for too much is answered, and the next may be smaller.
        """
        give_back()
        if self._memory_limit.is_mostly_used():
            os._exit(EXIT_STATUS)

    def _become_copy(self) -> None:
        """Runs first in a process that a model forks off this one.

        The copy must not answer calls: they end in the process that took them. It is of
        the worker's process group, and ends with it.
        """
        if self._forks.is_copy:
            return  # a copy's copy: all is closed
        self._forks.is_copy = True
        self._channel.close()
        for slots in self._slots.values():
            slots.close_channel()
        for loaded in self._models.values():
            loaded.weights.close_channel()
        self._control.close()

    # -- control ------------------------------------------------------------------

    def _run_control(self) -> None:
        # Word of a load took 0.3 ms from a call of the version that serves.
        answer_later()
        while True:
            try:
                message = control_channel.receive(self._control)
            except OSError:
                message = None
            if message is None:
                # With what the model started: nobody is left to know the group.
                with contextlib.suppress(OSError):
                    os.killpg(os.getpid(), signal.SIGKILL)
                os._exit(0)
            body, fds = message
            # From the host, over a channel nobody else holds: pickle is safe here.
            request = pickle.loads(body)
            if request["background"]:
                threading.Thread(
                    target=self._serve_in_background,
                    args=(request, fds),
                    name="worker-load",
                    daemon=True,
                ).start()
            else:
                self._has_run_on_control |= request["op"] in RUN_CODE
                self._serve(request, fds)

    def _serve_in_background(
        self, request: Mapping[str, object], fds: list[int]
    ) -> None:
        op, source, brief = request["op"], request.get("source"), self._brief_work
        if isinstance(source, ModelSource):
            brief.note_code(source.code_digest)
        with brief.measured(op):
            _give_way(is_brief=brief.is_brief(op))
            self._serve(request, fds)

    def _warm_up(self, archive: bytes, watched: WatchedObjects | None) -> None:
        _give_way()
        told: dict[str, object] = {"event": "warm"}
        try:
            warm_up(archive)
        except Exception as error:
            told["fault"] = one_line(error)
        if watched is not None:
            # A worker of another user may not look at all that there is to see.
            with contextlib.suppress(OSError):
                self._slate = CleanSlate(watched, self._on_main_thread)
        told["knows_itself"] = self._slate is not None
        # What warming took is not a model's.
        self._memory_limit = MemoryLimit(self._memory_limit.limit_bytes)
        self._tell(told)

    def _serve(self, request: Mapping[str, object], fds: list[int]) -> None:
        handlers: dict[object, Callable[..., dict[str, object]]] = {
            "copy": self._copy,
            "load": self._load,
            "open": self._open,
            "unload": self._unload,
            "rest": self._rest,
            "scale": self._scale,
            "rehearse": self._rehearse,
        }
        payload, reply_fds = b"", list[int]()
        try:
            if request["op"] == "session":
                payload, reply_fds = self._session(request, fds)
                reply: dict[str, object] = {"code": 0}
            else:
                reply = handlers[request["op"]](request, fds)
        except ServingError as error:
            reply = {"code": int(error.code), "message": error.message}
        except BaseException as error:  # the process must answer whatever happens
            fault = serving_error(error, "an interpreter's control thread")
            reply = {"code": int(fault.code), "message": fault.message}
        finally:
            control_channel.close_all(fds)
        self._tell({"id": request["id"], **reply}, payload, reply_fds)
        control_channel.close_all(reply_fds)

    def _copy(self, request: Mapping[str, object], fds: list[int]) -> dict[str, object]:
        """Copies files into memfds: pairs of source and target."""
        source = request["source"]
        assert isinstance(source, ModelSource)
        try:
            for source_fd, target_fd in zip(fds[::2], fds[1::2], strict=True):
                copy(source_fd, target_fd)
        except OSError as error:
            raise unreadable(source, error) from error
        return {"code": 0}

    def _load(self, request: Mapping[str, object], fds: list[int]) -> dict[str, object]:
        source, model_id, names = (request[key] for key in ("source", "model", "files"))
        weights: DeviceWeights | None = None
        assert isinstance(source, ModelSource)
        assert isinstance(model_id, int)
        assert isinstance(names, list)
        keeper = request.get("keeper")
        if isinstance(keeper, str):
            channel = socket.socket(fileno=os.dup(fds[-1]))
            lease = WeightsLease(channel, device_memory(keeper, source.device))
            weights = DeviceWeights(source.device, lease)
            fds = fds[:-1]
        meter = LoadMeter()
        state = ProcessState(self._surface)
        # Of this thread's processor time: at the lowest priority, beside others that
        # load, the clock on the wall says little of what the import is.
        begun_s = time.thread_time()
        preloaded, self._preloaded = self._preloaded, None
        if preloaded is not None and preloaded.is_of(source, fds):
            self._models[model_id] = LoadedModel(source, preloaded.guest)
            return {
                "code": 0,
                "import_s": preloaded.import_s,
                "changes": state.changes(),
                **meter.read(sum(os.fstat(fd).st_size for fd in fds)),
            }
        del preloaded  # another version's
        files = VersionFiles(
            {
                name: SealedFile(os.dup(fd), os.fstat(fd).st_size)
                for name, fd in zip(names, fds, strict=True)
            }
        )
        try:
            self._memory_limit.allow(files.size_bytes)
            try:
                guest = load_guest_model(source, files, weights)
                if weights is not None:
                    weights.settle()
            except BaseException:
                self._memory_limit.allow(-files.size_bytes)
                # Closed at once: what is left of the model calls nothing any more.
                if weights is not None:
                    weights.close_channel()
                raise
        finally:
            files.close()
        import_s = time.thread_time() - begun_s + imported_s(source.platform)
        loaded = self._models[model_id] = LoadedModel(source, guest, weights)
        self._states[loaded] = state
        return {
            "code": 0,
            "import_s": import_s,
            "changes": state.changes(),
            "shared_bytes": loaded.weights.shared_bytes,
            "not_shared": loaded.weights.refusal,
            "cannot_share": loaded.weights.is_refusal_final,
            **meter.read(files.size_bytes),
        }

    def _open(self, request: Mapping[str, object], fds: list[int]) -> dict[str, object]:
        """Begins to take several calls of a model at once.

        Not while it is loaded: threads inherit the priority of who makes them.
        """
        model_id = request["model"]
        assert isinstance(model_id, int)
        loaded = self._models.get(model_id)
        if loaded is None:
            raise Unavailable("the model is not loaded on this interpreter")
        channel = CallChannel.of_fds([os.dup(fd) for fd in fds])
        self._slots[model_id] = RequestSlots(
            channel,
            model_id,
            loaded,
            self._forks,
            self._note_call,
            self._leave_if_leaking,
        )
        return {"code": 0}

    def _scale(
        self, request: Mapping[str, object], fds: list[int]
    ) -> dict[str, object]:
        """Measures a model from two threads of its own, beside the main one."""
        duration_s = request["duration_s"]
        assert isinstance(duration_s, float)
        loaded, name, inputs = self._trial(request, fds)
        scaling = two_thread_scaling(loaded.guest, name, inputs, duration_s)
        state = self._states.get(loaded)
        changes = state.changes() if state is not None else ""
        return {"code": 0, "scaling": scaling, "changes": changes}

    def _rehearse(
        self, request: Mapping[str, object], fds: list[int]
    ) -> dict[str, object]:
        """Calls a model on this thread: what a first call costs is the process's."""
        loaded, name, inputs = self._trial(request, fds)
        # Not the wall's: in the background that says more of what else runs.
        begun_s = time.thread_time()
        try:
            with torch.inference_mode():
                loaded.guest.call(name, inputs)
        finally:
            self._forks.leave_if_copy()
        return {"code": 0, "call_s": time.thread_time() - begun_s}

    def _trial(
        self, request: Mapping[str, object], fds: list[int]
    ) -> tuple[LoadedModel, str, Tensors]:
        """Returns the model that a request is about, the signature and the inputs."""
        model_id, name = request["model"], request["signature"]
        assert isinstance(model_id, int)
        assert isinstance(name, str)
        loaded = self._models.get(model_id)
        if loaded is None:
            raise Unavailable("the model is not loaded on this interpreter")
        # The descriptor's offset is shared with the host, which wrote to the end.
        with open(fds[0], "rb", closefd=False) as file:
            file.seek(0)
            inputs: Tensors = pickle.load(file)
        return loaded, name, inputs

    def _unload(
        self, request: Mapping[str, object], _fds: list[int]
    ) -> dict[str, object]:
        model_id = request["model"]
        assert isinstance(model_id, int)
        loaded = self._models.pop(model_id, None)
        slots = self._slots.pop(model_id, None)
        if slots is not None:
            slots.close()
        if loaded is not None:
            weights = loaded.weights
            loaded.guest.close()
            del loaded
            give_back()
            if not weights.close():
                self._retained.append(weights)
        return {"code": 0}

    def _rest(self, request: Mapping[str, object], fds: list[int]) -> dict[str, object]:
        """Drops a model and looks whether the process is as it was before any.

        Replies with what differs; nothing if another model may be loaded.
        """
        self._unload(request, fds)
        slate = self._slate
        changed = ""
        if slate is None:
            changed = "nothing is known of how it was"
        elif self._has_run_on_control:
            changed = "its control thread ran code"
        elif self._models or self._retained or self._sessions or self._forks.is_copy:
            changed = "it has something else"
        else:
            self._slab.forget()
            slate.restore()
            changed = slate.changes()
            self._memory_limit = MemoryLimit(self._memory_limit.limit_bytes)
        return {"code": 0, "changed": changed}

    def _on_main_thread(self, fn: Callable[[], dict[str, object]]) -> dict[str, object]:
        """Runs ``fn`` between calls, of which there must be none; blocks for it."""
        outcome: Future[dict[str, object]] = Future()

        def run() -> None:
            try:
                outcome.set_result(fn())
            except Exception as error:
                outcome.set_exception(error)

        self._errands.append(run)
        os.eventfd_write(self._channel.request_fd, 1)
        return outcome.result()

    def _session(
        self, request: Mapping[str, object], fds: list[int]
    ) -> tuple[bytes, list[int]]:
        if self._sessions is None:
            # Only library use needs it, and its imports.
            session_guest = importlib.import_module("tfs.runtime.guest.session_guest")
            self._sessions = session_guest.SessionGuest()
        body = request["body"]
        assert isinstance(body, bytes)
        return self._sessions.handle(body, fds)

    def _tell(
        self,
        message: Mapping[str, object],
        payload: bytes = b"",
        fds: Sequence[int] = (),
    ) -> None:
        """Sends a line of JSON and what is to follow it."""
        line = json.dumps(message).encode() + b"\n"
        with contextlib.suppress(OSError):  # the host is gone; so are we, soon
            control_channel.send(self._control, line + payload, tuple(fds))


def _give_way(*, is_brief: bool = False) -> None:
    """Gives this thread the lowest priority, for good."""
    give_way(is_brief=is_brief)
    torch.set_num_threads(1)


class MemoryLimit:
    """Bounds the private memory of this process. Changed by the control thread alone.

    RLIMIT_DATA counts private writable memory, mapped weights among it, so that the
    limit moves with the weights. It is soft: it contains a leak, not an attacker.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        if limit_bytes:
            self._allowed_bytes = (data_bytes(os.getpid()) or 0) + limit_bytes
            self._apply()

    def allow(self, size_bytes: int) -> None:
        """Moves the limit by the weights that are mapped, or no longer are."""
        if self.limit_bytes:
            self._allowed_bytes += size_bytes
            self._apply()

    def is_mostly_used(self) -> bool:
        """Whether less than half of what may be added is left; no if all may be."""
        if not self.limit_bytes:
            return False
        used_bytes = data_bytes(os.getpid()) or 0
        return self._allowed_bytes - used_bytes < self.limit_bytes // 2

    def _apply(self) -> None:
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (self._allowed_bytes, hard))
