"""What the paths of the protocol's REST API name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import unquote

from tfs.core.errors import NotFound, Unimplemented

PREFIX: Final = "/v2"
INFER: Final = "ModelInfer"
GUARDED: Final = frozenset({"RepositoryModelLoad", "RepositoryModelUnload"})
"""The methods that operate the server."""

ROUTES: Final = (
    ("POST", "/v2/models/{name}/infer", INFER),
    ("POST", "/v2/models/{name}/versions/{version}/infer", INFER),
    ("GET", "/v2", "ServerMetadata"),
    ("GET", "/v2/health/live", "ServerLive"),
    ("GET", "/v2/health/ready", "ServerReady"),
    ("GET", "/v2/models/stats", "ModelStatistics"),
    ("GET", "/v2/models/{name}", "ModelMetadata"),
    ("GET", "/v2/models/{name}/versions/{version}", "ModelMetadata"),
    ("GET", "/v2/models/{name}/ready", "ModelReady"),
    ("GET", "/v2/models/{name}/versions/{version}/ready", "ModelReady"),
    ("GET", "/v2/models/{name}/stats", "ModelStatistics"),
    ("GET", "/v2/models/{name}/versions/{version}/stats", "ModelStatistics"),
    ("POST", "/v2/repository/index", "RepositoryIndex"),
    ("POST", "/v2/repository/models/{name}/load", "RepositoryModelLoad"),
    ("POST", "/v2/repository/models/{name}/unload", "RepositoryModelUnload"),
)
"""Verb, path and method; of two that fit, the first one counts."""

_PATTERNS: Final = tuple(
    (verb, re.compile(re.sub(r"{(\w+)}", r"(?P<\1>[^/]+)", path) + "/?"), method)
    for verb, path, method in ROUTES
)


def parse_path(verb: str, path: str) -> tuple[str, Mapping[str, str]]:
    """Returns the method of a path, and the names in it: ``name`` and ``version``.

    Raises:
        NotFound: There is no such path.
        Unimplemented: It takes another verb.

    """
    wanted = None
    for wanted_verb, pattern, method in _PATTERNS:
        found = pattern.fullmatch(path)
        if found is None:
            continue
        if verb == wanted_verb or (verb == "HEAD" and wanted_verb == "GET"):
            return method, {
                key: unquote(each) for key, each in found.groupdict().items()
            }
        wanted = wanted_verb
    if wanted:
        raise Unimplemented(f"{path} takes {wanted}, no {verb}")
    known = ", ".join(dict.fromkeys(route for _, route, _ in ROUTES))
    raise NotFound(f"there is nothing at {path}; there are {known}")
