"""Gives every loaded version its profile: known already, measured now, or measured later."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from tfs.core.clock import Clock, MonotonicClock
from tfs.core.errors import ServingError
from tfs.core.loop.pacing import yield_to_requests
from tfs.core.servable import Tensors
from tfs.core.servable_id import ServableId
from tfs.core.tensor_view import TensorView
from tfs.core.version.model_profile import ModelProfile, SignatureProfile, row_limit
from tfs.core.version_directory import WARMUP_REQUESTS
from tfs.servables.measuring.example_warm_up import warm_up
from tfs.servables.measuring.probe import LoadMeasures, ProbeOptions, probe
from tfs.servables.measuring.probe_inputs import ProbeInputs
from tfs.servables.measuring.probe_subject import ProbeSubject
from tfs.servables.measuring.profiles import MAX_TURNS, Profiles
from tfs.servables.measuring.row_independence import (
    RowIndependence,
    keeps_rows,
    row_independence,
)

log = logging.getLogger(__name__)

_WARM: Final = 4.0
"""Factor over the measured time that a first call may take. Cold code takes nine times
as long or more; warm code with cold weights takes up to three times."""


@dataclass(frozen=True, slots=True)
class ProfileRequest:
    """One loaded version to measure. Immutable.

    Attributes:
        id: The version.
        path: The version's directory, which has the author's example.
        code_digest: The digest of the code to which the profile belongs.
        subject: The loaded version.
        load: What the loader measured.
        on_profile: Told of a profile that was postponed; on the measuring thread.

    """

    id: ServableId
    path: str
    code_digest: str
    subject: ProbeSubject
    load: LoadMeasures
    on_profile: Callable[[ModelProfile], object]


class Profiler:
    """Looks profiles up, and measures versions that have none. Thread-safe.

    While versions wait to be loaded, measuring would only make them wait longer. It is
    postponed until somebody calls :meth:`measure_postponed` in idle time, but for the
    second version of some code: further ones are likely, and need not be measured then.

    Args:
        profiles: What is known already, and where measurements are kept.
        options: How much a measurement may cost.
        is_crowded: Whether versions wait to be loaded.
        clock: Tells the time.

    """

    def __init__(
        self,
        profiles: Profiles,
        options: ProbeOptions | None = None,
        *,
        is_crowded: Callable[[], bool] = lambda: False,
        clock: Clock | None = None,
    ) -> None:
        self._profiles = profiles
        self._options = options or ProbeOptions()
        self._is_crowded = is_crowded
        self._clock = clock or MonotonicClock()
        # Guards both fields. It is not held while a version is measured; unloading the
        # version waits for the condition meanwhile.
        self._changed = threading.Condition()
        self._postponed: OrderedDict[ServableId, ProfileRequest] = OrderedDict()
        self._measuring: ServableId | None = None

    @property
    def num_postponed(self) -> int:
        """Versions that serve without a profile until there is time."""
        return len(self._postponed)

    def known(self, code_digest: str) -> ModelProfile | None:
        """Returns the known or provisional profile of some code; may read a file."""
        return self._profiles.get(code_digest)

    @contextlib.contextmanager
    def turn(self, code_digest: str) -> Iterator[ModelProfile | None]:
        """Yields the known profile of some code, as :meth:`.Profiles.turn` does.

        Nobody waits if nothing is measured.
        """
        if not self._options.budget_s:
            yield self.known(code_digest)
            return
        with self._profiles.turn(code_digest) as known:
            yield known

    def profile(self, request: ProfileRequest) -> ModelProfile | None:
        """Returns the version's profile, or None if it is postponed or not wanted.

        Blocks for the budget if the version has to be measured. If its profile is
        known, it is warmed up instead with its example, unless it brings warm-up
        requests of its own; the independence of its rows is checked again, because
        other weights may connect them. Code that is known to remember its calls is not
        called. Call this after the load and before the version is served.
        """
        known = self._known_well_enough(request)
        if not self._options.budget_s:
            return known
        if known is not None:
            if self._is_crowded() or not known.is_repeatable:
                return self._checked(request, known)
            rehearsed = self._rehearse(request, known)
            known = self._checked(request, known)
            if not rehearsed:
                self._warm_up(request, known)
            return known
        is_shared = self._profiles.num_taken(request.code_digest) == MAX_TURNS
        if self._is_crowded() and not is_shared:
            with self._changed:
                self._postponed[request.id] = request
            return None
        return self._measure(request)

    def measure_postponed(self) -> bool:
        """Measures the version that has waited longest; returns whether there was one.

        Blocks for the budget. Only one thread measures at a time; others get False.
        """
        with self._changed:
            if self._measuring is not None or not self._postponed:
                return False
            _, request = self._postponed.popitem(last=False)
            self._measuring = request.id
        try:
            known = self._known_well_enough(request)
            profile = (
                self._measure(request)
                if known is None
                else self._checked(request, known)
            )
            request.on_profile(profile)
        finally:
            with self._changed:
                self._measuring = None
                self._changed.notify_all()
        return True

    def forget(self, servable_id: ServableId) -> None:
        """Drops a version that will be unloaded; waits if it is being measured."""
        with self._changed:
            self._postponed.pop(servable_id, None)
            while self._measuring == servable_id:
                self._changed.wait()

    def _known_well_enough(self, request: ProfileRequest) -> ModelProfile | None:
        """Returns the profile of the code; None if it should be measured now."""
        digest = request.code_digest
        if self._profiles.needs_measuring(digest, request.subject.pid):
            return None
        return self._profiles.get(digest)

    def _checked(self, request: ProfileRequest, known: ModelProfile) -> ModelProfile:
        """Returns the known profile, corrected by how these weights treat rows.

        That takes two calls if rows were independent, five if nothing could be shown,
        and none for a model that remembers its calls.
        """
        if not known.is_repeatable:
            return known
        changed = dict(known.signatures)
        for name, found in known.signatures.items():
            signature = request.subject.signatures.get(name)
            if found.rows_independent is False or signature is None:
                continue
            if not signature.batched:
                continue

            def call(inputs: Mapping[str, TensorView], name: str = name) -> Tensors:
                yield_to_requests()
                return request.subject.call(name, inputs, self._options.call_timeout_s)

            inputs = ProbeInputs.of(request.path, signature)
            try:
                if found.rows_independent:
                    why = keeps_rows(call, inputs)
                    shown = RowIndependence(not why, why)
                else:
                    shown = row_independence(call, inputs)
            except ServingError as error:
                shown = RowIndependence(None, error.message)
            changed[name] = replace(
                found,
                rows_independent=shown.shown,
                why_dependent=shown.why,
                why_padding=shown.why_padding or found.why_padding,
            )
        if changed == known.signatures:
            return known
        log.info("event=other_rows_than_known servable=%s", request.id.slashed)
        return replace(known, signatures=changed)

    def _rehearse(self, request: ProfileRequest, known: ModelProfile) -> bool:
        """Makes the first calls of the check and the warm-up at low priority.

        A first call in a fresh process takes tens of milliseconds of processor time,
        which at the priority of serving would be taken from others' answers. Afterwards
        the version is warm. It is warm already if the same code ran in its process
        before: if a call is as quick as those that were measured, no further calls are
        made.

        Returns:
            Whether the backend can do this. If so, the warm-up is done, or not wanted.

        """
        subject = request.subject
        deadline_s = self._clock.now() + self._options.budget_s
        sizes = [2, 1]
        if not os.path.exists(os.path.join(request.path, WARMUP_REQUESTS)):
            sizes.append(self._options.largest_batch)
        for name, signature in subject.signatures.items():
            inputs = ProbeInputs.of(request.path, signature)
            found = known.signatures.get(name, SignatureProfile())
            most = row_limit(signature, found) or max(sizes)
            for size in sizes if signature.batched else (1,):
                num_rows = min(size, most)
                yield_to_requests()
                if self._clock.now() >= deadline_s:
                    return True
                timeout_s = self._options.call_timeout_s
                took_s = subject.rehearse(name, inputs.batch(num_rows), timeout_s)
                if took_s is None:
                    return False
                if took_s < _WARM * found.call_s_by_rows.get(num_rows, 0.0):
                    break
        return True

    def _warm_up(self, request: ProfileRequest, known: ModelProfile) -> None:
        if os.path.exists(os.path.join(request.path, WARMUP_REQUESTS)):
            return
        deadline_s = self._clock.now() + self._options.budget_s
        largest = self._options.largest_batch

        def sizes_of(name: str) -> tuple[int, int]:
            found = known.signatures.get(name, SignatureProfile())
            return 1, row_limit(request.subject.signatures[name], found) or largest

        warm_up(request.subject, request.path, sizes_of, deadline_s, self._clock)

    def _measure(self, request: ProfileRequest) -> ModelProfile:
        result = probe(
            request.subject,
            request.path,
            self._options,
            code_digest=request.code_digest,
            load=request.load,
            clock=self._clock,
        )
        log.info(
            "event=profile_measured servable=%s quiet=%s scaling=%s signatures=%s",
            request.id.slashed,
            result.is_quiet,
            _rounded(result.profile.two_thread_scaling, ""),
            "; ".join(
                _in_words(name, signature)
                for name, signature in result.profile.signatures.items()
            ),
        )
        if not result.failures:
            self._profiles.put(result.profile, is_quiet=result.is_quiet)
        return result.profile


def _in_words(name: str, signature: SignatureProfile) -> str:
    """Returns one line about a signature, for operators."""
    calls = ", ".join(
        f"{num_rows}: {_rounded(call_s * 1e3, ' ms')}"
        for num_rows, call_s in signature.call_s_by_rows.items()
    )
    dependent = f" ({signature.why_dependent})" if signature.why_dependent else ""
    if signature.why_padding:
        dependent += f" (padded: {signature.why_padding})"
    return (
        f"{name}: rows_independent={signature.rows_independent}{dependent} "
        f"call_by_rows={{{calls}}}"
    )


def _rounded(value: float | None, unit: str) -> str:
    return "unknown" if value is None else f"{value:.3g}{unit}"
