"""A memory report as a person reads it: what was needed, the picture, the gaps, what another setting would change."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gpuwise.cli.out import console, grid, section, table_of
from gpuwise.cli.timeline_sketch import show_timeline
from gpuwise.units import format_bytes

if TYPE_CHECKING:
    from rich.console import Console

    from gpuwise.plan.memory_report import MemoryReport


def show_report(report: MemoryReport, name: str, *, timeline: Path | None, out: Path | None) -> None:
    """Print the whole answer."""
    from rich.text import Text

    to, run, history = console(), report.shown.run, report.shown.history
    peaks = run.peaks()
    settings = run.settings.text or "torch's defaults"
    facts = (f" (device {report.snapshot.device}), {report.own.n_blocks:,} allocations, {settings}",)
    to.print(Text.assemble((name, "bold"), *facts))
    to.print(
        f"  at most {format_bytes(peaks.reserved_bytes)} reserved, {format_bytes(peaks.allocated_bytes)} allocated, "
        f"{format_bytes(peaks.requested_bytes)} asked for"
    )
    _agreement(to, report)
    if run.oom is not None:
        where = history.where[run.oom.storage]
        to.print(
            Text.assemble(
                ("  out of memory", "bold red"),
                f" at event {run.oom.event:,}: {format_bytes(run.oom.requested_bytes)}" + (f" at {where}" if where else ""),
            )
        )
        to.print(f"  {run.oom.reason}")
    if run.n_events > 1:
        show_timeline(to, report.timeline(name))
    _gaps(to, report)
    _trials(to, report)
    for note in report.snapshot.notes:
        to.print(f"  {note}", style="dim")
    for path in (timeline, out):
        if path is not None:
            to.print(f"wrote {path}", style="dim")


def _agreement(to: Console, report: MemoryReport) -> None:
    replay, words = report.own, list[str]()
    if replay.exact and replay.n_same_place == replay.n_blocks:
        words.append("the simulated allocator puts every block where the real one did")
    elif replay.exact:
        words.append(
            f"the simulated allocator reserves exactly what the real one did; {replay.n_same_place:,} of "
            f"{replay.n_blocks:,} blocks are at the recorded address"
        )
    else:
        words.append(
            f"the simulated allocator reserves {format_bytes(replay.run.peak_reserved_bytes)} where the real one had "
            f"{format_bytes(replay.recorded_peak_reserved_bytes)}; {replay.n_same_place:,} of {replay.n_blocks:,} blocks at the "
            "recorded address"
        )
    if replay.history.begun:
        words.append(f"{replay.history.begun:,} blocks lived before the history begins")
    if replay.history.ooms:
        words.append(f"it ran out of memory {replay.history.ooms:,} times")
    to.print("  " + "; ".join(words), style="dim")


def _gaps(to: Console, report: MemoryReport) -> None:
    f = report.fragmentation
    table = grid(3)
    table.columns[0].no_wrap = table.columns[1].no_wrap = True
    table.columns[1].justify = "right"
    rows = [
        ("asked for", f.requested_bytes, ""),
        ("rounding", f.rounding_bytes, "sizes rounded up"),
        ("unsplit remainders", f.unsplit_bytes, "large blocks are split only where more than 1 MiB is left"),
        ("gaps in small segments", f.small_pool_bytes, "for requests up to 1 MiB"),
        ("gaps in large segments", f.split_bytes, "for requests that fit; cannot be given back"),
        ("cached segments", f.cached_bytes, "empty: given back when memory runs out"),
    ]
    for name, size, why in rows:
        if size:
            table.add_row(name, format_bytes(size), why)
    section(to, "Reserved memory when most is reserved", table)
    if f.pinned and f.split_bytes + f.small_pool_bytes >= 0.02 * max(f.reserved_bytes, 1):
        pinned = table_of(["free", "of", "kept by"], under="kept by")
        for segment in f.pinned[:5]:
            places = dict.fromkeys(report.shown.history.where[s] or "unknown place" for s in segment.storages)
            more = f" and {len(places) - 2} more place{'s' * (len(places) > 3)}" if len(places) > 2 else ""
            pinned.add_row(format_bytes(segment.free_bytes), format_bytes(segment.size_bytes), "; ".join([*places][:2]) + more)
        section(to, "Segments with most room that cannot be given back", pinned)


def _trials(to: Console, report: MemoryReport) -> None:
    base = report.own.run.peak_reserved_bytes
    table = table_of(["", "reserved", "change", "cudaMallocs"], left=("",), wrap=("",))
    table.add_row("as recorded", format_bytes(report.own.recorded_peak_reserved_bytes), "", f"{report.own.run.n_segments:,}")
    for t in report.trials:
        change = t.reserved_bytes - base
        difference = f"{'+' if change > 0 else '-'}{format_bytes(abs(change))}" if change else "none"
        name = (t.conf or "torch's defaults") + (" (asked)" if t.asked else "")
        difference = "out of memory" if t.oom_event is not None else difference
        table.add_row(name, format_bytes(t.reserved_bytes), difference, f"{t.segments:,}")
    section(to, "Other allocator settings (PYTORCH_CUDA_ALLOC_CONF), replayed", table)
