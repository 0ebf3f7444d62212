# pyright: basic
"""Reads the loss of a running script now and then without synchronising its device."""

from __future__ import annotations

import time
from typing import Any

import torch


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
