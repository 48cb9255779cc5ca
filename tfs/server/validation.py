"""Compares a version with the one that serves before it takes its place.

Both are asked the same requests: recorded ones, or its examples. If the answers differ by
more than the model's ``validation`` allows, the load fails with the figures, and the other
goes on serving. The figures and their limits are those of a canary. So does the load if the
inputs of recorded requests, and of those that the other answered of late, are too far from
those that the version was made for. ("TensorFlow-Serving", section 3.2: "data and model validation" before
a version serves.)
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tfs.codec.model_spec import ModelSpec
from tfs.codec.predict_request import write_predict_request
from tfs.core import stat_names
from tfs.core.clock import Clock
from tfs.core.errors import FailedPrecondition, NotFound, ServingError
from tfs.core.servable import InferenceTask, OneByOne, Outcome, Servable
from tfs.core.servable_id import ServableId
from tfs.core.signature import Signature
from tfs.core.stats import Stats
from tfs.core.version.input_statistics import STATISTICS, Value, read_statistics
from tfs.core.version_directory import read_example
from tfs.handlers.model_lookup import ModelLookup
from tfs.handlers.warmup_replay import (
    MAX_RECORDS,
    Replay,
    WarmupOptions,
    read_requests,
    read_warmup_requests,
)
from tfs.proto.tensorflow_serving.apis.prediction_log_pb2 import PredictionLog
from tfs.proto.tfs.v1.model_config_pb2 import Validation as ValidationSettings
from tfs.server.canary.comparison import Tally, approval, judge, rejection
from tfs.server.canary.trial import owned
from tfs.server.input_skew import LiveInputs, judged, measured

log = logging.getLogger(__name__)


class Validation:
    """Refuses versions that answer otherwise than what serves. Thread-safe; blocks.

    Args:
        settings_of: Returns what a model's config says; None compares nothing.
        lookup: Finds the version that serves.
        live: Returns what requests to a version brought of late, by input.
        clock: Measures how long answers take.
        stats: Where comparisons are counted.

    """

    def __init__(
        self,
        settings_of: Callable[[str], ValidationSettings | None],
        lookup: ModelLookup,
        live: Callable[[ServableId], Mapping[str, Sequence[Value]]],
        clock: Clock,
        stats: Stats,
    ) -> None:
        self._stats = stats
        self._passed: dict[ServableId, str] = {}
        self._paths: dict[ServableId, str] = {}
        self._settings_of = settings_of
        self._lookup = lookup
        self._live = live
        self._clock = clock

    def report(self, servable_id: ServableId) -> str:
        """Returns how a version passed, with the figures; "" if nothing was compared."""
        return self._passed.get(servable_id, "")

    def forget(self, servable_id: ServableId) -> None:
        """Forgets a version that is gone."""
        self._passed.pop(servable_id, None)
        self._paths.pop(servable_id, None)

    def check(self, servable: Servable, path: str) -> None:
        """Compares a loaded version with the one that serves; where none does, nothing.

        Raises:
            FailedPrecondition: It differs too much; the message has the figures.
            ServingError: The requests cannot be read.

        """
        name = servable.id.name
        self._paths[servable.id] = path
        settings = self._settings_of(name)
        if settings is None:
            return
        try:
            handle = self._lookup.look_at(name, None, None)
        except NotFound:
            return
        with handle as serving:
            inputs = LiveInputs() if settings.HasField("skew") else None
            if inputs is not None:
                inputs.extend(self._live(serving.id))
            tally = self._compared(serving, servable, settings.requests, path, inputs)
        figures = tally.figures()
        limits = judge(settings.limits, figures)
        why = rejection(limits, figures)
        if limits and not figures.num_samples:
            why = (
                "no request to compare answers by; name some (validation { requests })"
            )
        said, over = approval(limits, figures), ""
        if inputs is not None:
            recorded = settings.skew.statistics or os.path.join(path, STATISTICS)
            skews = measured(read_statistics(recorded), inputs.values())
            live, over = judged(skews, settings.skew)
            said += f"; {live}"
        size = self._size_problem(settings, handle.id, path)
        why = "; ".join(filter(None, (why, over, size)))
        compared = f"validation against version {handle.id.version}"
        outcome = "refused" if why else "passed"
        self._stats.counter(stat_names.VALIDATIONS, model=name, outcome=outcome).add()
        if why:
            raise FailedPrecondition(
                f"{servable.id.slashed}: {compared}: {why.removeprefix('guard: ')}"
            )
        said = self._passed[servable.id] = f"{compared}: {said}"
        log.info("event=validated servable=%s why=%r", servable.id.slashed, said)

    def _size_problem(
        self, settings: ValidationSettings, serving: ServableId, path: str
    ) -> str:
        if not settings.HasField("max_size_ratio") or serving not in self._paths:
            return ""
        limit = settings.max_size_ratio
        sizes = [_size_bytes(each) for each in (self._paths[serving], path)]
        if not sizes[0]:
            return ""  # its files were removed since it was loaded
        ratio = max(sizes) / max(1, min(sizes))
        told = f"{sizes[1]} bytes of files after {sizes[0]}: size_ratio {ratio:.4g}"
        return f"{told} > {limit:.4g}" if ratio > limit else ""

    def _compared(
        self,
        serving: Servable,
        candidate: Servable,
        requests: str,
        path: str,
        inputs: LiveInputs | None,
    ) -> Tally:
        # This imports numpy, for which a server without validation need not wait.
        from tfs.server.canary.difference import difference

        tally = Tally()
        options = WarmupOptions()
        before = _Watched(serving, self._clock)
        entries = iter(
            read_requests(requests) if requests else read_warmup_requests(path)
        )
        first = next(entries, None)
        if first is not None:
            entries = itertools.chain((first,), entries)
        elif not requests:
            # Its author chose these: they are no sign of what clients send.
            entries, inputs = _examples(candidate, path), None
        after = _Watched(candidate, self._clock, inputs)
        replays = [Replay(each, options, self._clock) for each in (before, after)]
        for entry in itertools.islice(entries, MAX_RECORDS):
            for watched, replay in zip((before, after), replays, strict=True):
                watched.send(replay, entry)
            for old, new in zip(before.answers, after.answers, strict=False):
                tally.add_copy(old.outcome, old.took_s, new.outcome, new.took_s)
                if isinstance(old.outcome, ServingError) or isinstance(
                    new.outcome, ServingError
                ):
                    continue
                tally.add_pair(
                    old.num_rows,
                    difference(old.outcome, new.outcome, old.output_filter),
                )
        return tally


def _examples(candidate: Servable, path: str) -> Iterator[PredictionLog]:
    """Yields the requests that a version was saved with."""
    for name, signature in candidate.signatures.items():
        if signature.examples:
            spec = ModelSpec(candidate.id.name, signature_name=name)
            asked = write_predict_request(spec, read_example(path, signature))
            entry = PredictionLog()
            entry.predict_log.request.ParseFromString(asked)
            yield entry


def _size_bytes(path: str) -> int:
    """Returns the size of the files that are there, which others may be removing."""
    total = 0
    for folder, _, files in os.walk(path):
        for name in files:
            with contextlib.suppress(OSError):
                total += os.path.getsize(os.path.join(folder, name))
    return total


@dataclass(frozen=True, slots=True)
class _Answer:
    outcome: Outcome
    took_s: float = 0.0
    num_rows: int = 0
    output_filter: tuple[str, ...] = ()


@dataclass(slots=True)
class _Watched(OneByOne):
    """A servable whose answers to the last request are kept; asked by one thread."""

    _servable: Servable
    _clock: Clock
    _inputs: LiveInputs | None = None
    answers: list[_Answer] = field(default_factory=list)

    @property
    def id(self) -> ServableId:
        """The version that answers."""
        return self._servable.id

    @property
    def signatures(self) -> Mapping[str, Signature]:
        """The signatures of the version that answers."""
        return self._servable.signatures

    def send(self, replay: Replay, entry: PredictionLog) -> None:
        """Asks it; a request that does not fit it counts as an answer, too."""
        self.answers = []
        error = replay.send(PredictionLog.FromString(entry.SerializeToString()))
        if error is not None and not self.answers:
            self.answers.append(_Answer(error))

    def submit(self, task: InferenceTask) -> None:
        """Submits the task, and keeps how it ends."""
        if self._inputs is not None:
            self._inputs.extend(self._inputs.pick(task.inputs))
        answers, on_done, begun_s = self.answers, task.on_done, self._clock.now()

        def done(outcome: Outcome) -> None:
            took_s = self._clock.now() - begun_s
            kept = outcome if isinstance(outcome, ServingError) else owned(outcome)
            answers.append(_Answer(kept, took_s, task.num_rows, task.output_filter))
            on_done(outcome)

        task.on_done = done
        self._servable.submit(task)
