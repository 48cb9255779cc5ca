"""The models of a worker, from load to unload, and the requests about them meanwhile."""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Mapping, Sequence
from weakref import WeakKeyDictionary

import torch

from tfs.core.loop.pacing import yield_to_requests
from tfs.core.servable import Tensors
from tfs.runtime.guest.forked_call import FORKS
from tfs.runtime.guest.freed_memory import give_back
from tfs.runtime.guest.guest_model import GuestModel, load_guest_model
from tfs.runtime.guest.loaded_model import LoadedModel, not_loaded
from tfs.runtime.guest.model_source import ModelSource
from tfs.runtime.guest.platforms.platform_imports import imported_s
from tfs.runtime.guest.process_name import name_process
from tfs.runtime.guest.side_effects.replaced_functions import KnownFunctions
from tfs.runtime.guest.side_effects.side_effects import ProcessEffects, ThreadEffects
from tfs.runtime.guest.two_thread_scaling import two_thread_scaling
from tfs.runtime.guest.version_files import VersionFiles
from tfs.runtime.guest.worker.load_meter import LoadMeter
from tfs.runtime.guest.worker.memory_limit import MemoryLimit


class WorkerModels:
    """Loads, tries and unloads models. Confined to one thread at a time.

    A request is what the host sent, with descriptors that the caller closes. The
    returned dictionary is the reply to the host.

    Args:
        limit: The limit of the process's memory; moves with the weights.
        known: The functions that models can replace, as they were before the fork.

    Attributes:
        by_id: The loaded models by number. The main thread reads it meanwhile; each
            change is one dict operation.

    """

    def __init__(
        self,
        limit: MemoryLimit,
        known: KnownFunctions,
    ) -> None:
        self._limit = limit
        self._known = known
        self.by_id: dict[int, LoadedModel] = {}
        # As the process was before each was loaded, while that may be asked for.
        self._states = WeakKeyDictionary[LoadedModel, ProcessEffects]()

    @property
    def is_empty(self) -> bool:
        """Whether there is no model."""
        return not self.by_id

    # -- requests ---------------------------------------------------------------------

    def load(self, request: Mapping[str, object], fds: list[int]) -> dict[str, object]:
        """Loads a version from its files; replies with what that took and changed.

        Raises:
            ServingError: It does not load; nothing is left of it.

        """
        source, model_id, names = (request[key] for key in ("source", "model", "files"))
        assert isinstance(source, ModelSource)
        assert isinstance(model_id, int)
        assert isinstance(names, list)
        # Set now, in case the process dies during the load.
        name_process(f"tfs:{source.id.slashed}")
        yield_to_requests()
        meter = LoadMeter()
        # Looking twice takes as long as a small load itself.
        state = None if source.was_measured else ProcessEffects(self._known)
        thread = None if source.was_measured else ThreadEffects()
        size_bytes = sum(os.fstat(fd).st_size for fd in fds)
        # Of this thread's processor time: at the lowest priority, beside others that
        # load, the clock on the wall says little of what the import is.
        begun_s = time.thread_time()
        copies = {name: os.dup(fd) for name, fd in zip(names, fds, strict=True)}
        guest = self._load_guest(source, VersionFiles.adopt(copies))
        import_s = time.thread_time() - begun_s + imported_s(source.platform)
        loaded = self.by_id[model_id] = LoadedModel(source, guest)
        if state is not None:
            self._states[loaded] = state
        return {
            "code": 0,
            "import_s": import_s,
            "changes": (
                ""
                if state is None or thread is None
                else _in_words(state, thread.changes())
            ),
            **meter.read(size_bytes),
        }

    def _load_guest(self, source: ModelSource, files: VersionFiles) -> GuestModel:
        """Loads a model from its files within the limit; closes the files."""
        try:
            if self.is_empty:
                self._limit.count_from_here()  # counts the threads of the load
            self._limit.allow(files.size_bytes)
            try:
                return load_guest_model(source, files)
            except BaseException:
                self._limit.allow(-files.size_bytes)
                raise
        finally:
            files.close()

    def scale(self, request: Mapping[str, object], fds: list[int]) -> dict[str, object]:
        """Measures a model from two threads of its own, beside the main one."""
        duration_s = request["duration_s"]
        assert isinstance(duration_s, float)
        loaded, name, inputs = self._trial(request, fds)
        state = self._states.get(loaded)
        changed: set[str] = set()
        scaling = two_thread_scaling(
            loaded.guest, name, inputs, duration_s, None if state is None else changed
        )
        changes = "" if state is None else _in_words(state, sorted(changed))
        return {"code": 0, "scaling": scaling, "changes": changes}

    def rehearse(
        self, request: Mapping[str, object], fds: list[int]
    ) -> dict[str, object]:
        """Calls a model on this thread, because a first call costs once for the process."""
        loaded, name, inputs = self._trial(request, fds)
        yield_to_requests()
        # This is processor time. In the background, wall time says more about what else
        # runs.
        begun_s = time.thread_time()
        depth = FORKS.depth
        try:
            with torch.inference_mode():
                loaded.guest.call(name, inputs)
        finally:
            FORKS.end_copy(depth)
        return {"code": 0, "call_s": time.thread_time() - begun_s}

    def unload(
        self, request: Mapping[str, object], _fds: list[int]
    ) -> dict[str, object]:
        """Frees a model; does nothing if there is no such model."""
        model_id = request["model"]
        assert isinstance(model_id, int)
        loaded = self.by_id.pop(model_id, None)
        if loaded is not None:
            loaded.guest.close()
            del loaded
            give_back()
            rest = next(iter(self.by_id.values()), None)
            name_process(f"tfs:{rest.source.id.slashed}" if rest else "tfs-worker")
        return {"code": 0}

    def _trial(
        self, request: Mapping[str, object], fds: list[int]
    ) -> tuple[LoadedModel, str, Tensors]:
        """Returns the model that a request is about, the signature and the inputs."""
        name = request["signature"]
        assert isinstance(name, str)
        model_id = request["model"]
        assert isinstance(model_id, int)
        loaded = self.by_id.get(model_id)
        if loaded is None:
            raise not_loaded()
        # The descriptor's offset is shared with the host, which wrote to the end.
        with open(fds[0], "rb", closefd=False) as file:
            file.seek(0)
            inputs: Tensors = pickle.load(file)
        return loaded, name, inputs


def _in_words(state: ProcessEffects, of_thread: Sequence[str]) -> str:
    """Returns what a model changed in its process and its thread, as a list for people."""
    return ", ".join([*state.changes(), *of_thread])
