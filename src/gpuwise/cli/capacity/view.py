"""A capacity as a person reads it: the verdict, the settings, latencies, what gives out, the fleet, changes, commands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from gpuwise.cli.out import console, grid, section, table_of
from gpuwise.cli.words import percent, span
from gpuwise.interval import P80
from gpuwise.serve.capacity.answer import Capacity, Recommendation
from gpuwise.serve.capacity.changes import MODEL, WEAK_GAIN
from gpuwise.serve.capacity.commands import shell_lines
from gpuwise.serve.capacity.rate import METRICS, Point
from gpuwise.serve.capacity.saturation import kv_fill
from gpuwise.serve.capacity.search import throughput
from gpuwise.serve.load.targets import METRICS as METRIC_NAMES
from gpuwise.serve.load.targets import statistic_words
from gpuwise.units import format_bytes, format_duration, format_number, format_usd

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from gpuwise.pick.capacity import CapacityExclusion, CapacityRanking
    from gpuwise.predict.estimate import Estimate
    from gpuwise.serve.capacity.commands import Command
    from gpuwise.serve.capacity.configurations import Configuration
    from gpuwise.serve.capacity.mixed import MixedFleet

SHOWN_CHANGES, SHOWN_PARETO, SHOWN_OPTIONS, SHOWN_WHYS = 6, 6, 10, 5


def requests(rate_per_s: float, like_per_s: float | None = None) -> str:
    """``"4.61 requests/s"``; slow ones by the minute or hour, or as ``like_per_s`` is, fast ones without a fraction."""
    if rate_per_s >= 1000:
        return f"{rate_per_s:,.0f} requests/s"
    like = rate_per_s if like_per_s is None else like_per_s
    for unit, seconds in (("s", 1.0), ("min", 60.0)):
        if like * seconds >= 1:
            return f"{rate_per_s * seconds:.3g} requests/{unit}"
    return f"{rate_per_s * 3600:.3g} requests/h"


def _interval(each: Estimate) -> str:
    """``(80 % interval 0.87 to 2.6 requests/s)``: both ends in the unit of the estimate."""
    return f"({P80} interval {span(each, lambda rate: requests(rate, each.expected))})"


def show_capacity(answer: Capacity, budget_usd_per_hour: float | None = None) -> None:
    """Print the whole answer."""
    to = console()
    _verdict(to, answer, budget_usd_per_hour)
    served = answer.served
    if served is not None:
        section(to, "Latency of one replica", _latency(served))
        section(to, "As the rate of one replica rises", _curve(served))
        section(to, "What gives out first", _saturation(served))
        section(to, "Fleet", _fleet(answer, served))
    elif answer.miss is not None:
        section(to, "The nearest miss", _miss(answer))
    if len(answer.pareto) > 1:
        section(to, "Throughput against interactivity", _pareto(answer.pareto))
    if answer.changes:
        section(to, "What one change would bring", _changes(answer))
    if served is not None:
        _commands(to, "Start a replica", served.starts)
        _commands(to, "Prove it", served.tests)
    _foot(to, answer)


def _verdict(to: Console, answer: Capacity, budget: float | None) -> None:
    from rich.padding import Padding
    from rich.text import Text

    to.print(Text(f"{answer.arch.name} for {answer.load.title} on {answer.label}", "bold"))
    for i, words in enumerate(verdict(answer, budget)):
        good = answer.served is not None and (budget is None or not words.startswith("Over"))
        style = ("bold green" if good else "bold red") if i == 0 else ""
        to.print(Padding(Text(words, style), (0, 0, 0, 2), expand=False))


def show_ranked(found: CapacityRanking) -> None:
    """Print the accelerators that keep the targets by what a million tokens cost, and why others do not."""
    to = console()
    if not found.options:
        to.print("Nothing that can be had keeps the targets within the limits.", style="bold red")
        nearest = found.nearest
        worst = None if nearest is None else nearest.alone.worst
        value_s = None if worst is None else worst.value_s
        if nearest is not None and worst is not None and value_s is not None:
            c = nearest.configuration
            allowed, reached = format_duration(worst.target.limit_s), format_duration(value_s)
            to.print(
                Text(
                    f"The nearest is {c.system.accelerator.name} with {c.words}: {statistic_words(worst.target.key)} of "
                    f"{reached} for a request alone, {allowed} allowed."
                )
            )
    else:
        table = table_of(
            ["GPU", "replicas", "GPUs", "$/h", "$/M tokens", "Wh/M tokens", "each replica"],
            left=("GPU", "each replica"),
            gives_way=("Wh/M tokens", "replicas"),
            under="each replica",
        )
        for o in found.options[:SHOWN_OPTIONS]:
            f = o.fleet
            wh = "-" if f.wh_per_million is None else f"{f.wh_per_million:,.0f}"
            usd = "-" if f.usd_per_hour is None else format_usd(f.usd_per_hour)
            table.add_row(
                o.name,
                str(f.copies_peak),
                str(f.cluster.n_accelerators),
                usd,
                format_usd(o.per_million),
                wh,
                o.limit.configuration.words,
            )
        to.print("What carries it for least", style="bold")
        to.print(table)
        if found.mixed is not None:
            to.print()
            to.print(Text(mixed_words(found.mixed)))
    whys = [one for one in found.left_out if "allowed" in one.why or "budget" in one.why][:SHOWN_WHYS]
    if whys:
        section(to, "Not these", _whys(whys))
    n_other = len(found.left_out) - len(whys)
    to.print()
    to.print(f"{found.simulated} accelerators simulated; {n_other} more do not hold the model or cost more.", style="dim")
    to.print()


def mixed_words(mixed: MixedFleet) -> str:
    """The fleet of two kinds in a sentence."""
    kinds = " and ".join(
        f"{n} {'replica' if n == 1 else 'replicas'} on {n * k.accelerators} {k.name} ({share:.0%} of the requests)"
        for k, n, share in zip(mixed.kinds, mixed.copies, mixed.shares, strict=True)
    )
    saved = 1.0 - mixed.usd_per_hour / mixed.alone_usd_per_hour
    return f"Two kinds together: {kinds}, {format_usd(mixed.usd_per_hour)}/h, {saved:.0%} less than the best of one kind."


def _whys(left_out: Sequence[CapacityExclusion]) -> RenderableType:
    table = grid(2)
    for one in left_out:
        table.add_row(one.name, one.why)
    return table


def verdict(answer: Capacity, budget_usd_per_hour: float | None = None) -> list[str]:
    """The answer in sentences, the most important first."""
    within = " and ".join(t.words for t in answer.targets)
    served, demand = answer.served, answer.demand
    if served is None:
        sentences = [f"Nothing here keeps {within} reliably." if _by_chance(answer) else f"Nothing here keeps {within}."]
        return sentences + ([] if answer.miss is None else [w for w in (answer.miss.why, answer.miss.feasible_words) if w])
    f, each = served.fleet, served.each
    sentences = list[str]()
    if budget_usd_per_hour is not None and f.usd_per_hour is not None and f.usd_per_hour > budget_usd_per_hour:
        sentences.append(f"Over the budget of {format_usd(budget_usd_per_hour)}/h: {format_usd(f.usd_per_hour)}/h for the peak.")
    if demand.rate_per_s is None and demand.users is None:
        sentences.append(
            f"{requests(each.expected * served.copies)} with {within}: "
            f"{_copies(served.copies)} of {requests(each.expected)} {_interval(each)}."
        )
    else:
        who = f"{demand.users:,} users ask {requests(f.rate_per_s)}" if demand.users else requests(f.rate_per_s).capitalize()
        gpus = f"{f.cluster.n_accelerators} {served.configuration.system.accelerator.name}"
        sentences.append(f"{who}: {_copies(f.copies_peak)}, {gpus}, with {within}.")
        sentences.append(f"A replica carries {requests(each.expected)} {_interval(each)}.")
        have = answer.cluster.n_accelerators
        if f.cluster.n_accelerators > have:
            sentences.append(f"That is more than the {have} asked about: they carry {requests(each.expected * served.copies)}.")
    sentences.append(f"Each replica: {served.configuration.words}.")
    return sentences


def _by_chance(answer: Capacity) -> bool:
    """Whether a request alone keeps the targets."""
    return answer.miss is not None and answer.miss.limit.alone.met


def _copies(n: int) -> str:
    return "one replica" if n == 1 else f"{n} replicas"


def _latency(served: Recommendation) -> RenderableType:
    table = table_of(["", "p50", "p90", "p95", "p99", "mean"], left=("",), gives_way=("mean", "p90"))
    for metric in METRICS:
        cells = [served.point.latency(metric, q) for q in (50.0, 90.0, 95.0, 99.0, None)]
        table.add_row(METRIC_NAMES[metric], *("-" if c is None else format_duration(c) for c in cells))
    return _noted(
        table, f"at {requests(served.point.rate_per_s)} a replica" + (", where queues grow" if served.point.saturated else "")
    )


def _curve(served: Recommendation) -> RenderableType:
    table = table_of(
        ["rate", "TTFT p50", "TTFT p95", "ITL p50", "ITL p99", "tokens/s", "cache"],
        left=("rate",),
        gives_way=("ITL p50", "cache", "TTFT p50", "tokens/s"),
    )
    for point in served.curve:
        latencies = [point.latency(m, q) for m, q in (("ttft", 50.0), ("ttft", 95.0), ("itl", 50.0), ("itl", 99.0))]
        cells = ["-" if v is None else format_duration(v) for v in latencies]
        rate = f"{format_number(point.rate_per_s)}/s" + (" *" if point.saturated else "")
        table.add_row(rate, *cells, f"{point.output_tokens_per_s:,.0f}", percent(kv_fill(point)))
    if any(p.saturated for p in served.curve):
        return _noted(table, "* queues grow: a latency depends on how long one waits")
    return table


def _noted(table: RenderableType, words: str) -> RenderableType:
    """A table with a line below it."""
    from rich.console import Group
    from rich.text import Text

    return Group(table, Text(words, "dim"))


def _saturation(served: Recommendation) -> RenderableType:
    s, memory = served.saturation, served.configuration.server.memory
    table = grid(2)
    table.add_row("first", s.words + (f"; {statistic_words(s.target)} breaks" if s.target else "; queues grow"))
    table.add_row("knee", f"{requests(served.knee_per_s)} a replica: from there queues grow whatever the latency")
    busy = ", ".join(
        f"{name} {percent(share)}" for name, share in sorted(s.busy.items(), key=lambda kv: -kv[1]) if share >= 0.005
    )
    table.add_row("time goes to", busy)
    cache = f"{percent(s.kv_fill)} full at the limit, of {memory.tokens:,} tokens ({format_bytes(memory.pool)} a GPU)"
    table.add_row("cache", cache)
    return table


def _fleet(answer: Capacity, served: Recommendation) -> RenderableType:
    f = served.fleet
    table = grid(2)
    peak = answer.demand.peak_over_mean
    name = served.configuration.system.accelerator.name
    table.add_row(
        "load", f"{requests(f.rate_per_s)} on average" + (f", {requests(f.peak_per_s)} at the peak" if peak > 1 else "")
    )
    table.add_row("replicas", f"{f.copies_now} now, {f.copies_peak} at the peak: {f.cluster.n_accelerators} {name}")
    if f.price is not None and f.usd_per_hour is not None and f.usd_per_million is not None:
        table.add_row("rent", f"{format_usd(f.usd_per_hour)}/h, {format_usd(f.price.expected)} a GPU ({f.price.provider})")
        table.add_row(
            "a million tokens",
            f"{format_usd(f.usd_per_million.expected)} written [{span(f.usd_per_million, format_usd)}], "
            f"{format_usd(f.usd_per_million_all or 0.0)} read and written",
        )
        if f.usd_per_million_following is not None and peak > 1 and f.copies_peak > 1:
            table.add_row(
                "following the load", f"{format_usd(f.usd_per_million_following)} written, where replicas come and go by the hour"
            )
    else:
        table.add_row("rent", "no known rental offer")
    if f.wh_per_million is not None and f.power_w is not None:
        table.add_row("energy", f"{f.wh_per_million:,.0f} Wh a million tokens written, {f.power_w / 1000:.3g} kW")
    return table


def _miss(answer: Capacity) -> RenderableType:
    assert answer.miss is not None
    table = table_of(["target", "allowed", "a request alone", ""], left=("target", ""))
    for a in answer.miss.limit.alone.attained:
        value = "-" if a.value_s is None else format_duration(a.value_s)
        chance = a.met and (a.ratio or 0.0) * answer.miss.limit.alone.longest > 1.0
        kept = "kept by chance" if chance else "kept" if a.met else "missed"
        table.add_row(a.target.key, format_duration(a.target.limit_s), value, kept)
    return _noted(table, answer.miss.limit.configuration.words)


def _pareto(pareto: Sequence[tuple[Configuration, Point]]) -> RenderableType:
    step = max(len(pareto) / SHOWN_PARETO, 1.0)
    rows = [pareto[int(i * step)] for i in range(min(SHOWN_PARETO, len(pareto)))]
    rows[-1] = pareto[-1]
    table = table_of(["a user's tokens/s", "a GPU's tokens/s", "with"], left=("with",), under="with")
    for configuration, point in rows:
        table.add_row(f"{point.tokens_per_s_of_user:.3g}", f"{throughput(configuration, point):,.0f}", configuration.words)
    return table


def _changes(answer: Capacity) -> RenderableType:
    from rich.text import Text

    able = [c for c in answer.changes if c.rate_per_s is not None]
    rows = [c for c in able if c.gain is None or abs(c.gain) >= WEAK_GAIN][:SHOWN_CHANGES]
    missed = answer.served is None
    table = table_of(
        ["change", "as many GPUs carry", "", *(["TTFT alone"] if missed else [])], left=("change",), wrap=("change",)
    )
    for c in rows:
        alone = ["-" if c.ttft_s is None else format_duration(c.ttft_s)] if missed else []
        name = Text(c.name + (" (another model's answers)" if c.kind == MODEL else ""))
        table.add_row(name, requests(c.rate_per_s) if c.rate_per_s else "nothing", c.gain_words, *alone)
    if not rows:
        return f"nothing that was tried changes it by more than {WEAK_GAIN:.0%}"
    return table


def _commands(to: Console, title: str, commands: Sequence[Command]) -> None:
    from rich.text import Text

    to.print()
    to.print(title, style="bold")
    for command in commands:
        note = f"  # {command.name}" + (f": {command.note}" if command.note else "")
        to.print(Text(note, "dim"))
        for line in shell_lines(command.line, to.width - 2):
            to.print(Text("  " + line), soft_wrap=True)
        if command.file is not None:
            to.print(Text(f"  # {command.file[0]}", "dim"))
            for line in command.file[1].splitlines():
                to.print(Text("  " + line), soft_wrap=True)


def _foot(to: Console, answer: Capacity) -> None:
    from gpuwise.report.answers.values import BASIS
    from gpuwise.serve.load.workloads import Workload

    to.print()
    source = answer.load.source
    if isinstance(source, Workload) and source.source != "given":
        to.print(f"Load: {source.source}.", style="dim")
    for note in answer.notes:
        to.print(f"Note: {note}.", style="dim")
    if answer.served is not None:
        to.print(f"Basis: {BASIS[answer.served.each.basis]}; latencies are simulated.", style="dim")
