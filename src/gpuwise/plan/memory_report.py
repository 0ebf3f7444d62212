"""A recorded memory history judged: what it needed, where the gaps are, and which allocator setting would have needed less."""

from __future__ import annotations

from dataclasses import dataclass

from gpuwise.errors import InputError
from gpuwise.predict.memory.allocator.run import Fragmentation
from gpuwise.predict.memory.allocator.settings import AllocatorSettings
from gpuwise.predict.memory.snapshot.reader import Snapshot
from gpuwise.predict.memory.snapshot.replay import Replay, replay
from gpuwise.predict.memory.timeline import MemoryTimeline, snapshot_timeline

WORTH_TRYING = (
    "",
    "expandable_segments:True",
    "max_split_size_mb:128",
    "max_split_size_mb:512",
    "roundup_power2_divisions:8",
)
"""The settings that PyTorch's notes on CUDA memory name against fragmentation, and none."""


@dataclass(frozen=True, slots=True)
class Trial:
    """The same history under other settings."""

    conf: str
    """As PYTORCH_CUDA_ALLOC_CONF spells it; empty for torch's defaults."""
    asked: bool
    """Whether the user requested it; the others are suggestions."""
    reserved_bytes: int
    """Most taken from the device; up to where it ran out, if it did."""
    segments: int
    """cudaMallocs, or page mappings."""
    oom_event: int | None


@dataclass(frozen=True, slots=True, eq=False)
class MemoryReport:
    """A memory snapshot and its replay through the allocator."""

    snapshot: Snapshot
    own: Replay
    """With the snapshot's own settings, as it was."""
    shown: Replay
    """Basis of the figures: the run's own settings, unless other settings or a capacity were given."""
    fragmentation: Fragmentation
    trials: tuple[Trial, ...]
    capacity_bytes: int | None

    def timeline(self, title: str) -> MemoryTimeline:
        """Memory over the recorded history."""
        return snapshot_timeline(self.shown, title=title, capacity_bytes=self.capacity_bytes)

    def document(self) -> dict[str, object]:
        """The report as one JSON document."""
        run, f, replay = self.shown.run, self.fragmentation, self.own
        peaks = run.peaks()
        return {
            "device": self.snapshot.device,
            "settings": run.settings.text,
            "peak_requested_bytes": peaks.requested_bytes,
            "peak_allocated_bytes": peaks.allocated_bytes,
            "peak_reserved_bytes": peaks.reserved_bytes,
            "segments": run.n_segments,
            "segments_freed": run.n_segments_freed,
            "recorded": {
                "peak_reserved_bytes": replay.recorded_peak_reserved_bytes,
                "end_reserved_bytes": replay.recorded_end_reserved_bytes,
                "end_allocated_bytes": replay.recorded_end_allocated_bytes,
                "allocations": replay.n_blocks,
                "same_address": replay.n_same_place,
                "out_of_memory": replay.history.ooms,
                "replay_exact": replay.exact,
                "lived_before_history": replay.history.begun,
            },
            "at_peak": {
                "reserved_bytes": f.reserved_bytes,
                "allocated_bytes": f.allocated_bytes,
                "requested_bytes": f.requested_bytes,
                "rounding_bytes": f.rounding_bytes,
                "unsplit_bytes": f.unsplit_bytes,
                "small_pool_bytes": f.small_pool_bytes,
                "split_bytes": f.split_bytes,
                "cached_bytes": f.cached_bytes,
                "pinned": [
                    {
                        "address": s.address,
                        "size_bytes": s.size_bytes,
                        "free_bytes": s.free_bytes,
                        "held_by": [self.shown.history.where[i] for i in s.storages[:8]],
                    }
                    for s in f.pinned[:8]
                ],
            },
            "largest": [{"where": w, "bytes": n} for w, n in self.timeline("").peak.largest],
            "trials": [
                {"settings": t.conf, "peak_reserved_bytes": t.reserved_bytes, "segments": t.segments, "oom_event": t.oom_event}
                for t in self.trials
            ],
            "capacity_bytes": self.capacity_bytes,
            "out_of_memory": None
            if run.oom is None
            else {
                "event": run.oom.event,
                "requested_bytes": run.oom.requested_bytes,
                "where": self.shown.history.where[run.oom.storage],
                "reason": run.oom.reason,
            },
            "notes": list(self.snapshot.notes),
        }


def memory_report(
    snapshot: Snapshot, *, settings: AllocatorSettings | None = None, capacity_bytes: int | None = None
) -> MemoryReport:
    """Replay ``snapshot`` with its own settings, with ``settings``, and with those worth trying. Raises InputError."""
    ours = replay(snapshot)
    shown = ours
    if settings is not None or capacity_bytes is not None:
        shown = replay(snapshot, settings=settings or snapshot.settings, capacity_bytes=_capacity(capacity_bytes, ours))
    trials: list[Trial] = []
    text = None if settings is None else settings.text
    worth: list[str] = [*([] if text is None else [text]), *WORTH_TRYING]
    for conf in dict.fromkeys(worth):
        trial = AllocatorSettings.parse(conf)
        if trial == snapshot.settings and conf != text:
            continue
        run = replay(snapshot, settings=trial, capacity_bytes=capacity_bytes).run
        oom = None if run.oom is None else run.oom.event
        trials.append(Trial(conf, conf == text, run.peak_reserved_bytes, run.n_segments, oom))
    return MemoryReport(snapshot, ours, shown, shown.run.fragmentation(), tuple(trials), capacity_bytes)


def _capacity(capacity_bytes: int | None, replay: Replay) -> int | None:
    """Reject a capacity below the memory in use before the history began, for which the history is not valid."""
    reserved = sum(s.size_bytes for s in replay.history.preset.segments)
    if capacity_bytes is not None and capacity_bytes < reserved:
        raise InputError(
            f"{capacity_bytes} bytes is less than the memory reserved at the start of the history ({reserved} bytes)",
            hint="record the history from the start of the program, or give a larger capacity",
        )
    return capacity_bytes
