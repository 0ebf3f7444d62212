"""Layouts that sliders ask for at the same time, evaluated together: whatever waits when the one thread is free."""

from __future__ import annotations

import asyncio
import datetime
import gc
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor

from gpuwise.errors import GpuwiseError

Query = tuple[tuple[str, str], ...]
"""Fields of a query, sorted."""
Answerer = Callable[[Sequence[Query], datetime.date], Sequence[Callable[[], bytes] | GpuwiseError]]
"""What makes the answers to several questions: the work that they share at once, and each one's own part when called."""
MOST = 512
"""Answers that are kept, some 50 kB each: sliders go back and forth."""
TOGETHER = 64
"""Questions evaluated in one pass at most."""


class QueryBatcher:
    """One thread that answers, in passes of what waits and shares work (``alike``) with the one that has waited longest: nobody
    waits for work that is of no use to him. Who leaves before a pass begins is left out of it."""

    def __init__(self, answerer: Answerer, alike: Callable[[Query], Hashable] = lambda _: None) -> None:
        self._answer_all, self._alike = answerer, alike
        self._thread = ThreadPoolExecutor(1)
        self._waiting: list[tuple[Query, asyncio.Future[bytes]]] = []
        self._pass: asyncio.Task[None] | None = None
        self._cache: OrderedDict[tuple[Query, datetime.date], bytes] = OrderedDict()

    def warm(self, query: Query) -> None:
        """Answer one question in advance: what it imports and reads is loaded before the first one is asked."""
        self._thread.submit(self._warm, query)

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
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _warm(self, query: Query) -> None:
        self._answers((query,), datetime.date.today(), _untold)
        # tables stay: to look through them for garbage again and again would hold answers up for a tenth of a second
        gc.collect()
        gc.freeze()

    async def _passes(self) -> None:
        loop = asyncio.get_running_loop()
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
            today = datetime.date.today()

            def tell(
                query: Query,
                answer: bytes | Exception,
                answers: dict[Query, list[asyncio.Future[bytes]]] = answers,
                today: datetime.date = today,
            ) -> None:
                loop.call_soon_threadsafe(self._give, query, today, answer, answers[query])

            await loop.run_in_executor(self._thread, self._answers, tuple(answers), today, tell)

    def _answers(self, queries: Sequence[Query], today: datetime.date, tell: Callable[[Query, bytes | Exception], None]) -> None:
        """In the thread: each answer is told as soon as it is there."""
        n_sent = 0
        try:
            for query, one in zip(queries, self._answer_all(queries, today), strict=True):
                tell(query, one if isinstance(one, GpuwiseError) else one())
                n_sent += 1
        except Exception as error:  # noqa: BLE001 - of ours; whoever waits is told, and the next pass begins
            for query in queries[n_sent:]:
                tell(query, error)

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


def _untold(query: Query, answer: bytes | Exception) -> None:
    """For an answer that nobody waits for."""
