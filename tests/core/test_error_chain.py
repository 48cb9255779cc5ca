"""tfs.core.error_chain."""

from __future__ import annotations

from tfs.core.error_chain import chain_of
from tfs.core.system.thread_limit import is_out_of_threads


def test_a_cause_counts_before_what_was_being_handled() -> None:
    """Who raised an error from another one says what led to it."""
    error, cause, context = ValueError("e"), ValueError("cause"), ValueError("context")
    error.__context__ = context
    assert list(chain_of(error)) == [error, context]
    error.__cause__ = cause
    assert list(chain_of(error)) == [error, cause]


def test_a_circle_of_causes_ends() -> None:
    """A model's errors may be linked in any way; looking through them must not hang."""
    error, cause = ValueError("e"), ValueError("cause")
    error.__cause__, cause.__cause__ = cause, error
    assert set(chain_of(error)) == {error, cause}
    assert not is_out_of_threads(error)
