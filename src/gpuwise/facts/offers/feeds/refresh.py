"""Refresh: query the feeds, apply the checks of the shipped table, store the result beside earlier ones, and report changes."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuwise.errors import GpuwiseError, MissingExtraError, UnknownNameError, UnpredictableError
from gpuwise.facts.offers.feeds import gpuhunt, skypilot
from gpuwise.facts.offers.feeds.download import OUT_OF_REACH, SECONDS, fetch_text
from gpuwise.facts.offers.feeds.listing import by_offer
from gpuwise.facts.offers.feeds.tally import ParsedFeed, SkippedRows, Tally, merge_skipped
from gpuwise.facts.offers.lint import clean_offers
from gpuwise.facts.offers.offer import offers as shipped_offers
from gpuwise.facts.offers.store import offers_in, save_offers, stored_files
from gpuwise.facts.offers.table import Offer

FEEDS: tuple[tuple[str, str], ...] = (
    (skypilot.FEED, "SkyPilot's catalogue files, one a cloud"),
    (gpuhunt.FEED, "gpuhunt's providers (pip install 'gpuwise[prices]')"),
)
"""Name and what it is."""


@dataclass(frozen=True, slots=True)
class Change:
    """An offer whose on-demand price differs from the feed's previous one."""

    offer: Offer
    before_usd_per_hour: float

    @property
    def share(self) -> float:
        """The new price over the old one, less one."""
        return self.offer.on_demand_usd_per_hour / self.before_usd_per_hour - 1


@dataclass(frozen=True, slots=True)
class RefreshResult:
    """Result of one source of one feed; ``error`` if it failed."""

    source: str
    offers: tuple[Offer, ...] = ()
    added: tuple[Offer, ...] = ()
    changed: tuple[Change, ...] = ()
    gone: tuple[Offer, ...] = ()
    """Listed last time and no longer."""
    skipped: tuple[SkippedRows, ...] = ()
    marked: tuple[str, ...] = ()
    """Warnings of the lint about accepted offers."""
    path: Path | None = None
    error: GpuwiseError | None = None


def sources_of(words: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """(feed, provider) pairs that ``skypilot``, ``skypilot:aws`` or nothing (all feeds) mean; a provider is
    empty when all of a feed are meant. Raises UnknownNameError."""
    feed_names = [name for name, _ in FEEDS]
    pairs: list[tuple[str, str]] = []
    for word in words or feed_names:
        feed, _, provider = word.lower().partition(":")
        if feed not in feed_names:
            raise UnknownNameError("price feed", word, feed_names, hint="feeds are " + ", ".join(feed_names))
        if feed == skypilot.FEED and provider and provider not in skypilot.CLOUDS:
            raise UnknownNameError("cloud of skypilot", provider, skypilot.CLOUDS)
        if feed == gpuhunt.FEED and provider and provider not in gpuhunt.provider_names():
            raise UnknownNameError("provider of gpuhunt", provider, gpuhunt.provider_names())
        pairs.append((feed, provider))
    return tuple(dict.fromkeys(pairs))


def refresh(
    words: Sequence[str],
    today: datetime.date,
    *,
    base_url: str = skypilot.BASE_URL,
    load_catalog: Callable[[], gpuhunt.Catalog] = gpuhunt.load_catalog,
    seconds: float = SECONDS,
    save: bool = True,
) -> Iterator[RefreshResult]:
    """Fetch, check and keep each source that ``words`` name, one after the other.

    A source that fails yields its error and the next one is tried, unless its server cannot be reached.
    Raises UnknownNameError on a name that is no feed.
    """
    for feed, provider in sources_of(words):
        if feed == skypilot.FEED:
            for cloud in [provider] if provider else skypilot.CLOUDS:
                done = _one(f"{feed}-{cloud}", lambda c=cloud: _skypilot(c, today, base_url, seconds), today, save)
                yield done
                if isinstance(done.error, UnpredictableError) and done.error.reason == OUT_OF_REACH:
                    break
        else:
            yield from _gpuhunt(provider, today, load_catalog, save, by_name=bool(words))


def _skypilot(cloud: str, today: datetime.date, base_url: str, seconds: float) -> ParsedFeed:
    return skypilot.parse_skypilot(fetch_text(skypilot.urls(cloud, base_url), seconds=seconds), cloud, today)


def _gpuhunt(
    provider: str, today: datetime.date, load: Callable[[], gpuhunt.Catalog], save: bool, *, by_name: bool
) -> Iterator[RefreshResult]:
    try:
        names = [provider] if provider else list(gpuhunt.provider_names())
        catalog = load()
    except MissingExtraError as error:
        if by_name:
            raise
        yield RefreshResult(gpuhunt.FEED, error=error)
        return
    except GpuwiseError as error:
        yield RefreshResult(gpuhunt.FEED, error=error)
        return
    for name in names:
        source = f"{gpuhunt.FEED}-{name}"
        yield _one(source, lambda n=name: gpuhunt.fetch_provider(catalog, n, today), today, save)


def _one(source: str, fetch: Callable[[], ParsedFeed], today: datetime.date, save: bool) -> RefreshResult:
    try:
        parsed = fetch()
        accepted, refused, marked = check_offers(parsed.offers, today)
        skipped = merge_skipped([parsed.skipped, refused])
        if not accepted:
            return RefreshResult(source, skipped=skipped)
        before = _last(source)
        path = save_offers(accepted, source, today) if save else None
    except GpuwiseError as error:
        return RefreshResult(source, error=error)
    added, changed, gone = difference(before, accepted)
    return RefreshResult(source, accepted, added, changed, gone, skipped, marked, path)


def check_offers(
    offers: Sequence[Offer], today: datetime.date
) -> tuple[tuple[Offer, ...], tuple[SkippedRows, ...], tuple[str, ...]]:
    """The offers of one provider that pass the lint beside the shipped ones of all others, the rejected ones, and the
    warnings."""
    if not offers:
        return (), (), ()
    provider = offers[0].provider
    others = tuple(o for o in shipped_offers() if o.provider != provider)
    cleaned, findings = clean_offers((*others, *offers), today=today)
    tally = Tally()
    marked: list[str] = []
    for finding in findings:
        if finding.offer.provider != provider:
            continue
        if finding.severity == "refuse":
            what = "" if finding.part in ("offer", "on_demand") else f" {finding.part} price"
            where = f"{finding.offer.instance or finding.offer.accelerator_id}: {finding.message}"
            tally.add(f"refused by rule {finding.rule}{what}", where)
        else:
            marked.append(finding.message)
    return tuple(o for o in cleaned if o.provider == provider), tally.skipped(), tuple(dict.fromkeys(marked))


def difference(before: Sequence[Offer], now: Sequence[Offer]) -> tuple[tuple[Offer, ...], tuple[Change, ...], tuple[Offer, ...]]:
    """Added, changed and vanished offers, an instance type of a provider at its cheapest region."""
    old, new = by_offer(before), by_offer(now)
    added = tuple(offer for key, offer in new.items() if key not in old)
    gone = tuple(offer for key, offer in old.items() if key not in new)
    changed = [
        Change(offer, old[key].on_demand_usd_per_hour)
        for key, offer in new.items()
        if key in old and old[key].on_demand_usd_per_hour != offer.on_demand_usd_per_hour
    ]
    return added, tuple(sorted(changed, key=lambda c: -abs(c.share))), gone


def _last(source: str) -> tuple[Offer, ...]:
    """The source's previous result; empty if that file is damaged (which is reported when it is read)."""
    files = [f for f in stored_files() if f.source == source]
    return offers_in(files[-1]) if files else ()
