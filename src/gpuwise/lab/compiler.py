"""Compiler scheduling of a kernel's instructions: independent loads move before arithmetic.

Between two branches or barriers a load is issued as soon as its address is known, before earlier arithmetic of the text,
unless a write in between may alias it. The results in flight are limited to half of a thread's registers; on an H100 a quarter
of them, or all, change the lab's tasks by less than 3 %.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpuwise.lab.stream import Event


@dataclass(frozen=True, slots=True)
class Compiler:
    """Integer instructions that a compiler adds to the text, counted in the output of ptxas 13.5."""

    entry: int
    """Per thread: its index, the arguments, the exit."""
    part: int
    """Per index that is not a literal: numba counts negative ones from the end."""
    turn: int
    """Per turn of a loop counter shared by all lanes."""
    stride: int
    """Per product of a row's length and an index."""
    address: int
    """Per address in global memory (64 bits)."""
    shared: int
    """Per address in shared memory."""
    word: int
    """Per sum or comparison of integers."""
    power_of_two: int
    """Per ``//`` and ``%`` of integers: by a literal power of two, another literal, and a number known only at run time."""
    constant: int
    number: int


NUMBA = Compiler(8, 5, 8, 4, 4, 4, 2, 8, 20, 24)
"""numba-cuda 0.30: 64 bits for every whole number."""
NVCC = Compiler(8, 0, 0, 0, 1, 1, 1, 2, 6, 17)
"""CUDA C with ``int`` for the indices."""
LOADS = frozenset({"load", "shared_load"})
WRITES = frozenset({"store", "shared_store", "atomic", "shared_atomic"})
LOCAL = "local memory"
FENCES = frozenset({"branch", "barrier"})


def scheduled(events: Sequence[Event], registers: int) -> list[Event]:
    """The same events in the order in which a compiler with ``registers`` for results of loads has them."""
    order: list[int] = []
    first = 0
    for number, event in enumerate(events):
        if event.op in FENCES:
            order.extend(_block(events, first, number, registers))
            order.append(number)
            first = number + 1
    order.extend(_block(events, first, len(events), registers))
    place = [0] * len(order)
    for at, number in enumerate(order):
        place[number] = at
    made: list[Event] = []
    for n in order:
        e = events[n]
        waits = tuple(sorted([place[w] for w in e.waits_for])) if e.waits_for else ()
        made.append(Event(e.op, e.line, waits, e.warps, e.access, e.lanes, e.array, e.size, e.times))
    return made


def _addresses(events: Sequence[Event], first: int, loads: Sequence[int]) -> list[int]:
    """The loads and the integer sums that their addresses depend on, in the order of the text."""
    wanted = set(loads)
    stack = list(loads)
    while stack:
        for source in events[stack.pop()].waits_for:
            if source >= first and source not in wanted and events[source].op == "int":
                wanted.add(source)
                stack.append(source)
    return sorted(wanted)


def _space(event: Event) -> str:
    """Accesses that may alias: those to one array in shared or local memory, and all to global memory, whose arrays a compiler
    cannot distinguish."""
    return event.array if event.op.startswith("shared") or event.array == LOCAL else ""


def _block(events: Sequence[Event], first: int, end: int, registers: int) -> list[int]:
    """The order of the events from ``first`` to before ``end``."""
    loads = [n for n in range(first, end) if events[n].op in LOADS]
    if not loads or end - first < 3:
        return list(range(first, end))
    early = _addresses(events, first, loads)
    after: dict[int, int] = {}
    """Load to the last write to its array before it."""
    written: dict[str, int] = {}
    user: dict[int, int] = {}
    """Load to the first event that needs it."""
    for n in range(first, end):
        event = events[n]
        if event.op in LOADS:
            after[n] = written.get(_space(event), -1)
        elif event.op in WRITES:
            written[_space(event)] = n
        for source in event.waits_for:
            if source >= first:
                user.setdefault(source, n)
    order: list[int] = []
    done = [False] * (end - first)
    under_way = 0
    queue = iter(early)
    load = next(queue, None)

    def ready(n: int) -> bool:
        free = (last := after.get(n, -1)) < first or done[last - first]
        return free and all(source < first or done[source - first] for source in events[n].waits_for)

    for n in range(first, end):
        while load is not None and under_way < registers and (done[load - first] or ready(load)):
            if not done[load - first]:
                order.append(load)
                done[load - first] = True
                under_way += events[load].op in LOADS
            load = next(queue, None)
        if not done[n - first]:
            order.append(n)
            done[n - first] = True
            under_way += events[n].op in LOADS
        under_way -= sum(
            1 for source in events[n].waits_for if source >= first and user.get(source) == n and events[source].op in LOADS
        )
    return order
