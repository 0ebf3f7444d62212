"""A fit as a person reads it: yes or no, the bar, then what would change it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gpuwise.cli.out import console, section, table_of
from gpuwise.cli.plan.view import show_memory
from gpuwise.cli.words import plain, span
from gpuwise.plan.answer import CapturedStep, Fit, OtherHardware
from gpuwise.plan.changes.remedy import Remedy
from gpuwise.plan.explain import layout
from gpuwise.plan.explain import percent as change
from gpuwise.predict.step.training import TrainingEstimate
from gpuwise.units import format_bytes, format_count, format_duration, format_usd
from gpuwise.workload.changes.registry import SAME

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def show_fit(fit: Fit[Any]) -> None:
    """Print the whole answer, whichever front end wrote the step."""
    if isinstance(fit.subject, CapturedStep):
        from gpuwise.cli.step.fit_view import show_step_fit

        show_step_fit(fit)
    else:
        _show(fit)


def _show(fit: Fit[TrainingEstimate]) -> None:
    from rich.text import Text

    to, e, goal = console(), fit.estimate, fit.goal
    verdict = ("fits", "bold green") if fit.fits else ("does not fit", "bold red")
    size = format_count(fit.parameters)
    to.print(Text.assemble((goal.arch.name, "bold"), f" ({size} parameters) ", verdict, " on ", (goal.cluster.label, "bold")))
    to.print(f"  {training_words(fit)}")
    show_memory(to, dict(e.memory_parts), e.device_bytes, "Memory of the fullest GPU")
    to.print(f"  80 % interval {span(e.memory_bytes, format_bytes)}, {e.memory_bytes.basis}", style="dim")
    if fit.fits:
        to.print()
        to.print(f"  {plain(e.tokens_per_s.expected)} tokens/s [{span(e.tokens_per_s, plain)}], MFU {100 * e.mfu.expected:.0f} %")
        to.print(f"  As it stands, micro-batches up to {fit.micro_batch} fit, or sequences up to {fit.seq_len:,} tokens")
    else:
        _combinations(to, fit)
    _remedies(to, fit)
    _bigger(to, "The same on a bigger card", fit.bigger)
    _bigger(to, "More of the same card", fit.more)
    to.print()
    to.print("Assumed: " + "; ".join(goal.assumed) if goal.assumed else "", style="dim")


def training_words(fit: Fit[TrainingEstimate]) -> str:
    """The strategy asked for, in a line."""
    s = fit.estimate.strategy
    kind = f"{s.precision}, {s.optimizer}"
    if s.lora_rank:
        kind += f", {'QLoRA' if s.quantized_base else 'LoRA'} rank {s.lora_rank}"
    return f"{kind}, {fit.goal.seq_len:,} tokens a sequence, {layout(s)}"


def _combinations(to: Console, fit: Fit[TrainingEstimate]) -> None:
    body = remedies_table(fit.combinations) if fit.combinations else "nothing on these GPUs"
    section(to, "What makes it fit, fastest of each kind", body)


def _remedies(to: Console, fit: Fit[TrainingEstimate]) -> None:
    shown = [r for r in fit.remedies or () if r.fits or not fit.fits]
    if shown:
        title = "To free more, one change at a time" if fit.fits else "One change at a time"
        section(to, title, remedies_table(shown, verdict=not fit.fits))


TIGHT = "*"
"""Marks memory that fits only because torch gives cached blocks back."""


def remedies_table(remedies: Sequence[Remedy[Any]], *, verdict: bool = False, step: bool = False) -> Table:
    """Changes with what they save and cost; ``verdict`` adds whether each fits, ``step`` the step's time."""
    from rich.text import Text

    table = table_of(
        ["change", "saves", "speed", "then", *(["fits"] if verdict else []), *(["step"] if step else []), ""],
        left=("change", ""),
        wrap=("change", ""),
    )
    for r in remedies:
        e = r.estimate
        barely = TIGHT if r.fits and e.memory_bytes.expected > e.device_bytes else ""
        time = [] if not step else ["-" if e.step_time_s is None else format_duration(e.step_time_s.expected)]
        fits = [Text("yes", "green") if r.fits else Text("no", "red")] if verdict else []
        table.add_row(
            r.name,
            format_bytes(r.saved_bytes),
            speed_words(r.slower),
            format_bytes(e.memory_bytes.expected) + barely,
            *fits,
            *time,
            Text("" if r.kind == SAME else r.kind, "dim"),
        )
    return table


def speed_words(slower: float | None) -> str:
    """``"12 % slower"``, ``"same"``, ``"30 % faster"``; a dash where no time is known."""
    if slower is None:
        return "-"
    if abs(slower) < 0.005:
        return "same"
    return f"{change(slower)} slower" if slower > 0 else f"{change(1 / (1 + slower) - 1)} faster"


def _bigger(to: Console, title: str, found: Sequence[OtherHardware[TrainingEstimate]]) -> None:
    if not found:
        return
    table = table_of(["GPUs", "memory", "free", "tokens/s", "price", "how"], left=("GPUs", "how"), wrap=("how",))
    for b in found:
        e = b.estimate
        table.add_row(
            f"{b.cluster.n_accelerators}x {b.cluster.accelerator.name}",
            format_bytes(e.memory_bytes.expected),
            format_bytes(e.device_bytes - e.memory_bytes.expected),
            plain(e.tokens_per_s.expected),
            "-" if b.price is None else f"{format_usd(b.price.expected * b.cluster.n_accelerators)}/h",
            layout(e.strategy),
        )
    section(to, title, table)
