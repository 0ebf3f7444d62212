"""Charts of the last minutes: several readings of one GPU, or one reading of every GPU. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpuwise.machine.telemetry.frames import Card
from gpuwise.machine.telemetry.history import SERIES, History
from gpuwise.tui.lines.braille import PER_COLUMN, plot, squeeze
from gpuwise.tui.lines.cards import limit_of, short_name
from gpuwise.tui.lines.palette import RAMP
from gpuwise.tui.lines.text_runs import (
    BLANK,
    Line,
    Run,
    celsius,
    clip,
    line,
    line_width,
    mhz,
    percent,
    run,
    short_bytes,
    short_rate,
    watts,
)

NARROWEST, LOWEST = 24, 4
"""Minimum width and height of one chart, title included."""
ZOOMS = (1, 5, 15)
"""Refreshes to one dot."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A reading that can be charted."""

    name: str
    title: str
    series: str
    ramp: str
    high: Callable[[Card], float | None]
    """The top of the scale; None: the highest value there was."""
    text: Callable[[float | None], str]
    low: float = 0.0


METRICS: tuple[Metric, ...] = (
    Metric("use", "use", "utilization", "bar", lambda c: 1.0, percent),
    Metric("memory", "memory", "memory_used_bytes", "memory", lambda c: c.sample.memory_total_bytes, short_bytes),
    Metric("power", "power", "power_w", "power", limit_of, lambda v: f"{watts(v)} W"),
    Metric("temperature", "temperature", "temperature_c", "up", lambda c: c.identity.temperature_slowdown_c or 100.0, celsius),
    Metric("clock", "clock", "sm_clock_hz", "clock", lambda c: c.identity.sm_clock_max_hz, lambda v: f"{mhz(v)} MHz"),
    Metric("memory-busy", "memory busy", "memory_utilization", "memory", lambda c: 1.0, percent),
    Metric("pcie-out", "PCIe sent", "pcie_sent_bytes_per_s", "bar", lambda c: None, lambda v: f"{short_rate(v)}B/s"),
    Metric("pcie-in", "PCIe received", "pcie_received_bytes_per_s", "bar", lambda c: None, lambda v: f"{short_rate(v)}B/s"),
    Metric("nvlink-out", "NVLink sent", "nvlink_sent_bytes_per_s", "heat", lambda c: None, lambda v: f"{short_rate(v)}B/s"),
    Metric(
        "nvlink-in", "NVLink received", "nvlink_received_bytes_per_s", "heat", lambda c: None, lambda v: f"{short_rate(v)}B/s"
    ),
    Metric("encoder", "encoder", "encoder_utilization", "bar", lambda c: 1.0, percent),
    Metric("decoder", "decoder", "decoder_utilization", "bar", lambda c: 1.0, percent),
    Metric("fan", "fan", "fan", "heat", lambda c: 1.0, percent),
)
"""In the order in which they are shown and stepped through."""
BY_NAME = {m.name: m for m in METRICS}


@dataclass(frozen=True, slots=True)
class Chart:
    """The contents of one chart."""

    title: str
    values: Sequence[float]
    low: float
    high: float
    now: str
    ramp: str
    action: str = ""
    chosen: bool = False


def available_metrics(card: Card) -> list[Metric]:
    """The metrics that have values; the first five where none has (a lost GPU keeps its history)."""
    return [m for m in METRICS if SERIES[m.series](card) is not None] or list(METRICS[:5])


def charts_of_card(card: Card, metrics: Sequence[Metric], history: History, n: int) -> list[Chart]:
    """The charts of these readings of one GPU."""
    return [_chart(m, m.title, card, history, n, f"chart:{m.name}") for m in metrics]


def charts_of_metric(name: str, cards: Sequence[Card], history: History, n: int, chosen: int) -> list[Chart]:
    """The charts of one reading of every GPU."""
    charts = list[Chart]()
    for card in cards:
        title = f"{card.number} {short_name(card.identity.name)}"
        chart = _chart(BY_NAME[name], title, card, history, n, f"card:{card.number}")
        charts.append(
            Chart(
                *(getattr(chart, f) for f in ("title", "values", "low", "high", "now", "ramp", "action")),
                chosen=card.number == chosen,
            )
        )
    return charts


def _chart(metric: Metric, title: str, card: Card, history: History, n: int, action: str) -> Chart:
    values = history.series(card.number, metric.series, n)
    high = metric.high(card)
    present = [v for v in values if v == v]
    if not high:
        high = max(present, default=0.0) or 1.0
    now = values[-1] if len(values) and values[-1] == values[-1] else None
    return Chart(title, values, metric.low, max(high, max(present, default=0.0)), metric.text(now), metric.ramp, action)


def grid(charts: Sequence[Chart], width: int, height: int, *, zoom: int) -> list[Line]:
    """Charts in rows and columns in ``height`` lines; those without room are dropped from the end."""
    if not charts or height < LOWEST or width < 8:
        return [BLANK] * max(0, height)
    across = max(1, min(len(charts), (width + 1) // (NARROWEST + 1)))
    most = max(1, height // LOWEST)
    if -(-len(charts) // across) > most:
        # narrower ones before any is dropped
        across = max(across, min(-(-len(charts) // most), (width + 1) // (NARROWEST // 2 + 1)))
    down = min(most, -(-len(charts) // across))
    lines = list[Line]()
    for r in range(down):
        high = height // down + (1 if r < height % down else 0)
        lines += _beside(charts[r * across : (r + 1) * across], width, high, across, zoom)
    return lines


def _beside(charts: Sequence[Chart], width: int, height: int, across: int, zoom: int) -> list[Line]:
    free = width - (across - 1)
    widths = [free // across + (1 if i < free % across else 0) for i in range(across)]
    blocks = [_block(c, w, height, zoom) for c, w in zip(charts, widths, strict=False)]
    lines = list[Line]()
    for y in range(height):
        runs = list[Run]()
        for n, b in enumerate(blocks):
            runs += [run(" ")] if n else []
            runs += b[y].runs
        lines.append(line(*runs))
    return lines


def _block(chart: Chart, width: int, height: int, zoom: int) -> list[Line]:
    role = "title" if chart.chosen else "dim"
    title = clip(line(run(chart.title + " ", role, chart.action), run(chart.now, "strong", chart.action)), width)
    out = [line(*title.runs, run(" " * (width - line_width(title))))]
    rows = plot(squeeze(chart.values, zoom), chart.low, chart.high, width, height - 1)
    for n, text in enumerate(rows):
        step = round((len(rows) - 1 - n) / max(1, len(rows) - 1) * (RAMP - 1))
        out.append(line(run(text, f"{chart.ramp}:{step}", chart.action)))
    return out


def span_of(history: History, columns: int, zoom: int) -> float | None:
    """Seconds that a chart of ``columns`` columns covers."""
    times = history.times(columns * PER_COLUMN * zoom)
    return times[-1] - times[0] if len(times) > 1 else None
