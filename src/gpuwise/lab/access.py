"""What one access of a warp costs: sectors, lines, bank conflicts.

    sectors     distinct 32-byte pieces that the lanes touch, in lines of 128 bytes (compute capability 6.0 and later)
    wavefronts  most distinct 32-bit words requested from one of 32 banks; the same word is broadcast. It equals the counter
                l1tex__data_pipe_lsu_wavefronts of A100 and A40 at every stride of 0 to 64 words, fp32 and fp64
    tag stage   distinct lines, four of which the L1 looks up in a clock where they fall into different banks of its tags

A load that hits the L1 takes max(data wavefronts, tag wavefronts) cycles of the SM's load unit. Lanes of 64 bits go in
two halves.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
WARP, BANKS, WORD, SECTOR, LINE = 32, 32, 4, 32, 128
NOTHING = np.int64(-1)
"""Index of a lane that does not take part."""


@dataclass(frozen=True, slots=True)
class WarpAccess:
    """One access of many warps; each array has one number a warp."""

    sectors: Ints
    lines: Ints
    wavefronts: Ints
    tags: Ints
    sector_ids: Ints
    """(warps, up to 64) distinct sectors, rising, :data:`NOTHING` first."""

    def part(self, first: int, last: int) -> WarpAccess:
        """The part of the warps from ``first`` up to ``last``."""
        w = slice(first, last)
        return WarpAccess(self.sectors[w], self.lines[w], self.wavefronts[w], self.tags[w], self.sector_ids[w])


def warp_access(addresses: Ints, active: NDArray[np.bool_], size: int, *, one_by_one: bool = False) -> WarpAccess:
    """Cost of lanes (warps, 32) that touch ``size`` bytes each at ``addresses``; ``one_by_one`` where the same word is no
    broadcast, as for atomic operations on shared memory."""
    where = np.where(active, addresses, NOTHING)
    words = _words(where, size)
    sectors, lines = words // (SECTOR // WORD), words // (LINE // WORD)
    first, first_line = _first(sectors), _first(lines)
    ids = np.where(first, sectors, NOTHING)
    passes = bank_wavefronts(where, size, one_by_one=one_by_one)
    return WarpAccess(first.sum(1), first_line.sum(1), passes, _tags(lines, first_line), ids)


def bank_wavefronts(addresses: Ints, size: int, *, one_by_one: bool = False) -> Ints:
    """Passes over the banks for lanes (warps, 32) at ``addresses``, :data:`NOTHING` where one takes no part."""
    parts = np.split(addresses, size // WORD, axis=1) if size > WORD else (addresses,)
    return np.stack([_passes(part, size, one_by_one=one_by_one) for part in parts]).sum(0)


def _passes(addresses: Ints, size: int, *, one_by_one: bool) -> Ints:
    words = _words(addresses, size)
    rows, columns = np.nonzero(words >= 0 if one_by_one else _first(words))
    counts = np.bincount(rows * BANKS + words[rows, columns] % BANKS, minlength=len(words) * BANKS)
    return counts.reshape(len(words), BANKS).max(1)


def _words(addresses: Ints, size: int) -> Ints:
    """Every 32-bit word that the lanes of a warp touch, rising, :data:`NOTHING` first; elements are aligned to their size."""
    words = addresses // WORD
    parts = [words, *(np.where(words >= 0, words + more, NOTHING) for more in range(1, size // WORD))]
    return np.sort(np.concatenate(parts, axis=1) if len(parts) > 1 else words, axis=1)


def _first(rising: Ints) -> NDArray[np.bool_]:
    """Index of the first occurrence of a value in its row."""
    first = rising >= 0
    first[:, 1:] &= rising[:, 1:] != rising[:, :-1]
    return first


TAG_BANKS = 4


def _tags(lines: Ints, first: NDArray[np.bool_]) -> Ints:
    """Maximum distinct lines in one of four tag banks.

    The bank of a line is two sums modulo 2 of its number's bits: of bits 0 to 10, and of the even ones of them. That is the
    result of a search over such sums for the counters of A100 at strides of 1 to 64 words: a mean error of 2.2 % at the
    benchmark's own places, where no two sums of bits 0 to 7 have less than 2.0 % (benchmarks/records/lab).
    """
    bank = 2 * _parity(lines & 0x555) + _parity(lines & 0x7FF)
    rows = np.broadcast_to(np.arange(len(lines))[:, None], lines.shape)[first]
    counts = np.bincount(rows * TAG_BANKS + bank[first], minlength=len(lines) * TAG_BANKS)
    return counts.reshape(len(lines), TAG_BANKS).max(1)


def _parity(values: Ints) -> Ints:
    for shift in (8, 4, 2, 1):
        values = values ^ (values >> shift)
    return values & 1
