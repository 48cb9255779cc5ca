"""How the outputs of a signature become the reply to a request for tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tfs.codec.predict import (
    Reply,
    write_if_quick,
    write_predict_replies,
    write_predict_reply,
)
from tfs.core.servable import Tensors
from tfs.core.servable_id import ServableId


class ReplyWriter(Protocol):
    """Encodes outputs by name. Thread-safe.

    Implementors promise: whatever is raised is the outputs' fault, and leaves the
    request to be failed.
    """

    def write_if_quick(
        self, servable_id: ServableId, signature_name: str, outputs: Tensors
    ) -> Reply | None:
        """Returns the reply; None if it takes too long for the serving loop."""
        ...

    def write(
        self, servable_id: ServableId, signature_name: str, outputs: Tensors
    ) -> Reply:
        """Returns the reply, however long that takes."""
        ...

    def write_all(
        self,
        servable_id: ServableId,
        signature_name: str,
        outputs: Tensors,
        num_rows: int,
        num_replies: int,
    ) -> Sequence[Reply] | None:
        """Returns the replies to requests of ``num_rows`` each that were computed together.

        None if they have to be written one by one.
        """
        ...


@dataclass(frozen=True, slots=True)
class PredictReplies:
    """Writes ``PredictResponse``. Immutable.

    Attributes:
        as_tensor_content: Whether outputs travel as raw elements.

    """

    as_tensor_content: bool = False

    def write_if_quick(
        self, servable_id: ServableId, signature_name: str, outputs: Tensors
    ) -> Reply | None:
        return write_if_quick(
            servable_id.name,
            servable_id.version,
            signature_name,
            outputs,
            as_tensor_content=self.as_tensor_content,
        )

    def write(
        self, servable_id: ServableId, signature_name: str, outputs: Tensors
    ) -> Reply:
        return write_predict_reply(
            servable_id.name,
            servable_id.version,
            signature_name,
            outputs,
            as_tensor_content=self.as_tensor_content,
        )

    def write_all(
        self,
        servable_id: ServableId,
        signature_name: str,
        outputs: Tensors,
        num_rows: int,
        num_replies: int,
    ) -> Sequence[bytes] | None:
        return write_predict_replies(
            servable_id.name,
            servable_id.version,
            signature_name,
            outputs,
            num_rows,
            num_replies,
            as_tensor_content=self.as_tensor_content,
        )
