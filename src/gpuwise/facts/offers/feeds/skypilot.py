"""SkyPilot's catalogue: one CSV file a cloud, whole instances priced per hour.

    https://raw.githubusercontent.com/skypilot-org/skypilot-catalog/master/catalogs/v8/aws/vms.csv

The files have no date, so an offer's date is the day it was fetched. Known errors in them (see also ``feed_providers.csv``):
Azure's ND96isr_H100_v5 with 12 accelerators, GCP's 700.0 where a price is unknown, Vast's spot price of 0.00, spot prices
equal to on-demand ones, Mithril's 1 $ for anything, memory in GB under a column called MiB, Vast's ``RTX4070`` for a 4070
SUPER Ti. GCP prices machines and accelerators separately: an offer is their sum.
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from gpuwise.errors import FieldError
from gpuwise.facts.offers.feeds.listing import Listing, offers_of
from gpuwise.facts.offers.feeds.names import (
    FeedProvider,
    UnclearName,
    instance_rule,
    may_be,
    provider_of,
    resolve,
    rules_of,
)
from gpuwise.facts.offers.feeds.tally import ParsedFeed, Tally
from gpuwise.facts.offers.feeds.tpu import chips_of
from gpuwise.files import csv_rows
from gpuwise.units import GIB, MIB

BASE_URL = "https://raw.githubusercontent.com/skypilot-org/skypilot-catalog/master/catalogs"
VERSIONS = ("v8", "v9", "v7")
"""Folders in the order they are tried: the one released versions read and that is refreshed daily, the next
one, and the last one for clouds that left."""
CLOUDS = (
    "aws",
    "azure",
    "gcp",
    "oci",
    "lambda",
    "runpod",
    "vast",
    "nebius",
    "verda",
    "hyperstack",
    "cudo",
    "do",
    "fluidstack",
    "hyperbolic",
    "mithril",
    "paperspace",
    "seeweb",
    "shadeform",
)
FEED = "skypilot"
SOURCE_KEY = "skypilot-catalog"
_NEEDED = ("InstanceType", "AcceleratorName", "AcceleratorCount", "Price", "Region")
_SIZE = re.compile(r"SizeInMiB['\"]*\s*:\s*([0-9.]{1,12})")
_NAME = re.compile(r"['\"]Name['\"]+\s*:\s*['\"]+([^'\"]{1,80})")
_VAST = re.compile(r"[0-9]+x-(.+)-[0-9]+-[0-9]+")
_NUMBER = re.compile(r"[0-9]{1,9}(\.[0-9]{1,12})?", re.ASCII)
_MOST_MIB_PER_CARD_IN_GB = 1024
"""A card's memory below this many 'MiB' is really in GB: RunPod writes 80 for 80 GB."""


@dataclass(frozen=True, slots=True)
class _Row:
    """One line of the file."""

    instance: str
    name: str
    count: str
    price: str
    spot: str
    region: str
    zone: str
    info: str


def urls(cloud: str, base: str = BASE_URL) -> tuple[str, ...]:
    """Possible URLs of a cloud's file, best first."""
    return tuple(f"{base}/{version}/{cloud}/vms.csv" for version in VERSIONS)


def parse_skypilot(text: str, cloud: str, day: datetime.date) -> ParsedFeed:
    """The offers in a cloud's file as of ``day``. Raises FieldError when the text is no such file or is cut
    off; a row that cannot be read or meant is skipped and counted."""
    feed_provider = provider_of(FEED, cloud)
    tally = Tally()
    rows = list(_rows(text, f"{cloud}/vms.csv", tally))
    priced = [row for row in rows if row.name and row.count not in ("", "0", "0.0")]
    listed: list[Listing] = []
    hosts = _hosts(rows)
    for row in priced:
        try:
            listed += _machines_of(row, feed_provider, hosts) if cloud == "gcp" else [_listing(row, feed_provider)]
        except UnclearName as reason:
            tally.add(str(reason), f"{row.name} ({row.instance})" if row.instance else row.name)
    return offers_of(_smallest_slices(listed), feed_provider, SOURCE_KEY, day, tally, len(priced))


def _rows(text: str, file: str, tally: Tally) -> Iterator[_Row]:
    if not text.strip():
        raise FieldError("is empty", file=file, hint="the feed may be down; try again later")
    rows = csv_rows(text, file, strict=False)
    _, header = next(rows)
    missing = [name for name in _NEEDED if name not in header]
    if missing:
        raise FieldError(
            f"is not a catalogue of SkyPilot: no column {missing[0]}",
            file=file,
            hint="the feed may be down, or its format has changed",
        )
    if not text.endswith("\n"):
        raise FieldError("is cut off: the last line has no end", file=file, hint="try again")
    at = {name: i for i, name in enumerate(header)}
    width = len(header)

    def cell(cells: list[str], name: str) -> str:
        return cells[at[name]].strip() if name in at else ""

    for _, cells in rows:
        if len(cells) != width:
            if cells:
                tally.add("damaged line", ",".join(cells))
            continue
        yield _Row(
            cell(cells, "InstanceType"),
            cell(cells, "AcceleratorName"),
            cell(cells, "AcceleratorCount"),
            cell(cells, "Price"),
            cell(cells, "SpotPrice"),
            cell(cells, "Region"),
            cell(cells, "AvailabilityZone"),
            cell(cells, "GpuInfo"),
        )


def _listing(row: _Row, feed_provider: FeedProvider) -> Listing:
    """A line with its instance, accelerator and price. Raises UnclearName."""
    accelerator_id, count = _accelerator(row, feed_provider)
    return Listing(row.instance, row.region, accelerator_id, count, _usd(row.price), _maybe_usd(row.spot))


def _accelerator(row: _Row, feed_provider: FeedProvider) -> tuple[str, int]:
    count = _count(row.count)
    rule = instance_rule(feed_provider.provider, row.instance)
    if rule is not None:
        if not may_be(row.name, rule.accelerator_id):
            raise UnclearName("name and instance type that contradict each other")
        return rule.accelerator_id, rule.count or count
    stated = _NAME.search(row.info)
    hints = [row.instance, *([stated[1]] if stated else [])]
    vast = _VAST.fullmatch(row.instance) if feed_provider.provider == "vast" else None
    name = vast[1] if vast else row.name  # Vast's name column drops "SUPER" and "Ti"
    return resolve(name, memory_bytes=_memory(row.info, count, feed_provider.memory), hints=hints).id, count


def _memory(info: str, count: int, meaning: str) -> tuple[float, ...]:
    """Memory of one card in bytes, from the feed's column; empty without one."""
    match = _SIZE.search(info)
    if match is None or meaning == "none":
        return ()
    try:
        size = float(match[1])
    except ValueError:
        return ()
    if meaning == "total":
        size /= count
    return (size * (GIB if size < _MOST_MIB_PER_CARD_IN_GB else MIB),)


def _hosts(rows: list[_Row]) -> Mapping[tuple[str, str], _Row]:
    """GCP's machines without accelerators, by type and zone."""
    return {(row.instance, row.zone): row for row in rows if row.instance and not row.name}


def _machines_of(row: _Row, feed_provider: FeedProvider, hosts: Mapping[tuple[str, str], _Row]) -> list[Listing]:
    """A line of GCP with accelerators: a TPU slice as it is, GPUs with the machine they come in. Raises
    UnclearName."""
    if row.name.startswith("tpu-"):
        accelerator_id, chips = chips_of(row.name)
        return [Listing(row.name, row.region, accelerator_id, chips, _usd(row.price), _maybe_usd(row.spot))]
    if row.instance:
        return [_listing(row, feed_provider)]
    count = _count(row.count)
    for rule in rules_of("gcp"):
        host = hosts.get((rule.name, row.zone))
        if rule.feed_name != row.name or rule.count != count or host is None:
            continue
        prices = (_usd(row.price), _usd(host.price))
        if feed_provider.placeholder_usd in prices:
            raise UnclearName(f"placeholder price of {feed_provider.placeholder_usd:g}")
        spots = (_maybe_usd(row.spot), _maybe_usd(host.spot))
        spot = None if None in spots or feed_provider.placeholder_usd in spots else sum(s for s in spots if s)
        return [Listing(rule.name, row.region, rule.accelerator_id, count, sum(prices), spot)]
    raise UnclearName("price of accelerators without their machine")


def _smallest_slices(listed: list[Listing]) -> list[Listing]:
    """TPU slices of one version cost the same per chip up to thousands of them: the smallest represents all."""
    smallest: dict[tuple[str, str], int] = {}
    for item in listed:
        if item.accelerator_id.startswith("tpu-"):
            key = (item.accelerator_id, item.region)
            smallest[key] = min(item.count, smallest.get(key, item.count))
    return [i for i in listed if smallest.get((i.accelerator_id, i.region), i.count) == i.count]


def _count(text: str) -> int:
    number = float(text) if _NUMBER.fullmatch(text) else math.nan
    if not number > 0:
        raise UnclearName("no count of accelerators")
    if number != int(number):
        raise UnclearName("fraction of an accelerator")
    return int(number)


def _usd(text: str) -> float:
    """US dollars, NaN when the cell holds none (what follows leaves it out)."""
    return float(text) if _NUMBER.fullmatch(text) else math.nan


def _maybe_usd(text: str) -> float | None:
    return _usd(text) if text else None
