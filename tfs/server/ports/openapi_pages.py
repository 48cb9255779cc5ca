"""The documents that describe the models: /openapi.json, and one for each model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final

from tfs.codec.model_spec import ModelSpec
from tfs.core.errors import ServingError
from tfs.core.http_call import HttpCall, HttpReply
from tfs.core.loop.pacing import yield_to_requests
from tfs.handlers.model_lookup import NotResident
from tfs.handlers.rest.openapi_document import DescribedModel, openapi_document
from tfs.handlers.rest.root import Run, answer_apart
from tfs.server.core import ServerCore
from tfs.server.page.views import described_model, page_of, page_view
from tfs.server.system.versions import distribution_version

DOCUMENT: Final = "/openapi.json"
MODELS: Final = 1000
"""A page of it: generators of clients take no more, and a thread writes it for a second."""


class OpenApiPages:
    """Describes the models that answer now. Thread-safe; blocks on the disk.

    Args:
        core: Has the models.
        run: Runs what blocks.

    """

    def __init__(self, core: ServerCore, run: Run) -> None:
        self._core = core
        self._run = run
        self._release = distribution_version("tfs")

    def describe(self, call: HttpCall, asked: ModelSpec) -> None:
        """Answers with the document of one model, loaded if need be. On the loop."""
        try:
            self._core.served.look_at(
                asked.name, asked.version, asked.version_label
            ).release()
        except NotResident as absent:
            absent.then(call, lambda: self.describe(call, asked), call.fail)
            return
        except ServingError as error:
            call.fail(error)
            return

        def write() -> HttpReply:
            return HttpReply(
                openapi_document([described_model(self._core, asked)], self._release)
            )

        answer_apart(self._run, call, write)

    def document(self, query: str) -> HttpReply:
        """Returns a page of the document of all models."""
        found = page_view(sorted(self._core.config.models), page_of(query), MODELS)
        page, last, more = found["page"], found["num_pages"], ""
        if last > 1:
            more = (
                f" This is page {page} of {last}; ?page={page % last + 1} is another."
            )
        models = self._models(found["names"])
        return HttpReply(openapi_document(models, self._release, more))

    def _models(self, names: Sequence[str]) -> Iterator[DescribedModel]:
        for name in names:
            yield_to_requests()
            with suppress(ServingError):  # it does not answer now
                yield described_model(self._core, ModelSpec(name))
