"""gpuhunt (optional): the offers of its providers, whole instances priced per hour.

Nine providers come from catalogues that its authors publish daily, nine more are queried live if the environment has their
credentials; its wheel ships no prices. On-demand and spot are separate items, joined here by instance type and place. Names
are those of gpuhunt (``H100``, ``H100NVL``, ``A100`` with its memory), so the form is known only from the instance type.
"""

from __future__ import annotations

import datetime
import importlib
import logging
import math
import socket
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from gpuwise.errors import UnpredictableError, require
from gpuwise.facts.offers.feeds.listing import Listing, offers_of
from gpuwise.facts.offers.feeds.names import FeedProvider, UnclearName, instance_rule, may_be, provider_of, resolve
from gpuwise.facts.offers.feeds.tally import ParsedFeed, Tally
from gpuwise.facts.offers.feeds.tpu import chips_of
from gpuwise.units import GIB

FEED = "gpuhunt"
SOURCE_KEY = "gpuhunt"
SECONDS = 30.0
"""Maximum silence of a connection (gpuhunt sets no limit)."""
HIDDEN = frozenset({"gcp-g4-preview", "runpod-cluster"})
"""Items with these flags repeat another one for some versions of gpuhunt's users, or are sold in clusters
only."""


class Catalog(Protocol):
    """The used part of ``gpuhunt.Catalog``."""

    def query(self, *, provider: str, min_gpu_count: int) -> Sequence[Any]: ...


def load_catalog() -> Catalog:
    """gpuhunt's catalogue, downloaded. Raises MissingExtraError when it is not installed and
    UnpredictableError when nothing can be reached."""
    library = _library("gpuhunt")
    try:
        with _limits():
            return library.default_catalog()
    except (library.GPUHuntError, OSError, ValueError) as error:
        raise unreachable(error) from error


def provider_names() -> tuple[str, ...]:
    """Every provider gpuhunt may know, those of its published catalogues first. Raises MissingExtraError."""
    catalogues = _library("gpuhunt._internal.catalog")
    return (*catalogues.OFFLINE_PROVIDERS, *catalogues.ONLINE_PROVIDERS)


def fetch_provider(catalog: Catalog, provider: str, day: datetime.date) -> ParsedFeed:
    """The offers of one provider as of ``day``. Raises UnpredictableError when it cannot be asked."""
    failures = (_library("gpuhunt").GPUHuntError, OSError, ValueError, KeyError, TypeError)
    try:
        with _limits():
            items = catalog.query(provider=provider, min_gpu_count=1)
    except failures as error:
        raise unreachable(error) from error
    return parse_items(items, provider, day)


def _library(name: str) -> Any:
    """A module of gpuhunt. Raises MissingExtraError when it is not installed."""
    require("gpuhunt", "fetching these prices", otherwise="refresh from skypilot alone")
    return importlib.import_module(name)


def unreachable(error: Exception) -> UnpredictableError:
    """A failure of the network or of the other side as an error of ours."""
    cause = error.__cause__ or error
    return UnpredictableError(
        "price feed out of reach",
        f"gpuhunt could not fetch prices: {str(cause)[:200] or type(cause).__name__}",
        hint="check the network; the shipped prices and those fetched before still serve",
    )


def parse_items(items: Iterable[Any], provider: str, day: datetime.date) -> ParsedFeed:
    """Offers from gpuhunt's ``CatalogItem`` objects of one provider as of ``day``."""
    feed_provider = provider_of(FEED, provider)
    tally = Tally()
    on_demand: dict[tuple[str, str, str, int], tuple[Any, float]] = {}
    spots: dict[tuple[str, str, str, int], float] = {}
    rows = 0
    for item in items:
        if not item.gpu_count or not item.gpu_name or HIDDEN.intersection(item.flags):
            continue
        rows += 1
        key = (str(item.instance_name), str(item.location), f"{item.gpu_name} {item.gpu_memory}", int(item.gpu_count))
        price = float(item.price) if isinstance(item.price, int | float) else math.nan
        if item.spot:
            spots[key] = min(price, spots.get(key, price))
        elif key not in on_demand or price < on_demand[key][1]:
            on_demand[key] = (item, price)
    listed: list[Listing] = []
    for key, (item, price) in on_demand.items():
        try:
            accelerator_id, count = _accelerator(item, feed_provider)
        except UnclearName as reason:
            tally.add(str(reason), f"{item.gpu_name} ({item.instance_name})")
            continue
        listed.append(Listing(key[0], key[1], accelerator_id, count, price, spots.get(key)))
    alone = [key for key in spots if key not in on_demand]
    if alone:
        tally.add("spot price without an on-demand price", f"{alone[0][2]} ({alone[0][0]})", len(alone))
    return offers_of(listed, feed_provider, SOURCE_KEY, day, tally, rows)


def _accelerator(item: Any, feed_provider: FeedProvider) -> tuple[str, int]:
    """Accelerator id and count of an item. Raises UnclearName."""
    name, instance, count = str(item.gpu_name), str(item.instance_name), int(item.gpu_count)
    vendor = getattr(item.gpu_vendor, "value", item.gpu_vendor)
    if vendor == "google":
        return chips_of(name)
    rule = instance_rule(feed_provider.provider, instance)
    if rule is not None:
        if not may_be(name, rule.accelerator_id):
            raise UnclearName("name and instance type that contradict each other")
        return rule.accelerator_id, rule.count or count
    memory = item.gpu_memory if isinstance(item.gpu_memory, int | float) else 0.0
    return resolve(name, memory_bytes=(memory * GIB,), hints=(instance,)).id, count


@contextmanager
def _limits() -> Generator[None]:
    """A time limit for connections without one, and gpuhunt's log turned off: failures are reported here."""
    before = socket.getdefaulttimeout()
    logger = logging.getLogger("gpuhunt")
    level = logger.level
    socket.setdefaulttimeout(SECONDS)
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)
        logger.setLevel(level)
