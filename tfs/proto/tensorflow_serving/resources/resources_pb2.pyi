from google.protobuf import wrappers_pb2 as _wrappers_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Resource(_message.Message):
    __slots__ = ("device", "device_instance", "kind")
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_INSTANCE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    device: str
    device_instance: _wrappers_pb2.UInt32Value
    kind: str
    def __init__(self, device: _Optional[str] = ..., device_instance: _Optional[_Union[_wrappers_pb2.UInt32Value, _Mapping]] = ..., kind: _Optional[str] = ...) -> None: ...

class ResourceAllocation(_message.Message):
    __slots__ = ("resource_quantities",)
    class Entry(_message.Message):
        __slots__ = ("resource", "quantity")
        RESOURCE_FIELD_NUMBER: _ClassVar[int]
        QUANTITY_FIELD_NUMBER: _ClassVar[int]
        resource: Resource
        quantity: int
        def __init__(self, resource: _Optional[_Union[Resource, _Mapping]] = ..., quantity: _Optional[int] = ...) -> None: ...
    RESOURCE_QUANTITIES_FIELD_NUMBER: _ClassVar[int]
    resource_quantities: _containers.RepeatedCompositeFieldContainer[ResourceAllocation.Entry]
    def __init__(self, resource_quantities: _Optional[_Iterable[_Union[ResourceAllocation.Entry, _Mapping]]] = ...) -> None: ...
