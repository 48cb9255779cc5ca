"""Predict on the wire: requests in, replies out."""

from tfs.codec.predict_request import READER, read_predict_request
from tfs.codec.predict_response import (
    Reply,
    write_if_quick,
    write_predict_replies,
    write_predict_reply,
)
from tfs.codec.predict_view import PredictRequestView

__all__ = [
    "READER",
    "PredictRequestView",
    "Reply",
    "read_predict_request",
    "write_if_quick",
    "write_predict_replies",
    "write_predict_reply",
]
