"""Alerts: ``temp>85 for 60s``. A rule fires when its condition has been true for its time on one card, and ends when the
condition has been false for the same time (or the value has passed ``until``), so a value that oscillates around the limit
fires once."""

from __future__ import annotations

import math
import re
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gpuwise.errors import InputError, UnknownNameError, nearest_names
from gpuwise.machine.telemetry.causes.cause import Cause, Severity
from gpuwise.machine.telemetry.frames import Card, Frame
from gpuwise.machine.telemetry.outputs.csv_log import time_words
from gpuwise.processes import script_environment
from gpuwise.units import GIGA, MEGA, parse_bytes, parse_duration

READINGS: Mapping[str, tuple[Callable[[Card], float | None], str]] = {
    "temp": (lambda c: c.sample.temperature_c, "°C"),
    "memtemp": (lambda c: c.sample.memory_temperature_c, "°C"),
    "util": (lambda c: _percent(c.sample.utilization), "%"),
    "mem": (lambda c: _memory_percent(c), "%"),
    "memused": (lambda c: c.sample.memory_used_bytes, "B"),
    "power": (lambda c: c.power_w, "W"),
    "clock": (lambda c: None if c.sample.sm_clock_hz is None else c.sample.sm_clock_hz / MEGA, "MHz"),
    "fan": (lambda c: _percent(c.sample.fan), "%"),
    "pcie": (lambda c: _sum(c.pcie_sent_bytes_per_s, c.pcie_received_bytes_per_s), "B/s"),
    "nvlink": (lambda c: _sum(c.nvlink_sent_bytes_per_s, c.nvlink_received_bytes_per_s), "B/s"),
    "ecc": (lambda c: None if c.health is None else c.health.ecc_uncorrected, ""),
    "processes": (lambda c: None if c.processes is None else float(len(c.processes)), ""),
}
"""Name in a rule -> the value and its unit."""
WORDS = ("lost", "fault", "slow")
"""Conditions without a number: the card does not answer; a fault is named; anything that slows it is."""
COMPARE: Mapping[str, Callable[[float, float], bool]] = {
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
}
N_RUNNING = 8
"""Maximum alert commands at once: hanging ones must not pile up."""
_RULE = re.compile(
    r"\s*(?P<name>[a-z-]+)\s*(?:(?P<sign>[<>]=?)\s*(?P<limit>[^\s]+)\s*)?"
    r"(?:\bfor\s+(?P<time>[^\s]+)\s*)?(?:\buntil\s+(?P<until>[^\s]+)\s*)?",
    re.IGNORECASE,
)
EXAMPLE = 'write it like --alert "temp>85 for 60s" or --alert "lost"'


@dataclass(frozen=True, slots=True)
class AlertRule:
    """One alert."""

    text: str
    name: str
    """A key of READINGS, a word of WORDS, or ``cause`` with ``cause_id``."""
    sign: str = ""
    limit: float = 0.0
    hold_s: float = 0.0
    until: float | None = None
    cause_id: str = ""

    def value(self, card: Card) -> float | None:
        """The reading the rule is about; None: unknown, or the rule has none."""
        return READINGS[self.name][0](card) if self.name in READINGS else None

    def holds(self, card: Card, causes: tuple[Cause, ...]) -> bool | None:
        """Whether the condition is true for a card; None: unknown."""
        if self.name in READINGS:
            value = self.value(card)
            return None if value is None else COMPARE[self.sign](value, self.limit)
        if self.name == "lost":
            return not card.ok
        of_card = [c for c in causes if c.number == card.number]
        if self.name == "cause":
            return any(c.id == self.cause_id for c in of_card)
        severities = (Severity.FAULT,) if self.name == "fault" else (Severity.FAULT, Severity.SLOWS)
        return any(c.severity in severities for c in of_card)

    def is_over(self, card: Card, causes: tuple[Cause, ...]) -> bool | None:
        """Whether recovery has begun: past ``until`` if given, else the condition is false."""
        if self.until is None:
            holds = self.holds(card, causes)
            return None if holds is None else not holds
        value = self.value(card)
        if value is None:
            return None
        return value <= self.until if self.sign.startswith(">") else value >= self.until


def parse_rule(text: str) -> AlertRule:
    """A rule from what a person writes: ``temp>85 for 60s``, ``util<5 for 10m until 20``, ``lost``, ``fault for 30s``, or the
    name of a cause (``sw-thermal for 5m``). Raises InputError."""
    match = _RULE.fullmatch(text)
    if match is None:
        raise InputError(f"--alert: {text!r} is not a rule", hint=EXAMPLE)
    name = match["name"].lower()
    hold_s = 0.0 if match["time"] is None else _duration(match["time"], text)
    if match["sign"] is None:
        if match["until"] is not None:
            raise InputError(f"--alert: {text!r}: `until` needs a number to compare with", hint=EXAMPLE)
        if name in READINGS:
            raise InputError(f"--alert: {text!r}: {name} is compared with what?", hint=EXAMPLE)
        if name in WORDS:
            return AlertRule(text.strip(), name, hold_s=hold_s)
        if name not in CAUSE_IDS:
            names = [*READINGS, *WORDS, *CAUSE_IDS]
            raise UnknownNameError("alert", name, names, hint=None if nearest_names(name, names) else EXAMPLE)
        return AlertRule(text.strip(), "cause", hold_s=hold_s, cause_id=name)
    if name not in READINGS:
        raise UnknownNameError("reading of an alert", name, READINGS, hint="known are " + ", ".join(READINGS))
    limit = _number(match["limit"], READINGS[name][1], text)
    until = None if match["until"] is None else _number(match["until"], READINGS[name][1], text)
    if until is not None and (until > limit if match["sign"].startswith(">") else until < limit):
        raise InputError(f"--alert: {text!r}: `until` lies on the wrong side of the limit", hint="temp>85 for 60s until 80")
    return AlertRule(text.strip(), name, match["sign"], limit, hold_s, until)


CAUSE_IDS = (
    "lost",
    "unreachable",
    "recovery-action",
    "ecc-uncorrected",
    "remap-failed",
    "remap-pending",
    "hw-thermal",
    "hot",
    "hw-power-brake",
    "sw-thermal",
    "sync-boost",
    "reliability",
    "board-limit",
    "application-clocks",
    "display-clocks",
    "hw-slowdown",
    "sw-power-cap",
    "low-clock",
    "unknown-reason",
    "pcie-width",
    "pcie-generation",
    "pcie-replays",
    "nvlink-down",
    "nvlink-errors",
    "data-loader",
    "disk",
    "one-thread",
    "unused",
    "memory-full",
    "xid",
)
"""Names of causes from :func:`gpuwise.machine.telemetry.causes.table.find_causes`."""


def _duration(text: str, rule: str) -> float:
    try:
        return parse_duration(text)
    except InputError as error:
        raise InputError(f"--alert: {rule!r}: {error.message}", hint="for example: for 60s") from None


def _number(text: str, unit: str, rule: str) -> float:
    """A limit in the reading's unit; the unit itself may be written: ``85C``, ``95%``, ``70GiB``, ``12GB/s``."""
    try:
        if unit.startswith("B"):
            return parse_bytes(text.removesuffix("/s"))
        factor = GIGA / MEGA if unit == "MHz" and text.lower().endswith("ghz") else 1.0
        value = float(re.sub(r"(?i)(°?c|%|w|mhz|ghz)$", "", text)) * factor
    except (ValueError, InputError):
        raise InputError(f"--alert: {rule!r}: {text!r} is not a number{f' of {unit}' if unit else ''}", hint=EXAMPLE) from None
    if not math.isfinite(value):
        raise InputError(f"--alert: {rule!r}: {text!r} is not a finite number", hint=EXAMPLE)
    return value


def _percent(share: float | None) -> float | None:
    return None if share is None else share * 100


def _memory_percent(card: Card) -> float | None:
    used_bytes, total = card.sample.memory_used_bytes, card.sample.memory_total_bytes
    return None if used_bytes is None or not total else (used_bytes + (card.sample.memory_reserved_bytes or 0)) / total * 100


def _sum(a: float | None, b: float | None) -> float | None:
    return None if a is None and b is None else (a or 0.0) + (b or 0.0)


@dataclass(frozen=True, slots=True)
class Alert:
    """A rule that went off on a card, or is over."""

    rule: AlertRule
    number: int
    fired: bool
    at_s: float
    value: float | None


@dataclass(slots=True)
class _Standing:
    """One rule on one card."""

    fired: bool = False
    since_s: float | None = None
    """When the condition for the next change began."""


class Watch:
    """The state of every rule on every card. Pure but for its memory: frames in, alerts out."""

    def __init__(self, rules: tuple[AlertRule, ...]) -> None:
        self._rules = rules
        self._standing: dict[tuple[int, int], _Standing] = {}

    def look(self, frame: Frame, causes: tuple[Cause, ...]) -> tuple[Alert, ...]:
        """Changes with this frame. An unknown reading changes nothing."""
        out: list[Alert] = []
        for n, rule in enumerate(self._rules):
            for card in frame.cards:
                at = self._standing.setdefault((n, card.number), _Standing())
                turns = rule.is_over(card, causes) if at.fired else rule.holds(card, causes)
                if turns is None:
                    continue
                if not turns:
                    at.since_s = None
                    continue
                at.since_s = frame.at_s if at.since_s is None else at.since_s
                hold_s = 0.0 if at.fired and rule.until is not None else rule.hold_s
                if frame.at_s - at.since_s >= hold_s:
                    at.fired, at.since_s = not at.fired, None
                    out.append(Alert(rule, card.number, at.fired, frame.at_s, rule.value(card)))
        return tuple(out)

    def standing(self) -> tuple[tuple[AlertRule, int], ...]:
        """The rules that went off and are not over, with their cards."""
        return tuple((self._rules[n], number) for (n, number), at in self._standing.items() if at.fired)


class Alerts:
    """A sink that evaluates rules and runs a command at each change: with the shell, in a separate process that is not waited
    for. The command receives its environment: GPUWISE_ALERT (the rule), GPUWISE_STATE (``fired`` or ``over``), GPUWISE_GPU,
    GPUWISE_GPU_NAME, GPUWISE_GPU_UUID, GPUWISE_VALUE, GPUWISE_TIME, GPUWISE_CAUSES (sentences, one a line)."""

    rings = True
    """Its notices are results, not errors of its own."""

    def __init__(self, rules: tuple[AlertRule, ...], command: str | None = None, *, quiet: bool = False) -> None:
        self._watch, self._command, self._quiet = Watch(rules), command, quiet
        self._running: list[subprocess.Popen[bytes]] = []
        self._trouble: str | None = None
        self.n_fired = 0

    @property
    def notices(self) -> tuple[str, ...]:
        """Rules that are broken now, and why an alert's command did not run."""
        standing = tuple(f"alert: {rule.text} on GPU {number}" for rule, number in self._watch.standing())
        return (*standing, *((self._trouble,) if self._trouble else ()))

    def write(self, frame: Frame, causes: tuple[Cause, ...]) -> None:
        """Watch the frame; start the command for each change."""
        self._reap()
        for alert in self._watch.look(frame, causes):
            self.n_fired += alert.fired
            if self._command is not None:
                self._run(alert, frame, causes)

    def close(self) -> None:
        """Leave running commands to finish by themselves."""
        self._reap()

    def _run(self, alert: Alert, frame: Frame, causes: tuple[Cause, ...]) -> None:
        if self._command is None:
            return
        if len(self._running) >= N_RUNNING:
            self._trouble = f"an alert's command was not started: {N_RUNNING} of them still run"
            return
        card = frame.cards[alert.number]
        variables = {
            "GPUWISE_ALERT": alert.rule.text,
            "GPUWISE_STATE": "fired" if alert.fired else "over",
            "GPUWISE_GPU": str(alert.number),
            "GPUWISE_GPU_NAME": card.identity.name,
            "GPUWISE_GPU_UUID": card.identity.uuid or "",
            "GPUWISE_VALUE": "" if alert.value is None else f"{alert.value:g}",
            "GPUWISE_TIME": time_words(frame.wall_s),
            "GPUWISE_CAUSES": "\n".join(c.sentence for c in causes if c.number == alert.number),
        }
        out = subprocess.DEVNULL if self._quiet else 2  # stderr: stdout is for data
        try:
            self._running.append(
                subprocess.Popen(
                    self._command,
                    shell=True,
                    env={**script_environment(), **variables},
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    start_new_session=True,
                )
            )
        except OSError as error:
            self._trouble = f"an alert's command cannot be started: {error.strerror}"

    def _reap(self) -> None:
        still: list[subprocess.Popen[bytes]] = []
        for process in self._running:
            code = process.poll()
            if code is None:
                still.append(process)
            elif code != 0:
                self._trouble = f"an alert's command ended with {code}"
        self._running = still
