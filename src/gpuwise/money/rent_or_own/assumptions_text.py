"""A comparison as text: labels of mixes, assumptions, notes."""

from __future__ import annotations

import math
from collections.abc import Iterator

from gpuwise.facts.sources import sources
from gpuwise.interval import P80, Z80
from gpuwise.money.cost import STALE_DAYS
from gpuwise.money.rent_or_own.comparison import Assumption
from gpuwise.money.rent_or_own.demand import HOURS_PER_MONTH, Demand
from gpuwise.money.rent_or_own.engine import Mix
from gpuwise.money.rent_or_own.ownership import Ownership
from gpuwise.money.rent_or_own.renting import Renting
from gpuwise.money.rent_or_own.uncertain_inputs import UncertainInput
from gpuwise.units import format_usd

_TERMS = {12: "1 year", 36: "3 years"}
_LOW_USE = 0.4
_NOT_FACTS = {"offers": "the price catalogue"}


def label(mix: Mix) -> str:
    """``own 16 GPUs, reserve 8 for 3 years, the rest on demand``."""
    parts: list[str] = []
    if mix.owned:
        parts.append(f"own {mix.owned} GPU{'s' if mix.owned > 1 else ''}")
    if mix.reserved and mix.reservation is not None:
        parts.append(f"reserve {mix.reserved} for {_TERMS.get(mix.reservation.months, f'{mix.reservation.months} months')}")
    top = "on spot" if mix.top == "spot" else "on demand"
    if not parts:
        return f"rent {top}"
    return f"{', '.join(parts)}, the rest {top}"


def assumptions(demand: Demand, ownership: Ownership, rent: Renting) -> tuple[Assumption, ...]:
    """The assumptions of the answer, in the order of a bill."""
    rows = [
        Assumption("rental price", f"{format_usd(rent.usd_per_hour)}/h today", _price_text(rent), False),
        Assumption("rental prices to come", _path(rent), rent.process.fitted_on, False),
        Assumption("GPU price", f"${ownership.gpu_usd:,.0f}", ownership.price_words or "given", False),
    ]
    if ownership.capital_per_year:
        rows.append(
            Assumption("cost of capital", f"{100 * ownership.capital_per_year:.0f} % a year", "customary; give --capital", True)
        )
    rows += [Assumption(r.name.replace("-", " for ", 1), _value(r.share), r.words, False) for r in rent.reservations]
    for uncertain_input in _material_inputs(demand, ownership, rent):
        source = sources().get(uncertain_input.source)
        words = (
            _NOT_FACTS.get(uncertain_input.source, uncertain_input.source) if source is None else source.title.partition(":")[0]
        )
        rows.append(
            Assumption(uncertain_input.label, _value(uncertain_input), words, source is not None and source.kind == "estimate")
        )
    return tuple(rows)


def notes(demand: Demand, ownership: Ownership, rent: Renting, months: int, gpus: int) -> tuple[str, ...]:
    """Caveats of the answer."""
    sentences: list[str] = []
    if rent.price_age_days is not None and rent.price_age_days > STALE_DAYS:
        sentences.append(f"the rental price is {rent.price_age_days} days old; H100 list prices moved by a third within 2026")
    used = float(demand.by_month(months).mean()) / (gpus * HOURS_PER_MONTH)
    if used < _LOW_USE and demand.shape != "bursts":
        fewer = ownership.for_peak(demand.peak_gpus(months))
        if fewer < gpus:
            sentences.append(f"{gpus} owned GPUs would work {100 * used:.0f} % of the time: {fewer} deliver the same hours")
    if not ownership.counts_power and not ownership.running_usd_per_month:
        sentences.append("the simple sum excludes electricity")
    elif ownership.tdp_w is None and not ownership.running_usd_per_month:
        sentences.append("the accelerator's power is unpublished: electricity is excluded")
    if demand.shape == "bursts" and demand.peak_share is None:
        share = float(demand.levels()[0][0])
        sentences.append(f"half of the work is assumed to come at the peak, {100 * share:.0f} % of the time: give --burst-share")
    if not rent.history and rent.process.volatility > 0:
        sentences.append("this GPU has no price history: its prices are assumed to move like those of others")
    if months > max(len(rent.history), 36) and rent.process.volatility > 0:
        sentences.append("the horizon is longer than the price history: the far end is extrapolated")
    return tuple(sentences)


def _material_inputs(demand: Demand, ownership: Ownership, rent: Renting) -> Iterator[UncertainInput]:
    share_names = {r.share.name for r in rent.reservations}
    for uncertain_input in (demand.drift, *ownership.uncertain_inputs(), *rent.uncertain_inputs()):
        trivial = uncertain_input.is_exact and uncertain_input.expected in (0.0, 1.0)
        if uncertain_input.name not in share_names and not trivial:
            yield uncertain_input


def _value(uncertain_input: UncertainInput) -> str:
    """``$0.1/kWh ($0.07 to $0.16)`` or ``0.72 (0.52 to 0.91) of the design power``."""
    unit, i = uncertain_input.unit, uncertain_input
    sign = "$" if unit.startswith("$") else ""
    number = sign + ("{:,.0f}" if i.expected >= 100 else "{:.3g}")
    span = "" if i.is_exact else f" ({number.format(i.low)} to {number.format(i.high)})"
    middle = number.format(i.expected)
    return f"{middle}{unit.removeprefix(sign)}{span}" if sign else f"{middle}{span} {unit}".strip()


def _path(rent: Renting) -> str:
    process = rent.process
    if process.volatility == 0:
        return "held still"
    log_sigma = float(process.log_sigma(12.0))
    return f"{1200 * process.drift:+.0f} % a year, {P80} within {_times(Z80 * log_sigma)} after one"


def _times(log_width: float) -> str:
    return f"-{-100 * math.expm1(-log_width):.0f} % to +{100 * math.expm1(log_width):.0f} %"


def _price_text(rent: Renting) -> str:
    return rent.price_words if rent.price_age_days is None else f"{rent.price_words}, {rent.price_age_days} days old"
