from __future__ import annotations

from tfs.core.patience import Patience


def num_looks(patience: Patience, num_times: int, *, found: bool) -> int:
    num = 0
    for _ in range(num_times):
        if patience.may_look():
            num += 1
            patience.note(found=found)
    return num


def test_what_is_always_found_is_always_looked_for() -> None:
    """Nothing is skipped while looks find what they look for."""
    assert num_looks(Patience(), 100, found=True) == 100


def test_what_is_never_found_is_hardly_looked_for() -> None:
    """Looks in vain become rare, but never end."""
    patience = Patience()
    assert num_looks(patience, 10_000, found=False) < 20
    assert num_looks(patience, 1025, found=False) == 1


def test_a_look_that_finds_restores_patience() -> None:
    """After a success a single failure skips few looks again."""
    patience = Patience()
    num_looks(patience, 3000, found=False)
    while not patience.may_look():
        pass
    patience.note(found=True)
    assert patience.may_look()
    patience.note(found=False)
    assert num_looks(patience, 17, found=True) == 1
