"""What the paths of TensorFlow Serving's REST API name, and others by their patterns.

(TensorFlow Serving: model_servers/http_rest_api_handler.cc, http_rest_api_util.cc.)
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Mapping
from typing import Final, Generic, TypeVar
from urllib.parse import quote, unquote

from tfs.codec.model_spec import ModelSpec
from tfs.core.errors import InvalidArgument, NotFound
from tfs.core.http_call import verb_not_taken

T = TypeVar("T")

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


def path_of(model: str, version: int | None = None, label: str | None = None) -> str:
    """Returns where a model is, or its version or label, if one is asked for."""
    path = f"/v1/models/{quote(model, safe='')}"
    if version is not None:
        return f"{path}/versions/{version}"
    return f"{path}/labels/{quote(label, safe='')}" if label else path


def parse_path(verb: str, path: str) -> tuple[Action, ModelSpec]:
    """Returns what is asked of which model; the signature is not in a path.

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
    action = Action((found["action"] or Action.STATUS.value).lower())
    return action, ModelSpec(unquote(found["name"]), version, label and unquote(label))


class Routes(Generic[T]):
    """What is at which other paths. Immutable.

    Args:
        routes: Verb, path with names in braces, and what is there; of two that fit, the
            first one counts.
        known: Says what there is.

    """

    def __init__(self, routes: Iterable[tuple[str, str, T]], known: str) -> None:
        self._routes = [
            (verb, re.compile(re.sub(r"{(\w+)}", r"(?P<\1>[^/]+)", path)), what)
            for verb, path, what in routes
        ]
        self._known = known

    def find(self, verb: str, path: str) -> tuple[T, Mapping[str, str]]:
        """Returns what is at a path, and the names in it.

        Raises:
            NotFound: Nothing is.
            HttpError: It takes another verb.

        """
        others: list[str] = []
        for own_verb, pattern, what in self._routes:
            found = pattern.fullmatch(path)
            if found is None:
                continue
            if own_verb == ("GET" if verb == "HEAD" else verb):
                return what, {key: unquote(e) for key, e in found.groupdict().items()}
            others += ["GET", "HEAD"] if own_verb == "GET" else [own_verb]
        if others:
            raise verb_not_taken(path, verb, ", ".join(dict.fromkeys(others)))
        raise NotFound(f"there is nothing at {path}; there are {self._known}")
