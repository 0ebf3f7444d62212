"""A load sent to a server: requests at their times, bounded in time, number and requests in flight.

Measurements are never discarded. A failed request keeps its times, and the run ends early only if the server has stopped:
:data:`GONE` refused connections in a row.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from gpuwise.errors import GpuwiseError, InputError
from gpuwise.serve.load.requests import ClosedLoop, Requests
from gpuwise.serve.measure.http import Address, BrokenStreamError, HttpError, as_object, get_json, stream_events
from gpuwise.serve.measure.prompts import Prompts

GONE = 5
"""Connections refused in a row that end a run."""
PROBE_WORDS = (64, 192)
"""Words of the two prompts that measure the tokenizer."""
PROBE_S = 60.0
RETRY_S = 0.5
BUSY = (429, 503)
BAD_FIELDS = (400, 422)
"""Statuses of a server that refuses a request for a field it does not know."""
NO_MODEL = (400, 404)
"""Statuses of a server that lacks a model."""
EXTRAS: dict[str, Any] = {"stream_options": {"include_usage": True}, "ignore_eos": True}
"""Request fields used if a server accepts them: its own token counts, and answers of the requested length (vLLM, SGLang,
llama.cpp)."""
"""Statuses of a server that has no room for now."""
REFUSED, SERVER_ERROR, CLIENT_ERROR = "refused", "server error", "bad request"
STALLED, CUT, CONNECTION, UNFINISHED, NOT_SENT = "stalled", "cut", "connection", "unfinished", "not sent"
FAILURES = {
    REFUSED: "refused by the server (429 or 503)",
    SERVER_ERROR: "answered with an error of the server (5xx)",
    CLIENT_ERROR: "answered with an error of the request (4xx)",
    STALLED: "stalled: no token for longer than allowed",
    CUT: "cut off inside the answer",
    CONNECTION: "lost their connection",
    UNFINISHED: "still running when the time was over",
    NOT_SENT: "never sent",
}
"""Kinds of failure, and what became of such requests."""


class ServerError(GpuwiseError):
    """The server cannot be measured at all: it does not answer, or not as an OpenAI-compatible server."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """How far a measurement goes."""

    seconds: float = 60.0
    """Seconds of sending; answers get ``stall_s`` more to finish."""
    in_flight: int = 512
    stall_s: float = 30.0
    """Maximum wait for a first token or between two."""
    retries: int = 0
    """How often a request that is refused (429 or 503) is sent again: after as long as the server asks, else after half a second,
    doubled each time. Its first token is counted from when it was due."""


@dataclass(slots=True)
class Answer:
    """One request as the client saw it; seconds since the run began. ``failure`` is a key of :data:`FAILURES`, None for a whole
    answer."""

    due_s: float
    sent_s: float | None = None
    token_s: list[float] = field(default_factory=list[float])
    """When each event with text came."""
    finish_s: float | None = None
    prompt_tokens: int | None = None
    """Token count from the server; None without one."""
    output_tokens: int | None = None
    failure: str | None = NOT_SENT
    status: int | None = None
    said: str = ""
    retries: int = 0
    """How often it was sent again."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """All answers, in the order of their requests. ``stopped`` is the reason for an early end; empty without one."""

    url: str
    model: str
    requests: Requests
    answers: tuple[Answer, ...]
    seconds: float
    stopped: str
    tokens_per_word: float
    path: str = "/completions"
    """``/completions`` or ``/chat/completions``."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Server to query, and how it counts tokens."""

    address: Address
    model: str
    path: str
    """``/completions``, or ``/chat/completions`` where the server has only that."""
    headers: Mapping[str, str]
    tokens_per_word: float
    extra_tokens: float
    extras: Mapping[str, Any]
    """Those of :data:`EXTRAS` that the server accepts."""


def measure(
    address: Address,
    requests: Requests,
    *,
    model: str | None = None,
    key: str | None = None,
    bounds: Bounds | None = None,
    closed: ClosedLoop | None = None,
    seed: int = 0,
    progress: Callable[[str], None] = lambda words: None,
) -> Measurement:
    """Send ``requests`` and return what came back, also when the person interrupts. Raises ServerError when nothing can be
    measured, InputError for a model the server does not have."""
    limits = bounds or Bounds()
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    endpoint = asyncio.run(_endpoint(address, model, headers))
    run = _Run(endpoint, requests, limits, closed, seed, progress)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(run.go())
    return run.result()


async def _endpoint(address: Address, model: str | None, headers: Mapping[str, str]) -> Endpoint:
    """Ask for the model, find the path, and measure tokens a word: two prompts of different lengths."""
    try:
        async with asyncio.timeout(PROBE_S):
            name, others = await _model(address, model, headers)
            try:
                return await _probed(address, name, headers)
            except HttpError as error:
                if name in others or not others or error.status not in NO_MODEL:
                    raise
                raise InputError(f"the server has no model {name!r}", hint="it has " + ", ".join(others[:8])) from None
    except TimeoutError:
        raise ServerError(f"{address.url} did not answer within {PROBE_S:.0f} s", hint="is it still loading the model?") from None
    except OSError as error:
        raise ServerError(
            f"nothing answers at {address.url}: {error.strerror or error}", hint="start the server, then measure it"
        ) from None
    except BrokenStreamError as error:
        raise ServerError(f"{address.url} does not speak OpenAI's interface: {error}", hint="give the address of /v1") from None
    except HttpError as error:
        raise ServerError(f"{address.url} answered {error.status}: {error.said}", hint=_status_hint(error.status)) from None


def _status_hint(status: int) -> str:
    if status in (401, 403):
        return "put its key into the environment variable GPUWISE_API_KEY"
    return "try again when it is ready" if status in BUSY else "does the server have /v1/completions?"


async def _model(address: Address, wanted: str | None, headers: Mapping[str, str]) -> tuple[str, list[str]]:
    """The model to request, and those that the server lists. A missing list, or one without the named model, is not an error:
    ``transformers serve`` lists a local folder, not the models it serves."""
    try:
        listed = await get_json(address, "/models", headers)
    except HttpError as error:
        if wanted is not None and (error.status == 404 or error.status >= 500) and error.status not in BUSY:
            return wanted, []
        if error.status >= 500 and error.status not in BUSY:
            raise ServerError(
                f"{address.url}/models answered {error.status}: {error.said}", hint="name the model with --served-model"
            ) from None
        raise
    names = [str(row["id"]) for row in map(as_object, _rows(as_object(listed).get("data"))) if row.get("id")]
    if wanted is None and not names:
        raise ServerError(f"{address.url}/models lists no model", hint="name it with --served-model")
    return wanted or names[0], names


async def _probed(address: Address, model: str, headers: Mapping[str, str]) -> Endpoint:
    for path in ("/completions", "/chat/completions"):
        counts: list[int] = []
        extras = dict(EXTRAS)
        try:
            for words in PROBE_WORDS:
                requests = Requests(np.zeros(1), np.array([words], np.int64), np.ones(1, np.int64))
                prompt = Prompts(requests, 1.0, seed=words).prompt(0)
                counted = await _counted(address, path, headers, _body(model, path, prompt, 1), extras)
                if counted is not None:
                    counts.append(counted)
        except HttpError as error:
            if error.status in (404, 405) and path == "/completions":
                continue
            raise
        if len(counts) < len(PROBE_WORDS) or counts[1] <= counts[0]:
            return Endpoint(address, model, path, headers, 1.0, 0.0, extras)
        each = (counts[1] - counts[0]) / (PROBE_WORDS[1] - PROBE_WORDS[0])
        return Endpoint(address, model, path, headers, each, max(counts[0] - each * PROBE_WORDS[0], 0.0), extras)
    raise HttpError(404, "neither /completions nor /chat/completions")


async def _counted(
    address: Address, path: str, headers: Mapping[str, str], body: Mapping[str, Any], extras: dict[str, Any]
) -> int | None:
    """Tokens of a prompt as the server counts them, None if it does not report them. A field of ``extras`` named in the
    server's refusal is removed."""
    while True:
        try:
            async for event in stream_events(address, path, headers, {**body, **extras}):
                counted = _count(as_object((event or {}).get("usage")).get("prompt_tokens"))
                if counted is not None:
                    return counted
            return None
        except HttpError as error:
            unknown = [name for name in extras if name in error.said]
            if error.status not in BAD_FIELDS or not unknown:
                raise
            for name in unknown:
                del extras[name]


def _body(model: str, path: str, prompt: str, tokens: int) -> dict[str, Any]:
    """Request body, without :data:`EXTRAS`."""
    asked: dict[str, Any] = {"messages": [{"role": "user", "content": prompt}]} if "chat" in path else {"prompt": prompt}
    return {"model": model, **asked, "max_tokens": tokens, "temperature": 0.0, "stream": True}


class _Run:
    """One run of a load: its clock, its answers, and when to stop."""

    def __init__(
        self,
        endpoint: Endpoint,
        requests: Requests,
        bounds: Bounds,
        closed: ClosedLoop | None,
        seed: int,
        progress: Callable[[str], None],
    ) -> None:
        self.endpoint, self.requests, self.bounds, self.closed, self.progress = endpoint, requests, bounds, closed, progress
        self.prompts = Prompts(requests, endpoint.tokens_per_word, seed, endpoint.extra_tokens)
        due = requests.arrival_s - (requests.arrival_s[0] if len(requests) else 0.0)
        self.answers = [Answer(float(t)) for t in due]
        self.begun = time.perf_counter()
        self.refusals = 0
        self.done = 0
        self.stopped = "interrupted"
        self.over = asyncio.Event()

    def now(self) -> float:
        return time.perf_counter() - self.begun

    def result(self) -> Measurement:
        e = self.endpoint
        return Measurement(
            e.address.url, e.model, self.requests, tuple(self.answers), self.now(), self.stopped, e.tokens_per_word, e.path
        )

    async def go(self) -> None:
        """Send everything, wait for the answers, and give up on those that take too long."""
        self.begun = time.perf_counter()
        sending = asyncio.create_task(self._send_closed(self.closed) if self.closed else self._send_open())
        gone = asyncio.create_task(self.over.wait())
        try:
            await asyncio.wait({sending, gone}, timeout=self.bounds.seconds + self.bounds.stall_s, return_when="FIRST_COMPLETED")
            if self.over.is_set():
                self.stopped = "the server has stopped"
            elif all(a.failure != NOT_SENT for a in self.answers):
                self.stopped = ""
            else:
                self.stopped = "the time was over"
        finally:
            for task in (sending, gone):
                task.cancel()
            await asyncio.gather(sending, gone, return_exceptions=True)

    async def _send_open(self) -> None:
        """Each request at its time, or as soon after as there is room."""
        room = asyncio.Semaphore(self.bounds.in_flight)
        async with asyncio.TaskGroup() as group:
            for i, answer in enumerate(self.answers):
                await asyncio.sleep(max(answer.due_s - self.now(), 0.0))
                await room.acquire()
                if self.now() > self.bounds.seconds:
                    room.release()
                    break
                group.create_task(self._one(i, room))

    async def _send_closed(self, closed: ClosedLoop) -> None:
        """Each user sends the next request when the last answer ended and was thought about."""
        rows = iter(range(len(self.answers)))

        async def user() -> None:
            for i in rows:
                if self.now() > self.bounds.seconds:
                    return
                self.answers[i].due_s = self.now()
                await self._one(i, None)
                await asyncio.sleep(closed.think_s)

        async with asyncio.TaskGroup() as group:
            for _ in range(min(closed.users, self.bounds.in_flight)):
                group.create_task(user())

    async def _one(self, i: int, room: asyncio.Semaphore | None) -> None:
        answer = self.answers[i]
        e = self.endpoint
        body = {**_body(e.model, e.path, self.prompts.prompt(i), int(self.requests.output_tokens[i])), **e.extras}
        answer.sent_s, answer.failure = self.now(), UNFINISHED
        try:
            await self._retry(answer, body)
            answer.finish_s, answer.failure = self.now(), None
            self.refusals = 0
        except TimeoutError:
            answer.failure = STALLED
        except HttpError as error:
            answer.status, answer.said = error.status, error.said
            kinds = REFUSED if error.status in BUSY else SERVER_ERROR if error.status >= 500 else CLIENT_ERROR
            answer.failure = kinds
        except BrokenStreamError as error:
            answer.failure, answer.said = CUT, str(error)
        except OSError as error:
            answer.failure, answer.said = CONNECTION, str(error.strerror or error)
            self.refusals += not answer.token_s
            if self.refusals >= GONE:
                self.over.set()
        finally:
            if room is not None:
                room.release()
        self.done += 1
        self.progress(f"{self.done} of {len(self.answers)} requests")

    async def _retry(self, answer: Answer, body: Mapping[str, Any]) -> None:
        """Reads the answer, asking again while the server refuses and the time is not over."""
        wait_s = RETRY_S
        while True:
            try:
                return await self._read(answer, body)
            except HttpError as error:
                pause = wait_s if error.retry_after_s is None else error.retry_after_s
                late = self.now() + pause > self.bounds.seconds
                if error.status not in BUSY or answer.retries >= self.bounds.retries or late or answer.token_s:
                    raise
            answer.retries += 1
            await asyncio.sleep(pause)
            wait_s *= 2.0

    async def _read(self, answer: Answer, body: Mapping[str, Any]) -> None:
        e = self.endpoint
        events = stream_events(e.address, e.path, e.headers, body)
        try:
            while True:
                async with asyncio.timeout(self.bounds.stall_s):
                    event = await anext(events, None)
                if event is None:
                    return
                if _has_text(event):
                    answer.token_s.append(self.now())
                usage = as_object(event.get("usage"))
                if usage:
                    answer.prompt_tokens = _count(usage.get("prompt_tokens"))
                    answer.output_tokens = _count(usage.get("completion_tokens"))
        finally:
            await events.aclose()


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and value > 0 else None


def _has_text(event: Mapping[str, Any]) -> bool:
    """Whether an event contains tokens; chat servers begin with one that has the role only."""
    choice = as_object(next(iter(_rows(event.get("choices"))), None))
    delta = as_object(choice.get("delta"))
    if delta:
        return any(delta.get(name) for name in ("content", "reasoning_content", "reasoning"))
    return isinstance(choice.get("text"), str) and (bool(choice["text"]) or choice.get("finish_reason") is None)


def _rows(value: Any) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []
