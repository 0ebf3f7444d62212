"""The lines at the top and the bottom of the screen. Pure."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from gpuwise.machine.telemetry.causes.cause import Cause, Severity
from gpuwise.machine.telemetry.frames import Frame
from gpuwise.machine.telemetry.options import Prices, spending
from gpuwise.tui.lines.cards import energy_words, limit_of
from gpuwise.tui.lines.layout import VIEWS
from gpuwise.tui.lines.text_runs import Line, Run, bar, cut, line, percent, run, short_bytes, spread, width_of
from gpuwise.units import KILO, format_usd

KEYS: tuple[tuple[str, str, str], ...] = (
    ("?", "help", "help"),
    ("q", "quit", "quit"),
    ("tab", "view", "next_view"),
    ("enter", "details", "details"),
    ("/", "filter", "filter"),
    ("s", "sort", "sort"),
    ("t", "tree", "tree"),
    ("k", "kill", "kill"),
    ("c", "chart", "chart"),
    ("a", "all GPUs", "all_cards"),
    ("space", "pause", "pause"),
    ("T", "theme", "theme"),
)
"""Key, what it does in a word, action of the application: those at the bottom, the most used first."""


@dataclass(frozen=True, slots=True)
class Bar:
    """Input of the first and last line beside the frame."""

    view: str = "overview"
    interval_s: float = 1.0
    paused: bool = False
    title: str = ""
    stale_s: float | None = None
    """How long the driver has not answered, where that is long."""
    watched_s: float = 0.0
    typing: str | None = None
    """The filter while it is typed."""
    filter: str = ""
    message: str = ""
    """A word for a moment: what a key has done."""
    notices: Sequence[str] = ()


def first(frame: Frame, state: Bar, width: int) -> Line:
    """The first line: source, driver and views."""
    what = ("" if frame.demo else state.title) or frame.host.name or "this machine"
    n = len(frame.cards)
    before = [
        run("gpuwise top ", "title"),
        run(("DEMO " if frame.demo else "") + what, "strong"),
        run(f"  {n} GPU{'s' if n != 1 else ''}" if n else "  no GPU", "dim"),
    ]
    driver = ", ".join(v if k in ("null", "recorded") else f"driver {v}" for k, v in frame.drivers.items() if v != "demo")
    if driver and width >= 90:
        before.append(run(f"  {driver}", "faint"))
    after = list[Run]()
    if width >= 78:
        for view in VIEWS:
            after += [run(view, "key" if view == state.view else "dim", f"view:{view}"), run("  ")]
    else:
        after += [run(state.view, "key", "do:next_view"), run("  ")]
    if state.stale_s is not None:
        after.append(run(f"no answer for {state.stale_s:.0f} s", "bad"))
    elif state.paused:
        after.append(run("PAUSED", "warn-strong", "do:pause"))
    else:
        after.append(run(f"{state.interval_s:g} s", "dim"))
    if width >= 70:
        after.append(run(time.strftime("  %H:%M:%S", time.localtime(frame.wall_s)), "dim"))
    return spread(before, after, width)


def second(frame: Frame, causes: Sequence[Cause], prices: Prices, state: Bar, width: int) -> Line:
    """The second line: host, power, energy, cost, and the number of GPUs in trouble."""
    host = frame.host
    used = None
    if host.memory_total_bytes is not None and host.memory_available_bytes is not None:
        used = host.memory_total_bytes - host.memory_available_bytes
    small = 8 if width >= 110 else 5
    before = [run("CPU ", "dim"), *bar(host.cpu_share, small), run(f" {percent(host.cpu_share)}")]
    if width >= 100 and host.n_cores:
        before.append(run(f" of {host.n_cores}", "faint"))
    before += [
        run("  mem ", "dim"),
        *bar(_ratio(used, host.memory_total_bytes), small, "memory"),
        run(f" {short_bytes(used)}/{short_bytes(host.memory_total_bytes)}"),
    ]
    after = verdict(causes)
    room = width - sum(width_of(t) for t, _, _ in after) - 1
    for text, role in sums(frame, prices, state.watched_s):
        if sum(width_of(t) for t, _, _ in before) + 2 + width_of(text) > room:
            break
        before += [run("  "), run(text, role)]
    return spread(before, after, width)


def sums(frame: Frame, prices: Prices, watched_s: float) -> list[tuple[str, str]]:
    """Power of all GPUs against their limits, energy since the start, cost and CO2 where prices are set."""
    if not frame.cards:
        return []
    spent, out = spending(prices, frame.cards, watched_s), list[tuple[str, str]]()
    limits = [limit for c in frame.cards if (limit := limit_of(c)) is not None]
    if spent.power_w is not None:
        whole = f"/{_kw(sum(limits))}" if limits else ""
        out.append(
            (
                f"power {_kw(spent.power_w)}{whole} W"
                if not limits or sum(limits) < KILO
                else f"power {spent.power_w / KILO:.2f}/{sum(limits) / KILO:.2f} kW",
                "",
            )
        )
    if spent.energy_j is not None:
        out.append((energy_words(spent.energy_j), ""))
    if spent.usd_per_hour is not None:
        total = "" if spent.usd is None else f" ({format_usd(spent.usd)})"
        out.append((f"{format_usd(spent.usd_per_hour)}/h{total}", ""))
    if spent.co2_g_per_hour is not None:
        total = "" if spent.co2_g is None else f" ({grams(spent.co2_g)})"
        out.append((f"CO2 {grams(spent.co2_g_per_hour)}/h{total}", ""))
    return out


def grams(g: float) -> str:
    """``1.3 kg``, ``87 g``."""
    return f"{g / KILO:.1f} kg" if g >= KILO else f"{g:.0f} g" if g >= 10 else f"{g:.1f} g"


def _kw(watts: float) -> str:
    return f"{watts:.0f}"


def verdict(causes: Sequence[Cause]) -> list[Run]:
    """Number of faults and slowdowns; a click shows them."""
    n = {s: sum(1 for c in causes if c.severity is s) for s in Severity}
    out = list[Run]()
    if n[Severity.FAULT]:
        out += [run(f"✖ {n[Severity.FAULT]} fault{'s' if n[Severity.FAULT] > 1 else ''}", "bad", "view:why"), run("  ")]
    if n[Severity.SLOWS]:
        out += [run(f"▲ {n[Severity.SLOWS]} slowed", "warn-strong", "view:why"), run("  ")]
    if not out and not n[Severity.NOTE]:
        return [run("no GPU slowed down", "ok", "view:why")]
    if n[Severity.NOTE] and not out:
        out += [run(f"• {n[Severity.NOTE]} note{'s' if n[Severity.NOTE] > 1 else ''}", "note", "view:why"), run("  ")]
    return out[:-1]


def foot(state: Bar, width: int) -> Line:
    """The last line: keys, or the filter while it is typed, and messages."""
    if state.typing is not None:
        return line(
            run("filter ", "title"),
            run(state.typing, "strong"),
            run("▏", "key"),
            run("  enter keeps, esc clears; words of pid, user, container, command, or gpu:2", "faint"),
        )
    notice = state.message or "; ".join(state.notices)
    after = list[Run]()
    if state.filter and not state.message:
        after += [run(f"filter: {state.filter} ", "warn", "do:filter"), run("✕ ", "dim", "do:clear_filter")]
    if notice:
        room = max(20, width * 2 // 3) - sum(width_of(t) for t, _, _ in after)
        after.append(run(cut(notice, max(8, room)), "warn"))
    room = width - sum(width_of(t) for t, _, _ in after) - 1
    before = list[Run]()
    for key, word, action in KEYS:
        need = width_of(key) + width_of(word) + 3
        if need > room:
            break
        room -= need
        before += [run(key, "key", f"do:{action}"), run(f" {word}  ", "dim", f"do:{action}")]
    return spread(before, after, width)


def _ratio(value: float | None, whole: float | None) -> float | None:
    return None if value is None or not whole else value / whole
