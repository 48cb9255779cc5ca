"""Measures a loaded version: the :class:`ModelProfile` that placement and batching use.

The most important measurements come first, and the budget cuts off the rest: row
independence (always finished: six calls of at most four rows), the largest batch with
its memory peak (at least once if that is quick, because only it shows what a model does
from some size on), two-thread scaling, then the other sizes. Measurements that were not
reached are absent from the profile. At the end the first inputs are always computed
again with the same random numbers. A model that answers differently then remembers its
calls. A model that fails while it is probed is still served.
"""

from __future__ import annotations

import logging
import math
import os
import statistics
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

from tfs.core.clock import Clock, MonotonicClock
from tfs.core.errors import (
    DeadlineExceeded,
    InterpreterDied,
    InvalidArgument,
    ServingError,
)
from tfs.core.process_memory import (
    anonymous_bytes,
    peak_bytes,
    reset_peak,
    resident_bytes,
)
from tfs.core.servable import Tensors
from tfs.core.signature import DEFAULT_SIGNATURE
from tfs.core.version.model_profile import ModelProfile, SignatureProfile
from tfs.servables.measuring.probe_subject import ProbeInputs, ProbeSubject
from tfs.servables.measuring.row_independence import (
    SMALL_ROWS,
    RowIndependence,
    repeat_change,
    row_independence,
    still_independent,
)

log = logging.getLogger(__name__)

_LARGEST_SHARE: Final = 0.4
_SCALING_SHARE: Final = 0.3
_MAX_CALLS: Final = 200
_MAX_FOREIGN_SHARE: Final = 0.15
"""Share of all processors used by others above which measured times are not kept."""
_PEAK_CALLS: Final = 3
"""What a call leaves to the next one, an allocator may have grown by in the third."""
_HOLES: Final = 0.25
"""What a process keeps between calls lies in heaps, in which calls of other sizes leave
holes; larger blocks it gives back. After batches of three other sizes a network for sound
kept 23 % more, a MobileNet 11 %."""
_SPREAD: Final = 0.05
"""Of the larger blocks, a network for images that serves has so much more at once, now and
then."""
_SEED: Final = 0
_COSTLY: Final = (DeadlineExceeded, InterpreterDied)
_QUICK_S: Final = 1.0
"""A largest batch that takes fewer seconds is measured even if the budget is spent. On
a busy host, six calls of a microsecond's work can take more than the budget."""


@dataclass(frozen=True, slots=True)
class ProbeOptions:
    """How much a probe may cost. Immutable, checked on creation.

    Attributes:
        budget_s: Seconds per version; 0 measures nothing.
        largest_batch: Rows of the largest batch the server would make.
        call_timeout_s: A single call that takes longer ends the probe.
        needs_peaks: Whether the largest batch is called however long that takes, and
            peaks are of all calls, with what others may take beyond.

    """

    budget_s: float = 0.5
    largest_batch: int = 32
    call_timeout_s: float = 30.0
    needs_peaks: bool = False

    def __post_init__(self) -> None:
        if self.budget_s < 0 or self.call_timeout_s <= 0 or self.largest_batch < 1:
            raise InvalidArgument(f"bad probe options: {self}")


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """A profile and whether it may be kept. Immutable.

    Attributes:
        profile: What was measured.
        is_quiet: Whether other programs left the processors alone meanwhile.
        failures: Why a probe call failed, by signature; for the status.

    """

    profile: ModelProfile
    is_quiet: bool = True
    failures: Mapping[str, str] = field(default_factory=dict)


def probe(
    subject: ProbeSubject,
    path: str,
    options: ProbeOptions,
    loaded: ModelProfile | None = None,
    clock: Clock | None = None,
) -> ProbeResult:
    """Measures a version that was just loaded. Blocks; never raises because of the model.

    Args:
        subject: The loaded version; nobody else may call it meanwhile.
        path: The version directory, for its example inputs.
        options: The budget.
        loaded: What the load showed, and the digest of its code.
        clock: Tells the time.

    """
    loaded = loaded or ModelProfile()
    if not options.budget_s:
        return ProbeResult(loaded)
    return _Probe(subject, path, options, clock or MonotonicClock()).run(loaded)


class _Probe:
    """One run over one version. Confined to the probing thread."""

    def __init__(
        self, subject: ProbeSubject, path: str, options: ProbeOptions, clock: Clock
    ) -> None:
        self._subject = subject
        self._options = options
        self._clock = clock
        self._inputs = {
            name: ProbeInputs.of(path, signature)
            for name, signature in subject.signatures.items()
        }
        self._begun_s = clock.now()
        self._deadline_s = self._begun_s + options.budget_s
        self._failures: dict[str, ServingError] = {}
        self._deaths: dict[str, str] = {}
        self._rows: dict[str, RowIndependence] = {}
        # Inputs and outputs of the first call.
        self._first: dict[str, tuple[Tensors, Tensors]] = {}
        self._is_seeded = False
        self._times: dict[str, dict[int, float]] = {n: {} for n in self._inputs}
        self._row_s: dict[str, float] = {}  # seconds per row of the quickest call
        self._peaks: dict[str, int] = {}
        # What its process has of its own, as the load left it.
        self._loaded = subject.pid, anonymous_bytes(subject.pid)
        self._max_rows: dict[str, int] = {}

    def run(self, base: ModelProfile) -> ProbeResult:
        pids = [os.getpid(), self._subject.pid]
        before = foreign_cpu_s(pids)
        self._show_row_independence()
        self._measure_largest()
        scaling = self._measure_scaling()
        self._measure_other_sizes()
        is_repeatable = self._show_repeats()
        if self._options.needs_peaks:
            self._widen_peaks()
        if self._is_seeded:
            self._subject.seed(None)
        elapsed_s = self._clock.now() - self._begun_s
        share = foreign_share(before, foreign_cpu_s(pids), elapsed_s)
        is_quiet = share <= _MAX_FOREIGN_SHARE
        profile = replace(
            base,
            process_changes=self._subject.process_changes or base.process_changes,
            two_thread_scaling=scaling,
            is_repeatable=is_repeatable,
            signatures={name: self._signature_profile(name) for name in self._inputs},
        )
        failures = {name: error.message for name, error in self._failures.items()}
        return ProbeResult(profile, is_quiet, failures)

    def _signature_profile(self, name: str) -> SignatureProfile:
        shown = self._rows.get(name, RowIndependence(None))
        return SignatureProfile(
            rows_independent=shown.shown,
            why_dependent=shown.why,
            why_padding=shown.why_padding,
            call_s_by_rows=self._times[name],
            full_batch_s=self._times[name].get(self._largest(name)),
            peak_bytes=self._peaks.get(name),
            max_rows=self._max_rows.get(name),
            was_answered=name in self._first,
            death=self._deaths.get(name, ""),
        )

    def _show_row_independence(self) -> None:
        for name, signature in self._subject.signatures.items():
            if not signature.batched:
                self._rows[name] = RowIndependence(None, "it has no batch")
                continue
            try:
                self._rows[name] = row_independence(
                    lambda inputs, name=name: self._call(name, inputs),  # type: ignore[misc]
                    self._inputs[name],
                )
            except ServingError as error:
                self._fail(name, error)
                self._rows[name] = RowIndependence(None, error.message)

    def _measure_largest(self) -> None:
        """Times the largest batch of every signature; its first call shows the peak."""
        names = self._working()
        for name in names:
            now_s = self._clock.now()
            rows = self._largest(name)
            is_quick = rows * self._row_s.get(name, math.inf) < _QUICK_S
            is_wanted = is_quick or self._options.needs_peaks
            if now_s >= self._deadline_s and not is_wanted:
                continue
            share_s = _LARGEST_SHARE * self._options.budget_s / len(names)
            until_s = min(self._deadline_s, now_s + share_s)
            if not self._measure_batch(name, until_s) and rows > SMALL_ROWS:
                self._find_limit(name, rows)
                self._measure_batch(name, until_s)

    def _measure_batch(self, name: str, until_s: float) -> bool:
        rows = self._largest(name)
        inputs = self._inputs[name].batch(rows)
        pid = self._subject.pid
        if pid == os.getpid():  # what others do here meanwhile is not the model's
            self._loaded = pid, anonymous_bytes(pid)
        can_see = reset_peak(pid)
        least = _PEAK_CALLS if self._options.needs_peaks else 1
        times = self._time(name, rows, inputs, until_s, min_calls=least)
        if not times:
            return False
        peak = self._peak_bytes(pid) if can_see else None
        if peak is not None:
            self._peaks[name] = peak
        # The slowest calls show how busy the host, or this server, was, and not the model.
        self._times[name][rows] = statistics.median(times)
        return True

    def _peak_bytes(self, pid: int) -> int | None:
        """Returns the most that its process had of its own, beyond what the load left.

        What earlier calls left counts, too: weights in another layout, for one.
        """
        peak, now, own = peak_bytes(pid), resident_bytes(pid), anonymous_bytes(pid)
        loaded_pid, loaded = self._loaded
        if peak is None or now is None or own is None or loaded is None:
            return None
        if pid != loaded_pid:
            return None
        return max(0, peak - (now - own) - loaded)

    def _widen_peaks(self) -> None:
        """Counts all calls since the largest batch, and what further ones may take."""
        pid = self._subject.pid
        peak, own, loaded = self._peak_bytes(pid), anonymous_bytes(pid), self._loaded[1]
        if peak is None or own is None or loaded is None:
            return
        kept = max(0, own - loaded)
        for name, known in self._peaks.items():
            most = max(known, peak)
            more = _HOLES * kept + _SPREAD * max(0, most - kept)
            self._peaks[name] = most + round(more)

    def _find_limit(self, name: str, fails: int) -> None:
        """Finds the largest batch that works, below one that failed.

        A batch that ended its interpreter, or took too long, is not tried at other
        sizes: then the limit is what small batches have shown.
        """
        works = SMALL_ROWS
        error = self._failures.pop(name)
        while fails - works > 1 and not isinstance(error, _COSTLY):
            rows = (works + fails) // 2
            try:
                self._call(name, self._inputs[name].batch(rows))
                works = rows
            except ServingError as failure:
                fails, error = rows, failure
        self._max_rows[name] = works
        log.info("event=batch_limit signature=%s rows=%s why=%s", name, works, error)

    def _measure_scaling(self) -> float | None:
        """Returns the lowest scaling, as the worst signature decides the placement."""
        names = self._working()
        lowest: float | None = None
        for name in names:
            left_s = self._deadline_s - self._clock.now()
            share_s = _SCALING_SHARE * self._options.budget_s / len(names)
            if left_s < share_s:
                return None
            inputs = self._inputs[name].batch(self._largest(name))
            try:
                scaling = self._subject.two_thread_scaling(name, inputs, share_s)
            except ServingError as error:
                self._fail(name, error)
                return None
            if scaling is None:
                return None
            lowest = scaling if lowest is None else min(lowest, scaling)
        return lowest

    def _measure_other_sizes(self) -> None:
        sizes = [1]
        while 2 * sizes[-1] < self._options.largest_batch:
            sizes.append(2 * sizes[-1])
        default_first = sorted(self._working(), key=lambda n: n != DEFAULT_SIGNATURE)
        for rows in sizes:
            for name in default_first:
                if not self._subject.signatures[name].batched or name in self._failures:
                    continue
                if rows > self._largest(name):
                    continue
                if self._clock.now() >= self._deadline_s:
                    return
                inputs = self._inputs[name].batch(rows)
                times = self._time(name, rows, inputs, self._deadline_s, max_calls=5)
                # A single first call shows what allocating takes, not what a call
                # takes.
                if len(times) > 1:
                    self._times[name][rows] = statistics.median(times)

    def _show_repeats(self) -> bool:
        """Returns whether every signature answers its first inputs as it did first."""
        is_repeatable = True
        for name in self._working():
            if name not in self._first:
                continue
            inputs, outputs = self._first[name]
            if self._is_seeded:
                self._subject.seed(_SEED)
            try:
                change = repeat_change(outputs, self._call(name, inputs))
            except ServingError as error:
                self._fail(name, error)
                continue
            if change:
                is_repeatable = False
                if self._rows[name].shown:
                    self._rows[name] = RowIndependence(False, change)
        return is_repeatable

    def _largest(self, name: str) -> int:
        signature = self._subject.signatures[name]
        if not signature.batched:
            return 1
        limits = (signature.max_rows, self._max_rows.get(name))
        return min([self._options.largest_batch, *filter(None, limits)])

    def _working(self) -> list[str]:
        return [name for name in self._inputs if name not in self._failures]

    def _time(
        self,
        name: str,
        num_rows: int,
        inputs: Tensors,
        until_s: float,
        max_calls: int = _MAX_CALLS,
        min_calls: int = 1,
    ) -> list[float]:
        """Returns the seconds of calls until ``until_s``; without the first of several.

        The first call of a size allocates what later ones reuse, and shows whether
        rows keep their answers in a batch of that size.
        """
        times: list[float] = []
        try:
            while len(times) <= max_calls:
                begun_s = self._clock.now()
                if len(times) >= min_calls and begun_s >= until_s:
                    break
                outputs = self._call(name, inputs)
                own_s = self._subject.last_call_s
                times.append(self._clock.now() - begun_s if own_s is None else own_s)
                if len(times) == 1 and name in self._rows:
                    self._rows[name] = still_independent(
                        self._rows[name],
                        outputs,
                        num_rows,
                        self._inputs[name].num_different,
                    )
        except ServingError as error:
            self._fail(name, error)
            return []
        return times[1:] or times

    def _call(self, name: str, inputs: Tensors) -> Tensors:
        if self._options.needs_peaks:
            for death in self._deaths.values():
                raise InterpreterDied(death)  # who asks has heard enough
        if name not in self._first:
            self._is_seeded = self._subject.seed(_SEED)
        num_rows = max(
            (each.shape[0] for each in inputs.values() if each.shape), default=1
        )
        begun_s = self._clock.now()
        try:
            outputs = self._subject.call(name, inputs, self._options.call_timeout_s)
        except InterpreterDied as error:
            rows = f"(rows: {num_rows})"
            self._deaths[name] = f"{error.message} when {name} was called {rows}"
            raise
        row_s = (self._clock.now() - begun_s) / max(1, num_rows)
        self._row_s[name] = min(row_s, self._row_s.get(name, math.inf))
        self._first.setdefault(name, (inputs, outputs))
        return outputs

    def _fail(self, name: str, error: ServingError) -> None:
        self._failures[name] = error
        log.info("event=probe_failed signature=%s error=%s", name, error)


def foreign_cpu_s(pids: Sequence[int]) -> float | None:
    """Returns the processor seconds of all processes but some; None if not known.

    Time that a hypervisor took counts. It is counted in ticks of some 10 ms, so a short
    interval says little. Those that have ended count as others, so that an interval in
    which one ends seems busier than it was.
    """
    try:
        with open("/proc/stat", encoding="ascii") as file:
            user, nice, system, _idle, _wait, *stolen = map(
                int, file.readline().split()[1:9]
            )
        ticks = user + nice + system + sum(stolen)
        for pid in set(pids):
            stat = f"/proc/{pid}/stat"
            with (
                suppress(FileNotFoundError, ProcessLookupError),
                open(stat, encoding="ascii", errors="replace") as file,
            ):
                fields = file.read().rpartition(")")[2].split()
                ticks -= int(fields[11]) + int(fields[12])
    except (OSError, ValueError, IndexError):
        return None
    return ticks / os.sysconf("SC_CLK_TCK")


def foreign_share(before: float | None, after: float | None, elapsed_s: float) -> float:
    """Returns the share of all processors that others used; 0 if it is not known."""
    if before is None or after is None or elapsed_s <= 0:
        return 0.0
    return max(0.0, after - before) / (elapsed_s * (os.cpu_count() or 1))
