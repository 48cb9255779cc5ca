"""A page for people: what the models take and answer, with lines to paste. No script."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Final
from urllib.parse import quote

from tfs.codec.json.tensor_writer import dump
from tfs.core.signature import Method, Signature, TensorSpec
from tfs.handlers.openapi.document import PREDICT, DescribedModel, request_example

_HEAD: Final = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>TFS: models</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif }
body { max-width: 60rem; margin: 0 auto; padding: 1rem }
table { border-collapse: collapse } th, td { text-align: left; padding: .2rem 1rem .2rem 0 }
pre { overflow-x: auto; padding: .6rem; border: 1px solid gray; border-radius: .3rem }
</style>
<h1>Models</h1>
<p>The same for programs: <a href="/openapi.json">openapi.json</a> (OpenAPI 3.1).</p>
"""


def docs_page(
    names: Sequence[str], shown: Sequence[DescribedModel], address: str
) -> str:
    """Returns the page.

    Args:
        names: All models, which it links to.
        shown: Those that it describes.
        address: Where the reader found this server: ``http://host:port``.

    """
    links = (
        f'<li><a href="?model={quote(name, safe="")}">{escape(name)}</a>'
        for name in names
    )
    parts = [_HEAD, "<ul>", *links, "</ul>"]
    for model in shown:
        parts += _model(model, address)
    return "\n".join((*parts, "</html>", ""))


def _model(model: DescribedModel, address: str) -> Iterator[str]:
    name = escape(model.name)
    path = f"/v1/models/{quote(model.name, safe='')}"
    yield f"<h2>{name} {model.version}</h2>"
    yield (
        f'<p><a href="{path}">state</a>, <a href="{path}/metadata">metadata</a>, '
        f'<a href="{path}/openapi.json">openapi.json</a></p>'
    )
    for key, signature in model.signatures.items():
        yield f"<h3>{escape(key)}</h3>"
        yield _table("input", signature.inputs, signature.defaults)
        yield _table("output", signature.outputs, {})
        inputs = model.examples.get(key, {})
        for method in _methods(signature):
            body = request_example(method, key, signature, inputs)
            if body is not None:
                data = shlex.quote(dump(body).decode())
                url = shlex.quote(f"{address}{path}:{method}")
                yield f"<pre>{escape(f'curl -d {data} {url}')}</pre>"


def _methods(signature: Signature) -> Sequence[str]:
    if not signature.features:
        return (PREDICT,)
    is_regress = signature.method is Method.REGRESS
    return (PREDICT, "regress" if is_regress else "classify")


def _table(
    kind: str, specs: Mapping[str, TensorSpec], optional: Mapping[str, object]
) -> str:
    rows = "".join(
        f"<tr><td>{escape(name)}<td>{spec.dtype}<td>"
        f"{' &times; '.join('any' if size < 0 else str(size) for size in spec.shape)}"
        f"<td>{'may be left out' if name in optional else ''}"
        for name, spec in specs.items()
    )
    return f"<table><tr><th>{kind}<th>dtype<th>shape<th>{rows}</table>"
