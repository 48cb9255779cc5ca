from tfs.proto.google.rpc import status_pb2 as _status_pb2
from tfs.proto.tensorflow_serving.apis import get_model_status_pb2 as _get_model_status_pb2
from tfs.proto.tensorflow_serving.config import model_server_config_pb2 as _model_server_config_pb2
from tfs.proto.tensorflow_serving.servables.tensorflow import session_bundle_config_pb2 as _session_bundle_config_pb2
from tfs.proto.tfs.v1 import model_config_pb2 as _model_config_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ConfigOrigin(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CONFIG_ORIGIN_UNSPECIFIED: _ClassVar[ConfigOrigin]
    COMMAND_LINE: _ClassVar[ConfigOrigin]
    CONFIG_FILE: _ClassVar[ConfigOrigin]
    RELOAD_REQUEST: _ClassVar[ConfigOrigin]
    APPLY_CONFIG: _ClassVar[ConfigOrigin]
    MODEL_REPOSITORY: _ClassVar[ConfigOrigin]
    FLEET: _ClassVar[ConfigOrigin]
CONFIG_ORIGIN_UNSPECIFIED: ConfigOrigin
COMMAND_LINE: ConfigOrigin
CONFIG_FILE: ConfigOrigin
RELOAD_REQUEST: ConfigOrigin
APPLY_CONFIG: ConfigOrigin
MODEL_REPOSITORY: ConfigOrigin
FLEET: ConfigOrigin

class ListModelsRequest(_message.Message):
    __slots__ = ("models", "include_stats", "since")
    MODELS_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_STATS_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedScalarFieldContainer[str]
    include_stats: bool
    since: int
    def __init__(self, models: _Optional[_Iterable[str]] = ..., include_stats: bool = ..., since: _Optional[int] = ...) -> None: ...

class ListModelsResponse(_message.Message):
    __slots__ = ("server", "models", "notes", "revision", "since", "gone", "newest", "behind")
    SERVER_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    GONE_FIELD_NUMBER: _ClassVar[int]
    NEWEST_FIELD_NUMBER: _ClassVar[int]
    BEHIND_FIELD_NUMBER: _ClassVar[int]
    server: ServerReport
    models: _containers.RepeatedCompositeFieldContainer[ModelReport]
    notes: _containers.RepeatedScalarFieldContainer[str]
    revision: int
    since: int
    gone: _containers.RepeatedScalarFieldContainer[str]
    newest: int
    behind: bool
    def __init__(self, server: _Optional[_Union[ServerReport, _Mapping]] = ..., models: _Optional[_Iterable[_Union[ModelReport, _Mapping]]] = ..., notes: _Optional[_Iterable[str]] = ..., revision: _Optional[int] = ..., since: _Optional[int] = ..., gone: _Optional[_Iterable[str]] = ..., newest: _Optional[int] = ..., behind: bool = ...) -> None: ...

class ServerReport(_message.Message):
    __slots__ = ("state", "tfs_version", "torch_version", "started_s", "listeners", "memory_limit_bytes", "memory_reserved_bytes", "resident_bytes", "stats", "num_reserve_processes", "reserve_bytes", "fleet")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STATE_UNSPECIFIED: _ClassVar[ServerReport.State]
        STARTING: _ClassVar[ServerReport.State]
        SERVING: _ClassVar[ServerReport.State]
        DRAINING: _ClassVar[ServerReport.State]
        NOT_SERVING: _ClassVar[ServerReport.State]
    STATE_UNSPECIFIED: ServerReport.State
    STARTING: ServerReport.State
    SERVING: ServerReport.State
    DRAINING: ServerReport.State
    NOT_SERVING: ServerReport.State
    STATE_FIELD_NUMBER: _ClassVar[int]
    TFS_VERSION_FIELD_NUMBER: _ClassVar[int]
    TORCH_VERSION_FIELD_NUMBER: _ClassVar[int]
    STARTED_S_FIELD_NUMBER: _ClassVar[int]
    LISTENERS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_LIMIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_RESERVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    RESIDENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    STATS_FIELD_NUMBER: _ClassVar[int]
    NUM_RESERVE_PROCESSES_FIELD_NUMBER: _ClassVar[int]
    RESERVE_BYTES_FIELD_NUMBER: _ClassVar[int]
    FLEET_FIELD_NUMBER: _ClassVar[int]
    state: ServerReport.State
    tfs_version: str
    torch_version: str
    started_s: float
    listeners: _containers.RepeatedCompositeFieldContainer[ListenerReport]
    memory_limit_bytes: int
    memory_reserved_bytes: int
    resident_bytes: int
    stats: _containers.RepeatedCompositeFieldContainer[Stat]
    num_reserve_processes: int
    reserve_bytes: int
    fleet: FleetClaim
    def __init__(self, state: _Optional[_Union[ServerReport.State, str]] = ..., tfs_version: _Optional[str] = ..., torch_version: _Optional[str] = ..., started_s: _Optional[float] = ..., listeners: _Optional[_Iterable[_Union[ListenerReport, _Mapping]]] = ..., memory_limit_bytes: _Optional[int] = ..., memory_reserved_bytes: _Optional[int] = ..., resident_bytes: _Optional[int] = ..., stats: _Optional[_Iterable[_Union[Stat, _Mapping]]] = ..., num_reserve_processes: _Optional[int] = ..., reserve_bytes: _Optional[int] = ..., fleet: _Optional[_Union[FleetClaim, _Mapping]] = ...) -> None: ...

class Stat(_message.Message):
    __slots__ = ("name", "labels", "value", "histogram")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    HISTOGRAM_FIELD_NUMBER: _ClassVar[int]
    name: str
    labels: _containers.ScalarMap[str, str]
    value: float
    histogram: Histogram
    def __init__(self, name: _Optional[str] = ..., labels: _Optional[_Mapping[str, str]] = ..., value: _Optional[float] = ..., histogram: _Optional[_Union[Histogram, _Mapping]] = ...) -> None: ...

class ListenerReport(_message.Message):
    __slots__ = ("address", "services", "tls")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    SERVICES_FIELD_NUMBER: _ClassVar[int]
    TLS_FIELD_NUMBER: _ClassVar[int]
    address: str
    services: _containers.RepeatedScalarFieldContainer[str]
    tls: bool
    def __init__(self, address: _Optional[str] = ..., services: _Optional[_Iterable[str]] = ..., tls: bool = ...) -> None: ...

class ModelReport(_message.Message):
    __slots__ = ("name", "base_path", "platform", "versions", "labels", "primary", "canary", "overridden", "error", "notes", "request_s", "residency")
    class Residency(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        ALWAYS: _ClassVar[ModelReport.Residency]
        REGISTERED: _ClassVar[ModelReport.Residency]
        RESIDENT: _ClassVar[ModelReport.Residency]
    ALWAYS: ModelReport.Residency
    REGISTERED: ModelReport.Residency
    RESIDENT: ModelReport.Residency
    NAME_FIELD_NUMBER: _ClassVar[int]
    BASE_PATH_FIELD_NUMBER: _ClassVar[int]
    PLATFORM_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    PRIMARY_FIELD_NUMBER: _ClassVar[int]
    CANARY_FIELD_NUMBER: _ClassVar[int]
    OVERRIDDEN_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    REQUEST_S_FIELD_NUMBER: _ClassVar[int]
    RESIDENCY_FIELD_NUMBER: _ClassVar[int]
    name: str
    base_path: str
    platform: str
    versions: _containers.RepeatedCompositeFieldContainer[VersionReport]
    labels: _containers.RepeatedCompositeFieldContainer[LabelReport]
    primary: int
    canary: CanaryReport
    overridden: bool
    error: _status_pb2.Status
    notes: _containers.RepeatedScalarFieldContainer[str]
    request_s: float
    residency: ModelReport.Residency
    def __init__(self, name: _Optional[str] = ..., base_path: _Optional[str] = ..., platform: _Optional[str] = ..., versions: _Optional[_Iterable[_Union[VersionReport, _Mapping]]] = ..., labels: _Optional[_Iterable[_Union[LabelReport, _Mapping]]] = ..., primary: _Optional[int] = ..., canary: _Optional[_Union[CanaryReport, _Mapping]] = ..., overridden: bool = ..., error: _Optional[_Union[_status_pb2.Status, _Mapping]] = ..., notes: _Optional[_Iterable[str]] = ..., request_s: _Optional[float] = ..., residency: _Optional[_Union[ModelReport.Residency, str]] = ...) -> None: ...

class LabelReport(_message.Message):
    __slots__ = ("label", "version", "pending_version")
    LABEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PENDING_VERSION_FIELD_NUMBER: _ClassVar[int]
    label: str
    version: int
    pending_version: int
    def __init__(self, label: _Optional[str] = ..., version: _Optional[int] = ..., pending_version: _Optional[int] = ...) -> None: ...

class VersionReport(_message.Message):
    __slots__ = ("version", "state", "reason", "error", "since_s", "notes", "path", "code_digest", "memory", "load", "placement", "signatures", "quarantined", "skew")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    SINCE_S_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    CODE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    PLACEMENT_FIELD_NUMBER: _ClassVar[int]
    SIGNATURES_FIELD_NUMBER: _ClassVar[int]
    QUARANTINED_FIELD_NUMBER: _ClassVar[int]
    SKEW_FIELD_NUMBER: _ClassVar[int]
    version: int
    state: _get_model_status_pb2.ModelVersionStatus.State
    reason: str
    error: _status_pb2.Status
    since_s: float
    notes: _containers.RepeatedScalarFieldContainer[str]
    path: str
    code_digest: str
    memory: MemoryReport
    load: LoadReport
    placement: PlacementReport
    signatures: _containers.RepeatedCompositeFieldContainer[SignatureReport]
    quarantined: bool
    skew: str
    def __init__(self, version: _Optional[int] = ..., state: _Optional[_Union[_get_model_status_pb2.ModelVersionStatus.State, str]] = ..., reason: _Optional[str] = ..., error: _Optional[_Union[_status_pb2.Status, _Mapping]] = ..., since_s: _Optional[float] = ..., notes: _Optional[_Iterable[str]] = ..., path: _Optional[str] = ..., code_digest: _Optional[str] = ..., memory: _Optional[_Union[MemoryReport, _Mapping]] = ..., load: _Optional[_Union[LoadReport, _Mapping]] = ..., placement: _Optional[_Union[PlacementReport, _Mapping]] = ..., signatures: _Optional[_Iterable[_Union[SignatureReport, _Mapping]]] = ..., quarantined: bool = ..., skew: _Optional[str] = ...) -> None: ...

class MemoryReport(_message.Message):
    __slots__ = ("resident_bytes", "reserved_bytes", "load_peak_bytes", "call_peak_bytes")
    RESIDENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    RESERVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    LOAD_PEAK_BYTES_FIELD_NUMBER: _ClassVar[int]
    CALL_PEAK_BYTES_FIELD_NUMBER: _ClassVar[int]
    resident_bytes: int
    reserved_bytes: int
    load_peak_bytes: int
    call_peak_bytes: int
    def __init__(self, resident_bytes: _Optional[int] = ..., reserved_bytes: _Optional[int] = ..., load_peak_bytes: _Optional[int] = ..., call_peak_bytes: _Optional[int] = ...) -> None: ...

class LoadReport(_message.Message):
    __slots__ = ("num_retries", "next_attempt_s", "duration_s", "import_s", "num_warmup_requests", "waiting")
    NUM_RETRIES_FIELD_NUMBER: _ClassVar[int]
    NEXT_ATTEMPT_S_FIELD_NUMBER: _ClassVar[int]
    DURATION_S_FIELD_NUMBER: _ClassVar[int]
    IMPORT_S_FIELD_NUMBER: _ClassVar[int]
    NUM_WARMUP_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    num_retries: int
    next_attempt_s: float
    duration_s: float
    import_s: float
    num_warmup_requests: int
    waiting: str
    def __init__(self, num_retries: _Optional[int] = ..., next_attempt_s: _Optional[float] = ..., duration_s: _Optional[float] = ..., import_s: _Optional[float] = ..., num_warmup_requests: _Optional[int] = ..., waiting: _Optional[str] = ...) -> None: ...

class PlacementReport(_message.Message):
    __slots__ = ("place", "why", "device", "interpreters", "intra_op_threads", "num_crashes", "last_crash")
    class Place(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        PLACE_UNSPECIFIED: _ClassVar[PlacementReport.Place]
        FRONT: _ClassVar[PlacementReport.Place]
        INLINE: _ClassVar[PlacementReport.Place]
        PROCESS: _ClassVar[PlacementReport.Place]
        DLMOPEN: _ClassVar[PlacementReport.Place]
    PLACE_UNSPECIFIED: PlacementReport.Place
    FRONT: PlacementReport.Place
    INLINE: PlacementReport.Place
    PROCESS: PlacementReport.Place
    DLMOPEN: PlacementReport.Place
    PLACE_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    INTERPRETERS_FIELD_NUMBER: _ClassVar[int]
    INTRA_OP_THREADS_FIELD_NUMBER: _ClassVar[int]
    NUM_CRASHES_FIELD_NUMBER: _ClassVar[int]
    LAST_CRASH_FIELD_NUMBER: _ClassVar[int]
    place: PlacementReport.Place
    why: str
    device: str
    interpreters: _containers.RepeatedCompositeFieldContainer[InterpreterReport]
    intra_op_threads: int
    num_crashes: int
    last_crash: str
    def __init__(self, place: _Optional[_Union[PlacementReport.Place, str]] = ..., why: _Optional[str] = ..., device: _Optional[str] = ..., interpreters: _Optional[_Iterable[_Union[InterpreterReport, _Mapping]]] = ..., intra_op_threads: _Optional[int] = ..., num_crashes: _Optional[int] = ..., last_crash: _Optional[str] = ...) -> None: ...

class InterpreterReport(_message.Message):
    __slots__ = ("pid", "since_s", "private_bytes")
    PID_FIELD_NUMBER: _ClassVar[int]
    SINCE_S_FIELD_NUMBER: _ClassVar[int]
    PRIVATE_BYTES_FIELD_NUMBER: _ClassVar[int]
    pid: int
    since_s: float
    private_bytes: int
    def __init__(self, pid: _Optional[int] = ..., since_s: _Optional[float] = ..., private_bytes: _Optional[int] = ...) -> None: ...

class SignatureReport(_message.Message):
    __slots__ = ("name", "method", "batching", "call_s_by_rows", "requests", "example_error")
    class CallSByRowsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: float
        def __init__(self, key: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    BATCHING_FIELD_NUMBER: _ClassVar[int]
    CALL_S_BY_ROWS_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    EXAMPLE_ERROR_FIELD_NUMBER: _ClassVar[int]
    name: str
    method: str
    batching: BatchingReport
    call_s_by_rows: _containers.ScalarMap[int, float]
    requests: RequestStats
    example_error: str
    def __init__(self, name: _Optional[str] = ..., method: _Optional[str] = ..., batching: _Optional[_Union[BatchingReport, _Mapping]] = ..., call_s_by_rows: _Optional[_Mapping[int, float]] = ..., requests: _Optional[_Union[RequestStats, _Mapping]] = ..., example_error: _Optional[str] = ...) -> None: ...

class RequestStats(_message.Message):
    __slots__ = ("num_requests", "num_errors_by_code", "num_in_flight", "latency_s")
    class NumErrorsByCodeEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    NUM_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    NUM_ERRORS_BY_CODE_FIELD_NUMBER: _ClassVar[int]
    NUM_IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    LATENCY_S_FIELD_NUMBER: _ClassVar[int]
    num_requests: int
    num_errors_by_code: _containers.ScalarMap[int, int]
    num_in_flight: int
    latency_s: Histogram
    def __init__(self, num_requests: _Optional[int] = ..., num_errors_by_code: _Optional[_Mapping[int, int]] = ..., num_in_flight: _Optional[int] = ..., latency_s: _Optional[_Union[Histogram, _Mapping]] = ...) -> None: ...

class BatchingReport(_message.Message):
    __slots__ = ("enabled", "why", "parameters", "queues", "bypass")
    ENABLED_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    BYPASS_FIELD_NUMBER: _ClassVar[int]
    enabled: bool
    why: str
    parameters: _session_bundle_config_pb2.BatchingParameters
    queues: _containers.RepeatedCompositeFieldContainer[QueueStats]
    bypass: BypassStats
    def __init__(self, enabled: bool = ..., why: _Optional[str] = ..., parameters: _Optional[_Union[_session_bundle_config_pb2.BatchingParameters, _Mapping]] = ..., queues: _Optional[_Iterable[_Union[QueueStats, _Mapping]]] = ..., bypass: _Optional[_Union[BypassStats, _Mapping]] = ...) -> None: ...

class BypassStats(_message.Message):
    __slots__ = ("num_requests", "num_rows", "num_calls")
    NUM_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    NUM_ROWS_FIELD_NUMBER: _ClassVar[int]
    NUM_CALLS_FIELD_NUMBER: _ClassVar[int]
    num_requests: int
    num_rows: int
    num_calls: int
    def __init__(self, num_requests: _Optional[int] = ..., num_rows: _Optional[int] = ..., num_calls: _Optional[int] = ...) -> None: ...

class QueueStats(_message.Message):
    __slots__ = ("input_names", "num_waiting_tasks", "num_waiting_rows", "num_tasks", "num_completed_tasks", "num_rejected_tasks", "num_expired_tasks", "num_cancelled_tasks", "num_failed_tasks", "num_split_tasks", "num_batches", "num_rows", "num_padding_rows", "num_retried_batches", "batch_rows", "batch_fill", "wait_s", "execution_s", "depth_tasks", "requests_in_common")
    INPUT_NAMES_FIELD_NUMBER: _ClassVar[int]
    NUM_WAITING_TASKS_FIELD_NUMBER: _ClassVar[int]
    NUM_WAITING_ROWS_FIELD_NUMBER: _ClassVar[int]
    NUM_TASKS_FIELD_NUMBER: _ClassVar[int]
    NUM_COMPLETED_TASKS_FIELD_NUMBER: _ClassVar[int]
    NUM_REJECTED_TASKS_FIELD_NUMBER: _ClassVar[int]
    NUM_EXPIRED_TASKS_FIELD_NUMBER: _ClassVar[int]
    NUM_CANCELLED_TASKS_FIELD_NUMBER: _ClassVar[int]
    NUM_FAILED_TASKS_FIELD_NUMBER: _ClassVar[int]
    NUM_SPLIT_TASKS_FIELD_NUMBER: _ClassVar[int]
    NUM_BATCHES_FIELD_NUMBER: _ClassVar[int]
    NUM_ROWS_FIELD_NUMBER: _ClassVar[int]
    NUM_PADDING_ROWS_FIELD_NUMBER: _ClassVar[int]
    NUM_RETRIED_BATCHES_FIELD_NUMBER: _ClassVar[int]
    BATCH_ROWS_FIELD_NUMBER: _ClassVar[int]
    BATCH_FILL_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    EXECUTION_S_FIELD_NUMBER: _ClassVar[int]
    DEPTH_TASKS_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_IN_COMMON_FIELD_NUMBER: _ClassVar[int]
    input_names: _containers.RepeatedScalarFieldContainer[str]
    num_waiting_tasks: int
    num_waiting_rows: int
    num_tasks: int
    num_completed_tasks: int
    num_rejected_tasks: int
    num_expired_tasks: int
    num_cancelled_tasks: int
    num_failed_tasks: int
    num_split_tasks: int
    num_batches: int
    num_rows: int
    num_padding_rows: int
    num_retried_batches: int
    batch_rows: Histogram
    batch_fill: Histogram
    wait_s: Histogram
    execution_s: Histogram
    depth_tasks: Histogram
    requests_in_common: str
    def __init__(self, input_names: _Optional[_Iterable[str]] = ..., num_waiting_tasks: _Optional[int] = ..., num_waiting_rows: _Optional[int] = ..., num_tasks: _Optional[int] = ..., num_completed_tasks: _Optional[int] = ..., num_rejected_tasks: _Optional[int] = ..., num_expired_tasks: _Optional[int] = ..., num_cancelled_tasks: _Optional[int] = ..., num_failed_tasks: _Optional[int] = ..., num_split_tasks: _Optional[int] = ..., num_batches: _Optional[int] = ..., num_rows: _Optional[int] = ..., num_padding_rows: _Optional[int] = ..., num_retried_batches: _Optional[int] = ..., batch_rows: _Optional[_Union[Histogram, _Mapping]] = ..., batch_fill: _Optional[_Union[Histogram, _Mapping]] = ..., wait_s: _Optional[_Union[Histogram, _Mapping]] = ..., execution_s: _Optional[_Union[Histogram, _Mapping]] = ..., depth_tasks: _Optional[_Union[Histogram, _Mapping]] = ..., requests_in_common: _Optional[str] = ...) -> None: ...

class Histogram(_message.Message):
    __slots__ = ("bounds", "counts", "total")
    BOUNDS_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    bounds: _containers.RepeatedScalarFieldContainer[float]
    counts: _containers.RepeatedScalarFieldContainer[int]
    total: float
    def __init__(self, bounds: _Optional[_Iterable[float]] = ..., counts: _Optional[_Iterable[int]] = ..., total: _Optional[float] = ...) -> None: ...

class CanaryReport(_message.Message):
    __slots__ = ("phase", "reason", "since_s", "canary", "primary", "total", "by_signature", "guards", "num_teed_requests", "num_dropped_tees", "num_split_to_primary", "num_split_to_canary")
    class Phase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        PHASE_UNSPECIFIED: _ClassVar[CanaryReport.Phase]
        WAITING: _ClassVar[CanaryReport.Phase]
        RUNNING: _ClassVar[CanaryReport.Phase]
        REJECTED: _ClassVar[CanaryReport.Phase]
    PHASE_UNSPECIFIED: CanaryReport.Phase
    WAITING: CanaryReport.Phase
    RUNNING: CanaryReport.Phase
    REJECTED: CanaryReport.Phase
    class BySignatureEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Comparison
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Comparison, _Mapping]] = ...) -> None: ...
    PHASE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SINCE_S_FIELD_NUMBER: _ClassVar[int]
    CANARY_FIELD_NUMBER: _ClassVar[int]
    PRIMARY_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    BY_SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    GUARDS_FIELD_NUMBER: _ClassVar[int]
    NUM_TEED_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    NUM_DROPPED_TEES_FIELD_NUMBER: _ClassVar[int]
    NUM_SPLIT_TO_PRIMARY_FIELD_NUMBER: _ClassVar[int]
    NUM_SPLIT_TO_CANARY_FIELD_NUMBER: _ClassVar[int]
    phase: CanaryReport.Phase
    reason: str
    since_s: float
    canary: _model_config_pb2.Canary
    primary: int
    total: Comparison
    by_signature: _containers.MessageMap[str, Comparison]
    guards: _containers.RepeatedCompositeFieldContainer[GuardReport]
    num_teed_requests: int
    num_dropped_tees: int
    num_split_to_primary: int
    num_split_to_canary: int
    def __init__(self, phase: _Optional[_Union[CanaryReport.Phase, str]] = ..., reason: _Optional[str] = ..., since_s: _Optional[float] = ..., canary: _Optional[_Union[_model_config_pb2.Canary, _Mapping]] = ..., primary: _Optional[int] = ..., total: _Optional[_Union[Comparison, _Mapping]] = ..., by_signature: _Optional[_Mapping[str, Comparison]] = ..., guards: _Optional[_Iterable[_Union[GuardReport, _Mapping]]] = ..., num_teed_requests: _Optional[int] = ..., num_dropped_tees: _Optional[int] = ..., num_split_to_primary: _Optional[int] = ..., num_split_to_canary: _Optional[int] = ...) -> None: ...

class Comparison(_message.Message):
    __slots__ = ("num_requests", "num_rows", "num_incomparable", "max_abs_diff", "mean_abs_diff", "top1_disagreement", "primary_error_rate", "canary_error_rate", "primary_latency_s", "canary_latency_s", "latency_ratio")
    NUM_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    NUM_ROWS_FIELD_NUMBER: _ClassVar[int]
    NUM_INCOMPARABLE_FIELD_NUMBER: _ClassVar[int]
    MAX_ABS_DIFF_FIELD_NUMBER: _ClassVar[int]
    MEAN_ABS_DIFF_FIELD_NUMBER: _ClassVar[int]
    TOP1_DISAGREEMENT_FIELD_NUMBER: _ClassVar[int]
    PRIMARY_ERROR_RATE_FIELD_NUMBER: _ClassVar[int]
    CANARY_ERROR_RATE_FIELD_NUMBER: _ClassVar[int]
    PRIMARY_LATENCY_S_FIELD_NUMBER: _ClassVar[int]
    CANARY_LATENCY_S_FIELD_NUMBER: _ClassVar[int]
    LATENCY_RATIO_FIELD_NUMBER: _ClassVar[int]
    num_requests: int
    num_rows: int
    num_incomparable: int
    max_abs_diff: float
    mean_abs_diff: float
    top1_disagreement: float
    primary_error_rate: float
    canary_error_rate: float
    primary_latency_s: Histogram
    canary_latency_s: Histogram
    latency_ratio: float
    def __init__(self, num_requests: _Optional[int] = ..., num_rows: _Optional[int] = ..., num_incomparable: _Optional[int] = ..., max_abs_diff: _Optional[float] = ..., mean_abs_diff: _Optional[float] = ..., top1_disagreement: _Optional[float] = ..., primary_error_rate: _Optional[float] = ..., canary_error_rate: _Optional[float] = ..., primary_latency_s: _Optional[_Union[Histogram, _Mapping]] = ..., canary_latency_s: _Optional[_Union[Histogram, _Mapping]] = ..., latency_ratio: _Optional[float] = ...) -> None: ...

class GuardReport(_message.Message):
    __slots__ = ("name", "limit", "value", "exceeded")
    NAME_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    EXCEEDED_FIELD_NUMBER: _ClassVar[int]
    name: str
    limit: float
    value: float
    exceeded: bool
    def __init__(self, name: _Optional[str] = ..., limit: _Optional[float] = ..., value: _Optional[float] = ..., exceeded: bool = ...) -> None: ...

class GetConfigRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetConfigResponse(_message.Message):
    __slots__ = ("base", "overrides", "effective", "effective_text", "models", "last_refusal", "overrides_path", "notes")
    BASE_FIELD_NUMBER: _ClassVar[int]
    OVERRIDES_FIELD_NUMBER: _ClassVar[int]
    EFFECTIVE_FIELD_NUMBER: _ClassVar[int]
    EFFECTIVE_TEXT_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    LAST_REFUSAL_FIELD_NUMBER: _ClassVar[int]
    OVERRIDES_PATH_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    base: BaseReport
    overrides: _containers.RepeatedCompositeFieldContainer[OverrideReport]
    effective: _model_server_config_pb2.ModelServerConfig
    effective_text: str
    models: _containers.RepeatedCompositeFieldContainer[ModelReport]
    last_refusal: RefusalReport
    overrides_path: str
    notes: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, base: _Optional[_Union[BaseReport, _Mapping]] = ..., overrides: _Optional[_Iterable[_Union[OverrideReport, _Mapping]]] = ..., effective: _Optional[_Union[_model_server_config_pb2.ModelServerConfig, _Mapping]] = ..., effective_text: _Optional[str] = ..., models: _Optional[_Iterable[_Union[ModelReport, _Mapping]]] = ..., last_refusal: _Optional[_Union[RefusalReport, _Mapping]] = ..., overrides_path: _Optional[str] = ..., notes: _Optional[_Iterable[str]] = ...) -> None: ...

class BaseReport(_message.Message):
    __slots__ = ("origin", "path", "since_s", "survives_restart", "config", "text")
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    SINCE_S_FIELD_NUMBER: _ClassVar[int]
    SURVIVES_RESTART_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    origin: ConfigOrigin
    path: str
    since_s: float
    survives_restart: bool
    config: _model_server_config_pb2.ModelServerConfig
    text: str
    def __init__(self, origin: _Optional[_Union[ConfigOrigin, str]] = ..., path: _Optional[str] = ..., since_s: _Optional[float] = ..., survives_restart: bool = ..., config: _Optional[_Union[_model_server_config_pb2.ModelServerConfig, _Mapping]] = ..., text: _Optional[str] = ...) -> None: ...

class OverrideReport(_message.Message):
    __slots__ = ("config", "active", "why_inactive", "made_by", "since_s", "persisted")
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_FIELD_NUMBER: _ClassVar[int]
    WHY_INACTIVE_FIELD_NUMBER: _ClassVar[int]
    MADE_BY_FIELD_NUMBER: _ClassVar[int]
    SINCE_S_FIELD_NUMBER: _ClassVar[int]
    PERSISTED_FIELD_NUMBER: _ClassVar[int]
    config: _model_server_config_pb2.ModelConfig
    active: bool
    why_inactive: str
    made_by: str
    since_s: float
    persisted: bool
    def __init__(self, config: _Optional[_Union[_model_server_config_pb2.ModelConfig, _Mapping]] = ..., active: bool = ..., why_inactive: _Optional[str] = ..., made_by: _Optional[str] = ..., since_s: _Optional[float] = ..., persisted: bool = ...) -> None: ...

class RefusalReport(_message.Message):
    __slots__ = ("origin", "path", "at_s", "error")
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    AT_S_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    origin: ConfigOrigin
    path: str
    at_s: float
    error: _status_pb2.Status
    def __init__(self, origin: _Optional[_Union[ConfigOrigin, str]] = ..., path: _Optional[str] = ..., at_s: _Optional[float] = ..., error: _Optional[_Union[_status_pb2.Status, _Mapping]] = ...) -> None: ...

class ApplyConfigRequest(_message.Message):
    __slots__ = ("config", "text", "validate_only", "text_name")
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    TEXT_NAME_FIELD_NUMBER: _ClassVar[int]
    config: _model_server_config_pb2.ModelServerConfig
    text: str
    validate_only: bool
    text_name: str
    def __init__(self, config: _Optional[_Union[_model_server_config_pb2.ModelServerConfig, _Mapping]] = ..., text: _Optional[str] = ..., validate_only: bool = ..., text_name: _Optional[str] = ...) -> None: ...

class ApplyConfigResponse(_message.Message):
    __slots__ = ("status", "applied", "models", "notes")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    status: _status_pb2.Status
    applied: bool
    models: _containers.RepeatedCompositeFieldContainer[ModelOutcome]
    notes: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, status: _Optional[_Union[_status_pb2.Status, _Mapping]] = ..., applied: bool = ..., models: _Optional[_Iterable[_Union[ModelOutcome, _Mapping]]] = ..., notes: _Optional[_Iterable[str]] = ...) -> None: ...

class ModelOutcome(_message.Message):
    __slots__ = ("model", "change", "changed_fields", "status", "available_versions", "pending_versions", "overridden")
    class Change(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UNCHANGED: _ClassVar[ModelOutcome.Change]
        ADDED: _ClassVar[ModelOutcome.Change]
        CHANGED: _ClassVar[ModelOutcome.Change]
        REMOVED: _ClassVar[ModelOutcome.Change]
    UNCHANGED: ModelOutcome.Change
    ADDED: ModelOutcome.Change
    CHANGED: ModelOutcome.Change
    REMOVED: ModelOutcome.Change
    MODEL_FIELD_NUMBER: _ClassVar[int]
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    CHANGED_FIELDS_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    AVAILABLE_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    PENDING_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    OVERRIDDEN_FIELD_NUMBER: _ClassVar[int]
    model: str
    change: ModelOutcome.Change
    changed_fields: _containers.RepeatedScalarFieldContainer[str]
    status: _status_pb2.Status
    available_versions: _containers.RepeatedScalarFieldContainer[int]
    pending_versions: _containers.RepeatedScalarFieldContainer[int]
    overridden: bool
    def __init__(self, model: _Optional[str] = ..., change: _Optional[_Union[ModelOutcome.Change, str]] = ..., changed_fields: _Optional[_Iterable[str]] = ..., status: _Optional[_Union[_status_pb2.Status, _Mapping]] = ..., available_versions: _Optional[_Iterable[int]] = ..., pending_versions: _Optional[_Iterable[int]] = ..., overridden: bool = ...) -> None: ...

class OverrideOutcome(_message.Message):
    __slots__ = ("override", "changed", "model", "notes")
    OVERRIDE_FIELD_NUMBER: _ClassVar[int]
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    override: OverrideReport
    changed: bool
    model: ModelReport
    notes: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, override: _Optional[_Union[OverrideReport, _Mapping]] = ..., changed: bool = ..., model: _Optional[_Union[ModelReport, _Mapping]] = ..., notes: _Optional[_Iterable[str]] = ...) -> None: ...

class SetCanaryRequest(_message.Message):
    __slots__ = ("model", "canary", "validate_only")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    CANARY_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    model: str
    canary: _model_config_pb2.Canary
    validate_only: bool
    def __init__(self, model: _Optional[str] = ..., canary: _Optional[_Union[_model_config_pb2.Canary, _Mapping]] = ..., validate_only: bool = ...) -> None: ...

class SetCanaryResponse(_message.Message):
    __slots__ = ("outcome",)
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    outcome: OverrideOutcome
    def __init__(self, outcome: _Optional[_Union[OverrideOutcome, _Mapping]] = ...) -> None: ...

class PromoteRequest(_message.Message):
    __slots__ = ("model", "version", "force", "validate_only")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: int
    force: bool
    validate_only: bool
    def __init__(self, model: _Optional[str] = ..., version: _Optional[int] = ..., force: bool = ..., validate_only: bool = ...) -> None: ...

class PromoteResponse(_message.Message):
    __slots__ = ("outcome", "version")
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    outcome: OverrideOutcome
    version: int
    def __init__(self, outcome: _Optional[_Union[OverrideOutcome, _Mapping]] = ..., version: _Optional[int] = ...) -> None: ...

class RollbackRequest(_message.Message):
    __slots__ = ("model", "version", "end", "validate_only")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: int
    end: bool
    validate_only: bool
    def __init__(self, model: _Optional[str] = ..., version: _Optional[int] = ..., end: bool = ..., validate_only: bool = ...) -> None: ...

class RollbackResponse(_message.Message):
    __slots__ = ("outcome", "version")
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    outcome: OverrideOutcome
    version: int
    def __init__(self, outcome: _Optional[_Union[OverrideOutcome, _Mapping]] = ..., version: _Optional[int] = ...) -> None: ...

class ResetOverrideRequest(_message.Message):
    __slots__ = ("model", "validate_only")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    model: str
    validate_only: bool
    def __init__(self, model: _Optional[str] = ..., validate_only: bool = ...) -> None: ...

class ResetOverrideResponse(_message.Message):
    __slots__ = ("outcome",)
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    outcome: OverrideOutcome
    def __init__(self, outcome: _Optional[_Union[OverrideOutcome, _Mapping]] = ...) -> None: ...

class RetryLoadRequest(_message.Message):
    __slots__ = ("model", "version", "validate_only")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: int
    validate_only: bool
    def __init__(self, model: _Optional[str] = ..., version: _Optional[int] = ..., validate_only: bool = ...) -> None: ...

class RetryLoadResponse(_message.Message):
    __slots__ = ("status", "versions", "model", "notes")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    status: _status_pb2.Status
    versions: _containers.RepeatedScalarFieldContainer[int]
    model: ModelReport
    notes: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, status: _Optional[_Union[_status_pb2.Status, _Mapping]] = ..., versions: _Optional[_Iterable[int]] = ..., model: _Optional[_Union[ModelReport, _Mapping]] = ..., notes: _Optional[_Iterable[str]] = ...) -> None: ...

class FleetClaim(_message.Message):
    __slots__ = ("fleet", "name", "epoch", "revision", "sequence")
    FLEET_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    fleet: str
    name: str
    epoch: int
    revision: int
    sequence: int
    def __init__(self, fleet: _Optional[str] = ..., name: _Optional[str] = ..., epoch: _Optional[int] = ..., revision: _Optional[int] = ..., sequence: _Optional[int] = ...) -> None: ...

class AspireRequest(_message.Message):
    __slots__ = ("claim", "config", "num_models", "take_over")
    CLAIM_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    NUM_MODELS_FIELD_NUMBER: _ClassVar[int]
    TAKE_OVER_FIELD_NUMBER: _ClassVar[int]
    claim: FleetClaim
    config: _model_server_config_pb2.ModelServerConfig
    num_models: int
    take_over: bool
    def __init__(self, claim: _Optional[_Union[FleetClaim, _Mapping]] = ..., config: _Optional[_Union[_model_server_config_pb2.ModelServerConfig, _Mapping]] = ..., num_models: _Optional[int] = ..., take_over: bool = ...) -> None: ...

class AspireResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LeaveFleetRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LeaveFleetResponse(_message.Message):
    __slots__ = ("claim",)
    CLAIM_FIELD_NUMBER: _ClassVar[int]
    claim: FleetClaim
    def __init__(self, claim: _Optional[_Union[FleetClaim, _Mapping]] = ...) -> None: ...

class GetPageRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetPageResponse(_message.Message):
    __slots__ = ("addresses", "tls", "key")
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    TLS_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    addresses: _containers.RepeatedScalarFieldContainer[str]
    tls: bool
    key: str
    def __init__(self, addresses: _Optional[_Iterable[str]] = ..., tls: bool = ..., key: _Optional[str] = ...) -> None: ...

class ProbeRequest(_message.Message):
    __slots__ = ("config", "version")
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    config: _model_server_config_pb2.ModelConfig
    version: int
    def __init__(self, config: _Optional[_Union[_model_server_config_pb2.ModelConfig, _Mapping]] = ..., version: _Optional[int] = ...) -> None: ...

class ProbeResponse(_message.Message):
    __slots__ = ("outcome", "reason", "load_peak_bytes", "work_peak_bytes")
    class Outcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        OUTCOME_UNSPECIFIED: _ClassVar[ProbeResponse.Outcome]
        OK: _ClassVar[ProbeResponse.Outcome]
        REFUSED: _ClassVar[ProbeResponse.Outcome]
        CRASHED: _ClassVar[ProbeResponse.Outcome]
    OUTCOME_UNSPECIFIED: ProbeResponse.Outcome
    OK: ProbeResponse.Outcome
    REFUSED: ProbeResponse.Outcome
    CRASHED: ProbeResponse.Outcome
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    LOAD_PEAK_BYTES_FIELD_NUMBER: _ClassVar[int]
    WORK_PEAK_BYTES_FIELD_NUMBER: _ClassVar[int]
    outcome: ProbeResponse.Outcome
    reason: str
    load_peak_bytes: int
    work_peak_bytes: int
    def __init__(self, outcome: _Optional[_Union[ProbeResponse.Outcome, str]] = ..., reason: _Optional[str] = ..., load_peak_bytes: _Optional[int] = ..., work_peak_bytes: _Optional[int] = ...) -> None: ...
