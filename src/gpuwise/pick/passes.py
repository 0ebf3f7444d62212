"""Jobs whose items do not wait for each other: embedding, reranking, speech, making images and videos
(:mod:`gpuwise.serve.passes`), training a network of convolutions on images. How many items a second one accelerator does.

    training t = step of B images (:func:`gpuwise.workload.convnet.training_table`), its kernels one after the other

Items do not wait for each other, so that a load takes as many accelerators as its peak needs, each with a copy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from gpuwise.errors import InputError, UnpredictableError
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.facts.hardware.systems import Cluster, with_count
from gpuwise.facts.models.architecture import Architecture
from gpuwise.facts.models.convnets import ConvNet
from gpuwise.facts.models.denoisers import Denoiser
from gpuwise.pick.jobs import DAY_S, PEAK_OVER_MEAN
from gpuwise.pick.outcomes import CHANGED, SAME
from gpuwise.predict.comm.collectives import curve
from gpuwise.predict.estimate import Estimate
from gpuwise.predict.kernels.registry import kernel_times
from gpuwise.predict.kernels.run_formats import default_precision
from gpuwise.serve.engines.engine import DEFAULT_ENGINE, ENGINES, engine_runs
from gpuwise.serve.formats import weight_bytes
from gpuwise.serve.passes import encoders, speech
from gpuwise.serve.passes.encoders import TEXT_TOKENS
from gpuwise.serve.passes.images import images_per_s
from gpuwise.serve.passes.kind import room
from gpuwise.serve.passes.speech import TOKENS_PER_WINDOW, WINDOW_S, reads_sound, speech_flop, window_bytes
from gpuwise.units import HOUR_S, format_count
from gpuwise.workload.convnet import parameter_count, trained_bytes, training_table
from gpuwise.workload.transformer.parameters import count_parameters

LEAST_BATCH = 8
"""Sequences an encoder's accelerator must hold at once."""
IMAGES = 1000
"""Made at home when nothing is said."""
VIDEOS = 10
"""The same of videos, each of which takes minutes."""
SOUND_S = 100 * HOUR_S
"""Of sound written down when nothing is said: the interviews of a study, the talks of a conference."""
TRAINED_BATCHES = (32, 64, 128, 256)
"""Images of a step on one accelerator that are tried."""


@dataclass(frozen=True, slots=True)
class ForwardJob:
    """So many items once, or so many a second. ``arch`` of an encoder or of a model that reads sound, ``denoiser`` of images and
    videos, ``convnet`` is trained: one of them is set."""

    purpose: str
    name: str
    unit: str
    """``tokens``, ``pairs``, ``seconds`` of sound, ``images`` or ``videos``."""
    arch: Architecture | None = None
    denoiser: Denoiser | None = None
    convnet: ConvNet | None = None
    seq_len: int = 0
    items: float = 0.0
    items_per_s: float | None = None
    hours: float = 0.0
    years: float = 1.0
    bits: tuple[int, ...] = (16,)
    assumed: tuple[str, ...] = ()

    @property
    def serving(self) -> bool:
        """A load goes on; a count of items ends."""
        return self.items_per_s is not None

    @property
    def model_id(self) -> str:
        """Id of what is run; empty for a table of operations."""
        return next((one.id for one in (self.denoiser, self.convnet, self.arch) if one is not None), "")

    @property
    def flop_per_item(self) -> float:
        """Of one image, video, token, pair or second of sound."""
        if self.denoiser is not None:
            return self.denoiser.flop * self.denoiser.evaluations
        if self.convnet is not None:
            return _trained_flop(self.convnet)
        assert self.arch is not None
        if self.unit == "seconds":
            return speech_flop(self.arch, self.seq_len) / WINDOW_S
        tokens = 1 if self.unit == "tokens" else self.seq_len
        return 2.0 * count_parameters(self.arch).layers * tokens

    @property
    def flop(self) -> float:
        """Useful FLOP of the whole job."""
        count = self.items if self.items_per_s is None else self.items_per_s * self.hours * HOUR_S
        return count * self.flop_per_item

    @property
    def rate_title(self) -> str:
        """Head of the column of speeds."""
        return {"tokens": "tok/s", "seconds": "x real time"}.get(self.unit, f"{self.unit}/s")


@dataclass(frozen=True, slots=True)
class ForwardRate:
    """What one accelerator does."""

    items_per_s: Estimate
    tier: int
    bits: int
    memory_bytes: float
    device_bytes: float
    layout: str
    batch: int = 0
    """Of training, on each accelerator."""


@dataclass(frozen=True, slots=True)
class TooLargeToRun:
    """The narrowest weights need ``short_bytes`` more."""

    short_bytes: float


def encoder_job(
    arch: Architecture,
    *,
    purpose: str,
    items: float | None = None,
    items_per_day: float | None = None,
    seq_len: int | None = None,
    years: float = 1.0,
) -> ForwardJob:
    """Embedding (items are tokens) or reranking (pairs) with ``arch``. Raises InputError."""
    unit = "tokens" if purpose == "embed" else "pairs"
    length = min(seq_len or TEXT_TOKENS, arch.max_seq_len)
    assumed = [f"{'passages' if purpose == 'embed' else 'pairs'} of {length:,} tokens"]
    verb = "embed" if purpose == "embed" else "rerank"
    return _job(purpose, f"{verb} with {arch.name}", unit, items, items_per_day, 1e9, years, assumed, arch=arch, seq_len=length)


def speech_job(
    arch: Architecture, *, seconds: float | None = None, seconds_per_day: float | None = None, years: float = 1.0
) -> ForwardJob:
    """Writing down so many seconds of sound with ``arch``. Raises InputError."""
    if not reads_sound(arch):
        raise InputError(f"{arch.name} reads no sound", hint="for example --model whisper-large-v3")
    assumed = [f"{TOKENS_PER_WINDOW} tokens written of {WINDOW_S:.0f} s of sound", "what the host does to the sound left out"]
    name = f"write down speech with {arch.name}"
    return _job(
        "speech", name, "seconds", seconds, seconds_per_day, SOUND_S, years, assumed, arch=arch, seq_len=TOKENS_PER_WINDOW
    )


def image_job(
    denoiser: Denoiser, *, items: float | None = None, items_per_day: float | None = None, years: float = 1.0
) -> ForwardJob:
    """Making images, or videos, with ``denoiser``. Raises InputError."""
    a = denoiser.makes[:-1]
    size = f"{denoiser.width or denoiser.pixels} x {denoiser.pixels}"
    long = f" and {denoiser.frames} frames" if denoiser.frames else ""
    assumed = [
        f"{denoiser.evaluations} evaluations {'an' if a == 'image' else 'a'} {a} of {size}{long}",
        f"weights of {denoiser.bits[0]} bits",
    ]
    name, usual = f"make {denoiser.makes} with {denoiser.name}", VIDEOS if denoiser.frames else IMAGES
    return _job(a, name, denoiser.makes, items, items_per_day, usual, years, assumed, denoiser=denoiser, bits=denoiser.bits)


def convnet_job(net: ConvNet, *, images: float) -> ForwardJob:
    """Training ``net`` on ``images``, all epochs together. Raises InputError."""
    assumed = [f"images of {net.pixels} x {net.pixels}", "mixed precision, images that lie channels last, SGD with momentum"]
    job = _job("vision", f"train {net.name}", "images", images, None, IMAGES, 1.0, assumed)
    return replace(job, name=f"train {net.name} on {_amount(images, 'images')}", convnet=net)


def _job(
    purpose: str,
    name: str,
    unit: str,
    items: float | None,
    items_per_day: float | None,
    usual: float,
    years: float,
    assumed: list[str],
    *,
    arch: Architecture | None = None,
    denoiser: Denoiser | None = None,
    seq_len: int = 0,
    bits: tuple[int, ...] = (16,),
) -> ForwardJob:
    if items is not None and items_per_day is not None:
        raise InputError(f"a count of {unit} and {unit} a day say the work twice", hint="give one of them")
    for value in (items, items_per_day):
        if value is not None and not (math.isfinite(value) and 0 < value <= 1e15):
            raise InputError(f"{unit} must be a positive number, not {value}", hint="for example 1M")
    if items_per_day is not None:
        assumed = [*assumed, f"sized for {PEAK_OVER_MEAN} times the mean load", "24 hours of use a day"]
        rate, what = items_per_day / DAY_S, f"{_amount(items_per_day, unit)} a day"
        hours = 24 * 365.25 * years
        return ForwardJob(
            purpose, f"{name}, {what}", unit, arch, denoiser, None, seq_len, 0.0, rate, hours, years, bits, tuple(assumed)
        )
    count = items or usual
    if items is None:
        assumed = [*assumed, _amount(count, unit)]
    what = f"{name}, {_amount(count, unit)}"
    return ForwardJob(purpose, what, unit, arch, denoiser, None, seq_len, count, bits=bits, assumed=tuple(assumed))


def _amount(count: float, unit: str) -> str:
    """``1M images``, ``2,000 hours of sound``."""
    return f"{format_count(count / HOUR_S)} hours of sound" if unit == "seconds" else f"{format_count(count)} {unit}"


def least_item_s(job: ForwardJob, accelerator: Accelerator) -> float:
    """No item takes less: its arithmetic at the peak. Raises UnpredictableError."""
    return job.flop_per_item / accelerator.peak(default_precision(accelerator)[0])


def fitting(job: ForwardJob, accelerator: Accelerator) -> int | TooLargeToRun:
    """The first of the job's widths that fits, or what the last one lacks."""
    have = room(accelerator)
    bytes_by_format = [(bits, _bytes(job, bits)) for bits in job.bits]
    return next((bits for bits, need in bytes_by_format if need <= have), TooLargeToRun(bytes_by_format[-1][1] - have))


def _bytes(job: ForwardJob, bits: int) -> float:
    if job.denoiser is not None:
        return job.denoiser.device_bytes(bits)
    if job.convnet is not None:
        return trained_bytes(job.convnet, TRAINED_BATCHES[0], "bf16")
    assert job.arch is not None
    if job.unit == "seconds":
        return weight_bytes(job.arch, "bf16") + window_bytes(job.arch)
    return weight_bytes(job.arch, "bf16") + LEAST_BATCH * encoders.passage_bytes(job.arch, job.seq_len)


def forward_on(job: ForwardJob, cluster: Cluster) -> ForwardRate | TooLargeToRun:
    """What one accelerator of ``cluster`` does. Raises InputError and UnpredictableError."""
    accelerator = cluster.accelerator
    bits = fitting(job, accelerator)
    if isinstance(bits, TooLargeToRun):
        return bits
    tier = SAME if bits == job.bits[0] else CHANGED
    if job.denoiser is not None:
        rate = images_per_s(job.denoiser, cluster)
        layout = f"one {job.denoiser.makes[:-1]} at a time, {job.denoiser.evaluations} evaluations"
    elif job.convnet is not None:
        rate, batch = _convnet_rate(job.convnet, accelerator)
        held = trained_bytes(job.convnet, batch, "bf16")
        return ForwardRate(rate, tier, 16, held, room(accelerator), f"PyTorch, batch {batch}", batch)
    else:
        assert job.arch is not None
        engine = ENGINES[DEFAULT_ENGINE].title
        if not engine_runs(accelerator):
            raise UnpredictableError(f"{engine} is not known to run on {accelerator.name}")
        if job.unit == "seconds":
            each, times = WINDOW_S, speech.batches(job.arch, with_count(cluster.system, 1), job.seq_len)
        else:
            each, times = job.seq_len if job.unit == "tokens" else 1, encoders.batches(job.arch, accelerator, job.seq_len)
        batch, seconds = max(times, key=lambda pair: pair[0] / pair[1].expected)
        rate, layout = seconds.inverse(batch * each), f"{engine}, one device, batch {batch}"
    return ForwardRate(rate, tier, bits, _bytes(job, bits), room(accelerator), layout)


@lru_cache(4096)
def _convnet_rate(net: ConvNet, accelerator: Accelerator) -> tuple[Estimate, int]:
    """Images a second trained on at the best batch that fits."""
    dtype = default_precision(accelerator)[0]
    if dtype not in ("bf16", "fp16"):
        raise UnpredictableError(f"{accelerator.name} has no 16-bit format to train it in")
    best: tuple[Estimate, int] | None = None
    for batch in TRAINED_BATCHES:
        if trained_bytes(net, batch, dtype) > room(accelerator):
            break
        rows = training_table(net, batch, dtype)
        times = kernel_times(rows, accelerator)
        each = times.time_s * rows.count
        rate = Estimate.from_log_sigma(batch / float(each.sum()), float(times.log_sigma[int(each.argmax())]), times.basis)
        if best is None or rate.expected > best[0].expected:
            best = rate, batch
    assert best is not None  # fitting() asked before
    return best


@lru_cache(4096)
def _trained_flop(net: ConvNet) -> float:
    """Of one image, forward and backward."""
    return float(training_table(net, 1, "bf16").flop.sum())


def together_s(job: ForwardJob, rate: ForwardRate, cluster: Cluster) -> Estimate:
    """Seconds in which all accelerators of ``cluster`` do the items of a job that ends. What is trained adds its gradients up
    once a step, as if nothing of that hid behind the backward; the rest shares its items out."""
    n = cluster.n_accelerators
    seconds = rate.items_per_s.inverse(job.items / n)
    if job.convnet is None or n == 1:
        return seconds
    gradients = 4.0 * parameter_count(job.convnet)
    added = float(curve(cluster.system, "all_reduce", n, min(n, cluster.system.count)).time_s(np.array([gradients]))[0])
    return seconds.scaled(1.0 + added * rate.items_per_s.expected / rate.batch)


def copies(job: ForwardJob, rate: ForwardRate) -> int:
    """Accelerators that carry the peak of the load."""
    assert job.items_per_s is not None
    return max(1, math.ceil(job.items_per_s * PEAK_OVER_MEAN / rate.items_per_s.expected))


def least_copies(job: ForwardJob, accelerator: Accelerator) -> int:
    """The fewest copies that carry the load."""
    assert job.items_per_s is not None
    return max(1, math.ceil(job.items_per_s * PEAK_OVER_MEAN * least_item_s(job, accelerator)))


def changes_of(job: ForwardJob, rate: ForwardRate) -> Iterator[str]:
    """What it takes to fit, in words."""
    if rate.tier == CHANGED:
        yield f"{rate.bits}-bit weights"
