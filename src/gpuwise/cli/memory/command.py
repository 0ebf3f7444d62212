"""``gpuwise memory``: what a recorded memory history of PyTorch says, and what other allocator settings would have done."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from gpuwise.cli.options import Whole
from gpuwise.cli.reports import report, write_report
from gpuwise.cli.shown import options_shown
from gpuwise.errors import InputError

if TYPE_CHECKING:
    from gpuwise.cli.shown import Shown
else:
    Shown = options_shown("memory")


def memory(
    snapshot: Path,
    *,
    conf: Annotated[str | None, Parameter(metavar="SETTINGS")] = None,
    capacity: Annotated[str | None, Parameter(metavar="SIZE")] = None,
    device: Whole | None = None,
    timeline: Path | None = None,
    out: Path | None = None,
    shown: Shown | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """What filled the GPU's memory, how fragmented is it, and what would another allocator setting change?

    Reads a file of torch.cuda.memory._dump_snapshot('snapshot.pickle'), without executing it, and replays it through a
    simulated allocator: with the recorded settings, and with others worth trying.

    Parameters
    ----------
    snapshot
        The snapshot file.
    conf
        Settings to compare with, as in PYTORCH_CUDA_ALLOC_CONF: expandable_segments:True.
    capacity
        Device memory the process could reserve: 22GiB. Reports where the run would have gone out of memory.
    device
        Number of the GPU in the file. Without it: the one with the longest history.
    timeline
        Draw memory over time: a figure (.svg) or a page (.html).
    out
        Write the replayed run as a snapshot for pytorch.org/memory_viz (.pickle).
    json
        One JSON document on the last line of stdout.
    """
    from gpuwise.files import check_target
    from gpuwise.plan.memory_report import memory_report
    from gpuwise.predict.memory.allocator.settings import AllocatorSettings
    from gpuwise.predict.memory.snapshot.reader import read_snapshot
    from gpuwise.units import parse_bytes

    check_target(timeline, (".svg", ".html", ".htm"))
    check_target(out, (".pickle", ".pkl"))
    settings = None if conf is None else AllocatorSettings.parse(conf)
    limit = None if capacity is None else int(parse_bytes(capacity))
    if limit is not None and limit < 1:
        raise InputError(f"a capacity of {capacity}", hint="write it like 22GiB")
    recorded = memory_report(read_snapshot(snapshot, device=device), settings=settings, capacity_bytes=limit)
    if timeline is not None:
        from gpuwise.report.answers.memory import write_timeline

        write_report(timeline, lambda path: write_timeline(recorded.timeline(snapshot.name), path))
    if out is not None:
        from gpuwise.predict.memory.snapshot.writer import line_frame, write_snapshot

        frames = [line_frame(w) for w in recorded.shown.history.where]
        write_report(out, lambda path: write_snapshot(recorded.shown.run, path, frames=frames))
    from gpuwise.report.answers.memory import area_of, memory_answer

    drawn = area_of(recorded.timeline(snapshot.name)) if not json and recorded.shown.run.n_events > 1 else None
    report(recorded.document(), lambda document: memory_answer(document, snapshot.name, drawn), shown, json=json)
    return 0
