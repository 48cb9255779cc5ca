"""Remembers which models give long answers to short requests.

The size of an answer is known only once it has been computed. If a hundred short
requests are computed together, that is too late: a server of two hundred megabytes grew
to a gigabyte. So models with long answers are remembered, and their requests wait for
room as if they were as long as the answers. Where a signature fixes how long its
answers are, that is known before the first request.

How long answers are may depend on the request. So a client whose last answer of a model
was short does not wait for the long ones that others get.
"""

from __future__ import annotations

from collections.abc import Hashable
from math import inf
from typing import Final

LARGE_BYTES: Final = 65_536
"""Requests and answers of at least this many bytes wait for room."""

_MAX_MODELS: Final = 256
_MAX_CLIENTS: Final = 4096
_MAX_SHORT: Final = 8  # models that are remembered for each of them
_MODEL_SPEC: Final = 0x0A  # field 1 of inference requests, and the name in it
# No longer: one answer of 64 MB has the model's small requests wait for each other.
_REMEMBERED_S: Final = 60.0


class AnswerSizes:
    """The models with long answers, by what a request begins with. Loop-confined.

    ``expect`` may be called on any thread. Clients are whatever a transport knows them
    by; it has to ``forget`` them, or they are forgotten when others come.

    Attributes:
        by_model: For each model, the bytes of its last long answer and when that was.
            Usually empty.

    """

    __slots__ = ("_least_bytes", "_short", "by_model")

    def __init__(self) -> None:
        self.by_model: dict[bytes, tuple[int, float]] = {}
        self._least_bytes: dict[bytes, int] = {}  # of models whose signatures tell
        # For each client, the models whose last answer to it was short.
        self._short: dict[Hashable, tuple[bytes, ...]] = {}

    def expect(self, model: str, least_bytes: int) -> None:
        """Notes how long a model's answers are at least, and forgets those it gave.

        To be called when that changes, with 0 when the model is gone.
        """
        key = model.encode()
        if least_bytes >= LARGE_BYTES:
            self._least_bytes[key] = least_bytes
            self.by_model[key] = least_bytes, inf
        else:
            self._least_bytes.pop(key, None)
            self.by_model.pop(key, None)

    def note(
        self,
        request: bytes | memoryview,
        num_bytes: int,
        now_s: float,
        client: Hashable = None,
    ) -> None:
        """Remembers how long the answer to a client's short request was."""
        if len(request) >= LARGE_BYTES:
            return
        model = model_of(request)
        is_short = num_bytes < LARGE_BYTES
        known = self._short.get(client, ())
        if client is not None and (model in known) is not is_short:
            if is_short:
                self._remember(client, (model, *known[: _MAX_SHORT - 1]))
            else:
                self._remember(client, tuple(each for each in known if each != model))
        if is_short:
            return
        if model not in self.by_model and len(self.by_model) >= _MAX_MODELS:
            model = b""
        self.by_model[model] = num_bytes, now_s

    def expected_bytes(
        self, request: bytes | memoryview, client: Hashable = None
    ) -> int:
        """Returns the length of the request or that of its expected answer."""
        size = len(request)
        if size >= LARGE_BYTES or not self.by_model:
            return size
        model = model_of(request)
        found = self.by_model.get(model)
        if found is None:
            return size
        if model in self._short.get(client, ()):
            return max(size, self._least_bytes.get(model, 0))
        return max(size, found[0])

    def is_trusted(self, request: bytes | memoryview, client: Hashable) -> bool:
        """Tells whether a client's request counts as short though others' do not."""
        if len(request) >= LARGE_BYTES or client not in self._short:
            return False
        model = model_of(request)
        return model in self.by_model and model in self._short[client]

    def forget(self, client: Hashable) -> None:
        """Forgets a client that is gone; idempotent."""
        self._short.pop(client, None)

    def _remember(self, client: Hashable, models: tuple[bytes, ...]) -> None:
        if not models:
            self.forget(client)
            return
        if client not in self._short and len(self._short) >= _MAX_CLIENTS:
            del self._short[next(iter(self._short))]
        self._short[client] = models

    def sweep(self, now_s: float) -> None:
        """Forgets the answers of models that gave no long ones lately."""
        for model, (_, at_s) in list(self.by_model.items()):
            if now_s - at_s > _REMEMBERED_S:
                least_bytes = self._least_bytes.get(model, 0)
                if least_bytes:
                    self.by_model[model] = least_bytes, inf
                else:
                    self.by_model.pop(model, None)


def model_of(request: bytes | memoryview) -> bytes:
    """Returns the model's name if it comes first, where all serializers put it."""
    if len(request) < 4 or request[0] != _MODEL_SPEC or request[2] != _MODEL_SPEC:
        return b""
    return bytes(request[4 : 4 + request[3]])
