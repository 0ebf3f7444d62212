"""Reads the source in its own thread, so that a slow driver never delays a key."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpuwise.errors import GpuwiseError
from gpuwise.machine.telemetry.causes.cause import Cause
from gpuwise.machine.telemetry.frames import Frame, HostProcess
from gpuwise.machine.telemetry.monitor import Source
from gpuwise.tui.host_list import HostList

N_ABOVE = 8
"""Ancestors of a process that the tree shows at most."""
FASTEST_S = 0.05


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that one drawing of the screen needs."""

    frame: Frame
    causes: tuple[Cause, ...]
    notices: tuple[str, ...] = ()
    ancestors: Mapping[int, HostProcess] = field(default_factory=dict[int, HostProcess])
    """Processes above those on the cards, by number; only while the tree is shown."""
    hosts: tuple[HostProcess, ...] = ()
    """Processes of a machine without a card, the busiest first."""
    finished: bool = False
    """A replay has given its last frame."""


class Sampler:
    """Calls ``take`` (from its thread) with a snapshot every ``interval_s``, and ``fail`` once if the source breaks.

    ``live``: the processes are of this machine. A pause stops a replay; a live source continues, for its recording.
    """

    def __init__(
        self,
        source: Source,
        take: Callable[[Snapshot], None],
        fail: Callable[[BaseException], None],
        *,
        interval_s: float,
        live: bool,
    ) -> None:
        self._source, self._take, self._fail = source, take, fail
        # a recording behind a tap is still a recording
        self._inner: object = getattr(source, "source", source)
        self.interval_s, self.live = interval_s, live
        self.tree = False
        self._held = self._now = False
        self._asked: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._wake, self._stop = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="gpuwise-sampler", daemon=True)
        self.asking_since_s: float | None = None
        """When the refresh that is under way began; None between two."""
        self._hosts: HostList | None = None

    @property
    def seekable(self) -> bool:
        """Whether the source is a recording."""
        return hasattr(self._inner, "seek")

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, timeout_s: float = 1.0) -> bool:
        """End the thread. Returns whether it ended in time (a hanging driver blocks it)."""
        self._stop.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def hold(self, held: bool) -> None:
        """Hold or continue a replay."""
        self._held = held
        self._wake.set()

    def hurry(self) -> None:
        """Take the next frame now."""
        self._now = True
        self._wake.set()

    def wake(self) -> None:
        """Restart the wait for the next frame after a change of the interval."""
        self._wake.set()

    def seek(self, by_s: float) -> None:
        """Move in a replay and show the frame there."""

        def go() -> None:
            source: Any = self._inner
            source.seek(min(max(0.0, source.position_s + by_s), source.length_s))
            self._once()

        if self.seekable:
            self._asked.put(go)
            self._wake.set()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                started_s = time.monotonic()
                if not self._held or self._now:
                    self._now = False
                    self._once()
                while not (self._stop.is_set() or self._now):
                    left_s = max(FASTEST_S, self.interval_s) - (time.monotonic() - started_s)
                    if left_s <= 0 and not self._held:
                        break
                    self._wake.wait(None if self._held else left_s)
                    self._wake.clear()
                    while not self._asked.empty():
                        self._asked.get()()
        except (GpuwiseError, OSError) as error:
            self._fail(error)
        except Exception as error:  # noqa: BLE001 - a thread that dies silently would leave a screen that stands still
            self._fail(error)

    def _once(self) -> None:
        self.asking_since_s = time.monotonic()
        source = self._source
        frame = source.refresh()
        causes = source.causes(frame)
        above: Mapping[int, HostProcess] = {}
        hosts: tuple[HostProcess, ...] = ()
        if self.live and (self.tree or not frame.cards):
            self._hosts = self._hosts or HostList()
            if self.tree:
                above = self._hosts.above(frame, N_ABOVE)
            if not frame.cards:
                hosts = self._hosts.busiest(frame.at_s)
        self.asking_since_s = None
        self._take(Snapshot(frame, causes, source.notices, above, hosts, bool(getattr(self._inner, "finished", False))))
