"""tfs.client.requests."""

from __future__ import annotations

import numpy as np
import pytest

from tfs.client.requests import Target, regress_request
from tfs.proto.tensorflow_serving.apis import regression_pb2


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ([1, 2], "int64_list"),
        ([1.5], "float_list"),
        ("text", "bytes_list"),
        (b"\xff", "bytes_list"),
        ([], None),
        (np.zeros(0, dtype=np.int64), "int64_list"),
    ],
)
def test_a_feature_has_the_type_of_its_values(value: object, kind: str | None) -> None:
    """An empty list has none, and is a feature without values, whatever it is of."""
    message = regress_request(Target("m"), [{"ids": value, "x": 1.0}], None)
    request = regression_pb2.RegressionRequest.FromString(message)
    features = request.input.example_list.examples[0].features.feature
    assert features["x"].WhichOneof("kind") == "float_list"
    assert features["ids"].WhichOneof("kind") == kind
