"""What one way does for a job: time, money, energy, memory, and what had to be changed for it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gpuwise.facts.hardware.boards import board_of
from gpuwise.facts.hardware.systems import Cluster
from gpuwise.facts.offers.availability import rented_together
from gpuwise.facts.software.support import Support, support_of
from gpuwise.pick.candidates import Acquisition, software_for
from gpuwise.pick.owning import Bill
from gpuwise.plan.goal import RISK
from gpuwise.predict.estimate import Estimate
from gpuwise.units import DAY_S, GIB, GIGA, HOUR_S, PETA

UNMEASURED = ("specified", "extrapolated")
"""Bases of a prediction for which neither the device nor its family was measured: taken at its worse end."""
SAME, CHANGED = 0, 1
"""Tiers: the job as asked; the job with a change that alters its result (4-bit weights, lighter optimizer states)."""


FRICTION = 1.5
"""Speedup over CUDA on an x86 host that any other platform needs to rank before it: the value of the software ecosystem
(kernels, wheels and examples appear for CUDA first; ``rocm-radeon-2026``). Fitted like :data:`SEVERAL`, on every other of 165
questions: 61 agreed at 1.2, 63 at 1.5, 64 at 1.6, 63 at 2; of the others 65, 67, 67 and 66."""
WIDER_BONUS = 0.85
"""Factor on the time if weights of twice the width would fit as well: better answers, or room for a longer context."""
LEVELS = 16
"""How many values :func:`level` takes."""
SMALL_BYTES = 8 * GIB
"""Memory of a card that guides to language models and images advise against buying (``budget-llm-gpus-2026``): the next model
or a longer prompt outgrows it."""
OUTGROWN = ("infer", "finetune", "image", "video", "learn")
"""Purposes they advise on. Encoders and vision models of a known size keep their size."""


def level(tier: int, way: Acquisition, n: int, purpose: str) -> int:
    """0: as requested, with full software support and an offer; +1 for a count without a known offer, or an outdated price; +2
    on a :func:`small` card; +4 with a change to the job; +8 with partial or unknown software support. Software comes first:
    4-bit weights on CUDA cards are common, 8-bit ones on cards whose server cannot split a model are a project."""
    full = software_for(way.accelerator, purpose).level == "full" and not (n > 1 and _radeon(way))
    return 8 * (not full) + 4 * tier + 2 * small(way, purpose) + (way.stale or not on_offer(way, n))


def small(way: Acquisition, purpose: str) -> bool:
    """Whether it is a purchase with no more dedicated memory than :data:`SMALL_BYTES`, for a purpose that outgrows it."""
    device = way.accelerator
    is_owned = way.purchase is not None and not device.unified_memory
    return is_owned and purpose in OUTGROWN and device.memory_bytes <= SMALL_BYTES


SEVERAL = 1.5
"""The same factor for each doubling of cards without a dedicated link, bought or rented, over which software must split the
work: one card on which it fits is preferred to several smaller ones. Independent copies that share finite work also need
starting, monitoring and distribution. Fitted on every other of the first 150 questions (``tests/pick``): 56 of 75 agreed at
1.15 for rented ones, 61 from 1.5 on; of the others 53 either way. Bought ones are indifferent between 1.35 and 1.5."""
IN_HOST = 1.3
"""The same for optimizer or activations in host memory: a rented card comes with little of it, and with few lanes to it."""
TIGHT_SHARE, TIGHT = 0.85, 1.25
"""A device filled beyond this share leaves no room for a longer prompt or the next model: it counts as that much slower."""


def friction(way: Acquisition, n: int = 1) -> float:
    """Factor by which ``n`` of it are harder to obtain and use than one card that runs CUDA on an x86 host: at least 1."""
    cuda = support_of(way.accelerator).runtime == "cuda" and way.accelerator.form != "Superchip" and not _arm_host(way)
    board = board_of(way.accelerator.id)
    several = SEVERAL ** math.log2(n) if board is not None and board.installable else 1.0
    return (1.0 if cuda else FRICTION) * several


def _radeon(way: Acquisition) -> bool:
    """A Radeon card: several of them in one job are not served as one is (``radeon-training-2026``)."""
    return way.accelerator.vendor == "AMD" and way.accelerator.form == "PCIe"


def _arm_host(way: Acquisition) -> bool:
    """NVIDIA's chips with Arm cores of their own: many wheels are built for x86 alone."""
    return way.accelerator.vendor == "NVIDIA" and way.accelerator.unified_memory


def on_offer(way: Acquisition, n: int) -> bool:
    """Whether ``n`` of it can be had: bought, or seen for rent together."""
    return way.rent is None or rented_together(way.accelerator, n)


CLUSTER_LEAST_S = DAY_S
"""Several systems with a network between them are rented by the day: EC2 Capacity Blocks for ML take at least one day
(github.com/dstackai/dstack/issues/1155)."""


def too_brief(way: Acquisition, cluster: Cluster, time_s: float) -> bool:
    """Whether ``cluster`` would be rented for less than :data:`CLUSTER_LEAST_S`."""
    return way.rent is not None and cluster.n_systems > 1 and time_s < CLUSTER_LEAST_S


@dataclass(frozen=True, slots=True)
class Outcome:
    """One acquisition, at its best count, doing the job. ``time_s`` is the calendar time of the whole job; for a load, the
    time one user waits for the average token (lower is better for both)."""

    way: Acquisition
    cluster: Cluster
    time_s: Estimate
    tokens_per_s: Estimate
    """Trained on a second, or written a second for one user."""
    capacity_tokens_per_s: float
    """All tokens worked on a second when busy: what energy and money per work are made with."""
    bill: Bill
    flop: float
    """Useful FLOP of the job in the time that is paid for."""
    flop_per_s: float
    memory_bytes: float
    device_bytes: float
    changes: tuple[str, ...]
    """Remedies without which it does not fit, fewest first."""
    tier: int
    purpose: str
    layout: str
    support: Support
    notes: tuple[str, ...] = ()
    fit_probability: float | None = None
    """Probability that training fits, from the spread of the memory prediction; None for serving."""
    device_high: float | None = None
    """Training: pessimistic end of the device uncertainty relative to the median; None: the interval's own."""
    interrupted: bool = False
    """A notebook's sessions end before the work does, and none is promised."""
    wider: bool = False
    """Weights of twice the width would fit as well."""
    tight: bool = False
    """The users' cache, or the estimated activations of a video, fill the device beyond :data:`TIGHT_SHARE`."""
    ends: bool = True
    """The work ends, after ``time_s``; False of a load."""
    split: int = 0
    """Accelerators that one replica of a served model is split over; 0: the job is one on all of them."""

    @property
    def level(self) -> int:
        """Ranking level independent of the objective: done as requested, with software support, a known offer for the count
        and period, and memory that suffices with the probability required of a plan."""
        plain = level(self.tier, self.way, self.split or self.n, self.purpose)
        return plain + ((self.interrupted or self.unsure or self.brief) and plain % 2 == 0)

    @property
    def behind_for(self) -> tuple[str, ...]:
        """What its :attr:`level` counts, the gravest first."""
        n = self.split or self.n
        counted = level(self.tier, self.way, n, self.purpose)
        reasons = {
            "software": counted >= 8,
            "change": self.tier != SAME,
            "small": small(self.way, self.purpose),
            "old price": self.way.stale,
            "no offer": not on_offer(self.way, n),
            "sessions": self.interrupted,
            "memory": self.unsure,
            "brief": self.brief,
        }
        return tuple(name for name, holds in reasons.items() if holds)

    @property
    def unsure(self) -> bool:
        """Whether training fits with less than the probability required of a plan."""
        return self.fit_probability is not None and self.fit_probability < 1 - RISK

    @property
    def brief(self) -> bool:
        """Whether several systems would be rented together for less than anybody rents them out."""
        return self.fit_probability is not None and too_brief(self.way, self.cluster, self.time_s.expected)

    @property
    def n(self) -> int:
        return self.cluster.n_accelerators

    @property
    def cost_usd(self) -> Estimate:
        return self.bill.cost_usd

    @property
    def usd_per_pflop(self) -> float:
        """Dollars for a useful PFLOP, hardware busy all the time; a purchase is spread over its life less resale."""
        return self.bill.usd_per_hour / (self.flop_per_s * HOUR_S / PETA)

    @property
    def usd_per_gb(self) -> float:
        """Dollars for a GB of accelerator memory: of the price when bought, of an hour when rented."""
        return self.unit_price_usd / (self.cluster.accelerator.memory_bytes / GIGA)

    @property
    def usd_per_gb_per_s(self) -> float:
        """The same for a GB/s of memory bandwidth."""
        return self.unit_price_usd / (self.cluster.accelerator.memory_bandwidth_bytes_per_s / GIGA)

    @property
    def unit_price_usd(self) -> float:
        """Dollars for one: to buy it, or for an hour of it."""
        if self.way.purchase is not None:
            return self.way.purchase.median
        if self.way.rent is not None:
            return self.way.rent.expected
        return self.bill.usd_per_hour / self.n

    @property
    def kwh(self) -> float | None:
        """Electricity of the whole job; None with unknown power."""
        return None if self.bill.energy is None else self.bill.energy.kwh.expected

    @property
    def board_w(self) -> float | None:
        """Design power of the accelerators together."""
        tdp = self.cluster.accelerator.tdp_w
        return None if tdp is None else tdp * self.n

    @property
    def tokens_per_joule(self) -> float | None:
        """Tokens worked on for a joule at the meter."""
        energy = self.bill.energy
        return None if energy is None else self.capacity_tokens_per_s / energy.power_w

    @property
    def headroom_bytes(self) -> float:
        """Free bytes on the fullest device; negative if it does not fit."""
        return self.device_bytes - self.memory_bytes

    @property
    def obtainable(self) -> str:
        """``retail``, ``used-only``, ... of the board catalogue."""
        board = board_of(self.cluster.accelerator.id)
        return "unknown" if board is None else board.obtainable

    def value(self, objective: str) -> float:
        """Value of the objective to minimise."""
        if objective == "time":
            return self.time_s.expected
        if objective == "value":
            return self.usd_per_pflop
        if objective == "energy":
            return self.kwh if self.kwh is not None else float("inf")
        return self.cost_usd.expected

    def at_worst(self, objective: str) -> float:
        """Ranking value: the upper end of :meth:`interval`, so that a guess from a specification must be that much better than
        a measured card to rank before it, times the factors for software and headroom. Notebook credits count at their price."""
        high, late = self.interval(objective)[1], self.time_s.high / self.time_s.expected
        if self.device_high is not None and (self.way.purchase is None or objective != "cost"):
            high, late = high * self.device_high / late, self.device_high
        if objective in ("cost", "value"):
            high = max(high * self.way.market, self.bill.credits_usd * late if objective == "cost" else 0.0)
        if objective == "cost" and not self.ends and self.way.rent is not None and self.time_s.basis in UNMEASURED:
            high *= self.time_s.high / self.time_s.expected  # as many more would have to be rented
        if objective == "energy":
            return high
        room = WIDER_BONUS if self.wider else TIGHT if self.tight else 1.0
        in_host = IN_HOST if any("host memory" in change for change in self.changes) else 1.0
        together = self.n if self.ends else self.split or self.n
        return high * friction(self.way, together) * room * in_host

    def interval(self, objective: str) -> tuple[float, float]:
        """The 80 % interval of :meth:`value`: that of the time for everything but money."""
        value = self.value(objective)
        source = self.cost_usd if objective == "cost" else self.time_s
        if not source.expected:
            return value, value
        return value * source.low / source.expected, value * source.high / source.expected
