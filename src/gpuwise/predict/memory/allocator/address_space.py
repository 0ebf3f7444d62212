"""Address space of the simulated device: where cudaMalloc and expandable segments put their ranges.

Addresses decide between equally large free blocks (the lowest wins), so their order matters. The driver's choice is not
published; the model here is inferred from public snapshots (`Space`). Inside the simulator an address counts units of 512 B in
a space with one unit of padding per 2 MiB, so that blocks of different segments never touch: a free block merges only with
neighbours of its own segment, with no check.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Sequence

from gpuwise.predict.memory.allocator.settings import MIN_BLOCK, SMALL_SEGMENT

UNIT = MIN_BLOCK
"""Bytes of one address unit."""
SLOT = SMALL_SEGMENT
"""cudaMalloc hands out multiples of this."""
SLOT_UNITS = SLOT // UNIT
PITCH = SLOT_UNITS + 1
"""Units from one slot to the next: a slot and its padding."""
RESERVATION_SLOTS = 16
"""The driver reserves addresses in multiples of 32 MiB."""
TOP_SLOT = 1 << 26
"""Slots below which reservations are made, downwards: addresses just under 2**47 B, as on Linux."""


class Space:
    """cudaMalloc addresses, newest reservation lowest.

    As in every public snapshot we could read: a request takes the lowest free range in an earlier reservation; if there is
    none, a new reservation, a multiple of 32 MiB, is made just below the last one. Freed ranges can be used again.
    ``recorded``: addresses in slots from a real run, in order of its cudaMallocs; the model takes over when they run out.
    """

    def __init__(self, recorded: Sequence[int] = ()) -> None:
        self.bottom = TOP_SLOT
        self.below(recorded)
        self.room: list[tuple[int, int]] = []
        self.most = 0
        """Length of the longest range of :attr:`room`: longer requests need not search."""
        self.recorded = iter(recorded)

    def below(self, slots: Sequence[int]) -> None:
        """Make new reservations below all of ``slots``, which are in use."""
        self.bottom = min([self.bottom, *(s // RESERVATION_SLOTS * RESERVATION_SLOTS for s in slots)])

    def take(self, slots: int) -> int:
        """First slot of a new range."""
        recorded = next(self.recorded, None)
        if recorded is not None:
            return recorded
        if slots <= self.most:
            for i, (start, length) in enumerate(self.room):
                if length >= slots:
                    if length == slots:
                        del self.room[i]
                    else:
                        self.room[i] = (start + slots, length - slots)
                    return start
            self.most = slots - 1
        reserved = -(-slots // RESERVATION_SLOTS) * RESERVATION_SLOTS
        self.bottom -= reserved
        if reserved > slots:
            insort(self.room, (self.bottom + slots, reserved - slots))
            self.most = max(self.most, reserved - slots)
        return self.bottom

    def give(self, start: int, slots: int) -> None:
        """Free a range of addresses."""
        insort(self.room, (start, slots))
        i = bisect_right(self.room, (start, slots)) - 1
        if i + 1 < len(self.room) and start + slots == self.room[i + 1][0]:
            self.room[i] = (start, slots + self.room[i + 1][1])
            del self.room[i + 1]
        if i and self.room[i - 1][0] + self.room[i - 1][1] == start:
            self.room[i - 1] = (self.room[i - 1][0], self.room[i - 1][1] + self.room[i][1])
            del self.room[i]
            i -= 1
        self.most = max(self.most, self.room[i][1])
