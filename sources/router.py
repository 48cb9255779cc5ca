"""Routers: every servable name goes to one of several outputs.

(TensorFlow Serving: core/source_router.h, static_source_router.h,
dynamic_source_router.h.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Generic, TypeVar

from tfs.core.errors import InvalidArgument
from tfs.core.source import AspiredVersions, AspiredVersionsCallback, Outlet

T = TypeVar("T")

NO_ROUTE: Final = None
"""What a route function returns to have a call discarded."""

Route = Callable[[AspiredVersions[T]], "int | None"]


class SourceRouter(Generic[T]):
    """Sends each call to the port that ``route`` names. Thread-safe.

    Calls block until *every* port is connected, so that no call is lost while the
    server is assembled. ``route`` runs on the caller's thread. A call for which it
    returns NO_ROUTE is discarded, and one with a route to a port that does not exist
    gets INVALID_ARGUMENT.
    """

    def __init__(self, num_ports: int, route: Route[T]) -> None:
        if num_ports < 1:
            raise InvalidArgument(f"a router needs at least one port: {num_ports}")
        self._ports: tuple[Outlet[T], ...] = tuple(Outlet() for _ in range(num_ports))
        self._route = route

    @property
    def output_ports(self) -> Sequence[Outlet[T]]:
        """The outputs, in port order; connect every one of them."""
        return self._ports

    def aspired_versions_callback(self) -> AspiredVersionsCallback[T]:
        """Returns the function for sources to call; it does nothing after ``close``."""
        return self._take

    def close(self) -> None:
        """Makes later calls do nothing and ends those that wait."""
        for port in self._ports:
            port.close()

    def _take(self, aspired: AspiredVersions[T]) -> None:
        for port in self._ports:
            if not port.wait_connected():
                return
        index = self._route(aspired)
        if index is NO_ROUTE:
            return
        if not 0 <= index < len(self._ports):
            raise InvalidArgument(f"Port number out of range: {index}")
        self._ports[index].emit(aspired)


class StaticSourceRouter(SourceRouter[T]):
    """Routes by the first of ``substrings`` that the name contains. Thread-safe.

    There is one port per substring, in order, and a last one for all other names.
    """

    def __init__(self, substrings: Sequence[str]) -> None:
        kept = tuple(substrings)

        def route(aspired: AspiredVersions[T]) -> int:
            for index, substring in enumerate(kept):
                if substring in aspired.name:
                    return index
            return len(kept)

        super().__init__(len(kept) + 1, route)


class DynamicSourceRouter(SourceRouter[T]):
    """Routes by a table that may be replaced while calls go on. Thread-safe.

    The last port is for the names the table does not have.

    Args:
        num_ports: How many outputs there are, including the default one.
        routes: Port index by servable name.

    Raises:
        InvalidArgument: A port is out of range or the default one.

    """

    def __init__(self, num_ports: int, routes: Mapping[str, int]) -> None:
        super().__init__(
            num_ports, lambda aspired: self._routes.get(aspired.name, num_ports - 1)
        )
        self._routes: dict[str, int] = {}
        self.update_routes(routes)

    def update_routes(self, routes: Mapping[str, int]) -> None:
        """Replaces the whole table at once; later calls use the new one.

        Raises:
            InvalidArgument: As in the constructor; the old table stays.

        """
        default_index = len(self._ports) - 1
        for port_index in routes.values():
            if not 0 <= port_index <= default_index:
                raise InvalidArgument(f"Port number out of range: {port_index}")
            if port_index == default_index:
                raise InvalidArgument(
                    "Last port cannot be used in route map, since it's reserved for "
                    "the default route"
                )
        self._routes = dict(routes)

    @property
    def routes(self) -> Mapping[str, int]:
        """The table in use; a snapshot."""
        return dict(self._routes)
