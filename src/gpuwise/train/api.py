"""Profiling inside a program: ``with gpuwise.profile() as p:`` around the loop, ``gpuwise.watch(loader)`` around its data."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from gpuwise.errors import GpuwiseError, require

if TYPE_CHECKING:
    from gpuwise.train.profile.result import Profile

T = TypeVar("T")


class profile:
    """Watch and trace the training loop inside a ``with`` block; ``found`` has its steps' time by part.

    >>> with gpuwise.profile() as p:                # doctest: +SKIP
    ...     train()
    >>> print(p.found.verdict.sentence)             # doctest: +SKIP

    The first ``steps`` optimizer steps after the warm-up are only timed, three are noted by line, five are traced. The block
    then runs to its end, and its exceptions are raised. All replaced parts of PyTorch are restored.
    """

    def __init__(self, *, steps: int = 20, stacks: bool = True) -> None:
        self._steps, self._stacks = steps, stacks
        self._found: Profile | None = None
        self._why = "the block has not ended"
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._watch: Any = None

    @property
    def found(self) -> Profile:
        """Result of the profile. Raises GpuwiseError before the end, and if the block had fewer than two steps."""
        if self._found is None:
            raise GpuwiseError(f"no profile: {self._why}", hint="train for some 30 optimizer steps inside the `with` block")
        return self._found

    def __enter__(self) -> profile:
        require("torch", "profile()")
        import torch

        from gpuwise.train.cuda import has_cuda
        from gpuwise.train.hook.cuda_events import DevicePace
        from gpuwise.train.hook.journal import Writer
        from gpuwise.train.hook.profiling import Profiler
        from gpuwise.train.hook.settings import Profiling
        from gpuwise.train.hook.watch import Watch
        from gpuwise.train.levers.saving import saves_plain
        from gpuwise.train.profile.session import CLEAN_S, NOTED_STEPS, TRACED_STEPS, WARM_UP_STEPS

        self._folder = tempfile.TemporaryDirectory(prefix="gpuwise-profile-")
        folder = Path(self._folder.name)
        self._journal = Writer(folder / "journal.jsonl")
        self._journal.event(
            "begin",
            at_s=time.time(),
            pid=os.getpid(),
            torch=torch.__version__,
            script=sys.argv[0],
            cuda=has_cuda(),
            threads=torch.get_num_threads(),
        )
        settings = Profiling(
            str(folder / "trace.json.gz"),
            skip=WARM_UP_STEPS + self._steps,
            steps=TRACED_STEPS,
            stacks=self._stacks,
            note_steps=NOTED_STEPS,
            after_s=CLEAN_S,
        )
        self._profiler = Profiler(settings, tell=self._journal.event)
        self._pace = DevicePace()
        self._watch = Watch(on_tick=self._on_tick, tell=self._journal.event)
        self._saving = saves_plain()
        self._saving.__enter__()
        self._watch.open()
        return self

    def _on_tick(self, tick: Any) -> None:
        self._journal.tick(tick)
        self._profiler.on_tick(tick)
        if self._profiler.is_busy and not self._profiler.is_tracing:
            self._pace.on_tick(tick)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        from gpuwise.train.hook.describe import describe_devices

        self._watch.close()
        self._journal.event("devices", devices=describe_devices())
        self._saving.__exit__(None, None, None)
        self._profiler.close()
        self._journal.event("end", reason="end" if error is None else "error", code=0)
        self._journal.close()
        if self._folder is None:
            return
        try:
            self._conclude(Path(self._folder.name))
        except GpuwiseError as failed:
            # what the block raised matters more than that there is no profile of it
            self._why = failed.message
        finally:
            self._folder.cleanup()

    def _conclude(self, folder: Path) -> None:
        from gpuwise.train.hook.journal import read_journal
        from gpuwise.train.profile.result import profile_run
        from gpuwise.train.profile.run_facts import ran_on_gpu, run_facts

        journal = read_journal(folder / "journal.jsonl")
        facts = run_facts(journal)
        if facts is None:
            self._why = f"fewer than two steps of the loop were seen ({len(journal.ticks)} optimizer steps)"
            return
        trace = folder / "trace.json.gz"
        found = trace if facts.has_trace and trace.exists() else None
        self._found = profile_run(Path(sys.argv[0]).name or "python", facts, found, on_gpu=ran_on_gpu(journal))


def watch(loader: Iterable[T]) -> Iterator[T]:
    """The batches of ``loader``, their time counted as waiting for data: for loaders that are no ``DataLoader``.

    Inside :class:`profile`, and in a script that ``gpuwise profile`` runs; elsewhere the batches pass through as they are.
    """
    hook = sys.modules.get("gpuwise.train.hook.watch")
    active: list[Any] = hook.ACTIVE if hook is not None else []
    iterator = iter(loader)
    while True:
        try:
            batch = _next(active[-1], iterator) if active else next(iterator)
        except StopIteration:
            return
        yield batch


def _next(watching: Any, iterator: Iterator[T]) -> T:
    """Timed, and marked in the trace."""
    import torch

    with torch.profiler.record_function("gpuwise: data"):
        return watching.next_of(iterator)
