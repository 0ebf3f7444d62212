"""Makes the lines of every panel from a snapshot and the state. Pure except for the scroll positions in ``state``."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpuwise.machine.telemetry.causes.cause import Cause
from gpuwise.machine.telemetry.frames import Card, Frame
from gpuwise.machine.telemetry.history import History, Ring
from gpuwise.tui.lines import cards as cards_view
from gpuwise.tui.lines import charts, head
from gpuwise.tui.lines.layout import Layout, lay_out
from gpuwise.tui.lines.processes import HOST_ONLY, Entry, arrange, columns_for, entries_of, heading, row
from gpuwise.tui.lines.text_runs import BLANK, Line, Run, line, percent, run, short_bytes, spread, wrap
from gpuwise.tui.lines.why import why_lines
from gpuwise.tui.sampler import Snapshot
from gpuwise.tui.state import State
from gpuwise.units import format_duration

HOST_KEPT = 3600


@dataclass(frozen=True, slots=True)
class ScreenLines:
    """The lines of each panel."""

    layout: Layout
    head: Sequence[Line]
    cards: Sequence[Line]
    chart: Sequence[Line]
    processes: Sequence[Line]
    foot: Sequence[Line]
    entries: Sequence[Entry]
    """The table in full, in its order."""


class HostHistory:
    """History of processor and memory use while the screen is open."""

    def __init__(self) -> None:
        self.cpu, self.memory, self.at = Ring(HOST_KEPT), Ring(HOST_KEPT), Ring(HOST_KEPT)

    def add(self, frame: Frame) -> None:
        """Add the values of one frame."""
        h, nan = frame.host, float("nan")
        has_memory = h.memory_total_bytes is not None and h.memory_available_bytes is not None
        self.cpu.append(nan if h.cpu_share is None else h.cpu_share)
        self.memory.append(float(h.memory_total_bytes - h.memory_available_bytes) if has_memory else nan)  # type: ignore[operator]
        self.at.append(frame.at_s)

    def copy(self) -> HostHistory:
        """A copy that does not change."""
        copied = HostHistory()
        copied.cpu, copied.memory, copied.at = self.cpu.copy(), self.memory.copy(), self.at.copy()
        return copied


def draw(shot: Snapshot, state: State, history: History, hosts: HostHistory, width: int, height: int) -> ScreenLines:
    """The lines of the whole screen."""
    frame, causes = shot.frame, shot.causes
    entries = _entries(shot, state)
    shown = list(causes) if frame.cards else []
    layout = lay_out(width, height, len(frame.cards) or _no_card_height(frame, width), shown, len(entries), state.view)
    bar = _bar(shot, state)
    top = [head.first(frame, bar, width), head.second(frame, causes, state.prices, bar, width)][: layout.head]
    foot = [head.foot(bar, width)][: layout.foot]
    listed = _cards(shot, state, history, layout, width) if layout.cards else []
    chart = _chart(shot, state, history, hosts, layout, width) if layout.chart else []
    table = _table(entries, state, layout.processes, width, host_only=not frame.cards)
    return ScreenLines(layout, top, listed, chart, table, foot, entries)


def _bar(shot: Snapshot, state: State) -> head.Bar:
    watched_s = 0.0 if state.began_s is None else max(0.0, shot.frame.at_s - state.began_s)
    return head.Bar(
        state.view,
        state.interval_s,
        state.paused,
        state.title,
        state.stale_s,
        watched_s,
        state.typing,
        state.order.filter,
        state.message,
        shot.notices,
    )


def _entries(shot: Snapshot, state: State) -> list[Entry]:
    has_boot_time = (state.live or shot.frame.demo) and hasattr(time, "CLOCK_BOOTTIME")
    boot_s = time.clock_gettime(time.CLOCK_BOOTTIME) if has_boot_time else None
    entries = entries_of(shot.frame, boot_s)
    entries += [
        Entry(h, age_s=None if h.started_s is None or boot_s is None else max(0.0, boot_s - h.started_s)) for h in shot.hosts
    ]
    order = state.order
    if not shot.frame.cards and order.column not in HOST_ONLY:
        order = replace(order, column="cpu", falling=True)
    return arrange(entries, order, shot.ancestors)


def _no_card_height(frame: Frame, width: int) -> int:
    return len(_no_card(frame, width))


def _no_card(frame: Frame, width: int) -> list[Line]:
    out = [line(run("There is no GPU to watch.", "strong"), run(" This is the processor and the memory.", "dim"))]
    for vendor, reason in frame.failed.items():
        out += [line(run("! " if n == 0 else "  ", "warn"), run(t)) for n, t in enumerate(wrap(f"{vendor}: {reason}", width - 3))]
    if frame.failed:
        out.append(line(run("  `gpuwise doctor` prints the fix.", "dim")))
    return out


def _cards(shot: Snapshot, state: State, history: History, layout: Layout, width: int) -> list[Line]:
    frame = shot.frame
    if not frame.cards:
        return _no_card(frame, width)[: layout.cards]
    columns = cards_view.columns_for(width, frame.cards, two_lines=layout.per_card == 2)
    causes_by_number: dict[int | None, list[tuple[Cause, int]]] = {}
    for place, cause in enumerate(shot.causes):
        causes_by_number.setdefault(cause.number, []).append((cause, layout.causes.get(place, 0)))
    out = [cards_view.heading(columns)] if layout.heading else []
    mark = len(frame.cards) > 1
    here = 0
    for card in frame.cards:
        of_card = causes_by_number.get(card.number, [])
        causes, selected = [c for c, _ in of_card], mark and card.number == state.card
        here = len(out) if card.number == state.card else here
        if layout.per_card == cards_view.CARD_LINES:
            out += cards_view.block(card, width, causes, history, frame, selected=selected)
        else:
            out.append(cards_view.row(card, columns, causes, history, frame, selected=selected))
            if layout.per_card == 2:
                out.append(cards_view.second(card, width, selected=selected) if card.ok else BLANK)
        for cause, n in of_card:
            out += cards_view.cause_lines(cause, width, n) if n else []
    for cause, n in causes_by_number.get(None, []):
        out += cards_view.cause_lines(cause, width, n) if n else []
    if len(out) > layout.cards:
        state.first_card_line = _scrolled(state.first_card_line, here, layout.per_card, layout.cards, len(out))
        out = out[state.first_card_line : state.first_card_line + layout.cards]
    return out


def _scrolled(first: int, at: int, n: int, height: int, total: int) -> int:
    """The first line to show so that ``n`` lines from ``at`` are seen."""
    first = min(first, at)
    first = max(first, at + n - height)
    return max(0, min(first, total - height))


def _table(entries: Sequence[Entry], state: State, height: int, width: int, *, host_only: bool) -> list[Line]:
    if height <= 0:
        return []
    columns = columns_for(width, entries, host_only=host_only)
    out = [heading(columns, state.order)]
    room = height - 1
    at = place_of(entries, state)
    if at is not None:
        state.place = at
        state.first_process = _scrolled(state.first_process, at, 1, room, len(entries))
    state.first_process = max(0, min(state.first_process, len(entries) - room))
    for n, e in enumerate(entries[state.first_process : state.first_process + room]):
        out.append(row(e, columns, selected=state.first_process + n == at))
    if not entries and room > 0:
        out.append(line(run(nothing_words(state), "dim")))
    return out


def nothing_words(state: State) -> str:
    """Why the table is empty."""
    if state.order.filter:
        return f"no process matches {state.order.filter!r}"
    if state.order.card is not None:
        return f"no process is seen on GPU {state.order.card} (o shows all)"
    return "no process is seen on a GPU"


def place_of(entries: Sequence[Entry], state: State) -> int | None:
    """Row of the selected entry; if it has disappeared, of the one at its position."""
    if state.process is None or not entries:
        return None
    for n, e in enumerate(entries):
        if e.key == state.process:
            return n
    n = min(state.place, len(entries) - 1)
    state.process = entries[n].key
    return n


def _chart(shot: Snapshot, state: State, history: History, hosts: HostHistory, layout: Layout, width: int) -> list[Line]:
    frame, height = shot.frame, layout.chart
    if state.view == "why":
        lines = why_lines(frame, shot.causes, shot.notices, width)
        state.first_why_line = max(0, min(state.first_why_line, len(lines) - height))
        return lines[state.first_why_line : state.first_why_line + height]
    points = width * 2 * state.zoom
    if not frame.cards:
        return _host_charts(frame, hosts, width, height, state)
    card = selected_card(frame, state)
    if card is None:
        return [BLANK] * height
    metrics = charts.available_metrics(card)
    if state.all_cards:
        charts_shown = charts.charts_of_metric(state.chart or "use", frame.cards, history, points, state.card)
    else:
        shown = [charts.BY_NAME[state.chart]] if state.chart else metrics
        if state.view != "charts":
            shown = shown[: max(1, (width + 1) // (charts.NARROWEST + 1))]
        charts_shown = charts.charts_of_card(card, shown, history, points)
    span_s = charts.span_of(history, width // max(1, _across(len(charts_shown), width)), state.zoom)
    top = _chart_heading(card, state, metrics, span_s, width)
    return [top, *charts.grid(charts_shown, width, height - 1, zoom=state.zoom)]


def _across(n: int, width: int) -> int:
    return max(1, min(n, (width + 1) // (charts.NARROWEST + 1)))


def _chart_heading(card: Card, state: State, metrics: Sequence[charts.Metric], span_s: float | None, width: int) -> Line:
    runs: list[Run] = [
        run("all GPUs " if state.all_cards else f"GPU {card.number} ", "strong", "do:all_cards"),
    ]
    shown = state.chart or ("use" if state.all_cards else "")
    runs.append(run(" all ", "key" if not shown else "dim", "chart:"))
    for metric in metrics:
        runs.append(run(f" {metric.title} ", "key" if metric.name == shown else "dim", f"chart:{metric.name}"))
    after = [] if not span_s else [run(f"the last {format_duration(round(span_s))}", "dim", "do:zoom")]
    return spread(runs, after, width, back="heading")


def _host_charts(frame: Frame, hosts: HostHistory, width: int, height: int, state: State) -> list[Line]:
    n = width * 2 * state.zoom
    host = frame.host
    used = None
    if host.memory_total_bytes is not None and host.memory_available_bytes is not None:
        used = host.memory_total_bytes - host.memory_available_bytes
    of = "" if host.n_cores is None else f" of {host.n_cores} cores"
    host_charts = [
        charts.Chart("processor", hosts.cpu.last(n), 0.0, 1.0, percent(host.cpu_share) + of, "up"),
        charts.Chart(
            "memory",
            hosts.memory.last(n),
            0.0,
            host.memory_total_bytes or 1.0,
            f"{short_bytes(used)} of {short_bytes(host.memory_total_bytes)}",
            "memory",
        ),
    ]
    return charts.grid(host_charts, width, height, zoom=state.zoom)


def selected_card(frame: Frame, state: State) -> Card | None:
    """The selected card, or the first; None without cards."""
    return next((c for c in frame.cards if c.number == state.card), frame.cards[0] if frame.cards else None)
