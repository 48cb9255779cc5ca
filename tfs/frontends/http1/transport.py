"""Listens for HTTP/1.1 clients, on the serving loop."""

from __future__ import annotations

from collections.abc import Sequence
from threading import get_ident

from tfs.core.call import ListenerOptions, Peer
from tfs.core.errors import Unavailable
from tfs.core.executor import Executor, InlineExecutor
from tfs.core.http_call import HttpHandler, TakeAlike
from tfs.core.loop.serving_loop import Phase, ServingLoop
from tfs.frontends.budget import MemoryBudget
from tfs.frontends.clients import Clients
from tfs.frontends.http1.session import HttpSession
from tfs.frontends.http1.shared_state import HttpOptions, HttpShared
from tfs.frontends.listener import Listener
from tfs.frontends.wire import Wire


class HttpTransport:
    """HTTP/1.1 on some listeners. ``start`` and the rest run off the loop.

    Args:
        loop: The serving loop.
        budget: What all clients together may take; shared with other transports.
        options: Limits.
        executor: Decompresses requests and performs TLS handshakes.

    """

    def __init__(
        self,
        loop: ServingLoop,
        budget: MemoryBudget,
        options: HttpOptions | None = None,
        executor: Executor | None = None,
    ) -> None:
        self._loop = loop
        executor = executor or InlineExecutor()
        options = options or HttpOptions()
        self._shared = HttpShared(loop, options, budget, executor)
        self._clients = self._shared.clients = Clients(
            loop, budget, options, executor, self._make_session
        )

    @property
    def num_connections(self) -> int:
        """Clients that are connected. Thread-safe."""
        return self._clients.num_connections

    def start(
        self,
        listeners: Sequence[ListenerOptions],
        handler: HttpHandler,
        take_alike: TakeAlike = lambda calls: calls,
    ) -> Sequence[str]:
        """Opens the listeners; returns their addresses with the real ports.

        ``take_alike`` is asked before the handler.

        Raises:
            Unavailable: An address is in use or cannot be bound, or certificates cannot
                be used; nothing is open.

        """
        self._shared.handler = handler
        self._shared.take_alike = take_alike
        addresses = self._clients.open(listeners)
        self._loop.post(self._begin)
        return addresses

    def drain(self, deadline_s: float) -> bool:
        """See :meth:`tfs.core.call.Transport.drain`."""
        return self._clients.drain(deadline_s)

    def close(self) -> None:
        """Closes every connection and listener; idempotent."""
        self._loop.post(self._refuse_all)
        self._clients.close(self._end)

    # -- on the loop -------------------------------------------------------------------

    def _begin(self) -> None:
        if not self._clients.is_closed:
            self._shared.loop_ident = get_ident()
            self._loop.add_round_hook(self._shared.hand_over, Phase.HAND_OVER)
            self._loop.add_round_hook(self._shared.flush, Phase.FLUSH)
            self._clients.begin()

    def _make_session(self, wire: Wire, peer: Peer, listener: Listener) -> HttpSession:
        return HttpSession(self._shared, wire, peer)

    def _refuse_all(self) -> None:
        for session in list(self._clients.sessions):
            session.fail_all(Unavailable("the server is shutting down"))
            session.flush()

    def _end(self) -> None:
        self._loop.remove_round_hook(self._shared.hand_over)
        self._loop.remove_round_hook(self._shared.flush)
