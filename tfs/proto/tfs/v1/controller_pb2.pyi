from tfs.proto.tfs.v1 import model_config_pb2 as _model_config_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Edit(_message.Message):
    __slots__ = ("request_id", "if_generation", "wait_s")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    IF_GENERATION_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    if_generation: int
    wait_s: float
    def __init__(self, request_id: _Optional[str] = ..., if_generation: _Optional[int] = ..., wait_s: _Optional[float] = ...) -> None: ...

class Op(_message.Message):
    __slots__ = ("request_id", "what", "model", "job", "revision", "generation", "waits_for", "notes", "version", "num_servers")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    WHAT_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    WAITS_FOR_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    NUM_SERVERS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    what: str
    model: str
    job: str
    revision: int
    generation: int
    waits_for: str
    notes: _containers.RepeatedScalarFieldContainer[str]
    version: int
    num_servers: int
    def __init__(self, request_id: _Optional[str] = ..., what: _Optional[str] = ..., model: _Optional[str] = ..., job: _Optional[str] = ..., revision: _Optional[int] = ..., generation: _Optional[int] = ..., waits_for: _Optional[str] = ..., notes: _Optional[_Iterable[str]] = ..., version: _Optional[int] = ..., num_servers: _Optional[int] = ...) -> None: ...

class AddModelRequest(_message.Message):
    __slots__ = ("edit", "model", "base_path", "config", "hints", "partition")
    EDIT_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    BASE_PATH_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    HINTS_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    edit: Edit
    model: str
    base_path: str
    config: str
    hints: Hints
    partition: str
    def __init__(self, edit: _Optional[_Union[Edit, _Mapping]] = ..., model: _Optional[str] = ..., base_path: _Optional[str] = ..., config: _Optional[str] = ..., hints: _Optional[_Union[Hints, _Mapping]] = ..., partition: _Optional[str] = ...) -> None: ...

class UpdateModelRequest(_message.Message):
    __slots__ = ("edit", "model", "base_path", "config", "partition")
    EDIT_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    BASE_PATH_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    edit: Edit
    model: str
    base_path: str
    config: str
    partition: str
    def __init__(self, edit: _Optional[_Union[Edit, _Mapping]] = ..., model: _Optional[str] = ..., base_path: _Optional[str] = ..., config: _Optional[str] = ..., partition: _Optional[str] = ...) -> None: ...

class RemoveModelRequest(_message.Message):
    __slots__ = ("edit", "model")
    EDIT_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    edit: Edit
    model: str
    def __init__(self, edit: _Optional[_Union[Edit, _Mapping]] = ..., model: _Optional[str] = ...) -> None: ...

class AddVersionRequest(_message.Message):
    __slots__ = ("edit", "model", "version", "files_follow")
    EDIT_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    FILES_FOLLOW_FIELD_NUMBER: _ClassVar[int]
    edit: Edit
    model: str
    version: int
    files_follow: bool
    def __init__(self, edit: _Optional[_Union[Edit, _Mapping]] = ..., model: _Optional[str] = ..., version: _Optional[int] = ..., files_follow: bool = ...) -> None: ...

class SetPolicyRequest(_message.Message):
    __slots__ = ("edit", "model", "latest", "pinned", "canary", "rollback")
    EDIT_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    LATEST_FIELD_NUMBER: _ClassVar[int]
    PINNED_FIELD_NUMBER: _ClassVar[int]
    CANARY_FIELD_NUMBER: _ClassVar[int]
    ROLLBACK_FIELD_NUMBER: _ClassVar[int]
    edit: Edit
    model: str
    latest: Latest
    pinned: Pinned
    canary: CanaryPolicy
    rollback: Rollback
    def __init__(self, edit: _Optional[_Union[Edit, _Mapping]] = ..., model: _Optional[str] = ..., latest: _Optional[_Union[Latest, _Mapping]] = ..., pinned: _Optional[_Union[Pinned, _Mapping]] = ..., canary: _Optional[_Union[CanaryPolicy, _Mapping]] = ..., rollback: _Optional[_Union[Rollback, _Mapping]] = ...) -> None: ...

class Latest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Pinned(_message.Message):
    __slots__ = ("version",)
    VERSION_FIELD_NUMBER: _ClassVar[int]
    version: int
    def __init__(self, version: _Optional[int] = ...) -> None: ...

class CanaryPolicy(_message.Message):
    __slots__ = ("primary", "canary")
    PRIMARY_FIELD_NUMBER: _ClassVar[int]
    CANARY_FIELD_NUMBER: _ClassVar[int]
    primary: int
    canary: _model_config_pb2.Canary
    def __init__(self, primary: _Optional[int] = ..., canary: _Optional[_Union[_model_config_pb2.Canary, _Mapping]] = ...) -> None: ...

class Rollback(_message.Message):
    __slots__ = ("version",)
    VERSION_FIELD_NUMBER: _ClassVar[int]
    version: int
    def __init__(self, version: _Optional[int] = ...) -> None: ...

class Hints(_message.Message):
    __slots__ = ("min_replicas", "max_replicas", "memory_bytes", "cpus")
    MIN_REPLICAS_FIELD_NUMBER: _ClassVar[int]
    MAX_REPLICAS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    CPUS_FIELD_NUMBER: _ClassVar[int]
    min_replicas: int
    max_replicas: int
    memory_bytes: int
    cpus: float
    def __init__(self, min_replicas: _Optional[int] = ..., max_replicas: _Optional[int] = ..., memory_bytes: _Optional[int] = ..., cpus: _Optional[float] = ...) -> None: ...

class SetHintsRequest(_message.Message):
    __slots__ = ("edit", "model", "hints")
    EDIT_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    HINTS_FIELD_NUMBER: _ClassVar[int]
    edit: Edit
    model: str
    hints: Hints
    def __init__(self, edit: _Optional[_Union[Edit, _Mapping]] = ..., model: _Optional[str] = ..., hints: _Optional[_Union[Hints, _Mapping]] = ...) -> None: ...

class GetModelRequest(_message.Message):
    __slots__ = ("model", "num_changes")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    NUM_CHANGES_FIELD_NUMBER: _ClassVar[int]
    model: str
    num_changes: int
    def __init__(self, model: _Optional[str] = ..., num_changes: _Optional[int] = ...) -> None: ...

class ListFleetRequest(_message.Message):
    __slots__ = ("num_changes",)
    NUM_CHANGES_FIELD_NUMBER: _ClassVar[int]
    num_changes: int
    def __init__(self, num_changes: _Optional[int] = ...) -> None: ...

class GetOpRequest(_message.Message):
    __slots__ = ("request_id",)
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    def __init__(self, request_id: _Optional[str] = ...) -> None: ...

class AddJobRequest(_message.Message):
    __slots__ = ("edit", "job", "memory_bytes", "partition", "num_replicas", "cpus", "max_replicas", "zone", "instance")
    EDIT_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    NUM_REPLICAS_FIELD_NUMBER: _ClassVar[int]
    CPUS_FIELD_NUMBER: _ClassVar[int]
    MAX_REPLICAS_FIELD_NUMBER: _ClassVar[int]
    ZONE_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    edit: Edit
    job: str
    memory_bytes: int
    partition: str
    num_replicas: int
    cpus: int
    max_replicas: int
    zone: str
    instance: str
    def __init__(self, edit: _Optional[_Union[Edit, _Mapping]] = ..., job: _Optional[str] = ..., memory_bytes: _Optional[int] = ..., partition: _Optional[str] = ..., num_replicas: _Optional[int] = ..., cpus: _Optional[int] = ..., max_replicas: _Optional[int] = ..., zone: _Optional[str] = ..., instance: _Optional[str] = ...) -> None: ...

class DrainJobRequest(_message.Message):
    __slots__ = ("edit", "job", "force")
    EDIT_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    edit: Edit
    job: str
    force: bool
    def __init__(self, edit: _Optional[_Union[Edit, _Mapping]] = ..., job: _Optional[str] = ..., force: bool = ...) -> None: ...

class SimulateRequest(_message.Message):
    __slots__ = ("add_model", "update_model", "remove_model", "add_version", "set_policy", "set_hints", "add_job", "drain_job")
    ADD_MODEL_FIELD_NUMBER: _ClassVar[int]
    UPDATE_MODEL_FIELD_NUMBER: _ClassVar[int]
    REMOVE_MODEL_FIELD_NUMBER: _ClassVar[int]
    ADD_VERSION_FIELD_NUMBER: _ClassVar[int]
    SET_POLICY_FIELD_NUMBER: _ClassVar[int]
    SET_HINTS_FIELD_NUMBER: _ClassVar[int]
    ADD_JOB_FIELD_NUMBER: _ClassVar[int]
    DRAIN_JOB_FIELD_NUMBER: _ClassVar[int]
    add_model: AddModelRequest
    update_model: UpdateModelRequest
    remove_model: RemoveModelRequest
    add_version: AddVersionRequest
    set_policy: SetPolicyRequest
    set_hints: SetHintsRequest
    add_job: AddJobRequest
    drain_job: DrainJobRequest
    def __init__(self, add_model: _Optional[_Union[AddModelRequest, _Mapping]] = ..., update_model: _Optional[_Union[UpdateModelRequest, _Mapping]] = ..., remove_model: _Optional[_Union[RemoveModelRequest, _Mapping]] = ..., add_version: _Optional[_Union[AddVersionRequest, _Mapping]] = ..., set_policy: _Optional[_Union[SetPolicyRequest, _Mapping]] = ..., set_hints: _Optional[_Union[SetHintsRequest, _Mapping]] = ..., add_job: _Optional[_Union[AddJobRequest, _Mapping]] = ..., drain_job: _Optional[_Union[DrainJobRequest, _Mapping]] = ...) -> None: ...

class Simulation(_message.Message):
    __slots__ = ("refusal", "moves", "jobs", "notes")
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    MOVES_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    refusal: str
    moves: _containers.RepeatedCompositeFieldContainer[Move]
    jobs: _containers.RepeatedCompositeFieldContainer[JobInfo]
    notes: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, refusal: _Optional[str] = ..., moves: _Optional[_Iterable[_Union[Move, _Mapping]]] = ..., jobs: _Optional[_Iterable[_Union[JobInfo, _Mapping]]] = ..., notes: _Optional[_Iterable[str]] = ...) -> None: ...

class Move(_message.Message):
    __slots__ = ("model", "from_jobs", "to_jobs", "memory_bytes")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    FROM_JOBS_FIELD_NUMBER: _ClassVar[int]
    TO_JOBS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    model: str
    from_jobs: _containers.RepeatedScalarFieldContainer[str]
    to_jobs: _containers.RepeatedScalarFieldContainer[str]
    memory_bytes: int
    def __init__(self, model: _Optional[str] = ..., from_jobs: _Optional[_Iterable[str]] = ..., to_jobs: _Optional[_Iterable[str]] = ..., memory_bytes: _Optional[int] = ...) -> None: ...

class FleetChange(_message.Message):
    __slots__ = ("revision", "at_s", "why")
    REVISION_FIELD_NUMBER: _ClassVar[int]
    AT_S_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    revision: int
    at_s: float
    why: str
    def __init__(self, revision: _Optional[int] = ..., at_s: _Optional[float] = ..., why: _Optional[str] = ...) -> None: ...

class ModelInfo(_message.Message):
    __slots__ = ("model", "generation", "config", "hints", "memory_is_estimate", "partition", "num_replicas", "jobs", "replicas", "waits_for", "changes", "owner", "instance", "quarantined")
    class QuarantinedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: str
        def __init__(self, key: _Optional[int] = ..., value: _Optional[str] = ...) -> None: ...
    MODEL_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    HINTS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_IS_ESTIMATE_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    NUM_REPLICAS_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    WAITS_FOR_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    QUARANTINED_FIELD_NUMBER: _ClassVar[int]
    model: str
    generation: int
    config: str
    hints: Hints
    memory_is_estimate: bool
    partition: str
    num_replicas: int
    jobs: _containers.RepeatedScalarFieldContainer[str]
    replicas: _containers.RepeatedCompositeFieldContainer[ReplicaInfo]
    waits_for: str
    changes: _containers.RepeatedCompositeFieldContainer[FleetChange]
    owner: str
    instance: str
    quarantined: _containers.ScalarMap[int, str]
    def __init__(self, model: _Optional[str] = ..., generation: _Optional[int] = ..., config: _Optional[str] = ..., hints: _Optional[_Union[Hints, _Mapping]] = ..., memory_is_estimate: bool = ..., partition: _Optional[str] = ..., num_replicas: _Optional[int] = ..., jobs: _Optional[_Iterable[str]] = ..., replicas: _Optional[_Iterable[_Union[ReplicaInfo, _Mapping]]] = ..., waits_for: _Optional[str] = ..., changes: _Optional[_Iterable[_Union[FleetChange, _Mapping]]] = ..., owner: _Optional[str] = ..., instance: _Optional[str] = ..., quarantined: _Optional[_Mapping[int, str]] = ...) -> None: ...

class ReplicaInfo(_message.Message):
    __slots__ = ("address", "primary", "available_versions", "pending_versions", "canary", "problem")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PRIMARY_FIELD_NUMBER: _ClassVar[int]
    AVAILABLE_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    PENDING_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    CANARY_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    address: str
    primary: int
    available_versions: _containers.RepeatedScalarFieldContainer[int]
    pending_versions: _containers.RepeatedScalarFieldContainer[int]
    canary: int
    problem: str
    def __init__(self, address: _Optional[str] = ..., primary: _Optional[int] = ..., available_versions: _Optional[_Iterable[int]] = ..., pending_versions: _Optional[_Iterable[int]] = ..., canary: _Optional[int] = ..., problem: _Optional[str] = ...) -> None: ...

class JobInfo(_message.Message):
    __slots__ = ("job", "generation", "partition", "memory_bytes", "free_bytes", "num_replicas", "cpus", "is_ours", "is_down", "is_leaving", "num_models", "addresses", "answering", "problem", "zone", "instance")
    JOB_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    NUM_REPLICAS_FIELD_NUMBER: _ClassVar[int]
    CPUS_FIELD_NUMBER: _ClassVar[int]
    IS_OURS_FIELD_NUMBER: _ClassVar[int]
    IS_DOWN_FIELD_NUMBER: _ClassVar[int]
    IS_LEAVING_FIELD_NUMBER: _ClassVar[int]
    NUM_MODELS_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    ANSWERING_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    ZONE_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    job: str
    generation: int
    partition: str
    memory_bytes: int
    free_bytes: int
    num_replicas: int
    cpus: int
    is_ours: bool
    is_down: bool
    is_leaving: bool
    num_models: int
    addresses: _containers.RepeatedScalarFieldContainer[str]
    answering: _containers.RepeatedScalarFieldContainer[str]
    problem: str
    zone: str
    instance: str
    def __init__(self, job: _Optional[str] = ..., generation: _Optional[int] = ..., partition: _Optional[str] = ..., memory_bytes: _Optional[int] = ..., free_bytes: _Optional[int] = ..., num_replicas: _Optional[int] = ..., cpus: _Optional[int] = ..., is_ours: bool = ..., is_down: bool = ..., is_leaving: bool = ..., num_models: _Optional[int] = ..., addresses: _Optional[_Iterable[str]] = ..., answering: _Optional[_Iterable[str]] = ..., problem: _Optional[str] = ..., zone: _Optional[str] = ..., instance: _Optional[str] = ...) -> None: ...

class FleetInfo(_message.Message):
    __slots__ = ("revision", "models", "jobs", "changes", "model_stores")
    class ModelStoresEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    REVISION_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    MODEL_STORES_FIELD_NUMBER: _ClassVar[int]
    revision: int
    models: _containers.RepeatedCompositeFieldContainer[ModelInfo]
    jobs: _containers.RepeatedCompositeFieldContainer[JobInfo]
    changes: _containers.RepeatedCompositeFieldContainer[FleetChange]
    model_stores: _containers.ScalarMap[str, str]
    def __init__(self, revision: _Optional[int] = ..., models: _Optional[_Iterable[_Union[ModelInfo, _Mapping]]] = ..., jobs: _Optional[_Iterable[_Union[JobInfo, _Mapping]]] = ..., changes: _Optional[_Iterable[_Union[FleetChange, _Mapping]]] = ..., model_stores: _Optional[_Mapping[str, str]] = ...) -> None: ...
