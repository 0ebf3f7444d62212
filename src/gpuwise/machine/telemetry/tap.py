"""Sinks of frames: recording, logging, exporting, alerts. None of them can delay or end the watch.

:class:`Tap` is a :class:`~gpuwise.machine.telemetry.monitor.Source` like the one it wraps, so that a screen knows of none of it.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from typing import Protocol

from gpuwise.machine.telemetry.causes.cause import Cause
from gpuwise.machine.telemetry.frames import Frame
from gpuwise.machine.telemetry.history import History
from gpuwise.machine.telemetry.monitor import Source

N_WAITING = 600
"""Maximum frames buffered for a blocked sink (a hanging disk): ten minutes at one per second."""
CLOSING_S = 10.0
"""A sink that has not finished by then is left behind: a disk that hangs must not keep the program."""


class Sink(Protocol):
    """Receives every frame with its causes."""

    @property
    def notices(self) -> tuple[str, ...]:
        """Messages for the user; empty when there is no problem."""
        ...

    def write(self, frame: Frame, causes: tuple[Cause, ...]) -> None:
        """Take one frame. Never raises for what a disk, a network or another program does."""
        ...

    def close(self) -> None:
        """Finish; safe to call twice."""
        ...


class Tap:
    """A source that passes each frame to sinks."""

    def __init__(self, source: Source, sinks: Sequence[Sink]) -> None:
        self.source, self.sinks = source, tuple(sinks)
        self._last: tuple[Frame, tuple[Cause, ...]] | None = None

    @property
    def history(self) -> History:
        """The history of the source."""
        return self.source.history

    @property
    def interval_s(self) -> float:
        """The interval of the source."""
        return self.source.interval_s

    @property
    def notices(self) -> tuple[str, ...]:
        """Those of the source and of every sink."""
        return (*self.source.notices, *(n for s in self.sinks for n in s.notices))

    def refresh(self) -> Frame:
        """The source's next frame, after every sink was given it."""
        frame = self.source.refresh()
        self.offer(frame)
        return frame

    def offer(self, frame: Frame) -> tuple[Cause, ...]:
        """Pass a frame to the sinks; returns its causes."""
        causes = self.source.causes(frame)
        self._last = (frame, causes)
        for sink in self.sinks:
            sink.write(frame, causes)
        return causes

    def causes(self, frame: Frame) -> tuple[Cause, ...]:
        """Causes from the source, computed once per frame."""
        if self._last is not None and self._last[0] is frame:
            return self._last[1]
        return self.source.causes(frame)

    def final_notices(self) -> tuple[str, ...]:
        """After closing: what could not be written."""
        return tuple(n for s in self.sinks if not getattr(s, "rings", False) for n in s.notices)

    def close(self) -> None:
        """Close the source, then every sink."""
        self.source.close()
        for sink in self.sinks:
            sink.close()


class InThread:
    """A sink that runs in its own thread, so that a slow disk does not delay the refresh."""

    def __init__(self, sink: Sink, size: int = N_WAITING) -> None:
        self._sink, self._dropped = sink, 0
        self._waiting: queue.Queue[tuple[Frame, tuple[Cause, ...]] | None] = queue.Queue(size)
        self._thread = threading.Thread(target=self._run, name="gpuwise-sink", daemon=True)
        self._thread.start()
        self._closed = False

    @property
    def notices(self) -> tuple[str, ...]:
        """Those of the output, and frames it was too slow for."""
        dropped = (f"{self._dropped} frames were not taken: writing is too slow",) if self._dropped else ()
        return (*self._sink.notices, *dropped)

    def write(self, frame: Frame, causes: tuple[Cause, ...]) -> None:
        """Queue the frame; a frame that finds the queue full is counted as lost."""
        try:
            self._waiting.put_nowait((frame, causes))
        except queue.Full:
            self._dropped += 1

    def close(self) -> None:
        """Write what is queued, then close the sink."""
        if self._closed:
            return
        self._closed = True
        try:
            self._waiting.put(None, timeout=CLOSING_S)
        except queue.Full:
            return
        self._thread.join(timeout=CLOSING_S)
        if not self._thread.is_alive():
            self._sink.close()

    def _run(self) -> None:
        while (item := self._waiting.get()) is not None:
            self._sink.write(*item)
