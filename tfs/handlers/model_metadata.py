"""PredictionService.GetModelMetadata: the signatures of a version."""

from __future__ import annotations

from typing import Final

from tfs.codec.model_spec import model_spec_of
from tfs.core.call import Call
from tfs.core.errors import InvalidArgument, ServingError
from tfs.handlers.lookup import ModelLookup
from tfs.handlers.messages import QUESTION_BYTES, parse
from tfs.handlers.signature_def import signature_def_map
from tfs.proto.tensorflow_serving.apis import get_model_metadata_pb2 as pb

SIGNATURE_DEF: Final = "signature_def"


class ModelMetadataHandler:
    """Answers GetModelMetadata. Confined to the serving loop.

    (TensorFlow Serving: servables/tensorflow/get_model_metadata_impl.cc.)
    """

    def __init__(self, lookup: ModelLookup) -> None:
        self._lookup = lookup

    def __call__(self, call: Call) -> None:
        """Replies with name, version and the signatures."""
        try:
            call.reply(self._answer(call.message))
        except ServingError as error:
            call.fail(error)

    def _answer(self, message: bytes | memoryview) -> bytes:
        request = parse(pb.GetModelMetadataRequest, message, QUESTION_BYTES)
        if not request.HasField("model_spec"):
            raise InvalidArgument("Missing ModelSpec")
        if not request.metadata_field:
            raise InvalidArgument(
                "GetModelMetadataRequest must specify at least one metadata_field"
            )
        for field in request.metadata_field:
            if field != SIGNATURE_DEF:
                raise InvalidArgument(f"Metadata field {field} is not supported")
        spec = model_spec_of(request.model_spec)
        with self._lookup.acquire(
            spec.name, spec.version, spec.version_label
        ) as servable:
            response = pb.GetModelMetadataResponse()
            response.model_spec.name = servable.id.name
            response.model_spec.version.value = servable.id.version
            response.metadata[SIGNATURE_DEF].Pack(
                signature_def_map(servable.signatures)
            )
        return response.SerializeToString()
