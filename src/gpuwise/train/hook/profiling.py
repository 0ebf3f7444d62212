"""``torch.profiler`` over some steps of a watched loop."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from gpuwise.train.hook.settings import Profiling
from gpuwise.train.ticks import BY_BACKWARD, Tick


class Profiler:
    """Starts after ``skip`` optimizer steps, ends ``steps`` of each optimizer later, and writes the trace at once.

    With ``note_steps``, that many steps before the trace are noted (:mod:`gpuwise.train.hook.syncs`). Earlier steps are
    unmodified.
    """

    def __init__(self, settings: Profiling, *, tell: Callable[..., None]) -> None:
        self._settings, self._tell = settings, tell
        self._n_steps = 0
        self._first_s = 0.0
        self._optimizers = set[int]()
        self._noting: Any = None
        self._noted_at = self._n_graphs = 0
        self._mark: Any = None
        self._profile: Any = None
        self._is_closed = False
        self._began: dict[str, Any] = {}

    @property
    def is_busy(self) -> bool:
        """Whether more steps are needed."""
        return not self._is_closed

    @property
    def is_tracing(self) -> bool:
        """Whether every event is recorded now."""
        return self._profile is not None

    def before_optimizer(self, optimizer: Any) -> None:
        """Does nothing; part of the observer interface."""

    def on_tick(self, tick: Tick) -> None:
        """Count steps; start and end notes and trace."""
        self._n_steps += 1
        if self._n_steps == 1:
            self._first_s = tick.at_s
        if self._profile is None:
            self._optimizers.add(tick.optimizer)
        self._count_graphs()
        if self._is_closed:
            return
        if self._profile is not None:
            self._profile.step()
            if self._n_steps >= self._began["at_tick"] + self._settings.steps * len(self._optimizers):
                # start no range that the end of the trace would cut
                self._finish()
            else:
                self._marked(tick)
        elif self._noting is not None:
            if self._n_steps >= self._noted_at + self._settings.note_steps:
                self._end_notes()
                self._begin(tick)
        elif self._is_time(tick):
            if self._settings.note_steps:
                self._begin_notes()
            else:
                self._begin(tick)

    def _count_graphs(self) -> None:
        """Graphs that torch.compile made, whenever there are more."""
        compiler = sys.modules.get("torch._dynamo.utils")
        n = compiler.counters["stats"].get("unique_graphs", 0) if compiler is not None else 0
        if n != self._n_graphs:
            self._n_graphs = n
            self._tell("graphs", at_tick=self._n_steps, n=n)

    def _is_time(self, tick: Tick) -> bool:
        settings = self._settings
        if settings.after_s is not None and self._n_steps >= settings.least and tick.at_s - self._first_s >= settings.after_s:
            return True
        return self._n_steps >= settings.skip

    def _begin_notes(self) -> None:
        from gpuwise.train.hook.syncs import SyncRecorder

        self._noting, self._noted_at = SyncRecorder(tell=self._tell), self._n_steps
        self._noting.open()

    def _end_notes(self) -> None:
        self._noting.close(at_tick=self._noted_at, n_ticks=self._n_steps - self._noted_at)

    def _marked(self, tick: Tick) -> None:
        """A loop without an optimizer has no step ranges in the trace: they are written here."""
        if self._mark is not None:
            self._mark.__exit__(None, None, None)
            self._mark = None
        if tick.optimizer == BY_BACKWARD:
            self._mark = torch.profiler.record_function(f"ProfilerStep#{self._n_steps}")
            self._mark.__enter__()

    def close(self) -> None:
        """Write the trace so far, where the script ended first."""
        if self._noting is not None and self._noting.is_open:
            self._end_notes()
        if self._profile is not None and not self._is_closed:
            self._finish()

    def _begin(self, tick: Tick) -> None:
        activities = [torch.profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        self._profile = torch.profiler.profile(
            activities=activities,
            record_shapes=self._settings.shapes,
            with_stack=self._settings.stacks,
            profile_memory=torch.cuda.is_available(),
        )
        began = time.perf_counter()
        self._profile.start()
        self._marked(tick)
        self._began = {"at_tick": self._n_steps, "start_s": time.perf_counter() - began, "at_s": time.time()}

    def _finish(self) -> None:
        self._is_closed = True
        if self._mark is not None:
            self._mark.__exit__(None, None, None)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self._profile.stop()
        self._profile.export_chrome_trace(self._settings.trace)
        self._tell("trace", file=self._settings.trace, n_ticks=self._n_steps - self._began["at_tick"], **self._began)
        self._profile = None
