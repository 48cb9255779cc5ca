"""What the paths of TensorFlow Serving's REST API name.

(TensorFlow Serving: model_servers/http_rest_api_handler.cc, http_rest_api_util.cc.)
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

from tfs.codec.model_spec import ModelSpec
from tfs.core.errors import InvalidArgument

PREFIX: Final = "/v1/"

_MODEL: Final = r"/v1/models(?:/(?P<name>[^/:]+))?"
_WHICH: Final = r"(?:/versions/(?P<version>\d+)|/labels/(?P<label>[^/:]+))?"
_POST: Final = re.compile(rf"(?i){_MODEL}{_WHICH}:(?P<action>classify|regress|predict)")
_GET: Final = re.compile(
    rf"(?i){_MODEL}{_WHICH}(?:/(?P<action>metadata|openapi\.json))?"
)
_MAX_VERSION: Final = (1 << 63) - 1


class Action(enum.Enum):
    """What is asked of a model."""

    PREDICT = "predict"
    CLASSIFY = "classify"
    REGRESS = "regress"
    STATUS = "status"
    METADATA = "metadata"
    OPENAPI = "openapi.json"


@dataclass(frozen=True, slots=True)
class RestPath:
    """A parsed path. Immutable.

    Attributes:
        action: What is asked for.
        model: The model and the version or label; without a signature.

    """

    action: Action
    model: ModelSpec


def parse_path(verb: str, path: str) -> RestPath:
    """Returns what a request names.

    Raises:
        InvalidArgument: Not such a path, or not for that verb.

    """
    found = (_POST if verb == "POST" else _GET).fullmatch(path)
    if found is None or verb not in ("GET", "HEAD", "POST"):
        raise InvalidArgument(f"Malformed request: {verb} {path}")
    if found["name"] is None:
        raise InvalidArgument("Missing model name in request.")
    version: int | None = None
    if found["version"] is not None:
        version = int(found["version"]) if len(found["version"]) < 20 else -1
        if not 0 <= version <= _MAX_VERSION:
            raise InvalidArgument(
                f"Failed to convert version: {found['version']} to numeric."
            )
    label = found["label"]
    default = Action.STATUS.value
    return RestPath(
        Action((found["action"] or default).lower()),
        ModelSpec(unquote(found["name"]), version, label and unquote(label)),
    )
