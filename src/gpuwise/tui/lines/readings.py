"""Every reading of a GPU and of a process as lines; an unknown one with the reason. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import cast

from gpuwise.machine.devices.readings import EventReason, Health, Identity, Sample
from gpuwise.machine.telemetry.causes.cause import Cause
from gpuwise.machine.telemetry.frames import Card, Frame
from gpuwise.machine.telemetry.options import Prices, spending
from gpuwise.tui.lines.cards import MARKS, away_words, cause_words, energy_words
from gpuwise.tui.lines.head import grams
from gpuwise.tui.lines.processes import Entry, command_of
from gpuwise.tui.lines.text_runs import BLANK, UNKNOWN, Line, clock_words, line, run, wrap
from gpuwise.units import MEGA, format_bytes, format_duration, format_rate, format_usd

LABEL = 30
_HIDDEN = {"index", "at_s", "state", "error", "unknown", "processes", "energy_j"}
_SHARES = {"utilization", "memory_utilization", "fan", "encoder_utilization", "decoder_utilization"}
_UNITS: tuple[tuple[str, Callable[[float], str]], ...] = (
    ("_bytes_per_s", lambda v: format_rate(v, "B/s")),
    ("_bytes", format_bytes),
    ("_hz", lambda v: f"{v / MEGA:.0f} MHz"),
    ("_c", lambda v: f"{v:.0f} °C"),
    ("_w", lambda v: f"{v:.0f} W"),
    ("_s", format_duration),
)
"""End of a field's name -> how its value is written; the longest first."""


def card_lines(card: Card, causes: tuple[Cause, ...], prices: Prices, watched_s: float, width: int) -> list[Line]:
    """All readings of a GPU."""
    out = [line(run(card.identity.name, "strong"), run(f"  GPU {card.number} of this machine", "dim"))]
    if not card.ok:
        out += [line(run(t, "bad")) for t in wrap(away_words(card, Frame(0, card.sample.at_s, 0, None, ())), width)]
    for cause in (c for c in causes if c.number == card.number):
        glyph, role = MARKS[cause.severity]
        for n, text in enumerate(wrap(cause_words(cause), width - 2)):
            out.append(line(run(glyph + " " if n == 0 else "  ", role), run(text)))
        if cause.hint:
            out += [line(run("  "), run(t, "ok")) for t in wrap(cause.hint, width - 2)]
    out += _section("Now", card.sample, card.sample.unknown, width)
    out += _derived(card, prices, watched_s, width)
    if card.health is not None:
        out += _section("Health", card.health, card.health.unknown, width)
    elif card.health_error:
        out += [BLANK, line(run("Health", "title")), *_row("health", UNKNOWN, card.health_error, width)]
    out += _section("What it is", card.identity, card.identity.unknown, width)
    return out


def _section(title: str, of: Identity | Sample | Health, unknown: Mapping[str, str], width: int) -> list[Line]:
    out = [BLANK, line(run(title, "title"))]
    for field in fields(of):
        if field.name in _HIDDEN:
            continue
        value = getattr(of, field.name)
        if isinstance(value, Mapping):
            for name, seconds in cast("Mapping[str, float]", value).items():
                out += _row(f"clocks reduced by {name.replace('_', ' ').lower()}", format_duration(seconds), "", width)
            continue
        reason = "" if value is not None else unknown.get(field.name, "the driver does not say")
        out += _row(_label(field.name), UNKNOWN if value is None else _words(field.name, value), reason, width)
    return out


def _derived(card: Card, prices: Prices, watched_s: float, width: int) -> list[Line]:
    out = list[Line]()
    if card.power_w is not None and card.power_basis:
        out += _row("power, as it is shown", f"{card.power_w:.0f} W", card.power_basis, width)
    if card.energy_j is not None:
        out += _row("energy since the start", energy_words(card.energy_j), card.energy_basis or "", width)
    if prices.any:
        spent = spending(prices, (card,), watched_s)
        if spent.usd_per_hour is not None:
            total = "" if spent.usd is None else f"{format_usd(spent.usd)} since the start"
            out += _row("cost", f"{format_usd(spent.usd_per_hour)} per hour", total, width)
        if spent.co2_g_per_hour is not None:
            total = "" if spent.co2_g is None else f"{grams(spent.co2_g)} since the start"
            out += _row("CO2", f"{grams(spent.co2_g_per_hour)} per hour", total, width)
    for word, value in (("NVLink sent", card.nvlink_sent_bytes_per_s), ("NVLink received", card.nvlink_received_bytes_per_s)):
        if value is not None:
            out += _row(word, format_rate(value, "B/s"), "", width)
    for window in card.windows:
        for reason, share in window.shares.items():
            if share > 0:
                name = reason.replace("_", " ").lower()
                out += _row(
                    f"held by {name}",
                    f"{share * 100:.1f} %",
                    f"of the last {format_duration(round(window.length_s))}, {window.basis}",
                    width,
                )
    for name, n in card.counted.items():
        out += _row(f"{_label(name)}, newly", str(n), "since the start", width)
    return out


def _row(label: str, value: str, note: str, width: int) -> list[Line]:
    wide = min(LABEL, width // 2)
    room = max(8, width - wide - 1)
    texts = wrap(f"{value}  ({note})" if note else value, room)
    role = "faint" if value == UNKNOWN else ""
    return [
        line(run(f"{label:<{wide}.{wide}} " if n == 0 else " " * (wide + 1), "dim"), run(t, role)) for n, t in enumerate(texts)
    ]


def _label(name: str) -> str:
    for end, _ in _UNITS:
        if name.endswith(end):
            name = name.removesuffix(end)
            break
    name = name.replace("n_", "number of ", 1) if name.startswith("n_") else name
    words = {
        "sm": "SM",
        "pcie": "PCIe",
        "pci": "PCI",
        "ecc": "ECC",
        "nvlink": "NVLink",
        "nvlinks": "NVLinks",
        "numa": "NUMA",
        "mig": "MIG",
        "uuid": "UUID",
        "vbios": "VBIOS",
        "id": "ID",
    }
    return " ".join(words.get(w, w) for w in name.split("_"))


def _words(name: str, value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name == "event_reasons" and isinstance(value, int):
        return reasons(value)
    if name == "performance_state":
        return f"P{value}"
    if isinstance(value, tuple):
        return ".".join(str(v) for v in cast("tuple[object, ...]", value))
    if isinstance(value, int | float):
        if name in _SHARES:
            return f"{value * 100:.0f} %"
        for end, words in _UNITS:
            if name.endswith(end):
                return words(value)
    return str(value)


def reasons(bits: int) -> str:
    """Names of the bits of event reasons; bits without a name as numbers."""
    names = [str(r.name).replace("_", " ").lower() for r in EventReason if bits & r]
    rest = bits & ~sum(int(r) for r in EventReason)
    return ", ".join([*names, *([f"unknown bits {rest:#x}"] if rest else [])]) or "none: the clocks are not reduced"


def process_lines(rows: list[Entry], width: int) -> list[Line]:
    """All readings of a process and its memory on each GPU. ``rows`` are of one process."""
    host = rows[0].host
    out = [line(run(f"{host.name or 'process'} ", "strong"), run(str(host.pid), "strong"))]
    out += [line(run(t)) for t in wrap(command_of(rows[0]), width)] + [BLANK]
    no_answer = "not known"
    for label, value, field in (
        ("user", host.user, "user"),
        ("container", host.container, "container"),
        ("parent process", host.parent_pid, "parent_pid"),
        ("state", host.state, "state"),
        ("running for", None if rows[0].age_s is None else clock_words(rows[0].age_s), "started_s"),
        ("cores used", None if host.cpu_share is None else f"{host.cpu_share:.2f}", "cpu_share"),
        ("host memory", None if host.host_memory_bytes is None else format_bytes(host.host_memory_bytes), "host_memory_bytes"),
        ("child processes", host.n_workers, "n_workers"),
        ("cores used by them", None if host.workers_cpu_share is None else f"{host.workers_cpu_share:.2f}", "workers_cpu_share"),
        ("of them at a whole core", host.n_workers_pegged, "n_workers_pegged"),
        ("thread at a whole core", host.pegged_thread or "none", "pegged_thread"),
    ):
        if field == "container" and value is None and "container" not in host.unknown:
            value = "none"
        reason = "" if value is not None else host.unknown.get(field, host.unknown.get("name", no_answer))
        out += _row(label, UNKNOWN if value is None else str(value), reason, width)
    for e in rows:
        if e.gpu is None:
            continue
        out += [BLANK, line(run(f"On GPU {e.number}", "title"), run(f"  {e.gpu.kind}", "dim"))]
        for label, share in (
            ("SM", e.gpu.sm_utilization),
            ("memory bandwidth", e.gpu.memory_utilization),
            ("encoder", e.gpu.encoder_utilization),
            ("decoder", e.gpu.decoder_utilization),
        ):
            out += _row(
                label, UNKNOWN if share is None else f"{share * 100:.0f} %", "" if share is not None else no_answer, width
            )
        memory = e.gpu.memory_bytes
        out += _row("memory", UNKNOWN if memory is None else format_bytes(memory), "" if memory is not None else no_answer, width)
    return out
