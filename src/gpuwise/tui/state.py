"""State of the screen: view, GPU, process, order, chart."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpuwise.machine.telemetry.options import Prices

INTERVALS_S = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)


@dataclass(frozen=True, slots=True)
class Order:
    """Order and filter of the table."""

    column: str = "memory"
    falling: bool = True
    tree: bool = False
    filter: str = ""
    card: int | None = None
    """Only the processes of this card."""


@dataclass(slots=True)
class State:
    """Changed by keys and clicks; read by the drawing."""

    interval_s: float = 1.0
    prices: Prices = field(default_factory=Prices)
    title: str = ""
    live: bool = True
    view: str = "overview"
    card: int = 0
    """Number of the selected card."""
    process: tuple[int, int] | None = None
    """Key of the selected entry."""
    place: int = 0
    """Its last position in the table."""
    first_process: int = 0
    """The entry at the top of the table."""
    first_card_line: int = 0
    first_why_line: int = 0
    order: Order = field(default_factory=Order)
    chart: str = ""
    """Name of the metric; empty: several of the selected card."""
    all_cards: bool = False
    """The chart shows the metric of every card."""
    zoom: int = 1
    paused: bool = False
    typing: str | None = None
    message: str = ""
    stale_s: float | None = None
    began_s: float | None = None
    """``at_s`` of the first frame."""
