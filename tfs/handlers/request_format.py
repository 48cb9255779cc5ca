"""The forms in which requests for tensors come by RPC, and how each is answered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol

from tfs.codec.predict_request import READER
from tfs.codec.predict_response import Answerer, PredictReplies, Reply
from tfs.codec.request_reader import RequestReader
from tfs.core.call import Call
from tfs.core.servable import Tensors


class ReplyWriter(Protocol):
    """Encodes outputs by name. Thread-safe.

    Implementors promise: whatever is raised is the outputs' fault, and leaves the
    request to be failed.
    """

    def write_if_quick(self, answerer: Answerer, outputs: Tensors) -> Reply | None:
        """Returns the reply; None if it takes too long for the serving loop."""
        return self.write(answerer, outputs)

    def write(self, answerer: Answerer, outputs: Tensors) -> Reply:
        """Returns the reply, however long that takes."""
        ...

    def write_all(
        self, answerer: Answerer, outputs: Tensors, num_rows: int, num_replies: int
    ) -> Sequence[Reply] | None:
        """Returns the replies to requests of ``num_rows`` each that were computed together.

        None if they have to be written one by one, as in most forms.
        """
        return None


class RequestFormat(Protocol):
    """Reads requests of one kind, and writes the replies. Thread-safe.

    The views that its reader returns are its own; it gets no others.
    """

    @property
    def reader(self) -> RequestReader[Any]:
        """Reads the requests."""
        ...

    @property
    def replies(self) -> ReplyWriter:
        """Answers plain requests."""
        ...

    def call_of(self, call: Call, request: Any) -> Call:
        """Returns the call with what its request says of deadline and priority."""
        ...

    def replies_to(self, request: Any) -> ReplyWriter:
        """Returns what writes the reply to a request."""
        ...


class PredictFormat:
    """``PredictRequest`` and ``PredictResponse``.

    Args:
        as_tensor_content: Whether outputs travel as raw elements.

    """

    def __init__(self, as_tensor_content: bool = False) -> None:
        self.reader: Final = READER
        self.replies: Final = PredictReplies(as_tensor_content)

    def call_of(self, call: Call, request: Any) -> Call:
        return call

    def replies_to(self, request: Any) -> PredictReplies:
        return self.replies
