"""One operation as a person reads it: the work, then a line for each device."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from gpuwise.cli.out import console, table_of
from gpuwise.interval import P80
from gpuwise.plan.one_op import Answer, OperationTime
from gpuwise.predict.estimate import to_document
from gpuwise.units import format_bytes, format_duration, format_number, format_rate, format_usd

if TYPE_CHECKING:
    from rich.console import Console

    from gpuwise.plan.one_model import ModelAnswer, ModelRow
    from gpuwise.predict.estimate import Estimate

WIDE = 100
"""Columns from which intervals stand in the table."""


RATES = {
    "stream": "rates count bytes read and bytes written",
    "copy": "rates of links count one direction, of memory reading and writing; host copies from pinned memory",
    "allreduce": "rates are bus bandwidth, one direction: 2 (n - 1) / n x size / time",
}
"""What a rate counts."""


def show(answer: Answer | ModelAnswer) -> None:
    """Print the whole answer."""
    to = console()
    if isinstance(answer, Answer):
        _show_kernel(to, answer)
    else:
        _show_model(to, answer)


def _show_kernel(to: Console, answer: Answer) -> None:
    from rich.text import Text

    w = answer.work
    head = f"{w.kind} {w.text}" if w.flop else f"{w.kind} of {_size(w.bytes / (2 if w.kind == 'stream' else 1))}"
    to.print(Text.assemble((head, "bold"), f", {w.dtype}" if w.flop else ""))
    if w.flop:
        intensity = "" if w.intensity is None else f", {format_number(w.intensity)} FLOP per byte"
        to.print(f"  {format_rate(w.flop, _unit(w.dtype))}, {_size(w.bytes)} to move{intensity}")
    rows = [*answer.rows, *([answer.against] if answer.against else [])]
    paths, faster = any(r.path for r in rows), any(r.speedup for r in rows)
    wide = to.width >= WIDE
    columns = ["device", *(["path"] if paths else []), "time", *([f"{P80} interval"] if wide else [])]
    columns += ["rate", "of peak", "bound by", *(["against CPU"] if faster else [])]
    table = table_of(
        columns,
        left=("device", "path", "bound by"),
        wrap=("device", "path"),
        gives_way=(f"{P80} interval", "bound by"),
    )
    last = ""
    for r in rows:
        rate = (
            format_rate(r.flop_per_s, f"{_unit(w.dtype)}/s")
            if r.flop_per_s is not None
            else format_rate(r.bytes_per_s or 0.0, "B/s")
        )
        name = "" if paths and r.device == last else r.device
        last = r.device
        table.add_row(
            name,
            *([r.path] if paths else []),
            format_duration(r.time_s.expected),
            *([_span(r.time_s, format_duration)] if wide else []),
            rate,
            f"{100 * r.share_of_peak:.0f} %",
            "L2 cache" if r.bound == "cache" else r.bound,
            *([_times(r.speedup, wide)] if faster else []),
        )
    to.print()
    to.print(table)
    _footer(to, rows, answer)


def _show_model(to: Console, answer: ModelAnswer) -> None:
    from rich.text import Text

    what = "one more token" if answer.kind == "decode" else "training"
    to.print(Text.assemble((f"{answer.model.name}, {what}", "bold"), f": {answer.text}"))
    cache = "" if answer.cache_bytes is None else f", {_size(answer.cache_bytes)} of cache"
    weights = "" if answer.kind == "train" else f", {_size(answer.weight_bytes)} of weights{cache}"
    to.print(f"  {format_rate(answer.flop, 'FLOP')}{weights}")
    rows = [*answer.rows, *([answer.against] if answer.against else [])]
    wide, faster = to.width >= WIDE, any(r.speedup for r in rows)
    cost = any(r.cost_usd for r in rows)
    columns = ["device", "tokens/s", *([f"{P80} interval"] if wide else []), "time"]
    columns += [*(["cost"] if cost else []), "bound by", *(["against CPU"] if faster else [])]
    table = table_of(columns, left=("device", "bound by"), wrap=("device", "bound by"), gives_way=(f"{P80} interval",))
    for r in rows:
        table.add_row(
            r.device,
            "-" if r.tokens_per_s is None else _plain(r.tokens_per_s.expected),
            *(["-" if r.tokens_per_s is None else _span(r.tokens_per_s, _plain)] if wide else []),
            "-" if r.time_s is None else format_duration(r.time_s.expected),
            *(["-" if r.cost_usd is None else format_usd(r.cost_usd.expected)] if cost else []),
            r.bound,
            *([_times(r.speedup, wide)] if faster else []),
        )
    to.print()
    to.print(table)
    _footer(to, rows, None)


def _footer(to: Console, rows: list[OperationTime] | list[ModelRow], answer: Answer | None) -> None:
    notes: dict[str, None] = {}
    for note in dict.fromkeys(note for r in rows for note in r.notes):
        devices = dict.fromkeys(r.device for r in rows if note in r.notes)
        notes[f"{', '.join(devices)}: {note}"] = None
    bases = {r.time_s.basis for r in rows if r.time_s is not None}
    to.print()
    for note in notes:
        to.print(f"  {note}", style="dim")
    words = "device times; expected values" + (
        f" with {P80} intervals" if to.width >= WIDE else " (intervals from 100 columns on, or --json)"
    )
    if answer is not None:
        peak = f"the dense {answer.work.dtype} rate" if answer.work.flop else "the bandwidth"
        words += f"; peak: {peak} of the data sheet, or of the cache that is named"
    if answer is not None and answer.work.kind in RATES:
        words += f"; {RATES[answer.work.kind]}"
    to.print(f"  {words}; basis: {', '.join(sorted(bases)) or 'none'}", style="dim")


def _unit(dtype: str) -> str:
    return "OP" if dtype.startswith("int") else "FLOP"


def _size(n: float) -> str:
    """Decimal bytes: what a person types as 1GB comes back as 1 GB."""
    return format_rate(n, "B") if n >= 1000 else format_bytes(n)


def _plain(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _span(value: Estimate, say: Callable[[float], str]) -> str:
    low, high = say(value.low), say(value.high)
    unit = low.partition(" ")[2]
    return f"{low.partition(' ')[0]} to {high}" if unit and unit == high.partition(" ")[2] else f"{low} to {high}"


def _times(value: Estimate | None, wide: bool) -> str:
    if value is None:
        return ""
    interval = f" ({_factor(value.low)} to {_factor(value.high)})" if wide else ""
    return f"{_factor(value.expected)}x{interval}"


def _factor(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


# --- documents ---


def document(answer: Answer | ModelAnswer) -> dict[str, object]:
    """The answer as plain values in SI units, every estimate as ``{low, expected, high, basis}``."""
    if isinstance(answer, Answer):
        w = answer.work
        head = {"kind": w.kind, "dtype": w.dtype, "flop": w.flop, "bytes": w.bytes, "flop_per_byte": w.intensity}
    else:
        head = {
            "kind": answer.kind,
            "model": answer.model.id,
            "text": answer.text,
            "flop": answer.flop,
            "weight_bytes": answer.weight_bytes,
            "cache_bytes": answer.cache_bytes,
        }
    against = None if answer.against is None else _row(answer.against)
    return {"operation": head, "rows": [_row(r) for r in answer.rows], "against": against}


def _row(r: OperationTime | ModelRow) -> dict[str, object]:
    more = {"share_of_peak": r.share_of_peak} if isinstance(r, OperationTime) else {"fits": r.time_s is not None}
    return cast("dict[str, object]", to_document(r)) | more
