"""Answers the page's routes: what anybody may see, and what operates the server."""

from __future__ import annotations

import functools
import hashlib
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs, quote

import orjson

from tfs.core.errors import Code, InvalidArgument, ServingError
from tfs.core.http_call import HttpCall, HttpReply
from tfs.core.stats import HistogramSnapshot
from tfs.handlers.admin import Admin, Asked
from tfs.handlers.admin_access import KEY_COOKIE, AdminAccess
from tfs.handlers.rest.paths import Routes
from tfs.handlers.rest.root import Run, answer_apart
from tfs.proto.tfs.v1 import admin_service_pb2 as pb
from tfs.server.admin.report_words import problems_of
from tfs.server.page import charts, words
from tfs.server.page.views import View, Views, page_of

if TYPE_CHECKING:
    from jinja2 import Environment

HTML: Final = "text/html; charset=utf-8"
_ACTIONS: Final[Mapping[str, Callable[..., Any]]] = {
    "promote": pb.PromoteRequest,
    "rollback": pb.RollbackRequest,
    "end_trial": pb.SetCanaryRequest,
    "retry": pb.RetryLoadRequest,
    "reset": pb.ResetOverrideRequest,
}
ROUTES: Final = (
    ("GET", "/", "overview", False),
    ("GET", "/models/{name}", "model", False),
    ("GET", "/page.css", "text/css; charset=utf-8", False),
    ("GET", "/page.js", "text/javascript; charset=utf-8", False),
    ("GET", "/docs", "docs", False),
    ("GET", "/config", "config", True),
    ("POST", "/page/key", "key", True),
    ("POST", "/page/forget", "forget", True),
    *(("POST", f"/models/{{name}}/{action}", action, True) for action in _ACTIONS),
)
"""Verb, path, what it is, and whether it operates or reveals the server."""

_FOLDER: Final = Path(__file__).parent
_ROUTES: Final = Routes(
    [(verb, path, (what, is_guarded)) for verb, path, what, is_guarded in ROUTES],
    "/, /docs, /openapi.json, /v1/, /v2, /healthz, /readyz, /metrics",
)
_HEADERS: Final = (
    ("Cache-Control", "no-store"),
    (
        "Content-Security-Policy",
        "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
        "img-src data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    ),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
)
_FOREVER: Final = (("Cache-Control", "max-age=31536000, immutable"),)


class PageHandler:
    """Answers the page. Confined to the serving loop; views are built on a thread.

    Args:
        views: Builds what is shown.
        admin: Operates the server.
        access: Who may, and who sees paths and configuration.
        run: Runs what blocks.
        is_tls: Whether browsers come over TLS.

    """

    def __init__(
        self,
        views: Views,
        admin: Admin,
        access: AdminAccess,
        run: Run,
        *,
        is_tls: bool = False,
    ) -> None:
        self._views = views
        self._admin = admin
        self._access = access
        self._run = run
        self._is_tls = is_tls

    def __call__(self, call: HttpCall) -> None:
        """Starts the request; the call is finished when its outcome is known."""
        try:
            (what, is_guarded), names = _ROUTES.find(call.verb, call.path)
            name = names.get("name", "")
            if is_guarded:
                self._access.check(call)
            if what in ("overview", "model", "docs", "config"):
                self._show(call, what, name)
            elif call.verb != "POST":
                call.respond(_static(call.path, what))
            elif what in ("key", "forget"):
                self._set_key(call, keeps=what == "key")
            else:
                self._act(call, what, name)
        except ServingError as error:
            call.fail(error)

    def _show(self, call: HttpCall, what: str, name: str) -> None:
        query = {key: each[-1] for key, each in parse_qs(call.query).items()}
        is_live = query.get("part") == "live"
        views, page = self._views, page_of(call.query)
        scheme = "https" if self._is_tls else "http"
        base_url = f"{scheme}://{call.headers.get('host', 'localhost')}"
        try:
            self._access.check(call)
            is_operator = True
        except ServingError:
            is_operator = False

        def build() -> View:
            if what == "overview":
                return views.overview(query.get("q", ""), page, query.get("show", ""))
            if what == "model":
                return views.model(name, has_form=not is_live)
            if what == "docs":
                return views.docs(query.get("model", ""), page, base_url)
            return views.config()

        def show() -> HttpReply:
            view = {**views.head(is_operator=is_operator), **build()}
            text = render(what, view, is_live=is_live)
            return HttpReply((text.encode(),), 200, HTML, _HEADERS)

        answer_apart(self._run, call, show)

    def _set_key(self, call: HttpCall, *, keeps: bool) -> None:
        """Has the browser keep the key that it showed, or forget it."""
        value = f"{self._access.key}; " if keeps else "; Max-Age=0; "
        secure = "; Secure" if self._is_tls else ""
        cookie = f"{KEY_COOKIE}={value}Path=/; HttpOnly; SameSite=Strict{secure}"
        headers = (("Set-Cookie", cookie), *_HEADERS)
        call.respond(HttpReply((b"{}",), headers=headers))

    def _act(self, call: HttpCall, what: str, name: str) -> None:
        fields = parse_qs(bytes(call.message[:4096]).decode("utf-8", "replace"))
        given = fields.get("version", [""])[-1]
        if given and not (given.isdecimal() and len(given) < 19):
            raise InvalidArgument(f"version {given[:32]!r} is no number")

        def done(outcome: Any) -> None:
            if isinstance(outcome, ServingError):
                call.fail(outcome)
                return
            said = {"said": _said(what, name, outcome)}
            call.respond(HttpReply((orjson.dumps(said),), headers=_HEADERS))

        request = _ACTIONS[what](model=name)
        if given and what not in ("end_trial", "reset"):
            request.version = int(given)
        caller = f"the page, {call.peer.address}"
        self._admin(Asked(request, caller, call.deadline_s, done))


def render(what: str, view: View, *, is_live: bool = False) -> str:
    """Returns a page, or the parts of it that change, as HTML."""
    return (
        _environment()
        .get_template(f"{what}.html")
        .render(view, is_live=is_live, css=_digest("page.css"), js=_digest("page.js"))
    )


def _said(what: str, name: str, reply: Any) -> str:
    """Returns what came of an action, in a sentence or two."""
    notes = list(reply.notes if what == "retry" else reply.outcome.notes)
    if what == "retry":
        listed = ", ".join(map(str, reply.versions))
        problem = f": {reply.status.message}" if reply.status.code else " is available"
        done = f"Version {listed} of {name}{problem}"
    elif what == "end_trial":
        done = f"The trial of {name} has ended"
    elif what == "reset":
        done = f"The override of {name} is dropped"
    else:
        done = f"Version {reply.version} of {name} answers from now on"
    return "; ".join((done, *notes)) + "."


@functools.cache
def _content(name: str) -> bytes:
    return (_FOLDER / "static" / name).read_bytes()


@functools.cache
def _digest(name: str) -> str:
    """Returns a name for the contents of a file, so that browsers may keep it."""
    return hashlib.sha256(_content(name)).hexdigest()[:12]


def _static(path: str, content_type: str) -> HttpReply:
    return HttpReply((_content(path[1:]),), 200, content_type, _FOREVER)


@functools.cache
def _environment() -> Environment:
    """Returns the templates; imports their library."""
    from jinja2 import Environment, FileSystemLoader

    environment = Environment(
        loader=FileSystemLoader(_FOLDER / "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["truncate.leeway"] = 0
    named = (words.ago, words.duration, words.count, words.share)
    charted = (charts.quantile, charts.moving)
    environment.filters |= {each.__name__: each for each in (*named, *charted)}
    environment.filters |= {
        "quoted": shlex.quote,
        "problems": problems_of,
        "merged": HistogramSnapshot.merged,
        "path": lambda name: quote(name, safe=""),
        "state": words.state_of,
        "event_state": words.event_state,
        "code": lambda code: Code(code).name.lower().replace("_", " "),
    }
    environment.globals |= {
        "latency_lines": charts.latency_lines,
        "Server": pb.ServerReport.State,
        "Phase": pb.CanaryReport.Phase,
        "Place": pb.PlacementReport.Place,
    }
    return environment
