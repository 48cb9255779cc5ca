"""Messages with something in every corner, for tests that pass them around."""

from __future__ import annotations

import struct

from google.protobuf.message import Message

from tfs.proto.tensorflow.core.example import example_pb2
from tfs.proto.tensorflow.core.framework import tensor_pb2, types_pb2
from tfs.proto.tensorflow.core.protobuf import error_codes_pb2
from tfs.proto.tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    inference_pb2,
    model_management_pb2,
    predict_pb2,
    prediction_log_pb2,
    regression_pb2,
    session_service_pb2,
)
from tfs.proto.tensorflow_serving.config import (
    model_server_config_pb2,
)
from tfs.proto.tfs.v1 import model_config_pb2


def tensors() -> dict[str, tensor_pb2.TensorProto]:
    """Returns one tensor per way of carrying values."""
    tensor = tensor_pb2.TensorProto
    return {
        "content": tensor(
            dtype=types_pb2.DT_FLOAT,
            tensor_shape={"dim": [{"size": 2}, {"size": 1, "name": "x"}]},
            tensor_content=struct.pack("<2f", 1.5, -2.0),
        ),
        "float": tensor(dtype=types_pb2.DT_FLOAT, float_val=[1.5, -2.0]),
        "double": tensor(dtype=types_pb2.DT_DOUBLE, double_val=[1e300]),
        "half": tensor(dtype=types_pb2.DT_HALF, half_val=[0x3C00]),
        "int": tensor(dtype=types_pb2.DT_INT8, int_val=[-1, 127]),
        "string": tensor(dtype=types_pb2.DT_STRING, string_val=[b"", b"\xff\x00"]),
        "complex64": tensor(dtype=types_pb2.DT_COMPLEX64, scomplex_val=[1.0, 2.0]),
        "complex128": tensor(dtype=types_pb2.DT_COMPLEX128, dcomplex_val=[1.0, 2.0]),
        "int64": tensor(dtype=types_pb2.DT_INT64, int64_val=[-(2**63)]),
        "bool": tensor(dtype=types_pb2.DT_BOOL, bool_val=[True, False]),
        "uint32": tensor(dtype=types_pb2.DT_UINT32, uint32_val=[2**32 - 1]),
        "uint64": tensor(dtype=types_pb2.DT_UINT64, uint64_val=[2**64 - 1]),
        "float8": tensor(dtype=types_pb2.DT_FLOAT8_E5M2, float8_val=b"\x3c"),
        "unknown rank": tensor(
            dtype=types_pb2.DT_RESOURCE,
            tensor_shape={"unknown_rank": True},
            resource_handle_val=[{"device": "/cpu:0", "hash_code": 2**63}],
        ),
        "variant": tensor(
            dtype=types_pb2.DT_VARIANT,
            variant_val=[{"type_name": "t", "tensors": [{"int_val": [7]}]}],
        ),
    }


def predict_request() -> predict_pb2.PredictRequest:
    """Returns a Predict call that sets everything there is."""
    request = predict_pb2.PredictRequest(
        model_spec={
            "name": "digits",
            "version": {"value": 0},
            "signature_name": "serving_default",
        },
        output_filter=["scores"],
        client_id=b"",
        predict_streamed_options={
            "request_state": "END_SPLIT",
            "split_dimensions": {"x": 1},
        },
        request_options={
            "deterministic_mode": "FIXED_DECODER_SLOT",
            "return_stoptokens": [1, -2],
            "max_cache_length": 0,
            "handshake": {"estimated_payload_bytes": 5},
        },
    )
    for name, tensor in tensors().items():
        request.inputs[name].CopyFrom(tensor)
    return request


def model_config() -> model_server_config_pb2.ModelConfig:
    """Returns a model's configuration with all fields of ours."""
    return model_server_config_pb2.ModelConfig(
        name="digits",
        base_path="/models/digits",
        model_version_policy={"specific": {"versions": [1, 2]}},
        version_labels={"stable": 1},
        logging_config={"sampling_config": {"sampling_rate": 0.5}},
        traffic={
            "primary": 1,
            "canary": {
                "version": 2,
                "tee_fraction": 0.1,
                "guard": {"max_error_rate": 0.0},
            },
        },
        transition=model_config_pb2.RESOURCE_PRESERVING,
        runtime={"backend": "PROCESS", "isolation": "REQUIRED", "num_interpreters": 2},
    )


def samples() -> list[Message]:
    """Returns a message of each kind that clients and servers exchange."""
    example = example_pb2.Example()
    example.features.feature["floats"].float_list.value.extend([1.0, 2.5])
    example.features.feature["ints"].int64_list.value.extend([-1])
    example.features.feature["bytes"].bytes_list.value.extend([b"\xff"])
    example.features.feature["missing"].SetInParent()

    classify = classification_pb2.ClassificationRequest(model_spec={"name": "digits"})
    classify.input.example_list_with_context.context.CopyFrom(example)
    classify.input.example_list_with_context.examples.add().CopyFrom(example)
    regress = regression_pb2.RegressionRequest(
        model_spec={"name": "digits", "version_label": "stable"}
    )
    regress.input.example_list.examples.add().CopyFrom(example)

    signatures = get_model_metadata_pb2.SignatureDefMap()
    signature = signatures.signature_def["serving_default"]
    signature.method_name = "tensorflow/serving/predict"
    signature.inputs["x"].name = "x"
    signature.inputs["x"].dtype = types_pb2.DT_FLOAT
    signature.inputs["x"].tensor_shape.dim.add(size=-1)
    signature.outputs["y"].coo_sparse.values_tensor_name = "v"
    signature.defaults["x"].float_val.append(1.0)
    metadata = get_model_metadata_pb2.GetModelMetadataResponse()
    metadata.metadata["signature_def"].Pack(signatures)

    reload = model_management_pb2.ReloadConfigRequest(metric_names=["m"])
    reload.config.model_config_list.config.add().CopyFrom(model_config())

    session_run = session_service_pb2.SessionRunRequest(
        feed=[{"name": "x", "tensor": tensors()["int"]}],
        options={"timeout_in_ms": 7, "debug_options": {"global_step": 1}},
    )

    log = prediction_log_pb2.PredictionLog(log_metadata={"timestamp_secs": 1})
    log.predict_log.request.CopyFrom(predict_request())

    return [
        *tensors().values(),
        example,
        predict_request(),
        predict_pb2.PredictResponse(outputs=tensors()),
        classify,
        classification_pb2.ClassificationResponse(
            result={"classifications": [{"classes": [{"label": "7", "score": 0.5}]}]}
        ),
        regress,
        regression_pb2.RegressionResponse(result={"regressions": [{"value": -1.0}]}),
        inference_pb2.MultiInferenceRequest(
            tasks=[{"method_name": "tensorflow/serving/classify"}],
            input=classify.input,
        ),
        inference_pb2.MultiInferenceResponse(
            results=[{"regression_result": {"regressions": [{"value": 2.0}]}}]
        ),
        get_model_metadata_pb2.GetModelMetadataRequest(
            metadata_field=["signature_def"]
        ),
        signatures,
        metadata,
        get_model_status_pb2.GetModelStatusResponse(
            model_version_status=[
                {
                    "version": 3,
                    "state": "END",
                    "status": {
                        "error_code": error_codes_pb2.NOT_FOUND,
                        "error_message": "gone",
                    },
                }
            ]
        ),
        reload,
        model_management_pb2.ReloadConfigResponse(
            metric=[{"name": "m", "int64_value_increase": 4}]
        ),
        session_run,
        log,
    ]


def without_additions(sample: Message) -> Message:
    """Returns a copy without the fields of ModelConfig that only we declare."""
    copy = type(sample)()
    copy.CopyFrom(sample)
    if isinstance(copy, model_management_pb2.ReloadConfigRequest):
        for config in copy.config.model_config_list.config:
            for field in ("traffic", "transition", "runtime"):
                config.ClearField(field)
    return copy


EXTENDED_CONFIG = """
model_config_list {
  config {
    name: "digits"
    base_path: "/models/digits"
    model_version_policy { specific { versions: 1 versions: 2 } }
    version_labels { key: "stable" value: 1 }
    traffic {
      primary: 1
      canary {
        version: 2 tee_fraction: 0.1 split_fraction: 0.0
        guard {
          min_samples: 500 max_top1_disagreement: 0.02 max_mean_abs_diff: 0.05
          max_latency_ratio: 1.5 max_error_rate: 0.01
        }
      }
    }
    transition: RESOURCE_PRESERVING
    runtime {
      backend: PROCESS isolation: REQUIRED num_interpreters: 2
      device: "cpu" intra_op_threads: 1
    }
  }
}
"""
