"""From accelerator-hours to money: price, provider, age, and spread of prices.

The clock is the caller's: ``today`` is always an argument.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpuwise.errors import InputError, UnpredictableError
from gpuwise.facts.hardware.accelerators import accelerators
from gpuwise.facts.hardware.systems import Cluster
from gpuwise.facts.offers.levels import ONE_PROVIDER_SIGMA, level_usd_per_hour
from gpuwise.facts.offers.offer import Offer, contracts_for, current_by_provider, offers_for, typical_price_usd_per_hour
from gpuwise.interval import Z80
from gpuwise.money.combine import product
from gpuwise.predict.estimate import Basis, Estimate
from gpuwise.units import HOUR_S

STALE_DAYS = 60
"""Age from which a price is shown with its age: H100 list prices moved by a third within 2026."""


@dataclass(frozen=True, slots=True)
class Price:
    """US dollars per hour and accelerator. ``low`` and ``high`` are the cheapest and dearest provider's price; ``expected`` is
    the price used for costs. ``as_of`` is the median date of its offers, ``oldest`` the earliest; None for a price given by
    the user."""

    low: float
    expected: float
    high: float
    provider: str
    as_of: datetime.date | None
    oldest: datetime.date | None
    age_days: int | None
    n_providers: int
    basis: Basis = "specified"
    origin: str = "market"
    """``given`` (by the person), ``contract`` (their own, imported), ``provider``, ``market`` (the median
    over providers) or ``like`` (that of a variant of the same chip, :func:`variant_price`)."""

    @property
    def stale(self) -> bool:
        """Whether the price is old; a contract that holds today is not."""
        if self.origin == "contract":
            return False
        return self.age_days is not None and self.age_days > STALE_DAYS

    @property
    def per_hour(self) -> Estimate:
        """Dollars an hour and accelerator, from the cheapest to the dearest of ``n`` providers where none is named: another one's
        price is inside with (n - 1) / (n + 1)."""
        if self.origin in ("market", "like"):
            return Estimate(self.low, self.expected, self.high, self.basis)
        return Estimate(self.expected, self.expected, self.expected, self.basis)

    def as_dict(self) -> dict[str, object]:
        """The price as JSON values."""
        return {
            "usd_per_gpu_hour": {"low": self.low, "expected": self.expected, "high": self.high, "basis": self.basis},
            "provider": self.provider,
            "as_of": _iso(self.as_of),
            "oldest": _iso(self.oldest),
            "age_days": self.age_days,
            "n_providers": self.n_providers,
            "origin": self.origin,
        }


def _iso(date: datetime.date | None) -> str | None:
    return None if date is None else date.isoformat()


def user_price(usd_per_hour: float) -> Price:
    """A price given by the user. Raises InputError unless it is positive and finite."""
    if not (math.isfinite(usd_per_hour) and usd_per_hour > 0):
        raise InputError(
            f"price must be a positive number, not {usd_per_hour}",
            hint="dollars per GPU and hour, for example 2.5",
        )
    return Price(usd_per_hour, usd_per_hour, usd_per_hour, "given", None, None, None, 1, origin="given")


def typical_price(cluster: Cluster, today: datetime.date) -> Price:
    """The median over providers that rent this accelerator, each with its cheapest price on demand in stock.

    Raises UnpredictableError without offers.
    """
    span = typical_price_usd_per_hour(cluster.accelerator.id, today)
    cheapest = current_by_provider(cluster.accelerator.id, today)
    dates = sorted(o.as_of for o in cheapest.values())
    as_of = dates[len(dates) // 2]
    name = f"median of {len(cheapest)} providers" if len(cheapest) > 1 else next(iter(cheapest))
    return Price(span.low, span.median, span.high, name, as_of, dates[0], (today - as_of).days, len(cheapest))


def contract_price(cluster: Cluster, today: datetime.date) -> Price | None:
    """The user's cheapest valid contract for this accelerator today; None without one."""
    contracts = contracts_for(cluster.accelerator.id, today)
    if not contracts:
        return None
    best, usd = contracts[0], [o.on_demand_usd_per_hour for o in contracts]
    return Price(
        usd[0],
        usd[0],
        usd[-1],
        f"{best.provider} (your contract)",
        best.as_of,
        min(o.as_of for o in contracts),
        best.age_days(today),
        len({o.provider for o in contracts}),
        origin="contract",
    )


def provider_price(cluster: Cluster, provider: str, today: datetime.date) -> Price:
    """The price of ``provider`` on demand: its contract where the person has one, else its cheapest offer,
    in stock if any is. Raises UnknownNameError with the providers that have one."""
    from gpuwise.errors import UnknownNameError

    offers = offers_for(cluster.accelerator.id, today)
    mine = [o for o in offers if o.provider.lower() == provider.lower()]
    if not mine:
        providers = sorted({o.provider for o in offers})
        hint = (
            f"{cluster.accelerator.name} is offered by {', '.join(providers)}"
            if providers
            else "give a price with --price (of `cost` --rent-price)"
        )
        raise UnknownNameError("provider", provider, providers, hint=hint)
    return _priced(mine, today)


def _priced(offers: Sequence[Offer], today: datetime.date) -> Price:
    """The price of the first of one provider's ``offers``, cheapest first: its contracts before those in stock."""
    best = min(offers, key=lambda o: (o.kind != "contract", o.in_stock is False))
    usd, origin = best.on_demand_usd_per_hour, "contract" if best.kind == "contract" else "provider"
    name = f"{best.provider} (your contract)" if origin == "contract" else best.provider
    return Price(usd, usd, usd, name, best.as_of, best.as_of, best.age_days(today), 1, origin=origin)


def instance_price(cluster: Cluster, today: datetime.date) -> Price | None:
    """The price of the instance type that ``cluster`` was named by, in its cheapest region, or of its provider's cheapest with
    this accelerator; a contract with that provider comes first. None without either."""
    mine = [o for o in offers_for(cluster.accelerator.id, today) if cluster.provider and o.provider == cluster.provider]
    if not mine:
        return None
    own = [o for o in mine if o.kind == "contract" or o.instance == cluster.instance]
    best = provider_price(cluster, cluster.provider, today) if not own else _priced(own, today)
    return best if best.origin == "contract" else replace(best, provider=f"{best.provider} {cluster.instance}")


def price_of(
    cluster: Cluster, today: datetime.date, *, usd_per_hour: float | None = None, provider: str | None = None
) -> Price | None:
    """The price to plan with: the given one, a provider's, that of the named instance type, the user's own contract, or the
    typical one; None if the accelerator has no offers. Raises InputError for both a price and a provider."""
    if usd_per_hour is not None and provider is not None:
        raise InputError("a price and a provider both set the price of an hour", hint="leave out --price or --provider")
    if usd_per_hour is not None:
        return user_price(usd_per_hour)
    if provider is not None:
        return provider_price(cluster, provider, today)
    try:
        return instance_price(cluster, today) or contract_price(cluster, today) or typical_price(cluster, today)
    except UnpredictableError:
        return None


def market_factor(accelerator_id: str, price: Price, today: datetime.date) -> float:
    """Factor by which the accelerator may cost more than ``price`` elsewhere: the typical provider's price at the pessimistic
    end, given the number of prices. 1 for the user's own price."""
    if price.origin != "market":
        return 1.0
    warnings = math.exp(Z80 * ONE_PROVIDER_SIGMA / math.sqrt(price.n_providers))
    return max(level_usd_per_hour(today)[accelerator_id] / price.expected, 1.0) * warnings


VARIANT_RATE, VARIANT_MEMORY = 1.15, 1.35
"""Tolerances for variants of a chip: H100 of 80 and 96 GB, H800, A800."""


def variant_price(cluster: Cluster, today: datetime.date) -> Price | None:
    """The market's price of the accelerator nearest to ``cluster``'s among those of its family, form and rate, if it has no
    offers itself: H100 SXM for H800, which is only sold in China. None if there is no such accelerator."""
    mine = cluster.accelerator
    near: list[tuple[float, str]] = []
    for other in accelerators().values():
        alike = (other.vendor, other.family, other.form) == (mine.vendor, mine.family, mine.form) and other.id != mine.id
        if not alike or "bf16" not in mine.peak_flop_per_s or "bf16" not in other.peak_flop_per_s:
            continue
        rate = abs(math.log(other.peak_flop_per_s["bf16"] / mine.peak_flop_per_s["bf16"]))
        memory = abs(math.log(other.memory_bytes / mine.memory_bytes))
        if rate <= math.log(VARIANT_RATE) and memory <= math.log(VARIANT_MEMORY) and current_by_provider(other.id, today):
            near.append((rate + memory, other.id))
    if not near:
        return None
    other = accelerators()[min(near)[1]]
    price = typical_price(replace(cluster, system=replace(cluster.system, accelerator=other)), today)
    return replace(price, provider=f"as {other.name}: no offer of {mine.name} is known", basis="derived", origin="like")


def rent(time_s: Estimate, n_accelerators: int, price: Price) -> Estimate:
    """US dollars for ``n_accelerators`` over ``time_s`` at the expected price; the interval is that of the time and of the
    providers' prices."""
    return product((time_s, price.per_hour)).scaled(n_accelerators / HOUR_S)
