"""Cost of owning GPUs per delivered hour.

Owning ``N`` GPUs in ``n`` servers for ``T`` months at capital cost ``r`` costs, as present value::

    hardware    [N gpu_usd spread server_factor + n host_usd] (1 + network + storage)
    resale      -[N gpu_usd spread server_factor + n host_usd] keep^(T/12) (p_T / p_0)^follows (1+r)^-(T/12)
    power       sum_m d_m usd_per_kwh [kw_busy busy_m + kw_idle (730 N - busy_m)]
    colocation  sum_m d_m n server_kw usd_per_kw_month
    staff, support, running    sum_m d_m (...)
    repairs     sum over months out of warranty of d_m failures/12 N gpu_usd spread
    kw_busy = (tdp power_share + host_w) pue / 1000,    kw_idle = (tdp idle_share + host_w) pue / 1000, none of a PC at home
    d_m = (1+r)^-(m/12)

``p_T / p_0`` is the change of rental prices: hardware that rents for more sells for more. Tax is excluded. Without spread this
is the usual annual form, ``[C0 - R (1+r)^-T] CRF(r,T) / (8760 u a) + ...``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace

import numpy as np

from gpuwise.errors import InputError, UnpredictableError
from gpuwise.facts.grid import PowerPrice
from gpuwise.facts.hardware.boards import board_of
from gpuwise.facts.hardware.systems import Cluster
from gpuwise.facts.offers.purchases import (
    RECENT_DAYS,
    Condition,
    Purchase,
    month_or_year,
    purchases_for,
    system_purchases,
    typical_purchase_usd,
)
from gpuwise.facts.operations import find_site, power_share
from gpuwise.money.power import host_power_w, is_personal
from gpuwise.money.rent_or_own.demand import MONTHS_PER_YEAR
from gpuwise.money.rent_or_own.uncertain_inputs import Array, UncertainInput, economics, from_quantity, number

Values = Mapping[str, Array]
"""The value of each uncertain input by name, ``(S,)`` or a scalar array."""
CAPITAL_PER_YEAR = 0.08
"""Cost of capital: a customary rate; replace it by your own."""
WARRANTY_MONTHS = 36
"""Failed GPUs are replaced by the vendor this long: the usual term of data-centre and consumer cards alike."""
_KILO = 1000.0
_MOST_USD = 1e9


YEARS_DIFFER = 1e-3
"""Share of a demand for which no further GPU is bought: around the clock is 8,760 hours a year or 8,766."""


def whole_gpus(gpus: float) -> int:
    """Number of GPUs to buy for a demand of ``gpus`` at once: at least one."""
    return max(1, math.ceil(gpus * (1 - YEARS_DIFFER)))


@dataclass(frozen=True, slots=True)
class Ownership:
    """GPUs of one kind, bought. Its uncertain inputs have a spread; :meth:`uncertain_inputs` lists them."""

    gpus_per_server: int
    gpu_usd: float
    """Price of one GPU, or its share of a whole machine when ``server_factor`` is one."""
    gpu_spread: UncertainInput
    server_factor: UncertainInput
    host_usd: UncertainInput
    network_share: UncertainInput
    storage_share: UncertainInput
    resale_keep: UncertainInput
    resale_follows: UncertainInput
    availability: UncertainInput
    fill: UncertainInput
    failures: UncertainInput
    support_share: UncertainInput
    colocation: UncertainInput
    staff: UncertainInput
    power_share: UncertainInput
    idle_share: UncertainInput
    host_w: UncertainInput
    """Power of the rest of a server per GPU; the same under load and idle."""
    pue: UncertainInput
    usd_per_kwh: UncertainInput
    tdp_w: float | None
    """Design power of one GPU; None excludes power, and the answer notes it."""
    server_kw: float
    """Power billed by colocation: the maximum of one server."""
    capital_per_year: float = CAPITAL_PER_YEAR
    warranty_months: int = WARRANTY_MONTHS
    running_usd_per_month: float = 0.0
    """A person's own sum for everything that runs, in place of colocation, staff, support and power: for
    ``owned_gpus``, and in proportion for another number."""
    owned_gpus: int | None = None
    """Number to buy; None: enough for the peak."""
    price_words: str = ""
    """Source of ``gpu_usd``."""
    off_when_idle: bool = False
    """A PC at home is switched off when it has no work; a server is not."""
    counts_power: bool = True
    """Whether electricity is part of the sum at all."""

    def __post_init__(self) -> None:
        for what, value in (("the price of a GPU", self.gpu_usd), ("the running cost a month", self.running_usd_per_month)):
            if not (math.isfinite(value) and 0 <= value <= _MOST_USD):
                raise InputError(f"{what}: {value:g} cannot be", hint="give US dollars, for example 10k")
        if self.gpu_usd == 0:
            raise InputError("the price of a GPU is zero", hint="give its price, for example --buy-price 10k")
        if not 0 <= self.capital_per_year <= 1:
            raise InputError(f"capital at {self.capital_per_year:.0%} a year cannot be", hint="for example 8%")
        if self.owned_gpus is not None and not 1 <= self.owned_gpus <= 10_000_000:
            raise InputError(f"{self.owned_gpus} GPUs cannot be owned", hint="at least 1")

    def uncertain_inputs(self) -> Iterator[UncertainInput]:
        """Every uncertain input, in the order of the fields."""
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, UncertainInput):
                yield value

    def with_input(self, field: str, uncertain_input: UncertainInput) -> Ownership:
        """A copy with one uncertain input replaced."""
        return replace(self, **{field: uncertain_input})

    def servers(self, gpus: int) -> int:
        """Servers that hold ``gpus`` GPUs."""
        return -(-gpus // self.gpus_per_server)

    def usable_share(self, x: Values) -> Array:
        """Share of a month's hours that an owned GPU can work."""
        return x["availability"] * x["fill"]

    @property
    def usable(self) -> float:
        """Expected share of a month's hours that an owned GPU can work."""
        return self.availability.expected * self.fill.expected

    def for_peak(self, peak_gpus: float) -> int:
        """GPUs that serve ``peak_gpus`` at once, in whole servers, with the expected availability and fill."""
        return self.servers(whole_gpus(peak_gpus / self.usable)) * self.gpus_per_server

    def needed(self, peak_gpus: float) -> int:
        """GPUs to buy to own everything: what was given, else what the peak needs."""
        return self.for_peak(peak_gpus) if self.owned_gpus is None else self.owned_gpus

    def machine_usd(self, gpus: int, x: Values) -> Array:
        """Price of the servers with their GPUs: what can be sold again."""
        chips = gpus * self.gpu_usd * x["gpu_spread"] * x["server_factor"]
        return chips + self.servers(gpus) * x["host_usd"]

    def hardware_usd(self, gpus: int, x: Values) -> Array:
        """Paid at the start: servers, network, storage."""
        network = x["network_share"] if self.servers(gpus) > 1 else 0.0
        return self.machine_usd(gpus, x) * (1.0 + network + x["storage_share"])

    def resale_usd(self, gpus: int, x: Values, months: float, price_move: Array) -> Array:
        """Resale value of the servers after ``months``, undiscounted; ``price_move`` is ``p_T / p_0``."""
        value_share = x["resale_keep"] ** (months / MONTHS_PER_YEAR) * price_move ** x["resale_follows"]
        return self.machine_usd(gpus, x) * np.minimum(value_share, 1.0)

    def kw_per_gpu(self, x: Values, state: str = "power_share") -> Array:
        """At the meter, of one GPU with its share of server and cooling: busy, or idle for ``idle_share``."""
        if self.off_when_idle and state == "idle_share":
            return 0.0 * x["host_w"]
        return ((self.tdp_w or 0.0) * x[state] + x["host_w"]) * x["pue"] / _KILO

    def fixed_usd(self, gpus: int, x: Values, discounts: Array) -> dict[str, Array]:
        """Present value of everything that does not depend on the work done, but hardware and resale.

        ``discounts`` is ``d_m``, ``(M,)``.
        """
        total = float(discounts.sum())
        late = float(discounts[self.warranty_months :].sum())
        n, chips = self.servers(gpus), gpus * self.gpu_usd * x["gpu_spread"]
        return {
            "colocation": n * self.server_kw * x["colocation"] * total,
            "staff": n * x["staff"] * total,
            "support": self.machine_usd(gpus, x) * x["support_share"] / MONTHS_PER_YEAR * total,
            "repairs": chips * x["failures"] / MONTHS_PER_YEAR * late,
            "running": np.asarray(self.running_usd_per_month * gpus / (self.owned_gpus or gpus) * total),
        }


def catalogue_ownership(
    cluster: Cluster,
    *,
    condition: Condition = "new",
    gpu_usd: float | None = None,
    power: PowerPrice | None = None,
) -> Ownership:
    """Ownership of this kind of GPU from the shipped facts: price, server, site.

    A personal machine is in an office: priced with its host, no colocation, support contract or network. A consumer card's PC
    is at home: no paid upkeep, and switched off without work. Raises UnpredictableError without a known or given price.
    """
    accelerator, system, inputs = cluster.accelerator, cluster.system, economics()
    office, consumer_box = is_personal(cluster), system.id == "consumer-box"
    none, in_machine = _zero, False
    spread = number("gpu_spread", 1.0, "x", "GPU price over the usual one")
    words = "given"
    if gpu_usd is None:
        gpu_usd, spread, words, in_machine = _price(cluster, condition)
    kwh = inputs["usd_per_kwh"]
    if power is not None:
        kwh = replace(kwh.with_range(power.usd_per_kwh), source=power.source_key)
    # cards share a box in any number, boards come in whole groups of eight
    count = min(cluster.n_accelerators, system.count) if office or accelerator.form == "PCIe" else system.count
    host = host_power_w(Cluster(system, count)).scaled(1.0 / count)
    host_w = UncertainInput("host_w", host.low, host.expected, host.high, "W", "rest of the server, by GPU", "latif-h100-node")
    if consumer_box:
        pc = inputs["pc_w"]
        host_w = replace(pc, name="host_w", low=pc.low / count, expected=pc.expected / count, high=pc.high / count)
    draws = system.max_power_w or count * ((accelerator.tdp_w or 0.0) + host.high)
    return Ownership(
        gpus_per_server=count,
        gpu_usd=gpu_usd,
        gpu_spread=spread,
        server_factor=_one("server_factor") if office or in_machine else inputs["server_factor"],
        host_usd=inputs["host_usd"] if consumer_box else none("host_usd"),
        network_share=none("network_share") if office else inputs["network_share"],
        storage_share=none("storage_share") if office else inputs["storage_share"],
        resale_keep=_with_name(inputs["resale_keep_consumer" if office else "resale_keep"], "resale_keep"),
        resale_follows=_with_name(inputs["resale_follows_rent"], "resale_follows"),
        availability=inputs["availability"],
        fill=inputs["fill"],
        failures=inputs["failures"],
        support_share=none("support_share") if office else inputs["support_share"],
        colocation=none("colocation") if office else inputs["colocation"],
        staff=none("staff") if consumer_box else _with_name(inputs["staff_workstation" if office else "staff_server"], "staff"),
        power_share=from_quantity("power_share", power_share("serving", accelerator.family), "average power of a busy GPU"),
        idle_share=from_quantity("idle_share", power_share("idle", accelerator.family), "power of an idle GPU"),
        host_w=host_w,
        usd_per_kwh=kwh,
        tdp_w=accelerator.tdp_w,
        pue=from_quantity("pue", find_site("home" if office else "colocation").pue, "cooling and distribution (PUE)"),
        server_kw=draws / _KILO,
        price_words=words,
        off_when_idle=consumer_box,
    )


def simple_ownership(gpu_usd: float, gpus: int, running_usd_per_month: float, price_words: str = "given") -> Ownership:
    """The sum people do on the back of an envelope: GPUs at their price, one figure for everything that
    runs; nothing else is counted and nothing is uncertain."""
    return Ownership(
        gpus_per_server=1,
        gpu_usd=gpu_usd,
        gpu_spread=_one("gpu_spread"),
        server_factor=_one("server_factor"),
        host_usd=_zero("host_usd"),
        network_share=_zero("network_share"),
        storage_share=_zero("storage_share"),
        resale_keep=_zero("resale_keep"),
        resale_follows=_zero("resale_follows"),
        availability=_one("availability"),
        fill=_one("fill"),
        failures=_zero("failures"),
        support_share=_zero("support_share"),
        colocation=_zero("colocation"),
        staff=_zero("staff"),
        power_share=_zero("power_share"),
        idle_share=_zero("idle_share"),
        host_w=_zero("host_w"),
        pue=_one("pue"),
        usd_per_kwh=_zero("usd_per_kwh"),
        tdp_w=None,
        server_kw=0.0,
        capital_per_year=0.0,
        running_usd_per_month=running_usd_per_month,
        owned_gpus=gpus,
        price_words=price_words,
        counts_power=False,
    )


def _price(cluster: Cluster, condition: Condition) -> tuple[float, UncertainInput, str, bool]:
    """US dollars per GPU, its upper price, its source, and whether it includes the whole machine.

    The price of the GPU alone; for one sold only inside machines its share of the machine.
    """
    accelerator = cluster.accelerator
    alone = purchases_for(accelerator.id, condition)
    machine = None if alone else _machine(cluster, condition)
    if machine is not None:
        words = f"{machine.product or cluster.system.name}, {machine.kind} price of {month_or_year(machine.as_of)}"
        return (
            machine.usd_per_accelerator,
            _with_name(economics()["gpu_price_spread"], "gpu_spread"),
            words,
            "no host" not in machine.product,
        )
    try:
        price = typical_purchase_usd(accelerator.id, condition)
    except UnpredictableError as error:
        raise UnpredictableError(error.reason, error.message, hint="give the price of one GPU with --buy-price 10k") from None
    dated = "an undated list price" if price.as_of is None else _observations_text(price.observations, month_or_year(price.as_of))
    usual = economics()["gpu_price_spread"]
    low, high = min(price.low / price.median, usual.low), max(price.high / price.median, usual.high)
    spread = replace(usual, name="gpu_spread", low=low, high=high, source="offers" if price.observations > 1 else usual.source)
    return price.median, spread, f"{condition}, {dated}", False


def only_used(cluster: Cluster) -> bool:
    """Whether it is a consumer's card that no shop sells any more, with a second-hand price."""
    board = board_of(cluster.accelerator.id)
    retired = board is not None and board.obtainable == "used-only" and cluster.system.id == "consumer-box"
    return retired and bool(purchases_for(cluster.accelerator.id, "used"))


def _observations_text(n: int, month: str) -> str:
    return f"one price of {month}" if n == 1 else f"{n} prices since {month}"


def _machine(cluster: Cluster, condition: Condition) -> Purchase | None:
    """The middle one of the newest prices of whole machines like the cluster's; None when unknown."""
    sizes = (cluster.system.count, cluster.system.domain_size)  # a rack is several hosts
    prices = [p for p in system_purchases(cluster.accelerator.id, condition) if p.count in sizes]
    if not prices:
        return None
    newest = max(p.as_of for p in prices)
    recent = sorted((p for p in prices if (newest - p.as_of).days <= RECENT_DAYS), key=lambda p: p.usd_per_accelerator)
    return recent[len(recent) // 2]


def _with_name(uncertain_input: UncertainInput, name: str) -> UncertainInput:
    return replace(uncertain_input, name=name)


def _one(name: str) -> UncertainInput:
    return number(name, 1.0, "x", name.replace("_", " "))


def _zero(name: str) -> UncertainInput:
    return number(name, 0.0, "", name.replace("_", " "))
