"""The same task on a CPU and on a GPU, side by side: every core and multiprocessor, filled as its part of the work is done.

The drawing is the end of the race; a page that can play empties the cells, and fills them by the times in ``data-race``.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass

from gpuwise.report.answers.drawings import LEFT, RIGHT, WIDTH, axis_below, colour, drawing, mark
from gpuwise.report.answers.values import At
from gpuwise.text import escape
from gpuwise.units import GIGA, format_duration, format_rate

WIDE, HIGH = 280.0, 160.0
"""Of the drawing of one device."""
GAP, BAR = 28.0, 20.0
"""From one bar of the time axis to the next one, and its height."""
COPIED = "copy"
_AXIS = WIDTH - LEFT - RIGHT


@dataclass(frozen=True, slots=True)
class Runner:
    """A device in the race. ``ends`` are pairs of seconds from the beginning of its work, and how many parts of it a cell has
    done by then, with a straight line between; ``cells`` are pairs of how many cells, and how many parts each of them does."""

    key: str
    title: str
    text: str
    lanes: float | None
    phases: tuple[tuple[str, float], ...]
    work: int
    """Index of the phase that does the work."""
    ends: tuple[tuple[float, int], ...]
    cells: tuple[tuple[int, int], ...]
    clock_hz: float | None
    instructions: float | None

    @property
    def end_s(self) -> float:
        """Seconds until the results are there, copies included."""
        return sum(seconds for _, seconds in self.phases)


def race(d: At) -> str:
    """The figure of a simulated task beside a CPU."""
    runners = (_cpu(d), _gpu(d))
    items, name = d["beside"]["items"].number, d["beside"]["item"].text
    end = max(r.end_s for r in runners)
    data = {
        "items": items,
        "end": end,
        "copied": COPIED,
        "axis": [LEFT, _AXIS],
        "sides": [
            {
                "phases": r.phases,
                "work": r.work,
                "ends": r.ends,
                "cells": r.cells,
                "clock": r.clock_hz,
                "instructions": r.instructions,
            }
            for r in runners
        ],
    }
    sides = "".join(_side(r, i, items, name) for i, r in enumerate(runners))
    return (
        f'<figure id="race" data-play="Time of the race" data-race="{escape(json.dumps(data))}">'
        f'<div class="race">{sides}</div><figcaption>A large square is a core of the CPU or a multiprocessor of the GPU, a small '
        f"one a multiply-add per clock. A first call takes {d['beside']['first_call_s'].text} more on both sides.</figcaption>"
        f"{_bars(runners, end)}</figure>\n"
    )


def _cpu(d: At) -> Runner:
    cpu = d["beside"]["cpu"]
    busy, cores = len(list(cpu["timeline"])), int(cpu["cores"].number)
    work = cpu["time_s"].number - cpu["fork_s"].number
    start = "threads start" if busy > 1 else "function starts"
    lanes, clock = cpu["flop_per_clock_and_core"].number / 2 or None, cpu["clock_hz"].number or None
    used = "" if busy == cores else f"; {'one works' if busy == 1 else f'{busy} work'} here"
    return Runner(
        "cpu",
        cpu["device"].text,
        f"{cores} cores{_pace(clock, lanes)}{used}",
        lanes,
        ((start, cpu["fork_s"].number), ("computing", work)),
        1,
        ((work, 1),),
        ((busy, 1), (cores - busy, 0)),
        clock,
        None,
    )


def _gpu(d: At) -> Runner:
    beside, seconds, clock = d["beside"], d["time_s"].number, d["clock_hz"].number
    blocks, units, most = (int(d[name].number) for name in ("blocks", "multiprocessors", "blocks_of_one"))
    timed = [min(end / clock, seconds) for end in d["block_ends"].value]
    full = blocks - (most - 1) * units
    counters = d["counters"]
    lanes = beside["flop_per_clock_and_multiprocessor"].number / 2
    live = min(int(d["occupancy"]["active_blocks"].number), most)
    resident = f"; {live:,} block{'s' if live > 1 else ''} of {int(d['threads'].number):,} threads on each at once"
    copies = ((COPIED, beside["copy_s"].number / 2),) if beside["copy_s"].number else ()
    before = (*copies, ("launch", beside["launch_s"].number))
    return Runner(
        "gpu",
        d["device"].text,
        f"{units} multiprocessors{_pace(clock, lanes)}{resident}",
        lanes,
        (*before, ("kernel", seconds), *copies),
        len(before),
        (*((end, i + 1) for i, end in enumerate(timed[: most - 1])), (seconds, most)),
        ((full, most), (units - full, most - 1)),
        clock,
        counters["warp_instructions"].number * blocks / d["blocks_timed"].number,
    )


def _pace(clock: float | None, lanes: float | None) -> str:
    """Clock, and what a core does in one cycle of it."""
    return "" if clock is None or lanes is None else f" at {clock / GIGA:.2f} GHz, {lanes:.0f} multiply-adds per clock each"


def _side(r: Runner, ink: int, items: float, name: str) -> str:
    """One device: its cells, what it is doing, and its counters at the end."""
    rate = items / r.end_s
    rows = [
        (f"{name} done", "items", f"{items:,.0f}"),
        ("time", "time", format_duration(r.end_s)),
        (f"{name} a second", "rate", format_rate(rate, "/s")),
    ]
    if r.clock_hz is not None:
        rows.append(("clock cycles", "cycles", f"{r.end_s * r.clock_hz:,.0f}"))
    if r.instructions is not None:
        rows.append(("instructions, each of 32 lanes", "instructions", f"{r.instructions:,.0f}"))
    counters = "".join(f'<div><dt>{escape(t)}</dt><dd data-show="{key}">{words}</dd></div>' for t, key, words in rows)
    return (
        f'<div class="side" role="group" aria-label="{r.key.upper()}"><h3>{r.key.upper()}: {escape(r.title)}</h3>'
        f"<p>{escape(r.text)}</p>{_cells(r, ink)}"
        f'<p class="phase" data-show="phase">done</p><dl class="counters">{counters}</dl></div>'
    )


def _cells(r: Runner, ink: int) -> str:
    """Every core or multiprocessor as a square, filled where it had work, with its lanes as a grid."""
    count = sum(n for n, _ in r.cells)
    size, across = max((min(WIDE / n, HIGH / math.ceil(count / n)), n) for n in range(1, count + 1))
    inner, parts = 0.9 * size, [p for n, p in r.cells for _ in range(n)]
    pattern, over = "", ""
    if r.lanes is not None and r.lanes >= 2:
        columns = 2 ** math.ceil(math.log2(r.lanes) / 2)
        wide, high = inner / columns, inner / math.ceil(r.lanes / columns)
        pattern = (
            f'<defs><pattern id="lanes-{r.key}" width="{wide:.3f}" height="{high:.3f}" patternUnits="userSpaceOnUse">'
            f'<path class="lane" d="M0 0H{wide:.3f}M0 0V{high:.3f}"/></pattern></defs>'
        )
        over = f'<rect width="{inner:.2f}" height="{inner:.2f}" fill="url(#lanes-{r.key})"/>'
    drawn = list[str]()
    for i, part in enumerate(parts):
        x, y = i % across * size, i // across * size
        track = f'<rect class="track" width="{inner:.2f}" height="{inner:.2f}"/>'
        done = f'<rect class="{colour(ink)} done" width="{inner:.2f}" height="{inner if part else 0:.2f}"/>'
        drawn.append(f'<g transform="translate({x:.2f} {y:.2f})">{track}{done}{over}</g>')
    words = f"{count} {'cores' if r.key == 'cpu' else 'multiprocessors'}, {sum(1 for p in parts if p)} with work"
    kind = f'class="cells" data-cell="{inner:.2f}"'
    return drawing(WIDE, HIGH, f"{r.key.upper()}: {words}", pattern + "".join(drawn), kind)


def _bars(runners: tuple[Runner, ...], end: float) -> str:
    """What each device does when, on one time axis."""
    names = list(dict.fromkeys(name for r in runners for name, _ in r.phases))
    y, body = 6.0, ""
    for side, r in enumerate(runners):
        body += f'<text x="{LEFT - 6}" y="{y + 14:g}" text-anchor="end">{r.key.upper()}</text>'
        at = 0.0
        for name, seconds in r.phases:
            place = f'x="{LEFT + at / end * _AXIS:.2f}" y="{y:g}" width="{max(seconds / end * _AXIS, 0.4):.2f}" height="{BAR:g}"'
            words = escape(f"{name}: {format_duration(seconds)}")
            body += f'<rect class="{colour(names.index(name) + 2)}" data-side="{side}" {place}><title>{words}</title></rect>'
            at += seconds
        y += GAP
    body += axis_below(end, format_duration, y)
    body += f'<rect class="veil" visibility="hidden" x="{LEFT:g}" y="0" width="{_AXIS:g}" height="{y:g}"/>'
    legend = "".join(f"<li>{mark(i + 2)} {escape('copy over PCIe' if n == COPIED else n)}</li>" for i, n in enumerate(names))
    label = ", ".join(f"{r.key.upper()} {format_duration(r.end_s)}" for r in runners)
    return f'{drawing(WIDTH, y + 24, f"Time: {label}", body)}<ul class="legend">{legend}</ul>'
