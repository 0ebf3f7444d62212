"""Layouts requested by sliders at the same time, evaluated together: all waiting ones once an evaluator is free."""

from __future__ import annotations

import asyncio
import datetime
from collections import OrderedDict
from collections.abc import AsyncIterable, Callable, Hashable, Sequence
from typing import Any, Protocol

from gpuwise.errors import GpuwiseError

Query = tuple[tuple[str, str], ...]
"""Fields of a query, sorted."""
Answers = AsyncIterable[bytes | GpuwiseError]
Waiting = dict[Query, list[asyncio.Future[bytes]]]
MOST = 512
"""Maximum stored answers, some 50 kB each: sliders move back and forth."""
TOGETHER = 64
"""Questions evaluated in one pass at most."""


class Evaluators(Protocol):
    """Interface of evaluators."""

    def free(self) -> Any | None:
        """A free evaluator, which is returned after its last answer."""

    def layouts(self, by: Any, queries: Sequence[Query], today: datetime.date) -> Answers:
        """The answers of ``by``, in order, each as soon as it is there, with the work that they share done once."""
        ...


class QueryBatcher:
    """Answers requests in passes: each pass has the requests that share work (``alike``) with the one that has waited longest,
    so no request waits for unrelated work. Each subject has one pass at a time, if possible by an evaluator that has it
    cached. A request whose client leaves before a pass begins is dropped."""

    def __init__(self, evaluators: Evaluators, alike: Callable[[Query], Hashable] = lambda _: None) -> None:
        self._evaluators, self._alike = evaluators, alike
        self._known: dict[Hashable, object] = {}
        self._waiting: Waiting = {}
        self._asked: Waiting = {}
        self._passes: dict[Hashable, asyncio.Task[None]] = {}
        self._cache: OrderedDict[tuple[Query, datetime.date], bytes] = OrderedDict()

    def cached(self, query: Query) -> bytes | None:
        """The answer of today, where it was given before."""
        key = (query, datetime.date.today())
        answer = self._cache.get(key)
        if answer is not None:
            self._cache.move_to_end(key)
        return answer

    async def ask(self, query: Query) -> bytes:
        """The answer as it is sent. Raises GpuwiseError."""
        cached = self.cached(query)
        if cached is not None:
            return cached
        answer = asyncio.get_running_loop().create_future()
        (self._asked if query in self._asked else self._waiting).setdefault(query, []).append(answer)
        self._begin()
        return await answer

    def stop(self) -> None:
        """Stop answering."""
        for task in self._passes.values():
            task.cancel()

    def _begin(self) -> None:
        """Start the passes for which an evaluator is free."""
        self._waiting = {query: waits for query, waits in self._waiting.items() if not all(w.done() for w in waits)}
        batches: dict[Hashable, list[Query]] = {}
        for query in self._waiting:
            subject = self._alike(query)
            if subject not in self._passes:
                batches.setdefault(subject, []).append(query)
        while batches and (evaluator := self._evaluators.free()) is not None:
            subject = min(batches, key=lambda one: self._known.get(one, evaluator) is not evaluator)
            batch = batches.pop(subject)[:TOGETHER]
            self._asked |= {query: self._waiting.pop(query) for query in batch}
            self._known |= {subject: evaluator}
            today = datetime.date.today()
            answers = self._evaluators.layouts(evaluator, batch, today)
            self._passes[subject] = asyncio.create_task(self._pass(subject, batch, today, answers))

    async def _pass(self, subject: Hashable, batch: list[Query], today: datetime.date, answers: Answers) -> None:
        left = [*batch]
        try:
            async for said in answers:
                self._give(left.pop(0), today, said)
            if left:
                raise EOFError("the process that evaluates ended before the last answer")
        except Exception as error:  # noqa: BLE001 - our own; waiting requests get the error, and the next pass begins
            for query in left:
                self._give(query, today, error)
        del self._passes[subject]
        self._begin()

    def _give(self, query: Query, today: datetime.date, said: bytes | Exception) -> None:
        if isinstance(said, bytes):
            self._cache[query, today] = said
            if len(self._cache) > MOST:
                self._cache.popitem(last=False)
        for answer in self._asked.pop(query):
            if answer.done():
                continue
            if isinstance(said, bytes):
                answer.set_result(said)
            else:
                answer.set_exception(said)
