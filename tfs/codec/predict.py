"""Predict on the wire: requests in, replies out."""

from tfs.codec.predict_request import read_if_quick, read_predict_request
from tfs.codec.predict_response import (
    Reply,
    write_if_quick,
    write_predict_replies,
    write_predict_reply,
)
from tfs.codec.predict_template import RequestTemplate, read_alike
from tfs.codec.predict_view import PredictRequestView

__all__ = [
    "PredictRequestView",
    "Reply",
    "RequestTemplate",
    "read_alike",
    "read_if_quick",
    "read_predict_request",
    "write_if_quick",
    "write_predict_replies",
    "write_predict_reply",
]
