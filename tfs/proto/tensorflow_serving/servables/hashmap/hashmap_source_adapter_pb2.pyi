from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class HashmapSourceAdapterConfig(_message.Message):
    __slots__ = ("format",)
    class Format(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        SIMPLE_CSV: _ClassVar[HashmapSourceAdapterConfig.Format]
    SIMPLE_CSV: HashmapSourceAdapterConfig.Format
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    format: HashmapSourceAdapterConfig.Format
    def __init__(self, format: _Optional[_Union[HashmapSourceAdapterConfig.Format, str]] = ...) -> None: ...
