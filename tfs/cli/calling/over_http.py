"""``tfs predict --http``: the same questions over the REST API.

The request is written in the form that is named. The answer is always asked for as a
``PredictResponse``, which says which version gave it, and loses nothing.
"""

from __future__ import annotations

import argparse
import http.client
import json
import ssl
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from tfs.core.errors import BY_CODE, InvalidArgument, ServingError, Unavailable, Unknown
from tfs.core.http_call import HTTP_STATUS

if TYPE_CHECKING:
    from tfs.client import ModelMetadata, Prediction

DEFAULT_HTTP_ADDRESS: Final = "127.0.0.1:8501"
FORMS: Final = {
    "protobuf": "application/x-protobuf",
    "msgpack": "application/msgpack",
    "npy": "application/x-npy",
}
"""Content types by the name of the form."""

_KINDS: Final = {HTTP_STATUS[code]: kind for code, kind in reversed(BY_CODE.items())}


class HttpModels:
    """Asks the server that a command names, as :class:`tfs.client.Client` does.

    Every call blocks, and connects anew. Not thread-safe.
    """

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self._address = arguments.address or DEFAULT_HTTP_ADDRESS
        if "/" in self._address:
            raise InvalidArgument(f"--http takes HOST:PORT: --address {self._address}")

    def metadata(
        self, model: str, *, version: int | None, label: str | None
    ) -> ModelMetadata:
        """Returns the signatures of a version."""
        from tfs.client.requests import read_metadata_document
        from tfs.handlers.rest.paths import path_of

        path = f"{path_of(model, version, label)}/metadata"
        return read_metadata_document(json.loads(self._ask("GET", path)))

    def predict(
        self,
        model: str,
        inputs: Mapping[str, object],
        *,
        version: int | None,
        label: str | None,
        signature: str,
        outputs: Sequence[str],
    ) -> Prediction:
        """Returns the model's outputs.

        Raises:
            InvalidArgument: The form of ``--http`` does not hold this request.

        """
        from tfs.client import requests
        from tfs.handlers.rest.paths import path_of

        form = self._arguments.http
        if form != "protobuf" and (outputs or signature):
            raise InvalidArgument("--signature and --output need --http protobuf")
        target = requests.Target(model, version, label, signature)
        rpc = requests.predict(target, inputs, outputs)
        path = f"{path_of(model, version, label)}:predict"
        answer = self._ask("POST", path, _written(form, rpc.message))
        return requests.read_reply(rpc, answer)

    def _ask(self, verb: str, path: str, body: bytes | None = None) -> bytes:
        content_type = FORMS[self._arguments.http]
        headers = {"Accept": FORMS["protobuf"], "Content-Type": content_type}
        connection = self._connection()
        try:
            connection.request(verb, path, body, headers)
            response = connection.getresponse()
            answer = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise Unavailable(
                f"no HTTP answer from {self._address}: {error or type(error).__name__}; "
                "--address is that of the server's --rest_api_port, --ca speaks TLS"
            ) from error
        finally:
            connection.close()
        if response.status == http.HTTPStatus.OK:
            return answer
        raise _error(response.status, answer)

    def _connection(self) -> http.client.HTTPConnection:
        ca, cert, key, timeout_s = (
            getattr(self._arguments, name)
            for name in ("ca", "cert", "key", "timeout_s")
        )
        if not ca:
            return http.client.HTTPConnection(self._address, timeout=timeout_s)
        try:
            context = ssl.create_default_context(cafile=ca)
            if cert:
                context.load_cert_chain(cert, key)
        except OSError as error:
            files = " or ".join(filter(None, (ca, cert, key)))
            raise InvalidArgument(f"cannot use {files}: {error}") from error
        return http.client.HTTPSConnection(
            self._address, timeout=timeout_s, context=context
        )


def _written(form: str, message: bytes) -> bytes:
    """Returns a ``PredictRequest`` in a form."""
    if form == "protobuf":
        return message
    from tfs.codec.json.packed import write_msgpack, write_npy
    from tfs.codec.predict_request import read_predict_request

    inputs = read_predict_request(message).inputs
    if form == "msgpack":
        return write_msgpack(inputs, key="inputs")
    return b"".join(write_npy(inputs))


def _error(status: int, answer: bytes) -> ServingError:
    try:
        message = str(json.loads(answer)["error"])
    except (ValueError, TypeError, KeyError):
        message = f"HTTP {status}: {answer[:200].decode(errors='replace')}"
    return _KINDS.get(status, Unknown)(message)
