"""``gpuwise run`` as a person and as a program reads it: the line of progress, the table at the end, the document."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from gpuwise.units import J_PER_KWH, format_bytes, format_duration, format_usd

if TYPE_CHECKING:
    from rich.table import Table

    from gpuwise.train.run.compared import Compared, Row
    from gpuwise.train.run.progress import Now
    from gpuwise.train.run.run import Ran


def progress_words(now: Now) -> str:
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


def _off_plan(now: Now) -> str:
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


def summary(ran: Ran) -> None:
    """Predicted beside measured, on stderr: stdout is the script's."""
    from rich.console import Console
    from rich.padding import Padding

    from gpuwise.cli.out import section

    to = Console(file=sys.stderr, highlight=False, emoji=False, markup=False)
    for name, why in ran.refused.items():
        to.print(f"gpuwise: {name} did not take hold: {why}")
    compared = ran.compared
    if compared is None:
        to.print("gpuwise: too few steps to measure")
        return
    title = "gpuwise: measured" if compared.usable is None else "gpuwise: predicted and measured"
    section(to, title, _table(compared))
    for line in _lines(ran, compared):
        to.print(Padding(line, (0, 0, 0, 2)), style="dim")


def _lines(ran: Ran, compared: Compared) -> list[str]:
    from gpuwise.cli.tune.view import METERS

    lines: list[str] = []
    e = compared.expected
    if compared.usable is not None:
        lines.append(f"predicted from {compared.usable.basis}")
        if compared.usable.before_rate < compared.usable.rate * 0.995:
            lines.append(f"untouched it made {compared.usable.before_rate:.4g} {compared.per} a second")
    elif e is None:
        lines.append("nothing was measured of this script on this device before, so nothing was predicted")
    else:
        lines.append(f"the prediction is in {e.per}, so it cannot be compared")
    if compared.energy.energy_j is not None:
        whole = "" if ran.energy.energy_j is None else f"; {format_energy(ran.energy.energy_j)} from start to end"
        lines.append(f"energy by {METERS.get(compared.energy.basis or '', 'the meter')}, idle power with it{whole}")
    elif compared.energy.why is not None:
        lines.append(f"energy unknown: {compared.energy.why}")
    if ran.cost_usd is not None:
        lines.append(f"{format_usd(ran.cost_usd)} from start to end ({format_duration(ran.outcome.wall_s)})")
    if ran.not_kept is not None:
        lines.append(f"not kept for the next prediction: {ran.not_kept}")
    return lines


def _table(compared: Compared) -> Table:
    from gpuwise.cli.out import table_of

    if compared.usable is None:
        table = table_of(("", "measured"), left=("",))
        for row in compared.rows():
            table.add_row(row.name, _cell(row, row.measured))
        return table
    table = table_of(("", "predicted", "measured", "error"), left=("",))
    for row in compared.rows():
        error = "" if row.error is None else f"{row.error:+.1%}"
        table.add_row(row.name, _cell(row, row.predicted), _cell(row, row.measured), error)
    return table


def _cell(row: Row, value: float | None) -> str:
    if value is None:
        return "unknown"
    if row.unit == "B":
        return format_bytes(value)
    if row.unit == "J":
        return f"{value:.4g} J"
    if row.unit == "USD":
        return format_usd(value)
    return format_duration(value) if row.name.startswith("time") else f"{value:.4g}"


def document(ran: Ran, config: str) -> dict[str, Any]:
    """Everything, in SI units."""
    compared, outcome = ran.compared, ran.outcome
    expected = None if compared is None else compared.expected
    return {
        "config": config,
        "ended": outcome.ended,
        "code": outcome.code,
        "wall_s": outcome.wall_s,
        "refused": ran.refused,
        "device": None if ran.device is None else ran.device.name,
        "measured": None
        if compared is None
        else {
            "rate": compared.rate,
            "per": compared.per,
            "step_s": compared.step_s,
            "memory_bytes": compared.memory_bytes,
            "steps": compared.n_steps,
            "train_s": compared.train_s,
            "energy_j": compared.energy.energy_j,
            "energy_j_per_sample": compared.energy_a_sample_j,
            "energy_basis": compared.energy.basis,
            "energy_unknown": compared.energy.why,
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
            "train_s": None if compared is None else compared.predicted_s,
        },
        "prediction_error": None if compared is None else compared.error,
        "compared": []
        if compared is None
        else [
            {"name": r.name, "unit": r.unit, "predicted": r.predicted, "measured": r.measured, "error": r.error}
            for r in compared.rows()
        ],
        "energy_j": ran.energy.energy_j,
        "cost_usd": ran.cost_usd,
        "records": None if ran.kept_in is None else str(ran.kept_in),
        "not_recorded": ran.not_kept,
    }
