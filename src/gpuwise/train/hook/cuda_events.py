"""Device events: read the loss of a running script without a wait, and limit a loop to its GPU's pace."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

import torch

from gpuwise.train.ticks import Tick

TURNS_AHEAD = 2
"""Turns of the loop that the host may be ahead: the device always has work, and after that many turns the host's clock is the
device's. Rule of this project."""


class NewestLoss:
    """Returns a loss about every ``every_s`` seconds, once the device has computed it."""

    def __init__(self, every_s: float) -> None:
        self._every_s, self._read_at_s = every_s, 0.0
        self._stream: Any = None
        self._waiting: Any = None
        """The event after a loss, its number and itself."""

    def take(self, number: int, value: torch.Tensor) -> tuple[int, float] | None:
        """The newest loss that can be read without waiting (it may be some steps old); None where it is too early."""
        now_s = time.perf_counter()
        if now_s - self._read_at_s < self._every_s:
            return None
        if value.device.type != "cuda":
            self._read_at_s = now_s
            return number, float(value)
        if torch.cuda.is_current_stream_capturing():
            return None
        if self._waiting is None:
            self._waiting = (torch.cuda.Event(), number, value)
            self._waiting[0].record()
            return None
        event, number, value = self._waiting
        if not event.query():
            return None
        self._read_at_s, self._waiting = now_s, None
        # beside the work that is queued, not behind it
        self._stream = self._stream or torch.cuda.Stream(value.device)
        with torch.cuda.stream(self._stream):
            return number, float(value)


class DevicePace:
    """Waits, once a turn of the loop, until the device has ended the turn ``TURNS_AHEAD`` before.

    A loop without synchronisation is ahead of its GPU by the whole launch queue, many turns for few launches (compiled code,
    CUDA graphs): until the queue is full, the host's steps do not reflect the device's. A loop that synchronises itself, or is
    slower than its device, does not wait here.
    """

    def __init__(self) -> None:
        self._ends: deque[Any] = deque()
        self._turn: set[int] = set()

    def on_tick(self, tick: Tick) -> None:
        """Mark the end of a turn on the device, and wait for an earlier one."""
        if self._turn and tick.optimizer not in self._turn:
            # another optimizer of the same turn
            self._turn.add(tick.optimizer)
            return
        self._turn = {tick.optimizer}
        if not torch.cuda.is_initialized() or torch.cuda.is_current_stream_capturing():
            return
        end = torch.cuda.Event()
        end.record()
        self._ends.append(end)
        if len(self._ends) > TURNS_AHEAD:
            self._ends.popleft().synchronize()
