"""One way of getting the hours, costed in every scenario at once.

Shapes: ``S`` scenarios, ``M`` months, ``G`` groups of months that want the same number of hours. What is owned
works first, what is reserved next, the rest is rented on demand or on spot; so hours are conserved by
construction, and what each layer does in a group of months has a closed form (:func:`gpuwise.money.demand.beyond`).
Rental prices enter only through sums over the months of a group, which are made once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gpuwise.money.demand import HOURS_PER_MONTH, MONTHS_PER_YEAR, Demand, beyond
from gpuwise.money.drivers import Array, Driver
from gpuwise.money.ownership import Ownership, Values
from gpuwise.money.renting import Renting, Reservation

Top = Literal["on-demand", "spot"]
DEMAND = "demand_spread"
CHUNK = 8192
"""Scenarios costed at a time, so that they stay in the processor's cache."""
PRICE = "rental_price"
"""Names of the two drivers that are not fields of :class:`Ownership` or :class:`Renting`."""


@dataclass(frozen=True, slots=True)
class Mix:
    """How much to own and to reserve; the rest is rented as ``top`` says."""

    owned: int = 0
    reserved: int = 0
    reservation: Reservation | None = None
    top: Top = "on-demand"


@dataclass(frozen=True, slots=True)
class Costed:
    """A mix, costed in every scenario. All money is present value."""

    mix: Mix
    total_usd: Array
    """``(S,)``"""
    parts_usd: Mapping[str, Array]
    """By what is paid for, ``(S,)`` or scalar; they sum to ``total_usd``."""
    hours: Mapping[str, Array]
    """GPU-hours over the horizon by layer, ``(S,)``."""
    kwh: Array
    """At the meter, of everything owned and of rented hours at work, ``(S,)``."""


class Batch:
    """Scenarios drawn for one question: driver values, price paths, and the sums over months they enter by.

    ``prices`` is ``(M, S)`` or ``(M, 1)``: US dollars an hour on demand in each month, the first today's; ``last`` the
    price at the end over the price today, ``(S,)``.
    """

    def __init__(
        self, demand: Demand, own: Ownership, rent: Renting, x: Values, prices: Array, last: Array, *, n: int,
        by_month: bool = False,
    ) -> None:  # fmt: skip
        months = prices.shape[0]
        self.demand, self.n = demand, n
        self.own, self.rent, self.x, self.prices, self.last = own, rent, x, prices, last
        rate = (1 + own.capital_per_year) ** (1 / MONTHS_PER_YEAR) - 1
        self.months, self.discounts = months, (1 + rate) ** -np.arange(1.0, months + 1)
        wanted = demand.by_month(months) / HOURS_PER_MONTH
        levels: Array = wanted if by_month else np.unique(wanted)
        group = np.arange(months, dtype=np.intp) if by_month else np.searchsorted(levels, wanted)
        self.weights = np.bincount(group, self.discounts, levels.size)
        """Sum of the discounts of each group, ``(G,)``."""
        self.counts = np.bincount(group, minlength=levels.size)
        self.rent_sums = _group_sums(prices, self.discounts, group, levels.size)
        """Sum over a group of discount times price: dollars for a GPU-hour in each of its months, ``(G, S)``."""
        scale = np.asarray(x[DEMAND], dtype=np.float32)
        self.loads = [np.float32(level) * scale for level in levels]
        """GPUs wanted on average in each group, ``(S,)`` each."""
        shares, over_mean = demand.levels()
        self.shares, self.over_mean = shares.astype(np.float32), over_mean.astype(np.float32)
        self.usable = np.asarray(own.usable_share(x), dtype=np.float32)
        self.kw_busy, self.kw_idle = own.kw_per_gpu(x), own.kw_per_gpu(x, "idle_share")
        self.spot_over = np.asarray(1.0 if rent.spot is None else rent.spot.over_on_demand(x))

    def first(self, n: int) -> Batch:
        """The first ``n`` scenarios alone."""
        x = {name: value if value.ndim == 0 else value[:n] for name, value in self.x.items()}
        return Batch(self.demand, self.own, self.rent, x, self.prices[:, :n], self.last[:n], n=min(n, self.n))

    def by_month(self) -> Batch:
        """The same scenarios with every month a group of its own."""
        return Batch(self.demand, self.own, self.rent, self.x, self.prices, self.last, n=self.n, by_month=True)

    def mean_price(self) -> Array:
        """Discounted mean of the on-demand price over the months, ``(S,)`` or ``(1,)``."""
        return (self.discounts.astype(self.prices.dtype) @ self.prices) / self.prices.dtype.type(self.discounts.sum())

    def discounted_hours(self) -> Array:
        """Discounted GPU-hours wanted, ``(S,)``: what costs are levelised over."""
        return HOURS_PER_MONTH * sum(w * load for w, load in zip(self.weights, self.loads, strict=True))  # type: ignore[return-value]

    def cost(self, mix: Mix) -> Costed:
        """The mix in every scenario."""
        hours: dict[str, Array] = {}
        parts: dict[str, Array] = {}
        rented = busy_discounted = np.zeros(1)
        own_capacity = np.float32(mix.owned) * self.usable
        for g, load in enumerate(self.loads):
            above = self._beyond(own_capacity, load) if mix.owned else load
            top = self._beyond(own_capacity + np.float32(mix.reserved), load) if mix.reserved else above
            rented = rented + self.rent_sums[g] * top
            if mix.owned:
                busy = load - above
                busy_discounted = busy_discounted + self.weights[g] * busy
                _add(hours, "owned", self.counts[g] * busy)
            if mix.reserved:
                _add(hours, "reserved", self.counts[g] * (above - top))
            _add(hours, mix.top, self.counts[g] * top)
        hours = {name: HOURS_PER_MONTH * value for name, value in hours.items()}
        if mix.owned:
            parts |= self._owned_parts(mix.owned, HOURS_PER_MONTH * busy_discounted)
        if mix.reserved and mix.reservation is not None:
            parts["reserved"] = mix.reserved * HOURS_PER_MONTH * self._reserved_sum(mix.reservation)
        parts[mix.top] = HOURS_PER_MONTH * rented * (self.spot_over if mix.top == "spot" else 1.0)
        total = sum(parts.values(), start=np.zeros(1))
        return Costed(mix, total, parts, hours, self._kwh(mix, hours))

    def spent_by_month(self, mix: Mix) -> Array:
        """Present value spent by the end of month 0 (the purchase), 1, ..., M, resale left out: ``(M + 1, S)``.

        The batch must be made ``by_month``.
        """
        own, x = self.own, self.x
        spent = np.zeros((self.months + 1, self.n))
        over = self.spot_over if mix.top == "spot" else 1.0
        capacity = np.float32(mix.owned) * self.usable
        fixed = own.fixed_usd(mix.owned, x, self.discounts) if mix.owned else {}
        steady = sum(fixed.values(), start=np.zeros(1)) / self.discounts.sum()
        held = self._reserved_prices(mix.reservation) if mix.reserved and mix.reservation else None
        for m, load in enumerate(self.loads):
            above = self._beyond(capacity, load) if mix.owned else load
            top = self._beyond(capacity + np.float32(mix.reserved), load) if mix.reserved else above
            spent[m + 1] = HOURS_PER_MONTH * self.rent_sums[m] * top * over
            if held is not None:
                spent[m + 1] += mix.reserved * HOURS_PER_MONTH * held[m] * self.discounts[m]
            if mix.owned:
                busy = load - above
                kw = busy * self.kw_busy + np.maximum(mix.owned - busy, 0.0) * self.kw_idle
                power = HOURS_PER_MONTH * kw * x["usd_per_kwh"]
                spent[m + 1] += self.discounts[m] * (power + steady)
        if mix.owned:
            spent[0] = own.hardware_usd(mix.owned, x)
        return np.cumsum(spent, axis=0)

    def _beyond(self, capacity: Array, load: Array) -> Array:
        return beyond(capacity, load, self.shares, self.over_mean)

    def _owned_parts(self, gpus: int, busy_hours: Array) -> dict[str, Array]:
        """Present value of owning, the work done included; ``busy_hours`` are discounted."""
        own, x = self.own, self.x
        powered = gpus * HOURS_PER_MONTH * float(self.discounts.sum())
        kwh = busy_hours * self.kw_busy + np.maximum(powered - busy_hours, 0.0) * self.kw_idle
        resale = own.resale_usd(gpus, x, self.months, self.last) * self.discounts[-1]
        return {
            "hardware": own.hardware_usd(gpus, x),
            "resale": -resale,
            "power": kwh * x["usd_per_kwh"],
            **own.fixed_usd(gpus, x, self.discounts),
        }

    def _kwh(self, mix: Mix, hours: Mapping[str, Array]) -> Array:
        powered = mix.owned * HOURS_PER_MONTH * self.months
        idle = np.maximum(powered - hours["owned"], 0.0) if mix.owned else np.zeros(1)
        at_work = sum(hours.values(), start=np.zeros(1))
        return at_work * self.kw_busy + idle * self.kw_idle

    def _reserved_prices(self, reservation: Reservation) -> Array:
        """Price of a reserved GPU-hour in each month, ``(M, S)``: held for a term at the price of its first day;
        months after the last whole term are paid on demand."""
        share, term = self.x[reservation.name], reservation.months
        whole = self.months // term * term
        held = self.prices.copy()
        for first in range(0, whole, term):
            held[first : first + term] = self.prices[first] * share
        return held

    def _reserved_sum(self, reservation: Reservation) -> Array:
        """Sum over the months of discount times the price of a reserved GPU-hour, ``(S,)``."""
        share, term = self.x[reservation.name], reservation.months
        whole = self.months // term * term
        total = np.zeros(1)
        for first in range(0, whole, term):
            total = total + float(self.discounts[first : first + term].sum()) * self.prices[first] * share
        rest = self.discounts[whole:].astype(self.prices.dtype) @ self.prices[whole:] if whole < self.months else 0.0
        return total + rest


def spread_drivers(demand: Demand, own: Ownership, rent: Renting) -> tuple[Driver, ...]:
    """Every driver of the question but rental prices, each once."""
    found = {d.name: d for d in (demand.drift, *own.drivers(), *rent.drivers())}
    return tuple(found.values())


def draw(drivers: Iterable[Driver], rng: np.random.Generator, n: int) -> dict[str, Array]:
    """``n`` independent values of each driver; one that is known stays a scalar array."""
    return {d.name: np.asarray(d.expected) if d.known else d.at(rng.standard_normal(n)) for d in drivers}


def draw_prices(rent: Renting, rng: np.random.Generator, months: int, n: int) -> tuple[Array, Array]:
    """``n`` paths of the on-demand price ``(M, n)``, today's first, and where each ends over today ``(n,)``.

    A process that does not move gives one path for all.
    """
    process = rent.process
    if process.volatility == 0 and process.drift_sigma == 0:
        moves = np.exp(process.drift * np.arange(months + 1))[:, None]
    else:
        moves = process.paths(rng, months, n)
    last = moves[-1].astype(np.float64)
    prices = moves[:-1]
    prices *= prices.dtype.type(rent.usd_per_hour)
    return prices, last


def _group_sums(prices: Array, discounts: Array, group: NDArray[np.intp], n: int) -> list[Array]:
    sums: list[Array] = []
    for g in range(n):
        members = np.flatnonzero(group == g)
        rows = prices if members.size == prices.shape[0] else prices[members]
        sums.append(discounts[members].astype(prices.dtype) @ rows)
    return sums


def _add(into: dict[str, Array], name: str, value: Array) -> None:
    into[name] = into[name] + value if name in into else value
