"""Layouts that sliders ask for at the same time, evaluated together: whatever waits when the one who evaluates is free."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
from collections import OrderedDict
from collections.abc import AsyncIterable, Callable, Hashable, Sequence

from gpuwise.errors import GpuwiseError

Query = tuple[tuple[str, str], ...]
"""Fields of a query, sorted."""
Answerer = Callable[[Sequence[Query], datetime.date], AsyncIterable[bytes | GpuwiseError]]
"""What answers several questions, with the work that they share done once: each answer, in order, as soon as it is there."""
MOST = 512
"""Answers that are kept, some 50 kB each: sliders go back and forth."""
TOGETHER = 64
"""Questions evaluated in one pass at most."""


class QueryBatcher:
    """Answers in passes of what waits and shares work (``alike``) with the one that has waited longest: nobody waits for work
    that is of no use to him. Who leaves before a pass begins is left out of it."""

    def __init__(self, answerer: Answerer, alike: Callable[[Query], Hashable] = lambda _: None) -> None:
        self._answer_all, self._alike = answerer, alike
        self._waiting: list[tuple[Query, asyncio.Future[bytes]]] = []
        self._pass: asyncio.Task[None] | None = None
        self._cache: OrderedDict[tuple[Query, datetime.date], bytes] = OrderedDict()

    def warm(self, query: Query) -> asyncio.Task[None]:
        """Answer one question in advance: what it imports and reads is loaded before the first one is asked."""
        return asyncio.create_task(self._warm(query))

    async def _warm(self, query: Query) -> None:
        with contextlib.suppress(Exception):
            await self.ask(query)

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
        self._waiting.append((query, answer))
        if self._pass is None or self._pass.done():
            self._pass = asyncio.create_task(self._passes())
        return await answer

    def stop(self) -> None:
        """Answer nobody any more."""
        if self._pass is not None:
            self._pass.cancel()

    async def _passes(self) -> None:
        while self._waiting:
            self._waiting = [(query, answer) for query, answer in self._waiting if not answer.done()]
            if not self._waiting:
                break
            answers: dict[Query, list[asyncio.Future[bytes]]] = {}
            later: list[tuple[Query, asyncio.Future[bytes]]] = []
            first = self._alike(self._waiting[0][0])
            for given, answer in self._waiting:
                if given in answers or (len(answers) < TOGETHER and self._alike(given) == first):
                    answers.setdefault(given, []).append(answer)
                else:
                    later.append((given, answer))
            self._waiting = later
            today, left = datetime.date.today(), dict(answers)
            try:
                async for said in self._answer_all([*answers], today):
                    query = next(iter(left))
                    self._give(query, today, said, left.pop(query))
                if left:
                    raise EOFError("whoever evaluates ended before the last answer")
            except Exception as error:  # noqa: BLE001 - of ours; whoever waits is told, and the next pass begins
                for query, futures in left.items():
                    self._give(query, today, error, futures)

    def _give(self, query: Query, today: datetime.date, said: bytes | Exception, answers: list[asyncio.Future[bytes]]) -> None:
        if isinstance(said, bytes):
            self._cache[query, today] = said
            if len(self._cache) > MOST:
                self._cache.popitem(last=False)
        for answer in answers:
            if answer.done():
                continue
            if isinstance(said, bytes):
                answer.set_result(said)
            else:
                answer.set_exception(said)
