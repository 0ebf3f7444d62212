"""What one way does for a job: time, money, energy, memory, and what had to be changed for it."""

from __future__ import annotations

from dataclasses import dataclass

from gpuwise.facts.hardware.boards import board_of
from gpuwise.facts.hardware.systems import Cluster
from gpuwise.facts.offers.offer import offers_for
from gpuwise.facts.software.support import Support
from gpuwise.pick.candidates import Way, software_for
from gpuwise.pick.owning import Bill
from gpuwise.predict.estimate import Estimate
from gpuwise.units import GIGA, HOUR_S, PETA

SAME, CHANGED = 0, 1
"""Tiers: the job as asked; the job with a change that alters its result (4-bit weights, lighter optimizer states)."""


LEVELS = 8
"""How many values :func:`level` takes."""


def level(tier: int, way: Way, n: int, purpose: str) -> int:
    """0: as asked, with full software, and on offer; +1 at a count nobody was seen to offer; +2 when software serves the
    purpose in part or nobody says; +4 with a change to the job."""
    full = software_for(way.accelerator, purpose).level == "full"
    return 4 * tier + 2 * (not full) + (not on_offer(way, n))


def on_offer(way: Way, n: int) -> bool:
    """Whether ``n`` of it in one machine were seen on offer. Modules come in whole systems; of cards a provider that rents
    one may not have a machine with several."""
    if way.rent is None or n == 1 or way.accelerator.form in ("SXM", "OAM", "Superchip", "Cloud", "APU"):
        return True
    return n <= max((o.count for o in offers_for(way.accelerator.id)), default=1)


@dataclass(frozen=True, slots=True)
class Outcome:
    """One way, at its best count, doing the job. ``time_s`` is the calendar time of the whole job (of a load: the seconds
    one user waits for a token's worth of answer, so that less is better for both)."""

    way: Way
    cluster: Cluster
    time_s: Estimate
    tokens_per_s: Estimate
    """Trained on a second, or written a second for one user."""
    capacity_tokens_per_s: float
    """All tokens worked on a second when busy: what energy and money per work are made with."""
    bill: Bill
    flop: float
    """Useful FLOP of the job in the time that is paid for."""
    flop_per_s: float
    memory_bytes: float
    device_bytes: float
    changes: tuple[str, ...]
    """Remedies without which it does not fit, fewest first."""
    tier: int
    purpose: str
    layout: str
    support: Support
    notes: tuple[str, ...] = ()
    fit_probability: float | None = None
    """That training fits, from the spread of the memory's prediction; None for serving."""

    @property
    def level(self) -> int:
        """What comes first whatever the objective: done as asked, on software that serves it, at a count seen on offer."""
        return level(self.tier, self.way, self.n, self.purpose)

    @property
    def n(self) -> int:
        return self.cluster.n_accelerators

    @property
    def cost_usd(self) -> Estimate:
        return self.bill.cost_usd

    @property
    def usd_per_pflop(self) -> float:
        """Dollars for a useful PFLOP, hardware busy all the time; a purchase is spread over its life less resale."""
        return self.bill.usd_per_hour / (self.flop_per_s * HOUR_S / PETA)

    @property
    def usd_per_gb(self) -> float:
        """Dollars for a GB of accelerator memory: of the price when bought, of an hour when rented."""
        return self.unit_price_usd / (self.cluster.accelerator.memory_bytes / GIGA)

    @property
    def usd_per_gb_per_s(self) -> float:
        """The same for a GB/s of memory bandwidth."""
        return self.unit_price_usd / (self.cluster.accelerator.memory_bandwidth_bytes_per_s / GIGA)

    @property
    def unit_price_usd(self) -> float:
        """Dollars for one: to buy it, or for an hour of it."""
        if self.way.purchase is not None:
            return self.way.purchase.median
        if self.way.rent is not None:
            return self.way.rent.expected
        return self.bill.usd_per_hour / self.n

    @property
    def kwh(self) -> float | None:
        return None if self.bill.energy is None else self.bill.energy.kwh.expected

    @property
    def board_w(self) -> float | None:
        """Design power of the accelerators together."""
        tdp = self.cluster.accelerator.tdp_w
        return None if tdp is None else tdp * self.n

    @property
    def tokens_per_joule(self) -> float | None:
        """Tokens worked on for a joule at the meter."""
        used = self.bill.energy
        return None if used is None else self.capacity_tokens_per_s / used.power_w

    @property
    def headroom_bytes(self) -> float:
        return self.device_bytes - self.memory_bytes

    @property
    def obtainable(self) -> str:
        """``retail``, ``used-only``, ... of the board catalogue."""
        board = board_of(self.cluster.accelerator.id)
        return "unknown" if board is None else board.obtainable

    def value(self, objective: str) -> float:
        """What the objective makes small."""
        if objective == "time":
            return self.time_s.expected
        if objective == "value":
            return self.usd_per_pflop
        if objective == "energy":
            return self.kwh if self.kwh is not None else float("inf")
        return self.cost_usd.expected

    def at_worst(self, objective: str) -> float:
        """What is ranked by: the upper end of :meth:`interval`, so that a guess from a specification has to be that much
        better than a measured card to come before it."""
        return self.interval(objective)[1]

    def interval(self, objective: str) -> tuple[float, float]:
        """The 80 % interval of :meth:`value`: that of the time for everything but money."""
        value = self.value(objective)
        source = self.cost_usd if objective == "cost" else self.time_s
        if not source.expected:
            return value, value
        return value * source.low / source.expected, value * source.high / source.expected
