"""The port that has servers answer requests for their models.

A process has a router of its own (:class:`~tfs.hosted.routing.python_router.PythonRouter`), and
others beside it, which may leave to it what they cannot route.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from tfs.core.call import ListenerOptions, RpcMethod
from tfs.handlers.service_names import MODEL, OIP, PREDICTION

FORWARDED: Final = (
    *(
        f"/{PREDICTION}/{name}"
        for name in ("Predict", "Classify", "Regress", "MultiInference")
    ),
    f"/{PREDICTION}/GetModelMetadata",
    f"/{MODEL}/GetModelStatus",
    *(f"/{OIP}/{name}" for name in ("ModelInfer", "ModelMetadata", "ModelReady")),
)
"""What a router answers."""

Routes = Mapping[str, tuple[str, ...]]
"""The addresses that answer for each model. Never changed once it is given out."""


class FleetRouter(Protocol):
    """Routes requests. Confined to the serving loop.

    Implementors promise:

    1. a request goes as it came, with what is left of its deadline, to a server that has
       its model, and its answer comes back as it was sent;
    2. a server that cannot be reached, refuses for now (UNAVAILABLE), ends (CANCELLED) or
       has the model no more (NOT_FOUND) costs no request while another answers for it;
    3. a late request is sent to a second server, and the first answer counts; that does
       not happen often enough to make a slow fleet slower;
    4. a model without routes is UNAVAILABLE, and one that is not in the routes NOT_FOUND;
    5. other routes interrupt no request.
    """

    @property
    def listeners(self) -> Sequence[ListenerOptions]:
        """Where the process that it is in has to listen for it."""
        ...

    def methods(self) -> Sequence[RpcMethod]:
        """Returns what that process has to answer for it."""
        ...

    def set_routes(self, routes: Routes) -> None:
        """Uses ``routes`` for later requests."""
        ...

    def drain(self, deadline_s: float) -> bool:
        """Refuses new requests; returns whether those accepted before were answered.

        What the process's own transport answers, it drains itself. Blocks, and is called
        from any thread.
        """
        ...

    def close(self) -> None:
        """Ends at once; called from any thread, after ``drain``."""
        ...
