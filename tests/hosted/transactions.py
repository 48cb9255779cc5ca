"""Transactions of one statement, for tests of what stores keep."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from tfs.hosted.store.state_store import Change, Feed, Lease, StateStore, Transaction

R = TypeVar("R")


def transact(
    store: StateStore, edit: Callable[[Transaction], R], lease: Lease | None = None
) -> R:
    """Runs an edit in a transaction, under a lease if there is one."""
    with store.begin(writes=True) as transaction:
        if lease is not None:
            transaction.check(lease)
        return edit(transaction)


def feed(store: StateStore, after: int) -> Feed:
    with store.begin(writes=False) as transaction:
        return transaction.feed(after)


def history(
    store: StateStore, most: int, kind: str = "", key: str = ""
) -> Sequence[Change]:
    with store.begin(writes=False) as transaction:
        return transaction.history(most, kind, key)


def acquire(store: StateStore, name: str, holder: str, ttl_s: float) -> Lease | None:
    return transact(store, lambda each: each.acquire(name, holder, ttl_s))


def release(store: StateStore, lease: Lease) -> None:
    transact(store, lambda each: each.release(lease))
