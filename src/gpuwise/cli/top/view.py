"""One look at the cards as text: what they do, who uses them, why they are slow. Plain strings: it has to be quick."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpuwise.machine.devices.readings import State
from gpuwise.machine.telemetry.causes.cause import Cause, Severity
from gpuwise.machine.telemetry.frames import Card, Frame, ProcessRow
from gpuwise.machine.telemetry.options import Prices, Spending, spending
from gpuwise.text import broken_command
from gpuwise.units import GIB, J_PER_KWH, KILO, MEGA, format_bytes, format_rate, format_usd

WIDE = 110
"""Columns from which links and the driver's bits are shown too."""
NARROWEST = 40
LONGEST_NAME = 24
"""Characters of a card's name that are shown before clocks and temperature; ``SHORTEST``: columns always shown."""
SHORTEST = 4
LEAST_COMMAND, MOST_LINES = 24, 3
"""Characters beside a process below which its command stands under it; lines of one command."""
N_PROCESSES = 24
"""Processes listed; the rest is counted."""
UNKNOWN = "-"


@dataclass(frozen=True, slots=True)
class Paint:
    """Escapes for a terminal, or none."""

    on: bool

    def dim(self, text: str) -> str:
        return f"\x1b[2m{text}\x1b[0m" if self.on and text.strip() else text

    def bold(self, text: str) -> str:
        return f"\x1b[1m{text}\x1b[0m" if self.on else text

    def of(self, severity: Severity, text: str) -> str:
        codes = {Severity.FAULT: "1;31", Severity.SLOWS: "33", Severity.NOTE: "2"}
        return f"\x1b[{codes[severity]}m{text}\x1b[0m" if self.on else text


LINES, MOST_CARDS = 25, 8
"""Of a screen, and GPUs on it."""


def page(
    frame: Frame,
    causes: tuple[Cause, ...],
    *,
    width: int,
    paint: Paint,
    prices: Prices | None = None,
    everything: bool = True,
    asked: str = "gpuwise top",
) -> str:
    """What the GPUs do, lines no longer than ``width``: the verdict, the cards, what slows them, processes, and what to type
    next. Not ``everything``: what one screen has room for, the worst first. ``asked`` is the command line."""
    width = max(NARROWEST, width)
    why, after = ("Watch it live:", asked.replace(" --once", "")) if frame.cards else ("Look for the reason:", "gpuwise doctor")
    blocks = [[line] for line in _cards(frame, width, paint)]
    more = [*_causes(frame, causes, width, paint), list(_processes(frame, width, paint))]
    if prices is not None and prices.any and frame.cards:
        more.append(["", _clip(spending_words(spending(prices, frame.cards, 0.0)), width)])
    lines = [*textwrap.wrap(_verdict(frame, causes), width), *(_clip(f"{v}: {why}", width) for v, why in frame.failed.items())]
    shown = blocks if everything else blocks[: MOST_CARDS + 1]
    lines += [line for block in shown for line in block]
    cut = len(shown) < len(blocks)
    for block in more:
        if everything or len(lines) + len(block) <= LINES - 2:
            lines += block
        else:
            cut = True
    if cut:
        why, after = "All of it:", f"{asked} --all"
    one = f"{why}  {after}"
    step = [one] if len(one) <= width else [why, *(f"  {line}" for line in broken_command(after, width - 2))]
    return "\n".join([paint.bold(lines[0]), *lines[1:], "", *step]) + "\n"


def _verdict(frame: Frame, causes: tuple[Cause, ...]) -> str:
    """One sentence: how many GPUs, and the worst that is known of them."""
    demo = "DEMO (these GPUs do not exist): " if frame.demo else ""
    if not frame.cards:
        return "No GPU answers here."
    n = f"{len(frame.cards)} GPU{'s' if len(frame.cards) > 1 else ''}"
    real = [c for c in causes if c.severity is not Severity.NOTE]
    if not real:
        return f"{demo}{n}, and nothing holds them back." if len(frame.cards) > 1 else f"{demo}{n}, and nothing holds it back."
    others = f" ({len(real) - 1} more below)" if len(real) > 1 else ""
    return f"{demo}{n}: {real[0].sentence}{others}"


# --- cards ---


@dataclass(frozen=True, slots=True)
class _Column:
    title: str
    width: int
    left: bool = False


def _cards(frame: Frame, width: int, paint: Paint) -> Iterator[str]:
    if not frame.cards:
        yield _clip(_host_words(frame), width)
        return
    wide = width >= WIDE
    columns = [
        _Column("GPU", 3),
        _Column("name", 10, left=True),
        _Column("util", 5),
        _Column("memory GiB", 11),
        _Column("W", 9),
        _Column("°C", 3),
        _Column("MHz", 9),
    ]
    if wide:
        columns += [_Column("PCIe", 8), _Column("in/out", 14), _Column("fan", 4), _Column("held by", 9, left=True)]
    longest = min(max(len(card.identity.name) for card in frame.cards), LONGEST_NAME)
    while len(columns) > SHORTEST and width - sum(c.width + 1 for c in columns) + columns[1].width + 1 < longest:
        columns.pop()
    width_left = width - sum(c.width + 1 for c in columns) + columns[1].width + 1
    columns[1] = _Column("name", max(10, width_left), left=True)
    yield paint.dim(_row(columns, [c.title for c in columns], width))
    for card in frame.cards:
        if card.sample.state is not State.OK:
            state = card.sample.state.value
            # a card that is lost from the start has not reported its name
            name = UNKNOWN if card.identity.name == state else card.identity.name
            head = _row(columns[:2], [str(card.number), name], width)
            yield paint.of(Severity.FAULT, _clip(f"{head} {state}: {card.sample.error or 'no reason given'}", width))
            continue
        yield _row(columns, _cells(card)[: len(columns)], width)


def _cells(card: Card) -> list[str]:
    s, i = card.sample, card.identity
    cells = [
        str(card.number),
        i.name,
        _percent(s.utilization),
        _pair(s.memory_used_bytes, s.memory_total_bytes, GIB, 1),
        _pair(card.power_w, s.power_limit_w, 1.0, 0),
        UNKNOWN if s.temperature_c is None else f"{s.temperature_c:.0f}",
        _pair(s.sm_clock_hz, i.sm_clock_max_hz, MEGA, 0),
    ]
    link = UNKNOWN if s.pcie_generation is None or s.pcie_width is None else f"gen{s.pcie_generation} x{s.pcie_width}"
    return [*cells, link, _traffic(card), _percent(s.fan), _bits(s.event_reasons)]


def _traffic(card: Card) -> str:
    parts = (card.pcie_received_bytes_per_s, card.pcie_sent_bytes_per_s)
    if parts == (None, None):
        return UNKNOWN
    return "/".join(UNKNOWN if p is None else format_rate(p, "").replace(" ", "") for p in parts) + "B/s"


def _bits(bits: int | None) -> str:
    """The reasons but idle, as the driver's number: the words are below."""
    return UNKNOWN if bits is None else ("" if bits & ~1 == 0 else f"{bits & ~1:#x}")


def _pair(value: float | None, top: float | None, unit: float, digits: int) -> str:
    if value is None:
        return UNKNOWN
    text = f"{value / unit:.{digits}f}"
    return text if top is None else f"{text}/{top / unit:.{digits}f}"


def _percent(share: float | None) -> str:
    return UNKNOWN if share is None else f"{share * 100:.0f} %"


def _host_words(frame: Frame) -> str:
    h = frame.host
    parts = [h.name or "this machine"]
    if h.n_cores:
        parts.append(f"{h.n_cores} cores" + ("" if h.cpu_share is None else f", {h.cpu_share * 100:.0f} % in use"))
    if h.memory_total_bytes:
        available_bytes = h.memory_available_bytes
        parts.append(
            f"{format_bytes(h.memory_total_bytes)} memory"
            + ("" if available_bytes is None else f", {format_bytes(available_bytes)} left")
        )
    return ": ".join([parts[0], ", ".join(parts[1:])]) if len(parts) > 1 else parts[0]


# --- processes ---


def _processes(frame: Frame, width: int, paint: Paint) -> Iterator[str]:
    rows = [r for c in frame.cards for r in c.processes or ()]
    if not rows:
        return
    rows.sort(key=lambda r: (r.number, -(r.gpu.memory_bytes or 0)))
    columns = [
        _Column("GPU", 3),
        _Column("pid", 8),
        _Column("user", 8, left=True),
        _Column("memory", 9),
        _Column("SM", 5),
        _Column("CPU", 6),
    ]
    columns = [c for i, c in enumerate(columns) if sum(before.width + 1 for before in columns[: i + 1]) <= width + 1]
    columns_width = sum(c.width + 1 for c in columns)
    beside = width - columns_width >= LEAST_COMMAND
    indent = columns_width if beside else 4
    yield ""
    yield paint.dim(_row(columns, [c.title for c in columns], width) + (" command" if beside else ""))
    for row in rows[:N_PROCESSES]:
        *cells, command = _process_cells(row)
        lines = textwrap.wrap(command, width - indent, max_lines=MOST_LINES, placeholder="…") or [""]
        head = _row(columns, cells[: len(columns)], width)
        if beside:
            head = head.ljust(indent) + lines.pop(0)
        yield head.rstrip()
        yield from (" " * indent + line for line in lines)
    if len(rows) > N_PROCESSES:
        yield paint.dim(f"and {len(rows) - N_PROCESSES} more")


def _process_cells(row: ProcessRow) -> list[str]:
    h = row.host
    command = h.command or h.name or h.unknown.get("name") or UNKNOWN
    if h.container:
        command = f"[{h.container}] {command}"
    return [
        str(row.number),
        str(row.pid),
        h.user or UNKNOWN,
        UNKNOWN if row.gpu.memory_bytes is None else format_bytes(row.gpu.memory_bytes),
        _percent(row.gpu.sm_utilization),
        _percent(h.cpu_share),
        command,
    ]


# --- causes, money ---


def _causes(frame: Frame, causes: tuple[Cause, ...], width: int, paint: Paint) -> Iterator[list[str]]:
    """The lines of each cause, the first under a title."""
    title = ["", paint.bold("Why is it slow")] if frame.cards else []
    for cause in causes if frame.cards else ():
        head = f"{cause.severity.value:<6}"
        first, *more_lines = textwrap.wrap(cause.sentence, width - 7) or [""]
        lines = [f"{paint.of(cause.severity, head)} {first}"]
        more = "; ".join([*((f"costs {cause.cost}",) if cause.cost else ()), *cause.evidence])
        lines += [f"       {line}" for line in [*more_lines, *textwrap.wrap(more, width - 7)]]
        if cause.hint and cause.severity is not Severity.NOTE:
            lines += [paint.dim(f"       {line}") for line in textwrap.wrap(f"do: {cause.hint}", width - 7)]
        yield [*title, *lines]
        title = []


def spending_words(spending: Spending) -> str:
    """``2.41 kW now, $0.72 an hour, 0.96 kg CO2 an hour; 0.4 kWh, $0.12 since the start``."""
    now: list[str] = [] if spending.power_w is None else [f"{spending.power_w / KILO:.2f} kW now"]
    if spending.usd_per_hour is not None:
        now.append(f"{format_usd(spending.usd_per_hour)} an hour")
    if spending.co2_g_per_hour is not None:
        now.append(f"{spending.co2_g_per_hour / KILO:.3g} kg CO2 an hour")
    since: list[str] = [] if not spending.energy_j else [f"{spending.energy_j / J_PER_KWH:.3g} kWh"]
    if spending.usd:
        since.append(format_usd(spending.usd))
    if spending.co2_g:
        since.append(f"{spending.co2_g / KILO:.3g} kg CO2")
    text = ", ".join(now) or "power unknown"
    return text + (f"; {', '.join(since)} since the start" if since else "")


# --- lines ---


def _row(columns: Sequence[_Column], cells: Sequence[str], width: int) -> str:
    parts = [
        _clip(cell, c.width).ljust(c.width) if c.left else cell.rjust(c.width) for c, cell in zip(columns, cells, strict=True)
    ]
    return _clip(" ".join(parts), width).rstrip()


def _clip(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"
