"""What the connections of one express transport have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from threading import get_ident
from typing import Any

from tfs.core.executor import Executor
from tfs.core.loop.serving_loop import ServingLoop
from tfs.frontends.answer_sizes import AnswerSizes
from tfs.frontends.budget import MemoryBudget
from tfs.frontends.clients import Clients
from tfs.frontends.express.options import ExpressOptions
from tfs.frontends.http2.outbox import Outbox


@dataclass(slots=True, eq=False)
class SharedState:
    """The state that the transport shares with its sessions. Loop-confined.

    Attributes:
        loop: Runs everything.
        options: Limits and timeouts.
        executor: Runs decompression.
        on_large_message: Called after each compressed message, and repeatedly while
            large messages arrive or wait to be read; a last time after that.
        answer_sizes: The models that are known for long answers.
        budget: The memory that clients can make the server take.
        clients: The clients; set by the transport.
        attached: Answers in memory of their batches that their clients do not take yet;
            copied out of it in portions, because 10 MB take 5 ms.
        opened: Calls that began in this round and have a deadline.
        arrived: Calls of one method that arrived in this round and that its handler
            takes together.
        dirty: Sessions that have output; served once, at the end of the round.
        late: Sessions that received more than one round takes; served after ``dirty``.
        unfinished: Sessions that had too much for this round and go on in the next.
        wants_round: Whether the next round should come at once.
        round_begun_s: When this round first received anything; None before.
        loop_ident: The loop's thread; valid once the loop runs the transport.

    """

    loop: ServingLoop
    options: ExpressOptions
    executor: Executor
    on_large_message: Callable[[], None]
    answer_sizes: AnswerSizes
    budget: MemoryBudget
    clients: Clients[Any] = field(init=False)
    attached: list[Outbox] = field(default_factory=list)
    opened: list[Any] = field(default_factory=list)
    arrived: list[Any] = field(default_factory=list)
    dirty: list[Callable[[], None]] = field(default_factory=list)
    late: list[Callable[[], None]] = field(default_factory=list)
    unfinished: list[Callable[[], None]] = field(default_factory=list)
    wants_round: bool = False
    round_begun_s: float | None = None
    loop_ident: int = field(default_factory=get_ident)
