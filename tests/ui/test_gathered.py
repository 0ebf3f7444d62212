"""Questions of sliders that wait are answered together, each with its own answer or error."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import AsyncGenerator, Callable, Sequence

from gpuwise.errors import GpuwiseError, InputError
from gpuwise.ui.gathered import MOST, TOGETHER, Query, QueryBatcher


def given(n: int) -> Query:
    return (("n", str(n)),)


class Maker:
    """Answers by number, and what it was asked in each pass, by whom; passes last until they are released. It ends at a 7."""

    def __init__(self, evaluators: int = 1) -> None:
        self.passes: list[list[int]] = []
        self.by: list[int] = []
        self.idle = [*range(evaluators)]
        self.released = asyncio.Event()

    def free(self) -> int | None:
        return self.idle.pop(0) if self.idle else None

    async def layouts(self, by: int, queries: Sequence[Query], today: datetime.date) -> AsyncGenerator[bytes | GpuwiseError]:
        numbers = [int(one[0][1]) for one in queries]
        self.passes.append(numbers)
        self.by.append(by)
        try:
            await self.released.wait()
            for n in numbers:
                if n == 7:
                    return
                yield InputError("thirteen") if n == 13 else str(n).encode()
        finally:
            self.idle.append(by)


def asked_while_busy(
    numbers: Sequence[int], leaving: Sequence[int] = (), alike: Callable[[Query], int] = lambda _: 0, evaluators: int = 1
) -> tuple[Maker, list[bytes | BaseException]]:
    maker = Maker(evaluators)

    async def ask() -> list[bytes | BaseException]:
        gathered = QueryBatcher(maker, alike)
        first = asyncio.create_task(gathered.ask(given(0)))
        while not maker.passes:
            await asyncio.sleep(0)
        tasks = [asyncio.create_task(gathered.ask(given(n))) for n in numbers]
        await asyncio.sleep(0)
        for i in leaving:
            tasks[i].cancel()
        maker.released.set()
        said = await asyncio.gather(first, *tasks, return_exceptions=True)
        assert await gathered.ask(given(0)) == b"0" and sum(0 in asked for asked in maker.passes) == 1  # kept
        gathered.stop()
        return said

    return maker, asyncio.run(ask())


def test_what_waits_is_asked_in_one_pass_and_each_once() -> None:
    maker, said = asked_while_busy([1, 2, 1, 3])
    assert maker.passes == [[0], [1, 2, 3]] and said == [b"0", b"1", b"2", b"1", b"3"]


def test_a_pass_holds_only_what_shares_work_with_who_waits_longest() -> None:
    maker, said = asked_while_busy([1, 2, 3, 4, 1], alike=lambda one: int(one[0][1]) % 2)
    assert maker.passes == [[0], [1, 3], [2, 4]] and said == [b"0", b"1", b"2", b"3", b"4", b"1"]


def test_what_is_asked_while_it_is_answered_is_not_asked_again() -> None:
    maker, said = asked_while_busy([0, 1, 0])
    assert maker.passes == [[0], [1]] and said == [b"0", b"0", b"1", b"0"]


def test_two_subjects_are_answered_at_once_and_a_subject_stays_with_who_knows_it() -> None:
    def parity(one: Query) -> int:
        return int(one[0][1]) % 2

    maker, said = asked_while_busy([2, 4, 1, 3], alike=parity, evaluators=2)
    assert maker.passes[:2] == [[0], [1]] and sorted(maker.passes[2:]) == [[2, 4], [3]]
    assert said == [b"0", b"2", b"4", b"1", b"3"]
    owners = [{by for asked, by in zip(maker.passes, maker.by, strict=True) if asked[0] % 2 == odd} for odd in (0, 1)]
    assert owners == [{0}, {1}]


def test_who_leaves_is_not_answered() -> None:
    maker, said = asked_while_busy([1, 2, 3], leaving=[1])
    assert maker.passes == [[0], [1, 3]]
    assert isinstance(said[2], asyncio.CancelledError) and said[3] == b"3"


def test_what_is_refused_is_refused_alone_and_a_fault_does_not_end_the_passes() -> None:
    _, said = asked_while_busy([1, 13, 7, 2])
    assert said[1] == b"1" and isinstance(said[2], InputError)
    assert isinstance(said[3], EOFError) and isinstance(said[4], EOFError)


def test_a_pass_has_a_bound_and_so_has_what_is_kept() -> None:
    numbers = list(range(20, 20 + TOGETHER + 5))
    maker, said = asked_while_busy(numbers)
    assert [len(asked) for asked in maker.passes] == [1, TOGETHER, 5]
    assert said[1:] == [str(n).encode() for n in numbers]

    async def many() -> int:
        gathered = QueryBatcher(maker)
        for n in range(100, 100 + MOST + 3):
            await gathered.ask(given(n))
        before = len(maker.passes)
        await gathered.ask(given(100))
        gathered.stop()
        return len(maker.passes) - before

    assert asyncio.run(many()) == 1
