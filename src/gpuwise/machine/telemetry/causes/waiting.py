"""Rules for cards that wait: for one thread, a data loader, a disk, or without work; and for memory that runs out."""

from __future__ import annotations

from collections.abc import Iterator

from gpuwise.machine.telemetry.causes.cause import BUSY, Cause, Severity, span_words
from gpuwise.machine.telemetry.frames import Card, Frame, Host, HostProcess, ProcessRow
from gpuwise.units import format_bytes

NOTHING_RUNS = 0.05
"""Utilisation below which a card with processes on it is reported as unused."""
LITTLE_LEFT = 0.03
"""Share of the memory: with less than this free an allocator starts to return and ask again."""
HOST_FULL = 0.95
"""Share of all cores."""
LONG_ENOUGH_S = 5.0
"""A card between two steps idles for a moment: what it did over at least this long is judged, where it was watched so long."""


def waiting(card: Card, frame: Frame) -> Iterator[Cause]:
    """Little runs on a card that someone uses: who keeps it waiting? The first that explains it is named."""
    share = _utilization(card)
    rows = [r for r in card.processes or () if r.gpu.kind != "graphics"]
    if share is None or share >= BUSY or not rows:
        return
    cause = next((c for row in rows if (c := _reason(card, row, frame.host)) is not None), None)
    if cause is not None:
        yield cause
    elif share < NOTHING_RUNS:
        memory_bytes = sum(r.gpu.memory_bytes or 0 for r in rows)
        yield Cause(
            "unused",
            card.number,
            f"GPU {card.number} does nothing, though {_people(rows)} it.",
            (_idle(card), *((f"{format_bytes(memory_bytes)} held",) if memory_bytes else ())),
            None,
            Severity.NOTE,
            "the processes wait: for input, a network, another rank or a person",
        )


def _reason(card: Card, row: ProcessRow, host: Host) -> Cause | None:
    process = row.host
    name, n = _name(process), card.number
    evidence = [_idle(card)]
    if host.cpu_share is not None and host.cpu_share >= HOST_FULL and host.n_cores:
        evidence.append(f"all {host.n_cores} cores of the machine are in use")
    if process.n_workers_pegged:
        evidence.append(f"{process.n_workers_pegged} of its {process.n_workers} child processes use a core each, whole")
        return Cause(
            "data-loader",
            n,
            f"GPU {n} waits for the worker processes of {name}, most likely its data loader.",
            tuple(evidence),
            None,
            Severity.SLOWS,
            "more workers, cheaper preprocessing, or data prepared in advance",
        )
    if process.n_workers_waiting:
        evidence.append(f"{process.n_workers_waiting} of its {process.n_workers} child processes wait for a disk")
        return Cause(
            "disk",
            n,
            f"GPU {n} waits for the disk: so do the worker processes of {name}.",
            tuple(evidence),
            None,
            Severity.SLOWS,
            "a faster disk, larger files, or data kept in memory",
        )
    if process.pegged_thread is not None:
        evidence.append(f"its thread {process.pegged_thread!r} uses a core whole")
        return Cause(
            "one-thread",
            n,
            f"GPU {n} waits for one processor thread of {name}.",
            tuple(evidence),
            None,
            Severity.SLOWS,
            "larger batches, torch.compile or CUDA graphs; input in worker processes; no .item() or print in the loop",
        )
    if process.state == "D":
        return Cause(
            "disk",
            n,
            f"GPU {n} waits for {name}, which waits for a disk or a device.",
            tuple(evidence),
            None,
            Severity.SLOWS,
            "a faster disk, or data kept in memory",
        )
    return None


def _utilization(card: Card) -> float | None:
    """Over what was watched of the last minute where that is long enough, else now."""
    recent = card.recent
    if recent is not None and recent.utilization is not None and recent.length_s >= LONG_ENOUGH_S:
        return recent.utilization
    return card.sample.utilization


def _idle(card: Card) -> str:
    recent = card.recent
    if recent is not None and recent.utilization is not None and recent.length_s >= LONG_ENOUGH_S:
        return f"in use {recent.utilization * 100:.0f} % of the last {span_words(recent.length_s)}"
    return f"in use {(card.sample.utilization or 0.0) * 100:.0f} % now"


def _name(process: HostProcess) -> str:
    return f"process {process.pid}" + (f" ({process.name})" if process.name else "")


def _people(rows: list[ProcessRow]) -> str:
    return f"{_name(rows[0].host)} is on" if len(rows) == 1 else f"{len(rows)} processes are on"


def memory(card: Card, frame: Frame) -> Iterator[Cause]:
    """The card's memory is nearly full."""
    total, used_bytes = card.sample.memory_total_bytes, card.sample.memory_used_bytes
    if not total or used_bytes is None:
        return
    free = total - used_bytes - (card.sample.memory_reserved_bytes or 0)
    if free < LITTLE_LEFT * total:
        yield Cause(
            "memory-full",
            card.number,
            f"GPU {card.number} has {format_bytes(max(0, free))} of memory left.",
            (f"{format_bytes(used_bytes)} of {format_bytes(total)} used",),
            None,
            Severity.NOTE,
            "fine where a server took it all on purpose; in training an allocator that asks again and again costs time",
        )


def host_memory(host: Host) -> Iterator[Cause]:
    """The machine's memory is nearly full."""
    total, available_bytes = host.memory_total_bytes, host.memory_available_bytes
    if total and available_bytes is not None and available_bytes < LITTLE_LEFT * total:
        yield Cause(
            "host-memory-full",
            None,
            f"The machine has {format_bytes(available_bytes)} of memory left.",
            (f"of {format_bytes(total)}",),
            None,
            Severity.SLOWS,
            "fewer data-loader workers, or smaller caches",
        )
