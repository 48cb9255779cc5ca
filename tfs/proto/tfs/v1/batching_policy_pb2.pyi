from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class BatchingPolicy(_message.Message):
    __slots__ = ("weight", "max_in_flight_batches", "padding", "length_buckets", "deadline_window", "low_priority", "layered")
    class Padding(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        PADDING_UNSPECIFIED: _ClassVar[BatchingPolicy.Padding]
        UP: _ClassVar[BatchingPolicy.Padding]
        DOWN: _ClassVar[BatchingPolicy.Padding]
        CHEAPEST: _ClassVar[BatchingPolicy.Padding]
    PADDING_UNSPECIFIED: BatchingPolicy.Padding
    UP: BatchingPolicy.Padding
    DOWN: BatchingPolicy.Padding
    CHEAPEST: BatchingPolicy.Padding
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    MAX_IN_FLIGHT_BATCHES_FIELD_NUMBER: _ClassVar[int]
    PADDING_FIELD_NUMBER: _ClassVar[int]
    LENGTH_BUCKETS_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_WINDOW_FIELD_NUMBER: _ClassVar[int]
    LOW_PRIORITY_FIELD_NUMBER: _ClassVar[int]
    LAYERED_FIELD_NUMBER: _ClassVar[int]
    weight: float
    max_in_flight_batches: int
    padding: BatchingPolicy.Padding
    length_buckets: _containers.RepeatedScalarFieldContainer[int]
    deadline_window: DeadlineWindow
    low_priority: LowPriority
    layered: Layered
    def __init__(self, weight: _Optional[float] = ..., max_in_flight_batches: _Optional[int] = ..., padding: _Optional[_Union[BatchingPolicy.Padding, str]] = ..., length_buckets: _Optional[_Iterable[int]] = ..., deadline_window: _Optional[_Union[DeadlineWindow, _Mapping]] = ..., low_priority: _Optional[_Union[LowPriority, _Mapping]] = ..., layered: _Optional[_Union[Layered, _Mapping]] = ...) -> None: ...

class Layered(_message.Message):
    __slots__ = ("mode",)
    class Mode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        MODE_UNSPECIFIED: _ClassVar[Layered.Mode]
        OFF: _ClassVar[Layered.Mode]
        AUTO: _ClassVar[Layered.Mode]
    MODE_UNSPECIFIED: Layered.Mode
    OFF: Layered.Mode
    AUTO: Layered.Mode
    MODE_FIELD_NUMBER: _ClassVar[int]
    mode: Layered.Mode
    def __init__(self, mode: _Optional[_Union[Layered.Mode, str]] = ...) -> None: ...

class DeadlineWindow(_message.Message):
    __slots__ = ("margin",)
    MARGIN_FIELD_NUMBER: _ClassVar[int]
    margin: float
    def __init__(self, margin: _Optional[float] = ...) -> None: ...

class LowPriority(_message.Message):
    __slots__ = ("mixing", "ageing_micros", "batch_timeout_micros", "max_enqueued_rows")
    class Mixing(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        MIXING_UNSPECIFIED: _ClassVar[LowPriority.Mixing]
        ISOLATE: _ClassVar[LowPriority.Mixing]
        PAD_TO_ALLOWED: _ClassVar[LowPriority.Mixing]
        PAD_TO_MAX: _ClassVar[LowPriority.Mixing]
        MERGE: _ClassVar[LowPriority.Mixing]
    MIXING_UNSPECIFIED: LowPriority.Mixing
    ISOLATE: LowPriority.Mixing
    PAD_TO_ALLOWED: LowPriority.Mixing
    PAD_TO_MAX: LowPriority.Mixing
    MERGE: LowPriority.Mixing
    MIXING_FIELD_NUMBER: _ClassVar[int]
    AGEING_MICROS_FIELD_NUMBER: _ClassVar[int]
    BATCH_TIMEOUT_MICROS_FIELD_NUMBER: _ClassVar[int]
    MAX_ENQUEUED_ROWS_FIELD_NUMBER: _ClassVar[int]
    mixing: LowPriority.Mixing
    ageing_micros: int
    batch_timeout_micros: int
    max_enqueued_rows: int
    def __init__(self, mixing: _Optional[_Union[LowPriority.Mixing, str]] = ..., ageing_micros: _Optional[int] = ..., batch_timeout_micros: _Optional[int] = ..., max_enqueued_rows: _Optional[int] = ...) -> None: ...
