"""What a pool of our own does that one would not expect.

Each test shows the wrong way fail, so that an upgrade of protobuf that changes this is
noticed, and the right way work.
"""

from __future__ import annotations

import pickle

import pytest
from google.protobuf import any_pb2, json_format, text_format, wrappers_pb2

from tfs.proto._pool import POOL
from tfs.proto.google.rpc import status_pb2
from tfs.proto.tensorflow.core.framework import types_pb2
from tfs.proto.tensorflow.core.protobuf import error_codes_pb2
from tfs.proto.tensorflow_serving.apis import (
    get_model_metadata_pb2,
    model_pb2,
    predict_pb2,
)
from tfs.proto.tfs.v1 import model_config_pb2


def test_a_wrapper_object_of_the_default_pool_does_not_fit() -> None:
    """Int64Value belongs to the pool too: assign the number, not the wrapper."""
    wrapper = wrappers_pb2.Int64Value(value=3)
    spec = model_pb2.ModelSpec()
    with pytest.raises(TypeError):
        spec.version.CopyFrom(wrapper)
    with pytest.raises(TypeError):
        model_pb2.ModelSpec(version=wrapper)

    spec.version.value = 3
    assert spec == model_pb2.ModelSpec(version={"value": 3})
    assert spec.version.value == wrapper.value


def test_any_packs_and_unpacks_between_the_pools() -> None:
    """Packing goes by name and bytes, so the Any may be of either pool."""
    signatures = get_model_metadata_pb2.SignatureDefMap()
    signatures.signature_def["serving_default"].method_name = "m"
    for packed in (any_pb2.Any(), status_pb2.Status().details.add()):
        packed.Pack(signatures)
        assert packed.type_url == (
            "type.googleapis.com/tensorflow.serving.SignatureDefMap"
        )
        unpacked = get_model_metadata_pb2.SignatureDefMap()
        assert packed.Unpack(unpacked)
        assert unpacked == signatures


def test_json_and_text_of_an_any_need_our_pool() -> None:
    """Left alone, the formatters look the packed type up in the default pool."""
    status = status_pb2.Status(code=14)
    status.details.add().Pack(model_config_pb2.Traffic(primary=1))
    with pytest.raises(TypeError, match=r"tfs\.v1\.Traffic"):
        json_format.MessageToDict(status)
    assert json_format.MessageToDict(status, descriptor_pool=POOL)["details"] == [
        {"@type": "type.googleapis.com/tfs.v1.Traffic", "primary": "1"}
    ]
    text = text_format.MessageToString(status, descriptor_pool=POOL)
    assert "[type.googleapis.com/tfs.v1.Traffic]" in text


def test_messages_know_the_module_they_are_in() -> None:
    """Pickles and tracebacks name tfs.proto, not a module of another package."""
    request = predict_pb2.PredictRequest(model_spec={"name": "digits"})
    assert type(request).__module__ == ("tfs.proto.tensorflow_serving.apis.predict_pb2")
    assert pickle.loads(pickle.dumps(request)) == request


def test_an_error_code_is_found_where_older_code_looks_for_it() -> None:
    """Tensorflow/core/protobuf/error_codes.proto passes the enum of XLA's file on."""
    assert error_codes_pb2.NOT_FOUND == 5
    assert error_codes_pb2.Code.Name(14) == "UNAVAILABLE"


def test_an_enum_value_of_tomorrow_survives() -> None:
    """A dtype that a newer client knows can be named in the refusal."""
    tensor = predict_pb2.PredictRequest().inputs["x"]
    tensor.MergeFromString(b"\x08\xc8\x01")
    assert tensor.dtype == 200
    assert 200 not in types_pb2.DataType.values()
