"""Gives every loaded version its profile: recalled by code digest, or measured now."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace

from batching.cost_table import CostTable
from tfs.core.clock import Clock, MonotonicClock
from tfs.core.errors import ServingError
from tfs.core.loop.pacing import yield_to_requests
from tfs.core.servable import Tensors
from tfs.core.servable_id import ServableId
from tfs.core.tensor_view import TensorView
from tfs.core.version.model_profile import ModelProfile, SignatureProfile, row_limit
from tfs.servables.measuring.probe import ProbeOptions, probe
from tfs.servables.measuring.probe_inputs import ProbeInputs
from tfs.servables.measuring.probe_subject import ProbeSubject, warm_up
from tfs.servables.measuring.profiles import Profiles
from tfs.servables.measuring.row_independence import (
    RowIndependence,
    keeps_rows,
    row_independence,
)

log = logging.getLogger(__name__)


class Profiler:
    """Looks profiles up, and measures versions of which there is none. Thread-safe.

    Args:
        profiles: What is known already, and where measurements are kept.
        options: How much a measurement may cost.
        clock: Tells the time.

    """

    def __init__(
        self,
        profiles: Profiles,
        options: ProbeOptions | None = None,
        *,
        clock: Clock | None = None,
    ) -> None:
        self._profiles = profiles
        self._options = options or ProbeOptions()
        self._clock = clock or MonotonicClock()

    def known(self, code_digest: str) -> ModelProfile | None:
        """Returns the known profile of some code; may read a file."""
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

    def profile(
        self,
        servable_id: ServableId,
        path: str,
        subject: ProbeSubject,
        loaded: ModelProfile,
    ) -> ModelProfile | None:
        """Returns the version's profile; None if it is unknown and nothing is measured.

        Blocks for the budget if the version has to be measured. If its profile is
        known, the independence of its rows is checked again, because other weights may
        connect them. Code that is known to remember its calls is not called. Call this
        after the load and before the version is served.

        Args:
            servable_id: The version.
            path: Its directory, which has the author's example.
            subject: The loaded version.
            loaded: What the load showed, and its code digest.

        """
        known = self.known(loaded.code_digest)
        if not self._options.budget_s or (known and not known.is_repeatable):
            return known
        if known is None:
            return self._measure(servable_id, path, subject, loaded)
        self._rehearse(path, subject, known)
        return self._checked(servable_id, path, subject, known)

    def _rehearse(self, path: str, subject: ProbeSubject, known: ModelProfile) -> None:
        """Makes the first calls at low priority, where the backend can do that.

        In a fresh process they take tens of milliseconds of processor time, which at the
        priority of serving would be taken from others' answers.
        """

        def found(name: str) -> SignatureProfile:
            return known.signatures.get(name, SignatureProfile())

        def sizes(name: str) -> tuple[int, ...]:
            limit = row_limit(subject.signatures[name], found(name))
            largest = limit or self._options.largest_batch
            small = min(2, largest), 1
            return (*small, largest) if largest in found(name).call_s_by_rows else small

        warm_up(
            subject.rehearse,
            subject.signatures,
            path,
            sizes,
            self._clock.now() + self._options.budget_s,
            self._clock,
            predict_s=lambda name, num_rows: CostTable(
                found(name).call_s_by_rows
            ).predict_s(num_rows),
        )

    def _checked(
        self,
        servable_id: ServableId,
        path: str,
        subject: ProbeSubject,
        known: ModelProfile,
    ) -> ModelProfile:
        """Returns the known profile, corrected by how these weights treat rows.

        That takes two calls if rows were independent, five if nothing could be shown.
        """
        changed = dict(known.signatures)
        for name, found in known.signatures.items():
            signature = subject.signatures.get(name)
            if found.rows_independent is False or signature is None:
                continue
            if not signature.batched:
                continue

            def call(inputs: Mapping[str, TensorView], name: str = name) -> Tensors:
                yield_to_requests()
                return subject.call(name, inputs, self._options.call_timeout_s)

            inputs = ProbeInputs.of(path, signature)
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
        log.info("event=other_rows_than_known servable=%s", servable_id.slashed)
        return replace(known, signatures=changed)

    def _measure(
        self,
        servable_id: ServableId,
        path: str,
        subject: ProbeSubject,
        loaded: ModelProfile,
    ) -> ModelProfile:
        result = probe(subject, path, self._options, loaded, self._clock)
        log.info(
            "event=profile_measured servable=%s quiet=%s scaling=%s signatures=%s",
            servable_id.slashed,
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
