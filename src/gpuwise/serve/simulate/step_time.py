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

import numpy as np
from numpy.typing import NDArray

from gpuwise.predict.estimate import Basis

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]


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


class Spread(Protocol):
    """Uncertainty of the times, and their basis."""

    @property
    def log_sigma(self) -> float: ...

    @property
    def basis(self) -> Basis: ...


class Steps(StepTime, Protocol):
    """Steps of an engine on a device, which can say what they went to."""

    @property
    def tables(self) -> Spread: ...

    def parts(self, decoding: I64, prompt_tokens: I64, cached_tokens: I64, n_steps: I64, total_s: F64) -> dict[str, float]:
        """Seconds by what they went to: compute, memory, communication, host."""
        ...
