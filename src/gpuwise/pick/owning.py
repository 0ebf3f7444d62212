"""Cost of an acquisition for a job: hourly rent, a purchase with its machine and electricity, a notebook's fee.

    rent      hours x accelerators x price
    buy       n x purchase + box - resale + energy x price of electricity
    notebook  months x fee, or hours x what an hour uses up; calendar time stretched by the weekly hours

A card for a PC is counted without the PC by default; a second one with the required power supply and board if the PC is not
described. Hardware that needs a dedicated machine (modules, hot passive cards, more cards than fit in a PC) is counted with
it. The factors are those of ``money/data/economics.toml``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from gpuwise.errors import UnpredictableError
from gpuwise.facts.grid import find_grid
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.facts.hardware.boards import board_of
from gpuwise.facts.hardware.systems import Cluster
from gpuwise.facts.offers.notebooks import Notebook
from gpuwise.money.cost import rent
from gpuwise.money.energy import Energy, energy
from gpuwise.money.rent_or_own.uncertain_inputs import economics
from gpuwise.pick.candidates import Acquisition
from gpuwise.predict.estimate import Estimate, weakest
from gpuwise.units import DAY_S, HOUR_S

CARDS_IN_A_PC = 2
"""``host_usd`` of the economics table is a box for one or two consumer cards."""
CARDS_IN_A_RIG = 4
"""``rig_usd`` is an open frame with board and power supplies for three or four cards."""
MOST_FAN_W = 250.0
"""A passive card up to this power is cooled in a PC by a fan and a duct."""
LIFETIME_YEARS = 3.0
"""Default years over which a purchase is spread when work is priced (``value``, dollars per PFLOP)."""
WEEK_H, MONTH_H = 168.0, 730.0


@dataclass(frozen=True, slots=True)
class Terms:
    """Cost conventions: ``years`` a purchase is kept (None: counted in full), whether the PC is bought too, the country of the
    electricity price, and whether the PC is described, so that only hardware that fits in it is considered."""

    years: float | None = None
    box: bool = False
    country: str = "US"
    described: bool = False

    @property
    def lifetime_years(self) -> float:
        """Years of use of a purchase: those it is kept, or the default."""
        return self.years or LIFETIME_YEARS


@dataclass(frozen=True, slots=True)
class Bill:
    """``outlay_usd`` is what must be at hand (rent, a fee, or the purchase without the electricity that is paid month by month);
    ``cost_usd`` what the job costs in the end."""

    cost_usd: Estimate
    outlay_usd: float
    box_usd: float
    usd_per_hour: float
    """Hourly cost of all accelerators together under constant use: rent, or purchase less resale over its life and energy."""
    calendar_s: Estimate
    """The job's time with the pauses a notebook's weekly hours force."""
    energy: Energy | None
    power_usd: float = 0.0
    """Electricity of what is bought."""
    credits_usd: float = 0.0
    """Worth of the credits a notebook's plan counts for the work, whether or not they were paid for."""


def bill(
    way: Acquisition, cluster: Cluster, busy_s: Estimate, terms: Terms, workload: str = "training", of_run: Energy | None = None
) -> Bill:
    """Cost of ``busy_s`` of work on ``cluster`` with this acquisition; its energy comes from ``of_run`` if hourly values
    exist. Raises UnpredictableError without a price."""
    consumption = energy(busy_s, cluster, workload=workload) if of_run is None else of_run
    n = cluster.n_accelerators
    if way.rent is not None:
        cost = rent(busy_s, n, way.rent)
        return Bill(cost, cost.expected, 0.0, n * way.rent.expected, busy_s, consumption)
    if way.notebook is not None:
        return _notebook(way.notebook, busy_s, consumption)
    if way.purchase is None:
        raise UnpredictableError("no price", f"no price is known for {way.accelerator.name}")
    low, middle, high = (n * p for p in way.purchase[:3])
    box = box_usd(way, n, terms)
    box_low, box_high = _box_span(box)
    outlay = middle + box
    keep = 0.0 if terms.years is None else resale_share(way.accelerator, terms.years)
    power = 0.0 if consumption is None else usd_per_kwh(way.accelerator, terms.country)
    kwh = Estimate(0.0, 0.0, 0.0, "specified") if consumption is None else consumption.kwh
    cost = Estimate(
        (low + box_low) * (1 - keep) + kwh.low * power,
        outlay * (1 - keep) + kwh.expected * power,
        (high + box_high) * (1 - keep) + kwh.high * power,
        weakest(busy_s.basis, "specified"),
    )
    hours = terms.lifetime_years * 365.25 * 24
    running = 0.0 if consumption is None or busy_s.expected <= 0 else kwh.expected / (busy_s.expected / HOUR_S) * power
    spread = outlay * (1 - resale_share(way.accelerator, terms.lifetime_years)) / hours
    return Bill(cost, outlay, box, spread + running, busy_s, consumption, power_usd=kwh.expected * power)


def counted_usd(way: Acquisition, cost: Bill) -> float:
    """Bill used for ranking, at its pessimistic end: rent at a typical provider's price, notebook credits at their price."""
    if way.rent is not None:
        return cost.calendar_s.high / HOUR_S * cost.usd_per_hour * way.market
    return max(cost.cost_usd.high * way.market, cost.credits_usd)


def least_bill_usd(way: Acquisition, n: int, busy_s: float, terms: Terms) -> float:
    """A bound no bill goes below, without energy."""
    if way.rent is not None:
        return busy_s / HOUR_S * n * way.rent.expected
    if way.notebook is not None:
        return 0.0
    if way.purchase is None:
        return math.inf
    keep = 0.0 if terms.years is None else resale_share(way.accelerator, terms.years)
    return (n * way.purchase.median + box_usd(way, n, terms)) * (1 - keep)


def box_usd(way: Acquisition, n: int, terms: Terms) -> float:
    """Cost of the machine around ``n`` accelerators."""
    accelerator = way.accelerator
    board = board_of(accelerator.id)
    category = board.category if board is not None else ("card" if accelerator.form == "PCIe" else "soc")
    if category in ("module", "superchip"):
        assert way.purchase is not None
        return n * way.purchase.median * (economics()["server_factor"].expected - 1)
    if category != "card":
        return 0.0
    host, rig = economics()["host_usd"].expected, economics()["rig_usd"].expected
    if board is not None and board.cooling == "passive":
        if n > CARDS_IN_A_PC or (accelerator.tdp_w or math.inf) > MOST_FAN_W:
            return -(-n // CARDS_IN_A_PC) * host
        return n * economics()["card_fan_usd"].expected + (host if terms.box else 0.0)
    if n > CARDS_IN_A_PC:
        return max(-(-n // CARDS_IN_A_RIG) * rig, host if terms.box else 0.0)
    if terms.box:
        return host
    n_boards = -(-n // max(board.devices, 1)) if board is not None else n
    return economics()["second_card_usd"].expected if n_boards > 1 and not terms.described else 0.0


def _box_span(box: float) -> tuple[float, float]:
    host = economics()["host_usd"]
    return box * host.low / host.expected, box * host.high / host.expected


@lru_cache(4096)
def resale_share(accelerator: Accelerator, years: float) -> float:
    """Share of the purchase that selling brings back after ``years``."""
    kind = "resale_keep" if accelerator.form in ("SXM", "OAM", "Superchip") else "resale_keep_consumer"
    return float(economics()[kind].expected ** years)


@lru_cache(4096)
def usd_per_kwh(accelerator: Accelerator, country: str) -> float:
    """Household electricity for hardware at home, industrial for modules; the other sector if one is unknown, and the default
    average if the country has no price."""
    grid = find_grid(country)
    first = "industrial" if accelerator.form in ("SXM", "OAM", "Superchip", "Cloud") else "household"
    price = grid.price(first) or grid.price("industrial" if first == "household" else "household")
    return economics()["usd_per_kwh"].expected if price is None else price.usd_per_kwh


def _notebook(plan: Notebook, busy_s: Estimate, consumption: Energy | None) -> Bill:
    """A plan's fee for the months its hours take; work beyond the allowance of a week or month waits for the next."""
    calendar = Estimate(
        _stretched(busy_s.low, plan), _stretched(busy_s.expected, plan), _stretched(busy_s.high, plan), busy_s.basis
    )
    fees = [plan.usd_per_month * _months(s, plan) for s in (calendar.low, calendar.expected, calendar.high)]
    cost = Estimate(fees[0], fees[1], fees[2], weakest(busy_s.basis, "specified"))
    hours = busy_s.expected / HOUR_S
    credits = hours * (plan.usd_per_hour or 0.0)
    return Bill(cost, fees[1], 0.0, fees[1] / hours if hours > 0 else 0.0, calendar, consumption, credits_usd=credits)


def _stretched(seconds: float, plan: Notebook) -> float:
    """Calendar seconds: whole periods of waiting for hours, then the rest."""
    hours = seconds / HOUR_S
    for allowed, period in ((plan.hours_per_week, WEEK_H), (plan.hours_per_month, MONTH_H)):
        if allowed is not None and hours > allowed:
            full = math.ceil(hours / allowed) - 1
            return (full * period + hours - full * allowed) * HOUR_S
    return seconds


def _months(seconds: float, plan: Notebook) -> float:
    return 0.0 if plan.usd_per_month == 0 else float(max(1, math.ceil(seconds / (365.25 * DAY_S / 12))))
