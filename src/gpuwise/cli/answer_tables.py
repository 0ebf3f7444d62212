"""Tables and bars that plans and fits share, of a catalogue model and of one's own step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from gpuwise.cli.bars import stacked
from gpuwise.cli.out import grid, table_of
from gpuwise.cli.words import span
from gpuwise.plan.answer import Option
from gpuwise.plan.changes.remedy import Remedy
from gpuwise.plan.explain import speed_words
from gpuwise.predict.estimate import Estimate
from gpuwise.units import GIB, MIB, format_bytes, format_duration, format_usd
from gpuwise.workload.changes.registry import SAME

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from gpuwise.cli.fitted_table import FittedTable


Figure = tuple[str, Estimate, Callable[[float], str]]
"""A figure's name, its value, and how it is said."""


def work_figures(option: Option[Any], goal: str) -> list[Figure]:
    """Rows (title, estimate, formatter) of the time, cost and energy of ``goal``."""
    figures: list[Figure] = [(f"time, {goal}", option.time_s, format_duration)]
    if option.cost_usd is not None:
        figures.append((f"cost, {goal}", option.cost_usd, format_usd))
    if option.energy is not None:
        figures.append(("energy", option.energy.kwh, lambda kwh: f"{kwh:,.0f} kWh" if kwh >= 10 else f"{kwh:.2g} kWh"))
    return figures


def figures_table(figures: Sequence[Figure]) -> Table:
    """Figures with their 80 % intervals."""
    table = grid(3)
    table.columns[1].justify = "right"
    for name, value, say in figures:
        table.add_row(name, say(value.expected), f"[{span(value, say)}]")
    return table


def price_words(option: Option[Any]) -> str:
    """``a GPU, median of 5 providers $2.1 to $6.9, 2026-10-04``."""
    price = option.price
    assert price is not None
    words = [f"a GPU, {price.provider}"]
    if price.high > price.low:
        words.append(f"{format_usd(price.low)} to {format_usd(price.high)}")
    if price.as_of is not None:
        words.append(price.as_of.isoformat() + (f" ({price.age_days} days old)" if price.stale else ""))
    return ", ".join(words)


def show_memory(to: Console, parts: dict[str, float], whole: float, title: str) -> None:
    """A bar of the device's memory with a key."""
    from rich.text import Text

    total = sum(parts.values())
    large_parts = {name: n for name, n in parts.items() if n > 0.0005 * whole}
    free = whole - total
    verdict = f"{format_bytes(free)} free" if free >= 0 else f"{format_bytes(-free)} too much"
    to.print()
    usage_text = Text.assemble(
        f"  {format_bytes(total)} of {format_bytes(whole)} usable, ", (verdict, "green" if free >= 0 else "bold red")
    )
    head = Text.assemble((title, "bold"), usage_text)
    for line in (head,) if head.cell_len <= to.width else (Text(title, "bold"), usage_text):
        to.print(line)
    width = max(20, min(to.width - 4, 100))
    bar, keys = stacked(large_parts, whole, width)
    to.print(Text("  ").append_text(bar))
    per_row = max(1, min(len(keys), (to.width - 2) // 24))
    table = grid(per_row)
    unit = GIB if total >= GIB else MIB
    cells = [Text.assemble("  ", key, f" {name} {_key_number(large_parts[name] / unit)}") for name, key in keys]
    if cells:
        cells[0].append(" GiB" if unit == GIB else " MiB")
    for i in range(0, len(cells), per_row):
        table.add_row(*cells[i : i + per_row])
    to.print(table)


def _key_number(value: float) -> str:
    """One decimal place, and what would read as 0.0 as below 0.1."""
    return f"{value:.1f}" if value >= 0.05 else "<0.1"


TIGHT = "*"
"""Marks memory that fits only because torch gives cached blocks back."""


def remedies_table(remedies: Sequence[Remedy[Any]], *, step: bool = False) -> FittedTable:
    """Changes with what they save and cost; ``step`` adds the step's time."""
    from rich.text import Text

    table = table_of(
        ["change", "saves", "speed", "then", *(["step"] if step else []), ""],
        left=("change",),
        wrap=("change",),
        under="",
    )
    for r in remedies:
        e = r.estimate
        barely = TIGHT if r.tight else ""
        time = [] if not step else ["-" if e.step_time_s is None else format_duration(e.step_time_s.expected)]
        table.add_row(
            r.name,
            format_bytes(r.saved_bytes),
            speed_words(r.slower),
            format_bytes(e.memory_bytes.expected) + barely,
            *time,
            Text("" if r.kind == SAME else r.kind, "dim"),
        )
    return table
