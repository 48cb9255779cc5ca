"""Reads requests of one kind: by a template if one like it was read before, or else whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

from tfs.codec import wire
from tfs.codec.decode_options import DEFAULT_OPTIONS, DecodeOptions, FillBudget
from tfs.codec.request_template import RequestTemplates, RequestView
from tfs.core.errors import ResourceExhausted
from tfs.core.tensor_view import Buffer

V = TypeVar("V", bound=RequestView)
V_co = TypeVar("V_co", bound=RequestView, covariant=True)

_MAX_QUICK_FIELDS: Final = 128


class _Parse(Protocol[V_co]):
    """Parses any request; raises ServingError. Thread-safe."""

    def __call__(self, message: Buffer, budget: FillBudget) -> V_co: ...


class RequestReader(Generic[V]):
    """Reads requests of one kind. Thread-safe.

    Args:
        known: Those that were read before.
        parse: Reads the others.

    Attributes:
        read_alike: See :meth:`RequestTemplates.read_alike`.

    """

    def __init__(self, known: RequestTemplates[V], parse: _Parse[V]) -> None:
        self._known = known
        self._parse = parse
        self.read_alike = known.read_alike

    def read(
        self,
        message: Buffer,
        options: DecodeOptions = DEFAULT_OPTIONS,
        reserve: Callable[[int], None] | None = None,
    ) -> V:
        """Decodes a request, however long that takes.

        Args:
            message: The request.
            options: Its limits.
            reserve: Is called before the request takes memory beyond its own bytes, with
                how much it takes in all; what it raises passes through.

        Raises:
            InvalidArgument: It is no such request; or ``tensor parsing error: NAME: ...``.
            ResourceExhausted: An input's shape claims more than ``max_fill_bytes`` of
                elements that were not sent; or they take more than ``max_tensor_bytes``
                beyond what was sent; or there are more than ``MAX_FIELDS`` fields, or
                twice as many dimensions and other fields in the inputs.
            Unimplemented: It asks for what is not offered.

        """
        view = self._known.read_as_before(message)
        if view is None:
            budget = FillBudget(
                options.max_tensor_bytes, reserve, options.max_fill_bytes
            )
            view = self._parse(message, budget)
            self._known.learn(message, view)
        return view

    def read_if_quick(
        self, message: Buffer, options: DecodeOptions = DEFAULT_OPTIONS
    ) -> V | None:
        """Decodes a request that takes no longer than about a millisecond.

        Returns None for any other, which :meth:`read` decodes off the serving loop. The
        size of one that is like an earlier one does not matter, because raw elements are
        never touched.

        Raises:
            ServingError: As :meth:`read`.

        """
        view = self._known.read_as_before(message)
        if view is None:
            if len(message) > options.quick_bytes:
                return None
            view = self._parse_if_quick(message, options)
            if view is not None:
                self._known.learn(message, view)
        return view

    def _parse_if_quick(self, message: Buffer, options: DecodeOptions) -> V | None:
        """Parses a request; returns None if it has, or fills in, too much for the loop."""
        if wire.has_more_fields(message, 0, len(message), _MAX_QUICK_FIELDS):
            return None
        if options.quick_fill_bytes >= options.max_fill_bytes:
            return self._parse(
                message,
                FillBudget(options.max_tensor_bytes, None, options.max_fill_bytes),
            )
        try:
            return self._parse(message, FillBudget(options.quick_fill_bytes))
        except ResourceExhausted:
            return None
