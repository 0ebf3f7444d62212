"""``gpuwise run`` as a person and as a program reads it: the line of progress, the table at the end, the document."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from gpuwise.cli.words import METERS
from gpuwise.units import J_PER_KWH, format_bytes, format_duration, format_usd

if TYPE_CHECKING:
    from gpuwise.cli.fitted_table import FittedTable
    from gpuwise.train.run.comparison import ComparisonRow, RunComparison
    from gpuwise.train.run.progress import Progress
    from gpuwise.train.run.run import RunResult


LEAST_OTHERS = 0.05
"""Share of the steps that other programs had, from which it is said."""


def progress_words(now: Progress) -> str:
    """What matters most first: a narrow terminal cuts the end off."""
    if now.rate is None:
        return "gpuwise: waiting for the first steps" if now.n_steps == 0 else f"gpuwise: step {now.n_steps}"
    step = f"step {now.n_steps:,}" + (f" of {now.total_steps:,.0f}" if now.total_steps is not None else "")
    words = [step, f"{now.rate:.4g} {now.per}/s"]
    if now.loss is not None:
        words.append(f"loss {now.loss:.4g}")
    if now.left_s is not None:
        words.append(f"{format_duration(now.left_s)} left" + _off_plan(now))
    if now.memory_bytes is not None:
        words.append(format_bytes(now.memory_bytes))
    if now.energy_j is not None:
        words.append(format_energy(now.energy_j))
    if now.cost_usd is not None:
        words.append(format_usd(now.cost_usd))
    if now.epoch is not None:
        words.append(f"epoch {now.epoch:.2f}" + (f" of {now.epochs:g}" if now.epochs is not None else ""))
    return ", ".join(words)


def _off_plan(now: Progress) -> str:
    """How much longer or shorter it takes than predicted."""
    if not now.predicted_left_s or now.left_s is None:
        return ""
    return f" ({now.left_s / now.predicted_left_s - 1.0:+.0%})"


def format_energy(joules: float) -> str:
    """``412 J``, ``1.23 kWh``."""
    kwh = joules / J_PER_KWH
    if kwh >= 0.1:
        return f"{kwh:.3g} kWh"
    return f"{kwh * 1000:.3g} Wh" if joules >= 3600 else f"{joules:.3g} J"


def summary(result: RunResult) -> None:
    """Predicted beside measured, on stderr: stdout is the script's."""
    from rich.padding import Padding

    from gpuwise.cli.out import printing_console, section

    to = printing_console(file=sys.stderr)
    for name, why in result.refused.items():
        to.print(f"gpuwise: {name} did not take hold: {why}")
    comparison = result.comparison
    if comparison is None:
        to.print("gpuwise: too few steps to measure")
        return
    title = "gpuwise: measured" if comparison.usable is None else "gpuwise: predicted and measured"
    section(to, title, _table(comparison))
    for line in _lines(result, comparison):
        to.print(Padding(line, (0, 0, 0, 2)), style="dim")


def _lines(result: RunResult, comparison: RunComparison) -> list[str]:
    lines: list[str] = []
    e = comparison.expected
    if comparison.usable is not None:
        lines.append(f"predicted from {comparison.usable.basis}")
        if comparison.usable.before_rate < comparison.usable.rate * 0.995:
            lines.append(f"untouched it made {comparison.usable.before_rate:.4g} {comparison.per} a second")
    elif e is None:
        lines.append("nothing was measured of this script on this device before, so nothing was predicted")
    else:
        lines.append(f"the prediction is in {e.per}, so it cannot be compared")
    if comparison.others >= LEAST_OTHERS:
        lines.append(f"other programs had the loop's processor for {comparison.others:.0%} of its steps")
    if comparison.energy.energy_j is not None:
        whole = "" if result.energy.energy_j is None else f"; {format_energy(result.energy.energy_j)} from start to end"
        lines.append(f"energy by {METERS.get(comparison.energy.basis or '', 'the meter')}, idle power with it{whole}")
    elif comparison.energy.why is not None:
        lines.append(f"energy unknown: {comparison.energy.why}")
    if result.cost_usd is not None:
        lines.append(f"{format_usd(result.cost_usd)} from start to end ({format_duration(result.outcome.wall_s)})")
    if result.not_kept is not None:
        lines.append(f"not kept for the next prediction: {result.not_kept}")
    return lines


def _table(comparison: RunComparison) -> FittedTable:
    from gpuwise.cli.out import table_of

    if comparison.usable is None:
        table = table_of(("", "measured"), left=("",), wrap=("",))
        for row in comparison.rows():
            table.add_row(row.name, _cell(row, row.measured))
        return table
    table = table_of(("", "predicted", "measured", "error"), left=("",), wrap=("",))
    for row in comparison.rows():
        error = "" if row.error is None else f"{row.error:+.1%}"
        table.add_row(row.name, _cell(row, row.predicted), _cell(row, row.measured), error)
    return table


def _cell(row: ComparisonRow, value: float | None) -> str:
    if value is None:
        return "unknown"
    if row.unit == "B":
        return format_bytes(value)
    if row.unit == "J":
        return f"{value:.4g} J"
    if row.unit == "USD":
        return format_usd(value)
    return format_duration(value) if row.name.startswith("time") else f"{value:.4g}"


def document(result: RunResult, config: str) -> dict[str, Any]:
    """Everything, in SI units."""
    comparison, outcome = result.comparison, result.outcome
    expected = None if comparison is None else comparison.expected
    return {
        "config": config,
        "ended": outcome.ended,
        "code": outcome.code,
        "wall_s": outcome.wall_s,
        "refused": result.refused,
        "device": None if result.device is None else result.device.name,
        "measured": None
        if comparison is None
        else {
            "rate": comparison.rate,
            "per": comparison.per,
            "step_s": comparison.step_s,
            "memory_bytes": comparison.memory_bytes,
            "steps": comparison.n_steps,
            "train_s": comparison.train_s,
            "others": comparison.others,
            "energy_j": comparison.energy.energy_j,
            "energy_j_per_sample": comparison.energy_a_sample_j,
            "energy_basis": comparison.energy.basis,
            "energy_unknown": comparison.energy.why,
        },
        "predicted": None
        if expected is None
        else {
            "rate": expected.rate,
            "per": expected.per,
            "step_s": expected.step_s,
            "before_rate": expected.before_rate,
            "memory_bytes": expected.memory_bytes,
            "energy_j_per_sample": expected.energy_j,
            "from": expected.basis,
            "train_s": None if comparison is None else comparison.predicted_s,
        },
        "prediction_error": None if comparison is None else comparison.error,
        "compared": []
        if comparison is None
        else [
            {"name": r.name, "unit": r.unit, "predicted": r.predicted, "measured": r.measured, "error": r.error}
            for r in comparison.rows()
        ],
        "energy_j": result.energy.energy_j,
        "cost_usd": result.cost_usd,
        "records": None if result.kept_in is None else str(result.kept_in),
        "not_recorded": result.not_kept,
    }
