"""A fit of one's own step as a person reads it: the verdict, three numbers, what fills the peak, what to change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpuwise.cli.answer_tables import TIGHT, remedies_table, show_memory, speed_words
from gpuwise.cli.out import console, grid, section, table_of
from gpuwise.cli.step.words import category_words, head_words, maker_words, place_words
from gpuwise.cli.words import plain, span
from gpuwise.interval import P80
from gpuwise.plan.answer import Fit, Option, OtherHardware
from gpuwise.plan.changes.batch_search import BatchSearch
from gpuwise.plan.changes.trial import StepRemedy
from gpuwise.plan.step.estimates import StepEstimate
from gpuwise.predict.memory.capture import place_of
from gpuwise.units import format_bytes, format_count, format_duration, format_usd
from gpuwise.workload.capture.captured import Capture
from gpuwise.workload.changes.registry import SAME

if TYPE_CHECKING:
    from rich.console import Console

    from gpuwise.cli.fitted_table import FittedTable
    from gpuwise.facts.hardware.systems import Cluster

SHOWN_FINDINGS, SHOWN_STORAGES, SHOWN_SNIPPETS = 8, 6, 4
SKETCH_HEIGHT = 8
LIKELY = 0.9
"""Chance of fitting below which the verdict says how sure it is: the 80 % interval then touches the card's memory."""


_WORDS = {"fits": "fits", "borderline": "may or may not fit", "does not fit": "does not fit", "fails": "would fail"}
_STYLES = {"fits": "green", "borderline": "yellow", "does not fit": "red", "fails": "red"}


def show_step_fit(fit: Fit[StepEstimate]) -> None:
    """Print the whole answer."""
    to, m = console(), fit.estimate
    _headline(to, fit)
    section(to, f"Memory of one GPU, with {P80} intervals", _numbers(m))
    _peak(to, fit.step.capture, m)
    show_findings(to, fit.step.capture)
    _sketch(to, fit)
    if fit.step.batches is not None:
        show_batches(to, fit.step.batches)
    _remedies(to, fit)
    _bigger(to, fit)
    _foot(to, fit)


def _headline(to: Console, fit: Fit[StepEstimate]) -> None:
    from rich.text import Text

    m = fit.estimate.memory
    size = format_count(fit.parameters)
    verdict = (_WORDS[m.verdict], f"bold {_STYLES[m.verdict]}")
    to.print(Text.assemble((fit.name, "bold"), f" ({size} parameters) ", verdict, " on ", (fit.cluster.accelerator.name, "bold")))
    to.print(f"  {head_words(fit.step.capture, fit.step.batch, fit.step.seq_len, fit.step.precision)}", style="dim")
    free, usable = fit.estimate.headroom_bytes, format_bytes(m.capacity_bytes)
    if m.fits and free >= 0:
        to.print(Text.assemble("  ", (f"{format_bytes(free)} free", "green"), f" of {usable}"))
    elif m.fits:
        indented(
            to,
            f"only because torch gives cached memory back {_times(m.retries)}: with all of it kept, it would take "
            f"{format_bytes(m.process.expected)} of {usable}",
        )
    else:
        to.print(
            Text.assemble(
                f"  needs {format_bytes(m.process.expected)} of {usable}: ", (f"{format_bytes(-free)} too much", "bold red")
            )
            if free < 0
            else f"  it would take {format_bytes(m.process.expected)} of {usable}, but not in one piece"
        )
    for failure in m.failures:
        indented(to, f"fails: {failure.reason}: {place_words(place_of(m.capture, failure.op))}", style="red")
    if fit.at_bound is not None:
        bound = fit.at_bound.memory
        words = "also fits" if bound.fits else "does not fit"
        indented(
            to,
            f"sizes that depend on values are a balanced choice; at their upper bound it takes "
            f"{format_bytes(bound.process.expected)} and {words}",
            "" if bound.fits == m.fits else "yellow",
        )
    if m.oom is not None:
        step = "building it" if m.oom.step < 0 else f"step {m.oom.step + 1}"
        indented(to, f"runs out in {step}, asking for {format_bytes(m.oom.requested_bytes)}: {place_words(m.oom.place)}")
    elif m.fit_probability < LIKELY:
        to.print(f"  it is close: {100 * m.fit_probability:.0f} % likely by the spread of the prediction", style="yellow")


def indented(to: Console, text: str, style: str = "") -> None:
    """A paragraph two columns in, its further lines too."""
    to.print(f"  {text}", style=style)


def _times(n: int) -> str:
    return "once" if n == 1 else f"{n} times"


def _numbers(m: StepEstimate) -> FittedTable:
    memory = m.memory
    table = table_of(["what", "bytes", P80, "how"], left=("what", P80), under="how")
    table.header = False
    from rich.text import Text

    rows = (
        ("allocated", memory.allocated, "torch.cuda.max_memory_allocated()"),
        ("reserved", memory.reserved, "torch.cuda.max_memory_reserved()"),
        ("nvidia-smi", memory.process, f"reserved + context {format_bytes(memory.context.expected)}"),
    )
    for name, value, note in rows:
        table.add_row(name, format_bytes(value.expected), f"[{span(value, format_bytes)}]", Text(note, "dim"))
    first, steady = memory.first, memory.steady
    table.add_row("first step", format_bytes(first.allocated_bytes), f"reserved {format_bytes(first.reserved_bytes)}", "")
    table.add_row("steady step", format_bytes(steady.allocated_bytes), f"reserved {format_bytes(steady.reserved_bytes)}", "")
    return table


def _peak(to: Console, capture: Capture, m: StepEstimate) -> None:
    memory = m.memory
    parts = {category_words(c): float(n) for c, n in sorted(memory.by_category.items(), key=lambda item: -item[1])}
    outside = memory.process.expected - memory.allocated.expected
    parts["cached and context"] = max(outside, 0.0)
    show_memory(to, parts, memory.capacity_bytes, "What fills it at the peak")
    indented(to, f"The peak is at {place_words(memory.peak)}")
    table = table_of(["", "holds", "made by"], left=("holds",), under="made by")
    alike = Counter(
        (tensor.size_bytes, f"{category_words(tensor.category)} {tensor.dtype}", maker_words(tensor)) for tensor in memory.largest
    )
    for (size, holds, maker), n in list(alike.items())[:SHOWN_STORAGES]:
        table.add_row(f"{n} x {format_bytes(size)}" if n > 1 else format_bytes(size), holds, maker)
    section(to, "Largest tensors at the peak", table)
    modules = sorted(capture.parameter_bytes_by_module.items(), key=lambda item: -item[1])[:4]
    if len(capture.parameter_bytes_by_module) > 1:
        total = sum(capture.parameter_bytes_by_module.values())
        words = ", ".join(f"{name or 'the model itself'} {format_bytes(n)}" for name, n in modules)
        indented(to, f"Parameters: {format_bytes(total)}, most in {words}")


def show_findings(to: Console, capture: Capture) -> None:
    """What the capture noticed, syncs and guesses first met first."""
    if not capture.findings:
        return
    from rich.text import Text

    table = grid(2)
    for f in capture.findings[:SHOWN_FINDINGS]:
        often = f" ({f.count} times a step)" if f.count > 1 else ""
        table.add_row(
            Text(f.where or "-", "cyan"), Text.assemble(f"{f.message}{often}", (f"\n{f.hint}" if f.hint else "", "dim"))
        )
    more = len(capture.findings) - SHOWN_FINDINGS
    if more > 0:
        table.add_row("", f"and {more} more (--json has all)")
    section(to, "Noticed in the step", table)


def _sketch(to: Console, fit: Fit[StepEstimate]) -> None:
    from gpuwise.cli.timeline_sketch import show_timeline
    from gpuwise.predict.memory.timeline import memory_timeline

    # where the peak is was said above
    show_timeline(to, memory_timeline(fit.estimate.memory.capture, capacity_bytes=None), height=SKETCH_HEIGHT, where=False)


def show_batches(to: Console, search: BatchSearch[StepEstimate]) -> None:
    """The batches a search tried, and how it was done."""
    section(to, "Batches", search_table(search))
    how = f"{search.captures} captures" + (", the largest verified by one" if search.verified else "")
    indented(to, f"{how}{'; ' + search.note if search.note else ''}", "dim")


def search_table(search: BatchSearch[StepEstimate]) -> FittedTable:
    """Powers of two and the largest that fits, with what each takes."""
    table = table_of(["batch", "nvidia-smi", "fits", "step", "samples/s", ""], under="")
    ladder = {2**i for i in range(32)} | {search.largest}
    for p in search.points:
        if p.batch not in ladder or p.batch > 2 * max(search.largest, 1):
            continue
        notes = [
            n
            for n, at in (
                ("largest that fits", search.largest),
                ("fastest", search.fastest),
                ("nearly as fast, with less memory", search.knee),
            )
            if at == p.batch
        ]
        if search.knee == search.fastest:
            notes = [n for n in notes if not n.startswith("nearly")]
        time = p.estimate.step_time_s
        table.add_row(
            plain(p.batch),
            format_bytes(p.estimate.memory_bytes.expected),
            "yes" if p.estimate.fits_easily else "no",
            "-" if time is None else format_duration(time.expected),
            "-" if p.samples_per_s is None else plain(p.samples_per_s),
            ", ".join(notes),
        )
    return table


def _remedies(to: Console, fit: Fit[StepEstimate]) -> None:
    if fit.remedies is None:
        return
    singles = fit.remedies
    good = [*fit.combinations, *(r for r in singles if r.fits)]
    good.sort(key=lambda r: r.slower if r.slower is not None else 0.0)
    if fit.fits:
        section(to, "To free more, one change at a time", remedies_table(singles, step=True))
        good = list(singles)
    elif good:
        section(to, "What makes it fit, least slowdown first", remedies_table(good, step=True))
        if any(r.tight for r in good):
            indented(to, f"{TIGHT} with all cached memory kept; torch gives some back as it runs, and then it fits", "dim")
    else:
        section(to, "What makes it fit", "nothing that was tried")
    non_fitting = [] if fit.fits else [r for r in singles if not r.fits]
    if non_fitting:
        section(to, "Helps, but not enough alone", remedies_table(non_fitting, step=True))
    for remedy in good[:SHOWN_SNIPPETS]:
        show_snippet(to, remedy)
    reasons: dict[str, list[str]] = {}
    for name, why in fit.failed:
        reasons.setdefault(why, []).append(name)
    for why, names in reasons.items():
        indented(to, f"not possible here: {', '.join(names)} ({why})", "dim")


def speedups_table(speedups: Sequence[StepRemedy]) -> FittedTable:
    """Changes with the time of a sample against that of the step as it is."""
    from rich.text import Text

    table = table_of(["change", "a sample", "step", "memory", ""], left=("change",), wrap=("change",), under="")
    for r in speedups:
        time = r.estimate.step_time_s
        table.add_row(
            r.name,
            speed_words(r.slower),
            "-" if time is None else format_duration(time.expected),
            format_bytes(r.estimate.memory_bytes.expected),
            Text("" if r.kind == SAME else r.kind, "dim"),
        )
    return table


def show_snippet(to: Console, remedy: StepRemedy) -> None:
    """The lines that make a change."""
    to.print()
    to.print(f"  {remedy.name}", style="bold")
    indented(to, f"mind: {remedy.risk}", "dim")
    for line in remedy.lines:
        style = {"+": "green", "-": "red", "@": "cyan"}[line[0]]
        to.print(f"    {line[2:] if line[0] == '@' else line}", style=style, soft_wrap=True)


def _bigger(to: Console, fit: Fit[StepEstimate]) -> None:
    if not fit.bigger:
        return
    section(to, "The same on a bigger GPU", cards_table(fit.bigger))


def cards_table(cards: Sequence[Option[StepEstimate] | OtherHardware[StepEstimate]]) -> FittedTable:
    """GPUs with their memory, time and price."""
    table = table_of(["GPU", "memory", "free", "step", "price"], left=("GPU",), wrap=("GPU",), gives_way=("free",))
    for card in cards:
        time, free = card.estimate.step_time_s, card.estimate.headroom_bytes
        table.add_row(
            card.cluster.accelerator.name,
            format_bytes(card.estimate.memory_bytes.expected),
            "none" if card.estimate.fits and free < 0 else format_bytes(free),
            "-" if time is None else format_duration(time.expected),
            "-" if card.price is None else f"{format_usd(card.price.expected)}/h",
        )
    return table


def _foot(to: Console, fit: Fit[StepEstimate]) -> None:
    to.print()
    words = [f"{fit.step.captures} capture{'s' if fit.step.captures != 1 else ''} of two steps without a GPU"]
    if fit.remedies is not None:
        words.append("every change above was captured, none is a rule of thumb")
    elif fit.fits:
        words.append("--remedies tries what would free more")
    if fit.step.batch is not None and fit.step.batches is None and not fit.step.name.endswith(".py"):
        words.append("--batch auto finds the largest batch")
    to.print("; ".join(words) + ".", style="dim")
    show_assumption(to, fit.cluster)


def show_assumption(to: Console, cluster: Cluster) -> None:
    """Which GPU was taken for a name that means several; nothing where the name says which."""
    if cluster.assumption:
        indented(to, f"Assumed: {cluster.assumption}.", "dim")
