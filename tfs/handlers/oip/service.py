"""``inference.GRPCInferenceService``: the Open Inference Protocol, whatever transport asks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from google.protobuf.message import Message

from tfs.codec.oip.datatype import DATATYPES
from tfs.codec.oip.infer_view import read_version
from tfs.core.call import Call, RpcMethod
from tfs.core.errors import InvalidArgument, NotFound, ServingError, Unimplemented
from tfs.core.servable_state import ManagerState, ServableState
from tfs.core.signature import DEFAULT_SIGNATURE, Signature, TensorSpec
from tfs.handlers.admin_access import AdminAccess
from tfs.handlers.decode_pool import DecodePool
from tfs.handlers.health import HealthReader
from tfs.handlers.message_limits import QUESTION_BYTES, parse
from tfs.handlers.model_lookup import ModelLookup, NotResident
from tfs.handlers.model_service import StatusReader
from tfs.handlers.predict import PredictHandler
from tfs.handlers.service_names import OIP
from tfs.proto.inference import open_inference_grpc_pb2 as pb

INFER: Final = f"/{OIP}/ModelInfer"
NAME: Final = "tfs"
EXTENSIONS: Final = (
    "binary_tensor_data",
    "model_repository",
    "model_repository(unload_dependents)",
    "schedule_policy",
    "statistics",
)
"""By Triton's names. What is not among them (``system_shared_memory`` and
``cuda_shared_memory`` above all) is not offered."""

_STATES: Final = {
    ManagerState.AVAILABLE: "READY",
    ManagerState.START: "LOADING",
    ManagerState.LOADING: "LOADING",
    ManagerState.UNLOADING: "UNLOADING",
    ManagerState.END: "UNAVAILABLE",
}

Done = Callable[[ServingError | None], None]


class VersionCounts(NamedTuple):
    """How many rows a version has computed, in how many calls of the model."""

    num_rows: int = 0
    num_calls: int = 0


class Repository(Protocol):
    """The models of the configuration. Thread-safe; never blocks."""

    def names(self) -> Collection[str]:
        """Returns the models that are configured."""
        ...

    def counts(self) -> Mapping[tuple[str, int], VersionCounts]:
        """Returns what every version has computed, by model and version."""
        ...

    def load(
        self, name: str, caller: str, deadline_s: float | None, done: Done
    ) -> None:
        """Aspires a model's versions again, and tries those that failed.

        ``done`` runs once, on any thread, when they are available, or with what is wrong
        shortly before the deadline at the latest.
        """
        ...

    def unload(
        self, name: str, caller: str, deadline_s: float | None, done: Done
    ) -> None:
        """Aspires none of a model's versions until it is loaded again; see ``load``."""
        ...


class OipService:
    """Answers everything but inference, as software of that version. Thread-safe."""

    def __init__(
        self,
        lookup: ModelLookup,
        status: StatusReader,
        health: HealthReader,
        repository: Repository,
        access: AdminAccess,
        version: str,
    ) -> None:
        self._lookup = lookup
        self._status = status
        self._health = health
        self._repository = repository
        self._access = access
        self._version = version

    # -- health --------------------------------------------------------------------

    def live(self, request: pb.ServerLiveRequest) -> pb.ServerLiveResponse:
        """Tells that the process answers."""
        return pb.ServerLiveResponse(live=True)

    def ready(self, request: pb.ServerReadyRequest) -> pb.ServerReadyResponse:
        """Tells whether requests should be sent here."""
        return pb.ServerReadyResponse(ready=self._health.is_ready())

    def model_ready(self, request: pb.ModelReadyRequest) -> pb.ModelReadyResponse:
        """Tells whether a model, or one version of it, can answer."""
        version = read_version(request.version)
        ready = bool(self._health.is_model_available(request.name))
        if version is not None:
            ready = version in self._available(request.name)
        return pb.ModelReadyResponse(ready=ready)

    # -- metadata ------------------------------------------------------------------

    def metadata(self, request: pb.ServerMetadataRequest) -> pb.ServerMetadataResponse:
        """Returns what this server is, and which extensions it has."""
        return pb.ServerMetadataResponse(
            name=NAME, version=self._version, extensions=EXTENSIONS
        )

    def model_metadata(
        self, request: pb.ModelMetadataRequest
    ) -> pb.ModelMetadataResponse:
        """Returns a version's inputs and outputs: of its default signature, if it has one.

        Raises:
            NotFound: There is no such model, or it cannot answer.

        """
        with self._lookup.look_at(
            request.name, read_version(request.version), None
        ) as servable:
            signatures = servable.signatures
        name, signature = _default(signatures)
        return pb.ModelMetadataResponse(
            name=request.name,
            versions=map(str, self._available(request.name)),
            platform="pytorch",
            inputs=_tensors(signature.inputs),
            outputs=_tensors(signature.outputs),
            properties={"signature_name": name, "signatures": ",".join(signatures)},
        )

    def _available(self, name: str) -> Sequence[int]:
        return sorted(
            state.id.version
            for state in self._status.version_states(name)
            if state.manager_state is ManagerState.AVAILABLE
        )

    # -- repository ----------------------------------------------------------------

    def index(self, request: pb.RepositoryIndexRequest) -> pb.RepositoryIndexResponse:
        """Returns all versions that the server knows, and every model without one."""
        _check_repository(request.repository_name)
        response = pb.RepositoryIndexResponse()
        for name in sorted(self._repository.names()):
            states = self._status.version_states(name)
            if not states and not request.ready:
                reason = self._status.problem(name) or "it has no version"
                response.models.add(name=name, state="UNAVAILABLE", reason=reason)
            for state in states:
                if state.manager_state is ManagerState.AVAILABLE or not request.ready:
                    response.models.append(_index_of(state))
        return response

    def load(
        self, request: pb.RepositoryModelLoadRequest, call: Call, done: Done
    ) -> None:
        """Loads a model; see :meth:`Repository.load`.

        Raises:
            ServingError: The caller may not, or a parameter means nothing here.

        """
        self._access.check(call)
        _check_repository(request.repository_name)
        for parameter in request.parameters:
            raise Unimplemented(
                f"parameter {parameter!r}: models are loaded as they are configured"
            )
        self._repository.load(
            request.model_name, call.peer.address, call.deadline_s, done
        )

    def unload(
        self, request: pb.RepositoryModelUnloadRequest, call: Call, done: Done
    ) -> None:
        """Unloads a model; see :meth:`Repository.unload`. No model depends on others.

        Raises:
            ServingError: The caller may not, or a parameter means nothing here.

        """
        self._access.check(call)
        _check_repository(request.repository_name)
        for parameter in request.parameters.keys() - {"unload_dependents"}:
            raise Unimplemented(f"parameter {parameter!r} means nothing here")
        self._repository.unload(
            request.model_name, call.peer.address, call.deadline_s, done
        )

    # -- statistics ----------------------------------------------------------------

    def statistics(
        self, request: pb.ModelStatisticsRequest
    ) -> pb.ModelStatisticsResponse:
        """Returns what the versions that can answer have computed.

        Raises:
            NotFound: A model was named that is not configured.

        """
        version = read_version(request.version)
        names = self._repository.names()
        if request.name and request.name not in names:
            raise NotFound(f"no model {request.name!r} is configured")
        counts = self._repository.counts()
        response = pb.ModelStatisticsResponse()
        for name in (request.name,) if request.name else sorted(names):
            for each in self._available(name):
                if version in (None, each):
                    found = counts.get((name, each), VersionCounts())
                    response.model_stats.add(
                        name=name,
                        version=str(each),
                        inference_count=found.num_rows,
                        execution_count=found.num_calls,
                    )
        return response


def _default(signatures: Mapping[str, Signature]) -> tuple[str, Signature]:
    name = DEFAULT_SIGNATURE if DEFAULT_SIGNATURE in signatures else min(signatures)
    return name, signatures[name]


def _tensors(
    specs: Mapping[str, TensorSpec],
) -> list[pb.ModelMetadataResponse.TensorMetadata]:
    return [
        pb.ModelMetadataResponse.TensorMetadata(
            name=name,
            # Those that the protocol has no name for keep ours.
            datatype=DATATYPES.get(spec.dtype, spec.dtype.name),
            shape=spec.shape,
        )
        for name, spec in specs.items()
    ]


def _index_of(state: ServableState) -> pb.RepositoryIndexResponse.ModelIndex:
    reason = "" if state.error is None else state.error.message
    if not reason and state.manager_state is ManagerState.END:
        reason = "unloaded"
    return pb.RepositoryIndexResponse.ModelIndex(
        name=state.id.name,
        version=str(state.id.version),
        state=_STATES[state.manager_state],
        reason=reason,
    )


def _check_repository(name: str) -> None:
    if name:
        raise InvalidArgument(
            f"no repository {name[:64]!r}; leave its name out, there is one"
        )


def oip_methods(
    service: OipService, infer: PredictHandler, decode_pool: DecodePool
) -> list[RpcMethod]:
    """Returns the methods that are offered.

    Answers about all models are written by the pool.
    """

    def asking(
        name: str, answer: Callable[[Any], Message], *, is_long: bool = False
    ) -> RpcMethod:
        def handler(call: Call) -> None:
            try:
                request = parse(
                    getattr(pb, f"{name}Request"), call.message, QUESTION_BYTES
                )
                decode_pool.reply(
                    call, lambda: answer(request).SerializeToString(), is_long=is_long
                )
            except NotResident as absent:
                absent.then(call, lambda: handler(call), call.fail)
            except ServingError as error:
                call.fail(error)

        return RpcMethod(f"/{OIP}/{name}", handler)

    def changing(name: str, start: Callable[[Any, Call, Done], None]) -> RpcMethod:
        def handler(call: Call) -> None:
            def done(error: ServingError | None) -> None:
                if error is None:
                    call.reply(b"")  # the responses have no fields
                else:
                    call.fail(error)

            try:
                start(
                    parse(getattr(pb, f"{name}Request"), call.message, QUESTION_BYTES),
                    call,
                    done,
                )
            except ServingError as error:
                call.fail(error)

        return RpcMethod(f"/{OIP}/{name}", handler)

    return [
        RpcMethod(INFER, infer, burst_handler=infer.take_burst),
        asking("ServerLive", service.live),
        asking("ServerReady", service.ready),
        asking("ModelReady", service.model_ready),
        asking("ServerMetadata", service.metadata),
        asking("ModelMetadata", service.model_metadata),
        asking("ModelStatistics", service.statistics, is_long=True),
        asking("RepositoryIndex", service.index, is_long=True),
        changing("RepositoryModelLoad", service.load),
        changing("RepositoryModelUnload", service.unload),
    ]
