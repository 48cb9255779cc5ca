from __future__ import annotations

from tfs.core.loop.pacing import SpinBackoff


def num_looks(backoff: SpinBackoff, num_times: int, *, found: bool) -> int:
    num = 0
    for _ in range(num_times):
        if backoff.may_look():
            num += 1
            backoff.note(found=found)
    return num


def test_what_is_always_found_is_always_looked_for() -> None:
    """Nothing is skipped while looks find what they look for."""
    assert num_looks(SpinBackoff(), 100, found=True) == 100


def test_what_is_never_found_is_hardly_looked_for() -> None:
    """Looks in vain become rare, but never end."""
    backoff = SpinBackoff()
    assert num_looks(backoff, 10_000, found=False) < 20
    assert num_looks(backoff, 1025, found=False) == 1


def test_a_look_that_finds_restores_patience() -> None:
    """After a success a single failure skips few looks again."""
    backoff = SpinBackoff()
    num_looks(backoff, 3000, found=False)
    while not backoff.may_look():
        pass
    backoff.note(found=True)
    assert backoff.may_look()
    backoff.note(found=False)
    assert num_looks(backoff, 17, found=True) == 1
