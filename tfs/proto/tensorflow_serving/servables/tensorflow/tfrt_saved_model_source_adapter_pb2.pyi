from tfs.proto.tensorflow_serving.servables.tensorflow import session_bundle_config_pb2 as _session_bundle_config_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TfrtSavedModelConfig(_message.Message):
    __slots__ = ("legacy_config", "batching_parameters", "saved_model_tags", "enable_model_warmup", "model_warmup_options", "resource_estimation_uses_validation_result", "enable_per_model_batching_params")
    LEGACY_CONFIG_FIELD_NUMBER: _ClassVar[int]
    BATCHING_PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    SAVED_MODEL_TAGS_FIELD_NUMBER: _ClassVar[int]
    ENABLE_MODEL_WARMUP_FIELD_NUMBER: _ClassVar[int]
    MODEL_WARMUP_OPTIONS_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_ESTIMATION_USES_VALIDATION_RESULT_FIELD_NUMBER: _ClassVar[int]
    ENABLE_PER_MODEL_BATCHING_PARAMS_FIELD_NUMBER: _ClassVar[int]
    legacy_config: _session_bundle_config_pb2.SessionBundleConfig
    batching_parameters: _session_bundle_config_pb2.BatchingParameters
    saved_model_tags: _containers.RepeatedScalarFieldContainer[str]
    enable_model_warmup: bool
    model_warmup_options: _session_bundle_config_pb2.ModelWarmupOptions
    resource_estimation_uses_validation_result: bool
    enable_per_model_batching_params: bool
    def __init__(self, legacy_config: _Optional[_Union[_session_bundle_config_pb2.SessionBundleConfig, _Mapping]] = ..., batching_parameters: _Optional[_Union[_session_bundle_config_pb2.BatchingParameters, _Mapping]] = ..., saved_model_tags: _Optional[_Iterable[str]] = ..., enable_model_warmup: bool = ..., model_warmup_options: _Optional[_Union[_session_bundle_config_pb2.ModelWarmupOptions, _Mapping]] = ..., resource_estimation_uses_validation_result: bool = ..., enable_per_model_batching_params: bool = ...) -> None: ...

class TfrtSavedModelSourceAdapterConfig(_message.Message):
    __slots__ = ("saved_model_config",)
    SAVED_MODEL_CONFIG_FIELD_NUMBER: _ClassVar[int]
    saved_model_config: TfrtSavedModelConfig
    def __init__(self, saved_model_config: _Optional[_Union[TfrtSavedModelConfig, _Mapping]] = ...) -> None: ...
