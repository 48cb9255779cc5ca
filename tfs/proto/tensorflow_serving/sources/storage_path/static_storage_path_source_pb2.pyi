from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class StaticStoragePathSourceConfig(_message.Message):
    __slots__ = ("servable_name", "version_num", "version_path")
    SERVABLE_NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_NUM_FIELD_NUMBER: _ClassVar[int]
    VERSION_PATH_FIELD_NUMBER: _ClassVar[int]
    servable_name: str
    version_num: int
    version_path: str
    def __init__(self, servable_name: _Optional[str] = ..., version_num: _Optional[int] = ..., version_path: _Optional[str] = ...) -> None: ...
