"""What every store promises, asked of each: transactions, the feed, leases."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.hosted.postgres_server import PostgresServer, skip_without_postgres
from tests.hosted.transactions import acquire, feed, history, release, transact
from tfs.core.errors import Aborted, FailedPrecondition, Unavailable
from tfs.hosted.store.postgres import PostgresStore
from tfs.hosted.store.sqlite import SqliteStore
from tfs.hosted.store.state_store import StateStore, Transaction
from tfs.testing.fake_clock import FakeClock

Opener = Callable[[], StateStore]


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    skip_without_postgres()
    server = PostgresServer()
    yield server
    server.close()


@pytest.fixture(params=["sqlite", "postgres"])
def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opener]:
    """Opens the same, empty store as often as it is called."""
    opened: list[StateStore] = []
    if request.param == "postgres":
        server = request.getfixturevalue("postgres")
        clear(server.url)

    def open_store() -> StateStore:
        if request.param == "sqlite":
            opened.append(SqliteStore(str(tmp_path / "fleet.db")))
        else:
            opened.append(PostgresStore(server.url))
        return opened[-1]

    yield open_store
    for store in opened:
        store.close()


@pytest.fixture
def store(opener: Opener) -> StateStore:
    return opener()


def clear(url: str) -> None:
    import psycopg

    with psycopg.connect(url) as connection:
        for table in ("cell", "entry", "change", "lease"):
            connection.execute(f"DROP TABLE IF EXISTS {table}".encode())


def put(store: StateStore, key: str, value: str | None, why: str = "") -> int:
    return transact(store, lambda t: t.put("model", key, value, why))


def test_a_feed_has_every_change_in_order(store: StateStore) -> None:
    """Who read up to a revision reads the next ones; who is new reads all rows."""
    assert feed(store, 0).revision == 0
    assert put(store, "a", "1", "first") == 1
    assert put(store, "b", "2") == 2
    assert put(store, "a", None, "gone") == 3
    whole = feed(store, 0)
    assert whole.is_snapshot
    assert [(each.key, each.value) for each in whole.changes] == [("b", "2")]
    later = feed(store, 1)
    assert (later.revision, later.is_snapshot) == (3, False)
    assert [(c.revision, c.key, c.value, c.why) for c in later.changes] == [
        (2, "b", "2", ""),
        (3, "a", None, "gone"),
    ]
    assert feed(store, 3).changes == ()
    assert feed(store, 99).is_snapshot


def test_a_failed_edit_changes_nothing(store: StateStore) -> None:
    """All or nothing, also for what was written before the failure."""

    def edit(transaction: Transaction) -> None:
        transaction.put("model", "a", "1")
        raise FailedPrecondition("no")

    with pytest.raises(FailedPrecondition, match="no"):
        transact(store, edit)
    assert feed(store, 0).revision == 0
    assert transact(store, lambda t: t.get("model", "a")) is None


def test_a_transaction_that_only_reads_is_no_revision(store: StateStore) -> None:
    """Rows that expire are no change, but are there for who asks for them."""
    put(store, "a", "1")
    transact(store, lambda t: t.put_expiring("expiring:op", "x", "done"))
    assert transact(store, lambda t: t.get("expiring:op", "x")) == "done"
    assert feed(store, 0).revision == 1
    assert [each.key for each in feed(store, 0).changes] == ["a"]


def test_a_transaction_sees_the_changes_of_others(opener: Opener) -> None:
    """Its feed is as of its own moment, after whoever wrote before it."""
    one, other = opener(), opener()
    put(one, "a", "1")

    def edit(transaction: Transaction) -> int:
        feed = transaction.feed(0)
        assert [each.value for each in feed.changes] == ["1"]
        return transaction.put("model", "b", "2")

    assert transact(other, edit) == 2


def test_history_is_of_one_row_or_of_all_newest_first(store: StateStore) -> None:
    """What a command asks for: why is it so?"""
    put(store, "a", "1", "made")
    put(store, "b", "1", "made too")
    put(store, "a", "2", "changed")
    assert [c.why for c in history(store, 9, "model", "a")] == ["changed", "made"]
    assert [c.revision for c in history(store, 2)] == [3, 2]


def test_writers_at_the_same_time_miss_no_number_and_no_reader(opener: Opener) -> None:
    """Four writers and a watcher: 400 commits, each seen once, in order."""
    seen: list[int] = []
    stores = [opener() for _ in range(5)]
    for each in stores:
        feed(each, 0)

    def write(which: int) -> None:
        for number in range(100):
            put(stores[which], f"{which}/{number}", "x")

    def watch() -> None:
        patient = threading.Event()
        while not feed(stores[4], 0).revision:
            assert not patient.wait(0.001)
        # Begins behind the first revision, because before it a feed is a snapshot.
        seen.append(1)
        while seen[-1] < 400:
            assert not patient.wait(0.001)
            seen.extend(each.revision for each in feed(stores[4], seen[-1]).changes)

    threads = [threading.Thread(target=write, args=(each,)) for each in range(4)]
    threads.append(threading.Thread(target=watch))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == list(range(1, 401))


def test_a_lease_has_one_holder(opener: Opener) -> None:
    """Renewed by who has it, refused to others, and free when it is given back."""
    one, other = opener(), opener()
    held = acquire(one, "eu", "a", 60)
    assert held is not None
    assert acquire(one, "eu", "a", 60) == held
    assert acquire(other, "eu", "b", 60) is None
    assert acquire(other, "us", "b", 60) is not None
    release(one, held)
    taken = acquire(other, "eu", "b", 60)
    assert taken is not None
    assert taken.epoch > held.epoch
    release(one, held)  # not its own any more
    assert acquire(other, "eu", "b", 60) == taken


def test_who_lost_a_lease_changes_nothing(opener: Opener) -> None:
    """One that was paused, and comes back when another leads, is refused."""
    one, other = opener(), opener()
    old = acquire(one, "eu", "a", 0.0)
    assert old is not None
    assert transact(one, lambda t: t.put("model", "a", "1"), old) == 1
    new = acquire(other, "eu", "b", 60)
    assert new is not None
    with pytest.raises(Aborted, match="b does"):
        transact(one, lambda t: t.put("model", "a", "2"), old)
    assert transact(other, lambda t: t.put("model", "a", "3"), new) == 2
    # The same holder, after it was away, is another one.
    release(other, new)
    again = acquire(one, "eu", "a", 60)
    assert again is not None
    with pytest.raises(Aborted):
        transact(one, lambda t: t.put("model", "a", "4"), old)


def test_a_clock_that_is_set_makes_no_second_leader(tmp_path: Path) -> None:
    """Forward it ends a lease early, backward it would keep one that nobody renews."""
    clock, path = FakeClock(), str(tmp_path / "fleet.db")
    with (
        contextlib.closing(SqliteStore(path, clock)) as one,
        contextlib.closing(SqliteStore(path, clock)) as other,
    ):
        old = acquire(one, "eu", "a", 5.0)
        clock.set_wall(clock.wall_s() + 3600)
        new = acquire(other, "eu", "b", 5.0)
        assert new is not None
        with pytest.raises(Aborted):
            transact(one, lambda t: t.put("model", "a", "1"), old)
        clock.set_wall(clock.wall_s() - 7200)
        again = acquire(one, "eu", "a", 5.0)
        assert again is not None
        with pytest.raises(Aborted):
            transact(other, lambda t: t.put("model", "a", "2"), new)
        assert acquire(other, "eu", "b", 5.0) is None
        assert transact(one, lambda t: t.put("model", "a", "3"), again) == 1


def test_old_changes_go_and_a_late_reader_gets_a_snapshot(
    store: StateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log that grew for ever would fill the disk; who comes late gets all rows."""
    monkeypatch.setattr("tfs.hosted.store.state_store.KEPT_REVISIONS", 5)
    monkeypatch.setattr("tfs.hosted.store.state_store._COMPACT_EVERY", 10)
    transact(store, lambda t: t.put_expiring("expiring:op", "x", "done"))
    for number in range(10):
        put(store, f"{number}", "x")
    assert feed(store, 3).is_snapshot
    assert len(feed(store, 3).changes) == 10
    assert [each.revision for each in feed(store, 5).changes] == [6, 7, 8, 9, 10]
    assert transact(store, lambda t: t.get("expiring:op", "x")) is None


def test_what_was_acknowledged_survives_a_killed_database(
    postgres: PostgresServer,
) -> None:
    """Unavailable while it is away; afterwards everything is there, and goes on."""
    clear(postgres.url)
    store = PostgresStore(postgres.url)
    with contextlib.closing(store):
        acknowledged = [put(store, f"{each}", "x") for each in range(50)]
        postgres.kill()
        with pytest.raises(Unavailable):
            put(store, "late", "x")
        with pytest.raises(Unavailable):
            feed(store, 50)
        postgres.start()
        assert put(store, "later", "x") == acknowledged[-1] + 1
        assert len(feed(store, 0).changes) == 51


def test_another_file_in_the_place_of_a_store_counts(tmp_path: Path) -> None:
    """What is on disk is what a restart would find, so nobody goes on with what is gone."""
    store = SqliteStore(str(tmp_path / "fleet.db"))
    with contextlib.closing(store):
        put(store, "a", "1")
        put(store, "a", "2")
        for each in tmp_path.iterdir():
            each.unlink()
        assert feed(store, 2).revision == 0
        assert feed(store, 2).is_snapshot


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    """A wrong path is told as one."""
    with pytest.raises(FailedPrecondition, match="no folder"):
        feed(SqliteStore(str(tmp_path / "absent" / "fleet.db")), 0)
