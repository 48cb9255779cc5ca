"""The http area's own logic: which replies are right, in each form."""

from __future__ import annotations

import io

import msgpack
import numpy as np
import orjson
import pytest
import torch

from tests.benchmarks import http, wrk

INPUTS = torch.tensor([[1.0, -2.0, 0.5, 3.0]])


def reply(form: str, inputs: torch.Tensor) -> bytes:
    """Returns a reply of that form with `inputs` as its only output."""
    if form == http.JSON:
        return orjson.dumps({"predictions": inputs.tolist()})
    if form == http.OIP:
        head = orjson.dumps({"outputs": [{"shape": list(inputs.shape)}]})
        return head + inputs.numpy().tobytes()
    if form == http.NPY:
        file = io.BytesIO()
        np.save(file, inputs.numpy())
        return file.getvalue()
    tensor = {
        "dtype": "float32",
        "shape": list(inputs.shape),
        "data": inputs.numpy().tobytes(),
    }
    packed: bytes = msgpack.packb({"outputs": {"y": tensor}})
    return packed


@pytest.mark.parametrize("form", [http.JSON, http.NPY, http.MSGPACK, http.OIP])
def test_a_reply_is_right_if_it_is_what_torch_computes(form: str) -> None:
    """Values and shape, in the form that was asked for."""
    assert http.is_right(reply(form, INPUTS), form, INPUTS)
    assert not http.is_right(reply(form, INPUTS + 1), form, INPUTS)
    assert not http.is_right(reply(form, INPUTS.reshape(2, 2)), form, INPUTS)


def test_wrks_count_is_read_and_checked() -> None:
    """An error, or fewer bytes than so many right replies have, fails the row."""
    load = wrk.parse("Running 1s test\n  9 requests\ndone 9 1800 0 411\n")
    assert load == wrk.WrkLoad(9, 1800, 0, 411)
    load.check(200)
    with pytest.raises(ValueError, match="right"):
        load.check(201)
    with pytest.raises(ValueError, match="right"):
        wrk.WrkLoad(9, 1800, 1, 411).check(200)
    with pytest.raises(ValueError, match="report"):
        wrk.parse("unable to connect")
