"""Definitions that TensorFlow Serving's sources have and no Python package registers.

There are no descriptors to compare with, so the facts stand here: every field as
"number type name", read off the sources of release 2.21.
"""

from __future__ import annotations

import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto

from tests.proto.descriptors import our_files

FACTS = {
    "tensorflow.serving.internal.SerializedExampleList": ["1 repeated bytes examples"],
    "tensorflow.serving.internal.SerializedExampleListWithContext": [
        "1 repeated bytes examples",
        "2 bytes context",
    ],
    "tensorflow.serving.internal.SerializedInput": [
        "1 SerializedExampleList example_list (kind)",
        "2 SerializedExampleListWithContext example_list_with_context (kind)",
    ],
    "tensorflow.serving.PrometheusConfig": ["1 bool enable", "2 string path"],
    "tensorflow.serving.MonitoringConfig": ["1 PrometheusConfig prometheus_config"],
    "tensorflow.serving.SSLConfig": [
        "1 string server_key",
        "2 string server_cert",
        "3 string custom_ca",
        "4 bool client_verify",
    ],
    "tensorflow.serving.Resource": [
        "1 string device",
        "2 UInt32Value device_instance",
        "3 string kind",
    ],
    "tensorflow.serving.ResourceAllocation": ["1 repeated Entry resource_quantities"],
    "tensorflow.serving.ResourceAllocation.Entry": [
        "1 Resource resource",
        "2 uint64 quantity",
    ],
    "tensorflow.serving.HashmapSourceAdapterConfig": ["1 Format format"],
    "tensorflow.serving.SavedModelBundleSourceAdapterConfig": [
        "1000 SessionBundleConfig legacy_config"
    ],
    "tensorflow.serving.TfrtSavedModelSourceAdapterConfig": [
        "1 TfrtSavedModelConfig saved_model_config"
    ],
    # A small part of it: the rest are switches of a runtime that TFS does not have.
    "tensorflow.serving.TfrtSavedModelConfig": [
        "1000 SessionBundleConfig legacy_config",
        "1007 BatchingParameters batching_parameters",
        "1008 repeated string saved_model_tags",
        "1009 bool enable_model_warmup",
        "1010 ModelWarmupOptions model_warmup_options",
        "1012 bool resource_estimation_uses_validation_result",
        "2008 bool enable_per_model_batching_params",
    ],
    "tensorflow.serving.ThreadPoolFactoryConfig": ["1 Any thread_pool_factory_config"],
    "tensorflow.serving.StaticStoragePathSourceConfig": [
        "1 string servable_name",
        "2 int64 version_num",
        "3 string version_path",
    ],
    "tensorflow.serving.ModelWarmupOptions": [
        "1 Int32Value num_request_iterations",
        "2 Int32Value num_model_warmup_threads",
        "3 string model_name",
        "4 int64 model_version",
        "5 bool enable_all_batch_sizes_warmup",
    ],
    "tensorflow.serving.SessionBundleConfig": [
        "1 string session_target",
        "2 ConfigProto session_config",
        "3 BatchingParameters batching_parameters",
        "4 Int32Value session_run_load_threadpool_index",
        "5 uint64 experimental_transient_ram_bytes_during_load",
        "6 repeated string saved_model_tags",
        "7 BatchingOptions in_graph_batching_parameters",
        "778 repeated NamedTensorProto experimental_fixed_input_tensors",
        "779 bool enable_model_warmup",
        "780 ModelWarmupOptions model_warmup_options",
        "781 bool enable_session_metadata",
        "782 bool remove_unused_fields_from_bundle_metagraph",
        "783 bool prefer_tflite_model",
        "784 bool resource_estimation_uses_validation_result",
        "785 int32 num_tflite_interpreters",
        "786 int32 num_tflite_interpreters_per_pool",
        "787 int32 num_tflite_pools",
        "788 bool wrap_session_with_no_threading_params",
        "789 bool enable_per_model_batching_params",
        "790 bool enable_saved_model_config",
        "791 string mixed_precision",
    ],
    "tensorflow.serving.BatchingParameters": [
        "1 Int64Value max_batch_size",
        "2 Int64Value batch_timeout_micros",
        "3 Int64Value max_enqueued_batches",
        "4 Int64Value num_batch_threads",
        "5 StringValue thread_pool_name",
        "6 repeated int64 allowed_batch_sizes",
        "7 bool pad_variable_length_inputs",
        "8 BoolValue enable_large_batch_splitting",
        "9 Int64Value max_execution_batch_size",
        "20001 BatchingPolicy policy",  # ours
    ],
    "tensorflow.ToolRequestOptions": ["2 string output_formats", "3 bool save_to_repo"],
    "tensorflow.ProfileRequest": [
        "1 uint64 duration_ms",
        "2 uint64 max_events",
        "3 repeated string tools",
        "4 ProfileOptions opts",
        "5 string repository_root",
        "6 string session_id",
        "7 string host_name",
        "8 repeated ToolOptionsEntry tool_options",
    ],
    "tensorflow.ProfileToolData": ["1 string name", "2 bytes data"],
    "tensorflow.ProfileResponse": [
        "6 repeated ProfileToolData tool_data",
        "7 bool empty_trace",
    ],
    "tensorflow.TerminateRequest": ["1 string session_id"],
    "tensorflow.TerminateResponse": [],
    "tensorflow.MonitorRequest": [
        "1 uint64 duration_ms",
        "2 int32 monitoring_level",
        "3 bool timestamp",
    ],
    "tensorflow.MonitorResponse": ["1 string data"],
}

SERVICES = {
    "tensorflow.ProfilerService": ["Profile", "Terminate", "Monitor"],
    "tensorflow.serving.PredictionService": [
        "Classify",
        "Regress",
        "Predict",
        "MultiInference",
        "GetModelMetadata",
    ],
    "tensorflow.serving.ModelService": ["GetModelStatus", "HandleReloadConfigRequest"],
    "tensorflow.serving.SessionService": ["SessionRun"],
    "grpc.health.v1.Health": ["Check", "Watch"],
    "grpc.reflection.v1.ServerReflection": ["ServerReflectionInfo"],
    "grpc.reflection.v1alpha.ServerReflection": ["ServerReflectionInfo"],
    "tfs.v1.AdminService": [
        "ListModels",
        "GetConfig",
        "ApplyConfig",
        "SetCanary",
        "Promote",
        "Rollback",
        "ResetOverride",
        "RetryLoad",
        "Aspire",
        "LeaveFleet",
        "GetPage",
        "Probe",
    ],
    "inference.GRPCInferenceService": [
        "ServerLive",
        "ServerReady",
        "ModelReady",
        "ServerMetadata",
        "ModelMetadata",
        "ModelInfer",
        "ModelStatistics",
        "RepositoryIndex",
        "RepositoryModelLoad",
        "RepositoryModelUnload",
    ],
    "tfs.v1.Controller": [
        "AddModel",
        "UpdateModel",
        "RemoveModel",
        "AddVersion",
        "SetPolicy",
        "SetHints",
        "GetModel",
        "ListModels",
        "GetOp",
        "WatchModel",
        "AddJob",
        "DrainJob",
        "Simulate",
    ],
}


def our_messages() -> dict[str, DescriptorProto]:
    found = {}
    for file in our_files():
        pending = [(file.package, message) for message in file.message_type]
        while pending:
            scope, message = pending.pop()
            name = f"{scope}.{message.name}"
            found[name] = message
            pending += [(name, nested) for nested in message.nested_type]
    return found


def described(field: FieldDescriptorProto, message: DescriptorProto) -> str:
    kind = (
        field.type_name.rpartition(".")[2]
        or FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()
    )
    if field.label == FieldDescriptorProto.LABEL_REPEATED:
        kind = f"repeated {kind}"
    text = f"{field.number} {kind} {field.name}"
    if field.HasField("oneof_index"):
        text += f" ({message.oneof_decl[field.oneof_index].name})"
    return text


@pytest.mark.parametrize("name", sorted(FACTS))
def test_a_server_only_message_has_the_fields_of_the_sources(name: str) -> None:
    """Files and messages made for TensorFlow Serving mean the same here."""
    message = our_messages()[name]
    fields = sorted(message.field, key=lambda field: field.number)
    assert [described(field, message) for field in fields] == FACTS[name]


def test_the_services_are_these_with_these_methods() -> None:
    """A path of a call is a service's and a method's name."""
    found = {
        f"{file.package}.{service.name}": [method.name for method in service.method]
        for file in our_files()
        for service in file.service
    }
    assert found == SERVICES
