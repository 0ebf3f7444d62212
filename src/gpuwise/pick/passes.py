"""Jobs of independent items: embedding, reranking, speech, image and video generation (:mod:`gpuwise.serve.passes`), training a
CNN on images or a network by name (:mod:`gpuwise.pick.networks`). Gives items per second of one accelerator.

    training t = step of B images (:func:`gpuwise.workload.convnet.training_table`), its kernels one after the other

Items are independent, so a load takes the number of accelerators that its peak needs, each with a copy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from gpuwise.errors import InputError, UnpredictableError
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.facts.hardware.systems import Cluster, with_count
from gpuwise.facts.models.convnets import ConvNet
from gpuwise.facts.models.denoisers import Denoiser
from gpuwise.pick import networks
from gpuwise.pick.jobs import DAY_S, PEAK_OVER_MEAN
from gpuwise.pick.outcomes import CHANGED, SAME
from gpuwise.plan.own.named import NamedStep
from gpuwise.plan.own.plan import MOST_SAMPLES
from gpuwise.predict.comm.collectives import curve
from gpuwise.predict.estimate import Estimate
from gpuwise.predict.kernels.registry import kernel_times
from gpuwise.predict.kernels.run_formats import default_precision
from gpuwise.serve.engines.engine import DEFAULT_ENGINE, ENGINES, engine_runs
from gpuwise.serve.formats import weight_bytes
from gpuwise.serve.passes import encoders, speech
from gpuwise.serve.passes.encoders import TEXT_TOKENS
from gpuwise.serve.passes.images import images_per_s
from gpuwise.serve.passes.kind import Model, room
from gpuwise.serve.passes.speech import TOKENS_PER_WINDOW, WINDOW_S, reads_sound, speech_flop, window_bytes
from gpuwise.units import HOUR_S, format_count
from gpuwise.workload.convnet import parameter_count, trained_bytes, training_table
from gpuwise.workload.transformer.parameters import count_parameters

LEAST_BATCH = 8
"""Sequences an encoder's accelerator must hold at once."""
IMAGES = 1000
"""Default number of generated images at home."""
VIDEOS = 10
"""The same of videos, each of which takes minutes."""
SOUND_S = 100 * HOUR_S
"""Default seconds of transcribed sound: the interviews of a study, the talks of a conference."""
TRAINED_BATCHES = (32, 64, 128, 256)
"""Images of a step on one accelerator that are tried."""


@dataclass(frozen=True, slots=True)
class PassJob:
    """A number of items once, or a rate per second."""

    purpose: str
    name: str
    unit: str
    """``tokens``, ``pairs``, ``seconds`` of sound, ``images``, ``videos`` or ``samples`` that are trained on."""
    model: Model | NamedStep
    seq_len: int = 0
    items: float = 0.0
    items_per_s: float | None = None
    hours: float = 0.0
    years: float = 1.0
    bits: tuple[int, ...] = (16,)
    assumed: tuple[str, ...] = ()

    @property
    def serving(self) -> bool:
        """Whether it is a load; otherwise a number of items."""
        return self.items_per_s is not None

    @property
    def model_id(self) -> str:
        """Id of what is run."""
        return self.model.network.id if isinstance(self.model, NamedStep) else self.model.id

    @property
    def trained(self) -> ConvNet | NamedStep | None:
        """The network that is trained; None where passes alone are run."""
        return self.model if isinstance(self.model, (ConvNet, NamedStep)) else None

    @property
    def flop_per_item(self) -> float:
        """FLOP per image, video, token, pair or second of sound."""
        if isinstance(self.model, NamedStep):
            return networks.sample_flop(self.model)
        if isinstance(self.model, Denoiser):
            return self.model.flop * self.model.evaluations
        if isinstance(self.model, ConvNet):
            return _trained_flop(self.model)
        if self.unit == "seconds":
            return speech_flop(self.model, self.seq_len) / WINDOW_S
        tokens = 1 if self.unit == "tokens" else self.seq_len
        return 2.0 * count_parameters(self.model).layers * tokens

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
class PassRate:
    """Rate of one accelerator."""

    items_per_s: Estimate
    tier: int
    bits: int
    memory_bytes: float
    device_bytes: float
    layout: str
    batch: int = 0
    """Training batch on each accelerator."""
    fit_probability: float | None = None
    """Of a network by name; None: not known."""


@dataclass(frozen=True, slots=True)
class TooLargeToRun:
    """The narrowest weights need ``short_bytes`` more."""

    short_bytes: float


def pass_job(
    purpose: str,
    model: Model,
    *,
    items: float | None = None,
    items_per_day: float | None = None,
    seq_len: int | None = None,
    years: float = 1.0,
) -> PassJob:
    """``purpose`` embed (items are tokens), rerank (pairs), speech (seconds of sound), image or video with ``model``; of a
    convolutional network the training on all ``items`` images. Raises InputError."""
    bits, length = (16,), 0
    if isinstance(model, Denoiser):
        a, bits, unit, usual = model.makes[:-1], model.bits, model.makes, VIDEOS if model.frames else IMAGES
        size = f"{model.width or model.pixels} x {model.pixels}" + (f" and {model.frames} frames" if model.frames else "")
        name = f"make {unit} with {model.name}"
        assumed = [f"{model.evaluations} evaluations {'an' if a == 'image' else 'a'} {a} of {size}", f"weights of {bits[0]} bits"]
    elif isinstance(model, ConvNet):
        unit, usual, name = "images", IMAGES, f"train {model.name}"
        assumed = [
            f"images of {model.pixels} x {model.pixels}",
            "mixed precision, channels-last images, SGD with momentum",
        ]
    elif purpose == "speech":
        if not reads_sound(model):
            raise InputError(f"{model.name} does not read audio", hint="for example --model whisper-large-v3")
        unit, usual, length, name = "seconds", SOUND_S, TOKENS_PER_WINDOW, f"transcribe speech with {model.name}"
        assumed = [f"{length} output tokens per {WINDOW_S:.0f} s of sound", "start-up excluded"]
    else:
        unit, items_are = ("tokens", "passages") if purpose == "embed" else ("pairs", "pairs")
        usual, length, name = 1e9, min(seq_len or TEXT_TOKENS, model.max_seq_len), f"{purpose} with {model.name}"
        assumed = [f"{items_are} of {length:,} tokens"]
    if items is not None and items_per_day is not None:
        raise InputError(f"a count of {unit} and {unit} a day both set the work", hint="give one of them")
    for value in (items, items_per_day):
        if value is not None and not (math.isfinite(value) and 0 < value <= 1e15):
            raise InputError(f"{unit} must be a positive number, not {value}", hint="for example 1M")
    if items_per_day is not None:
        assumed += [f"sized for {PEAK_OVER_MEAN} times the mean load", "24 hours of use a day"]
        rate, hours = items_per_day / DAY_S, 24 * 365.25 * years
        what = f"{name}, {_amount(items_per_day, unit)} a day"
        return PassJob(purpose, what, unit, model, length, 0.0, rate, hours, years, bits, tuple(assumed))
    count = items or usual
    assumed += [_amount(count, unit)] if items is None else []
    what = f"{name}{' on' if isinstance(model, ConvNet) else ','} {_amount(count, unit)}"
    return PassJob(purpose, what, unit, model, length, count, bits=bits, assumed=tuple(assumed))


def _amount(count: float, unit: str) -> str:
    """``1M images``, ``2,000 hours of sound``."""
    return f"{format_count(count / HOUR_S)} hours of sound" if unit == "seconds" else f"{format_count(count)} {unit}"


def network_job(step: NamedStep, purpose: str, *, samples: float | None = None, lighter: bool = False) -> PassJob:
    """Training on ``samples`` (by default as many as are usual); ``lighter``: 4-bit weights are allowed where 16-bit ones do not
    fit. Raises InputError."""
    n = step.network
    count = n.samples if samples is None else samples
    if not (math.isfinite(count) and 1 <= count <= MOST_SAMPLES):
        raise InputError(f"{count:g} samples", hint="from 1 to 1e15, for example 5k")
    bits = (4,) if step.quantized else (16, 4) if lighter and step.method == "lora" else (16,)
    assumed = [f"batch {step.batch}", *step.notes, *([f"{n.samples:,} samples: {n.samples_are}"] if samples is None else [])]
    name = f"train {step.name}, {format_count(count)} samples"
    return PassJob(purpose, name, "samples", step, items=count, bits=bits, assumed=tuple(assumed))


def least_item_s(job: PassJob, accelerator: Accelerator) -> float:
    """No item takes less: its arithmetic at the peak. Raises UnpredictableError."""
    return job.flop_per_item / accelerator.peak(default_precision(accelerator)[0])


def fitting(job: PassJob, accelerator: Accelerator) -> int | TooLargeToRun:
    """The first of the job's widths that fits, or what the last one lacks."""
    have = room(accelerator)
    bytes_by_format = [(bits, _bytes(job, bits)) for bits in job.bits]
    return next((bits for bits, need in bytes_by_format if need <= have), TooLargeToRun(bytes_by_format[-1][1] - have))


def _bytes(job: PassJob, bits: int) -> float:
    model = job.model
    if isinstance(model, NamedStep):
        return networks.least_bytes(networks.at_bits(model, bits))
    if isinstance(model, Denoiser):
        return model.device_bytes(bits)
    if isinstance(model, ConvNet):
        return trained_bytes(model, TRAINED_BATCHES[0], "bf16")
    items = window_bytes(model) if job.unit == "seconds" else LEAST_BATCH * encoders.passage_bytes(model, job.seq_len)
    return weight_bytes(model, "bf16") + items


def passes_on(job: PassJob, cluster: Cluster) -> PassRate | TooLargeToRun:
    """Rate of one accelerator of ``cluster``. Raises InputError and UnpredictableError."""
    accelerator = cluster.accelerator
    bits = fitting(job, accelerator)
    if isinstance(bits, TooLargeToRun):
        return bits
    model = job.model
    if isinstance(model, NamedStep):
        return _network_rate(job, model, accelerator, bits)
    tier = SAME if bits == job.bits[0] else CHANGED
    if isinstance(model, ConvNet):
        rate, batch = _convnet_rate(model, accelerator)
        held = trained_bytes(model, batch, "bf16")
        return PassRate(rate, tier, 16, held, room(accelerator), f"PyTorch, batch {batch}", batch)
    if isinstance(model, Denoiser):
        rate = images_per_s(model, cluster)
        layout = f"one {model.makes[:-1]} at a time, {model.evaluations} evaluations"
    else:
        engine = ENGINES[DEFAULT_ENGINE].title
        if not engine_runs(accelerator):
            raise UnpredictableError(f"{engine} is not known to run on {accelerator.name}")
        if job.unit == "seconds":
            each, times = WINDOW_S, speech.batches(model, with_count(cluster.system, 1), job.seq_len)
        else:
            each, times = job.seq_len if job.unit == "tokens" else 1, encoders.batches(model, accelerator, job.seq_len)
        batch, seconds = max(times, key=lambda pair: pair[0] / pair[1].expected)
        rate, layout = seconds.inverse(batch * each), f"{engine}, one device, batch {batch}"
    return PassRate(rate, tier, bits, _bytes(job, bits), room(accelerator), layout)


def _network_rate(job: PassJob, asked: NamedStep, accelerator: Accelerator, first: int) -> PassRate | TooLargeToRun:
    """The step at the first of the job's widths, from ``first`` on, that surely fits; else the first that is expected to."""
    unlikely: PassRate | None = None
    for bits in job.bits[job.bits.index(first) :]:
        step = networks.at_bits(asked, bits)
        estimate = networks.step_on(step, accelerator)
        if not estimate.fits:
            continue
        if estimate.step_time_s is None:
            raise UnpredictableError(estimate.no_time)
        tier = SAME if bits == job.bits[0] else CHANGED
        held, have, fit = estimate.memory_bytes.expected, estimate.device_bytes, estimate.fit_probability
        layout = f"PyTorch, batch {step.batch}"
        rate = PassRate(estimate.step_time_s.inverse(step.batch), tier, bits, held, have, layout, step.batch, fit)
        if networks.is_held(estimate):
            return rate
        unlikely = unlikely or rate
    if unlikely is not None:
        return unlikely
    last = networks.step_on(networks.at_bits(asked, job.bits[-1]), accelerator)
    return TooLargeToRun(max(last.memory_bytes.expected - last.device_bytes, 0.0))


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
    """FLOP of one image, forward and backward."""
    return float(training_table(net, 1, "bf16").flop.sum())


def together_s(job: PassJob, rate: PassRate, cluster: Cluster) -> Estimate:
    """Seconds in which all accelerators of ``cluster`` do the items of a job that ends. What is trained adds its gradients up
    once a step, as if nothing of that hid behind the backward; the rest shares its items out."""
    n = cluster.n_accelerators
    seconds = rate.items_per_s.inverse(job.items / n)
    if isinstance(job.model, NamedStep):
        step_s = networks.step_time_s(networks.at_bits(job.model, rate.bits), cluster)
        return step_s.scaled(job.items / (n * rate.batch))
    if not isinstance(job.model, ConvNet) or n == 1:
        return seconds
    gradients = 4.0 * parameter_count(job.model)
    added = float(curve(cluster.system, "all_reduce", n, min(n, cluster.system.count)).time_s(np.array([gradients]))[0])
    return seconds.scaled(1.0 + added * rate.items_per_s.expected / rate.batch)


def copies(job: PassJob, rate: PassRate) -> int:
    """Accelerators for the peak of the load."""
    assert job.items_per_s is not None
    return max(1, math.ceil(job.items_per_s * PEAK_OVER_MEAN / rate.items_per_s.expected))


def least_copies(job: PassJob, accelerator: Accelerator) -> int:
    """The minimum number of copies for the load."""
    assert job.items_per_s is not None
    return max(1, math.ceil(job.items_per_s * PEAK_OVER_MEAN * least_item_s(job, accelerator)))


def changes_of(job: PassJob, rate: PassRate) -> Iterator[str]:
    """Changes required to fit, in words."""
    if rate.tier == CHANGED:
        yield f"{rate.bits}-bit weights"
