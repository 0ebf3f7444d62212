"""One way of getting the hours, costed in every scenario at once.

Shapes: ``S`` scenarios, ``M`` months, ``G`` groups of months that want the same number of hours. What is owned
works first, what is reserved next, the rest is rented on demand or on spot; so hours are conserved by
construction, and what each layer does in a group of months has a closed form (:func:`gpuwise.money.rent_or_own.demand.beyond`).
Rental prices enter only through sums over the months of a group, which are made once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gpuwise.money.rent_or_own.demand import HOURS_PER_MONTH, MONTHS_PER_YEAR, Demand, beyond
from gpuwise.money.rent_or_own.ownership import Ownership, Values
from gpuwise.money.rent_or_own.renting import Renting, Reservation
from gpuwise.money.rent_or_own.uncertain_inputs import Array, UncertainInput

Top = Literal["on-demand", "spot"]
DEMAND = "demand_spread"
CHUNK = 8192
"""Scenarios costed at a time, so that they stay in the processor's cache."""
PRICE = "rental_price"
"""Names of the two uncertain inputs that are not fields of :class:`Ownership` or :class:`Renting`."""


@dataclass(frozen=True, slots=True)
class Mix:
    """Amount to own and to reserve; the rest is rented as ``top`` specifies."""

    owned: int = 0
    reserved: int = 0
    reservation: Reservation | None = None
    top: Top = "on-demand"


@dataclass(frozen=True, slots=True)
class MixCost:
    """A mix, costed in every scenario. All money is present value."""

    mix: Mix
    total_usd: Array
    """``(S,)``"""
    parts_usd: Mapping[str, Array]
    """Cost by component, ``(S,)`` or scalar; the sum is ``total_usd``."""
    hours: Mapping[str, Array]
    """GPU-hours over the horizon by layer, ``(S,)``."""
    kwh: Array
    """At the meter, of everything owned and of rented hours at work, ``(S,)``."""


class Batch:
    """Scenarios drawn for one question: values of the inputs, price paths, and the sums over months they enter by.

    ``prices`` is ``(M, S)`` or ``(M, 1)``: US dollars an hour on demand in each month, the first today's; ``last`` the
    price at the end over the price today, ``(S,)``.
    """

    def __init__(
        self,
        demand: Demand,
        ownership: Ownership,
        rent: Renting,
        x: Values,
        prices: Array,
        last: Array,
        *,
        n: int,
        most_groups: int | None = None,
    ) -> None:
        months = prices.shape[0]
        self.demand, self.n = demand, n
        self.own, self.rent, self.x, self.prices, self.last = ownership, rent, x, prices, last
        rate = (1 + ownership.capital_per_year) ** (1 / MONTHS_PER_YEAR) - 1
        self.months, self.discounts = months, (1 + rate) ** -np.arange(1.0, months + 1)
        needed = demand.by_month(months) / HOURS_PER_MONTH
        levels, group = _grouped(needed, self.discounts, most_groups)
        self.weights = np.bincount(group, self.discounts, levels.size).astype(np.float32)
        """Sum of the discounts of each group, ``(G,)``."""
        self.counts = np.bincount(group, minlength=levels.size).astype(np.float32)
        self.rent_sums = _group_sums(prices, self.discounts, group, levels.size)
        """Sum over a group of discount times price: dollars for a GPU-hour in each of its months, ``(G, S)``."""
        self.loads = levels.astype(np.float32)[:, None] * np.atleast_1d(np.asarray(x[DEMAND], dtype=np.float32))
        """Mean GPU demand of each group, ``(G, S)`` or ``(G, 1)``."""
        shares, over_mean = demand.levels()
        self.shares, self.over_mean = shares.astype(np.float32), over_mean.astype(np.float32)
        self.usable = np.atleast_1d(np.asarray(ownership.usable_share(x), dtype=np.float32))
        self.kw_busy, self.kw_idle = ownership.kw_per_gpu(x), ownership.kw_per_gpu(x, "idle_share")
        self.spot_over = np.asarray(1.0 if rent.spot is None else rent.spot.over_on_demand(x), dtype=np.float32)
        self._wanted_hours = HOURS_PER_MONTH * (self.counts @ self.loads)

    def first(self, n: int) -> Batch:
        """The first ``n`` scenarios alone."""
        x = {name: value if value.ndim == 0 else value[:n] for name, value in self.x.items()}
        return Batch(self.demand, self.own, self.rent, x, self.prices[:, :n], self.last[:n], n=min(n, self.n))

    def by_month(self) -> Batch:
        """The same scenarios with each month a separate group."""
        return self.grouped(0)

    def grouped(self, most: int) -> Batch:
        """The same scenarios with at most this many groups of months, each at its mean load; 0: every month separately."""
        return Batch(self.demand, self.own, self.rent, self.x, self.prices, self.last, n=self.n, most_groups=most)

    def mean_price(self) -> Array:
        """Discounted mean of the on-demand price over the months, ``(S,)`` or ``(1,)``."""
        return (self.discounts.astype(self.prices.dtype) @ self.prices) / self.prices.dtype.type(self.discounts.sum())

    def discounted_hours(self) -> Array:
        """Discounted GPU-hours of demand, ``(S,)``: the denominator of levelised costs."""
        return HOURS_PER_MONTH * (self.weights @ self.loads)

    def cost(self, mix: Mix) -> MixCost:
        """Cost of the mix in every scenario."""
        above, top = self._layers(mix)
        rented = HOURS_PER_MONTH * np.einsum("gs,gs->s", *np.broadcast_arrays(self.rent_sums, top))
        hours, parts = self._hours(mix, above, top), dict[str, Array]()
        if mix.owned:
            busy = HOURS_PER_MONTH * (self.weights @ (self.loads - above))
            parts |= self._owned_parts(mix.owned, busy)
        if mix.reserved and mix.reservation is not None:
            parts["reserved"] = mix.reserved * HOURS_PER_MONTH * self._reserved_sum(mix.reservation)
        parts[mix.top] = rented * self.spot_over if mix.top == "spot" else rented
        total = sum(parts.values(), start=np.zeros(1, dtype=np.float32))
        return MixCost(mix, total, parts, hours, self._kwh(mix, hours))

    def _layers(self, mix: Mix) -> tuple[Array, Array]:
        """GPU demand beyond the owned, and beyond the owned and reserved ones, ``(G, S)`` each."""
        owned = np.float32(mix.owned) * self.usable
        above = self._beyond(owned) if mix.owned else self.loads
        return above, self._beyond(owned + np.float32(mix.reserved)) if mix.reserved else above

    def _hours(self, mix: Mix, above: Array, top: Array) -> dict[str, Array]:
        beyond_owned = HOURS_PER_MONTH * (self.counts @ above) if mix.owned else self._wanted_hours
        beyond_held = HOURS_PER_MONTH * (self.counts @ top) if mix.reserved else beyond_owned
        hours: dict[str, Array] = {mix.top: beyond_held}
        if mix.owned:
            hours["owned"] = self._wanted_hours - beyond_owned
        if mix.reserved:
            hours["reserved"] = beyond_owned - beyond_held
        return hours

    def spent_by_month(self, mix: Mix) -> Array:
        """Present value spent by the end of month 0 (the purchase), 1, ..., M, without resale: ``(M + 1, S)``.

        The batch must come from ``by_month``.
        """
        ownership, x = self.own, self.x
        spent = np.zeros((self.months + 1, self.n))
        over = self.spot_over if mix.top == "spot" else 1.0
        above, top = self._layers(mix)
        monthly = HOURS_PER_MONTH * self.rent_sums * top * over
        if mix.reserved and mix.reservation is not None:
            reserved_usd = self._reserved_prices(mix.reservation)
            monthly = monthly + mix.reserved * HOURS_PER_MONTH * reserved_usd * self.discounts[:, None]
        if mix.owned:
            busy = self.loads - above
            kw = busy * self.kw_busy + np.maximum(mix.owned - busy, 0.0) * self.kw_idle
            fixed = sum(ownership.fixed_usd(mix.owned, x, self.discounts).values()) / self.discounts.sum()
            monthly = monthly + self.discounts[:, None] * (HOURS_PER_MONTH * kw * x["usd_per_kwh"] + fixed)
        spent[1:] = monthly
        if mix.owned:
            spent[0] = ownership.hardware_usd(mix.owned, x)
        return np.cumsum(spent, axis=0)

    def _beyond(self, capacity: Array) -> Array:
        return beyond(capacity, self.loads, self.shares, self.over_mean)

    def _owned_parts(self, gpus: int, busy_hours: Array) -> dict[str, Array]:
        """Present value of owning, the work done included; ``busy_hours`` are discounted."""
        ownership, x = self.own, self.x
        powered = gpus * HOURS_PER_MONTH * float(self.discounts.sum())
        kwh = busy_hours * self.kw_busy + np.maximum(powered - busy_hours, 0.0) * self.kw_idle
        resale = ownership.resale_usd(gpus, x, self.months, self.last) * float(self.discounts[-1])
        return {
            "hardware": ownership.hardware_usd(gpus, x),
            "resale": -resale,
            "power": kwh * x["usd_per_kwh"],
            **ownership.fixed_usd(gpus, x, self.discounts),
        }

    def _kwh(self, mix: Mix, hours: Mapping[str, Array]) -> Array:
        powered = mix.owned * HOURS_PER_MONTH * self.months
        idle = np.maximum(powered - hours["owned"], 0.0) if mix.owned else np.zeros(1, dtype=np.float32)
        return self._wanted_hours * self.kw_busy + idle * self.kw_idle

    def _reserved_prices(self, reservation: Reservation) -> Array:
        """Price of a reserved GPU-hour in each month, ``(M, S)``: fixed for a term at the price of its first day; months after
        the last whole term are paid on demand."""
        share, term = self.x[reservation.name], reservation.months
        whole = self.months // term * term
        prices = self.prices.copy()
        for first in range(0, whole, term):
            prices[first : first + term] = self.prices[first] * share
        return prices

    def _reserved_sum(self, reservation: Reservation) -> Array:
        """Sum over the months of discount times the price of a reserved GPU-hour, ``(S,)``."""
        share, term = self.x[reservation.name], reservation.months
        whole = self.months // term * term
        total = np.zeros(1, dtype=np.float32)
        for first in range(0, whole, term):
            total = total + float(self.discounts[first : first + term].sum()) * self.prices[first] * share
        rest = self.discounts[whole:].astype(self.prices.dtype) @ self.prices[whole:] if whole < self.months else 0.0
        return total + rest


def uncertain_inputs_of(demand: Demand, ownership: Ownership, rent: Renting) -> tuple[UncertainInput, ...]:
    """Every uncertain input of the question except rental prices, each once."""
    by_name = {d.name: d for d in (demand.drift, *ownership.uncertain_inputs(), *rent.uncertain_inputs())}
    return tuple(by_name.values())


def draw(uncertain_inputs: Iterable[UncertainInput], rng: np.random.Generator, n: int) -> dict[str, Array]:
    """``n`` independent values of each input; one without spread stays a scalar array."""
    return {
        d.name: np.asarray(d.expected, dtype=np.float32) if d.is_exact else d.at(rng.standard_normal(n, dtype=np.float32))
        for d in uncertain_inputs
    }


def draw_prices(rent: Renting, rng: np.random.Generator, months: int, n: int) -> tuple[Array, Array]:
    """``n`` paths of the on-demand price ``(M, n)``, today's first, and where each ends over today ``(n,)``.

    A process that does not move gives one path for all.
    """
    process = rent.process
    if process.volatility == 0 and process.drift_sigma == 0:
        moves = np.exp(process.drift * np.arange(months + 1.0))[:, None].astype(np.float32)
    else:
        moves = process.paths(rng, months, n)
    last = moves[-1].copy()
    prices = moves[:-1]
    prices *= prices.dtype.type(rent.usd_per_hour)
    return prices, last


def _grouped(needed: Array, discounts: Array, most: int | None) -> tuple[Array, NDArray[np.intp]]:
    """Loads ``(G,)`` and the group of each month ``(M,)``: months that want the same together; 0 keeps every month apart,
    another number bounds the groups."""
    if most == 0:
        return needed, np.arange(needed.size, dtype=np.intp)
    levels = np.unique(needed)
    if most is None or levels.size <= most:
        return levels, np.searchsorted(levels, needed)
    group = np.zeros(needed.size, dtype=np.intp)
    for g, members in enumerate(np.array_split(np.argsort(needed), most)):
        group[members] = g
    weights = np.bincount(group, discounts)
    return np.bincount(group, discounts * needed) / weights, group


def _group_sums(prices: Array, discounts: Array, group: NDArray[np.intp], n: int) -> Array:
    if n == prices.shape[0]:  # every month apart
        return (discounts[:, None].astype(prices.dtype) * prices)[np.argsort(group)]
    sums = np.empty((n, prices.shape[1]), dtype=prices.dtype)
    for g in range(n):
        members = np.flatnonzero(group == g)
        rows = prices if members.size == prices.shape[0] else prices[members]
        sums[g] = discounts[members].astype(prices.dtype) @ rows
    return sums
