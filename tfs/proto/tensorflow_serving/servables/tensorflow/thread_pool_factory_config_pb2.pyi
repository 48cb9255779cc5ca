from google.protobuf import any_pb2 as _any_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ThreadPoolFactoryConfig(_message.Message):
    __slots__ = ("thread_pool_factory_config",)
    THREAD_POOL_FACTORY_CONFIG_FIELD_NUMBER: _ClassVar[int]
    thread_pool_factory_config: _any_pb2.Any
    def __init__(self, thread_pool_factory_config: _Optional[_Union[_any_pb2.Any, _Mapping]] = ...) -> None: ...
