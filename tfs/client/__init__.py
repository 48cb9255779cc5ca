"""A typed client of the serving API: numpy arrays or lists in, numpy arrays out.

    from tfs.client import Client

    with Client("127.0.0.1:8500") as client:
        answer = client.predict("digits", {"images": images})
        answer.outputs["scores"], answer.version

Needs neither torch nor tensorflow, and works with any server of TensorFlow
Serving's API. :class:`AsyncClient` has the same methods as coroutines.
"""

from tfs.client.aio import AsyncClient
from tfs.client.arrays import Typed
from tfs.client.client import Client
from tfs.client.results import (
    Classification,
    Label,
    ModelMetadata,
    Prediction,
    Regression,
    VersionStatus,
)
from tfs.client.retry_policy import RetryPolicy

__all__ = [
    "AsyncClient",
    "Classification",
    "Client",
    "Label",
    "ModelMetadata",
    "Prediction",
    "Regression",
    "RetryPolicy",
    "Typed",
    "VersionStatus",
]
