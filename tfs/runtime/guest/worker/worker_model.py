"""The model of a worker, from its load on, and the requests about it beside its calls."""

from __future__ import annotations

import os
import pickle
import resource
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch

from tfs.core.errors import Unavailable
from tfs.core.loop.pacing import yield_to_requests
from tfs.core.process_memory import (
    anonymous_bytes,
    data_bytes,
    peak_bytes,
    reset_peak,
    resident_bytes,
)
from tfs.core.servable import Tensors
from tfs.runtime.guest.guest_model import (
    GuestModel,
    give_memory_back,
    imported_s,
    load_guest_model,
    two_thread_scaling,
)
from tfs.runtime.guest.memory_files import VersionFiles
from tfs.runtime.guest.model_source import ModelSource
from tfs.runtime.guest.own_process import FORKS, name_process
from tfs.runtime.guest.side_effects import KnownFunctions, ProcessEffects, ThreadEffects
from tfs.runtime.guest.worker_options import OUT_OF_MEMORY


class MemoryLimit:
    """Limits the private memory of this process. Only one thread may change it.

    RLIMIT_DATA counts private writable memory. That includes mapped weights, so the
    limit moves with the weights. It is soft: it contains a leak, not an attacker.

    RLIMIT_DATA counts addresses, also those that threads reserve and never touch. So
    what the process has is counted when all its threads have begun. And whether a model
    keeps memory is decided by what is resident, because a hole in the heap also counts
    as addresses, although the next call can use it.

    Args:
        limit_bytes: How much may be added to what the process has now; 0 for no limit.

    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._allowed_bytes = 0
        self._resident_bytes = 0

    def count_from_here(self) -> None:
        """Takes what the process has now as what it needs without a model."""
        if self._limit_bytes:
            self._allowed_bytes = (data_bytes(os.getpid()) or 0) + self._limit_bytes
            self._resident_bytes = anonymous_bytes(os.getpid()) or 0
            self._apply()

    def allow(self, size_bytes: int) -> None:
        """Moves the limit by the size of weights that are mapped, or unmapped if negative."""
        if self._limit_bytes:
            self._allowed_bytes += size_bytes
            self._apply()

    def leave_if_leaking(self) -> None:
        """Ends the process after a call ran out of memory, if the model keeps memory.

        That is so if it keeps more than half of the limit, or if hardly anything is
        left. A call that only asked for too much is answered: the next one may be
        smaller. May be called from any thread.
        """
        give_memory_back()
        if not self._limit_bytes:
            return
        kept_bytes = (anonymous_bytes(os.getpid()) or 0) - self._resident_bytes
        left_bytes = self._allowed_bytes - (data_bytes(os.getpid()) or 0)
        if kept_bytes > self._limit_bytes // 2 or left_bytes < self._limit_bytes // 8:
            os._exit(OUT_OF_MEMORY)

    def _apply(self) -> None:
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (self._allowed_bytes, hard))


class LoadedModel(NamedTuple):
    """A model, with everything that answering a call needs. Immutable.

    Attributes:
        source: The version.
        guest: What is called.
        signature_names: In the order of the source, which both sides use.
        input_names: The names of each signature's inputs, likewise.

    """

    source: ModelSource
    guest: GuestModel
    signature_names: tuple[str, ...]
    input_names: tuple[tuple[str, ...], ...]


class WorkerModel:
    """Loads one version and tries it. Confined to one thread, but for ``loaded``.

    A request is what the host sent, with descriptors that the caller closes. The
    returned dictionary is the reply to the host.

    Args:
        limit: The limit of the process's memory; moves with the weights.
        known: The functions that models can replace, as they were before the fork.

    """

    def __init__(self, limit: MemoryLimit, known: KnownFunctions) -> None:
        self._limit = limit
        self._known = known
        self._loaded: LoadedModel | None = None
        # As the process was before the load, if that is asked for.
        self._before: ProcessEffects | None = None

    def loaded(self) -> LoadedModel:
        """Returns the model.

        Raises:
            Unavailable: There is none yet.

        """
        if self._loaded is None:
            raise Unavailable("the model is not loaded on this interpreter; retry")
        return self._loaded

    # -- requests ---------------------------------------------------------------------

    def load(self, request: Mapping[str, object], fds: list[int]) -> dict[str, object]:
        """Loads the version from its files; replies with what that took and changed.

        Raises:
            ServingError: It does not load.

        """
        source, names = request["source"], request["files"]
        assert isinstance(source, ModelSource)
        assert isinstance(names, list)
        # Set now, in case the process dies during the load.
        name_process(f"tfs:{source.id.slashed}")
        yield_to_requests()
        size_bytes = sum(os.fstat(fd).st_size for fd in fds)
        memory = _Growth()
        thread = None
        if (
            not source.was_measured
        ):  # looking twice takes as long as a small load itself
            self._before, thread = ProcessEffects(self._known), ThreadEffects()
        # Of this thread's processor time: at the lowest priority, beside others that
        # load, the clock on the wall says little of what the import is.
        begun_s = time.thread_time()
        copies = {name: os.dup(fd) for name, fd in zip(names, fds, strict=True)}
        files = VersionFiles.adopt(copies)
        try:
            self._limit.count_from_here()  # counts the threads of the load
            self._limit.allow(files.size_bytes)
            guest = load_guest_model(source, files)
        finally:
            files.close()
        import_s = time.thread_time() - begun_s + imported_s(source.platform)
        self._loaded = LoadedModel(
            source,
            guest,
            tuple(source.signatures),
            tuple(tuple(each.inputs) for each in source.signatures.values()),
        )
        changes = "" if thread is None else self._changes(thread.changes())
        return {
            "code": 0,
            "import_s": import_s,
            "changes": changes,
            **memory.read(size_bytes),
        }

    def scale(self, request: Mapping[str, object], fds: list[int]) -> dict[str, object]:
        """Measures the model from two threads of its own, beside the main one."""
        duration_s = request["duration_s"]
        assert isinstance(duration_s, float)
        name, inputs = _call_in(request, fds)
        changed: set[str] | None = None if self._before is None else set()
        guest = self.loaded().guest
        scaling = two_thread_scaling(guest, name, inputs, duration_s, changed)
        changes = self._changes(sorted(changed or ()))
        return {"code": 0, "scaling": scaling, "changes": changes}

    def rehearse(
        self, request: Mapping[str, object], fds: list[int]
    ) -> dict[str, object]:
        """Calls the model on this thread, because a first call costs once for the process."""
        name, inputs = _call_in(request, fds)
        yield_to_requests()
        depth = FORKS.depth
        try:
            with torch.inference_mode():
                self.loaded().guest.call(name, inputs)
        finally:
            FORKS.end_copy(depth)
        return {"code": 0}

    def _changes(self, of_thread: Sequence[str]) -> str:
        """Returns what the model changed, as a list for people; "" if nobody looked."""
        if self._before is None:
            return ""
        return ", ".join([*self._before.changes(), *of_thread])


def _call_in(request: Mapping[str, object], fds: list[int]) -> tuple[str, Tensors]:
    name = request["signature"]
    assert isinstance(name, str)
    # The descriptor's offset is shared with the host, which wrote to the end.
    with open(fds[0], "rb", closefd=False) as file:
        file.seek(0)
        inputs: Tensors = pickle.load(file)
    return name, inputs


class _Growth:
    """How this process grows while it loads, and does nothing else.

    Mapped shared files are left out, because all workers of a version share them.
    """

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._can_see_peak = reset_peak(self._pid)
        self._before_bytes = anonymous_bytes(self._pid)

    def read(self, shared_bytes: int) -> dict[str, object]:
        """Returns the memory that stays, including the shared bytes, and the peak above it.

        Numbers that the system does not tell are absent.
        """
        found: dict[str, object] = {}
        after, held = anonymous_bytes(self._pid), resident_bytes(self._pid)
        if after is not None and self._before_bytes is not None:
            found["resident_bytes"] = shared_bytes + max(0, after - self._before_bytes)
        peak = peak_bytes(self._pid)
        if self._can_see_peak and peak is not None and held is not None:
            found["load_peak_bytes"] = max(0, peak - held)
        return found
