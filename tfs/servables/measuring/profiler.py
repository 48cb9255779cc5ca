"""Gives every loaded version its profile: recalled by code digest, or measured now.

A profile that was measured on a quiet host is kept in the state directory, too. One that
was measured while others kept the processors busy is used for further versions of the same
code until the server ends.

While nothing is known of some code, its versions are loaded one after the other. A thousand
versions of ten codes would otherwise be loaded in a thousand processes: none of them is
known when its load begins.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Final

from batching.cost_table import CostTable
from tfs.core.clock import Clock, MonotonicClock
from tfs.core.errors import ServingError
from tfs.core.loop.pacing import yield_to_requests
from tfs.core.servable import Tensors
from tfs.core.servable_id import ServableId
from tfs.core.system.limits import num_processors
from tfs.core.system.replaced_file import replace_file
from tfs.core.tensor_view import TensorView
from tfs.core.version.model_profile import ModelProfile, SignatureProfile, row_limit
from tfs.servables.measuring.probe import ProbeOptions, probe
from tfs.servables.measuring.probe_subject import ProbeInputs, ProbeSubject, warm_up
from tfs.servables.measuring.row_independence import (
    RowIndependence,
    keeps_rows,
    row_independence,
)

log = logging.getLogger(__name__)

FOLDER: Final = "profiles"
_MAX_TURNS: Final = 2
"""Versions of one code that others of it wait for. If both end without a profile, because
they fail or hang, the others do not wait any more."""
_MAX_IN_MEMORY: Final = 4096


class Profiles:
    """Profiles by code digest. Thread-safe.

    With a state directory they survive a restart. A profile that cannot be read or
    written there is logged and counts as absent, because it can always be measured
    again.

    Args:
        state_dir: Where profiles are kept; None keeps them in memory.
        num_turns: How many versions of different codes may have their turn at once; None
            is one for each processor.

    """

    def __init__(
        self, state_dir: str | None = None, *, num_turns: int | None = None
    ) -> None:
        self._folder = None if state_dir is None else os.path.join(state_dir, FOLDER)
        # Guards the fields below; leaf, no file is touched under it.
        self._changed = threading.Condition()
        self._in_memory: OrderedDict[str, ModelProfile] = OrderedDict()
        self._left = num_processors() if num_turns is None else num_turns
        self._busy: set[str] = set()
        self._num_taken: Counter[str] = Counter()

    def get(self, code_digest: str) -> ModelProfile | None:
        """Returns the profile of some code; None if there is none. May read a file."""
        with self._changed:
            profile = self._in_memory.get(code_digest)
            if profile is not None:
                self._in_memory.move_to_end(code_digest)
        if profile is None:
            profile = self._read(code_digest)
            if profile is not None:
                self._remember(profile)
        return profile

    def put(self, profile: ModelProfile, *, is_quiet: bool = True) -> None:
        """Keeps a profile in place of an earlier one. May write a file.

        Args:
            profile: What was measured.
            is_quiet: Whether others left the processors alone meanwhile; if not, nothing
                is written.

        Raises:
            ValueError: It has no code digest.

        """
        digest = profile.code_digest
        if not digest:
            raise ValueError("a profile is kept by its code digest")
        self._remember(profile)
        if self._folder is None or not is_quiet:
            return
        try:
            os.makedirs(self._folder, exist_ok=True)
            replace_file(self._file(digest), profile.to_json())
        except OSError as error:
            log.warning("event=profile_not_kept error=%s", error)

    @contextlib.contextmanager
    def turn(self, code_digest: str) -> Iterator[ModelProfile | None]:
        """Yields the known profile of some code, to be used while a version is loaded.

        If there is none, versions of that code are loaded one after the other, so that
        most of them find the profile of one that was measured. Blocks meanwhile.
        """
        known = self.get(code_digest)
        with self._changed:
            if known is None and self._num_taken[code_digest] < _MAX_TURNS:
                while code_digest in self._busy or not self._left:
                    self._changed.wait()
                self._busy.add(code_digest)
                self._left -= 1
                self._num_taken[code_digest] += 1
                is_taken = True
            else:
                is_taken = False
        if not is_taken:
            yield known
            return
        try:
            known = self.get(code_digest)
            if known is not None:
                with self._changed:
                    del self._num_taken[code_digest]
            yield known
        finally:
            with self._changed:
                self._busy.discard(code_digest)
                self._left += 1
                self._changed.notify_all()

    def _remember(self, profile: ModelProfile) -> None:
        digest = profile.code_digest
        with self._changed:
            self._in_memory[digest] = profile
            self._in_memory.move_to_end(digest)
            while len(self._in_memory) > _MAX_IN_MEMORY:
                self._in_memory.popitem(last=False)

    def _read(self, code_digest: str) -> ModelProfile | None:
        if self._folder is None:
            return None
        try:
            text = Path(self._file(code_digest)).read_text(encoding="utf-8")
            profile = ModelProfile.from_json(text)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            log.warning(
                "event=profile_unreadable digest=%s error=%s", code_digest, error
            )
            return None
        return profile if profile.code_digest == code_digest else None

    def _file(self, code_digest: str) -> str:
        return os.path.join(self._folder or "", f"{code_digest}.json")


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

    def turn(self, code_digest: str) -> AbstractContextManager[ModelProfile | None]:
        """Yields the known profile of some code, as :meth:`.Profiles.turn` does.

        Nobody waits if nothing is measured.
        """
        if not self._options.budget_s:
            return contextlib.nullcontext(self.known(code_digest))
        return self._profiles.turn(code_digest)

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
