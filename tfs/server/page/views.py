"""What the page shows, as values for its templates, read from the server's one report."""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Sequence
from typing import Any, Final, TypeAlias
from urllib.parse import parse_qs

from tfs.codec.json.tensor_writer import dump
from tfs.codec.model_spec import ModelSpec
from tfs.core.clock import Clock
from tfs.core.errors import Code, ServingError, without_paths
from tfs.core.event_bus import EventAndTime
from tfs.core.servable_state import ServableState
from tfs.core.signature import DEFAULT_SIGNATURE
from tfs.core.stats import HistogramSnapshot
from tfs.handlers.rest.openapi_document import (
    DescribedModel,
    methods_of,
    request_example,
)
from tfs.handlers.rest.paths import path_of
from tfs.proto.tfs.v1 import admin_service_pb2 as pb
from tfs.servables.measuring.probe_subject import ProbeInputs
from tfs.server.admin.server_reports import ServerReports
from tfs.server.admin.version_report import FiguresOf
from tfs.server.config.running_config import RunningConfig
from tfs.server.config.server_config import config_text
from tfs.server.core import ServerCore

KEPT_EVENTS: Final = 500
ROWS: Final = 100
_MAX_EVENTS: Final = 12
_MAX_DESCRIBED: Final = 10

View = dict[str, Any]
_MADE_BY: Final = {
    "promote": "it was promoted",
    "rollback": "it was rolled back to",
    "canary": "it stays while another version is on trial",
    "unload": "the model was unloaded",
}


Events: TypeAlias = deque[EventAndTime[ServableState]]
"""What happened, the newest last."""


class Views:
    """Builds views. Thread-safe; may block, because reports list base paths.

    Args:
        core: The core.
        reports: The report on the server.
        figures: Counters of requests.
        events: What happened lately; others may append to it meanwhile.
        clock: Tells how long ago.

    """

    def __init__(
        self,
        core: ServerCore,
        reports: ServerReports,
        figures: FiguresOf,
        events: Events,
        clock: Clock,
    ) -> None:
        self._core = core
        self._reports = reports
        self._figures = figures
        self._events = events
        self._clock = clock

    def head(self, *, is_operator: bool) -> View:
        """Returns what every page has; with notes and paths for operators alone."""
        return {
            "is_operator": is_operator,
            "server": self._reports.server(),
            "notes": self._reports.notes() if is_operator else (),
            "now_s": self._clock.wall_s(),
            "clean": str if is_operator else without_paths,
        }

    def overview(self, query: str, page: int, show: str) -> View:
        """Returns the server and a page of its models.

        Args:
            query: Part of the names that are looked for.
            page: Which hundred of them, from 1 on.
            show: "silent" for models that cannot answer, "trial" for canaries.

        """
        running, served = self._core.config.require_running(), self._core.served
        names = sorted(running.effective.models)
        silent = [name for name in names if served.primary(name) is None]
        trials = [name for name in names if running.effective.models[name].canary]
        shown = {"silent": silent, "trial": trials}.get(show, names)
        found = [name for name in shown if query.lower() in name.lower()]
        paged = page_view(found, page)
        return {
            **paged,
            "num_models": len(names),
            "num_silent": len(silent),
            "num_trials": len(trials),
            "query": query,
            "show": show,
            "rows": [self._row(running, name) for name in paged["names"]],
            "events": self._latest_events(),
        }

    def model(self, name: str, *, has_form: bool) -> View:
        """Returns everything about one model.

        Raises:
            NotFound: It is not configured.

        """
        running = self._core.config.require_running()
        running.model(name)
        report = self._reports.model(running, name, include_stats=True)
        primary = report.primary if report.HasField("primary") else None
        message = running.model_message(name)
        trial = self._core.served.trial(name)
        return {
            "spans": () if trial is None else trial.spans,
            "report": report,
            "name": name,
            "primary": primary,
            "why": _why(running, report, primary),
            "canary": report.canary if report.HasField("canary") else None,
            "described": self._describe(name) if has_form else None,
            "events": self._latest_events(name),
            "override": running.overrides.get(name),
            "config": "" if message is None else str(message).rstrip(),
        }

    def config(self) -> View:
        """Returns the configuration in force, and what is laid over it. For operators."""
        running = self._core.config.require_running()
        return {
            "base": running.base,
            "overrides": sorted(running.overrides.items()),
            "why_inactive": running.why_inactive,
            "refusal": self._core.config.refusal,
            "text": config_text(running.effective.message),
        }

    def docs(self, name: str, page: int, base_url: str) -> View:
        """Returns what a model takes and answers; for "" what a page's first ones do.

        Lines to paste have ``base_url`` for the server.
        """
        paged = page_view(sorted(self._core.config.models), page)
        names = [name] if name else paged["names"][:_MAX_DESCRIBED]
        found = [self._describe(each) for each in names]
        return {
            **paged,
            "base_url": base_url,
            "models": [each for each in found if each is not None],
        }

    def _latest_events(self, model: str = "") -> Sequence[EventAndTime[ServableState]]:
        kept = reversed(self._events.copy())
        found = (each for each in kept if model in ("", each.event.id.name))
        return list(itertools.islice(found, _MAX_EVENTS))

    def _row(self, running: RunningConfig, name: str) -> View:
        report = self._reports.model(running, name)
        by_signature = self._figures(name, report.primary)
        figures = list(itertools.chain.from_iterable(by_signature.values()))
        num = sum(sum(each.num_by_code.values()) for each in figures)
        num_ok = sum(each.num_by_code.get(Code.OK, 0) for each in figures)
        return {
            "report": report,
            "num": num,
            "num_failed": num - num_ok,
            "latency_s": HistogramSnapshot.merged(each.latency_s for each in figures),
        }

    def _describe(self, name: str) -> View | None:
        """Returns the version of a model that answers; None if none does."""
        try:
            return described_view(described_model(self._core, ModelSpec(name)))
        except ServingError:
            return None


def described_model(core: ServerCore, asked: ModelSpec) -> DescribedModel:
    """Returns a version, with an example of each of its signatures. Blocks on the disk.

    Raises:
        ServingError: It does not answer.

    """
    which = (asked.name, asked.version, asked.version_label)
    with core.served.look_at(*which) as servable:
        version, signatures = servable.id.version, dict(servable.signatures)
    settings = core.config.models.get(asked.name)
    folders = core.sources.paths_at_hand(settings.base_path) if settings else {}
    folder = folders.get(version, "")
    examples = {
        key: ProbeInputs.of(folder, signature).batch(1)
        for key, signature in signatures.items()
    }
    path = path_of(*which)
    return DescribedModel(asked.name, version, signatures, examples, path)


def page_of(query: str) -> int:
    """Returns which page a query asks for, from 1 on."""
    number = parse_qs(query).get("page", ["1"])[-1]
    return int(number) if number.isdecimal() and len(number) < 7 else 1


def page_view(names: Sequence[str], page: int, rows: int = ROWS) -> View:
    """Returns one page of names; the last one for pages behind it."""
    num_pages = max(1, math.ceil(len(names) / rows))
    page = min(max(1, page), num_pages)
    return {
        "page": page,
        "num_pages": num_pages,
        "num_found": len(names),
        "names": names[(page - 1) * rows : page * rows],
    }


def described_view(model: DescribedModel) -> View:
    """Returns a model's signatures, the default first, and what asks them by method."""
    signatures = []
    for key in sorted(
        model.signatures, key=lambda key: (key != DEFAULT_SIGNATURE, key)
    ):
        signature, inputs = model.signatures[key], model.examples.get(key, {})
        bodies = {
            method: dump(body).decode()
            for method in methods_of(signature)
            if (body := request_example(method, key, signature, inputs)) is not None
        }
        signatures.append({"name": key, "of": signature, "bodies": bodies})
    return {"model": model, "signatures": signatures}


def _why(running: RunningConfig, report: pb.ModelReport, primary: int | None) -> str:
    """Returns why the primary answers, as the end of a sentence."""
    name = report.name
    override = running.overrides.get(name) if name in running.active else None
    made_by = "" if override is None else override.made_by
    if primary is None:
        return _MADE_BY[made_by] if made_by == "unload" else "no version is available"
    if override is not None and override.config.traffic.HasField("primary"):
        return _MADE_BY.get(made_by, "an override names it")
    if running.effective.models[name].primary is not None:
        return "the configuration names it"
    if report.residency == pb.ModelReport.REGISTERED:
        return "a request for the model loads it"
    return "it is the newest version that is available"
