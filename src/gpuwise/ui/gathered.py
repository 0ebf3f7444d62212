"""Layouts that sliders ask for at the same time, evaluated together: whatever waits when the one thread is free."""

from __future__ import annotations

import asyncio
import datetime
import gc
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor

from gpuwise.errors import GpuwiseError

Given = tuple[tuple[str, str], ...]
"""Fields of a query, sorted."""
Made = Callable[[Sequence[Given], datetime.date], Sequence[Callable[[], bytes] | GpuwiseError]]
"""What makes the answers to several questions: the work that they share at once, and each one's own part when called."""
KEPT = 512
"""Answers that are kept, some 50 kB each: sliders go back and forth."""
TOGETHER = 64
"""Questions evaluated in one pass at most."""


class Gathered:
    """One thread that answers, in passes of what waits and shares work (``alike``) with the one that has waited longest: nobody
    waits for work that is of no use to him. Who leaves before a pass begins is left out of it."""

    def __init__(self, made: Made, alike: Callable[[Given], Hashable] = lambda _: None) -> None:
        self._answer_all, self._alike = made, alike
        self._thread = ThreadPoolExecutor(1)
        self._waiting: list[tuple[Given, asyncio.Future[bytes]]] = []
        self._pass: asyncio.Task[None] | None = None
        self._cache: OrderedDict[tuple[Given, datetime.date], bytes] = OrderedDict()

    def warm(self, given: Given) -> None:
        """Answer one question in advance: what it imports and reads is loaded before the first one is asked."""
        self._thread.submit(self._warm, given)

    def cached(self, given: Given) -> bytes | None:
        """The answer of today, where it was given before."""
        key = (given, datetime.date.today())
        found = self._cache.get(key)
        if found is not None:
            self._cache.move_to_end(key)
        return found

    async def ask(self, given: Given) -> bytes:
        """The answer as it is sent. Raises GpuwiseError."""
        found = self.cached(given)
        if found is not None:
            return found
        answer = asyncio.get_running_loop().create_future()
        self._waiting.append((given, answer))
        if self._pass is None or self._pass.done():
            self._pass = asyncio.create_task(self._passes())
        return await answer

    def stop(self) -> None:
        """Answer nobody any more."""
        if self._pass is not None:
            self._pass.cancel()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _warm(self, given: Given) -> None:
        self._answers((given,), datetime.date.today(), _untold)
        # tables stay: to look through them for garbage again and again would hold answers up for a tenth of a second
        gc.collect()
        gc.freeze()

    async def _passes(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            self._waiting = [(given, answer) for given, answer in self._waiting if not answer.done()]
            if not self._waiting:
                break
            answers: dict[Given, list[asyncio.Future[bytes]]] = {}
            later: list[tuple[Given, asyncio.Future[bytes]]] = []
            first = self._alike(self._waiting[0][0])
            for given, answer in self._waiting:
                if given in answers or (len(answers) < TOGETHER and self._alike(given) == first):
                    answers.setdefault(given, []).append(answer)
                else:
                    later.append((given, answer))
            self._waiting = later
            today = datetime.date.today()

            def tell(
                given: Given,
                said: bytes | Exception,
                answers: dict[Given, list[asyncio.Future[bytes]]] = answers,
                today: datetime.date = today,
            ) -> None:
                loop.call_soon_threadsafe(self._give, given, today, said, answers[given])

            await loop.run_in_executor(self._thread, self._answers, tuple(answers), today, tell)

    def _answers(self, asked: Sequence[Given], today: datetime.date, tell: Callable[[Given, bytes | Exception], None]) -> None:
        """In the thread: each answer is told as soon as it is there."""
        told = 0
        try:
            for given, one in zip(asked, self._answer_all(asked, today), strict=True):
                tell(given, one if isinstance(one, GpuwiseError) else one())
                told += 1
        except Exception as error:  # noqa: BLE001 - of ours; whoever waits is told, and the next pass begins
            for given in asked[told:]:
                tell(given, error)

    def _give(self, given: Given, today: datetime.date, said: bytes | Exception, answers: list[asyncio.Future[bytes]]) -> None:
        if isinstance(said, bytes):
            self._cache[given, today] = said
            if len(self._cache) > KEPT:
                self._cache.popitem(last=False)
        for answer in answers:
            if answer.done():
                continue
            if isinstance(said, bytes):
                answer.set_result(said)
            else:
                answer.set_exception(said)


def _untold(given: Given, said: bytes | Exception) -> None:
    """For an answer that nobody waits for."""
