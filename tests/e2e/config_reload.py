"""Configs that are sent to a server by RPC."""

from __future__ import annotations

from google.protobuf import text_format

from tfs.client import Client
from tfs.proto._pool import POOL
from tfs.proto.tensorflow_serving.apis import model_management_pb2
from tfs.proto.tensorflow_serving.config import model_server_config_pb2
from tfs.testing.patience import PATIENCE_S


def reload(client: Client, config: str, timeout_s: float = PATIENCE_S) -> None:
    """Makes a config, given as text, the server's; raises its refusal."""
    message = model_server_config_pb2.ModelServerConfig()
    text_format.Parse(config, message, descriptor_pool=POOL)
    request = model_management_pb2.ReloadConfigRequest(config=message)
    client.send(
        "/tensorflow.serving.ModelService/HandleReloadConfigRequest",
        request.SerializeToString(),
        timeout_s=timeout_s,
    )
