"""A fit as a person reads it: yes or no, the bar, then what would change it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpuwise.cli.out import console, section, table_of
from gpuwise.cli.plan.view import show_memory
from gpuwise.cli.words import plain, span
from gpuwise.plan.changes.remedies import Bigger, Fit
from gpuwise.plan.changes.remedy import Remedy
from gpuwise.plan.explain import layout
from gpuwise.plan.explain import percent as change
from gpuwise.predict.step.training import TrainingEstimate
from gpuwise.units import format_bytes, format_count, format_usd
from gpuwise.workload.changes.registry import SAME
from gpuwise.workload.transformer.parameters import count_parameters

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def show_fit(fit: Fit) -> None:
    """Print the whole answer."""
    from rich.text import Text

    to, e, goal = console(), fit.estimate, fit.goal
    verdict = ("fits", "bold green") if fit.fits else ("does not fit", "bold red")
    size = format_count(count_parameters(goal.arch).total)
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


def training_words(fit: Fit) -> str:
    """The strategy asked for, in a line."""
    s = fit.estimate.strategy
    kind = f"{s.precision}, {s.optimizer}"
    if s.lora_rank:
        kind += f", {'QLoRA' if s.quantized_base else 'LoRA'} rank {s.lora_rank}"
    return f"{kind}, {fit.goal.seq_len:,} tokens a sequence, {layout(s)}"


def _combinations(to: Console, fit: Fit) -> None:
    body = _table(fit.combinations, verdict=False) if fit.combinations else "nothing on these GPUs"
    section(to, "What makes it fit, fastest of each kind", body)


def _remedies(to: Console, fit: Fit) -> None:
    shown = [r for r in fit.remedies if r.fits] if fit.fits else list(fit.remedies)
    if shown:
        title = "To free more, one change at a time" if fit.fits else "One change at a time"
        section(to, title, _table(shown, verdict=not fit.fits))


def _table(remedies: Sequence[Remedy[TrainingEstimate]], *, verdict: bool) -> Table:
    from rich.text import Text

    table = table_of(
        ["change", "saves", "speed", "then", *(["fits"] if verdict else []), ""],
        left=("change", ""),
        wrap=("change",),
    )
    for r in remedies:
        note = "" if r.kind == SAME else r.kind
        fits = [Text("yes", "green") if r.fits else Text("no", "red")] if verdict else []
        table.add_row(
            r.name,
            format_bytes(r.saved_bytes),
            speed_words(r.slower),
            format_bytes(r.estimate.memory_bytes.expected),
            *fits,
            Text(note, "dim"),
        )
    return table


def speed_words(slower: float | None) -> str:
    """``"12 % slower"``, ``"same"``, ``"30 % faster"``; a dash where no time is known."""
    if slower is None:
        return "-"
    if abs(slower) < 0.005:
        return "same"
    return f"{change(slower)} slower" if slower > 0 else f"{change(1 / (1 + slower) - 1)} faster"


def _bigger(to: Console, title: str, found: Sequence[Bigger]) -> None:
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
            "-" if b.usd_per_hour is None else f"{format_usd(b.usd_per_hour * b.cluster.n_accelerators)}/h",
            layout(e.strategy),
        )
    section(to, title, table)
