"""Boards: requirements of an accelerator on its machine, and its availability.

The catalogue ``data/boards.csv`` has one line for every accelerator. The category marks a device that is not a card (a module
on a baseboard, a chip in a phone) and has no slots. Founders or reference figures are used if the vendor makes such a card;
partners' cards are often longer and thicker. None means unpublished, never zero.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

from gpuwise.facts.hardware.accelerators import check_accelerator
from gpuwise.facts.loading import Field, Record, ShippedData, parse_csv, shipped_text
from gpuwise.facts.sources import check_source, sources

CATEGORIES = ("card", "module", "superchip", "soc", "laptop", "phone", "cloud")
COOLING = ("active", "passive", "liquid", "soc", "laptop", "module", "cloud")
OBTAINABLE = ("retail", "used-only", "cloud-only", "system-only", "announced", "unknown")
"""``retail``: sold new as a part today; ``used-only``: no longer made, traded second-hand; ``system-only``: only inside
a machine one buys whole (a server, a laptop, a phone); ``cloud-only``: rented, never sold; ``announced``: not out yet."""


@dataclass(frozen=True, slots=True)
class Board:
    """Requirements of a board on its machine. Lengths in millimetres, power in watts."""

    accelerator_id: str
    category: str
    """``card`` (goes into a PCIe slot), ``module`` (SXM or OAM, needs its baseboard), ``superchip``, ``soc``,
    ``laptop``, ``phone``, ``cloud``."""
    slots: float | None
    """Widths of a PCIe slot it fills (20.32 mm each); 2.5 takes three places."""
    length_mm: float | None
    height_mm: float | None
    power_connectors: tuple[str, ...]
    """``1x 16-pin`` (12VHPWR or 12V-2x6), ``2x 8-pin``, ``1x EPS 8-pin``, ``none`` (fed by the slot); empty: unpublished."""
    recommended_psu_w: float | None
    """The vendor's recommendation for the whole PC; None for server cards."""
    cooling: str
    devices: int
    """Accelerators on one board: 2 on a K80, 4 on an A16."""
    needs: tuple[str, ...]
    """Requirements that a PC does not meet: ``server airflow``, ``SXM baseboard``, ``OAM baseboard``, ``no display output``,
    ..."""
    obtainable: str
    obtainable_as_of: datetime.date
    obtainable_source_key: str
    source_key: str
    weak: tuple[str, ...] = ()
    """Fields that are estimates, and those of a source that is neither the vendor nor a reading."""
    notes: str = ""

    @property
    def installable(self) -> bool:
        """It goes into a PCIe slot of a machine one already has."""
        return self.category == "card"

    @property
    def slots_taken(self) -> int | None:
        """Whole slots that are blocked: 2.5 takes three."""
        return None if self.slots is None else -int(-self.slots // 1)


BOARD_SCHEMA: dict[str, Field] = {
    "accelerator": Field("text"),
    "category": Field("text", choices=CATEGORIES),
    "slots": Field("number", required=False, minimum=1, maximum=5),
    "length_mm": Field("number", required=False, minimum=100, maximum=450),
    "height_mm": Field("number", required=False, minimum=60, maximum=200),
    "power_connectors": Field("names", required=False),
    "recommended_psu_w": Field("number", required=False, minimum=200, maximum=2000),
    "cooling": Field("text", choices=COOLING),
    "devices": Field("integer", required=False, maximum=8),
    "needs": Field("names", required=False),
    "obtainable": Field("text", choices=OBTAINABLE),
    "obtainable_as_of": Field("date"),
    "obtainable_source": Field("text"),
    "source": Field("text"),
    "weak": Field("names", required=False),
    "notes": Field("text", required=False),
}


@cache
def boards() -> Mapping[str, Board]:
    """Boards by accelerator id, in the order of the file. Raises DataError when it is corrupt."""
    with ShippedData():
        return MappingProxyType(parse_boards(shipped_text("boards.csv"), "boards.csv"))


def board_of(accelerator_id: str) -> Board | None:
    """The board of an accelerator of the catalogue; None without a description."""
    return boards().get(accelerator_id)


def parse_boards(text: str, file: str) -> dict[str, Board]:
    """Boards from CSV text. Raises FieldError."""
    by_accelerator: dict[str, Board] = {}
    for record in parse_csv(text, BOARD_SCHEMA, file):
        board = _board(record)
        if board.accelerator_id in by_accelerator:
            raise record.error(f"{board.accelerator_id} appears twice", field="accelerator", hint="remove one line")
        by_accelerator[board.accelerator_id] = board
    return by_accelerator


def _board(record: Record) -> Board:
    accelerator_id = record.text("accelerator")
    check_accelerator(record)
    for column in ("source", "obtainable_source"):
        check_source(record, field=column)
    for column in record.names("weak"):
        if column not in BOARD_SCHEMA:
            raise record.error(f"weak names {column!r}, which is not a column", field="weak")
    if record.text("category") != "card" and record.maybe("slots") is not None:
        raise record.error("only a card fills slots", field="slots", hint="leave it empty or fix the category")
    return Board(
        accelerator_id=accelerator_id,
        category=record.text("category"),
        slots=record.maybe("slots"),
        length_mm=record.maybe("length_mm"),
        height_mm=record.maybe("height_mm"),
        power_connectors=record.names("power_connectors"),
        recommended_psu_w=record.maybe("recommended_psu_w"),
        cooling=record.text("cooling"),
        devices=record.maybe_integer("devices") or 1,
        needs=record.names("needs"),
        obtainable=record.text("obtainable"),
        obtainable_as_of=record.date("obtainable_as_of"),
        obtainable_source_key=record.text("obtainable_source"),
        source_key=record.text("source"),
        weak=_weak(record),
        notes=record.text("notes"),
    )


def _weak(record: Record) -> tuple[str, ...]:
    shape = ("slots", "length_mm", "height_mm", "power_connectors", "recommended_psu_w")
    fields = list(record.names("weak"))
    if sources()[record.text("source")].doubtful:
        fields += [name for name in shape if name in record.values]
    if sources()[record.text("obtainable_source")].doubtful:
        fields.append("obtainable")
    return tuple(dict.fromkeys(fields))
