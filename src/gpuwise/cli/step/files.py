"""Files of a captured step: the memory over time as a picture, PyTorch's snapshot, the table of operations."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gpuwise.cli.step.options import OwnCode
from gpuwise.errors import InputError
from gpuwise.plan.step.estimates import StepEstimate
from gpuwise.workload.capture.captured import Capture
from gpuwise.workload.row_codes import Phase


def check_files(code: OwnCode) -> None:
    """Raises InputError for a name whose kind is not known, before anything is captured."""
    for option, path, kinds in (
        ("--timeline", code.timeline, (".svg", ".html")),
        ("--snapshot", code.snapshot, (".pickle", ".pkl")),
        ("--trace", code.trace, (".csv", ".json")),
    ):
        if path is not None and path.suffix.lower() not in kinds:
            raise InputError(f"{option} {path}: the name must end with {' or '.join(kinds)}", hint=f"{option} step{kinds[0]}")
        if path is not None and not path.resolve().parent.is_dir():
            raise InputError(f"{option} {path}: the folder {path.resolve().parent} does not exist", hint="make it first")


def write_files(capture: Capture, estimate: StepEstimate, code: OwnCode) -> None:
    """Write what was asked for, and say so on stderr."""
    if code.timeline is not None:
        from gpuwise.predict.memory.timeline import memory_timeline
        from gpuwise.report.answers.memory import write_timeline

        write_timeline(
            memory_timeline(estimate.memory.capture, capacity_bytes=int(estimate.memory.capacity_bytes)), code.timeline
        )
    if code.snapshot is not None:
        from gpuwise.predict.memory.snapshot.writer import frames_of, write_snapshot

        events = estimate.memory.events
        hidden = events.storage_op[events.captured_storages :].tolist()
        write_snapshot(estimate.memory.run, code.snapshot, frames=frames_of(capture, hidden))
    if code.trace is not None:
        write_trace(list(operations(capture)), code.trace)
    for path in (code.timeline, code.snapshot, code.trace):
        if path is not None:
            sys.stderr.write(f"wrote {path}\n")


def operations(capture: Capture) -> Iterator[dict[str, Any]]:
    """The operations of the steady step in order, as rows."""
    span = capture.steady
    for i in range(span.first_op, span.end_op):
        s = capture.signatures[int(capture.op_signature[i])]
        yield {
            "op": s.op,
            "kind": s.kind.name.lower(),
            "phase": Phase(int(capture.op_phase[i])).name.lower(),
            "module": capture.modules[int(capture.op_module[i])],
            "line": capture.lines[int(capture.op_line[i])],
            "inputs": " ".join(f"{t.dtype}[{','.join(map(str, t.shape))}]" for t in s.inputs),
            "outputs": " ".join(f"{t.dtype}[{','.join(map(str, t.shape))}]" for t in s.outputs),
            "flop": s.flop,
            "bytes_read": s.bytes_read,
            "bytes_written": s.bytes_written,
            "kernels": s.n_kernels,
            "stream": int(capture.op_stream[i]),
        }


def write_trace(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """CSV or JSON by the name's ending. Raises InputError when it cannot be written there."""
    if path.suffix.lower() == ".json":
        text = json.dumps(rows, allow_nan=False, indent=1) + "\n"
    else:
        out = io.StringIO()
        table = csv.DictWriter(out, list(rows[0]) if rows else ["op"], lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
        text = out.getvalue()
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}", hint="name a place that can be written") from None
