"""A run of ``gpuwise bench`` for people."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gpuwise.cli.out import console, grid, section, table_of
from gpuwise.units import format_measured

if TYPE_CHECKING:
    from rich.console import Console

    from gpuwise.cli.bench.against import Speedup
    from gpuwise.machine.bench.cases import BenchCase
    from gpuwise.machine.bench.expect import Judgement
    from gpuwise.machine.bench.run import Outcome
    from gpuwise.machine.bench.subjects import Subject
    from gpuwise.records.record import Record

NOTED_BUSY, CROWDED = 0.05, 0.3
"""Shares of the cores taken by others that are worth a word, and a word at the top."""


def show(
    outcome: Outcome,
    judged: Sequence[Judgement],
    compared: Sequence[Speedup],
    below: Sequence[Judgement],
    threshold: float | str | None,
    without: tuple[str, Sequence[BenchCase]] = ("", ()),
    *,
    saved_in: Path | None,
) -> None:
    """The verdict first, then each device's results, the comparison, and what was left out."""
    to = console()
    to.print(headline(outcome, judged, below, threshold), style="bold")
    for device in dict.fromkeys(j.subject.device for j in judged):
        _device(to, [j for j in judged if j.subject.device == device])
    nothing_expected = any(j.expectation is None for j in judged)
    if any(j.record.value is not None for j in judged) and (nothing_expected or to.width >= WIDE):
        to.print()
        to.print("+-: half the median's 95 % interval over it; ? where six samples took too long", style="dim")
    if compared:
        _speedups(to, compared)
    _left_out(to, outcome, without)
    if saved_in is not None:
        to.print()
        to.print(f"kept in {saved_in}", style="dim", soft_wrap=True)


def headline(outcome: Outcome, judged: Sequence[Judgement], below: Sequence[Judgement], threshold: float | str | None) -> str:
    """One sentence: wrong answers before failures before slow ones."""
    if outcome.wrong:
        names = ", ".join(dict.fromkeys(r.device_name for r in outcome.wrong))
        return f"WRONG ANSWERS from {names}: {_counted(outcome.wrong)}"
    parts: list[str] = []
    slow = sorted({j.subject.label for j in judged if j.slow_among})
    if slow:
        parts.append(f"{', '.join(slow)} slower than its siblings")
    low = [j for j in judged if str(j.verdict) == "low"]
    judgeable = [j for j in judged if str(j.verdict) != "unknown"]
    if low:
        parts.append(f"{len(low)} of {len(judgeable)} below their normal range")
    if outcome.failed:
        parts.append(f"{len(outcome.failed)} failed")
    if below and threshold is not None:
        parts.append(f"{len(below)} below --fail-below {threshold}")
    if not parts:
        right = "every answer right" if judged else "nothing was measured"
        if judgeable:
            parts.append(f"{len(judgeable)} of {len(judgeable)} in their normal range")
        elif judged:
            parts.append(f"{len(judged)} measured, {right}, nothing to compare with but your own records")
        else:
            parts.append(right + (f": {_load()}, run it again when it rests, or without --quick" if outcome.late else ""))
    crowd = max([n for j in judged if isinstance(n := j.record.conditions.get("others_busy"), float)], default=0.0)
    if crowd > CROWDED:
        parts.append(f"in a crowd: other programs took up to {crowd:.0%} of the cores, and idle this machine is faster")
    if outcome.interrupted:
        parts.append("interrupted: what was measured is kept")
    return "; ".join(parts)


def _load() -> str:
    """How busy the machine is, as far as the system tells."""
    import os

    from gpuwise.machine.devices.cpu import usable_cores

    busy = f" (a load of {os.getloadavg()[0]:.0f} on {usable_cores()} cores)" if hasattr(os, "getloadavg") else ""
    return f"the machine is too busy{busy} for what time there was"


def _counted(records: Sequence[Record]) -> str:
    names = [r.measurement for r in records]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _device(to: Console, rows: Sequence[Judgement]) -> None:
    from gpuwise.machine.bench.cases import FAMILIES

    subject, order = rows[0].subject, list(FAMILIES)
    judged = any(j.expectation is not None for j in rows)
    past = any(j.before is not None for j in rows) and not judged
    widths = not judged or to.width >= WIDE
    columns = ["measurement", "measured", *(["+-"] if widths else []), *(["expected", "of peak"] if judged else [])]
    columns += ["before"] if past else []
    table = table_of(
        [*columns, "verdict"], left=("measurement", "verdict"), wrap=("measurement",), gives_way=("+-", "of peak", "before")
    )
    for j in sorted(rows, key=lambda j: order.index(j.case.family)):
        cells = [j.case.words, _measured(j), *([_width(j.record)] if widths else [])]
        if judged:
            cells += [_expected(j), _share(j.of_peak)]
        if past:
            cells.append("" if j.before is None else format_measured(j.before, j.case.unit))
        table.add_row(*cells, _verdict(j))
    section(to, _title(subject), table)
    for line in _notes(rows):
        indented(to, line)
    if any(j.of_peak is not None for j in rows):
        indented(to, "peak: the data sheet's dense rate in the format of the row, or its bandwidth")


WIDE = 100
"""Columns from which the interval of each result is shown beside what is expected."""


def _notes(rows: Sequence[Judgement]) -> list[str]:
    """What stands beside the figures of one device."""
    notes = [f"{j.case.key} failed: {j.record.failed}" for j in rows if j.record.failed is not None]
    slow = [j for j in rows if j.slow_among]
    if slow:
        among = f"{len(slow)} of {len(rows)} measurements" if len(slow) > 1 else slow[0].case.key
        notes.append(f"slower than its siblings, {slow[0].slow_among} GPUs of a kind, in {among}")
    line = conditions_line([j.record for j in rows])
    if line:
        notes.append(line)
    reasons = sorted({j.reason for j in rows if j.expectation is None and j.reason and j.record.failed is None})
    if reasons:
        notes.append(f"no expectation: {'; '.join(reasons)}")
    return notes


def _title(subject: Subject) -> str:
    device_id = subject.id or ("not in the catalogue" if subject.kind == "cuda" else "")
    size = f"{subject.units} cores" if subject.kind == "cpu" else ""
    return f"{subject.label}  {subject.name}" + "".join(f", {part}" for part in (device_id, size) if part)


def _measured(j: Judgement) -> str:
    return "failed" if j.record.value is None else format_measured(j.record.value, j.case.unit)


def _width(record: Record) -> str:
    """Half the 95 % interval of the median; ``?`` where too few samples were taken to have one."""
    if record.value is None:
        return ""
    if record.low is None or record.high is None:
        return "?"
    share = (record.high - record.low) / (2 * record.value)
    return f"{share:.1%}" if share < 0.1 else (f"{share:.0%}" if share < 1.0 else "> 100%")


def _expected(j: Judgement) -> str:
    """The range in the unit of what was measured beside it."""
    e, value = j.expectation, j.record.value
    if e is None or value is None:
        return "-"
    number = format_measured(value, j.case.unit).partition(" ")[0]
    scale = float(number.replace(",", "")) / value
    return f"{_plain(e.low * scale)} - {_plain(e.high * scale)}"


def _plain(value: float) -> str:
    """Three digits without an exponent."""
    return f"{float(f'{value:.3g}'):,.10g}"


def _share(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def _verdict(j: Judgement) -> str:
    if j.record.failed is not None:
        return "failed"
    if j.record.correct is False:
        return "WRONG"
    if str(j.verdict) == "unknown":
        return "right" if j.record.correct else ""
    return str(j.verdict)


def conditions_line(records: Sequence[Record]) -> str:
    """Clocks, power, temperature and what held the clocks back, over all of a device's records."""

    def numbers(name: str) -> list[float]:
        values = [r.conditions.get(name) for r in records]
        return [float(v) for v in values if isinstance(v, int | float) and not isinstance(v, bool)]

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
        for gpu in dict.fromkeys(s.gpu for s in rows if s.measured is not None):
            here = [s.measured for s in rows if s.gpu == gpu and s.measured is not None]
            low, high = _plain(min(here)), _plain(max(here))
            body.add_row(gpu, f"{low} x" if low == high else f"{low} to {high} x", "measured")
        for s in rows:
            if s.predicted is not None:
                p = s.predicted
                body.add_row(s.gpu, f"{_plain(p.expected)} x", f"predicted, {_plain(p.low)} to {_plain(p.high)}, {p.basis}")
            elif s.measured is None:
                body.add_row(s.gpu, "-", s.reason)
        section(to, f"{key[0]} in {key[1]}: {format_measured(rows[0].processor_s, 's')} on the processor; faster by", body)


def _left_out(to: Console, outcome: Outcome, without: tuple[str, Sequence[BenchCase]]) -> None:
    reasons: dict[str, list[str]] = {}
    for case, subject, why in outcome.skipped:
        reasons.setdefault(f"{subject.label}: {why}", []).append(case.key)
    if outcome.late:
        reasons["no time left; without --quick there is"] = [c.key for c, _ in outcome.late]
    why, cases = without
    if cases:
        families = list(dict.fromkeys(c.variant if c.family == "collective" else c.family for c in cases))
        reasons[f"gpu: {why} ({len(cases)} measurements)"] = families
    if reasons:
        to.print()
        to.print("not measured", style="bold")
        for why, keys in reasons.items():
            indented(to, f"{why}: {', '.join(keys)}")


def indented(to: Console, text: str) -> None:
    """Two columns in, on every line."""
    import textwrap

    for line in textwrap.wrap(text, max(20, to.width - 2), break_long_words=False, break_on_hyphens=False):
        to.print(f"  {line}", style="dim", soft_wrap=True)
