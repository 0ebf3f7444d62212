"""Passes served in batches: encoders, vision transformers, convolutional networks, makers of images, writers of speech.

A request waits until the device is free; then all that wait, at most ``most``, run as one batch of ``t(B)`` seconds
(:mod:`gpuwise.serve.iteration`, the same kernels as a prompt's), and are answered together:

    latency = wait + t(B) + overhead of a request
    full rate = max over B of B / t(B)

A batcher may hold a batch back until it is full or its oldest request has waited ``delay`` (dynamic batching with a queue delay,
as Triton's ``max_queue_delay_microseconds``), or until it is full whatever it takes (static). Images are made one after the other
(:mod:`gpuwise.pick.forward`): a batch of them takes as many times longer. Networks of convolutions run as a compiler for
inference leaves them (:mod:`gpuwise.workload.convnet`), their kernels back to back. A batch of speech is written down
together (:mod:`gpuwise.serve.speech`).

Decoders that embed (Qwen3 Embedding) read a passage as they would a prompt. The largest rate keeps the targets under Poisson
arrivals; a request has no tokens, so that its time to the first one is its whole
time. Several accelerators share one queue. Checked against published images a second in ``tests/pick/test_forward_load.py``.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from heapq import heapreplace

import numpy as np
from numpy.typing import NDArray

from gpuwise.errors import InputError, UnpredictableError
from gpuwise.facts.hardware.systems import Cluster, default_system, with_count
from gpuwise.facts.models.architecture import Architecture
from gpuwise.facts.models.convnets import ConvNet
from gpuwise.facts.models.denoisers import Denoiser
from gpuwise.money.cost import Price, price_of
from gpuwise.money.power import cluster_power
from gpuwise.pick.candidates import ways
from gpuwise.pick.forward import TooLargeToRun, batches_that_fit, forward_on, image_job, passage_bytes
from gpuwise.pick.limits import Limits
from gpuwise.predict.estimate import Z80, Basis, Estimate
from gpuwise.predict.kernels.registry import kernel_times
from gpuwise.predict.kernels.run_formats import default_precision
from gpuwise.serve.engines.engine import EngineConfig, engine_runs
from gpuwise.serve.formats import weight_bytes
from gpuwise.serve.images import server_adds_s
from gpuwise.serve.iteration import iteration_time
from gpuwise.serve.load.arrivals import unit_arrivals
from gpuwise.serve.load.targets import Target
from gpuwise.serve.speech import PROMPT_TOKENS, TOKENS_PER_WINDOW, reads_sound, speech_time, window_bytes
from gpuwise.units import GIB, HOUR_S, MEGA
from gpuwise.workload.convnet import forward_table, parameter_count

F64 = NDArray[np.float64]
REQUESTS = 4000
RESOLUTION = 1.02
TEXT_TOKENS = 512
"""Of a passage, and of a query with its passage: what encoders are cut to."""
USUAL_TARGET = Target("e2e", 95.0, 0.1)
"""Where none is given: what one takes for at once is a tenth of a second (Miller 1968, doi 10.1145/1476589.1476628)."""
SPEECH_TARGET = Target("e2e", 95.0, 1.0)
"""Of a window of speech where none is given: a second does not break the flow of thought (Nielsen, section 5.5)."""
IMAGE_TARGET = Target("e2e", 95.0, 10.0)
"""Of an image where none is given: longer than ten seconds nobody keeps their mind on it (Nielsen, Usability Engineering, 1993,
section 5.5)."""
VIDEO_TARGET = Target("e2e", 95.0, 3600.0)
"""Of a video where none is given, an assumption: nobody waits before the screen, and an hour is before the next meeting."""
MADE = {"image": "images", "video": "videos"}
TARGETS = {"speech": SPEECH_TARGET, "image": IMAGE_TARGET, "video": VIDEO_TARGET}
"""By workload; of the others :data:`USUAL_TARGET`."""
PHONE_VENDORS = ("Apple", "Google", "Qualcomm")
"""Their compilers place layers on units of which no kernel and no network was measured here."""
GROWS = 0.5
"""A queue grows where the second half of the requests waits longer than the first by this share and more than one batch."""


@dataclass(frozen=True, slots=True)
class Batcher:
    """How batches form: of at most ``most`` items (None: what the device holds), begun when full or when the oldest has waited
    ``delay_s``; ``math.inf`` waits for a full one."""

    most: int | None = None
    delay_s: float = 0.0

    def __post_init__(self) -> None:
        if self.most is not None and self.most < 1:
            raise InputError(f"batches of {self.most}", hint="at least 1")
        if self.delay_s < 0:
            raise InputError(f"a batch is held back {self.delay_s:g} s", hint="0 begins as soon as the device is free")


AT_ONCE = Batcher()


@dataclass(frozen=True, slots=True)
class BatchTimes:
    """Seconds [B] of batches of ``sizes`` items on one accelerator."""

    sizes: tuple[int, ...]
    seconds: tuple[float, ...]
    log_sigma: float
    basis: Basis

    def of(self, items: int) -> float:
        """Seconds of a batch of ``items``, between measured sizes in a straight line."""
        return float(np.interp(items, self.sizes, self.seconds))

    def up_to(self, most: int) -> BatchTimes:
        """Of batches of at most ``most``; no more than there are."""
        if most >= self.sizes[-1]:
            return self
        sizes = (*(b for b in self.sizes if b < most), most)
        return replace(self, sizes=sizes, seconds=tuple(self.of(b) for b in sizes))

    @property
    def full_per_s(self) -> float:
        """Items a second of the best batch, always full."""
        return max(b / s for b, s in zip(self.sizes, self.seconds, strict=True))


@dataclass(frozen=True, slots=True)
class ForwardPoint:
    """One accelerator at a rate: latencies [N] of its requests, and the mean of its batches."""

    rate_per_s: float
    latency_s: F64
    mean_batch: float
    busy: float
    saturated: bool

    def latency(self, percentile: float | None) -> float | None:
        """Seconds; None for the mean. None where queues grow."""
        if self.saturated:
            return None
        return float(self.latency_s.mean() if percentile is None else np.percentile(self.latency_s, percentile))

    def keeps(self, targets: Sequence[Target]) -> bool:
        """Whether every target's percentile is within its limit, and the queue does not grow without end."""
        values = [(self.latency(t.percentile), t.limit_s) for t in targets]
        return not self.saturated and all(v is not None and v <= limit for v, limit in values)


@dataclass(frozen=True, slots=True)
class ForwardCapacity:
    """``point`` is at the largest rate of one accelerator, None where not even one request alone keeps the targets."""

    arch: Architecture | ConvNet | Denoiser
    cluster: Cluster
    items: str
    """``passages``, ``pairs``, ``images``, ``videos`` or ``windows`` of sound."""
    tokens: int
    """Of an item, of a window those that are written; 0 of images and videos that are made or that convolutions read."""
    precision: str
    targets: tuple[Target, ...]
    times: BatchTimes
    alone_s: float
    point: ForwardPoint | None
    each: Estimate | None
    rate_per_s: float
    accelerators: int
    price: Price | None
    usd_per_million: float | None
    wh_per_million: float | None
    batcher: Batcher = AT_ONCE

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
        """Seconds of one image that meets nobody and is sent as a tensor to a server; None where none is read."""
        return None if self.pixels is None else self.alone_s + server_adds_s(self.cluster.accelerator, self.pixels, 1)

    @property
    def usd_per_hour(self) -> float | None:
        """US dollars an hour of all accelerators."""
        return None if self.price is None else self.price.expected * self.accelerators


def capacity_forward(
    arch: Architecture | ConvNet | Denoiser,
    cluster: Cluster,
    *,
    workload: str,
    targets: Sequence[Target] = (USUAL_TARGET,),
    requests_per_s: float | None = None,
    tokens: int | None = None,
    batcher: Batcher = AT_ONCE,
    today: datetime.date,
    usd_per_hour: float | None = None,
    provider: str | None = None,
    version: str | None = None,
) -> ForwardCapacity:
    """Items a second of ``workload`` (embed, rerank, vision, speech, image, video) with ``arch`` within ``targets``, on how many
    accelerators like ``cluster``'s; speech under vLLM's ``version`` (None: the newest). Raises InputError for a model of another
    kind or one that does not fit, UnpredictableError without a rate."""
    items, length = _shape(arch, workload, tokens)
    check_targets(targets)
    precision = default_precision(cluster.accelerator)[0]
    if isinstance(arch, Denoiser):
        times = image_times(arch, cluster)
    elif isinstance(arch, ConvNet):
        times = convnet_times(arch, cluster, precision)
    elif workload == "speech":
        times = speech_times(arch, cluster, length, version)
    else:
        times = batch_times(arch, cluster, length, precision)
    if batcher.most is not None:
        times = times.up_to(batcher.most)
    alone = times.of(1)
    point = largest(times, targets, batcher)
    each = None if point is None else Estimate.from_log_sigma(point.rate_per_s, times.log_sigma, times.basis)
    have = cluster.n_accelerators
    rate = requests_per_s if requests_per_s is not None else 0.0 if each is None else each.expected * have
    count = 0 if each is None else have
    if each is not None and requests_per_s is not None:
        count = fewest(times, targets, rate, each.expected, batcher)
    price, usd, wh = _money(cluster, count, rate, today, usd_per_hour, provider)
    return ForwardCapacity(
        arch, cluster, items, length, precision, tuple(targets), times, alone, point, each, rate, count, price, usd, wh, batcher
    )


def image_times(denoiser: Denoiser, cluster: Cluster) -> BatchTimes:
    """Seconds of one image or video. Raises InputError where it does not fit, UnpredictableError without a rate."""
    found = forward_on(image_job(denoiser), cluster)
    if isinstance(found, TooLargeToRun):
        raise InputError(
            f"{denoiser.name} does not fit {cluster.accelerator.name}: {found.short_bytes / GIB:.1f} GiB short",
            hint="take one with more memory",
        )
    rate = found.items_per_s
    return BatchTimes((1,), (1.0 / rate.expected,), math.log(rate.high / rate.expected) / Z80, rate.basis)


def check_targets(targets: Sequence[Target]) -> None:
    """Raises InputError for targets of tokens, which nothing writes here."""
    for target in targets:
        if target.metric in ("itl", "tpot"):
            raise InputError(f"{target.key} is of tokens, and nothing is written", hint="for example --slo e2e_p95=100ms")


def _shape(arch: Architecture | ConvNet | Denoiser, workload: str, tokens: int | None) -> tuple[str, int]:
    """What an item is called, and its tokens."""
    if isinstance(arch, Denoiser) or workload in MADE:
        if isinstance(arch, Denoiser) and arch.makes == MADE.get(workload):
            return arch.makes, 0
        hint = "--workload image is of makers of images: sdxl, flux-dev; video of wan-2.1-14b, hunyuan-video"
        raise InputError(f"--workload {workload} with {arch.name}", hint=hint)
    if isinstance(arch, ConvNet):
        if workload == "vision":
            return "images", 0
        raise InputError(f"{arch.name} reads images, not texts", hint="--workload vision")
    if workload == "speech":
        if not reads_sound(arch):
            raise InputError(f"{arch.name} reads no sound", hint="for example whisper-large-v3")
        return "windows", min(tokens or TOKENS_PER_WINDOW, arch.max_seq_len - PROMPT_TOKENS)
    if reads_sound(arch):
        raise InputError(f"{arch.name} reads sound, not texts or images", hint="--workload speech")
    if workload == "vision":
        if arch.patches is None:
            raise InputError(f"{arch.name} is no vision transformer", hint="for example vit-b-16, vit-l-16 or resnet-50")
        return "images", arch.patches.n_tokens
    if arch.kind == "vision":
        raise InputError(f"{arch.name} reads images, not texts", hint="--workload vision")
    length = min(tokens or TEXT_TOKENS, arch.max_seq_len)
    return ("pairs" if workload == "rerank" else "passages"), length


def batch_times(arch: Architecture, cluster: Cluster, tokens: int, precision: str) -> BatchTimes:
    """Seconds of every batch that fits. Raises InputError where none does, UnpredictableError without a rate."""
    sizes = _batches_that_fit(arch.name, cluster, weight_bytes(arch, "bf16"), passage_bytes(arch, tokens))
    system = with_count(cluster.system, 1)
    config = EngineConfig(weights=precision if precision in ("bf16", "fp16") else "bf16")
    return _of_estimates(sizes, [iteration_time(arch, system, config, b, tokens, tokens) for b in sizes])


def speech_times(arch: Architecture, cluster: Cluster, tokens: int, version: str | None = None) -> BatchTimes:
    """Seconds of every batch of windows that fits with its keys and values, under vLLM's ``version``. Raises as batch_times."""
    sizes = _batches_that_fit(arch.name, cluster, weight_bytes(arch, "bf16"), window_bytes(arch))
    system = with_count(cluster.system, 1)
    config = EngineConfig(version=version)
    return _of_estimates(sizes, [speech_time(arch, system, config, b, tokens) for b in sizes])


def convnet_times(net: ConvNet, cluster: Cluster, precision: str) -> BatchTimes:
    """Seconds of every batch that fits: the kernels of the forward pass in 16 bits, one after the other. Raises as
    batch_times."""
    accelerator = cluster.accelerator
    if accelerator.vendor in PHONE_VENDORS:
        raise UnpredictableError(
            f"no published latency of such a network was checked on {accelerator.name}",
            hint="a Jetson Xavier was: jetson-agx-xavier-32gb",
        )
    dtype = precision if precision in ("bf16", "fp16") else "bf16"
    one = forward_table(net, 1, dtype)
    each = float((one.bytes_read + one.bytes_written).max())
    sizes = _batches_that_fit(net.name, cluster, 2.0 * parameter_count(net), each)
    tables = [forward_table(net, batch, dtype) for batch in sizes]
    timed = [kernel_times(rows, accelerator) for rows in tables]
    seconds = [float((t.time_s * rows.count).sum()) for t, rows in zip(timed, tables, strict=True)]
    last = timed[-1]
    longest = float(last.log_sigma[int(np.argmax(last.time_s))])
    return BatchTimes(sizes, tuple(np.maximum.accumulate(seconds).tolist()), longest, last.basis)


def _of_estimates(sizes: tuple[int, ...], times: Sequence[Estimate]) -> BatchTimes:
    """As uncertain as the largest batch."""
    sigma = math.log(times[-1].high / times[-1].expected) / Z80
    return BatchTimes(sizes, tuple(e.expected for e in times), sigma, times[-1].basis)


def _batches_that_fit(name: str, cluster: Cluster, weights_bytes: float, item_bytes: float) -> tuple[int, ...]:
    """Of :data:`BATCHES`. Raises InputError where none fits."""
    sizes = batches_that_fit(cluster.accelerator, weights_bytes, item_bytes)
    if not sizes:
        raise InputError(f"{name} does not fit {cluster.accelerator.name}", hint="take one with more memory")
    return sizes


def simulate(
    times: BatchTimes, rate_per_s: float, n: int | None = None, seed: int = 0, batcher: Batcher = AT_ONCE, devices: int = 1
) -> ForwardPoint:
    """``n`` Poisson requests (None: as many as usual) at a rate, in batches of all that wait when one of ``devices``, which share
    a queue, is free."""
    n = REQUESTS if n is None else n
    arrival = (unit_arrivals(n, 1.0, np.random.default_rng(seed)) / rate_per_s).tolist()
    most = times.sizes[-1]
    seconds = [0.0, *(times.of(b) for b in range(1, most + 1))]
    latency = np.empty(n)
    free = [0.0] * devices
    busy = 0.0
    at = batches = 0
    while at < n:
        now = max(free[0], arrival[at])
        if batcher.delay_s:  # full, or the oldest has waited, or nobody comes any more
            now = max(now, min(arrival[min(at + most, n) - 1], arrival[at] + batcher.delay_s))
        upto = at + 1
        while upto < n and upto - at < most and arrival[upto] <= now:
            upto += 1
        took = seconds[upto - at]
        heapreplace(free, now + took)
        busy += took
        batches += 1
        latency[at:upto] = now + took - np.array(arrival[at:upto])
        at = upto
    half = latency[: n // 2].mean(), latency[n // 2 :].mean()
    grows = half[1] > half[0] * (1 + GROWS) and half[1] - half[0] > seconds[most] / devices
    return ForwardPoint(rate_per_s, latency, n / batches, busy / (max(free) * devices), bool(grows))


def fewest(times: BatchTimes, targets: Sequence[Target], rate_per_s: float, each_per_s: float, batcher: Batcher) -> int:
    """Devices that keep the targets at ``rate_per_s`` with one queue before them: no more than as many queues of ``each_per_s``
    would take, and fewer where requests seldom wait while another device is free."""
    apart = max(math.ceil(rate_per_s / each_per_s - 1e-9), 1)
    if math.isinf(batcher.delay_s):
        return apart
    low, high = max(math.ceil(rate_per_s / times.full_per_s - 1e-9), 1) - 1, apart
    while high - low > 1:
        middle = (low + high) // 2
        enough = simulate(times, rate_per_s, batcher=batcher, devices=middle).keeps(targets)
        low, high = (low, middle) if enough else (middle, high)
    return high


def largest(times: BatchTimes, targets: Sequence[Target], batcher: Batcher = AT_ONCE) -> ForwardPoint | None:
    """The largest rate within the targets; None where a request alone misses one. A batch that must be full is never alone: the
    search then begins where one fills half the time that is allowed."""
    if math.isinf(batcher.delay_s):
        return _largest_static(times, targets, batcher)
    best = simulate(times, 1e-3 * times.full_per_s, 200, batcher=batcher)
    if not best.keeps(targets):
        return None
    rate, missed = times.full_per_s, math.inf
    best = simulate(times, 1e-3 * times.full_per_s, batcher=batcher)
    while missed / best.rate_per_s > RESOLUTION:
        point = simulate(times, rate, batcher=batcher)
        if point.keeps(targets):
            best = point
            if rate >= times.full_per_s:
                break
        else:
            missed = rate
        rate = math.sqrt(best.rate_per_s * missed) if best.rate_per_s > 0.01 * missed else 0.7 * missed
    return best


def _largest_static(times: BatchTimes, targets: Sequence[Target], batcher: Batcher) -> ForwardPoint | None:
    """Too few requests wait for a batch to fill, too many for the device: the largest rate of those between that is kept."""
    rate = times.sizes[-1] / times.seconds[-1]
    while rate > 1e-3 * times.full_per_s:
        point = simulate(times, rate, batcher=batcher)
        if point.keeps(targets):
            return point
        rate /= RESOLUTION
    return None


def _money(
    cluster: Cluster, count: int, rate: float, today: datetime.date, usd_per_hour: float | None, provider: str | None
) -> tuple[Price | None, float | None, float | None]:
    """The rent, and dollars and watt-hours of a million items."""
    if not count or not rate:
        return None, None, None
    whole = Cluster(cluster.system, count)
    try:
        price = price_of(whole, today, usd_per_hour=usd_per_hour, provider=provider)
    except UnpredictableError:
        price = None
    power = cluster_power(whole, workload="serving")
    million_h = rate * HOUR_S / MEGA
    usd = None if price is None else price.expected * count / million_h
    return price, usd, None if power is None else power.total_w.expected / million_h


def rank_forward(
    arch: Architecture | ConvNet | Denoiser,
    workload: str,
    targets: Sequence[Target],
    requests_per_s: float | None,
    tokens: int | None,
    *,
    today: datetime.date,
    budget_usd_per_hour: float | None = None,
    batcher: Batcher = AT_ONCE,
    version: str | None = None,
) -> list[ForwardCapacity]:
    """Every accelerator that is rented and keeps the targets within the budget, by dollars for a million items. Raises InputError
    for a model of another kind."""
    _shape(arch, workload, tokens)
    capacities: dict[str, ForwardCapacity] = {}
    for way in ways(Limits(), today):
        accelerator = way.accelerator
        runs = not isinstance(arch, Architecture) or engine_runs(accelerator)
        if way.rent is None or accelerator.id in capacities or not runs:
            continue
        cluster = Cluster(default_system(accelerator), 1)
        try:
            capacities[accelerator.id] = capacity_forward(
                arch,
                cluster,
                workload=workload,
                targets=targets,
                requests_per_s=requests_per_s,
                tokens=tokens,
                batcher=batcher,
                today=today,
                version=version,
            )
        except (InputError, UnpredictableError):
            continue
    usable = [a for a in capacities.values() if a.point is not None and a.usd_per_million is not None]
    if budget_usd_per_hour is not None:
        usable = [a for a in usable if a.usd_per_hour is not None and a.usd_per_hour <= budget_usd_per_hour]
    return sorted(usable, key=_cost)


def _cost(answer: ForwardCapacity) -> float:
    return math.inf if answer.usd_per_million is None else answer.usd_per_million
