"""All candidates: every accelerator of the catalogue in each form in which it is rented, sold or lent.

An :class:`Acquisition` is one accelerator in one form (rented by the hour, bought new, bought second-hand, a hosted notebook).
It is the unit that is counted: each is ranked or excluded with a reason.
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache

from gpuwise.errors import InputError, UnpredictableError
from gpuwise.facts.hardware.accelerators import Accelerator, accelerators, with_memory
from gpuwise.facts.hardware.boards import board_of
from gpuwise.facts.hardware.naming import counted
from gpuwise.facts.hardware.systems import Cluster, default_system
from gpuwise.facts.offers.notebooks import Notebook, notebooks
from gpuwise.facts.offers.offer import book
from gpuwise.facts.offers.purchases import (
    RECENT_DAYS,
    Purchase,
    PurchaseRange,
    aged,
    purchases_for,
    recent_range,
    typical_purchase_usd,
)
from gpuwise.facts.software.support import Support, support_of
from gpuwise.money.cost import Price, market_factor, price_of
from gpuwise.pick.limits import Have, Limits
from gpuwise.units import GIB

COUNTS = (1, 2, 3, 4, 6, 8, 16, 32, 64, 128, 256, 512, 1024)
UNEVEN = (3, 6)
"""Counts that cards are put together in; modules come and are rented in powers of two."""
CARDS, MOST_OWNED = 8, 72
"""Cards that go into one rig at home, and accelerators of the largest machine that is sold as one (an NVL72 rack)."""
STALE_DAYS = 548
"""Age from which the price of what is traded second-hand ranks after newer ones: a year and a half, in which cards came and
went. What shops still sell keeps its place, with a wider interval."""
LAUNCH_DAYS = 365
"""Age from which a price for what is no longer made is no price it can be had new at."""


@dataclass(frozen=True, slots=True)
class Acquisition:
    """One accelerator in one form of acquisition. One of ``rent``, ``purchase`` and ``notebook`` is set; none if there is no
    offer."""

    accelerator: Accelerator
    how: str
    """``rent``, ``buy`` or ``notebook``."""
    condition: str = ""
    """``new`` or ``used`` for a purchase."""
    rent: Price | None = None
    purchase: PurchaseRange | None = None
    notebook: Notebook | None = None
    lowest_usd: float | None = None
    """The lowest listing of a purchase, as it was seen; ``purchase`` is widened by its age."""
    stale: bool = False
    """The purchase price is older than :data:`STALE_DAYS`, and no shop keeps it in force."""
    market: float = 1.0
    """Factor of a rent over its price: a typical provider's price at the pessimistic end. An accelerator that only expensive
    providers rent out is not counted as cheaper."""

    @property
    def label(self) -> str:
        """``rent``, ``new``, ``used`` or the notebook's provider."""
        if self.notebook is not None:
            return self.notebook.provider
        return self.condition or self.how

    @property
    def key(self) -> tuple[str, str, str]:
        """Unique key of an acquisition: accelerator, form, and the plan or the condition with the memory sold."""
        detail = f"{self.notebook.provider} {self.notebook.plan}" if self.notebook is not None else self.condition
        memory = f" {self.accelerator.memory_bytes / GIB:.0f}" if self.purchase and self.accelerator.unified_memory else ""
        return self.accelerator.id, self.how, detail + memory


@dataclass(frozen=True, slots=True)
class Exclusion:
    """A way that is not ranked. ``code`` is a short stable word for counting, ``why`` the sentence with by how much."""

    way: Acquisition
    code: str
    why: str
    progress: int = 0
    """Last stage reached: the furthest candidate of an accelerator represents it."""
    short: float = math.inf
    """Shortfall in the unit of its code: the nearest misses are named first."""

    def as_dict(self) -> dict[str, object]:
        """The document of an exclusion; ``reason`` is the stable code."""
        return {
            "accelerator": self.way.accelerator.id,
            "name": self.way.accelerator.name,
            "way": self.way.label,
            "reason": self.code,
            "why": self.why,
        }


CODES: dict[str, tuple[int, str]] = {
    "vendor": (0, "vendor excluded"),
    "form": (0, "another form than requested"),
    "unobtainable": (1, "not known to be for sale or rent"),
    "second-hand": (2, "second-hand only, and that was excluded"),
    "software": (3, "no software for the job"),
    "machine": (4, "does not go into your machine"),
    "watts": (4, "draws more than allowed"),
    "memory": (5, "does not fit"),
    "unpredicted": (5, "no prediction"),
    "slow": (6, "too slow"),
    "budget": (7, "over budget"),
    "later": (8, "not predicted, others come first by their bounds"),
    "behind": (8, "behind for another reason"),
    "variant": (9, "another board is ranked"),
    "beaten": (8, "beaten even at its best"),
}
"""Codes of reasons: how far they came, and the heading they are grouped under."""


def left_out(way: Acquisition, code: str, why: str, short: float = math.inf) -> Exclusion:
    """A candidate excluded for ``code``."""
    return Exclusion(way, code, why, CODES[code][0], short)


def ways(limits: Limits, today: datetime.date) -> Iterator[Acquisition]:
    """Every form of acquisition of every accelerator within the limits; one without a price if there is no offer."""
    lent: dict[str, list[Notebook]] = {}
    if "notebook" in limits.ways:
        for plan in notebooks():
            if not plan.offered_on(today):
                continue
            lent.setdefault(plan.accelerator_id, []).append(plan)
    for accelerator in accelerators().values():
        some = False
        if "rent" in limits.ways:
            price = _rent(accelerator.id, today)
            if price is not None:
                some = True
                yield Acquisition(accelerator, "rent", rent=price, market=market_factor(accelerator.id, price, today))
        if "buy" in limits.ways:
            for condition in ("new", "used"):
                for product, purchase in _sold(accelerator, condition, limits.form):
                    if _only_once(accelerator.id, condition, purchase, today):
                        continue
                    some = True
                    old = purchase.as_of is not None and (today - purchase.as_of).days > STALE_DAYS
                    stale = old and not (condition == "new" and _still_sold(accelerator.id))
                    yield Acquisition(
                        product, "buy", condition, purchase=aged(purchase, today), lowest_usd=purchase.low, stale=stale
                    )
        for plan in lent.get(accelerator.id, ()):
            some = True
            yield Acquisition(accelerator, "notebook", notebook=plan)
        if not some:
            yield Acquisition(accelerator, limits.ways[0])


def refused(way: Acquisition, limits: Limits, purpose: str) -> Exclusion | None:
    """Reason that excludes a candidate before any prediction; None without one."""
    accelerator = way.accelerator
    if limits.form is not None and limits.form not in forms_of(accelerator.id):
        return left_out(way, "form", f"{' or '.join(forms_of(accelerator.id))}, not {limits.form}")
    if limits.vendors and accelerator.vendor not in limits.vendors:
        return left_out(way, "vendor", f"{accelerator.vendor} is not among {', '.join(limits.vendors)}")
    if way.rent is None and way.purchase is None and way.notebook is None:
        return left_out(way, "unobtainable", _unobtainable(accelerator, limits))
    if way.condition == "used" and not limits.used:
        return left_out(way, "second-hand", "only second-hand prices are known")
    plan = way.notebook
    if plan is not None and plan.usd_per_month > 0 and plan.hours_per_month is None:
        return left_out(way, "unpredicted", f"{plan.provider} {plan.plan} does not publish how many hours on it the fee pays for")
    support = software_for(accelerator, purpose)
    if support.level == "none":
        return left_out(way, "software", support.reason)
    return None


SOFTWARE_JOBS = {"embed": "image", "rerank": "image", "speech": "infer", "vision": "train", "video": "image"}
"""Purpose whose software rating applies to a purpose without its own: encoders run under PyTorch (vLLM, TEI) like diffusion
models, and not under llama.cpp."""


@cache
def software_for(accelerator: Accelerator, purpose: str) -> Support:
    """How well software serves the purpose on it."""
    return support_of(accelerator).works_for(SOFTWARE_JOBS.get(purpose, purpose))


def counts_for(way: Acquisition, limits: Limits) -> tuple[int, ...]:
    """How many of it one can have in this way."""
    most = limits.count or COUNTS[-1]
    if way.notebook is not None:
        return (way.notebook.count,) if way.notebook.count <= most else ()
    if way.how == "buy":
        board = board_of(way.accelerator.id)
        if board is not None and board.category == "module":
            # a module does nothing without its baseboard, which is sold full
            whole = default_system(way.accelerator).count
            return (whole,) if whole <= most else ()
        most = min(most, 1 if board is not None and board.category == "phone" else _most_owned(way.accelerator))
    uneven = way.accelerator.form == "PCIe"
    return tuple(n for n in COUNTS if n <= most and (uneven or n not in UNEVEN))


def _most_owned(accelerator: Accelerator) -> int:
    """One machine's worth: what its usual system holds, four cards at least, a rack at most."""
    count = default_system(accelerator).count
    board = board_of(accelerator.id)
    if accelerator.unified_memory or accelerator.form == "Laptop":
        return count
    return min(max(count, CARDS if board is None or board.installable else 1), MOST_OWNED)


@cache
def forms_of(accelerator_id: str) -> tuple[str, ...]:
    """Forms of the accelerator, from :data:`~gpuwise.pick.limits.FORMS`: a chip with shared memory as the machines that have
    prices."""
    board = board_of(accelerator_id)
    category = board.category if board is not None else "card"
    if category in ("module", "superchip", "cloud"):
        return ("server",)
    if category != "soc":
        return (category,)
    if accelerator_id.startswith("jetson"):
        return ("edge",)
    portable = {_portable(one) for one in purchases_for(accelerator_id)}
    return tuple(form for form, enabled in (("laptop", True), ("mini", False)) if enabled in portable) or ("mini",)


@cache
def cluster_of(accelerator_id: str, n: int) -> Cluster | None:
    """``n`` of it in its usual systems; None when they do not fill equal ones, or only a guessed network joins them."""
    try:
        cluster = counted(accelerators()[accelerator_id], n)
    except (InputError, UnpredictableError):
        return None
    system = cluster.system
    guessed = "network" in system.assumed and system.network_kind == "ethernet"
    return cluster if cluster.n_systems == 1 or not guessed else None


@cache
def _sold(accelerator: Accelerator, condition: str, form: str | None) -> tuple[tuple[Accelerator, PurchaseRange], ...]:
    """Configurations with purchase prices, smallest memory first: a chip that shares its memory with the host is sold with
    several sizes of it, in several machines, of which the cheapest (of the requested ``form``) counts. A price without a
    configuration is for the chip's smallest known one."""
    if not accelerator.unified_memory:
        purchase = _purchase(accelerator.id, condition)
        return () if purchase is None else ((accelerator, purchase),)
    every = purchases_for(accelerator.id)
    least = min((gb for one in every if (gb := _memory_gb(one.product)) is not None), default=math.inf)
    by_size: dict[float, list[Purchase]] = {}
    for one in every:
        if one.condition == condition and (form not in ("laptop", "mini") or (form == "laptop") == _portable(one)):
            by_size.setdefault(_memory_gb(one.product) or least, []).append(one)
    if not any(one.condition == condition for one in every):
        purchase = _purchase(accelerator.id, condition)
        return () if purchase is None else ((with_memory(accelerator, least), purchase),)
    return tuple((with_memory(accelerator, gb), _cheapest(seen)) for gb, seen in sorted(by_size.items()))


def _cheapest(prices: Sequence[Purchase]) -> PurchaseRange:
    """The range of the machine with the lowest median."""
    products = dict.fromkeys(one.product for one in prices)
    ranges = [recent_range([one for one in prices if one.product == product]) for product in products]
    newest = max(r.as_of for r in ranges if r.as_of is not None)
    recent = [r for r in ranges if r.as_of is not None and (newest - r.as_of).days <= RECENT_DAYS]
    return min(recent, key=lambda r: r.median)


def _portable(one: Purchase) -> bool:
    return "MacBook" in one.product


def _memory_gb(product: str) -> float | None:
    match = re.search(r"(\d+)\s*GB", product)
    return None if match is None else float(match[1])


def placed(way: Acquisition, cluster: Cluster, have: Have | None) -> Cluster:
    """``cluster`` as the way has it: in the configuration that is sold, and in the machine one has (its memory beside the
    accelerators, its PCIe where that is slower)."""
    if way.purchase is None:
        return cluster
    system, device = cluster.system, way.accelerator
    if device.unified_memory:
        if device == cluster.accelerator:
            return cluster
        return replace(cluster, system=replace(system, accelerator=device, host_memory_bytes=device.memory_bytes * system.count))
    if have is None:
        return cluster
    if have.memory_bytes is not None:
        system = replace(system, host_memory_bytes=have.memory_bytes)
    if have.pcie_bytes_per_s is not None and device.pcie_bytes_per_s is not None:
        slower = min(have.pcie_bytes_per_s, device.pcie_bytes_per_s)
        if slower < device.pcie_bytes_per_s:
            link = min(system.link_bytes_per_s, slower) if system.link_kind == "pcie" else system.link_bytes_per_s
            system = replace(system, accelerator=replace(device, pcie_bytes_per_s=slower), link_bytes_per_s=link)
    return replace(cluster, system=system)


def not_in_limits(way: Acquisition, n: int, limits: Limits) -> tuple[str, str] | None:
    """(code, why) when ``n`` of it break a limit on watts or on the machine; None when they do not."""
    accelerator = way.accelerator
    if limits.have is not None and way.how == "buy":
        why = limits.have.refuses(accelerator, board_of(accelerator.id), n)
        if why is not None:
            return "machine", why
    if limits.max_watts is not None and way.how == "buy":
        if accelerator.tdp_w is None:
            return "watts", "its power is not published"
        if n * accelerator.tdp_w > limits.max_watts:
            return "watts", f"{n * accelerator.tdp_w:,.0f} W, {n * accelerator.tdp_w - limits.max_watts:,.0f} W too many"
    return None


def _unobtainable(accelerator: Accelerator, limits: Limits) -> str:
    board = board_of(accelerator.id)
    reason = (
        ""
        if board is None
        else {
            "used-only": "no longer sold new",
            "cloud-only": "rented only, never sold",
            "system-only": "sold only inside a machine",
            "announced": "announced, not out yet",
            "retail": "sold, but no price is known",
        }.get(board.obtainable, "")
    )
    missing = "no price" if set(limits.ways) != {"rent"} else "no rental price"
    return reason + f"; {missing} known" if reason and "price" not in reason else reason or f"{missing} known"


def _still_sold(accelerator_id: str) -> bool:
    board = board_of(accelerator_id)
    return board is not None and board.obtainable in ("retail", "system-only")


def _only_once(accelerator_id: str, condition: str, purchase: PurchaseRange, today: datetime.date) -> bool:
    """A price at launch of what is no longer, or never was, sold as a part; a second-hand module, whose baseboard and server
    are not traded with it."""
    board = board_of(accelerator_id)
    if board is None:
        return False
    if condition == "used":
        return board.category == "module"
    if board.obtainable == "used-only":
        return purchase.as_of is None or (today - purchase.as_of).days > LAUNCH_DAYS
    return board.obtainable in ("cloud-only", "system-only", "announced") and purchase.as_of is None


@lru_cache(4096)
def _rented(today: datetime.date) -> frozenset[str]:
    return frozenset(o.accelerator_id for o in book(today))


@lru_cache(4096)
def _rent(accelerator_id: str, today: datetime.date) -> Price | None:
    if accelerator_id not in _rented(today):
        return None
    cluster = cluster_of(accelerator_id, 1)
    return None if cluster is None else price_of(cluster, today)


@cache
def _purchase(accelerator_id: str, condition: str) -> PurchaseRange | None:
    try:
        return typical_purchase_usd(accelerator_id, "used" if condition == "used" else "new")
    except UnpredictableError:
        return None
