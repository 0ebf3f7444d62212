"""A run of ``gpuwise bench`` for people."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gpuwise.cli.out import console, grid, section, table_of
from gpuwise.units import format_duration, format_rate

if TYPE_CHECKING:
    from rich.console import Console

    from gpuwise.cli.bench_against import Speedup
    from gpuwise.machine.bench.expect import Judged
    from gpuwise.machine.bench.run import Outcome
    from gpuwise.machine.bench.subjects import Subject
    from gpuwise.records.record import Record

NOTED_BUSY = 0.05
"""Share of the cores taken by others that is worth a word."""


def show(
    outcome: Outcome, judged: Sequence[Judged], compared: Sequence[Speedup], below: Sequence[Judged],
    threshold: float | str | None, *, saved_in: Path | None,
) -> None:  # fmt: skip
    """The verdict first, then each device's results, the comparison, and what was left out."""
    to = console()
    to.print(headline(outcome, judged, below, threshold), style="bold")
    for device in dict.fromkeys(j.subject.device for j in judged):
        _device(to, [j for j in judged if j.subject.device == device])
    if any(j.record.value is not None for j in judged):
        to.print()
        to.print("+-: half the 95 % interval of the median over it; ? where six samples took too long", style="dim")
    if compared:
        _speedups(to, compared)
    _left_out(to, outcome)
    if saved_in is not None:
        to.print()
        to.print(f"kept in {saved_in}", style="dim", soft_wrap=True)


def headline(outcome: Outcome, judged: Sequence[Judged], below: Sequence[Judged], threshold: float | str | None) -> str:
    """One sentence: wrong answers before failures before slow ones."""
    if outcome.wrong:
        names = ", ".join(dict.fromkeys(r.device_name for r in outcome.wrong))
        return f"WRONG ANSWERS from {names}: {_counted(outcome.wrong)}"
    parts: list[str] = []
    slow = sorted({j.subject.label for j in judged if j.slow_among})
    if slow:
        parts.append(f"{', '.join(slow)} slower than its siblings")
    low = [j for j in judged if str(j.verdict) == "low"]
    known = [j for j in judged if str(j.verdict) != "unknown"]
    if low:
        parts.append(f"{len(low)} of {len(known)} below their normal range")
    if outcome.failed:
        parts.append(f"{len(outcome.failed)} failed")
    if below and threshold is not None:
        parts.append(f"{len(below)} below --fail-below {threshold}")
    if not parts:
        right = "every answer right" if judged else "nothing was measured"
        parts.append(f"{len(known)} of {len(known)} in their normal range" if known else f"{len(judged)} measured, {right}")
    if outcome.interrupted:
        parts.append("interrupted: what was measured is kept")
    return "; ".join(parts)


def _counted(records: Sequence[Record]) -> str:
    names = [r.measurement for r in records]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _device(to: Console, rows: Sequence[Judged]) -> None:
    from gpuwise.machine.bench.cases import FAMILIES

    subject, order = rows[0].subject, list(FAMILIES)
    judged = any(j.expectation is not None for j in rows)
    past = any(j.before is not None for j in rows)
    columns = ["measurement", "measured", "+-"]
    columns += ["expected", "of peak"] if judged else []
    columns += ["before"] if past and not judged else []
    table = table_of([*columns, "verdict"], left=("measurement", "verdict"), wrap=("measurement", "verdict"))
    for j in sorted(rows, key=lambda j: order.index(j.case.family)):
        cells = [j.case.key, _measured(j), _width(j.record)]
        if judged:
            cells += [_expected(j), _share(j.of_peak)]
        elif past:
            cells.append("" if j.before is None else format_value(j.before, j.case.unit))
        table.add_row(*cells, _verdict(j))
    section(to, _title(subject), table)
    line = conditions_line([j.record for j in rows])
    if line:
        to.print(f"  {line}", style="dim")
    reasons = sorted({j.reason for j in rows if j.expectation is None and j.reason and j.record.failed is None})
    if reasons:
        to.print(f"  no expectation: {'; '.join(reasons)}", style="dim")


def _title(subject: Subject) -> str:
    known = subject.id or ("not in the catalogue" if subject.kind == "cuda" else "")
    size = f"{subject.units} cores" if subject.kind == "cpu" else ""
    return f"{subject.label}  {subject.name}" + "".join(f", {part}" for part in (known, size) if part)


def format_value(value: float, unit: str) -> str:
    """``703 TFLOP/s``, ``5.1 us``, ``1,240 /s``."""
    if unit == "s":
        return format_duration(value) if value >= 1 else (f"{value * 1e3:.3g} ms" if value >= 1e-3 else f"{value * 1e6:.3g} us")
    if unit == "1/s":
        return f"{value:,.0f} /s" if value >= 10 else f"{value:.2g} /s"
    return format_rate(value, unit)


def _measured(j: Judged) -> str:
    return "failed" if j.record.value is None else format_value(j.record.value, j.case.unit)


def _width(record: Record) -> str:
    """Half the 95 % interval of the median; ``?`` where too few samples were taken to have one."""
    if record.value is None:
        return ""
    if record.low is None or record.high is None:
        return "?"
    return f"{(record.high - record.low) / (2 * record.value):.1%}"


def _expected(j: Judged) -> str:
    e = j.expectation
    if e is None:
        return "-"
    if j.case.unit == "s":
        return f"{format_value(e.low, 's')} - {format_value(e.high, 's')}"
    top = format_value(e.high, j.case.unit)
    number, _, unit = top.partition(" ")
    scale = float(number.replace(",", "")) / e.high
    return f"{e.low * scale:.3g} - {number} {unit}"


def _share(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def _verdict(j: Judged) -> str:
    from rich.markup import escape

    if j.record.failed is not None:
        return escape(j.record.failed)
    if j.record.correct is False:
        return "WRONG ANSWER"
    words = [] if str(j.verdict) == "unknown" else [str(j.verdict)]
    if str(j.verdict) == "low" and j.reason:
        words.append(f"({j.reason})")
    if j.slow_among:
        words.append(f"slowest of {j.slow_among} siblings")
    if not words:
        words.append("right" if j.record.correct else "")
    return " ".join(words)


def conditions_line(records: Sequence[Record]) -> str:
    """Clocks, power, temperature and what held the clocks back, over all of a device's records."""

    def numbers(name: str) -> list[float]:
        found = [r.conditions.get(name) for r in records]
        return [float(v) for v in found if isinstance(v, int | float) and not isinstance(v, bool)]

    parts: list[str] = []
    clocks = numbers("sm_clock_hz")
    if clocks:
        parts.append(f"clock {min(clocks) / 1e9:.2f} to {max(clocks) / 1e9:.2f} GHz")
    power = numbers("power_w")
    if power:
        limit = numbers("power_limit_w")
        parts.append(f"up to {max(power):.0f} W" + (f" of {min(limit):.0f}" if limit else ""))
    heat = numbers("temperature_c")
    if heat:
        parts.append(f"up to {max(heat):.0f} C")
    events: dict[str, float] = {}
    for record in records:
        for name, value in record.conditions.items():
            if name.startswith("event ") and isinstance(value, int | float):
                events[name[6:]] = max(events.get(name[6:], 0.0), float(value))
    if events:
        parts.append("held back by " + ", ".join(f"{n} (up to {v:.0%} of a measurement)" for n, v in events.items()))
    busy = numbers("others_busy")
    if busy and max(busy) > NOTED_BUSY:
        parts.append(f"other programs took up to {max(busy):.0%} of the cores meanwhile: measure again when they rest")
    if any("unwatched" in r.conditions for r in records):
        parts.append("clocks and power unknown: no driver library answers")
    return "; ".join(parts)


def _speedups(to: Console, compared: Sequence[Speedup]) -> None:
    for key in dict.fromkeys((s.product, s.dtype) for s in compared):
        rows = [s for s in compared if (s.product, s.dtype) == key]
        body = grid(3)
        for s in rows:
            if s.measured is not None:
                body.add_row(s.gpu, f"{times(s.measured)} x", "measured")
            elif s.predicted is not None:
                p = s.predicted
                body.add_row(s.gpu, f"{times(p.expected)} x", f"predicted, {times(p.low)} to {times(p.high)}, {p.basis}")
            else:
                body.add_row(s.gpu, "-", s.reason)
        section(to, f"{key[0]} in {key[1]}: {format_value(rows[0].processor_s, 's')} on the processor; faster by", body)


def times(ratio: float) -> str:
    """Three digits: ``2,740``, ``203``, ``0.85``."""
    return f"{float(f'{ratio:.3g}'):,.10g}"


def _left_out(to: Console, outcome: Outcome) -> None:
    reasons: dict[str, list[str]] = {}
    for case, subject, why in outcome.skipped:
        reasons.setdefault(f"{subject.label}: {why}", []).append(case.key)
    if reasons or outcome.late:
        body = grid(2)
        for why, keys in reasons.items():
            body.add_row(", ".join(keys), why)
        if outcome.late:
            keys = [c.key for c, _ in outcome.late]
            body.add_row(", ".join(keys), "no time left; without --quick there is")
        section(to, "not measured", body)
