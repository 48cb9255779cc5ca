"""managers.steps.inbox."""

from __future__ import annotations

from managers.steps.inbox import Aspired, Inbox
from tfs.core.source import AspiredVersions


def word(name: str, reason: str = "") -> Aspired:
    return AspiredVersions(name, (), reason)


def test_the_last_word_on_a_servable_counts_and_each_wakes() -> None:
    """A source that repeats itself before anybody looked costs one look."""
    wakes: list[None] = []
    inbox = Inbox(lambda: wakes.append(None))
    inbox.aspire(word("a", "first"))
    inbox.aspire(word("b"))
    inbox.aspire(word("a", "second"))
    mail = inbox.take()
    assert {n: each.reason for n, each in mail.aspired.items()} == {
        "a": "second",
        "b": "",
    }
    assert list(mail.changed) == ["a", "b"]
    assert len(wakes) == 3
    assert not inbox.has_mail


def test_all_is_taken_in_once_the_mail_with_it_was_confirmed() -> None:
    """A word that comes meanwhile is not vouched for by a look that missed it."""
    inbox = Inbox(lambda: None)
    assert inbox.has_taken_in_all
    inbox.aspire(word("a"))
    mail = inbox.take()
    inbox.aspire(word("b"))
    inbox.confirm(mail)
    assert not inbox.has_taken_in_all
    inbox.confirm(inbox.take())
    assert inbox.has_taken_in_all


def test_a_closed_inbox_hears_no_source_and_every_change() -> None:
    """What is on its way out still has to be moved on."""
    inbox = Inbox(lambda: None)
    inbox.aspire(word("a"))
    inbox.close()
    inbox.aspire(word("b"))
    inbox.note_change("c")
    mail = inbox.take()
    assert mail.aspired == {}
    assert list(mail.changed) == ["a", "c"]
    assert inbox.is_closed
