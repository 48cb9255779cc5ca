"""Tries a version out aside, for a fleet: what it takes, and whether it can be called."""

from __future__ import annotations

import contextlib
import logging
from dataclasses import replace

from managers.loading.load_admission import ResourceTracker
from sources.remote.cache import VersionCache
from sources.remote.storage import RemoteFileSystem
from sources.servable_to_monitor import StoragePath
from sources.storage.file_system import AnyFileSystem, is_remote
from sources.version_policy import name_versions
from tfs.core.clock import Clock
from tfs.core.errors import (
    FailedPrecondition,
    InterpreterDied,
    NotFound,
    ResourceExhausted,
    ServingError,
    serving_error,
)
from tfs.core.executor import ThreadExecutor
from tfs.core.loader import Loader
from tfs.core.servable_id import ServableId
from tfs.handlers.admin import Done
from tfs.proto.tfs.v1 import admin_service_pb2 as pb
from tfs.servables.loaded_version import LoadedVersion
from tfs.servables.measuring.probe import ProbeOptions
from tfs.servables.measuring.profiler import Profiler, Profiles
from tfs.servables.platform import LoadContext
from tfs.server.config.server_config import read_model
from tfs.server.model_settings import ModelSettings, RuntimeSettings
from tfs.server.options import ServerOptions
from tfs.server.placing.model_placer import ModelPlacer, loader_maker

log = logging.getLogger(__name__)

_Reply = pb.ProbeResponse


class VersionProbe:
    """Loads a version in a process of its own, calls it, and unloads it. Thread-safe.

    Args:
        options: The options of the server.
        placer: Has the processes.
        copies: Where versions behind URLs are copied to.
        memory: What probes reserve from, like loads; None if there is no limit.
        clock: The clock that everything goes by.

    """

    def __init__(
        self,
        options: ServerOptions,
        placer: ModelPlacer,
        copies: VersionCache,
        memory: ResourceTracker | None,
        clock: Clock,
    ) -> None:
        self._options = options
        self._placer = placer
        self._copies = copies
        self._memory = memory
        self._clock = clock
        # One at a time: what a probe takes is not reserved in full.
        self._executor = ThreadExecutor(1, "try", clock)

    def start(self, request: pb.ProbeRequest, done: Done[pb.ProbeResponse]) -> None:
        """Begins to try a version; ``done`` takes what came of it, on another thread."""

        def run() -> None:
            try:
                reply: _Reply | ServingError = self._try(request)
            except Exception as error:
                reply = serving_error(error, "Probe")
            done(reply)

        self._executor.submit(run)

    def close(self, deadline_s: float) -> None:
        """Waits for the probe that runs, and does no other; idempotent."""
        self._executor.close(deadline_s)

    def _try(self, request: pb.ProbeRequest) -> pb.ProbeResponse | ServingError:
        settings = read_model(request.config)
        # No name that a request can have: what becomes of it concerns nobody's model.
        servable_id = ServableId(f"{settings.name}/probe", request.version)
        reply = _Reply(outcome=_Reply.OK)
        try:
            loader = self._loader(settings, servable_id, request.version)
            if not self._options.load_probe_budget_s:
                if not is_remote(settings.base_path):  # or all of it would be copied
                    loader.estimate_resources()  # raises what is missing
                return FailedPrecondition("this server measures nothing")
            wanted = loader.estimate_resources()
            with contextlib.ExitStack() as taken:
                if self._memory is not None:
                    if not self._memory.reserve(wanted):
                        raise ResourceExhausted(
                            "no room for a probe beside what is served here"
                        )
                    taken.callback(self._memory.release, wanted)
                loader.load(servable_id)
                taken.callback(loader.unload)
                _report(loader.servable, reply)
        except ResourceExhausted:
            raise
        except InterpreterDied as error:
            reply = _Reply(outcome=_Reply.CRASHED, reason=error.message)
        except ServingError as error:
            reply = _Reply(outcome=_Reply.REFUSED, reason=error.message)
        outcome = _Reply.Outcome.Name(reply.outcome)
        took = reply.load_peak_bytes, reply.work_peak_bytes
        log.info(
            "event=probed servable=%s/%d outcome=%s load_bytes=%d work_bytes=%d reason=%r",
            *(settings.name, request.version, outcome, *took, reply.reason),
        )
        return reply

    def _loader(
        self, settings: ModelSettings, servable_id: ServableId, version: int
    ) -> Loader[object]:
        base_path = settings.base_path
        try:
            names = name_versions(
                AnyFileSystem(RemoteFileSystem()).list_directories(base_path)
            )
        except OSError as error:
            raise NotFound(f"{base_path} cannot be read: {error}") from error
        if version not in names:
            raise NotFound(f"version {version} is not in {base_path}")
        path = f"{base_path.rstrip('/')}/{names[version]}"
        make_loader, _ = loader_maker(
            self._options, self._context, self._copies, lambda _: settings.runtime
        )
        return make_loader(servable_id, StoragePath(path, platform=settings.platform))

    def _context(self, runtime: RuntimeSettings) -> LoadContext:
        """Returns what has a version measured in a process, and tells nobody of it."""
        context = self._placer.context(replace(runtime, num_interpreters=1))
        options = ProbeOptions(
            # For as long as a load measures it, because that is what a server has to hold.
            self._options.load_probe_budget_s,
            # A call that hangs ends its process first, as it does where it serves.
            call_timeout_s=2 * self._options.interpreter_call_timeout_s,
            needs_peaks=True,
        )
        profiler = Profiler(Profiles(None), options, clock=self._clock)
        return LoadContext(
            context.interpreter_for,
            device=context.device,
            intra_op_threads=context.intra_op_threads,
            profiler=profiler,
            clock=self._clock,
        )


def _report(version: object, reply: pb.ProbeResponse) -> None:
    """Writes what a version took."""
    if not isinstance(version, LoadedVersion) or version.profile is None:
        return
    profile = version.profile
    if death := profile.how_it_died():
        raise InterpreterDied(death)
    resident = profile.resident_bytes or 0
    peaks = [each.peak_bytes or 0 for each in profile.signatures.values()]
    reply.load_peak_bytes = resident + (profile.load_peak_bytes or 0)
    reply.work_peak_bytes = resident + max(peaks, default=0)
