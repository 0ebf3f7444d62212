"""The GPUs of a frame as lines: one, two or seven for each, depending on the height. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from gpuwise.machine.devices.readings import State
from gpuwise.machine.telemetry.causes.cause import Cause, Severity
from gpuwise.machine.telemetry.frames import Card, Frame
from gpuwise.machine.telemetry.history import History
from gpuwise.text import capital
from gpuwise.tui.lines.braille import plot
from gpuwise.tui.lines.text_runs import (
    UNKNOWN,
    Line,
    Run,
    bar,
    celsius,
    clock_words,
    cut,
    left,
    line,
    mhz,
    percent,
    right,
    run,
    short_bytes,
    short_rate,
    watts,
    width_of,
    wrap,
)
from gpuwise.units import J_PER_KWH, KILO

MARKS: Mapping[Severity, tuple[str, str]] = {
    Severity.FAULT: ("✖", "bad"),
    Severity.SLOWS: ("▲", "warn-strong"),
    Severity.NOTE: ("•", "note"),
}
"""Glyph and role of how much a cause matters."""
IDLE, BUSY = "○", "●"
INDENT = 5
NEAR_C = 10.0
"""Within this of the temperature at which the hardware slows down, the temperature is shown as a warning."""
NEARLY_FULL = 0.95
"""Share of the memory above which a warning is shown."""
BAR_MIN, BAR_GOOD, BAR_MAX = 8, 14, 28
BAR_TINY, TINY = 5, 72
"""Bars of a narrow terminal, and what is narrow."""
SPARK_MIN, SPARK_GOOD, SPARK_MAX = 8, 30, 60
CARD_LINES = 7


@dataclass(frozen=True, slots=True)
class Cell:
    """A piece of a card's row with a fixed width."""

    name: str
    title: str
    width: int


_CELLS: tuple[Cell, ...] = (
    Cell("power", "W", 4),
    Cell("temperature", "temp", 5),
    Cell("clock", "MHz", 4),
    Cell("memory-text", "", 12),
    Cell("power-limit", "power W", 9),
    Cell("clock-max", "clock MHz", 9),
    Cell("spark", "", SPARK_MIN),
    Cell("link", "PCIe", 5),
    Cell("pcie", "PCIe B/s", 12),
    Cell("nvlink", "NVLink B/s", 12),
    Cell("coder", "enc/dec", 8),
    Cell("fan", "fan", 4),
)
"""In the order in which they are taken in as the width grows."""
_INSTEAD = {"memory-text": "", "power-limit": "power", "clock-max": "clock"}
_SECOND_LINE = ("link", "pcie", "nvlink", "coder", "fan")
"""Cells that the second line holds where a card has two."""


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a GPU's row at one width."""

    name: int
    use_bar: int
    memory_bar: int
    cells: tuple[Cell, ...]
    spark: int

    def has(self, name: str) -> bool:
        """Whether the row has this reading."""
        return any(c.name == name for c in self.cells)


def short_name(name: str) -> str:
    """The name without its vendor: ``NVIDIA GeForce RTX 4090`` -> ``RTX 4090``."""
    for word in ("NVIDIA ", "GeForce ", "AMD ", "Radeon ", "Instinct ", "Intel(R) ", "Intel ", "Apple ", "Data Center GPU "):
        name = name.replace(word, "")
    return name.strip() or "GPU"


def columns_for(width: int, cards: Sequence[Card], *, two_lines: bool) -> Columns:
    """The readings that a row of ``width`` columns has room for."""
    longest = max((width_of(short_name(c.identity.name)) for c in cards), default=4)
    name = min(longest, 9 if width < TINY else 12 if width < 100 else 18)
    skip = set(_SECOND_LINE) if two_lines else {n for n in ("nvlink", "coder", "fan") if not any(_says(c, n) for c in cards)}
    use = BAR_TINY if width < TINY else BAR_MIN
    free = width - (INDENT + name + 1) - 2 * (1 + use + 5)
    cells: dict[str, Cell] = {}
    for cell in _CELLS:
        if cell.name in skip:
            continue
        old = cells.get(_INSTEAD.get(cell.name, ""))
        cost = cell.width + 1 - (old.width + 1 if old else 0) - (5 if cell.name == "memory-text" else 0)
        if cost > free:
            continue
        free -= cost
        if old:
            cells = {(cell.name if k == old.name else k): (cell if k == old.name else v) for k, v in cells.items()}
        else:
            cells[cell.name] = cell
    spark = SPARK_MIN if "spark" in cells else 0
    for bar_top, spark_top in ((BAR_GOOD, SPARK_GOOD), (BAR_MAX, SPARK_MAX)):
        more = min(free // 2, bar_top - use)
        use, free = use + more, free - 2 * more
        more = min(free, spark_top - spark) if spark else 0
        spark, free = spark + more, free - more
    order = (
        "memory-text",
        "power",
        "power-limit",
        "temperature",
        "clock",
        "clock-max",
        "link",
        "pcie",
        "nvlink",
        "coder",
        "fan",
    )
    return Columns(name, use, use, tuple(cells[n] for n in order if n in cells), spark)


def _says(card: Card, cell: str) -> bool:
    s = card.sample
    return any(
        v is not None
        for v in {
            "nvlink": (card.nvlink_sent_bytes_per_s, card.nvlink_received_bytes_per_s),
            "coder": (s.encoder_utilization or None, s.decoder_utilization or None),
            "fan": (s.fan,),
        }[cell]
    )


def heading(columns: Columns) -> Line:
    """The heading of the columns."""
    memory = 12 if columns.has("memory-text") else 5
    runs = [
        run(" " * (INDENT - 3) + left("GPU", columns.name + 3) + " ", "dim"),
        run(left("use", columns.use_bar + 5) + " ", "dim"),
        run(left("memory", columns.memory_bar + memory) + " ", "dim"),
    ]
    runs += [run(right(c.title, c.width) + " ", "dim") for c in columns.cells if c.name != "memory-text"]
    if columns.spark:
        runs.append(run(left("use before", columns.spark), "dim"))
    return line(*runs, back="heading")


def mark_of(card: Card, causes: Sequence[Cause]) -> tuple[str, str]:
    """The glyph before a GPU: its worst cause, else whether it is busy."""
    if not card.ok:
        return MARKS[Severity.FAULT]
    worst = min((c.severity for c in causes), key=list(Severity).index, default=None)
    if worst is not None and worst is not Severity.NOTE:
        return MARKS[worst]
    return (BUSY, "ok") if (card.sample.utilization or 0) > 0 else (IDLE, "dim")


def row(card: Card, columns: Columns, causes: Sequence[Cause], history: History, frame: Frame, *, selected: bool) -> Line:
    """The first line of a GPU."""
    glyph, role = mark_of(card, causes)
    s = card.sample
    start = [
        run(glyph + " ", role),
        run(right(str(card.number), 2) + " ", "strong" if selected else "dim"),
        run(left(short_name(card.identity.name), columns.name) + " ", "strong" if card.ok else "bad"),
    ]
    back, action = ("chosen" if selected else ""), f"card:{card.number}"
    if not card.ok:
        return line(*start, run(away_words(card, frame), "bad"), back=back, action=action)
    share = memory_share(card)
    memory_role = "warn" if share is not None and share >= NEARLY_FULL else "memory"
    runs = [
        *start,
        *bar(s.utilization, columns.use_bar),
        run(right(percent(s.utilization), 5), "strong"),
        run(" "),
        *bar(share, columns.memory_bar, memory_role),
    ]
    if not columns.has("memory-text"):
        runs += [run(right(percent(share), 5)), run(" ")]
    runs += [r for c in columns.cells for r in (_cell(card, c), run(" "))]
    if columns.spark:
        utilization = history.series(card.number, "utilization", columns.spark * 2)
        runs.append(run(plot(utilization, 0.0, 1.0, columns.spark, 1)[0], "bar"))
    return line(*runs, back=back, action=action)


def away_words(card: Card, frame: Frame) -> str:
    """``LOST for 0:48: GPU is lost``."""
    word = "LOST" if card.sample.state is State.LOST else "NO ANSWER"
    ago = "" if card.last_seen_s is None else f" for {clock_words(frame.at_s - card.last_seen_s)}"
    return f"{word}{ago}" + (f": {card.sample.error}" if card.sample.error else "")


def memory_share(card: Card) -> float | None:
    """Used share of the memory, 0 to 1; None where unknown."""
    s = card.sample
    if s.memory_used_bytes is None or not s.memory_total_bytes:
        return None
    return s.memory_used_bytes / s.memory_total_bytes


def heat_role(card: Card) -> str:
    """The colour role of the temperature."""
    now, limit = card.sample.temperature_c, card.identity.temperature_slowdown_c
    if now is None:
        return "faint"
    if limit is None or now < limit - NEAR_C:
        return ""
    return "bad" if now >= limit else "warn"


def limit_of(card: Card) -> float | None:
    """The power limit in force, else the default one, in watts."""
    return card.sample.power_limit_w or card.identity.power_limit_default_w


def _cell(card: Card, cell: Cell) -> Run:
    text, role = _reading(card, cell.name)
    return run(right(text, cell.width), "faint" if text == UNKNOWN else role)


def _reading(card: Card, name: str) -> tuple[str, str]:
    s = card.sample
    match name:
        case "memory-text":
            return f"{short_bytes(s.memory_used_bytes)}/{short_bytes(s.memory_total_bytes)}", ""
        case "power":
            return watts(card.power_w), ""
        case "power-limit":
            return f"{watts(card.power_w)}/{watts(limit_of(card))}", ""
        case "temperature":
            return celsius(s.temperature_c), heat_role(card)
        case "clock":
            return mhz(s.sm_clock_hz), ""
        case "clock-max":
            return f"{mhz(s.sm_clock_hz)}/{mhz(card.identity.sm_clock_max_hz)}", ""
        case "link":
            return link_words(card), ""
        case "pcie":
            return _both(card.pcie_sent_bytes_per_s, card.pcie_received_bytes_per_s), ""
        case "nvlink":
            return _both(card.nvlink_sent_bytes_per_s, card.nvlink_received_bytes_per_s), ""
        case "coder":
            return f"{percent(s.encoder_utilization)}/{percent(s.decoder_utilization)}", "dim"
        case _:
            return percent(s.fan), "dim"


def link_words(card: Card) -> str:
    """``5x16``: generation and width now."""
    s = card.sample
    if s.pcie_generation is None and s.pcie_width is None:
        return UNKNOWN
    return f"{s.pcie_generation or UNKNOWN}x{s.pcie_width or UNKNOWN}"


def _both(sent: float | None, received: float | None) -> str:
    return UNKNOWN if sent is None and received is None else f"↑{short_rate(sent)} ↓{short_rate(received)}"


def energy_words(energy_j: float | None) -> str:
    """``1.24 kWh``, ``87 Wh``."""
    if energy_j is None:
        return UNKNOWN
    wh = energy_j / J_PER_KWH * KILO
    return f"{wh / KILO:.2f} kWh" if wh >= KILO else f"{wh:.0f} Wh" if wh >= 10 else f"{wh:.1f} Wh"


def second(card: Card, width: int, *, selected: bool) -> Line:
    """The second line of a GPU: links, coders, memory clock, energy."""
    runs = list[Run]()
    room = width - INDENT
    for name, value in _more(card):
        need = len(name) + 1 + width_of(value) + (2 if runs else 0)
        if need > room:
            break
        room -= need
        runs += [run("  " if runs else ""), run(name + " ", "faint"), run(value, "dim")]
    return line(run(" " * INDENT), *runs, back="chosen" if selected else "", action=f"card:{card.number}")


def _more(card: Card) -> list[tuple[str, str]]:
    s, fields = card.sample, list[tuple[str, str]]()
    if link_words(card) != UNKNOWN:
        traffic = _both(card.pcie_sent_bytes_per_s, card.pcie_received_bytes_per_s)
        fields.append(("PCIe", link_words(card) + ("" if traffic == UNKNOWN else f" {traffic} B/s")))
    nvlink = _both(card.nvlink_sent_bytes_per_s, card.nvlink_received_bytes_per_s)
    if nvlink != UNKNOWN:
        fields.append(("NVLink", f"{nvlink} B/s"))
    if s.memory_utilization is not None:
        fields.append(("memory busy", percent(s.memory_utilization)))
    if s.encoder_utilization is not None or s.decoder_utilization is not None:
        fields.append(("enc/dec", f"{percent(s.encoder_utilization)}/{percent(s.decoder_utilization)}"))
    if card.energy_j is not None:
        fields.append(("energy", energy_words(card.energy_j)))
    if s.memory_clock_hz is not None:
        fields.append(("memory clock", f"{mhz(s.memory_clock_hz)} MHz"))
    if s.memory_temperature_c is not None:
        fields.append(("memory", celsius(s.memory_temperature_c)))
    if s.performance_state is not None:
        fields.append(("state", f"P{s.performance_state}"))
    if s.fan is not None:
        fields.append(("fan", percent(s.fan)))
    return fields


def block(card: Card, width: int, causes: Sequence[Cause], history: History, frame: Frame, *, selected: bool) -> list[Line]:
    """A GPU in :data:`CARD_LINES` lines: each reading with its bar, its value and its last minutes."""
    glyph, role = mark_of(card, causes)
    back, action = ("chosen" if selected else ""), f"card:{card.number}"
    top = line(
        run(glyph + " ", role),
        run(right(str(card.number), 2) + " ", "strong"),
        run(card.identity.name, "strong" if card.ok else "bad"),
        run("  "),
        run("" if card.ok else away_words(card, frame), "bad"),
        back=back or "heading",
        action=action,
    )
    if not card.ok:
        return [top, *([Line((), "", action)] * (CARD_LINES - 1))]
    s, share = card.sample, memory_share(card)
    limit, slow = limit_of(card), card.identity.temperature_slowdown_c
    top_hz = card.identity.sm_clock_max_hz
    rows = (
        ("use", s.utilization, percent(s.utilization), "bar", "utilization", 1.0),
        (
            "memory",
            share,
            f"{short_bytes(s.memory_used_bytes)} of {short_bytes(s.memory_total_bytes)}",
            "warn" if share is not None and share >= NEARLY_FULL else "memory",
            "memory_used_bytes",
            s.memory_total_bytes,
        ),
        ("power", _ratio(card.power_w, limit), f"{watts(card.power_w)} of {watts(limit)} W", "power", "power_w", limit),
        (
            "heat",
            _ratio(s.temperature_c, slow),
            celsius(s.temperature_c) + (f" of {slow:.0f}" if slow else ""),
            heat_role(card) or "heat",
            "temperature_c",
            slow or 100.0,
        ),
        ("clock", _ratio(s.sm_clock_hz, top_hz), f"{mhz(s.sm_clock_hz)} of {mhz(top_hz)} MHz", "clock", "sm_clock_hz", top_hz),
    )
    words = 17
    free = width - INDENT - 8 - words - 2
    bar_width = max(6, min(40, free // 2 if free >= 28 else free))
    spark = max(0, min(90, free - bar_width - 2))
    lines = [top]
    for title, value, text, colour, series, high in rows:
        runs = [
            run(" " * INDENT),
            run(left(title, 8), "dim"),
            *bar(value, bar_width, colour),
            run(" "),
            run(left(text, words)),
        ]
        if spark >= SPARK_MIN and high:
            runs += [run(" "), run(plot(history.series(card.number, series, spark * 2), 0.0, high, spark, 1)[0], colour)]
        lines.append(line(*runs, action=action))
    return [*lines, second(card, width, selected=False)]


def _ratio(value: float | None, whole: float | None) -> float | None:
    return None if value is None or not whole else value / whole


def cause_lines(cause: Cause, width: int, n: int) -> list[Line]:
    """A cause in at most ``n`` lines under its card: the sentence, what it costs, the evidence."""
    glyph, role = MARKS[cause.severity]
    indent = INDENT if cause.number is not None else 2
    words = cause_words(cause)
    wrapped = wrap(words, max(10, width - indent - 2))
    if len(wrapped) > n:
        wrapped = [*wrapped[: n - 1], cut(" ".join(wrapped[n - 1 :]), max(10, width - indent - 2))]
    action = f"why:{'' if cause.number is None else cause.number}"
    text_role = "note" if cause.severity is Severity.NOTE else ""
    return [
        line(run(" " * indent), run(glyph if i == 0 else " ", role), run(" " + text, text_role), action=action)
        for i, text in enumerate(wrapped)
    ]


@lru_cache(256)
def cause_words(cause: Cause) -> str:
    """The sentence with its cost and its evidence."""
    more = "; ".join([*([cause.cost] if cause.cost else []), *cause.evidence])
    return f"{cause.sentence} {capital(more)}" if more else cause.sentence
