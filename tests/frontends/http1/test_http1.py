"""HTTP/1.1 over real sockets: what is answered, and what becomes of bad input."""

from __future__ import annotations

import gzip
import http.client
import json
import os
import socket
import sys
import threading
import zlib
from collections.abc import Callable
from functools import partial

import pytest

from tests.certificates import Certificates
from tests.frontends.http1.rig import RawClient, Rig, echo
from tests.threads import run_together
from tfs.core.errors import Unavailable
from tfs.core.http_call import HttpCall, HttpReply, verb_not_taken
from tfs.testing.patience import PATIENCE_S

ONE = b"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc"


def test_a_connection_is_kept_for_further_requests() -> None:
    """One after the other, with bodies of known and of unknown length."""
    with Rig() as rig, rig.client() as client:
        client.send(ONE)
        status, headers, body = client.read_answer()
        assert (status, body) == (200, b"POST /a abc")
        assert "connection" not in headers
        client.send(b"POST /b HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n")
        client.send(b"2\r\nde\r\n1;x=y\r\nf\r\n0\r\nTrailer: t\r\n\r\n")
        assert client.read_answer()[2] == b"POST /b def"
        client.send(b"POST /c HTTP/1.1\r\nTransfer-Encoding: chunked \r\n\r\n")
        client.send(b"0\r\n\r\n")
        assert client.read_answer()[2] == b"POST /c "


def test_pipelined_requests_are_answered_in_order() -> None:
    """An answer that is there early waits for those before it."""
    with Rig(None) as rig, rig.client() as client:
        client.send(b"".join(ONE.replace(b"/a", b"/%d" % i) for i in range(3)))
        wait_for(rig, 3)
        for call in reversed(rig.calls):
            echo(call)
        paths = [client.read_answer()[2] for _ in range(3)]
        assert paths == [b"POST /0 abc", b"POST /1 abc", b"POST /2 abc"]


def test_an_answer_may_come_from_any_thread() -> None:
    """Of several answers the first one counts."""

    def later(call: HttpCall) -> None:
        def answer() -> None:
            echo(call)
            call.fail(Unavailable("too late"))

        threading.Thread(target=answer).start()

    with Rig(later) as rig, rig.client() as client:
        client.send(ONE + ONE)
        assert [client.read_answer()[0] for _ in range(2)] == [200, 200]


@pytest.mark.parametrize(
    "request_line", [b"GET / HTTP/1.0\r\n", b"GET / HTTP/1.1\r\nConnection: close\r\n"]
)
def test_who_wants_one_answer_gets_one(request_line: bytes) -> None:
    """The server hangs up behind it, and says so."""
    with Rig() as rig:
        answer = rig.ask(request_line + b"\r\n")
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"\r\nConnection: close\r\n" in answer


@pytest.mark.parametrize("more", [ONE, b"no request"])
def test_what_follows_the_last_request_is_not_answered(more: bytes) -> None:
    """Who says that a request is the last one gets one answer behind it."""
    with Rig() as rig:
        answer = rig.ask(b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n" + more)
    assert answer.count(b"HTTP/1.1") == 1


def test_head_has_the_length_and_no_body() -> None:
    """The length is that which GET would have."""
    with Rig() as rig:
        answer = rig.ask(b"HEAD /x HTTP/1.1\r\nConnection: close\r\n\r\n")
    assert answer.endswith(b"\r\n\r\n")
    assert b"\r\nContent-Length: 8\r\n" in answer


def test_who_asks_first_may_send_the_body() -> None:
    """Expect: 100-continue, as curl sends it with bodies of some length."""
    with Rig() as rig, rig.client() as client:
        client.send(
            b"POST / HTTP/1.1\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n"
        )
        assert client.read_answer()[0] == 100
        client.send(b"ok")
        assert client.read_answer()[2] == b"POST / ok"


@pytest.mark.parametrize("is_tls", [False, True])
def test_a_long_body_ends_where_the_next_request_begins(is_tls: bool) -> None:
    """Also of one whose head has come before, and whatever it is read in."""
    certificates = Certificates() if is_tls else None
    with Rig(certificates=certificates) as rig, rig.client() as client:
        for letter in (b"x", b"y", b"z"):
            long = letter * 500_000
            client.send(post(f"Content-Length: {len(long)}\r\n", long) + ONE)
            assert client.read_answer()[2] == b"POST / " + long
            assert client.read_answer()[2] == b"POST /a abc"


def test_the_rest_is_the_same_over_tls() -> None:
    """Pipelined requests, and the close behind the last."""
    with Rig(certificates=Certificates()) as rig:
        with rig.client() as client:
            client.send(ONE + ONE)
            assert [client.read_answer()[2] for _ in range(2)] == [b"POST /a abc"] * 2
            client.send(b"GET /last HTTP/1.0\r\n\r\n")
            assert client.read_all().endswith(b"GET /last ")
        with rig.client() as client:
            client.send(post(f"Content-Length: {1 << 30}\r\n"))
            assert client.read_answer()[0] == 413
        with RawClient(rig.port) as client:
            client.send(ONE)
            assert client.read_all().endswith(b"this port speaks HTTPS.\n")


@pytest.mark.parametrize("verb", [b"POST", b"GET"])
def test_who_offers_another_protocol_is_answered_in_this_one(verb: bytes) -> None:
    """As curl --http2 asks, with a body of either kind, and goes on."""
    offer = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
    with Rig() as rig, rig.client() as client:
        client.send(verb + b" / HTTP/1.1\r\n" + offer + b"Content-Length: 2\r\n\r\nab")
        assert client.read_answer()[2] == verb + b" / ab"
        client.send(verb + b" /c HTTP/1.1\r\n" + offer)
        client.send(CHUNKED.encode() + b"\r\n1\r\nc\r\n0\r\n\r\n" + ONE)
        assert client.read_answer()[2] == verb + b" /c c"
        assert client.read_answer()[2] == b"POST /a abc"


def test_any_number_may_offer_another_protocol_at_once() -> None:
    """They are taken one after the other, and not each within the one before."""
    num = 2 * sys.getrecursionlimit()
    with Rig() as rig, rig.client() as client:
        client.send(b"GET / HTTP/1.1\r\nConnection:upgrade\r\nUpgrade:x\r\n\r\n" * num)
        for _ in range(num):
            assert client.read_answer()[2] == b"GET / "


def test_bodies_may_be_compressed_either_way() -> None:
    """gzip, if the client says so; short answers are not worth it."""
    text = b"x" * 10_000
    with Rig(compress_bytes=1000) as rig:
        client = http.client.HTTPConnection("127.0.0.1", rig.port, PATIENCE_S)
        headers = {"Content-Encoding": "gzip", "Accept-Encoding": "br, gzip;q=0.5"}
        client.request("POST", "/", gzip.compress(text), headers)
        answer = client.getresponse()
        assert answer.headers["Content-Encoding"] == "gzip"
        assert gzip.decompress(answer.read()) == b"POST / " + text
        client.request("POST", "/", b"short", {"Accept-Encoding": "gzip"})
        assert client.getresponse().read() == b"POST / short"
        client.request("POST", "/", text, {"Accept-Encoding": "gzip;q=0"})
        assert client.getresponse().read() == b"POST / " + text
        # Triton's client can send it.
        client.request(
            "POST", "/", zlib.compress(text), {"Content-Encoding": "deflate"}
        )
        assert client.getresponse().read() == b"POST / " + text
        client.close()


@pytest.mark.parametrize(
    ("target", "path"),
    [
        (b"http://h:1/a/b?c", b"/a/b"),
        (b"/a://b/c", b"/a://b/c"),
        (b"/c?x=a://b/d", b"/c"),
        (b"/?a=b://c/d", b"/"),
    ],
)
def test_a_target_is_a_whole_url_or_a_path_that_stays_as_it_is(
    target: bytes, path: bytes
) -> None:
    """Clients of a proxy send URLs (RFC 9112, 3.2.2); whoever filters paths in front of
    the server must see the one that it answers, with a URL in it or not.
    """
    with Rig() as rig:
        answer = rig.ask(b"GET " + target + b" HTTP/1.1\r\nConnection: close\r\n\r\n")
    assert answer.endswith(b"GET " + path + b" ")


def post(head: str, body: bytes = b"") -> bytes:
    return f"POST / HTTP/1.1\r\nHost: h\r\n{head}\r\n".encode() + body


CHUNKED = "Transfer-Encoding: chunked\r\n"
BAD = {
    "no http": (b"\x16\x03\x01\x02\x00\x01\x00", 400),
    "http/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    "a proxy's method": (b"CONNECT h:80 HTTP/1.1\r\nHost: h:80\r\n\r\n", 400),
    "two lengths": (post("Content-Length: 1\r\nContent-Length: 2\r\n", b"ab"), 400),
    "length and chunks": (post(CHUNKED + "Content-Length: 1\r\n", b"0\r\n\r\n"), 400),
    "chunks behind a length": (post("Content-Length: 1\r\n" + CHUNKED, b"a"), 400),
    "chunks under another name": (post("Transfer-Encoding: xchunked\r\n", b"a"), 501),
    "chunks that are not last": (
        post("Transfer-Encoding: chunked, identity\r\n", b"0\r\n\r\n"),
        400,
    ),
    "chunks of something compressed": (
        post("Transfer-Encoding: gzip, chunked\r\n", b"0\r\n\r\n"),
        501,
    ),
    "two hosts": (post("Host: i\r\n"), 400),
    "codings in two lines": (
        post("Transfer-Encoding: gzip\r\n" + CHUNKED, b"0\r\n\r\n"),
        400,
    ),
    "chunks twice": (post(CHUNKED + CHUNKED, b"0\r\n\r\n"), 400),
    "length as a list": (post("Content-Length: 1, 2\r\n", b"ab"), 400),
    "length with a sign": (post("Content-Length: +1\r\n", b"a"), 400),
    "negative length": (post("Content-Length: -1\r\n"), 400),
    "huge length": (post(f"Content-Length: {1 << 80}\r\n"), 400),
    "length over the limit": (post(f"Content-Length: {1 << 30}\r\n"), 413),
    "chunk size that is none": (post(CHUNKED, b"xyz\r\n"), 400),
    "chunk heads without end": (post(CHUNKED, b"1;" + b"a" * 100_000), 400),
    "chunks of next to nothing": (
        post(CHUNKED, b"1;" + b"a" * 60 + b"\r\nx\r\n" * 20_000),
        400,
    ),
    "header flood": (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 10_000, 431),
    "endless header": (b"GET / HTTP/1.1\r\na: " + b"b" * 100_000, 431),
    "endless target": (b"GET /" + b"b" * 100_000, 431),
    "line folding": (b"GET / HTTP/1.1\r\na: b\r\n c\r\n\r\n", 400),
    "space before colon": (b"GET / HTTP/1.1\r\na : b\r\n\r\n", 400),
    "unknown encoding": (post("Content-Encoding: br\r\nContent-Length: 1\r\n"), 415),
    "no gzip": (post("Content-Encoding: gzip\r\nContent-Length: 3\r\n", b"abc"), 400),
    "half a gzip": (
        post(
            "Content-Encoding: gzip\r\nContent-Length: 20\r\n",
            gzip.compress(b"abcdef")[:20],
        ),
        400,
    ),
}


@pytest.mark.parametrize(("data", "status"), BAD.values(), ids=BAD.keys())
def test_bad_input_gets_an_error_and_changes_nothing_else(
    data: bytes, status: int
) -> None:
    """In JSON; the connection is over, and the next client is served."""
    with Rig(max_body_bytes=1 << 20) as rig:
        answer = rig.ask(data)
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 %d " % status), answer[:200]
        assert json.loads(body).keys() == {"error"}
        with rig.client() as client:
            client.send(ONE)
            assert client.read_answer()[2] == b"POST /a abc"


def test_a_bomb_is_not_unpacked() -> None:
    """100 MB of spaces come as 100 KB."""
    bomb = gzip.compress(b" " * 100_000_000)
    with Rig() as rig:
        answer = rig.ask(
            post(f"Content-Encoding: gzip\r\nContent-Length: {len(bomb)}\r\n", bomb)
        )
        assert answer.startswith(b"HTTP/1.1 413 ")
        assert rig.budget.used_bytes < 1 << 20


@pytest.mark.parametrize("case", ["no gzip", "cut", "bomb"])
def test_a_compressed_body_that_fails_keeps_no_memory(case: str) -> None:
    """However often it comes (as asked of Triton's servers)."""
    body = {
        "no gzip": b"abc" * 10_000,
        "cut": gzip.compress(os.urandom(1 << 20))[:-20],
        "bomb": gzip.compress(b" " * 100_000_000),
    }[case]
    data = post(f"Content-Encoding: gzip\r\nContent-Length: {len(body)}\r\n", body)
    with Rig() as rig:
        for _ in range(3):
            assert rig.ask(data).startswith(b"HTTP/1.1 4")
        is_over = threading.Event()
        rig.loop.post(is_over.set)
        assert is_over.wait(PATIENCE_S)
        assert rig.budget.used_bytes == 0


def test_a_body_in_half_a_million_chunks_is_a_body() -> None:
    """Three megabytes in chunks of six bytes (as asked of Triton's servers)."""
    chunks = b"6\r\nabcdef\r\n" * 500_000 + b"0\r\n\r\n"
    with Rig() as rig, rig.client() as client:
        sender = threading.Thread(target=client.send, args=(post(CHUNKED, chunks),))
        sender.start()
        status, headers, _ = client.read_answer()
        sender.join()
    assert (status, headers["content-length"]) == (200, str(3_000_000 + 7))


def test_a_body_that_ends_early_is_answered() -> None:
    """The client may still read why nothing came of it."""
    with Rig() as rig, rig.client() as client:
        client.send(post("Content-Length: 10\r\n", b"abc"))
        client.socket.shutdown(1)
        status, _, body = client.read_answer()
        assert status == 400
        assert b"shorter than its length" in body


def test_a_body_that_goes_on_behind_its_length_is_cut_there() -> None:
    """What follows is the next request, and a bad one."""
    with Rig() as rig, rig.client() as client:
        client.send(post("Content-Length: 3\r\n", b"abcdef\r\n\r\n"))
        assert client.read_answer()[::2] == (200, b"POST / abc")
        status, _, body = client.read_answer()
        assert (status, json.loads(body).keys()) == (400, {"error"})


def trickle(client: RawClient) -> None:
    """Sends a byte at a time until it is answered."""
    client.send(post("Content-Length: 100000\r\n"))
    client.socket.settimeout(0.02)
    while True:
        try:
            client.socket.sendall(b"x")
            client.socket.recv(1, socket.MSG_PEEK)
            return
        except TimeoutError:
            pass


@pytest.mark.parametrize(
    "begin",
    [
        lambda client: client.send(b"GET / HTT"),
        lambda client: client.send(post("Content-Length: 10\r\n", b"abc")),
        trickle,
    ],
    ids=["head", "body", "trickle"],
)
def test_who_goes_on_with_next_to_nothing_is_told_and_cut_off(
    begin: Callable[[object], None],
) -> None:
    """One timeout ends what makes no progress, and bytes now and then are none."""
    rig = Rig(no_progress_timeout_s=0.2, sweep_interval_s=0.05)
    with rig, rig.client() as client:
        begin(client)
        status, headers, body = client.read_answer()
        assert (status, headers["connection"]) == (408, "close")
        assert json.loads(body) == {"error": "the request came too slowly"}
        assert client.read_all() == b""
        assert rig.budget.used_bytes == 0


def test_who_is_slow_is_told_so_where_there_is_no_room_for_requests() -> None:
    """What is refused takes no room, so that a crowd of slow clients fails nothing."""
    rig = Rig(no_progress_timeout_s=0.2, sweep_interval_s=0.05)
    rig.budget.used_bytes = rig.budget.limit_bytes
    with rig, rig.client() as client:
        client.send(b"GET / HTT")
        status, headers, _ = client.read_answer()
        assert (status, headers["connection"]) == (408, "close")
        assert client.read_all() == b""
        assert rig.budget.used_bytes == rig.budget.limit_bytes


def test_who_reads_no_answer_is_cut_off() -> None:
    """Its answer is kept only for so long."""
    large = b"x" * (32 << 20)

    def answer(call: HttpCall) -> None:
        call.respond(HttpReply((large,)))

    rig = Rig(answer, no_progress_timeout_s=0.2, sweep_interval_s=0.05)
    with rig, rig.client() as client:
        client.send(ONE)
        gone = threading.Event()

        def look() -> None:
            if rig.transport.num_connections:
                rig.loop.call_at(rig.loop.clock.now() + 0.05, look)
            else:
                gone.set()

        rig.loop.post_at(rig.loop.clock.now() + 0.1, look)
        assert gone.wait(PATIENCE_S)
        assert rig.budget.used_bytes == 0


@pytest.mark.parametrize("has_begun", [False, True])
def test_a_request_that_takes_too_long_is_over_at_its_deadline(has_begun: bool) -> None:
    """504, with where it was then, and its token says that nobody waits."""
    calls: list[HttpCall] = []

    def take(call: HttpCall) -> None:
        call.cancel.begun_s = 1.0 if has_begun else None
        calls.append(call)

    with Rig(take, request_timeout_s=0.1) as rig, rig.client() as client:
        client.send(ONE)
        status, _, body = client.read_answer()
        assert status == 504
        where = "it was being computed" if has_begun else "it waited in a queue"
        assert json.loads(body)["error"].endswith(where)
        (call,) = calls
        assert call.cancel.error is not None


def test_a_client_that_leaves_cancels_its_requests() -> None:
    """What waits for a model need not be computed."""
    with Rig(None) as rig:
        cancelled = threading.Event()
        with rig.client() as client:
            client.send(ONE)
            wait_for(rig, 1)
            rig.loop.post(lambda: rig.calls[0].on_cancel(cancelled.set))
            client.socket.close()
            assert cancelled.wait(PATIENCE_S)


def ask_together(rig: Rig, body: bytes, num: int) -> list[int]:
    """Returns the statuses of that many requests, each over a connection of its own."""
    statuses: list[int] = []

    def ask() -> None:
        client = http.client.HTTPConnection("127.0.0.1", rig.port, PATIENCE_S)
        client.request("POST", "/", body)
        answer = client.getresponse()
        answer.read()
        statuses.append(answer.status)
        client.close()

    run_together(*num * [ask])
    return statuses


def test_long_bodies_wait_for_room_and_all_are_answered() -> None:
    """Ten of 10 MB where 16 MB may be taken at a time; none is refused."""
    with Rig(limit_bytes=16 << 20, no_progress_timeout_s=PATIENCE_S) as rig:
        assert ask_together(rig, b"x" * (10 << 20), 10) == [200] * 10


def test_long_bodies_that_take_more_count_while_they_wait_for_each_other() -> None:
    """Three of 1 MB that each take all the room there is get it one after the other."""
    calls: list[HttpCall] = []
    counted: list[tuple[int, bool]] = []

    def parse(call: HttpCall) -> None:
        is_new = call not in calls
        calls.extend([call] * is_new)
        if is_new and len(calls) < 3:
            return
        num_ready = 0
        for each in calls if is_new else [call]:
            if each.take_room(10 << 20, is_all=True):
                num_ready += 1
                rig.loop.post(partial(echo, each))
        is_counted = rig.budget.used_bytes >= sum(len(each.message) for each in calls)
        counted.append((num_ready, is_counted))

    rig = Rig(parse, limit_bytes=8 << 20, no_progress_timeout_s=PATIENCE_S)
    with rig:
        assert ask_together(rig, b"x" * (1 << 20), 3) == [200] * 3
    assert counted == [(1, True)] * 3
    assert rig.budget.used_bytes == 0


def test_a_request_that_is_over_takes_no_room() -> None:
    """Nobody would give back what a handler asks for after its client has left."""
    is_over = threading.Event()
    taken: list[tuple[bool, int]] = []

    def ask_late(call: HttpCall) -> None:
        taken.append((call.take_room(1 << 20), rig.budget.used_bytes))
        is_over.set()

    def hold(call: HttpCall) -> None:
        call.on_cancel(lambda: rig.loop.post(lambda: ask_late(call)))
        client.socket.close()

    with Rig(hold) as rig, rig.client() as client:
        client.send(ONE)
        assert is_over.wait(PATIENCE_S)
    assert taken == [(True, 0)]


def test_a_drain_answers_what_was_asked_and_hangs_up() -> None:
    """Idle connections end soon, the others behind their answer."""
    rig = Rig(None, drain_grace_s=0.01)
    with rig, rig.client() as idle, rig.client() as busy:
        busy.send(ONE)
        drained: list[bool] = []

        def drain() -> None:
            deadline_s = rig.loop.clock.now() + PATIENCE_S
            drained.append(rig.transport.drain(deadline_s))

        drainer = threading.Thread(target=drain)
        wait_for(rig, 1)
        drainer.start()
        assert idle.read_all() == b""
        echo(rig.calls[0])
        assert b"Connection: close" in busy.read_all()
        drainer.join()
        assert drained == [True]


def begun_drain(rig: Rig) -> None:
    """Returns once the transport drains."""
    assert not rig.transport.drain(0.0)
    begun = threading.Event()
    rig.loop.post(begun.set)
    assert begun.wait(PATIENCE_S)


def test_a_request_on_its_way_when_a_drain_begins_is_answered() -> None:
    """Its client could not know, and learns it by the answer."""
    with Rig(drain_grace_s=PATIENCE_S) as rig, rig.client() as client:
        client.send(ONE)
        assert client.read_answer()[0] == 200
        begun_drain(rig)
        client.send(ONE)
        status, headers, _ = client.read_answer()
        assert (status, headers["connection"]) == (200, "close")
        assert client.read_all() == b""
        assert rig.transport.drain(rig.loop.clock.now() + PATIENCE_S)


def test_an_old_connection_ends_behind_an_answer_and_not_before_a_request() -> None:
    """A request that is on its way when it comes of age is answered."""
    rig = Rig(
        max_connection_age_s=1e-9, sweep_interval_s=0.01, no_progress_timeout_s=0.05
    )
    with rig, rig.client() as client, rig.client() as slow:
        slow.send(b"GET / HTT")
        assert slow.read_answer()[0] == 408  # so both were swept, and several times
        client.send(ONE)
        status, headers, _ = client.read_answer()
        assert (status, headers["connection"]) == (200, "close")
        assert client.read_all() == b""


@pytest.mark.parametrize(
    ("first", "age_s", "statuses"),
    [(ONE, 1e-9, [b"200"]), (BAD["no gzip"][0], 0.0, [b"400", b"408"])],
    ids=["old", "bad gzip"],
)
def test_half_a_request_behind_an_answer_that_ends_the_connection_does_not_keep_it(
    first: bytes, age_s: float, statuses: list[bytes]
) -> None:
    """Nothing more of it is waited for, or not for long."""
    half = post("Content-Length: 10\r\n", b"half")
    rig = Rig(
        max_connection_age_s=age_s, sweep_interval_s=0.01, no_progress_timeout_s=0.05
    )
    with rig:
        answers = rig.ask(first + half)
    assert [each[:3] for each in answers.split(b"HTTP/1.1 ")[1:]] == statuses


def test_half_a_request_when_a_drain_begins_is_read_and_answered() -> None:
    """Also behind another one, whose answer comes first."""
    with Rig(None, drain_grace_s=PATIENCE_S) as rig, rig.client() as client:
        client.send(ONE + ONE[:-1])
        wait_for(rig, 1)
        begun_drain(rig)
        echo(rig.calls[0])
        assert client.read_answer()[0] == 200
        client.send(ONE[-1:])
        wait_for(rig, 2)
        echo(rig.calls[1])
        assert client.read_answer()[0] == 200
        assert client.read_all() == b""


def wait_for(rig: Rig, num_calls: int) -> None:
    """Returns once a handler was given so many requests."""
    arrived = threading.Event()

    def look() -> None:
        if len(rig.calls) < num_calls:
            rig.loop.post(look)
        else:
            arrived.set()

    rig.loop.post(look)
    assert arrived.wait(PATIENCE_S)


def test_a_handler_that_raises_fails_its_request_only() -> None:
    """The answer is 500, without what was raised."""

    def broken(call: HttpCall) -> None:
        raise ValueError("a secret")

    with Rig(broken) as rig, rig.client() as client:
        client.send(ONE)
        status, _, body = client.read_answer()
        assert (status, body) == (500, b'{"error":"internal error"}')


def test_a_verb_that_is_not_taken_is_answered_with_those_that_are() -> None:
    """405, and the header that every such answer must have (RFC 9110, 15.5.6)."""

    def refuse(call: HttpCall) -> None:
        call.fail(verb_not_taken(call.path, call.verb, "GET, HEAD"))

    with Rig(refuse) as rig, rig.client() as client:
        client.send(ONE)
        status, headers, body = client.read_answer()
    assert (status, headers["allow"]) == (405, "GET, HEAD")
    assert json.loads(body) == {"error": "/a takes GET, HEAD, no POST"}


def test_heads_that_repeat_are_known() -> None:
    """Equal heads have the same answer, in whatever pieces they come."""
    with Rig() as rig, rig.client() as client:
        for data in (ONE, ONE + ONE, ONE[:30], ONE[30:] + ONE[:-1], ONE[-1:]):
            client.send(data)
        assert [client.read_answer()[2] for _ in range(5)] == [b"POST /a abc"] * 5


def test_answers_that_wait_for_their_turn_count() -> None:
    """Who asks for much at once is refused what there is no room for.

    Headers that answers have in any case, as those for pages of others, are there then, too.
    """
    large = bytes(8 << 20)

    def answer(call: HttpCall) -> None:
        call.more_headers = (("X-Any", call.path),)
        if call.path != "/0":
            call.respond(HttpReply((large,)))
        else:
            rig.calls.append(call)

    rig = Rig(answer, limit_bytes=32 << 20)
    with rig, rig.client() as client:
        client.send(b"".join(b"GET /%d HTTP/1.1\r\n\r\n" % i for i in range(8)))

        def begin() -> None:
            if rig.budget.used_bytes > 20 << 20:
                assert rig.budget.used_bytes <= rig.budget.limit_bytes
                echo(rig.calls[0])
            else:
                rig.loop.post(begin)

        rig.loop.post(begin)
        answers = [client.read_answer() for _ in range(8)]
        assert [each[1]["x-any"] for each in answers] == [f"/{i}" for i in range(8)]
        statuses = [each[0] for each in answers]
        assert statuses[:4] == [200] * 4
        assert set(statuses[4:]) == {429}
