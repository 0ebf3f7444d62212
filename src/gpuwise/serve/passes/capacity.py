"""Capacity of passes: items a second within targets, on how many accelerators, at what price.

A request has no tokens, so that its time to the first one is its whole time. Checked against published images a second in
``tests/serve/passes``.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass

from gpuwise.errors import InputError
from gpuwise.facts.hardware.systems import Cluster
from gpuwise.facts.models.architecture import Architecture
from gpuwise.facts.models.convnets import ConvNet
from gpuwise.facts.models.denoisers import Denoiser
from gpuwise.facts.software.speech_programs import find_speech_program
from gpuwise.money.cost import Price, price_of
from gpuwise.money.power import cluster_power
from gpuwise.predict.estimate import Estimate
from gpuwise.serve.load.targets import Target
from gpuwise.serve.passes.batches import AT_ONCE, Batcher, BatchTimes, PassPoint, fewest, largest
from gpuwise.serve.passes.encoders import Encoders
from gpuwise.serve.passes.images import Images, as_asked, made_words
from gpuwise.serve.passes.kind import AS_USUAL, USUAL_TARGET, How, Model, PassKind
from gpuwise.serve.passes.speech import Speech, reads_sound
from gpuwise.serve.passes.vision import Vision, server_adds_s
from gpuwise.units import HOUR_S, MEGA

KINDS: tuple[PassKind, ...] = (Images(), Vision(), Speech(), Encoders())
"""The first that takes a model counts."""
WORKLOADS = frozenset(workload for kind in KINDS for workload in kind.workloads)


def kind_of(model: Model, workload: str) -> PassKind:
    """The kind of pass for ``model`` under ``workload``."""
    return next(kind for kind in KINDS if kind.takes(model, workload))


def usual_workload(model: Model) -> str | None:
    """Default workload of a model; None for one that writes text."""
    if isinstance(model, Denoiser):
        return "video" if model.frames else "image"
    if not isinstance(model, Architecture) or model.kind == "vision":
        return "vision"
    return "speech" if reads_sound(model) else "embed" if model.kind == "encoder" else None


def usual_target(workload: str) -> Target:
    """Default target."""
    return next((kind.target(workload) for kind in KINDS if workload in kind.workloads), USUAL_TARGET)


@dataclass(frozen=True, slots=True)
class PassQuestion:
    """``requests_per_s`` None: the maximum of the accelerators; ``tokens`` per item None: the default. Without ``targets`` the
    accelerators are kept busy. Raises InputError for token targets, since nothing is generated token by token."""

    workload: str
    targets: tuple[Target, ...]
    today: datetime.date
    requests_per_s: float | None = None
    tokens: int | None = None
    batcher: Batcher = AT_ONCE
    how: How = AS_USUAL

    def __post_init__(self) -> None:
        for target in self.targets:
            if target.metric in ("itl", "tpot"):
                raise InputError(
                    f"{target.key} is for generated tokens, and this workload generates none",
                    hint="for example --slo e2e_p95=100ms",
                )


@dataclass(frozen=True, slots=True)
class PassCapacity:
    """``point`` is at the largest rate of one accelerator, None where not even one request alone keeps the targets."""

    arch: Model
    cluster: Cluster
    asked: PassQuestion
    items: str
    """``passages``, ``pairs``, ``images``, ``videos`` or ``windows`` of sound."""
    tokens: int
    """Tokens per item; for a sound window those of the transcript; 0 for generated images and videos and for CNNs."""
    times: BatchTimes
    point: PassPoint | None
    each: Estimate | None
    rate_per_s: float
    accelerators: int
    price: Price | None
    wh_per_million: float | None

    @property
    def alone_s(self) -> float:
        """Seconds of an item without others."""
        return self.times.of(1)

    @property
    def sound_s(self) -> float | None:
        """Seconds of a recording in an item; None for items that are not sound."""
        return find_speech_program(self.asked.how.program).advance_s if self.items == "windows" else None

    @property
    def pixels(self) -> int | None:
        """A side of the images that are read; None where none are."""
        if self.items != "images" or isinstance(self.arch, Denoiser):
            return None
        if isinstance(self.arch, ConvNet):
            return self.arch.pixels
        return None if self.arch.patches is None else self.arch.patches.image_size

    @property
    def alone_over_http_s(self) -> float | None:
        """Seconds of one image sent as a tensor to a server without other requests; None if the model reads no images."""
        return None if self.pixels is None else self.alone_s + server_adds_s(self.cluster.accelerator, self.pixels, 1)

    @property
    def usd_per_hour(self) -> float | None:
        """US dollars an hour of all accelerators."""
        return None if self.price is None else self.price.expected * self.accelerators

    @property
    def usd_per_million(self) -> float | None:
        """US dollars of a million items."""
        return None if self.usd_per_hour is None else self.usd_per_hour / (self.rate_per_s * HOUR_S / MEGA)

    def affordable(self, budget_usd_per_hour: float | None) -> bool:
        """Whether the targets are met within the budget."""
        usd = self.usd_per_hour
        return self.point is not None and (budget_usd_per_hour is None or (usd is not None and usd <= budget_usd_per_hour))

    def document(self) -> dict[str, object]:
        """JSON values."""
        point = self.point
        return {
            "model": self.arch.id,
            "accelerator": self.cluster.accelerator.id,
            "items": self.items,
            "tokens_each": self.tokens,
            "targets": [{"target": t.key, "limit_s": t.limit_s} for t in self.asked.targets],
            "alone_s": self.alone_s,
            "alone_over_http_s": self.alone_over_http_s,
            "items_per_s_of_each": None if self.each is None else self.each.expected,
            "low": None if self.each is None else self.each.low,
            "high": None if self.each is None else self.each.high,
            "full_items_per_s": self.times.full_per_s,
            "sound_s_each": self.sound_s,
            "program": self.asked.how.program,
            "made": made_words(as_asked(self.arch, self.asked.how)) if isinstance(self.arch, Denoiser) else None,
            "latency_s": None if point is None else {f"p{q:g}": point.latency(q) for q in (50.0, 95.0, 99.0)},
            "mean_batch": None if point is None else point.mean_batch,
            "accelerators": self.accelerators,
            "items_per_s": self.rate_per_s,
            "usd_per_hour": self.usd_per_hour,
            "usd_per_million": self.usd_per_million,
            "wh_per_million": self.wh_per_million,
            "basis": self.times.basis,
        }


def capacity_of_passes(
    arch: Model, cluster: Cluster, asked: PassQuestion, usd_per_hour: float | None = None, provider: str | None = None
) -> PassCapacity:
    """Items per second of ``arch`` within the targets, and the number of accelerators like ``cluster``'s. Raises InputError
    for a model of another kind or one that does not fit, UnpredictableError without a rate."""
    kind, targets, batcher, rate = kind_of(arch, asked.workload), asked.targets, asked.batcher, asked.requests_per_s
    items, length = kind.shape(arch, asked.workload, asked.tokens)
    kind.check(asked.how, asked.workload)
    times = kind.times(arch, cluster, length, asked.how)
    if batcher.most is not None:
        times = times.up_to(batcher.most)
    point = largest(times, targets, batcher)
    if point is None:
        return PassCapacity(arch, cluster, asked, items, length, times, None, None, rate or 0.0, 0, None, None)
    each = Estimate.from_log_sigma(point.rate_per_s, times.log_sigma, times.basis)
    count = cluster.n_accelerators if rate is None else fewest(times, targets, rate, each.expected, batcher)
    rate = each.expected * count if rate is None else rate
    whole = Cluster(cluster.system, count)
    price = price_of(whole, asked.today, usd_per_hour=usd_per_hour, provider=provider)
    power = cluster_power(whole, workload="serving")
    wh = None if power is None else power.total_w.expected / (rate * HOUR_S / MEGA)
    return PassCapacity(arch, cluster, asked, items, length, times, point, each, rate, count, price, wh)
