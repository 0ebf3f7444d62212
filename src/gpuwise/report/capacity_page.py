# pyright: reportUnknownMemberType=false
# matplotlib leaves the types of its keyword arguments out
"""A capacity as a page: the verdict, latency against load, a simulated minute, the frontier, the fleet and the commands."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gpuwise.files import PAGE_SUFFIXES, check_target, write_text
from gpuwise.interval import P80
from gpuwise.report.figures import BAD, DASHES, INK, MARKERS, SMALL, Drawing, colour, draw, legend_below, margins
from gpuwise.report.page import Markup, TableCell, TableRow, figures, heading, notes, page, table, verdict
from gpuwise.serve.capacity.answer import Capacity, Recommendation
from gpuwise.serve.capacity.changes import MODEL, Change
from gpuwise.serve.capacity.commands import Command, shell_lines
from gpuwise.serve.capacity.document import timeline
from gpuwise.serve.capacity.saturation import kv_fill
from gpuwise.serve.capacity.search import throughput
from gpuwise.serve.load.targets import METRICS
from gpuwise.serve.load.workloads import Workload
from gpuwise.text import escape
from gpuwise.units import MILLI, format_duration, format_number, format_usd

if TYPE_CHECKING:
    from matplotlib.figure import Figure


NEAR = 0.12
"""Of the axis of rates: closer than this the names of two lines would lie on each other."""
LEAST_FILL = 5.0
"""Per cent of the cache that its axis has at the least."""
COMMAND_WIDTH = 96
"""Characters of a command's line."""


def write_capacity_page(answer: Capacity, sentences: list[str], path: Path) -> None:
    """Write the page to ``path`` (.html); ``sentences`` are its verdict. Raises InputError when it cannot be written there,
    MissingExtraError without matplotlib."""
    check_target(path, PAGE_SUFFIXES)
    write_text(path, capacity_page(answer, sentences), PAGE_SUFFIXES)


def capacity_page(answer: Capacity, sentences: list[str]) -> str:
    """The page as HTML."""
    served = answer.served
    drawings = capacity_drawings(answer)
    body = [verdict(sentences), figures(drawings)]
    if served is not None:
        body += [heading("As the rate of one replica rises"), _curve_table(served), heading("Fleet"), _fleet_table(served)]
    if answer.changes:
        body += [heading("What one change would bring"), _change_table(answer)]
    if served is not None:
        body += [heading("Start a replica"), _commands(list(served.starts)), heading("Prove it"), _commands(list(served.tests))]
    source = answer.load.source
    workload_source = [source.source] if isinstance(source, Workload) and source.source != "given" else []
    body += [
        heading("What it stands on"),
        notes([*workload_source, *answer.notes, f"latencies are simulated; intervals are of {P80}"]),
    ]
    return page(
        f"{answer.arch.name} on {answer.label}",
        f"{answer.load.title}, simulated by gpuwise on {answer.today.isoformat()}.",
        body,
    )


def capacity_drawings(answer: Capacity) -> list[Drawing]:
    """Latency against load and a minute of a replica, where something keeps the targets; the frontier in any case."""
    drawings = [] if answer.served is None else [_latency(answer, answer.served), _minute(answer.served)]
    return [*drawings, _frontier(answer)] if len(answer.pareto) > 1 else drawings


def _latency(answer: Capacity, served: Recommendation) -> Drawing:
    points = [p for p in served.curve if not p.saturated]
    lines = (("ttft", 50.0), ("ttft", 95.0), ("itl", 50.0), ("itl", 99.0))
    rates = [p.rate_per_s for p in points]

    def paint(figure: Figure) -> None:
        axes = figure.add_subplot()
        for i, (metric, percentile) in enumerate(lines):
            values = [(p.latency(metric, percentile) or 0.0) / MILLI for p in points]
            name = f"{METRICS[metric]}, p{percentile:g}"
            axes.plot(rates, values, color=colour(i), linestyle=DASHES[i], marker=MARKERS[i], markersize=3.5, label=name)
        axes.axvline(served.each.expected, color=INK, linewidth=1.0)
        axes.axvline(served.knee_per_s, color=BAD, linewidth=1.0, linestyle=DASHES[1])
        place = axes.get_xaxis_transform()
        most = max(served.knee_per_s, rates[-1] if rates else 0.0) * 1.12
        if served.knee_per_s - served.each.expected < NEAR * most:
            axes.text(served.knee_per_s, 1.02, "targets and knee", transform=place, ha="right", fontsize=SMALL, color=BAD)
        else:
            axes.text(served.each.expected, 1.02, "targets ", transform=place, ha="right", fontsize=SMALL)
            axes.text(served.knee_per_s, 1.02, " knee", transform=place, fontsize=SMALL, color=BAD)
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
        axes.set_xlabel("requests a second of one replica")
        axes.set_ylabel("milliseconds")
        axes.set_xlim(0, most)
        margins(figure, bottom=0.5 + legend_below(figure, axes))

    words = "; ".join(
        f"{format_number(r)}/s: p95 {format_duration(p.latency('ttft', 95.0) or 0.0)}" for r, p in zip(rates, points, strict=True)
    )
    caption = (
        f"The targets break at {format_number(served.each.expected)} requests a second; from {format_number(served.knee_per_s)} "
        "queues grow, and a latency depends on how long one waits."
    )
    return draw("latency", "Latency against load", caption, 3.4, paint, f"Time to first token at {words}.")


def _minute(served: Recommendation) -> Drawing:
    moments = timeline(served.point)
    at = [m["s"] for m in moments]
    most = max((int(m["running"]) for m in moments), default=0)
    full = max((m["kv_fill"] for m in moments), default=0.0)

    def paint(figure: Figure) -> None:
        above, below = figure.subplots(2, sharex=True)
        above.step(at, [m["running"] for m in moments], where="post", color=colour(0), label="decoding", linewidth=1.2)
        above.step(
            at,
            [m["waiting"] for m in moments],
            where="post",
            color=colour(1),
            linestyle=DASHES[1],
            label="waiting",
            linewidth=1.2,
        )
        above.set_ylabel("requests")
        above.set_ylim(0)
        below.fill_between(at, [100 * m["kv_fill"] for m in moments], step="post", color=colour(2), alpha=0.5)
        below.set_ylim(0, min(100.0, max(LEAST_FILL, 130 * full)))
        below.set_ylabel("cache, %")
        below.set_xlabel("seconds")
        margins(figure, bottom=0.5 + legend_below(figure, above), gap=0.2)

    rate = f"{format_number(served.point.rate_per_s)} requests a second"
    caption = f"One replica at {rate}: at most {most} decode, the cache is {full:.0%} full at most."
    return draw("minute", "A simulated minute", caption, 3.6, paint)


def _frontier(answer: Capacity) -> Drawing:
    users = [p.tokens_per_s_of_user for _, p in answer.pareto]
    gpus = [throughput(c, p) for c, p in answer.pareto]

    def paint(figure: Figure) -> None:
        axes = figure.add_subplot()
        axes.step(users, gpus, where="pre", color=colour(0), marker="o", markersize=3.5)
        axes.set_xlabel("tokens a second of a user")
        axes.set_ylabel("tokens a second of a GPU")
        axes.set_ylim(0)
        axes.set_xlim(0)
        margins(figure)

    words = "; ".join(
        f"{u:.3g} a user, {g:,.0f} a GPU with {c.words}" for u, g, (c, _) in zip(users, gpus, answer.pareto, strict=True)
    )
    caption = "Configurations that none beats in both: many users at once, or each of them faster."
    return draw("frontier", "Throughput against interactivity", caption, 3.0, paint, words)


def _curve_table(served: Recommendation) -> str:
    rows: list[TableRow] = []
    for p in served.curve:
        latencies = [p.latency(m, q) for m, q in (("ttft", 50.0), ("ttft", 95.0), ("itl", 50.0), ("itl", 99.0), ("e2e", 95.0))]
        cells = [TableCell("-" if v is None else format_duration(v)) for v in latencies]
        cells += [TableCell(f"{p.output_tokens_per_s:,.0f}"), TableCell(f"{kv_fill(p):.0%}")]
        rows.append(TableRow(f"{format_number(p.rate_per_s)}/s" + (", queues grow" if p.saturated else ""), cells))
    head = ["rate", "first token p50", "first token p95", "gap p50", "gap p99", "answer p95", "tokens/s", "cache"]
    return table("As the rate of one replica rises", head, rows)


def _fleet_table(served: Recommendation) -> str:
    f = served.fleet
    name = served.configuration.system.accelerator.name
    rows = [
        TableRow(
            "load", [TableCell(f"{format_number(f.rate_per_s)} requests/s on average, {format_number(f.peak_per_s)} at the peak")]
        ),
        TableRow("replicas", [TableCell(f"{f.copies_now} now, {f.copies_peak} at the peak: {f.cluster.n_accelerators} {name}")]),
        TableRow("each replica", [TableCell(served.configuration.words)]),
        TableRow("gives out first", [TableCell(served.saturation.words)]),
    ]
    if f.usd_per_hour is not None and f.usd_per_million is not None:
        rows.append(TableRow("rent", [TableCell(f"{format_usd(f.usd_per_hour)}/h")]))
        rows.append(TableRow("a million tokens written", [TableCell(format_usd(f.usd_per_million.expected))]))
    if f.wh_per_million is not None:
        rows.append(TableRow("energy of a million", [TableCell(f"{f.wh_per_million:,.0f} Wh")]))
    return table("Fleet", ["", ""], rows)


def _change_table(answer: Capacity) -> str:
    rows = [
        TableRow(
            c.name + (" (another model's answers)" if c.kind == MODEL else ""),
            [
                TableCell(c.why or _carried(c), mark="words" if c.why else ""),
                TableCell(c.gain_words),
            ],
        )
        for c in answer.changes
    ]
    return table("What one change would bring", ["change", "as many GPUs carry", ""], rows)


def _carried(change: Change) -> str:
    return f"{format_number(change.rate_per_s)} requests/s" if change.rate_per_s else "nothing"


def _commands(commands: list[Command]) -> str:
    """Each as a shell reads it over several lines."""
    style = "overflow-x:auto;background:var(--card);padding:.7em .9em;border-radius:4px"
    parts: list[Markup] = []
    for c in commands:
        file = "" if c.file is None else f"\n# {c.file[0]}\n{c.file[1]}"
        note = f": {c.note}" if c.note else ""
        lines = "\n".join(shell_lines(c.line, COMMAND_WIDTH))
        parts.append(
            Markup(f'<pre tabindex="0" style="{style}">{escape(f"# {c.name}{note}")}\n{escape(lines)}{escape(file)}</pre>')
        )
    return "".join(p.html for p in parts) + "\n"
