from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Transition(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    AVAILABILITY_PRESERVING: _ClassVar[Transition]
    RESOURCE_PRESERVING: _ClassVar[Transition]

class Residency(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ALWAYS: _ClassVar[Residency]
    ON_DEMAND: _ClassVar[Residency]
AVAILABILITY_PRESERVING: Transition
RESOURCE_PRESERVING: Transition
ALWAYS: Residency
ON_DEMAND: Residency

class Traffic(_message.Message):
    __slots__ = ("primary", "canary")
    PRIMARY_FIELD_NUMBER: _ClassVar[int]
    CANARY_FIELD_NUMBER: _ClassVar[int]
    primary: int
    canary: Canary
    def __init__(self, primary: _Optional[int] = ..., canary: _Optional[_Union[Canary, _Mapping]] = ...) -> None: ...

class Canary(_message.Message):
    __slots__ = ("version", "tee_fraction", "split_fraction", "guard")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TEE_FRACTION_FIELD_NUMBER: _ClassVar[int]
    SPLIT_FRACTION_FIELD_NUMBER: _ClassVar[int]
    GUARD_FIELD_NUMBER: _ClassVar[int]
    version: int
    tee_fraction: float
    split_fraction: float
    guard: Guard
    def __init__(self, version: _Optional[int] = ..., tee_fraction: _Optional[float] = ..., split_fraction: _Optional[float] = ..., guard: _Optional[_Union[Guard, _Mapping]] = ...) -> None: ...

class Guard(_message.Message):
    __slots__ = ("min_samples", "max_top1_disagreement", "max_mean_abs_diff", "max_latency_ratio", "max_error_rate")
    MIN_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    MAX_TOP1_DISAGREEMENT_FIELD_NUMBER: _ClassVar[int]
    MAX_MEAN_ABS_DIFF_FIELD_NUMBER: _ClassVar[int]
    MAX_LATENCY_RATIO_FIELD_NUMBER: _ClassVar[int]
    MAX_ERROR_RATE_FIELD_NUMBER: _ClassVar[int]
    min_samples: int
    max_top1_disagreement: float
    max_mean_abs_diff: float
    max_latency_ratio: float
    max_error_rate: float
    def __init__(self, min_samples: _Optional[int] = ..., max_top1_disagreement: _Optional[float] = ..., max_mean_abs_diff: _Optional[float] = ..., max_latency_ratio: _Optional[float] = ..., max_error_rate: _Optional[float] = ...) -> None: ...

class Validation(_message.Message):
    __slots__ = ("requests", "limits", "skew", "max_size_ratio")
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    SKEW_FIELD_NUMBER: _ClassVar[int]
    MAX_SIZE_RATIO_FIELD_NUMBER: _ClassVar[int]
    requests: str
    limits: Guard
    skew: Skew
    max_size_ratio: float
    def __init__(self, requests: _Optional[str] = ..., limits: _Optional[_Union[Guard, _Mapping]] = ..., skew: _Optional[_Union[Skew, _Mapping]] = ..., max_size_ratio: _Optional[float] = ...) -> None: ...

class Skew(_message.Message):
    __slots__ = ("statistics", "max_drift", "max_out_of_range", "max_missing")
    STATISTICS_FIELD_NUMBER: _ClassVar[int]
    MAX_DRIFT_FIELD_NUMBER: _ClassVar[int]
    MAX_OUT_OF_RANGE_FIELD_NUMBER: _ClassVar[int]
    MAX_MISSING_FIELD_NUMBER: _ClassVar[int]
    statistics: str
    max_drift: float
    max_out_of_range: float
    max_missing: float
    def __init__(self, statistics: _Optional[str] = ..., max_drift: _Optional[float] = ..., max_out_of_range: _Optional[float] = ..., max_missing: _Optional[float] = ...) -> None: ...

class Runtime(_message.Message):
    __slots__ = ("backend", "isolation", "num_interpreters", "device", "intra_op_threads")
    class Backend(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        AUTO: _ClassVar[Runtime.Backend]
        INLINE: _ClassVar[Runtime.Backend]
        PROCESS: _ClassVar[Runtime.Backend]
        DLMOPEN: _ClassVar[Runtime.Backend]
    AUTO: Runtime.Backend
    INLINE: Runtime.Backend
    PROCESS: Runtime.Backend
    DLMOPEN: Runtime.Backend
    class Isolation(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        NOT_REQUIRED: _ClassVar[Runtime.Isolation]
        REQUIRED: _ClassVar[Runtime.Isolation]
    NOT_REQUIRED: Runtime.Isolation
    REQUIRED: Runtime.Isolation
    BACKEND_FIELD_NUMBER: _ClassVar[int]
    ISOLATION_FIELD_NUMBER: _ClassVar[int]
    NUM_INTERPRETERS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    INTRA_OP_THREADS_FIELD_NUMBER: _ClassVar[int]
    backend: Runtime.Backend
    isolation: Runtime.Isolation
    num_interpreters: int
    device: str
    intra_op_threads: int
    def __init__(self, backend: _Optional[_Union[Runtime.Backend, str]] = ..., isolation: _Optional[_Union[Runtime.Isolation, str]] = ..., num_interpreters: _Optional[int] = ..., device: _Optional[str] = ..., intra_op_threads: _Optional[int] = ...) -> None: ...
