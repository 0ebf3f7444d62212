"""A plan of one's own step as a person reads it: time and rate first, then where the time goes, then money."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from gpuwise.cli.answer_tables import Figure, figures_table, price_words, show_memory, work_figures
from gpuwise.cli.bars import single
from gpuwise.cli.out import console, grid, section, table_of
from gpuwise.cli.step.fit_view import (
    SHOWN_SNIPPETS,
    cards_table,
    indented,
    search_table,
    show_assumption,
    show_findings,
    show_snippet,
    speedups_table,
)
from gpuwise.cli.step.words import head_words
from gpuwise.cli.words import percent, plain
from gpuwise.interval import P80
from gpuwise.plan.answer import Option, Plan
from gpuwise.plan.step.estimates import StepEstimate
from gpuwise.plan.step.time_parts import by_module, is_host_bound, largest_first, mfu, waiting_phase
from gpuwise.predict.estimate import Estimate
from gpuwise.predict.step.capture_time import CapturedTime
from gpuwise.report.answers.values import BASIS
from gpuwise.units import format_bytes, format_count, format_duration, format_rate, format_usd

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from gpuwise.cli.fitted_table import FittedTable

WIDE = 110


def show_step_plan(plan: Plan[StepEstimate]) -> None:
    """Print the whole plan of own code."""
    to, step, best, whole = console(), plan.step, plan.best, plan.step_time_s
    assert best is not None and whole is not None, "own code always has an option: the step on the cluster"
    _headline(to, plan, best, whole)
    section(to, f"Numbers with {P80} intervals", _numbers(plan, best, whole))
    time = best.estimate.time
    if time is not None:
        _time(to, time)
        section(to, "Operations that cost most", _costliest(time, to.width))
    memory = best.estimate.memory
    from gpuwise.cli.step.words import category_words

    bytes_by_category = {category_words(c): float(n) for c, n in sorted(memory.by_category.items(), key=lambda item: -item[1])}
    bytes_by_category["cached and context"] = max(memory.process.expected - memory.allocated.expected, 0.0)
    show_memory(to, bytes_by_category, memory.capacity_bytes, "Memory of one GPU at the peak")
    if not memory.fits:
        to.print(
            "  It does not fit: the times are what it would take if it did; `gpuwise fit` says what to change.", style="bold red"
        )
    for failure in memory.failures:
        to.print(f"  It would fail whatever memory there is: {failure.reason}.", style="bold red")
    show_findings(to, step.capture)
    if step.batches is not None:
        section(to, "Batches", search_table(step.batches))
    if len(plan.scaling) > 1:
        section(to, "On several GPUs, the same batch on each", _scaling(plan))
        if any(s.fits is False for s in plan.scaling):
            to.print("  ! more than the GPU has", style="dim")
    if plan.changes:
        section(to, "What makes it faster, one change at a time", speedups_table(plan.changes))
        for remedy in plan.changes[:SHOWN_SNIPPETS]:
            show_snippet(to, remedy)
    elif plan.changes is not None:
        section(to, "What makes it faster", "nothing that was tried")
    if plan.hardware:
        section(to, "One of each GPU, cheapest for a step first", cards_table(plan.hardware))
    _foot(to, plan, whole)


def _headline(to: Console, plan: Plan[StepEstimate], best: Option[StepEstimate], whole: Estimate) -> None:
    from rich.text import Text

    step = plan.step
    to.print(
        Text.assemble((step.name, "bold"), f" ({format_count(plan.parameters)} parameters) on ", (plan.cluster.label, "bold"))
    )
    to.print(f"  {head_words(step.capture, step.batch, step.seq_len, step.precision)}", style="dim")
    line = Text("  a step takes ")
    line.append(format_duration(whole.expected), "bold green")
    if plan.samples_per_s is not None:
        line.append(f": {_rate(plan.samples_per_s.expected)} samples/s")
    if plan.samples is not None:
        line.append(f"; {format_count(plan.samples)} samples in ")
        line.append(format_duration(best.time_s.expected), "bold green")
        if best.cost_usd is not None:
            line.append(" for ")
            line.append(format_usd(best.cost_usd.expected), "bold green")
    to.print(line)


def _rate(value: float) -> str:
    return plain(value) if value >= 10 else f"{value:.2g}"


def _numbers(plan: Plan[StepEstimate], best: Option[StepEstimate], whole: Estimate) -> Table:
    figures: list[Figure] = [("step time", whole, format_duration)]
    if plan.samples_per_s is not None:
        figures.append(("samples/s", plan.samples_per_s, _rate))
    figures.append(("memory", best.estimate.memory_bytes, format_bytes))
    if plan.samples is not None:
        figures += work_figures(best, format_count(plan.samples))
    table = figures_table(figures)
    time, capture = best.estimate.time, plan.step.capture
    if time is not None:
        flop = capture.flop()
        rate_text = format_rate(flop / time.step_time_s.expected, "FLOP/s")
        table.add_row("arithmetic", format_rate(flop, "FLOP"), f"a step on one GPU, {rate_text}")
        share, dtype = mfu(capture, time, plan.cluster.accelerator)
        if share is not None:
            table.add_row("MFU", percent(share), f"of the dense {dtype} rate")
    if best.price is not None:
        table.add_row("price", f"{format_usd(best.price.expected)}/h", price_words(best))
    return table


def _time(to: Console, time: CapturedTime) -> None:
    issue, run = format_duration(time.host_total_s), format_duration(time.device_total_s)
    if is_host_bound(time):
        words = (
            f"The host is what the step waits for: it takes {issue} to issue {plain(time.kernels)} kernels that the GPU runs "
            f"in {run}. A larger batch, torch.compile or CUDA graphs shorten it."
        )
    else:
        words = (
            f"The GPU is busy {percent(time.gpu_busy_share)} of the step: {run} for {plain(time.kernels)} kernels, which the "
            f"host issues in {issue}."
        )
        if (phase := waiting_phase(time)) is not None:
            words += f" It waits for the host {percent(time.launch_bound_share)} of the step, longest in the {phase}."
            if phase == "optimizer":
                words += " An update of all parameters in one call (fused=True) shortens it."
    whole = time.device_total_s
    section(to, "Where the time of the GPU goes", _shares(largest_first(time.phase_s), whole, to.width))
    section(to, "By kind", _shares(largest_first(time.family_s), whole, to.width))
    section(to, "By module", _shares(by_module(time), whole, to.width))
    section(to, "By what bounds it", _shares(largest_first(time.bound_s), whole, to.width))
    to.print()
    indented(to, words)


def _shares(parts: Mapping[str, float], whole: float, width: int) -> Table:
    table = grid(4)
    table.columns[1].justify = table.columns[2].justify = "right"
    for name, seconds in parts.items():
        share = seconds / whole if whole else 0.0
        if share > 0.001:
            bar = single(share, max(10, min(width, 100) - 48))
            table.add_row(name.replace("_", " "), format_duration(seconds), percent(share), bar)
    return table


def _costliest(time: CapturedTime, width: int) -> FittedTable:
    wide = width >= WIDE
    table = table_of(
        ["operation", "calls", "time", "share", "bound by", *(["rate", "shapes"] if wide else []), "in"],
        left=("operation", "bound by", "shapes"),
        wrap=("shapes", "operation"),
        gives_way=("rate", "shapes", "calls", "bound by"),
        under="in",
    )
    for o in time.top:
        table.add_row(
            o.op,
            plain(o.count),
            format_duration(o.time_s),
            percent(o.share),
            o.bound.name.lower().replace("_", " "),
            *([format_rate(o.flop_per_s, "FLOP/s") if o.flop_per_s else "-", o.shapes] if wide else []),
            o.module or "-",
        )
    return table


def _scaling(plan: Plan[StepEstimate]) -> FittedTable:
    table = table_of(
        ["GPUs", "", "step", "samples/s", "efficiency", "not hidden", "memory"], left=("",), gives_way=("not hidden", "")
    )
    for s in plan.scaling:
        memory = "-" if s.memory_bytes is None else format_bytes(s.memory_bytes)
        table.add_row(
            plain(s.n),
            "" if s.n == 1 else s.how,
            format_duration(s.step_time_s.expected),
            _rate(s.samples_per_s),
            percent(s.efficiency),
            format_duration(s.exposed_s) if s.exposed_s else "-",
            memory + (" !" if s.fits is False else ""),
        )
    return table


def _foot(to: Console, plan: Plan[StepEstimate], whole: Estimate) -> None:
    to.print()
    n = plan.step.captures
    indented(
        to,
        f"{n} capture{'s' if n != 1 else ''} of two steps without a GPU. Time: {BASIS[whole.basis]}. "
        f"{'' if plan.changes is not None else '--remedies tries what would make it faster. '}"
        f"Loading of data, evaluation and checkpoints are not counted.",
        "dim",
    )
    show_assumption(to, plan.cluster)
