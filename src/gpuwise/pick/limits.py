"""What the answer must stay within: money, time, power, vendors, and the machine a card would go into."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

from gpuwise.errors import InputError, UnknownNameError
from gpuwise.facts.hardware.accelerators import PCIE_BYTES_PER_S, Accelerator, accelerators
from gpuwise.facts.hardware.boards import Board
from gpuwise.units import GIGA, parse_bytes

WAYS = ("rent", "buy", "notebook")
"""Forms of acquisition: rented by the hour, bought, or a hosted notebook."""
OBJECTIVES = ("cost", "time", "balance", "value", "energy")
FORMS = ("card", "laptop", "mini", "edge", "server", "phone")
"""Forms of hardware: cards for a PC, laptops, machines with shared memory, modules for robots and cameras, servers."""
MOST_ACCELERATORS = 1024


@dataclass(frozen=True, slots=True)
class Have:
    """The user's machine. None means unspecified, which excludes nothing."""

    psu_w: float | None = None
    slots: int | None = None
    """Widths of a PCIe slot free, side by side."""
    length_mm: float | None = None
    memory_bytes: float | None = None
    pcie_bytes_per_s: float | None = None
    pcie: str = ""
    connectors: tuple[tuple[str, int], ...] = ()
    """(kind, how many) power cables: ``16-pin``, ``8-pin``, ``6-pin``, ``EPS 8-pin``."""

    def refuses(self, accelerator: Accelerator, board: Board | None, n: int) -> str | None:
        """Why ``n`` of these cards cannot go into it, and by how much; None when nothing known forbids it."""
        if board is None:
            return None
        if not board.installable:
            return f"no card to put into a PC ({board.category})"
        if board.cooling == "passive":
            return "passive cooling: needs a server's airflow"
        n_boards = -(-n // max(board.devices, 1))
        slots = board.slots_taken
        if self.slots is not None and slots is not None and slots * n_boards > self.slots:
            return f"fills {slots * n_boards} slots, {self.slots} are free"
        if self.length_mm is not None and board.length_mm is not None and board.length_mm > self.length_mm:
            return f"{board.length_mm:.0f} mm long, {board.length_mm - self.length_mm:.0f} mm too much"
        return self._power(accelerator, board, n, n_boards)

    def _power(self, accelerator: Accelerator, board: Board, n: int, n_boards: int) -> str | None:
        advised = board.recommended_psu_w
        if self.psu_w is not None:
            draw = accelerator.tdp_w
            if advised is not None and draw is not None:
                supply_w = advised + (n - 1) * draw
            elif draw is not None:
                supply_w = n * draw + REST_OF_PC_W
            else:
                supply_w = advised
            if supply_w is not None and supply_w > self.psu_w:
                return f"needs a {supply_w:,.0f} W power supply, {supply_w - self.psu_w:,.0f} W more"
        if self.connectors and board.power_connectors:
            owned = dict(self.connectors)
            for kind, count in _wanted(board.power_connectors):
                if count * n_boards > owned.get(kind, 0):
                    return f"needs {count * n_boards}x {kind} power, you have {owned.get(kind, 0)}"
        return None


REST_OF_PC_W = 250.0
"""A desktop besides its card, where the vendor advises no power supply: NVIDIA's advice exceeds the card by 250 to 425 W
(RTX 3060 550 - 170, RTX 4090 850 - 450, RTX 5090 1000 - 575; nvidia.com GeForce compare)."""


@dataclass(frozen=True, slots=True)
class Limits:
    """All limits are optional; None or empty excludes nothing."""

    budget_usd: float | None = None
    deadline_s: float | None = None
    ways: tuple[str, ...] = WAYS
    vendors: tuple[str, ...] = ()
    max_watts: float | None = None
    """Board power of all accelerators together."""
    have: Have | None = None
    used: bool = True
    """Second-hand cards count."""
    country: str | None = None
    """Country whose electricity price applies, as a name or code of the electricity table."""
    count: int | None = None
    """Accelerators at most."""
    form: str | None = None
    """One of :data:`FORMS`; None: any."""
    by: str | None = None
    """One of :data:`OBJECTIVES`; None: chosen by the limits."""
    hourly_first: bool = False
    """Hourly rents rank before hosted notebooks."""

    @property
    def objective(self) -> str:
        """With a budget and no deadline: the shortest time within the budget; otherwise the cheapest."""
        if self.by is not None:
            return self.by
        return "balance" if self.budget_usd is not None and self.deadline_s is None else "cost"


SET_ASIDE = 0.5
"""Share of a budget that counts as already spent: a user who names a budget has set it aside, and values the rest at half."""


def balance(seconds: float, usd: float, limits: Limits) -> float:
    """Objective of ``balance``: ``time x sqrt(money + budget/2)``. It selects the bend of the time-price curve, rather than
    the last dollar of the budget. Without a budget, twice the money must give 1.4 times the speed."""
    return seconds * math.sqrt(usd + SET_ASIDE * (limits.budget_usd or 0.0))


def check_limits(limits: Limits) -> None:
    """Raises InputError or UnknownNameError on a limit that cannot be meant."""
    for name, value, example in (
        ("budget", limits.budget_usd, "2000"),
        ("deadline", limits.deadline_s, "3d"),
        ("watts", limits.max_watts, "450"),
    ):
        if value is not None and not (math.isfinite(value) and value > 0):
            raise InputError(f"{name} must be a positive number, not {value}", hint=f"for example {example}")
    if limits.count is not None and not 1 <= limits.count <= MOST_ACCELERATORS:
        raise InputError(f"count must be between 1 and {MOST_ACCELERATORS}, not {limits.count}", hint="for example --count 2")
    if not limits.ways:
        raise InputError("no way to get hardware is left", hint="leave out --rent and --own, or give one of them")
    for way in limits.ways:
        if way not in WAYS:
            raise UnknownNameError("way", way, WAYS)
    if limits.by is not None and limits.by not in OBJECTIVES:
        raise UnknownNameError("objective", limits.by, OBJECTIVES, hint="it is one of " + ", ".join(OBJECTIVES))
    if limits.form is not None and limits.form not in FORMS:
        raise UnknownNameError("form", limits.form, FORMS, hint="it is one of " + ", ".join(FORMS))
    known_vendors(limits.vendors)


def known_vendors(names: tuple[str, ...]) -> tuple[str, ...]:
    """The catalogue's spelling of vendors' names. Raises UnknownNameError."""
    vendors_by_name = {vendor.lower(): vendor for vendor in accelerators().texts("vendor").values()}
    vendors: list[str] = []
    for name in names:
        if name.strip().lower() not in vendors_by_name:
            raise UnknownNameError(
                "vendor", name, vendors_by_name.values(), hint="it is one of " + ", ".join(sorted(vendors_by_name.values()))
            )
        vendors.append(vendors_by_name[name.strip().lower()])
    return tuple(vendors)


_EXAMPLE = 'write it like "PSU 850W, 2 slots, 330mm, 64GB RAM, PCIe 4.0 x16, 1x 16-pin"'
_CONNECTORS = {
    "12vhpwr": "16-pin",
    "12v-2x6": "16-pin",
    "12v2x6": "16-pin",
    "16-pin": "16-pin",
    "16pin": "16-pin",
    "8-pin": "8-pin",
    "8pin": "8-pin",
    "6+2-pin": "8-pin",
    "6-pin": "6-pin",
    "6pin": "6-pin",
    "eps 8-pin": "EPS 8-pin",
    "eps": "EPS 8-pin",
    "eps 8pin": "EPS 8-pin",
}
_NUMBER = r"(?P<n>\d+(?:\.\d+)?)"
_PATTERNS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("psu", re.compile(rf"(?:psu|power supply)\s*(?:of\s*)?{_NUMBER}\s*w|{_NUMBER.replace('<n>', '<m>')}\s*w(?:\s*psu)?")),
    ("slots", re.compile(rf"{_NUMBER}\s*slots?")),
    ("length", re.compile(rf"{_NUMBER}\s*(?P<unit>mm|cm)(?:\s*(?:long|length))?")),
    ("memory", re.compile(r"(?P<size>\d+(?:\.\d+)?\s*(?:gb|gib|tb))\s*(?:of\s*)?(?:ram|memory)")),
    ("pcie", re.compile(r"pcie\s*(?P<version>[3-6])(?:\.0)?\s*x\s*(?P<lanes>4|8|16)")),
    ("connector", re.compile(r"(?:(?P<count>\d+)\s*x\s*)?(?P<kind>" + "|".join(map(re.escape, _CONNECTORS)) + ")")),
)


def parse_have(text: str) -> Have:
    """The machine from ``"PSU 850W, 2 slots, 330mm, 64GB RAM, PCIe 3.0 x16, 1x 12VHPWR"``.

    Raises InputError naming the part that is unknown, repeated or impossible.
    """
    parts = [p.strip() for p in text.split(",")]
    if not any(parts):
        raise InputError("--have is empty", hint=_EXAMPLE)
    values: dict[str, object] = {}
    connectors: dict[str, int] = {}
    for part in parts:
        if not part:
            raise InputError(f"--have {text!r} has an empty part", hint=_EXAMPLE)
        kind, match = _recognise(part)
        if kind == "connector":
            name, count = _CONNECTORS[match["kind"]], int(match["count"] or 1)
            if not 1 <= count <= 32:
                raise InputError(f"--have: {part!r} is not a number of cables", hint=_EXAMPLE)
            connectors[name] = connectors.get(name, 0) + count
            continue
        if kind in values:
            raise InputError(f"--have contains {kind} twice: {part!r}", hint=_EXAMPLE)
        values[kind] = _READERS[kind](part, match)
    pcie = values.get("pcie")
    return Have(
        psu_w=_float(values.get("psu")),
        slots=_int(values.get("slots")),
        length_mm=_float(values.get("length")),
        memory_bytes=_float(values.get("memory")),
        pcie_bytes_per_s=None if pcie is None else _lanes(str(pcie)),
        pcie=str(pcie or ""),
        connectors=tuple(sorted(connectors.items())),
    )


def _recognise(part: str) -> tuple[str, re.Match[str]]:
    lowered = " ".join(part.lower().split())
    for kind, pattern in _PATTERNS:
        match = pattern.fullmatch(lowered)
        if match is not None:
            return kind, match
    raise InputError(f"--have: {part!r} is not a known part of a machine", hint=_EXAMPLE)


def _within(part: str, value: float, low: float, high: float, unit: str) -> float:
    if not low <= value <= high:
        raise InputError(f"--have: {part!r} is not between {low:g} and {high:g} {unit}", hint=_EXAMPLE)
    return value


def _psu(part: str, match: re.Match[str]) -> float:
    return _within(part, float(match["n"] or match["m"]), 100, 10_000, "W")


def _slots(part: str, match: re.Match[str]) -> float:
    value = _within(part, float(match["n"]), 1, 64, "slots")
    if value != int(value):
        raise InputError(f"--have: {part!r} is not a whole number of slots", hint=_EXAMPLE)
    return value


def _length(part: str, match: re.Match[str]) -> float:
    return _within(part, float(match["n"]) * (10 if match["unit"] == "cm" else 1), 100, 1000, "mm")


def _memory(part: str, match: re.Match[str]) -> float:
    return _within(part, parse_bytes(match["size"]) / GIGA, 1, 65_536, "GB") * GIGA


def _pcie(part: str, match: re.Match[str]) -> str:
    return f"{match['version']}.0 x{match['lanes']}"


_READERS: dict[str, Callable[[str, re.Match[str]], object]] = {
    "psu": _psu,
    "slots": _slots,
    "length": _length,
    "memory": _memory,
    "pcie": _pcie,
}


def _lanes(name: str) -> float:
    """Bytes a second of ``3.0 x8``: lanes are proportional to those of a known width of the same version."""
    if name in PCIE_BYTES_PER_S:
        return PCIE_BYTES_PER_S[name]
    version, lanes = name.split(" x")
    return PCIE_BYTES_PER_S[f"{version} x16"] * int(lanes) / 16


def _float(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None


def _int(value: object) -> int | None:
    return int(value) if isinstance(value, (int, float)) else None


def _wanted(connectors: tuple[str, ...]) -> list[tuple[str, int]]:
    """``("2x 8-pin", "1x 6-pin")`` as kinds with their counts; ``none`` is empty."""
    counts: list[tuple[str, int]] = []
    for text in connectors:
        count, x, kind = text.partition("x ")
        if x and count.isdigit():
            counts.append((kind, int(count)))
    return counts
