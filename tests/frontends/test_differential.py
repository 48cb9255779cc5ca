"""Both transports, the same handlers, the same calls: nothing may tell them apart.

A call is drawn at random and made by a real client to either transport. What comes
back must be the same: code, message, replies, initial and trailing metadata, and what
the handler saw of it. Each server keeps its connection from example to example, so
that what one call leaves behind can trouble the next.

What may differ, and where it is allowed for:

- the text of a refusal by grpcio's core, which is not ours to write (`_CORE_TEXTS`);
- the text that a client gives a call it ended itself (deadline, cancellation);
- a unary call with two messages: grpcio's Python layer overlooks the second, express says
  UNIMPLEMENTED, as gRPC asks;
- an unknown grpc-encoding: grpcio says INTERNAL, express UNIMPLEMENTED, as gRPC asks;
- the sizes at which a slow reader's queue is full;
- what is not gRPC at all: express answers with an HTTP status, grpcio's core as it
  likes; both refuse it and serve on.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.conformance.transport import running
from tests.frontends.differential import (
    COMPRESSION,
    ENDS,
    ERRORS,
    FAILURES,
    LONG,
    MAKERS,
    MAX_MESSAGE_BYTES,
    MESSAGES,
    METADATA,
    OVERSIZE,
    SHORT,
    SHORT_S,
    SIZES,
    Handlers,
    Pair,
    Sent,
    Side,
)
from tfs.testing.patience import PATIENCE_S


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with contextlib.ExitStack() as stack:
        sides = {}
        for name, make in MAKERS.items():
            handlers = Handlers()
            run = stack.enter_context(running(make, handlers.methods()))
            sides[name] = Side(run.addresses[0], handlers)
            stack.callback(sides[name].close)
        yield Pair(**sides)


def _one(
    method: str, message: st.SearchStrategy[bytes], **others: st.SearchStrategy[object]
) -> st.SearchStrategy[Sent]:
    return st.builds(
        Sent,
        method=st.just(method),
        messages=st.tuples(message),
        metadata=METADATA,
        **others,
    )


_SEVERAL = st.lists(st.sampled_from([b"", b"one", b"two" * 9000]), max_size=3).map(
    tuple
)
_CHATS = st.tuples(_SEVERAL, ENDS).map(
    lambda drawn: (*drawn[0], b"end " + json.dumps(drawn[1]).encode())
)

CALLS = st.one_of(
    _one("Echo", MESSAGES, compression=COMPRESSION),
    _one("Echo", OVERSIZE, compression=COMPRESSION),
    _one("Later", MESSAGES, compression=COMPRESSION),
    _one("Seen", st.just(b""), timeout_s=st.sampled_from([None, PATIENCE_S, 3600.0])),
    _one("Size", SIZES.map(lambda size: b"%d" % size)),
    _one("Size", st.just(b"%d" % (MAX_MESSAGE_BYTES + 1))),
    _one("Fail", ERRORS.map(lambda error: json.dumps(error).encode())),
    _one("Raise", st.sampled_from([name.encode() for name in FAILURES])),
    _one("Nothing", MESSAGES),
    _one("Hold", MESSAGES, timeout_s=st.just(SHORT_S)),
    _one("Hold", MESSAGES, is_cancelled=st.just(True)),
    _one(
        "Stream",
        st.fixed_dictionaries({"sizes": st.lists(SIZES, max_size=5), "end": ENDS}).map(
            lambda asked: json.dumps(asked).encode()
        ),
    ),
    st.builds(Sent, st.just("Chat"), _SEVERAL | _CHATS, METADATA),
)


@given(calls=st.lists(CALLS, min_size=1, max_size=6), at_once=st.booleans())
@SHORT
def test_no_client_can_tell_the_transports_apart(
    pair: Pair, calls: list[Sent], at_once: bool
) -> None:
    """The same calls, one by one or at once, have the same outcomes through both."""
    pair.check(calls, at_once=at_once)


@pytest.mark.stress
@pytest.mark.timeout(1800)
@given(calls=st.lists(CALLS, min_size=1, max_size=20), at_once=st.booleans())
@settings(LONG, max_examples=2000)
def test_no_client_can_tell_the_transports_apart_for_minutes(
    pair: Pair, calls: list[Sent], at_once: bool
) -> None:
    """For minutes, and from another seed each time, the outcomes are the same."""
    pair.check(calls, at_once=at_once)
