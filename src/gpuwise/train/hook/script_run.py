# pyright: basic
"""The observers of one run of a script, in the process in which it trains: levers, watch, profiler, counters."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path
from typing import Any

from gpuwise.train.hook.journal import Writer
from gpuwise.train.hook.script import EnoughError
from gpuwise.train.hook.settings import Settings, Stop
from gpuwise.train.ticks import Tick, steady, steps_of
from gpuwise.units import KIB

COMPILER_COUNTERS = ("stats", "graph_break", "frames", "recompiles", "unimplemented")
DEVICES_AT = 2
"""Ticks until the devices in use are described: by then the model has run on them."""
LIVE_S = 1.0
"""Between tellings of losses and memory in a live run."""
LOOK_EVERY = 8
"""Ticks between looks at whether the steps are enough, once there are many."""
PATIENCE = 8.0
"""Times as long a machine that others use may take for the same seconds of steps. Rule of this project."""


def write_beginning(journal: Writer, settings: Settings) -> None:
    """The first event of a journal: which process this is, and its torch."""
    import torch

    from gpuwise.train.cuda import has_cuda

    journal.event(
        "begin",
        at_s=time.time(),
        clock_s=time.perf_counter(),
        pid=os.getpid(),
        torch=torch.__version__,
        script=settings.script,
        cuda=has_cuda(),
        threads=torch.get_num_threads(),
    )


class ScriptRun:
    """The observers of one script run (levers, watch, profiler, counters) and the condition that ends it."""

    def __init__(self, settings: Settings, journal: Writer) -> None:
        from gpuwise.train.hook.watch import Watch

        self._settings, self._journal = settings, journal
        self._ticks: list[Tick] = []
        self._n_ticks = 0
        self._counting: Any = None
        self._pace: Any = None
        self._profiler: Any = None
        self._told_s = 0.0
        self._began_s: float | None = None
        self._moves: dict[str, Path] = {}
        self._extras: list[Any] = []
        self._stack = contextlib.ExitStack()
        self.watch = Watch(
            on_tick=self._on_tick,
            before_optimizer=self._before,
            tell=journal.event,
            losses=self._keep_losses if settings.losses else None,
            save=self._redirected if settings.trial else None,
            load=self._moved if settings.trial else None,
            losses_every_s=LIVE_S if settings.live else None,
        )

    def prepare(self) -> None:
        """Install everything: seeds, replaced batches, levers, then the watch (the outermost)."""
        from gpuwise.train.hook.batches import replace_batches
        from gpuwise.train.levers.saving import saves_plain

        settings = self._settings
        if settings.seed is not None:
            seed_all(settings.seed)
        if settings.device_memory_bytes is not None:
            limit_device_memory(settings.device_memory_bytes)
        self._stack.enter_context(saves_plain())
        self._stack.enter_context(replace_batches(settings))
        if settings.levers:
            from gpuwise.train.levers.apply import apply_levers

            self._extras.append(apply_levers(settings.levers, tell=self._journal.event))
        if settings.profiling is not None:
            from gpuwise.train.hook.profiling import Profiler

            self._profiler = Profiler(settings.profiling, tell=self._journal.event)
            self._extras.append(self._profiler)
        if self._is_measured:
            from gpuwise.train.hook.cuda_events import DevicePace

            self._pace = DevicePace()
        if settings.count_flop:
            from gpuwise.train.hook.counting import Counting

            self._counting = Counting(self._journal.event)
            self._extras.append(self._counting)
        if settings.parity is not None:
            from gpuwise.train.hook.parity import ParityKeeper

            folder = Path(settings.journal).parent
            self._extras.append(
                ParityKeeper(settings.parity, settings.seed or 0, self.watch, folder=folder, tell=self._journal.event)
            )
        self.watch.open()

    def finish(self) -> None:
        """Write the values known only after the script's end (losses, peak memory, compiler counters) to the journal."""
        self.watch.read_losses()
        import torch

        memory: dict[str, Any] = {}
        if torch.cuda.is_initialized():
            statistics = torch.cuda.memory_stats()
            memory = {
                "peak_allocated_bytes": statistics.get("allocated_bytes.all.peak"),
                "peak_reserved_bytes": statistics.get("reserved_bytes.all.peak"),
                "retries": statistics.get("num_alloc_retries"),
                "device_mallocs": statistics.get("num_device_alloc"),
            }
        with contextlib.suppress(ImportError):
            import resource

            memory["peak_host_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB
        self._journal.event("memory", **memory)
        compiler = sys.modules.get("torch._dynamo.utils")
        if compiler is not None:
            counters = {name: dict(values) for name, values in compiler.counters.items() if name in COMPILER_COUNTERS}
            self._journal.event("compiler", **counters)

    def close(self) -> None:
        """Undo every replacement, in reverse order of :meth:`prepare`."""
        self.watch.close()
        for extra in reversed(self._extras):
            extra.close()
        self._extras.clear()
        self._stack.close()

    def _on_tick(self, tick: Tick) -> None:
        self._n_ticks += 1
        if self._n_ticks == DEVICES_AT:
            self._describe()
        stop = self._settings.stop
        if stop.steps is None and stop.most_steps is None:
            # a run of days keeps no list of all its steps
            self._ticks.clear()
        self._ticks.append(tick)
        self._journal.tick(tick)
        if self._settings.live and tick.at_s - self._told_s >= LIVE_S:
            self._told_s = tick.at_s
            self._journal.event("now", **device_memory())
        if self._began_s is None:
            self._began_s = tick.at_s
        counting = self._is_counting
        for extra in self._extras:
            extra.on_tick(tick)
        # our own wait would appear in the trace, whose steps are the device's own
        if self._pace is not None and self._is_measured and not (self._profiler is not None and self._profiler.is_tracing):
            self._pace.on_tick(tick)
        if counting or self._is_counting:
            # steps from here on count once the turn that is counted has ended
            self._ticks = [tick]
        # asked last: it looks at all steps, in the script's own time, and in a trace as if it were the script's
        if not any(e.is_busy for e in self._extras) and is_enough(self._settings.stop, self._ticks, self._began_s):
            raise EnoughError

    @property
    def _is_measured(self) -> bool:
        """Whether its steps are timed, to be compared with others."""
        stop = self._settings.stop
        return stop.steps is not None or stop.most_steps is not None or (self._profiler is not None and self._profiler.is_busy)

    @property
    def _is_counting(self) -> bool:
        return self._counting is not None and self._counting.is_busy

    def _describe(self) -> None:
        """Which devices are used, and how long the loop means to go on."""
        from gpuwise.train.hook.describe import describe_devices
        from gpuwise.train.hook.totals import find_epochs, find_total

        self._journal.event("devices", devices=describe_devices())
        if self._settings.levers.get("_observe"):
            with contextlib.suppress(Exception):
                # source that cannot be read gives no information
                frame = sys._getframe(1)
                self._journal.event("length", epochs=find_epochs(frame), **(find_total(frame) or {}))
        total = find_total(sys._getframe(1)) if self._settings.live else None
        if total is not None:
            self._journal.event("total", **total)

    def _before(self, optimizer: Any) -> None:
        for extra in self._extras:
            extra.before_optimizer(optimizer)

    def _keep_losses(self, losses: list[tuple[int, float]]) -> None:
        self._journal.event("losses", losses=losses[-1:] if self._settings.live else losses)

    def _redirected(self, target: Any) -> Any:
        """A trial's checkpoints go to its own folder, under the same name where no other has it."""
        if isinstance(target, (str, os.PathLike)) and self._settings.trial is not None:
            folder, path = Path(self._settings.trial), _absolute(target)
            folder.mkdir(parents=True, exist_ok=True)
            if path not in self._moves:
                name = Path(path).name
                taken = sum(Path(other).name == name for other in self._moves)
                self._moves[path] = folder / (f"{taken}-{name}" if taken else name)
            return self._moves[path]
        return target

    def _moved(self, source: Any) -> Any:
        """Path of a trial's checkpoint that the script reads again."""
        return self._moves.get(_absolute(source), source) if isinstance(source, (str, os.PathLike)) else source

    def misses(self, path: str) -> bool:
        """Whether a file missing for the script is one that a trial wrote elsewhere."""
        return _absolute(path) in self._moves


def _absolute(path: Any) -> str:
    """The path from the root, links left as they are."""
    return os.path.abspath(os.fsdecode(path))  # noqa: PTH100


def is_enough(stop: Stop, ticks: list[Tick], began_s: float) -> bool:
    """Whether the ticks so far satisfy the settings."""
    n, last_s = len(ticks), ticks[-1].at_s
    if stop.seconds is not None and last_s - began_s >= stop.seconds:
        return True
    if stop.steps is None and stop.most_steps is None:
        return False
    if n > 8 * LOOK_EVERY and n % LOOK_EVERY:
        return False
    steps = steps_of(ticks)
    if stop.most_steps is not None and len(steps) >= stop.most_steps:
        return True
    if stop.steps is None or len(steps) < stop.skip + stop.steps:
        return False
    steady_steps = steady(steps[stop.skip :])
    if len(steady_steps) < stop.steps:
        return False
    # seconds in which other programs had the processors show nothing of the loop
    seen_s = sum(s.undisturbed_s for s in steady_steps)
    return seen_s >= stop.at_least_s or sum(s.wall_s for s in steady_steps) >= PATIENCE * stop.at_least_s


def device_memory() -> dict[str, Any]:
    """Bytes that the caching allocator of the current device has allocated; empty without a device."""
    import torch

    if torch.cuda.is_initialized():
        return {"allocated_bytes": torch.cuda.memory_allocated()}
    return {}


def seed_all(seed: int) -> None:
    """Seed torch, numpy (where it is importable) and random."""
    import random

    import torch

    random.seed(seed)
    torch.manual_seed(seed)
    with contextlib.suppress(ImportError):
        import numpy

        numpy.random.seed(seed % 2**32)  # noqa: NPY002 - the generator that scripts use


def limit_device_memory(limit_bytes: int) -> None:
    """Limit the caching allocator of every device to ``limit_bytes``, as soon as the script starts the driver."""
    import torch

    from gpuwise.train.cuda import has_cuda

    def limit() -> None:
        for index in range(torch.cuda.device_count()):
            total = torch.cuda.get_device_properties(index).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, limit_bytes / total), index)

    if has_cuda():
        torch.cuda._lazy_call(limit)
