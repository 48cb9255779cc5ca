"""A Predict request whose rows are answered one by one: ``?per_item=true``.

A row that is wrong is ``{"error": "..."}`` in its place, and the others are answered.
Each row is a request of its own to the model, so batching joins them as usual.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from tfs.codec.json.predict_body import PredictBody
from tfs.codec.json.tensor_writer import PREDICTIONS, dump, rows_of
from tfs.codec.model_spec import ModelSpec
from tfs.core.errors import Code, ServingError
from tfs.core.http_call import HttpCall, HttpReply
from tfs.core.servable import Tensors
from tfs.core.servable_id import ServableId
from tfs.handlers.delegating_call import DelegatingCall
from tfs.handlers.predict import PredictHandler
from tfs.handlers.request_format import ReplyWriter


def answer_per_item(
    predict: PredictHandler,
    call: HttpCall,
    spec: ModelSpec,
    rows: Sequence[PredictBody],
) -> None:
    """Starts a request for each row; the call is finished with all their results."""
    gathering = _Gathering(call, len(rows))
    for index, row in enumerate(rows):
        predict.start(
            _RowCall(call, gathering, index),
            spec,
            lambda signature, row=row: (row.read(signature), ()),  # type: ignore[misc]
            _ROWS,
        )


_OF_ROWS = (Code.INVALID_ARGUMENT, Code.INTERNAL)
"""Codes that a row can be at fault for; any other is the request's."""


class _Gathering:
    """The results of the rows. Thread-safe."""

    def __init__(self, call: HttpCall, num_rows: int) -> None:
        self._call = call
        self._results = [b""] * num_rows
        self._num_left = num_rows
        self._lock = threading.Lock()  # guards both; leaf

    def put(self, index: int, result: bytes) -> None:
        """Takes a row's result; finishes the call with the last."""
        with self._lock:
            self._results[index] = result
            self._num_left -= 1
            is_last = not self._num_left
        if is_last:
            rows = b",".join(self._results)
            body = b'{"%s":[%s]}' % (PREDICTIONS.encode(), rows)
            self._call.respond(HttpReply((body,)))


class _RowCall(DelegatingCall[HttpCall]):
    """The request for one row."""

    __slots__ = ("_gathering", "_index")

    def __init__(self, call: HttpCall, gathering: _Gathering, index: int) -> None:
        super().__init__(call, b"")
        self._gathering = gathering
        self._index = index

    def reply(self, message: bytes) -> None:
        self._gathering.put(self._index, message)

    def fail(self, error: ServingError) -> None:
        if error.code in _OF_ROWS:
            self._gathering.put(self._index, dump({"error": error.message}))
        else:
            self._call.fail(error)


class _RowReplies(ReplyWriter):
    """Writes the only row of outputs."""

    def write(
        self, servable_id: ServableId, signature_name: str, outputs: Tensors
    ) -> bytes:
        return dump(rows_of(outputs)[0])


_ROWS = _RowReplies()
