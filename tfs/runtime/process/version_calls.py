"""What the processes of a version know of its calls together."""

from __future__ import annotations

from typing import Final

from tfs.runtime.guest.model_source import ModelSource
from tfs.runtime.process.slab_call import ReplyPlans, RequestPlans

_SMOOTHING: Final = 0.125
_HANG_FACTOR: Final = 10.0
_SHORT_CALL_S: Final = 0.001
_MAX_SIZES: Final = 256


class CallTimes:
    """Running means of a version's calls, by signature and rows. Loop-confined."""

    def __init__(self) -> None:
        self._mean_s: dict[tuple[int, int], float] = {}

    def observe(self, signature_index: int, num_rows: int, call_s: float) -> None:
        """Takes one measured call into account."""
        key = signature_index, num_rows
        mean_s = self._mean_s.get(key)
        if mean_s is not None:
            self._mean_s[key] = mean_s + _SMOOTHING * (call_s - mean_s)
        elif len(self._mean_s) < _MAX_SIZES:
            self._mean_s[key] = call_s

    def limit_s(self, signature_index: int, num_rows: int, timeout_s: float) -> float:
        """Returns how long a call may take before its process counts as hung."""
        mean_s = self._mean_s.get((signature_index, num_rows), 0.0)
        return max(timeout_s, _HANG_FACTOR * mean_s)

    def is_short(self, signature_index: int, num_rows: int) -> bool:
        """Whether a call is so short that the wake-up after it would be noticeable.

        Behind such a call, the next one may already wait in the worker. Behind a longer
        one it waits in the host, where it can be cancelled until the last moment.
        """
        return self.is_within(signature_index, num_rows, _SHORT_CALL_S)

    def is_within(self, signature_index: int, num_rows: int, time_s: float) -> bool:
        """Whether calls of this size were measured, and take at most ``time_s``."""
        mean_s = self._mean_s.get((signature_index, num_rows))
        return mean_s is not None and mean_s <= time_s


class VersionCalls:
    """The signatures of a version as its processes number them, and what calls are like.

    Loop-confined.

    Attributes:
        who: The version, for messages.
        concurrency: How many calls a process may run at once.
        signature_indexes: The number of each signature.
        request_plans: How requests for a signature were written, by signature.
        reply_plans: What is known of the words of a signature's replies, by signature.
        times: How long calls take.
        last_call_s: Seconds that the last call took in its process; None before the
            first.

    """

    def __init__(self, source: ModelSource) -> None:
        self.who = source.id.slashed
        self.concurrency = source.concurrency
        self.signature_indexes = {
            name: index for index, name in enumerate(source.signatures)
        }
        self.request_plans: list[RequestPlans] = [{} for _ in source.signatures]
        self.reply_plans: list[ReplyPlans] = [{} for _ in source.signatures]
        self.times = CallTimes()
        self.last_call_s: float | None = None
