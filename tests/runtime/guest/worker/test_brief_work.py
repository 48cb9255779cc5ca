"""What a worker does so quickly that idle time is enough for it."""

from __future__ import annotations

import pytest

from tfs.runtime.guest.worker.brief_work import BRIEF_S, BriefWork


class Work:
    """Work on versions of one code, under a clock that tests move."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.brief = BriefWork(lambda: self.now_s)
        self.brief.note_code("code")

    def do(self, kind: str, took_s: float, *, fails: bool = False) -> None:
        with self.brief.measured(kind):
            self.now_s += took_s
            if fails:
                raise RuntimeError(kind)


def test_only_what_was_seen_to_be_quick_is_brief() -> None:
    """A first load may import for minutes, which idle time is not enough for."""
    work = Work()
    assert not work.brief.is_brief("load")
    work.do("load", BRIEF_S / 2)
    assert work.brief.is_brief("load")
    assert not work.brief.is_brief("rehearse")


def test_what_took_long_is_not_brief_the_next_time() -> None:
    """Where there is no idle time, one piece of work waits for it and no second."""
    work = Work()
    work.do("load", BRIEF_S / 2)
    work.do("load", BRIEF_S)
    assert not work.brief.is_brief("load")
    work.do("load", BRIEF_S / 2)
    assert work.brief.is_brief("load")


def test_work_that_fails_counts_like_any() -> None:
    """It took as long as it took."""
    work = Work()
    with pytest.raises(RuntimeError):
        work.do("load", BRIEF_S / 2, fails=True)
    assert work.brief.is_brief("load")


@pytest.mark.parametrize("next_code", ["other", ""])
def test_nothing_is_known_of_other_code(next_code: str) -> None:
    """What another version did quickly says nothing of this one."""
    work = Work()
    work.do("load", BRIEF_S / 2)
    work.brief.note_code("code")
    assert work.brief.is_brief("load")
    work.brief.note_code(next_code)
    assert not work.brief.is_brief("load")
    work.do("load", BRIEF_S / 2)
    work.brief.note_code(next_code)
    assert work.brief.is_brief("load") == bool(next_code)
