"""One streamed request over HTTP/1.1, with the time of every event.

The standard library's client gives no time of arrival for the parts of a body, and a thread for each request in flight would
measure the interpreter; this is as much of RFC 9112 as a streaming server uses: a status line, headers, a body in chunks, of a
given length or until the connection closes, and server-sent events in it (html.spec.whatwg.org, Server-sent events).
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import urlsplit

from gpuwise.errors import InputError

LONGEST_LINE = 2**20
"""Bytes; a longer event is no token."""
MOST_BODY = 2**22
"""Bytes of a body that is read whole (a list of models, an error)."""
_SERVED = "give it like http://127.0.0.1:8000, as the server prints it"


@dataclass(frozen=True, slots=True)
class Address:
    """Address of a server; ``base`` is the path before ``/completions``, usually ``/v1``."""

    host: str
    port: int
    base: str
    tls: bool

    @property
    def url(self) -> str:
        """The address with scheme and port; IPv6 in brackets."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}{self.base}"


def parse_address(url: str) -> Address:
    """The address of ``http://127.0.0.1:8000`` or ``https://host/v1``. Raises InputError."""
    try:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        port, host = parts.port, parts.hostname
    except ValueError:
        raise InputError(f"{url!r} is not the address of a server", hint=_SERVED) from None
    bare = not any(c in url for c in ".:/") and url != "localhost"  # a word, not a place
    if bare or parts.scheme not in ("http", "https") or not host or any(c in url for c in "\r\n\t "):
        raise InputError(f"{url!r} is not the address of a server", hint=_SERVED)
    if parts.username or parts.password or parts.query or parts.fragment:
        raise InputError(f"{url!r} has more than host, port and path", hint=f"{_SERVED}; a key goes into GPUWISE_API_KEY")
    path = parts.path.rstrip("/")
    for end in ("/chat/completions", "/completions"):
        path = path.removesuffix(end)
    tls = parts.scheme == "https"
    return Address(host, port or (443 if tls else 80), path or "/v1", tls)


class HttpError(Exception):
    """The server answered with an error status; ``said`` is its message, ``retry_after_s`` the requested wait (the header
    Retry-After in seconds), if any."""

    def __init__(self, status: int, said: str, retry_after_s: float | None = None) -> None:
        self.status, self.said, self.retry_after_s = status, said, retry_after_s
        super().__init__(f"{status} {said}".strip())


class BrokenStreamError(Exception):
    """The answer ended before its end, or is no HTTP."""


async def get_json(address: Address, path: str, headers: Mapping[str, str]) -> Any:
    """The JSON document at ``base + path``. Raises HttpError, BrokenStreamError, OSError."""
    async with Connection(address) as connection:
        await connection.send("GET", address.base + path, headers, b"")
        return _document(await connection.body())


async def stream_events(
    address: Address, path: str, headers: Mapping[str, str], document: Mapping[str, Any]
) -> AsyncGenerator[dict[str, Any] | None, None]:
    """The events of a streamed answer as they come, None for the last one: ``[DONE]``, or the end of a body whose last events
    name the reason of the finish (``transformers serve``). Raises HttpError on a status that is no success, BrokenStreamError
    where the stream ends inside an event or without its end, OSError where the connection fails."""
    async with Connection(address) as connection:
        body = json.dumps(document).encode()
        await connection.send("POST", address.base + path, {"Content-Type": "application/json", **headers}, body)
        data, finished = list[str](), False
        async for line in connection.lines():
            if line.startswith("data:"):
                data.append(line[5:].lstrip(" "))
            elif not line and data:
                words, data = "\n".join(data), []
                if words.strip() == "[DONE]":
                    yield None
                    return
                event = _event(words)
                finished = finished or _names_finish(event)
                yield event
        if data:
            raise BrokenStreamError("the stream ended inside an event")
        if finished:
            yield None
            return
        raise BrokenStreamError("the stream ended without [DONE]")


def as_object(value: Any) -> dict[str, Any]:
    """``value`` where it is a JSON object, else an empty one."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _event(words: str) -> dict[str, Any]:
    document = _document(words.encode())
    if not isinstance(document, dict):
        raise BrokenStreamError("an event is not a JSON object")
    event = as_object(document)
    if "error" in event:
        code = as_object(event["error"]).get("code")
        raise HttpError(code if isinstance(code, int) else 500, _error_text(words.encode()))
    return event


def _names_finish(event: Mapping[str, Any]) -> bool:
    choices = event.get("choices")
    return isinstance(choices, list) and any(as_object(c).get("finish_reason") for c in cast("list[Any]", choices))


def _document(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise BrokenStreamError("half an event, or not JSON") from None


def _error_text(body: bytes) -> str:
    """Text of an error response, in one short line."""
    try:
        document: Any = json.loads(body)
        error = as_object(document).get("error", as_object(document).get("detail", document))
        words = as_object(error).get("message", error)
    except (ValueError, RecursionError):
        words = body.decode("utf-8", "replace")
    return " ".join(str(words).split())[:200]


class Connection:
    """One connection, one request; an asynchronous context manager that closes it."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._headers: dict[str, str] = {}

    async def __aenter__(self) -> Connection:
        context = ssl.create_default_context() if self.address.tls else None
        opened = await asyncio.open_connection(self.address.host, self.address.port, ssl=context, limit=LONGEST_LINE)
        self._reader, self._writer = opened
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()

    async def send(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> None:
        """Send the request and read the answer's head. Raises HttpError on a status that is no success."""
        lines = [
            f"{method} {path} HTTP/1.1",
            f"Host: {self.address.host}:{self.address.port}",
            "Connection: close",
            "Accept: text/event-stream, application/json",
            f"Content-Length: {len(body)}",
            *(f"{name}: {value}" for name, value in headers.items()),
        ]
        self._writer.write("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body)
        await self._writer.drain()
        status = await self._head()
        if not 200 <= status < 300:
            after = self._headers.get("retry-after", "")
            raise HttpError(status, _error_text(await self.body()), float(after) if after.isdigit() else None)

    async def _head(self) -> int:
        while True:
            words = (await self._line()).split(None, 2)
            if len(words) < 2 or not words[0].startswith("HTTP/1.") or not words[1].isdigit():
                raise BrokenStreamError("the answer is not HTTP/1.1" if words else "the connection closed without an answer")
            while line := await self._line():
                name, _, value = line.partition(":")
                self._headers[name.strip().lower()] = value.strip()
            if not words[1].startswith("1"):  # 100 Continue goes before the answer
                return int(words[1])

    async def _line(self) -> str:
        try:
            return (await self._reader.readline()).decode("utf-8", "replace").rstrip("\r\n")
        except ValueError:
            raise BrokenStreamError(f"a line of more than {LONGEST_LINE:,} bytes") from None

    async def body(self) -> bytes:
        """The whole body, or the first part of a very long one."""
        data = bytearray()
        async for part in self._parts():
            data += part
            if len(data) > MOST_BODY:
                break
        return bytes(data)

    async def lines(self) -> AsyncIterator[str]:
        """The body's lines as they become whole; a last one without its end is no line."""
        rest = b""
        async for part in self._parts():
            *whole, rest = (rest + part).split(b"\n")
            for line in whole:
                yield line.decode("utf-8", "replace").rstrip("\r")
            if len(rest) > LONGEST_LINE:
                raise BrokenStreamError(f"an event of more than {LONGEST_LINE:,} bytes")
        if rest.strip():
            raise BrokenStreamError("the stream ended inside an event")

    async def _parts(self) -> AsyncIterator[bytes]:
        """The body as it arrives. Raises BrokenStreamError where it ends before its end."""
        if "chunked" in self._headers.get("transfer-encoding", "").lower():
            async for part in self._chunks():
                yield part
            return
        length = self._headers.get("content-length")
        n_left = int(length) if length is not None and length.isdigit() else None
        while n_left is None or n_left > 0:
            part = await self._reader.read(65536 if n_left is None else min(n_left, 65536))
            if not part:
                if n_left:
                    raise BrokenStreamError(f"the connection closed {n_left:,} bytes before the answer's end")
                return
            n_left = None if n_left is None else n_left - len(part)
            yield part

    async def _chunks(self) -> AsyncIterator[bytes]:
        while True:
            words = await self._line()
            try:
                size = int(words.partition(";")[0], 16)
            except ValueError:
                raise BrokenStreamError(
                    "the connection closed inside the answer" if not words else "a chunk has no size"
                ) from None
            if not 0 <= size <= MOST_BODY:
                raise BrokenStreamError(f"a chunk of {size:,} bytes")
            if size == 0:
                return
            try:
                yield await self._reader.readexactly(size)
                await self._reader.readexactly(2)
            except asyncio.IncompleteReadError:
                raise BrokenStreamError("the connection closed inside the answer") from None
