"""The order of locks: what ARCHITECTURE.md says of it, and what a server does."""

from __future__ import annotations

import re
import threading

import pytest

from managers.versions.version_table import VersionTable
from tests.lock_order import ORDER, PAIRS, ROOT, LockWatch, breaches
from tests.server.environment import Environment, config, model
from tfs.core.clock import MonotonicClock
from tfs.core.event_bus import EventBus


def test_the_table_has_the_locks_in_the_order_that_is_checked() -> None:
    """Whoever looks up a rank reads what the tests hold the code to."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \d+ \| (.*?) \|", text, re.MULTILINE)
    named = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    checked = [name.partition(".")[0] for name in ORDER]
    assert [name for name in named if name in checked] == checked


@pytest.mark.parametrize("pair", sorted(PAIRS))
def test_the_leaves_that_take_another_are_named(pair: tuple[str, str]) -> None:
    """A leaf takes none; the exceptions are few, and stand below the table."""
    text = " ".join((ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").split())
    outer, inner = (name.partition(".")[0] for name in pair)
    assert re.search(rf"`{outer}` (takes )?that of `{inner}`", text)


def test_a_lock_taken_out_of_order_is_seen() -> None:
    """One thread is enough to see it, and nothing has to hang."""
    watch = LockWatch()
    with watch.watching():
        bus = EventBus[object](MonotonicClock())
        table = VersionTable(None, MonotonicClock())
    with bus._delivery, table.lock:
        pass
    (found,) = breaches(watch.taken)
    assert "VersionTable.lock was taken under EventBus._delivery" in found


def test_a_lock_that_was_let_go_is_held_no_more() -> None:
    """The same two locks one after the other are no breach, by conditions either."""
    watch = LockWatch()
    with watch.watching():
        bus = EventBus[object](MonotonicClock())
        table = VersionTable(None, MonotonicClock())
        env = Environment(has_threads=True)
    pool = env.threads("load")
    pool.submit(threading.Event().is_set)
    assert pool.wait_idle()
    with bus._delivery:
        pass
    with table.lock:
        pass
    assert breaches(watch.taken) == []
    assert env.close()


def test_a_server_takes_its_locks_in_order() -> None:
    """Versions come, fail, are swapped, tried by a canary, rolled back, and go."""
    watch = LockWatch()
    with watch.watching():
        env = Environment(has_threads=True)
        env.add_version("a", 1)
        env.broken.add(env.add_version("b", 1))
        labelled = 'version_labels { key: "stable" value: 1 }'
        tried = "traffic { primary: 1 canary { version: 2 tee_fraction: 1 } }"
        env.start(config(model("a", extra=labelled), model("b")))
        env.add_version("a", 2)
        env.look()
        env.apply(model("a", extra=f"{labelled} {tried}"), model("b"))
        env.request("a")
        env.apply(model("a", extra="traffic { primary: 1 }"))
        assert env.served("a") == 1
        assert env.close()
    assert ("VersionTable.lock", "EventBus._delivery") in watch.taken
    assert breaches(watch.taken) == []
