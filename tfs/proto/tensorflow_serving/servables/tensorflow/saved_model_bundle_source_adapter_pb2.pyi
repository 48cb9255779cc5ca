from tfs.proto.tensorflow_serving.servables.tensorflow import session_bundle_config_pb2 as _session_bundle_config_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SavedModelBundleSourceAdapterConfig(_message.Message):
    __slots__ = ("legacy_config",)
    LEGACY_CONFIG_FIELD_NUMBER: _ClassVar[int]
    legacy_config: _session_bundle_config_pb2.SessionBundleConfig
    def __init__(self, legacy_config: _Optional[_Union[_session_bundle_config_pb2.SessionBundleConfig, _Mapping]] = ...) -> None: ...
