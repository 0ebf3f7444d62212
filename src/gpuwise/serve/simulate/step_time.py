"""What a step of a simulated engine takes, as the scheduler's loop reads it.

A step of ``n`` sequences that decode, whose caches hold ``S`` tokens together, and of prompt chunks ``(q, c)`` (``q`` new tokens
that see ``c`` earlier ones):

    device = fixed(n) + slope(n) S                                      no prompt in it
    device = work(T) + attention(n) + slope(n) S + sum chunk(q, c)      T = n + sum q
    step   = max(device, host(n + chunks))                              the scheduler runs ahead of the device
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class StepTime(Protocol):
    """Seconds of steps. ``fixed``, ``slope`` and ``host`` are indexed by sequences, from 0 to the most that run at once."""

    @property
    def fixed(self) -> Sequence[float]: ...

    @property
    def slope(self) -> Sequence[float]: ...

    @property
    def host(self) -> Sequence[float]: ...

    def mixed(self, decoding: int, cached_tokens: int, chunks: Sequence[tuple[int, int]]) -> float:
        """Seconds of a step with the prompt chunks ``(new tokens, tokens before them)``."""
        ...
