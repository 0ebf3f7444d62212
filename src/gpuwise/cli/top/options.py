"""The options of ``gpuwise top`` as values, refused with a hint when they cannot be meant."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpuwise.errors import InputError
from gpuwise.machine.telemetry.options import Prices

SHORTEST_INTERVAL_S = 0.05
"""Drivers renew their readings a few times to a few dozen times a second: asking more often reads the same again."""
LONGEST_INTERVAL_S = 86400.0
MOST_DEMO_CARDS = 64
_PRICE = re.compile(r"\$?\s*([0-9][0-9.,]*)\s*\$?\s*/\s*(kwh|h|hour)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class TopOptions:
    """What was asked for, checked."""

    once: bool = False
    json: bool = False
    csv: str | None = None
    record: Path | None = None
    replay: Path | None = None
    interval_s: float = 1.0
    duration_s: float | None = None
    count: int | None = None
    prometheus: tuple[str, int] | None = None
    otlp: Path | None = None
    alerts: tuple[str, ...] = ()
    command: str | None = None
    prices: Prices = field(default_factory=Prices)
    demo: int | None = None
    fail_on_fault: bool = False
    screen: bool = True
    theme: str | None = None
    everything: bool = False

    @property
    def works_alone(self) -> bool:
        """Whether there is something to do without anybody looking."""
        return bool(self.csv or self.record or self.prometheus or self.otlp or self.alerts)

    @property
    def stdout_is_data(self) -> bool:
        return self.json or self.csv == "-"


def check(options: TopOptions) -> TopOptions:
    """The options, if they go together. Raises InputError."""
    if options.command is not None and not options.alerts:
        raise InputError("--exec runs when an alert goes off, and there is no --alert", hint='add --alert "temp>85 for 60s"')
    if options.replay is not None:
        for name, value in (("--demo", options.demo), ("--record", options.record), ("--prometheus", options.prometheus)):
            if value is not None:
                raise InputError(
                    f"{name} does not go with --replay", hint="a recording cannot be changed; --csv converts it to a table"
                )
    if options.json and options.csv == "-":
        raise InputError("--json and --csv - both write to stdout", hint="give --csv a file")
    if options.theme is not None and (options.once or options.json or not options.screen):
        raise InputError("--theme needs the live screen, and this command shows none", hint="leave --theme out")
    if options.once and (options.duration_s is not None or options.count is not None):
        raise InputError("--once reads once: it excludes --duration and --count", hint="leave --once out")
    return options


def interval(text: str) -> float:
    """Seconds between refreshes: ``2``, ``0.5``, ``500ms``. Raises InputError."""
    seconds = _seconds(text, "--interval")
    if not SHORTEST_INTERVAL_S <= seconds <= LONGEST_INTERVAL_S:
        raise InputError(
            f"--interval: {text!r} is not between {SHORTEST_INTERVAL_S} s and a day",
            hint="drivers renew readings about ten times a second",
        )
    return seconds


def duration(text: str) -> float:
    """Seconds to watch: ``90``, ``10m``, ``8h``. Raises InputError."""
    seconds = _seconds(text, "--duration")
    if not seconds > 0:
        raise InputError(f"--duration: {text!r} is not above zero", hint="write it like --duration 10m")
    return seconds


def _seconds(text: str, name: str) -> float:
    from gpuwise.units import parse_duration

    plain = text.strip()
    try:
        return parse_duration(plain + "s" if re.fullmatch(r"[0-9.]*[0-9]", plain) else plain)
    except InputError as error:
        raise InputError(f"{name}: {error.message}", hint=f"write it like {name} 2s") from None


def prices(price: str | None, co2: str | None) -> Prices:
    """``0.30/kWh`` or ``2.50/h`` in US dollars, and grams of CO2 a kWh. Raises InputError."""
    per_kwh = per_hour = None
    if price is not None:
        match = _PRICE.fullmatch(price.strip())
        if match is None:
            raise InputError(
                f"--price: {price!r} is not a price", hint="write it like --price 0.30/kWh, or --price 2.50/h for a GPU"
            )
        value = _positive(match[1], "--price", price)
        if match[2].lower() == "kwh":
            per_kwh = value
        else:
            per_hour = value
    grams = None
    if co2 is not None:
        number = re.sub(r"(?i)\s*g?\s*(/\s*kwh)?$", "", co2.strip())
        grams = _positive(number, "--co2", co2)
    return Prices(per_kwh, per_hour, grams)


def _positive(text: str, name: str, whole: str) -> float:
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise InputError(f"{name}: {whole!r} is not a number of at least 0", hint=f"write it like {name} 400")
    return value


def demo_cards(words: Sequence[str] | None) -> int | None:
    """How many demo cards: None without --demo, 8 where no number is given. Raises InputError."""
    if words is None:
        return None
    if not words:
        return 8
    if len(words) > 1 or not words[0].isascii() or not words[0].isdigit() or not 1 <= int(words[0][:9]) <= MOST_DEMO_CARDS:
        raise InputError(f"--demo: {' '.join(words)!r} is not a number of GPUs from 1 to {MOST_DEMO_CARDS}", hint="--demo 4")
    return int(words[0])
