"""Result of :func:`gpuwise.money.rent_or_own.scenarios.rent_or_own`: plain values for a terminal, a page or a figure.

Money is present value in US dollars of today unless a name says otherwise; intervals are 80 %.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gpuwise.money.rent_or_own.demand import Demand
from gpuwise.predict.estimate import Estimate

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Option:
    """One way to get all the required hours."""

    name: str
    """``own``, ``on-demand``, ``reserved-1y``, ``reserved-3y``, ``spot`` or ``mix``."""
    label: str
    """``own 16 GPUs, rent the rest on demand``."""
    owned_gpus: int
    reserved_gpus: int
    hours: Mapping[str, float]
    """Mean GPU-hours over the horizon by where they come from: ``owned``, ``reserved``, ``on-demand``,
    ``spot``. They sum to the mean demand."""
    total_usd: Estimate
    usd_per_gpu_hour: Estimate
    """Levelised: discounted dollars over discounted hours delivered."""
    parts_usd: Mapping[str, float]
    """Mean total by what it pays for: ``hardware``, ``resale`` (negative), ``power``, ``colocation``, ``staff``,
    ``support``, ``repairs``, ``running``, ``reserved``, ``on-demand``, ``spot``. They sum to
    ``total_usd.expected``."""
    cheapest_share: float
    """Share of the scenarios in which it is the cheapest of the options."""
    cumulative_usd: Floats
    """Cumulative spending by the end of each month, ``(3, months + 1)``: low end, mean and high end; purchases are paid at
    month 0 and resale is excluded."""
    utilisation: float | None
    """Mean of delivered over available hours of what is owned and reserved; None when nothing is."""
    kwh: Estimate | None
    """Electricity at the meter over the horizon; None when the accelerator's power is unpublished."""
    operational_kgco2e: Estimate | None
    embodied_kgco2e: Estimate | None
    """Making the hardware: of what is owned all of it, of what is rented the share of its life that was used."""


@dataclass(frozen=True, slots=True)
class PriceFan:
    """Rental price of one GPU-hour on demand over time."""

    months: Floats
    """``(months + 1,)``: 0 is today."""
    percentiles: tuple[float, ...]
    usd_per_hour: Floats
    """``(len(percentiles), months + 1)``."""
    history: tuple[tuple[str, float], ...]
    """``("2026-09", 3.79)``: published history of this accelerator; may be empty."""
    fitted_on: str
    """Data that the process was fitted on, in words; ``held still`` for static prices."""


@dataclass(frozen=True, slots=True)
class BreakEven:
    """Break-even of owning and renting on demand."""

    months: Estimate | None
    """Months until the purchase has paid for itself by the expected rent saved, without resale; None if it does not within
    :data:`LONGEST_MONTHS`."""
    months_never: float
    """Share of the scenarios in which it does not within :data:`LONGEST_MONTHS`."""
    hours_per_month: Estimate | None
    """Hours a month and owned GPU at which the expected totals of owning and renting on demand meet over the horizon, resale
    counted; None when that is more than a month has."""
    hours_never: float
    """Share of the scenarios in which no number of hours makes owning cheaper."""


LONGEST_MONTHS = 120
"""Break-even is looked for this far ahead."""


@dataclass(frozen=True, slots=True)
class Bar:
    """Effect of one uncertain number alone on (own - rent): a bar of the tornado chart."""

    name: str
    label: str
    unit: str
    low: float
    high: float
    """Its 10th and 90th percentile."""
    usd_at_low: float
    usd_at_high: float
    """(own - rent) with everything else at its median; negative: owning is cheaper."""
    variance_share: float
    """First-order Sobol index of (own - rent): the share of the variance removed if this number were known."""

    @property
    def swing_usd(self) -> float:
        """Width of the bar in US dollars."""
        return abs(self.usd_at_high - self.usd_at_low)


@dataclass(frozen=True, slots=True)
class Step:
    """The answer after one more thing is counted."""

    label: str
    break_even_months: float | None
    """By the expected totals; None: not within :data:`LONGEST_MONTHS`."""
    own_minus_rent_usd: float
    """Mean over the horizon."""
    own_wins: float
    """Share of the scenarios in which owning is cheaper."""


@dataclass(frozen=True, slots=True)
class Assumption:
    """One assumption of the answer."""

    label: str
    value: str
    source: str
    """Words for a person: the title of the source, or ``given``."""
    estimate: bool
    """True if the number is an estimate without measurement."""


@dataclass(frozen=True, slots=True)
class RentOrOwn:
    """Rent, own or mix, for a demand over a horizon."""

    demand: Demand
    accelerator: str
    horizon_months: int
    n_scenarios: int
    seed: int
    options: tuple[Option, ...]
    """Cheapest first by expected total; ``own`` and ``on-demand`` are always among them."""
    own_wins: float
    """Share of the scenarios in which ``own`` costs less than the best way to rent (``best_rent``)."""
    best_rent: str
    """Name of the renting option with the lowest expected total."""
    own_minus_rent_usd: Estimate
    """``own`` less ``best_rent``, over the horizon."""
    regret_usd: Estimate
    """Cost of the best option minus that of the option that turns out cheapest, scenario by scenario."""
    prices: PriceFan
    break_even: BreakEven
    bars: tuple[Bar, ...]
    """Widest first."""
    mix_counts: Floats
    """``(K,)`` owned GPUs that were tried."""
    mix_usd: Floats
    """``(3, K)`` total cost of owning that many and renting the rest in the cheapest way."""
    assumptions: tuple[Assumption, ...]
    notes: tuple[str, ...]
    beats: Mapping[str, float] = field(default_factory=dict[str, float])
    """Share of the scenarios in which the best option costs less than the one named."""

    @property
    def best(self) -> Option:
        """The option with the least expected cost over the horizon."""
        return self.options[0]

    def option(self, name: str) -> Option:
        """The option called ``name``. Raises KeyError."""
        return next(o for o in self.options if o.name == name)
