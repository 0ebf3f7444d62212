"""A fit as a person reads it: yes or no, the bar, then what would change it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gpuwise.cli.answer_tables import TIGHT, TIGHT_WORDS, chance, remedies_table, show_fitting
from gpuwise.cli.out import console, section, table_of
from gpuwise.cli.words import plain, span
from gpuwise.plan.answer import CapturedStep, Fit, OtherHardware
from gpuwise.plan.explain import layout, probability
from gpuwise.predict.step.training import TrainingEstimate
from gpuwise.units import format_bytes, format_count, format_usd
from gpuwise.workload.adapters import DEFAULT_TARGETS, targets_text

if TYPE_CHECKING:
    from rich.console import Console


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
    if fit.fits and e.fit_probability < 1 - goal.wishes.risk:
        verdict = (f"may fit (with {probability(e.fit_probability)})", "bold yellow")
    size = format_count(fit.parameters)
    to.print(Text.assemble((goal.arch.name, "bold"), f" ({size} parameters) ", verdict, " on ", (goal.cluster.label, "bold")))
    to.print(f"  {training_words(fit)}")
    show_fitting(to, e, "Memory of the fullest GPU")
    if fit.fits:
        to.print()
        to.print(f"  {plain(e.tokens_per_s.expected)} tokens/s [{span(e.tokens_per_s, plain)}], MFU {100 * e.mfu.expected:.0f} %")
        to.print(f"  As it stands, micro-batches up to {fit.micro_batch} fit, or sequences up to {fit.seq_len:,} tokens")
    else:
        _combinations(to, fit)
    _remedies(to, fit)
    _bigger(to, "The same on a bigger GPU", fit.bigger)
    _bigger(to, "More of the same GPU", fit.more)
    to.print()
    to.print("Assumed: " + "; ".join(goal.assumed) if goal.assumed else "", style="dim")


def training_words(fit: Fit[TrainingEstimate]) -> str:
    """The strategy asked for, in a line."""
    s = fit.estimate.strategy
    kind = f"{s.precision}, {s.optimizer}"
    if s.lora_rank:
        kind += f", {'QLoRA' if s.quantized_base else 'LoRA'} rank {s.lora_rank}"
        kind += "" if s.lora_targets == DEFAULT_TARGETS else f" of {targets_text(s.lora_targets)}"
    return f"{kind}, {fit.goal.seq_len:,} tokens a sequence, {layout(s)}"


def _combinations(to: Console, fit: Fit[TrainingEstimate]) -> None:
    body = remedies_table(fit.combinations, verdict=True) if fit.combinations else "nothing on these GPUs"
    sure = any(r.estimate.fit_probability >= 1 - fit.goal.wishes.risk for r in fit.combinations)
    section(to, f"What {'makes' if sure or not fit.combinations else 'may make'} it fit, fastest of each kind", body)


def _remedies(to: Console, fit: Fit[TrainingEstimate]) -> None:
    remedies = [r for r in fit.remedies or () if r.fits or not fit.fits]
    if remedies:
        title = "To free more, one change at a time" if fit.fits else "One change at a time"
        section(to, title, remedies_table(remedies, verdict=not fit.fits))
    if any(r.tight for r in (*fit.combinations, *remedies)):
        to.print(f"  {TIGHT} {TIGHT_WORDS}", style="dim")


def _bigger(to: Console, title: str, options: Sequence[OtherHardware[TrainingEstimate]]) -> None:
    if not options:
        return
    table = table_of(
        ["GPUs", "memory", "free", "fits", "tokens/s", "price", "how"],
        left=("GPUs",),
        gives_way=("free",),
        under="how",
    )
    for b in options:
        e = b.estimate
        table.add_row(
            f"{b.cluster.n_accelerators}x {b.cluster.accelerator.name}",
            format_bytes(e.memory_bytes.expected),
            format_bytes(e.headroom_bytes),
            chance(e.fit_probability),
            plain(e.tokens_per_s.expected),
            "-" if b.price is None else f"{format_usd(b.price.expected * b.cluster.n_accelerators)}/h",
            layout(e.strategy),
        )
    section(to, title, table)
