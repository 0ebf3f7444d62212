"""Access control before any other code: Host, token, Origin and content type of every request, as plain ASGI.

Around the whole application, over HTTP and websockets alike (there is no websocket here, and none is accepted). A page of
another site can make this browser send requests, and with DNS rebinding give them this machine's address under its own
name; it can neither set Host nor Origin to ours, nor read the token.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any
from urllib.parse import parse_qs

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; form-action 'none'; "
    "frame-ancestors 'none'; base-uri 'none'"
)
HEADERS = (
    (b"content-security-policy", CSP.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
READING = ("GET", "HEAD")
"""Methods that change nothing, here as everywhere."""
MOST_BODY = 65_536
"""Bytes of a request's body: a question is a few hundred."""
MOST_AT_ONCE = 64
"""Requests that are answered at once; only those that have arrived whole count."""

TOO_LONG = (413, f"the body must be of known length and at most {MOST_BODY:,} bytes", "a question is much shorter")


class Guard:
    """Passes a request to ``app`` if it names one of ``hosts`` (with port) and has ``token``: once in the printed address,
    then as a cookie that other sites cannot send."""

    def __init__(self, app: App, hosts: Iterable[str], token: str) -> None:
        self._app, self._token = app, token
        self._hosts = frozenset(host.lower() for host in hosts)
        self._answering = 0
        port = min(self._hosts).rpartition(":")[2]
        self.cookie = f"gpuwise-{port}"
        """Cookies know no ports: each of two runs on this machine has its own."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await self._http(scope, receive, send)
        else:
            await receive()
            await send({"type": "websocket.close", "code": 1008})

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = _headers(scope)
        tokens = parse_qs(scope["query_string"].decode("latin-1")).get("token")
        refusal = self._refusal(scope["method"], headers, tokens)
        if refusal is not None:
            status, error, hint = refusal
            await answer(send, status, error, hint, page=not scope["path"].startswith("/api/"))
            return
        fresh = b"" if tokens is None else f"{self.cookie}={self._token}; Path=/; HttpOnly; SameSite=Strict".encode()

        async def secured(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                more = [(b"set-cookie", fresh)] if fresh else []
                message["headers"] = [*message.get("headers", ()), *HEADERS, *more]
            await send(message)

        body = bytearray()
        while (part := await receive())["type"] == "http.request":
            body += part.get("body", b"")
            if not part.get("more_body") or len(body) > MOST_BODY:
                break
        else:
            return  # the client has left
        if len(body) > MOST_BODY:
            await answer(send, *TOO_LONG, page=False)
            return
        if self._answering >= MOST_AT_ONCE:
            error, hint = f"{MOST_AT_ONCE} requests are answered already", "close some pages of this run, and ask again"
            await answer(send, 503, error, hint, page=not scope["path"].startswith("/api/"))
            return
        self._answering += 1
        try:
            await self._app(scope, _replay(bytes(body), receive), secured)
        finally:
            self._answering -= 1

    def _refusal(self, method: str, headers: dict[str, list[str]], tokens: list[str] | None) -> tuple[int, str, str] | None:
        """Status, what is wrong and what to do; None for a request that may pass."""
        hosts = headers.get("host", [])
        if len(hosts) != 1 or hosts[0].lower() not in self._hosts:
            return 403, "this server does not answer under that name", f"open http://{min(self._hosts)}"
        if "upgrade" in headers:
            return 403, "there is no websocket here", "live figures come as server-sent events"
        if tokens is not None:
            if len(tokens) != 1 or not _same(tokens[0], self._token):
                return 403, "the token is not that of this run", "open the address that `gpuwise ui` printed when it started"
        elif not any(_same(value, self._token) for value in _cookies(headers, self.cookie)):
            return 401, "this browser has not opened this run yet", "open the address that `gpuwise ui` printed when it started"
        wrong = _framing(headers)
        if wrong is not None or method in READING:
            return wrong
        if method != "POST":
            return 405, f"nothing here is done by {method[:20]}", "pages are read with GET"
        return self._changing(headers)

    def _changing(self, headers: dict[str, list[str]]) -> tuple[int, str, str] | None:
        """The rules of a request that does something: it must come from a page of ours, and say so."""
        origins = headers.get("origin", [])
        if len(origins) != 1 or origins[0].lower().removeprefix("http://") not in self._hosts:
            return 403, "the request comes from another page", "use the buttons of this one"
        if headers.get("sec-fetch-site", ["same-origin"]) != ["same-origin"]:
            return 403, "the request comes from another site", "use the buttons of this page"
        if headers.get("content-type", [""])[0].partition(";")[0].strip().lower() != "application/json":
            return 415, "the body must be JSON", "send it as application/json"
        return None if "content-length" in headers else TOO_LONG


async def answer(send: Send, status: int, error: str, hint: str, *, page: bool) -> None:
    """A refusal in plain words: text for a person, a document for a program."""
    text = f"error: {error}\nhint: {hint}\n" if page else json.dumps({"error": error, "hint": hint})
    kind = b"text/plain; charset=utf-8" if page else b"application/json"
    body = text.encode()
    headers = [(b"content-type", kind), (b"content-length", str(len(body)).encode()), (b"cache-control", b"no-store"), *HEADERS]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _framing(headers: dict[str, list[str]]) -> tuple[int, str, str] | None:
    """The rules of a body: one length, which it has, and no second way to find its end (request smuggling)."""
    lengths, encodings = headers.get("content-length", []), headers.get("transfer-encoding", [])
    if len(lengths) > 1 or (lengths and encodings):
        return 400, "the length of the body is given twice", "send Content-Length alone"
    if encodings:
        return TOO_LONG
    length = "".join(lengths) or "0"
    if not length.isascii() or not length.isdigit():
        return 400, "Content-Length is not a number", "send the number of bytes of the body"
    return TOO_LONG if len(length) > len(str(MOST_BODY)) or int(length) > MOST_BODY else None


def _replay(body: bytes, receive: Receive) -> Receive:
    """``receive`` with ``body``, which has been read from it, first."""
    read = False

    async def again() -> MutableMapping[str, Any]:
        nonlocal read
        if read:
            return await receive()
        read = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


def _headers(scope: Scope) -> dict[str, list[str]]:
    headers: dict[str, list[str]] = {}
    for name, value in scope["headers"]:
        headers.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
    return headers


def _cookies(headers: dict[str, list[str]], name: str) -> list[str]:
    pairs = (part.strip().partition("=") for line in headers.get("cookie", []) for part in line.split(";"))
    return [value for key, _, value in pairs if key == name]


def _same(text: str, token: str) -> bool:
    """Compared in constant time."""
    return hmac.compare_digest(text.encode("utf-8", "replace"), token.encode())
