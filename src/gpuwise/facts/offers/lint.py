"""Checks of rental prices: placeholders, policies and mistakes that are not prices.

Catalogues contain invalid prices: 700 $/h where a price is missing, 1.00 for every product, spot equal to on-demand, prices
per instance in a column per accelerator, eight accelerators counted as twelve. Each rule below is a function from all offers
to findings; the thresholds are ratios, chosen so that the seven- to nine-fold spread that one accelerator really has between
marketplaces and hyperscalers passes.
"""

from __future__ import annotations

import datetime
import re
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

from gpuwise.facts.hardware.accelerators import accelerators
from gpuwise.facts.hardware.systems import systems, systems_of
from gpuwise.facts.offers.offer import Offer

Severity = Literal["refuse", "mark"]
Part = Literal["on_demand", "spot", "reserved", "offer"]

MOST_USD_PER_HOUR = 100.0
"""Dearer than this per accelerator is a placeholder; the dearest one rented out costs about a fifth of it."""
OUTLIER_RATIO = 8.0
POLICY_SPREAD = 0.01
"""Spot over on-demand varies by less than this over a provider's products: a rule, not a market."""
POLICY_PRODUCTS = 4
PLACEHOLDER_PRODUCTS = 3
FEWEST_PROVIDERS = 3
"""Other providers needed before their median judges a price."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing wrong with one offer."""

    rule: str
    offer: Offer
    message: str
    severity: Severity
    """``refuse``: ``part`` is not a price; ``mark``: it is one, with a reservation."""
    part: Part
    """Column of the finding; ``offer`` for the whole row."""


def lint_offers(offers: Sequence[Offer], *, today: datetime.date | None = None) -> tuple[Finding, ...]:
    """Every finding of every rule, in the order of the rules. ``today`` allows dates to come to be refused.

    Rules that compare need the others: lint a whole table, not one row at a time. A placeholder is judged by
    no other rule and judges nothing.
    """
    findings = list(_placeholders(offers))
    absurd = {id(finding.offer) for finding in findings}
    rest = [offer for offer in offers if id(offer) not in absurd]
    findings += [finding for rule in _RULES for finding in rule(rest)]
    if today is not None:
        findings += [
            _refuse("date-to-come", offer, f"dated {offer.as_of}, after {today}", "offer")
            for offer in offers
            if offer.as_of > today
        ]
    return tuple(findings)


def clean_offers(offers: Sequence[Offer], *, today: datetime.date | None = None) -> tuple[tuple[Offer, ...], tuple[Finding, ...]]:
    """The accepted offers and every finding.

    A rejected spot or reserved price is removed from its offer; any other rejection drops the offer. Spot prices that are a
    policy are marked.
    """
    findings = lint_offers(offers, today=today)
    by_offer: dict[int, list[Finding]] = {}
    for finding in findings:
        by_offer.setdefault(id(finding.offer), []).append(finding)
    cleaned = (_without_refused(offer, by_offer.get(id(offer), ())) for offer in offers)
    return tuple(offer for offer in cleaned if offer is not None), findings


def _without_refused(offer: Offer, findings: Sequence[Finding]) -> Offer | None:
    refused = {finding.part for finding in findings if finding.severity == "refuse"}
    if refused & {"on_demand", "offer"}:
        return None
    if "spot" in refused:
        offer = replace(offer, spot_usd_per_hour=None, spot_kind="")
    elif any(finding.rule == "spot-is-policy" for finding in findings):
        offer = replace(offer, spot_kind="policy")
    if "reserved" in refused:
        offer = replace(offer, reserved_usd_per_hour=None, reserved_3y_usd_per_hour=None)
    return offer


def _refuse(rule: str, offer: Offer, message: str, part: Part) -> Finding:
    return Finding(rule, offer, message, "refuse", part)


def _mark(rule: str, offer: Offer, message: str, part: Part) -> Finding:
    return Finding(rule, offer, message, "mark", part)


def _placeholders(offers: Sequence[Offer]) -> Iterator[Finding]:
    """Absurdly dear, or one round price for several different accelerators of one provider."""
    same: dict[tuple[str, float], set[str]] = {}
    for offer in offers:
        if offer.on_demand_usd_per_hour == round(offer.on_demand_usd_per_hour):
            same.setdefault((offer.provider, offer.on_demand_usd_per_hour), set()).add(offer.accelerator_id)
    for offer in offers:
        price = offer.on_demand_usd_per_hour
        if not 0 < price < MOST_USD_PER_HOUR:
            yield _refuse("placeholder", offer, f"{price:g} $/h is not a plausible price of one accelerator", "on_demand")
            continue
        products = same.get((offer.provider, price), set())
        if len(products) >= PLACEHOLDER_PRODUCTS and not _alike(products):
            yield _refuse(
                "placeholder",
                offer,
                f"{offer.provider} asks {price:g} $/h for {len(products)} different accelerators",
                "on_demand",
            )


def _alike(accelerator_ids: set[str]) -> bool:
    """One price may be right for products of one generation (an H100 and an H200 in the same list)."""
    return len({accelerators()[name].family for name in accelerator_ids if name in accelerators()}) < 2


def _spot_against_on_demand(offers: Sequence[Offer]) -> Iterator[Finding]:
    for offer in offers:
        spot, on_demand = offer.spot_usd_per_hour, offer.on_demand_usd_per_hour
        if spot is None:
            continue
        if spot <= 0:
            yield _refuse("spot-not-positive", offer, f"a spot price of {spot:g}", "spot")
        elif spot == on_demand:
            yield _refuse("spot-equals-on-demand", offer, f"spot and on-demand are both {spot:g} $/h", "spot")
        elif spot > on_demand:
            yield _refuse("spot-above-on-demand", offer, f"spot {spot:g} above on-demand {on_demand:g} $/h", "spot")


def _spot_policies(offers: Sequence[Offer]) -> Iterator[Finding]:
    """A provider whose spot prices are one fixed share of on-demand over several accelerators."""
    shares: dict[str, dict[str, list[float]]] = {}
    for offer in offers:
        if offer.spot_usd_per_hour:
            share = offer.spot_usd_per_hour / offer.on_demand_usd_per_hour
            shares.setdefault(offer.provider, {}).setdefault(offer.accelerator_id, []).append(share)
    fixed: dict[str, float] = {}
    for provider, by_accelerator in shares.items():
        every = [share for listed in by_accelerator.values() for share in listed]
        middle = statistics.median(every)
        if len(by_accelerator) >= POLICY_PRODUCTS and max(every) - min(every) < POLICY_SPREAD * middle:
            fixed[provider] = middle
    for offer in offers:
        if offer.provider in fixed and offer.spot_usd_per_hour and offer.spot_kind != "policy":
            yield _mark(
                "spot-is-policy",
                offer,
                f"every spot price of {offer.provider} is {fixed[offer.provider]:.0%} of on-demand",
                "spot",
            )


def _reserved_against_on_demand(offers: Sequence[Offer]) -> Iterator[Finding]:
    for offer in offers:
        for price in (offer.reserved_usd_per_hour, offer.reserved_3y_usd_per_hour):
            if price is not None and not 0 < price <= offer.on_demand_usd_per_hour:
                yield _refuse(
                    "reserved-above-on-demand",
                    offer,
                    f"reserved {price:g} against on-demand {offer.on_demand_usd_per_hour:g} $/h",
                    "reserved",
                )
                break


def _counts(offers: Sequence[Offer]) -> Iterator[Finding]:
    """A count the system of that name does not have, or that no baseboard of that accelerator is cut into."""
    for offer in offers:
        named = _system_sizes().get(_plain(offer.instance))
        sizes = _baseboards(offer.accelerator_id) if named is None else frozenset({named})
        if not sizes or offer.count == named:
            continue
        if named is None and any(size % offer.count == 0 or offer.count % max(sizes) == 0 for size in sizes):
            continue
        sizes_text = " or ".join(str(size) for size in sorted(sizes))
        message = f"{offer.count} accelerators; its systems have {sizes_text}"
        if offer.kind == "marketplace" and offer.count < max(sizes):
            yield _mark("count", offer, message, "offer")
        else:
            yield _refuse("count", offer, message, "offer")


@cache
def _baseboards(accelerator_id: str) -> frozenset[int]:
    """Sizes of the systems of an accelerator that is soldered to a baseboard; none for cards, which come in
    any number."""
    accelerator = accelerators().get(accelerator_id)
    if accelerator is None or accelerator.form.startswith("PCIe"):
        return frozenset()
    return frozenset(system.count for system in systems_of(accelerator))


def _per_instance(offers: Sequence[Offer]) -> Iterator[Finding]:
    """A price that grows with the count: the hour of the instance, not of the accelerator."""
    single: dict[tuple[str, str, str], float] = {}
    for offer in offers:
        if offer.count == 1:
            key = (offer.provider, offer.region, offer.accelerator_id)
            price = offer.on_demand_usd_per_hour
            single[key] = min(single.get(key, price), price)
    judge = _Market(offers)
    for offer in offers:
        if offer.count == 1:
            continue
        price, count = offer.on_demand_usd_per_hour, offer.count
        single_usd = single.get((offer.provider, offer.region, offer.accelerator_id))
        if single_usd is not None and abs(price / single_usd / count - 1) < 0.05:
            yield _refuse("per-instance", offer, f"{price:g} $/h is {count} times its price of one ({single_usd:g})", "on_demand")
            continue
        median = judge.median_of_others(offer)
        if median and price / median > 4 and 0.7 < price / median / count < 1.5:
            yield _refuse(
                "per-instance",
                offer,
                f"{price:g} $/h for each of {count} is {price / median:.1f} times the median {median:.3g}",
                "on_demand",
            )


def _outliers(offers: Sequence[Offer]) -> Iterator[Finding]:
    judge = _Market(offers)
    for offer in offers:
        median = judge.median_of_others(offer)
        if not median:
            continue
        ratio = offer.on_demand_usd_per_hour / median
        if not 1 / OUTLIER_RATIO <= ratio <= OUTLIER_RATIO:
            yield _refuse(
                "outlier",
                offer,
                f"{offer.on_demand_usd_per_hour:g} $/h is {ratio:.2g} times the median {median:.3g} of others",
                "on_demand",
            )


def _twice(offers: Sequence[Offer]) -> Iterator[Finding]:
    """The same thing on the same day at two prices; hosts of a marketplace may differ."""
    firsts: dict[tuple[object, ...], Offer] = {}
    for offer in offers:
        key = (
            *(offer.provider, offer.region, offer.instance, offer.accelerator_id),
            *(offer.count, offer.as_of, offer.kind == "marketplace"),
        )
        first = firsts.setdefault(key, offer)
        if first is offer:
            continue
        one, other = first.on_demand_usd_per_hour, offer.on_demand_usd_per_hour
        if one == other:
            yield _mark("repeated", offer, "the same price twice", "offer")
        elif offer.kind == "marketplace":
            yield _mark("two-prices", offer, f"{one:g} and {other:g} $/h on {offer.as_of}", "offer")
        else:
            yield _refuse("two-prices", offer, f"{one:g} and {other:g} $/h on {offer.as_of}", "offer")


def _names(offers: Sequence[Offer]) -> Iterator[Finding]:
    """An instance whose name contains another accelerator than the row."""
    for offer in offers:
        if offer.accelerator_id not in accelerators():
            yield _refuse("unknown-accelerator", offer, f"no accelerator {offer.accelerator_id!r}", "offer")
            continue
        tokens = {token for token in _tokens(offer.instance) if token in _models()}
        if tokens and not any(offer.accelerator_id in _models()[token] for token in tokens):
            yield _refuse(
                "another-accelerator",
                offer,
                f"instance {offer.instance!r} names {', '.join(sorted(tokens))}, the row {offer.accelerator_id}",
                "offer",
            )


class _Market:
    """Medians of one accelerator over providers, each with the median of its own prices."""

    def __init__(self, offers: Sequence[Offer]) -> None:
        prices: dict[str, dict[str, list[float]]] = {}
        for offer in offers:
            by_provider = prices.setdefault(offer.accelerator_id, {})
            by_provider.setdefault(offer.provider, []).append(offer.on_demand_usd_per_hour)
        self._votes = {
            name: {provider: statistics.median(listed) for provider, listed in by_provider.items()}
            for name, by_provider in prices.items()
        }

    def median_of_others(self, offer: Offer) -> float | None:
        """None with fewer than :data:`FEWEST_PROVIDERS` other providers."""
        votes = self._votes.get(offer.accelerator_id, {})
        others = [price for provider, price in votes.items() if provider != offer.provider]
        return statistics.median(others) if len(others) >= FEWEST_PROVIDERS else None


_MULTIPLE = re.compile(r"^\d{1,2}x?(?=[a-z])")
_SIZED = re.compile(r"[a-z]{0,5}\d{2,4}[a-z]{0,2}")


def _tokens(instance: str) -> set[str]:
    words = re.split(r"[^a-z0-9]+", instance.lower())
    return {word for full in words for word in (full, _MULTIPLE.sub("", full)) if word}


@cache
def _models() -> Mapping[str, frozenset[str]]:
    """Model words (``h100``, ``l40s``, ``4090``) to the accelerators they name.

    Words of two letters are excluded: clouds name their series so (a2, p4, g2).
    """
    by_word: dict[str, set[str]] = {}
    for name in accelerators():
        for word in name.split("-"):
            if len(word) >= 3 and _SIZED.fullmatch(word) and not word.endswith(("gb", "w", "c")):
                by_word.setdefault(word, set()).add(name)
    return {word: frozenset(names) for word, names in by_word.items()}


@cache
def _system_sizes() -> Mapping[str, int]:
    counts = {_plain(name): s.count for s in systems().values() for name in (s.id, *s.aliases)}
    return {name: count for name, count in counts.items() if name}


def _plain(instance: str) -> str:
    return re.sub(r"[^a-z0-9]", "", instance.lower().removeprefix("standard_"))


_RULES: tuple[Callable[[Sequence[Offer]], Iterator[Finding]], ...] = (
    *(_spot_against_on_demand, _spot_policies, _reserved_against_on_demand),
    *(_counts, _per_instance, _outliers, _twice, _names),
)
