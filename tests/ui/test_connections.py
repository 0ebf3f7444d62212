# pyright: reportMissingImports=false
"""Requests that never arrive whole, bodies whose length is given in several ways, and answers on a kept connection."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from tests.ui.serving import Running

from gpuwise.ui.guard import MOST_AT_ONCE, MOST_BODY, Guard

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from gpuwise.ui import connections, server

TOKEN = "token-of-this-test"


@contextlib.contextmanager
def served(hold: threading.Event | None = None) -> Iterator[tuple[Any, int]]:
    """A server in a thread of this process, and its port; its answers are the lengths of the bodies, once ``hold`` is set."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        import asyncio

        if scope["type"] == "lifespan":
            for kind in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{kind}.complete"})
            return
        body = (await receive())["body"]
        while hold is not None and not hold.is_set():
            await asyncio.sleep(0.01)
        text = str(len(body)).encode()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", str(len(text)).encode())]})
        await send({"type": "http.response.body", "body": text})

    listening = server.bind("127.0.0.1", 0)
    started = threading.Event()
    running = server.server_of(Guard(app, server.hosts_of(listening), TOKEN), started.set)
    thread = threading.Thread(target=running.run, args=([listening],))
    thread.start()
    try:
        assert started.wait(60)
        yield running, listening.getsockname()[1]
    finally:
        running.should_exit = True
        thread.join()
        listening.close()


def head(port: int, *lines: str, method: str = "POST", cookie: str = TOKEN) -> bytes:
    """The head of a request that a page of the server may send, without its end."""
    usual = (
        f"{method} / HTTP/1.1",
        f"Host: 127.0.0.1:{port}",
        f"Cookie: gpuwise-{port}={cookie}",
        f"Origin: http://127.0.0.1:{port}",
        "Content-Type: application/json",
    )
    return "\r\n".join((*usual, *lines)).encode()


def connect(port: int, content: bytes = b"") -> socket.socket:
    opened = socket.create_connection(("127.0.0.1", port), timeout=60)
    opened.sendall(content)
    return opened


def status(port: int, content: bytes) -> int:
    """Of the answer to ``content`` on a connection of its own."""
    with connect(port, content) as opened:
        return int(opened.recv(65536).split()[1])


def test_answers_on_a_kept_connection_are_sent_at_once() -> None:
    """Without TCP_NODELAY every answer after the first waits for the acknowledgement of its head, 40 ms and more."""
    with served() as (running, port):
        kept = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        for _ in range(2):
            kept.request("GET", "/", headers={"Cookie": f"gpuwise-{port}={TOKEN}"})
            assert kept.getresponse().read() == b"0"
        assert len(running.server_state.connections) == 1
        for one in running.server_state.connections:
            accepted = one.transport.get_extra_info("socket")
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        kept.close()


HALVES = {
    "nothing": lambda port: b"",
    "half a line": lambda port: b"GET / HT",
    "half a head": lambda port: head(port, method="GET"),
    "no body": lambda port: head(port, "Content-Length: 100", "", ""),
    "half a body": lambda port: head(port, "Content-Length: 100", "", "{"),
}


@pytest.mark.parametrize("half", HALVES)
def test_half_sent_requests_keep_nobody_from_being_answered(half: str, server: Running) -> None:
    """With and without the token: 64 of them were answered 503 to everybody, as long as they stayed."""
    content = HALVES[half](server.port).replace(TOKEN.encode(), server.token.encode())
    with contextlib.ExitStack() as opened:
        for _ in range(2 * MOST_AT_ONCE):
            opened.enter_context(connect(server.port, content))
        assert server.get("/api/state").status == 200
        for _ in range(connections.MOST_OPEN):
            opened.enter_context(connect(server.port, content))
        assert server.get("/api/state").status == 200


@pytest.mark.parametrize("half", HALVES)
def test_a_request_that_does_not_arrive_whole_in_time_is_dropped(half: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "REQUEST_S", 0.05)
    with served() as (_, port), connect(port, HALVES[half](port)) as opened, contextlib.suppress(ConnectionResetError):
        assert opened.recv(1) == b""


def test_a_body_sent_after_its_answer_ends_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that was refused may go on sending, without a token too."""
    monkeypatch.setattr(connections, "REQUEST_S", 0.05)
    for cookie in (TOKEN, "x"):
        with served() as (_, port), connect(port, head(port, "Transfer-Encoding: chunked", "", "", cookie=cookie)) as opened:
            assert opened.recv(65536).split()[1] in (b"401", b"413")
            with contextlib.suppress(ConnectionResetError):
                while opened.recv(65536):
                    pass


def test_a_long_answer_is_not_cut_by_the_limit_of_its_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "REQUEST_S", 0.05)
    hold = threading.Event()
    with served(hold) as (_, port), connect(port, head(port, "", "", method="GET")) as opened:
        threading.Timer(0.3, hold.set).start()
        assert opened.recv(65536).split()[1] == b"200"


def test_more_requests_than_are_answered_at_once_are_refused_in_words() -> None:
    hold = threading.Event()
    with served(hold) as (_, port), contextlib.ExitStack() as opened:
        asked = [opened.enter_context(connect(port, head(port, "", "", method="GET"))) for _ in range(MOST_AT_ONCE)]
        last = opened.enter_context(connect(port, head(port, "", "", method="GET")))
        assert last.recv(65536).split()[1] == b"503"
        hold.set()
        assert {one.recv(65536).split()[1] for one in asked} == {b"200"}


BODIES = {
    "length and chunks": (400, ("Content-Length: 2", "Transfer-Encoding: chunked"), b"2\r\n{}\r\n0\r\n\r\n"),
    "chunks and length": (400, ("Transfer-Encoding: chunked", "Content-Length: 2"), b"2\r\n{}\r\n0\r\n\r\n"),
    "chunks": (413, ("Transfer-Encoding: chunked",), b"11170\r\n" + b"x" * 0x11170 + b"\r\n0\r\n\r\n"),
    "few chunks": (413, ("Transfer-Encoding: chunked",), b"2\r\n{}\r\n0\r\n\r\n"),
    "negative": (400, ("Content-Length: -1",), b"{}"),
    "signed": (400, ("Content-Length: +2",), b"{}"),
    "not a number": (400, ("Content-Length: 2x",), b"{}"),
    "two lengths": (400, ("Content-Length: 2", "Content-Length: 3"), b"{}x"),
    "a list of lengths": (400, ("Content-Length: 2, 3",), b"{}x"),
    "none": (413, (), b""),
    "too long": (413, (f"Content-Length: {MOST_BODY + 1}",), b""),
    "too long behind zeros": (413, (f"Content-Length: {10**6:019}",), b""),
    "the longest": (200, (f"Content-Length: {MOST_BODY}",), b"x" * MOST_BODY),
    "short": (200, ("Content-Length: 2",), b"{}"),
}


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("case", BODIES)
def test_a_body_has_one_length_which_is_within_the_limit(case: str, method: str) -> None:
    expected, lines, body = BODIES[case]
    if case == "none" and method == "GET":
        expected = 200
    with served() as (_, port):
        content = head(port, *lines, "", "", method=method) + body
        assert status(port, content) == expected
        assert status(port, head(port, "Content-Length: 2", "", "") + b"{}") == 200  # and goes on


def test_a_longer_body_than_its_length_is_another_request() -> None:
    """What follows the length that was given reaches no question."""
    with served() as (_, port), connect(port, head(port, "Content-Length: 2", "", "") + b"{}" + b"x" * MOST_BODY) as opened:
        opened.settimeout(60)
        assert opened.recv(65536).split()[1] == b"200"
