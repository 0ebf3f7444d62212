"""What people write after ``gpuwise cost``: hours by the month, shares in per cent, ranges; and the question
they make together."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Group, Parameter

from gpuwise.cli.options import Converter, Count, Money, Rate, Whole
from gpuwise.errors import InputError
from gpuwise.units import hint_for, parse_count

if TYPE_CHECKING:
    import datetime

    from gpuwise.facts.grid import PowerPrice
    from gpuwise.facts.hardware.systems import Cluster
    from gpuwise.money.rent_or_own.demand import Demand
    from gpuwise.money.rent_or_own.footprint import Footprint
    from gpuwise.money.rent_or_own.ownership import Ownership
    from gpuwise.money.rent_or_own.renting import Renting
    from gpuwise.money.rent_or_own.uncertain_inputs import UncertainInput

_PER_MONTH = {"month": 1.0, "mo": 1.0, "year": 1 / 12, "y": 1 / 12, "yr": 1 / 12, "week": 365 / 84, "day": 365 / 12}
_RANGE = re.compile(r"\s*\$?([0-9][0-9_,.]*k?)\s*(?:-|to|\.\.)\s*\$?([0-9][0-9_,.]*k?)\s*", re.IGNORECASE)
_LONGEST_YEARS = 10.0
Range = tuple[float, float]
LARGEST, MOST_TIMES = 1e9, 100.0
"""Of any amount of money, and of any factor, of one thing."""


def hours_a_month(text: str, name: str) -> float:
    """GPU-hours a month from ``10000/month``, ``120k/year``, ``50/day``; a bare number is by the month."""
    amount, _, period = text.replace("per", "/").partition("/")
    try:
        value = parse_count(amount.strip().removesuffix("h").strip()) * _PER_MONTH[period.strip().lower() or "month"]
    except (InputError, KeyError):
        value = math.nan
    return _positive(value, text, name, "GPU-hours", "10000/month or 120k/year")


def share(text: str, name: str) -> float:
    """A share from ``50%`` or ``0.5``; ``-20%`` is one too."""
    cleaned = text.strip()
    try:
        value = float(cleaned.removesuffix("%")) / (100.0 if cleaned.endswith("%") else 1.0)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InputError(f"{name}: {text!r} is not a share", hint=hint_for(text, f"{name} 8%"))
    return value


def span(text: str, name: str) -> Range:
    """A number, or a range like ``150-250``: its 10th and 90th percentile."""
    match = _RANGE.fullmatch(text)
    try:
        parts = [parse_count(p.strip().removeprefix("$")) for p in (match.groups() if match else (text, text))]
    except InputError:
        parts = [math.nan]
    if not all(math.isfinite(p) for p in parts) or parts[0] > parts[-1]:
        raise InputError(f"{name}: {text!r} is not a number or a range", hint=hint_for(text, f"{name} 200 or {name} 150-250"))
    if parts[-1] > LARGEST:
        raise InputError(f"{name}: {text!r} is more than {LARGEST:,.0f}", hint=f"{name} 200 or {name} 150-250")
    return parts[0], parts[-1]


def spread(text: str, name: str) -> Range:
    """A range of factors above zero, around 1: ``0.7-1.3``."""
    low, high = span(text, name)
    if not 1 / MOST_TIMES <= low <= high <= MOST_TIMES:
        raise InputError(f"{name}: {text!r} is not between {1 / MOST_TIMES:g} and {MOST_TIMES:g}", hint=f"{name} 0.7-1.3")
    return low, high


def _share_span(text: str, name: str) -> Range:
    """A share or a range of shares: ``30%``, ``0.2-0.4``, ``20%-40%``."""
    low, dash, high = text.partition("-")
    first = share(low, name)
    last = share(high, name) if dash else first
    if not 0 <= first <= last <= 1:
        raise InputError(f"{name}: {text!r} is not a share up to 100%", hint=hint_for(text, f"{name} 30% or {name} 20%-40%"))
    return first, last


def _years(text: str, name: str) -> int:
    """Months from ``3``, ``1.5`` or ``18 months``."""
    cleaned = text.strip().lower()
    unit = 1 if cleaned.endswith(("mo", "month", "months")) else 12
    try:
        months = float(re.sub(r"\s*[a-z]+$", "", cleaned)) * unit
    except ValueError:
        months = math.nan
    if not (math.isfinite(months) and 1 <= round(months) <= 12 * _LONGEST_YEARS):
        raise InputError(f"{name}: {text!r} is not a time of 1 month to 10 years", hint=hint_for(text, f"{name} 3"))
    return round(months)


def _times(text: str, name: str) -> float:
    try:
        return _positive(float(text.strip().lower().rstrip("x")), text, name, "a number", "3")
    except ValueError:
        raise InputError(f"{name}: {text!r} is not a number", hint=hint_for(text, f"{name} 3")) from None


def _positive(value: float, text: str, name: str, what: str, example: str) -> float:
    if not (math.isfinite(value) and value > 0):
        raise InputError(f"{name}: {text!r} is not {what} above zero", hint=hint_for(text, f"{name} {example}"))
    return value


Hours = Annotated[float, Parameter(converter=Converter(hours_a_month))]
Share = Annotated[float, Parameter(converter=Converter(share))]
Span = Annotated[Range, Parameter(converter=Converter(span), accepts_keys=False, n_tokens=1)]
Spread = Annotated[Range, Parameter(converter=Converter(spread), accepts_keys=False, n_tokens=1)]
ShareSpan = Annotated[Range, Parameter(converter=Converter(_share_span), accepts_keys=False, n_tokens=1)]
Months = Annotated[int, Parameter(converter=Converter(_years))]
Times = Annotated[float, Parameter(converter=Converter(_times))]


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class FutureOptions:
    """How a demand changes, and how far to look ahead."""

    growth: Annotated[Share, Parameter(metavar="SHARE")] = 0.0
    """Growth of the demand per year: 50%, -20%."""
    profile: Annotated[str | None, Parameter(metavar="WEIGHTS")] = None
    """Demand over the year, one weight per month: 1,1,1,1,1,2,2,1,1,1,1,1."""
    demand_spread: Annotated[Spread | None, Parameter(metavar="RANGE")] = None
    """Uncertainty of demand, as actual / stated: 0.7-1.3; 1 means certain."""
    years: Annotated[Months, Parameter(show_default="3", metavar="YEARS")] = 36
    """Period to compare: 3, 1.5, 18months."""


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class DemandOptions(FutureOptions):
    """How many GPU-hours, and when."""

    hours: Annotated[Hours | None, Parameter(metavar="HOURS")] = None
    """GPU-hours needed: 10000/month, 120k/year, 50/day."""
    hours_per_month: Annotated[Hours | None, Parameter(metavar="HOURS")] = None
    """GPU-hours needed per month: 10000."""
    gpu_hours_per_year: Annotated[Hours | None, Parameter(metavar="HOURS")] = None
    """GPU-hours needed per year: 120k."""
    shape: Annotated[str | None, Parameter(show_default="steady", metavar="steady|bursts")] = None
    """steady or bursts."""
    peak: Annotated[Times | None, Parameter(show_default="3 with --shape bursts", metavar="RATIO")] = None
    """Peak demand / mean demand: 3."""
    burst_share: Annotated[Share | None, Parameter(metavar="SHARE")] = None
    """Share of the time at the peak."""


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class ServingOptions:
    """The load whose GPU-hours are those of the fleet that ``gpuwise capacity`` finds."""

    rate: Rate | None = None
    """Requests to serve: 20/s or 1M/day."""
    users: Whole | None = None
    """Users to serve, instead of a rate."""
    workload: Annotated[str | None, Parameter(show_default="chat", metavar="WORKLOAD")] = None
    """chat, code, rag, agent, summarise, reasoning, or in=2000,out=300."""
    slo: Annotated[str | None, Parameter(metavar="TARGETS")] = None
    """Latency targets: ttft_p95=1s,itl_p99=50ms."""


@Parameter(name="*", group=Group("Futures", sort_key=50))
@dataclass(frozen=True, slots=True)
class DrawnOptions:
    """The futures that are drawn."""

    scenarios: Annotated[Count, Parameter(show_default="100k")] = 100_000.0
    """Number of scenarios to simulate: 100k."""
    seed: Annotated[int, Parameter(metavar="N")] = 0
    """Seed of the scenarios; the same seed gives the same answer."""


@Parameter(name="*", group=Group("Currency", sort_key=50))
@dataclass(frozen=True, slots=True)
class CurrencyOptions:
    """The currency of amounts."""

    currency: Annotated[str, Parameter(metavar="CODE")] = "USD"
    """Currency of your amounts: EUR. Others than USD need --usd-rate."""
    usd_rate: Annotated[float | None, Parameter(metavar="USD")] = None
    """US dollars per unit of the currency: 1.08."""


@Parameter(name="*", group=Group("Owning", sort_key=50))
@dataclass(frozen=True, slots=True)
class OwningOptions:
    """What owning costs. A range like 150-250 is taken as uncertain."""

    buy_price: Money | None = None
    """US dollars for one GPU."""
    own_count: Annotated[Whole | None, Parameter(show_default="as many as the peak needs")] = None
    """GPUs to buy."""
    used: Annotated[bool, Parameter(negative="")] = False
    """Buy second-hand."""
    opex_per_month: Money | None = None
    """Operating cost per month, instead of power, colocation, staff and support."""
    kwh_price: Annotated[Span | None, Parameter(metavar="USD")] = None
    """US dollars for a kilowatt-hour."""
    pue: Annotated[Span | None, Parameter(metavar="RATIO")] = None
    """Power usage effectiveness of the data centre: 1.1 to 1.6."""
    colo: Annotated[Span | None, Parameter(metavar="USD")] = None
    """Colocation, US dollars per kilowatt and month."""
    staff: Annotated[Span | None, Parameter(metavar="USD")] = None
    """Staff, US dollars per server and month."""
    support: Annotated[ShareSpan | None, Parameter(metavar="SHARE")] = None
    """Support contract per year, as a share of the servers' price: 5%."""
    server_overhead: Annotated[Span | None, Parameter(metavar="RATIO")] = None
    """Price of a server / price of its GPUs: 1.6."""
    capital: Annotated[Share | None, Parameter(metavar="SHARE")] = None
    """Cost of capital per year: 8%."""
    residual: Annotated[ShareSpan | None, Parameter(metavar="SHARE")] = None
    """Resale value at the end, as a share of the price: 30%, 20%-40%."""
    utilisation: Annotated[ShareSpan | None, Parameter(metavar="SHARE")] = None
    """Highest utilisation of an owned GPU: 90%."""


@Parameter(name="*", group=Group("Renting", sort_key=50))
@dataclass(frozen=True, slots=True)
class RentingOptions:
    """What renting costs."""

    rent_price: Money | None = None
    """US dollars for a GPU-hour on demand."""
    provider: Annotated[str | None, Parameter(metavar="NAME")] = None
    """Use the prices of this provider instead of the median over providers."""
    spot: Annotated[bool, Parameter(negative="")] = False
    """The work may be interrupted: also consider spot prices, with checkpoints."""
    reserved: Annotated[str | None, Parameter(show_default="those with a known price", metavar="TERMS")] = None
    """Reservation terms to compare: 1y, 3y, 1y,3y or none."""
    still: Annotated[bool, Parameter(negative="")] = False
    """Assume rental prices stay constant."""


def hours_given(usage: DemandOptions) -> list[float]:
    """GPU-hours a month, by each option that gives them."""
    yearly = None if usage.gpu_hours_per_year is None else usage.gpu_hours_per_year / 12
    return [h for h in (usage.hours, usage.hours_per_month, yearly) if h is not None]


def demand_of(usage: DemandOptions) -> Demand:
    """The demand. Raises InputError when the hours are missing or given twice, or the shape contradicts itself."""
    from gpuwise.money.rent_or_own.demand import Demand
    from gpuwise.money.rent_or_own.uncertain_inputs import economics

    hours = hours_given(usage)
    if len(hours) != 1:
        what = "the GPU-hours are missing" if not hours else "the GPU-hours are given more than once"
        raise InputError(
            what,
            hint="for example --hours 10000/month; of one run: gpuwise cost run llama-3.1-8b --on 8xH100-SXM --tokens 15B",
        )
    shape = usage.shape or ("steady" if usage.peak in (None, 1.0) else "bursts")
    if shape not in ("steady", "bursts"):
        raise InputError(f"--shape: {shape!r} is not a shape", hint="steady or bursts")
    if shape == "steady" and (usage.peak not in (None, 1.0) or usage.burst_share is not None):
        raise InputError("a steady load has no peak", hint="--shape bursts --peak 3")
    spread = (
        None if usage.demand_spread is None else _replaced(economics()["demand_spread"], usage.demand_spread, "--demand-spread")
    )
    return Demand(
        hours[0],
        peak_over_mean=1.0 if shape == "steady" else usage.peak or 3.0,
        peak_share=usage.burst_share,
        growth_per_year=usage.growth,
        profile=_profile(usage.profile),
        spread=spread,
    )


def ownership_of(cluster: Cluster, owned: OwningOptions, months: int, power: PowerPrice | None) -> Ownership:
    """Ownership from the options of ``owned``, the rest from the catalogue. Raises InputError."""
    from gpuwise.money.rent_or_own.uncertain_inputs import number

    ownership = _catalogue(cluster, owned, power)
    ranges: dict[str, Range | None] = {
        "usd_per_kwh": owned.kwh_price,
        "pue": owned.pue,
        "colocation": owned.colo,
        "staff": owned.staff,
        "support_share": owned.support,
        "server_factor": owned.server_overhead,
        "fill": owned.utilisation,
    }
    for field, value in ranges.items():
        if value is not None:
            ownership = ownership.with_input(field, _replaced(getattr(ownership, field), value, _OPTION[field]))
    if owned.pue is not None and not 1 <= owned.pue[0] <= owned.pue[1] <= 4:
        raise InputError(f"--pue: {owned.pue[0]:g} cannot be", hint="all power over the computers' power: from 1 to 4")
    if owned.server_overhead is not None and owned.server_overhead[0] < 1:
        raise InputError("--server-overhead: a server costs at least its GPUs", hint="for example 1.6")
    if owned.utilisation is not None and owned.utilisation[0] == 0:
        raise InputError("--utilisation: must be above zero", hint="for example 90%")
    if owned.residual is not None:
        yearly = [part ** (12 / months) for part in owned.residual]
        ownership = ownership.with_input("resale_keep", ownership.resale_keep.with_range(*yearly))
        ownership = ownership.with_input(
            "resale_follows", number("resale_follows", 0.0, "elasticity", "resale follows rental prices")
        )
    if owned.opex_per_month is not None:
        ownership = replace(ownership, running_usd_per_month=owned.opex_per_month, tdp_w=None)
        for field in ("colocation", "staff", "support_share", "host_w"):
            ownership = ownership.with_input(field, getattr(ownership, field).with_range(0.0))
    capital = ownership.capital_per_year if owned.capital is None else owned.capital
    return replace(ownership, capital_per_year=capital, owned_gpus=owned.own_count)


def _catalogue(cluster: Cluster, owned: OwningOptions, power: PowerPrice | None = None) -> Ownership:
    """A consumer's card that no shop sells any more is bought second-hand, asked or not."""
    from gpuwise.money.rent_or_own.ownership import catalogue_ownership, only_used

    retired = not owned.used and owned.buy_price is None and only_used(cluster)
    condition = "used" if owned.used or retired else "new"
    ownership = catalogue_ownership(cluster, condition=condition, gpu_usd=owned.buy_price, power=power)
    return replace(ownership, price_words=f"{ownership.price_words}; no longer sold new") if retired else ownership


def simple_question(
    demand: Demand, cluster: Cluster, owned: OwningOptions, renting: Renting
) -> tuple[Demand, Ownership, Renting]:
    """The sum on the back of an envelope: prices that stand still, no spread, nothing but GPUs and running costs."""
    from gpuwise.money.rent_or_own.demand import HOURS_PER_MONTH
    from gpuwise.money.rent_or_own.ownership import simple_ownership, whole_gpus
    from gpuwise.money.rent_or_own.price_process import still
    from gpuwise.money.rent_or_own.uncertain_inputs import number

    price, words = owned.buy_price, "given"
    if price is None:
        catalogued = _catalogue(cluster, owned)
        price, words = catalogued.gpu_usd, catalogued.price_words
    plain = replace(demand, spread=number("demand_spread", 1.0, "x", "demand over what was said"))
    gpus = owned.own_count or whole_gpus(demand.gpu_hours_per_month / HOURS_PER_MONTH * demand.peak_over_mean)
    ownership = simple_ownership(price, gpus, owned.opex_per_month or 0.0, words)
    return plain, ownership, replace(renting, process=still(), reservations=(), spot=None)


def renting_of(cluster: Cluster, rented: RentingOptions, today: datetime.date) -> Renting:
    """Renting as said. Raises InputError."""
    from gpuwise.money.rent_or_own.renting import rent_of

    if rented.rent_price is not None and rented.provider is not None:
        raise InputError("--rent-price and --provider both set the rental price", hint="leave one out")
    terms = None
    if rented.reserved is not None:
        terms = tuple(t.strip().lower() for t in rented.reserved.split(",") if t.strip().lower() != "none")
    return rent_of(
        cluster,
        today,
        usd_per_hour=rented.rent_price,
        provider=rented.provider,
        reserved=terms,
        spot=rented.spot,
        moving=not rented.still,
    )


def footprint(cluster: Cluster, country: str | None) -> tuple[Footprint, PowerPrice | None]:
    """What to count carbon with, and what a kilowatt-hour costs there (None: not known, or no place named)."""
    from gpuwise.facts.grid import find_grid
    from gpuwise.money.power import is_personal
    from gpuwise.money.rent_or_own.footprint import footprint_of

    grid = None if country is None else find_grid(country)
    sector = "household" if is_personal(cluster) else "industrial"
    return footprint_of(cluster, grid), None if grid is None else grid.price(sector)


def in_dollars(owned: OwningOptions, rented: RentingOptions, money: CurrencyOptions) -> tuple[OwningOptions, RentingOptions]:
    """Amounts a person gave in another currency as US dollars. Raises InputError without the rate."""
    currency, usd_rate = money.currency, money.usd_rate
    if currency.upper() == "USD":
        if usd_rate not in (None, 1.0):
            raise InputError("--usd-rate: a US dollar is one US dollar", hint="name the currency with --currency EUR")
        return owned, rented
    if not re.fullmatch(r"[A-Za-z]{3}", currency):
        raise InputError(f"--currency: {currency[:20]!r} is not a currency", hint="three letters, for example EUR")
    if usd_rate is None or not 0 < usd_rate < 1e6:
        raise InputError(
            f"amounts in {currency.upper()} need a rate above zero", hint=f"US dollars for one {currency.upper()}: --usd-rate 1.1"
        )
    amounts: dict[str, Any] = {}
    for field in ("buy_price", "opex_per_month", "kwh_price", "colo", "staff"):
        value = getattr(owned, field)
        if value is not None:
            amounts[field] = (value[0] * usd_rate, value[1] * usd_rate) if isinstance(value, tuple) else value * usd_rate
    price = rented.rent_price
    return replace(owned, **amounts), replace(rented, rent_price=None if price is None else price * usd_rate)


_OPTION = {
    "usd_per_kwh": "--kwh-price",
    "pue": "--pue",
    "colocation": "--colo",
    "staff": "--staff",
    "support_share": "--support",
    "server_factor": "--server-overhead",
    "fill": "--utilisation",
}


def _replaced(uncertain_input: UncertainInput, value: Range, option: str) -> UncertainInput:
    try:
        return uncertain_input.with_range(*value)
    except InputError as error:
        raise InputError(f"{option}: {error.message}", hint=error.hint) from None


def _profile(text: str | None) -> tuple[float, ...]:
    if text is None:
        return ()
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"--profile: {text[:60]!r} is not twelve figures", hint="for example 1,1,1,1,1,2,2,1,1,1,1,1") from None
