"""How handlers find what a request names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

from tfs.core.call import Call
from tfs.core.errors import FailedPrecondition, NotFound, ServingError
from tfs.core.servable import Servable
from tfs.core.servable_handle import ServableHandle
from tfs.core.signature import Signature

OnLoaded: TypeAlias = Callable[[ServingError | None], None]
"""Takes, once, on the loop: None if a model may be looked up again, or why it is of no use."""


class NotResident(NotFound):
    """The model is loaded on demand, and is not loaded now.

    Attributes:
        wait: Has it loaded, and tells when it is, or that the call has ended. On the loop.

    """

    def __init__(self, message: str, wait: Callable[[Call, OnLoaded], None]) -> None:
        super().__init__(message)
        self.wait = wait

    def then(
        self,
        call: Call,
        again: Callable[[], None],
        fail: Callable[[ServingError], None],
    ) -> None:
        """Has it loaded, and then calls ``again``, or ``fail`` with the reason."""

        def on_loaded(error: ServingError | None) -> None:
            if error is None:
                again()
            else:
                fail(error)

        self.wait(call, on_loaded)


class ModelLookup(Protocol):
    """Resolves a model spec to a pinned servable. Called on the serving loop.

    Implementors promise never to block, and to raise with nothing pinned.
    """

    def acquire(
        self,
        name: str,
        version: int | None,
        label: str | None,
        client_id: bytes | None,
        call: Call,
    ) -> ServableHandle[Servable]:
        """Pins the version that serves the request; the caller owes a release.

        Args:
            name: The model.
            version: The version named by the caller, None if none was.
            label: The label named by the caller, None if none was.
            client_id: What the caller calls itself within the request.
            call: The call. If the model has a canary and neither version nor label is
                named, its metadata decide whether the canary answers or gets a copy.

        Raises:
            InvalidArgument: No name, or an unknown label.
            NotFound: Nothing of that name and version is served.
            NotResident: It will be, once the model was loaded on demand.

        """
        ...

    def acquire_shared(
        self, name: str, version: int | None, label: str | None, num: int
    ) -> ServableHandle[Servable] | None:
        """Pins the version that serves ``num`` requests; the caller owes as many releases.

        Returns None, with nothing pinned, if each has to be looked up by itself,
        because a canary may answer some of them or get copies.

        Raises:
            ServingError: As ``acquire``.

        """
        ...

    def look_at(
        self, name: str, version: int | None, label: str | None
    ) -> ServableHandle[Servable]:
        """Pins what ``acquire`` does without a canary, for whoever asks about a model.

        It is no use of a model that is loaded on demand. The caller owes a release.

        Raises:
            ServingError: As ``acquire``.

        """
        ...


def find_signature(servable: Servable, name: str) -> Signature:
    """Returns the signature called ``name``.

    Raises:
        FailedPrecondition: There is none; lists those there are.

    """
    signature = servable.signatures.get(name)
    if signature is None:
        raise FailedPrecondition(
            f'Serving signature key "{name}" not found. {servable.id.slashed} has '
            f"{', '.join(sorted(servable.signatures))}"
        )
    return signature
