"""A plan as a person reads it: the answer first, then the layout, the memory, the time, the choices, the
reasons."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from gpuwise.cli.answer_tables import (
    TIGHT,
    TIGHT_WORDS,
    Figure,
    chance,
    figures_table,
    price_words,
    show_fitting,
    work_figures,
)
from gpuwise.cli.bars import single
from gpuwise.cli.out import console, grid, section, table_of
from gpuwise.cli.words import BASIS, between, percent, plain
from gpuwise.export.job import writes_model
from gpuwise.export.targets import TOOLS, command, device_gaps, gaps_of, tool_of
from gpuwise.interval import P80
from gpuwise.plan.answer import CapturedStep, Option, Plan
from gpuwise.plan.explain import layout
from gpuwise.plan.explain import percent as slower
from gpuwise.plan.hardware import late, over_budget
from gpuwise.plan.job import job_of
from gpuwise.plan.promise import rule_s
from gpuwise.predict.practice import RULE_MFU
from gpuwise.predict.step.training import TrainingEstimate
from gpuwise.text import capital
from gpuwise.units import format_bytes, format_count, format_duration, format_usd
from gpuwise.workload.adapters import DEFAULT_TARGETS, targets_text
from gpuwise.workload.optimizer import on_host
from gpuwise.workload.stacks.stack import find_stack
from gpuwise.workload.transformer.parameters import count_parameters

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from gpuwise.cli.fitted_table import FittedTable

MISSES = " !"
"""Marks a time beyond the deadline and a cost beyond the budget."""
WIDE = 110
"""Columns from which the layout and the numbers stand side by side."""


def show_plan(plan: Plan[Any]) -> None:
    """Print the whole plan, whichever front end wrote the step."""
    if isinstance(plan.subject, CapturedStep):
        from gpuwise.cli.step.plan_view import show_step_plan

        show_step_plan(plan)
    else:
        _show(plan)


def _show(plan: Plan[TrainingEstimate]) -> None:
    to = console()
    if plan.best is None:
        _nothing_fits(to, plan)
        return
    best = plan.best
    _headline(to, plan, best)
    if plan.hardware:
        section(to, "Where", _hardware_table(plan))
        if any(late(o, plan.goal.wishes) or over_budget(o, plan.goal.wishes) for o in plan.hardware):
            to.print(f"  {MISSES.strip()} beyond the deadline or the budget", style="dim")
    _levels(to, best)
    left, right = _layout_table(plan, best), _numbers_table(plan, best)
    if to.width >= WIDE:
        section(to, f"Layout, and numbers with {P80} intervals", _beside(left, right))
    else:
        section(to, "Layout", left)
        section(to, f"Numbers ({P80} intervals)", right)
    _memory(to, best)
    section(
        to,
        f"Where the {format_duration(best.estimate.step_time_s.expected)} of a step go",
        _time_table(best, to.width),
    )
    _alternatives(to, plan, best)
    _bullets(to, "Why", plan.reasons)
    _bullets(to, "Others", plan.published)
    _bullets(to, "Warnings", plan.warnings, "yellow")
    _bullets(to, "Assumed", plan.goal.assumed, "dim")
    _run(to, plan, best)
    _foot(to, plan, best)


def _headline(to: Console, plan: Plan[TrainingEstimate], best: Option[TrainingEstimate]) -> None:
    from rich.text import Text

    goal, tokens = plan.goal, plan.goal.wishes.tokens
    count = count_parameters(goal.arch)
    size = format_count(count.total) + (f", {format_count(count.active)} active" if count.active != count.total else "")
    to.print(Text.assemble((f"{goal.arch.name}", "bold"), f" ({size} parameters) on ", (best.cluster.label, "bold")))
    took = Text("  ")
    took.append(_amount(plan), "bold" if tokens else "dim")
    took.append(" in ")
    took.append(format_duration(best.time_s.expected), "bold green")
    if best.cost_usd is not None:
        took.append(" for ")
        took.append(format_usd(best.cost_usd.expected), "bold green")
    peak = f"{best.estimate.strategy.precision} peak"
    took.append(f" at {percent(best.estimate.mfu.expected)} of the {peak} (MFU)")
    to.print(took)


def _amount(plan: Plan[TrainingEstimate]) -> str:
    """``15.0B tokens``; of a model of images ``1.28M images (252M tokens)``."""
    words, patches = f"{format_count(plan.tokens)} tokens", plan.goal.arch.patches
    return words if patches is None else f"{format_count(plan.tokens / patches.n_tokens)} images ({words})"


def _amount_unit(plan: Plan[TrainingEstimate]) -> str:
    """What the time and the cost are for: ``15.0B`` tokens, ``1.28M images``."""
    patches = plan.goal.arch.patches
    return format_count(plan.tokens) if patches is None else f"{format_count(plan.tokens / patches.n_tokens)} images"


def _levels(to: Console, best: Option[TrainingEstimate]) -> None:
    """Expected of a team, tuned, by the rule of thumb; and what the whole time holds."""
    tuned, run, operation = best.tuned, best.run, best.operation
    if tuned is None or run is None:
        return
    training, step = run.time_s.expected, best.estimate.step_time_s.expected
    table = table_of(["training alone", "time", "MFU"], left=("training alone",))
    table.add_row("expected of a team", format_duration(training), percent(best.estimate.mfu.expected), style="bold")
    fastest = training * tuned.step_time_s.expected / step
    table.add_row("tuned, as the stack's authors reach", format_duration(fastest), percent(tuned.mfu.expected))
    table.add_row("by the rule of 40 % MFU", format_duration(rule_s(best)), percent(RULE_MFU))
    section(to, "Two levels, and the rule of thumb", table)
    if operation is None:
        return
    items = [(name, share.expected * training) for name, share in operation.shares.items() if name != "training"]
    words = ", ".join(f"{name} {format_duration(s)}" for name, s in items if s >= 0.0005 * training)
    line = f"  {percent(operation.goodput)} of the whole time is training; the rest: {words}."
    to.print(line, style="dim")


def _beside(left: Table, right: Table) -> Table:
    table = grid(2, pad=4)
    table.add_row(left, right)
    return table


def _layout_table(plan: Plan[TrainingEstimate], best: Option[TrainingEstimate]) -> Table:
    table = grid(2)
    for name, value in _layout_rows(plan, best):
        table.add_row(name, value)
    return table


def _layout_rows(plan: Plan[TrainingEstimate], best: Option[TrainingEstimate]) -> Iterator[tuple[str, str]]:
    s, goal = best.estimate.strategy, plan.goal
    degrees = [("data", s.dp), ("tensor", s.tp), ("pipeline", s.pp), ("context", s.cp), ("expert", s.ep)]
    degree_texts = [f"{name} {n}" for name, n in degrees if n > 1 or name == "data"]
    yield (
        "parallel",
        " x ".join(degree_texts[: 4 + (s.ep == 1)]) if s.ep == 1 else " x ".join(degree_texts[:-1]) + f", {degree_texts[-1]}",
    )
    if s.pp > 1:
        yield (
            "schedule",
            s.schedule + (f", {s.virtual_stages} virtual stages" if s.virtual_stages > 1 else ""),
        )
    if s.tp > 1:
        yield "sequence parallel", "yes" if s.sequence_parallel else "no"
    if s.cp > 1:
        yield "context exchange", s.context_parallel
    if s.ep > 1 and find_stack(s.stack).layout.chooses_dispatch:
        behind = ", behind other work" if s.overlap_ep else ""
        yield "expert exchange", f"{s.expert_dispatch}{behind}; CUDA graphs: {s.cuda_graphs}"
    if s.etp > 1:
        yield "each expert", f"over {s.etp} tensor ranks"
    yield (
        "batch",
        f"micro {s.micro_batch} x accumulation {s.accumulation} x data {s.dp} = {plain(s.global_batch)}",
    )
    yield (
        "tokens a step",
        f"{plain(s.global_batch)} x {plain(goal.seq_len)} = {format_count(best.estimate.tokens_per_step)}",
    )
    yield (
        "sharding",
        {
            "none": "none",
            "zero1": "zero1 (optimizer states)",
            "zero2": "zero2 (and gradients)",
            "zero3": "zero3 / FSDP (and weights)",
            "hybrid": "hybrid (FSDP inside a system)" if not s.shard_group else "hybrid (FSDP inside a group)",
        }[s.sharding]
        + (f", over groups of {s.shard_group} ranks" if s.shard_group else ""),
    )
    yield "recompute", s.recompute + (f", one layer in {s.recompute_every}" if s.recompute_every > 1 else "")
    if offload := on_host(s):
        yield "offload", " and ".join(offload) + " in host memory"
    yield (
        "precision",
        s.precision
        + (f", gradients {s.gradient_dtype}" if s.precision not in ("fp32", "tf32") else "")
        + (", no fp32 weights" if not s.master_weights and not s.lora_rank else ""),
    )
    if s.lora_rank:
        where = "" if s.lora_targets == DEFAULT_TARGETS else f" of {targets_text(s.lora_targets)}"
        yield "adapters", f"rank {s.lora_rank}{where}" + (" on 4-bit weights" if s.quantized_base else "")
    yield "optimizer", s.optimizer + (", each update in the backward pass" if s.step_in_backward else "")
    yield "stack", s.stack


def _numbers_table(plan: Plan[TrainingEstimate], best: Option[TrainingEstimate]) -> Table:
    e, patches = best.estimate, plan.goal.arch.patches
    figures: list[Figure] = [
        ("step time", e.step_time_s, format_duration),
        *([] if patches is None else [("images/s", e.tokens_per_s.scaled(1 / patches.n_tokens), plain)]),
        ("tokens/s", e.tokens_per_s, plain),
        ("tokens/s a GPU", e.tokens_per_s_per_gpu, plain),
        ("MFU", e.mfu, percent),
        *([("HFU", e.hfu, percent)] if e.hfu.expected > e.mfu.expected else []),
        ("memory", e.held_bytes, format_bytes),
        *work_figures(best, _amount_unit(plan)),
    ]
    table = figures_table(figures)
    if best.price is not None:
        table.add_row("price", f"{format_usd(best.price.expected)}/h", price_words(best))
    return table


def _memory(to: Console, option: Option[TrainingEstimate]) -> None:
    show_fitting(to, option.estimate, "Memory of the fullest GPU")


def _time_table(option: Option[TrainingEstimate], width: int) -> Table:
    e = option.estimate
    table = grid(4)
    table.columns[1].justify = table.columns[2].justify = "right"
    total = e.step_time_s.expected
    for name, seconds in sorted(e.breakdown_s.items(), key=lambda item: -item[1]):
        if seconds > 0.001 * total:
            share = seconds / total
            table.add_row(name, format_duration(seconds), percent(share), single(share, max(10, min(width, 100) - 40)))
    return table


def _alternatives(to: Console, plan: Plan[TrainingEstimate], best: Option[TrainingEstimate]) -> None:
    if plan.alternatives:
        section(to, "Next-best layouts", _options_table([best, *plan.alternatives], best))
        _legend(to, [best, *plan.alternatives])
    front = [o for o in plan.front if o.time_s.expected > best.time_s.expected]
    if front:
        section(to, "Slower, with more memory to spare (Pareto front)", _options_table(front, best))
        _legend(to, front)


def _legend(to: Console, options: Sequence[Option[TrainingEstimate]]) -> None:
    """What the mark beside free memory means, where there is one."""
    if any(not o.estimate.fits_at_ease for o in options):
        to.print(f"  {TIGHT} {TIGHT_WORDS}: free is what is left then", style="dim")


def _options_table(options: Sequence[Option[TrainingEstimate]], best: Option[TrainingEstimate]) -> FittedTable:
    table = table_of(["", "time", "cost", "MFU", "free", "fits", "layout"], gives_way=("MFU",), under="layout")
    for o in options:
        ratio = o.time_s.expected / best.time_s.expected - 1
        table.add_row(
            "best" if o is best else ("+" if ratio >= 0 else "") + slower(ratio),
            format_duration(o.time_s.expected),
            "-" if o.cost_usd is None else format_usd(o.cost_usd.expected),
            percent(o.estimate.mfu.expected),
            format_bytes(o.headroom_bytes) + ("" if o.estimate.fits_at_ease else TIGHT),
            chance(o.estimate.fit_probability),
            layout(o.estimate.strategy),
        )
    return table


def _hardware_table(plan: Plan[TrainingEstimate]) -> FittedTable:
    wishes = plan.goal.wishes
    table = table_of(
        ["GPUs", "time", "cost", "MFU", "$/GPU h", "price of"],
        left=("GPUs",),
        gives_way=("price of", "MFU", "$/GPU h"),
    )
    for o in plan.hardware:
        mark = "*" if o.cluster.label == plan.goal.cluster.label else " "
        price = o.price
        table.add_row(
            f"{mark} {o.cluster.n_accelerators}x {o.cluster.accelerator.name}",
            format_duration(o.time_s.expected) + MISSES * late(o, wishes),
            "-" if o.cost_usd is None else format_usd(o.cost_usd.expected) + MISSES * over_budget(o, wishes),
            percent(o.estimate.mfu.expected),
            "-" if price is None else f"{price.expected:.2f}",
            "-" if price is None or price.as_of is None else price.as_of.isoformat(),
        )
    return table


def _bullets(to: Console, title: str, lines: Sequence[str], style: str = "") -> None:
    if not lines:
        return
    table = grid(2, pad=1)
    for line in lines:
        table.add_row("-", capital(line), style=style)
    section(to, title, table)


def _run(to: Console, plan: Plan[TrainingEstimate], best: Option[TrainingEstimate]) -> None:
    to.print()
    to.print("Run", style="bold")
    job = job_of(plan)
    tool, words = tool_of(job.strategy.stack, adapters=job.strategy.lora_rank > 0), command(job)
    if tool is None:
        to.print(f"  gpuwise has no files for {job.strategy.stack}: `gpuwise export --help` lists what it has", style="dim")
        return
    if device_gaps(job):
        to.print(
            f"  gpuwise has no files for {'; '.join(device_gaps(job))}: they are for PyTorch on GPUs of NVIDIA, AMD and Intel",
            style="dim",
        )
        return
    missing = gaps_of(job, tool)
    able = [t.name for t in TOOLS.values() if t is not tool and not gaps_of(job, t)] if missing else []
    if missing and not writes_model(job.arch):
        to.print(
            f"  gpuwise writes files for decoders of text only. {plan.goal.arch.name} takes a training script of its own; layout "
            "and times are those of its step",
            style="dim",
        )
        return
    line = "  "
    lines: list[str] = []
    for word in words:
        if len(line) + len(word) + 2 > to.width and line.strip():
            lines.append(line + "\\")
            line = "    "
        line += word + " "
    for text in [*lines, line.rstrip()]:
        to.print(text, style="cyan", soft_wrap=True)
    if missing:
        other = f"; `gpuwise export --to {able[0]}` has" if able else ""
        to.print(f"  {tool.version} has no option for: {'; '.join(missing)}{other}", style="yellow")
    else:
        to.print(
            f"  gpuwise export writes the complete files: model, data and checkpoints, for {tool.version} and others", style="dim"
        )


def _foot(to: Console, plan: Plan[TrainingEstimate], best: Option[TrainingEstimate]) -> None:
    s = plan.search
    assert s is not None
    to.print()
    to.print(
        f"{plain(s.strategies)} strategies evaluated in {format_duration(s.seconds)}, {plain(s.fitting)} "
        "fit. "
        f"Time: {BASIS[best.estimate.step_time_s.basis]}. Memory: {best.estimate.memory_bytes.basis}. "
        "Run times include failures, checkpoints and evaluation.",
        style="dim",
    )


def _nothing_fits(to: Console, plan: Plan[TrainingEstimate]) -> None:
    from rich.text import Text

    e, search = plan.smallest, plan.search
    assert e is not None and search is not None
    to.print(
        Text.assemble(
            (plan.goal.arch.name, "bold"),
            " does ",
            ("not fit", "bold red"),
            " on ",
            (plan.goal.cluster.label, "bold"),
        )
    )
    tried = (
        f"{plain(search.strategies)} ways to lay it out were tried" if search.strategies > 1 else "The layout asked for was tried"
    )
    to.print(f"  {tried}. The one that takes least memory: {layout(e.strategy)}.")
    if e.needed_bytes.expected > e.device_bytes:
        to.print(f"  It needs {between(e.needed_bytes, format_bytes)} on a GPU that has {format_bytes(e.device_bytes)}.")
    else:
        to.print("  It has room on the GPU, but not in the host's memory:")
        to.print(f"  it needs {format_bytes(e.host_bytes)} there, and a host can give {format_bytes(e.host_limit_bytes)}.")
    show_fitting(to, e, "What fills it")
    _bullets(to, "Assumed", plan.goal.assumed, "dim")
    tries = ["`gpuwise fit` lists what would make it fit, and at what cost in speed"]
    s = e.strategy
    if plan.goal.arch.moe is not None and find_stack(s.stack).layout.expert_tensor and s.tp > s.etp:
        tries.append(f"--etp {s.tp}: Megatron-Core divides experts over tensor ranks where nothing else is said")
    _bullets(to, "Try", tries)
