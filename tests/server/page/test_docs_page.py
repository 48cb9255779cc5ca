"""The page of the API, as its template writes it."""

from __future__ import annotations

from tests.tensors import floats
from tfs.core.dtype import FLOAT32
from tfs.core.signature import Method, Signature, TensorSpec
from tfs.handlers.rest.openapi_document import DescribedModel
from tfs.handlers.rest.paths import path_of
from tfs.proto.tfs.v1 import admin_service_pb2 as pb
from tfs.server.page.handler import render
from tfs.server.page.views import described_view

SIGNATURE = Signature(
    Method.PREDICT, {"x": TensorSpec(FLOAT32, (-1, 2))}, {"y": TensorSpec(FLOAT32, ())}
)


def test_the_page_escapes_what_others_named() -> None:
    """A model's name is not the page's author; lines to paste survive it."""
    model = DescribedModel(
        "<b>",
        1,
        {"serving_default": SIGNATURE},
        {"serving_default": {"x": floats((1, 2), 1, 2)}},
        path_of("<b>"),
    )
    view = {
        "is_operator": False,
        "server": pb.ServerReport(),
        "now_s": 0.0,
        "names": ["<b>"],
        "page": 1,
        "num_pages": 1,
        "num_found": 1,
        "base_url": "http://h:1",
        "models": [described_view(model)],
    }
    page = render("docs", view)
    assert "<b>" not in page
    assert "&lt;b&gt; 1" in page
    assert "http://h:1/v1/models/%3Cb%3E:predict" in page
    assert "<td>any \N{MULTIPLICATION SIGN} 2</td>" in page
    assert "one value" in page
    assert "No version answers now." not in page
    assert "No version answers now." in render("docs", view | {"models": []})
