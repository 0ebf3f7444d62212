"""A server that speaks OpenAI's streaming interface with planted latencies and planted faults: what a load test is tested on.

>>> with MockServer(Answering(first_s=0.01, token_s=0.001)) as server:  # doctest: +SKIP
...     print(server.url)
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

FAULTS = ("", "refuse", "error", "stall", "stall inside", "half event", "cut", "drop", "no end", "error event", "garbage", "die")
"""How an answer goes wrong: not at all; status 429; status 500; no token ever; silence after two tokens; the connection closed in
an event; closed between events; closed before an answer; an end without ``[DONE]``; an error as an event; no HTTP at all; the
whole server gone."""

TRANSFORMERS_FIELDS = {"model", "prompt", "messages", "max_tokens", "temperature", "stream", "stream_options"}
"""Of those that a load test posts, what ``transformers serve`` takes."""


@dataclass(frozen=True, slots=True)
class Answering:
    """Seconds to the first token and between two, for each request alike; ``slots`` answers at once (0: any), others wait."""

    first_s: float = 0.02
    token_s: float = 0.004
    slots: int = 0
    fault: Callable[[int], str] = field(default=lambda request: "")
    """The fault of the n-th completion asked for, counted from 0, those that probe the server included."""
    chat_only: bool = False
    transformers: bool = False
    """Speaks as ``transformers serve`` 5.17 pinned to one model does: no list of models, unknown fields refused with 422, another
    model's name with 400, the reason of the finish and the usage in one last event, and no ``[DONE]``."""
    most_tokens: int | None = None
    """The model ends its answers after so many, however many are asked for."""
    tokens_per_word: float = 1.0
    """How the server counts a prompt of words."""


class MockServer:
    """Listens on the loopback while the context is open, in a thread of its own."""

    def __init__(self, answering: Answering | None = None, model: str = "mock") -> None:
        self.answering = answering or Answering()
        self.model = model
        self.prompts: list[str] = []
        """Of all completions asked for, in order."""
        self.asked_s: list[float] = []
        """When each was asked for (``time.perf_counter``), and ``written_s`` when each of its tokens was written."""
        self.written_s: list[list[float]] = []
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait(10.0)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(10.0)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def _serve(self) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        self._slots = asyncio.Semaphore(self.answering.slots or 10**6)
        self._clients = set[asyncio.Task[Any]]()
        server = await asyncio.start_server(self._client, "127.0.0.1", 0)
        self.port = int(server.sockets[0].getsockname()[1])
        self._ready.set()
        await self._over.wait()
        server.close()
        for task in list(self._clients):
            task.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._clients.add(task)
        try:
            await self._answer(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client went away
        finally:
            self._clients.discard(task)
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, path, _ = head[0].split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        if method == "GET" and path == "/v1/models" and self.answering.transformers:
            _whole(writer, 500, {"error": {"message": "Internal Server Error"}})
        elif method == "GET" and path == "/v1/models":
            _whole(writer, 200, {"object": "list", "data": [{"id": self.model, "object": "model"}]})
        elif method == "POST" and path in self._paths():
            await self._complete(writer, json.loads(body), chat="chat" in path)
        else:
            _whole(writer, 404, {"error": {"message": f"no {path} here", "code": 404}})
        await writer.drain()

    def _paths(self) -> tuple[str, ...]:
        return ("/v1/chat/completions",) if self.answering.chat_only else ("/v1/completions", "/v1/chat/completions")

    async def _complete(self, writer: asyncio.StreamWriter, asked: dict[str, Any], *, chat: bool) -> None:
        if self.answering.transformers:
            unknown = set(asked) - TRANSFORMERS_FIELDS
            if unknown:
                return _whole(writer, 422, {"detail": f"Unexpected fields in the request: {unknown}"})
            if asked["model"] != self.model:
                return _whole(writer, 400, {"detail": f"Server is pinned to '{self.model}'; requested '{asked['model']}'."})
        if asked["model"] != self.model:
            return _whole(writer, 404, {"error": {"message": f"The model `{asked['model']}` does not exist.", "code": 404}})
        prompt = str(asked["messages"][0]["content"] if chat else asked["prompt"])
        fault = self.answering.fault(len(self.prompts))
        self.prompts.append(prompt)
        self.asked_s.append(time.perf_counter())
        written: list[float] = []
        self.written_s.append(written)
        if fault == "refuse":
            return _whole(writer, 429, {"error": {"message": "too many requests", "code": 429}})
        if fault == "error":
            return _whole(writer, 500, {"error": {"message": "out of memory", "code": 500}})
        if fault == "drop":
            return None
        if fault == "die":
            return self._over.set()
        if fault == "garbage":
            return writer.write(b"hello, who is there?\r\n\r\n")
        async with self._slots:
            most = self.answering.most_tokens or int(asked["max_tokens"])
            await self._stream(writer, min(int(asked["max_tokens"]), most), len(prompt.split()), fault, written, chat=chat)
        return None

    async def _stream(
        self, writer: asyncio.StreamWriter, tokens: int, words: int, fault: str, written: list[float], *, chat: bool
    ) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        clock = self._loop.time
        due = clock() + self.answering.first_s
        if fault == "stall":
            await self._over.wait()
        for n in range(tokens):
            if fault == "stall inside" and n == 2:
                await self._over.wait()
            await asyncio.sleep(max(due - clock(), 0.0))
            due += self.answering.token_s
            text: dict[str, Any] = {"delta": {"content": "a "}} if chat else {"text": "a "}
            event = _event({"choices": [{"index": 0, **text}]})
            if n == 2 and fault == "half event":
                _chunk(writer, event[: len(event) // 2])
                return
            if n == 2 and fault == "cut":
                return
            if n == 2 and fault == "error event":
                _chunk(writer, _event({"error": {"message": "the engine died", "code": 500}}))
                return
            written.append(time.perf_counter())
            _chunk(writer, event)
            await writer.drain()
        counted = round(words * self.answering.tokens_per_word) + 1
        usage = {"prompt_tokens": counted, "completion_tokens": tokens}
        if self.answering.transformers:
            text = {"delta": {}} if chat else {"text": ""}
            _chunk(writer, _event({"choices": [{"finish_reason": "length", "index": 0, **text}], "usage": usage}))
        else:
            _chunk(writer, _event({"choices": [], "usage": usage}))
        if fault != "no end" and not self.answering.transformers:
            _chunk(writer, b"data: [DONE]\n\n")
        writer.write(b"0\r\n\r\n")


def _event(document: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(document)}\n\n".encode()


def _chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")


def _whole(writer: asyncio.StreamWriter, status: int, document: dict[str, Any]) -> None:
    body = json.dumps(document).encode()
    head = f"HTTP/1.1 {status} -\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
