"""One person runs a model on their own device with a local program (llama.cpp): which format fits, how fast, how long a context.

``t_device`` is :func:`gpuwise.serve.streams.token_time`, ``t_processor`` :func:`gpuwise.serve.processor.token_time`. Nothing is
copied between them: each computes what it holds (llama.cpp ``-ngl``, ``--n-cpu-moe``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from gpuwise.errors import InputError, UnpredictableError
from gpuwise.facts.hardware.cpus import Cpu
from gpuwise.facts.hardware.systems import Cluster
from gpuwise.facts.models.architecture import Architecture
from gpuwise.predict.coefficients import load_json
from gpuwise.predict.estimate import Estimate
from gpuwise.predict.memory.kv_cache import kv_cache_bytes, state_bytes
from gpuwise.serve.engines.engine import ENGINES, LOCAL_ENGINE
from gpuwise.serve.formats import FORMATS, GGUF, LLAMA_CPP_FORMATS, WIDE_BYTES, find_format, weight_bytes
from gpuwise.serve.local_machine import LocalMachine
from gpuwise.serve.memory import ServingMemory, local_memory
from gpuwise.serve.offload import needed_split, split_bytes, split_time
from gpuwise.serve.offload import prompt_time as offloaded_prompt_time
from gpuwise.serve.processor import token_time as processor_time
from gpuwise.serve.streams import as_measured, batch_spread, prompt_spread, prompt_time, seconds, token_time
from gpuwise.workload.transformer.parameters import count_parameters

TRIED = ("Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "IQ4_XS", "Q3_K_M", "Q2_K")
"""Formats to choose from, the closest to the 16-bit model first. F16 is left out: Q8_0 answers as well."""
LOSSES = {"Q8_0": "none", "Q6_K": "very small", "Q5_K_M": "very small", "Q4_K_M": "small", "IQ4_XS": "small", "Q3_K_M": "clear"}
"""Of perplexity against 16 bits: +0.01, 0.1, 0.2, 0.9, 0.9 and 4 % (LLaMA 7B, llama.cpp pull request 1684, tools/quantize
README); the others lose much."""
CLEAR = ("clear", "large")
"""Losses that one notices."""
CONTEXT = 8192
"""Tokens of context to fit by default: a long conversation or some files."""
CONTEXTS = (1024, 8192)
WIDEST_OFFLOADED = 5.0
"""Bits a weight of a format to put partly in the host's memory: a wider one reads more of it for little."""
NEAR = 256
"""Tokens that llama.cpp rounds a context up to."""
AT_ONCE = 8
"""Conversations at once whose speed is given, where so many fit."""


class NotLocalError(InputError):
    """A model or a machine that local programs are not for."""


@dataclass(frozen=True, slots=True)
class FormatFit:
    """One format on the device with ``context`` tokens. ``tokens_per_s`` is None where the weights do not fit."""

    weights: str
    bits: float
    loss: str
    memory: ServingMemory
    longest_context: int
    """0: not one token fits."""
    tokens_per_s: Estimate | None


@dataclass(frozen=True, slots=True)
class Speed:
    """Of one sequence with ``context`` tokens before."""

    context: int
    tokens_per_s: Estimate
    prompt_tokens_per_s: Estimate | None
    """None where a device publishes no rates of arithmetic."""
    first_token_s: Estimate | None
    """Of a prompt as long as the context."""


@dataclass(frozen=True, slots=True)
class Offload:
    """Weights that do not fit in the host's memory. ``device_layers`` layers are on the device whole; of a mixture of experts
    ``host_expert_layers`` layers have their experts alone on the host."""

    weights: str
    device_layers: int
    host_expert_layers: int
    host_bytes: float
    processor: Cpu
    tokens_per_s: Estimate
    prompt_tokens_per_s: Estimate | None
    """None where the device has no PCIe link, or no published rates."""


@dataclass(frozen=True, slots=True)
class LocalRun:
    """``chosen`` is the format closest to the 16-bit model that fits with ``context`` tokens; None where none does."""

    arch: Architecture
    machine: LocalMachine
    context: int
    formats: tuple[FormatFit, ...]
    chosen: FormatFit | None
    speeds: tuple[Speed, ...]
    state_bytes: float
    users: int
    """Sequences of ``context`` tokens whose caches fit together."""
    at_once: tuple[int, Estimate] | None
    """So many of them that write at once, and the tokens a second of each; None where that is not predicted."""
    longest_with_q8_cache: int
    offload: Offload | None
    asked: str | None = None
    """The format as it was asked for."""


def run_locally(arch: Architecture, machine: LocalMachine, *, context: int | None = None, weights: str | None = None) -> LocalRun:
    """How ``arch`` runs on ``machine``, in ``weights`` or the best format that fits.

    Raises NotLocalError for a model that does not write text and for more devices than the program takes, InputError for a
    context beyond the model's, UnknownNameError for a format.
    """
    if arch.kind != "decoder":
        hint = "`gpuwise capacity` takes it: --workload"
        raise NotLocalError(f"{arch.name} does not write text token by token", hint=hint)
    engine, n = ENGINES[LOCAL_ENGINE], machine.n_devices
    if n > engine.in_turn:
        hint = "`gpuwise capacity` serves on more"
        raise NotLocalError(f"{engine.title} takes up to {engine.in_turn} devices, not {n}", hint=hint)
    if context is not None and not 1 <= context <= arch.max_seq_len:
        raise InputError(f"{arch.name} takes up to {arch.max_seq_len:,} tokens", hint="give a shorter --context")
    length = context or min(CONTEXT, arch.max_seq_len)
    fits = tuple(format_fit(arch, machine, name, length) for name in names_of(arch, weights))
    chosen = next((fit for fit in fits if fit.memory.fits), None)
    state = state_bytes(arch)
    if chosen is None:
        return LocalRun(arch, machine, length, fits, None, (), state, 0, None, 0, offloaded(arch, machine, length, fits), weights)
    one = chosen.memory
    users = max(int((one.most - one.weights - one.workspace) // one.cache), 1) if one.cache else 1
    lengths = sorted({*(c for c in CONTEXTS if c <= chosen.longest_context), length, chosen.longest_context})
    return LocalRun(
        arch,
        machine,
        length,
        fits,
        chosen,
        tuple(_speed(arch, machine, chosen.weights, c) for c in lengths),
        state,
        users,
        _at_once(arch, machine, chosen.weights, length, min(users, AT_ONCE)),
        longest_with_cache(arch, machine, chosen, "q8_0"),
        None,
        weights,
    )


def longest_with_cache(arch: Architecture, machine: LocalMachine, fit: FormatFit, dtype: str) -> int:
    """The longest context of a format with a cache in ``dtype``; 0 where none fits."""
    room = fit.memory.most - fit.memory.weights - fit.memory.workspace
    return _longest(arch, lambda tokens: cache_bytes(arch, machine, tokens, dtype) <= room)


def cache_bytes(arch: Architecture, machine: LocalMachine, tokens: int, dtype: str) -> float:
    """Of one sequence on one device, with a cache in ``dtype``."""
    layout = replace(ENGINES[LOCAL_ENGINE].cache, dtype=dtype, stages=machine.n_devices)
    return float(kv_cache_bytes(arch, tokens, layout))


def _at_once(arch: Architecture, machine: LocalMachine, weights: str, context: int, users: int) -> tuple[int, Estimate] | None:
    if machine.cluster is None or users < 2:
        return None
    accelerator, n = machine.cluster.accelerator, machine.n_devices
    try:
        form = load_json(ENGINES[LOCAL_ENGINE].streams)["form"]
        time = seconds(form, arch, accelerator, weights, float(context), n, users)
    except UnpredictableError:
        return None
    time_s = Estimate.from_log_sigma(time, *batch_spread(arch, accelerator))
    return users, as_measured(time_s, accelerator.corrections).inverse()


OF_BITS = {"2": "Q2_K", "3": "Q3_K_M", "4": "Q4_K_M", "5": "Q5_K_M", "6": "Q6_K", "8": "Q8_0", "16": "BF16"}
"""The format that people mean by a number of bits."""
_BITS = re.compile(rf"q?({'|'.join(OF_BITS)})(?:[\s-]?bits?)?")


def names_of(arch: Architecture, weights: str | None) -> tuple[str, ...]:
    """Formats to look at: the one asked for, a narrow file's own, the published one of experts, or those people choose from."""
    stored = arch.stored_format
    wide = stored is not None and find_format(stored).file != GGUF and find_format(stored).bytes_per_weight >= WIDE_BYTES
    asked = weights or (None if wide else stored)
    if asked is not None:
        bits = _BITS.fullmatch(asked.strip().lower())
        name = OF_BITS[bits[1]] if bits else find_format(asked).name
        name = name if FORMATS[name].file else FORMATS[name].llama_cpp
        if name not in LLAMA_CPP_FORMATS:
            raise InputError(f"{asked} weights do not run in {LOCAL_ENGINE}", hint="choose from " + ", ".join(TRIED))
        return (name,)
    return ("MXFP4",) if arch.published_experts == "mxfp4" else TRIED


def format_fit(arch: Architecture, machine: LocalMachine, weights: str, context: int, *, reach: bool = True) -> FormatFit:
    """What ``weights`` take on ``machine`` with ``context`` tokens, and how fast they are there; the longest context is 0 without
    ``reach``."""
    memory = _memory(arch, machine, weights, context)
    longest = longest_context(arch, machine, weights) if reach else 0
    bits = 8.0 * weight_bytes(arch, weights) / count_parameters(arch).total
    holds = memory.weights + memory.workspace <= memory.most
    rate = _token_time(arch, machine, weights, context).inverse() if holds else None
    loss = "as published" if weights == "MXFP4" else LOSSES.get(weights, "none" if bits > 8.0 else "large")
    return FormatFit(weights, bits, loss, memory, longest, rate)


def longest_context(arch: Architecture, machine: LocalMachine, weights: str) -> int:
    """Tokens of the longest context that fits; 0 where none does."""
    return _longest(arch, lambda tokens: _memory(arch, machine, weights, tokens).fits)


def _memory(arch: Architecture, machine: LocalMachine, weights: str, context: int) -> ServingMemory:
    engine, most = ENGINES[LOCAL_ENGINE], machine.most_bytes
    return local_memory(engine, arch, most, weights, n_devices=machine.n_devices, context=context)


def _token_time(arch: Architecture, machine: LocalMachine, weights: str, context: int) -> Estimate:
    """Seconds of a token of one sequence."""
    if machine.cluster is not None:
        return token_time(arch, machine.cluster.accelerator, weights, context=context, n_devices=machine.n_devices)
    assert machine.processor is not None
    return processor_time(machine.processor, arch, weights, context=float(context)).time_s


def _longest(arch: Architecture, fits: Callable[[int], bool]) -> int:
    """The longest context up to the model's that ``fits``, in steps of :data:`NEAR`; 0 where none does."""
    if fits(arch.max_seq_len):
        return arch.max_seq_len
    least, most = 0, arch.max_seq_len // NEAR
    while least < most:
        middle = (least + most + 1) // 2
        least, most = (middle, most) if fits(middle * NEAR) else (least, middle - 1)
    return least * NEAR


def _speed(arch: Architecture, machine: LocalMachine, weights: str, context: int) -> Speed:
    rate, engine = _token_time(arch, machine, weights, context).inverse(), ENGINES[LOCAL_ENGINE]
    if machine.cluster is None:
        return Speed(context, rate, None, None)
    accelerator = machine.cluster.accelerator
    try:
        time = prompt_time(load_json(engine.streams)["form"], arch, accelerator, weights, batch=engine.prompt_batch)
    except UnpredictableError:
        return Speed(context, rate, None, None)
    first = Estimate.from_log_sigma(time(context, 0.0), *prompt_spread(accelerator))
    return Speed(context, rate, first.inverse(context), first)


def offloaded(arch: Architecture, machine: LocalMachine, context: int, fits: Sequence[FormatFit]) -> Offload | None:
    """The widest of the small formats whose rest the device holds and the RAM: experts of some layers on the host, else whole
    layers. None without a known processor, and where the GPU has no other memory than the host's."""
    if machine.cluster is None or machine.cluster.accelerator.unified_memory or (host := machine.host) is None:
        return None
    small = [f for f in fits if f.bits < WIDEST_OFFLOADED] or [fits[-1]]
    return next(filter(None, (_with_host(arch, machine.cluster, host, machine.ram_bytes, context, f) for f in small)), None)


def _with_host(
    arch: Architecture, cluster: Cluster, processor: Cpu, ram_bytes: float, context: int, form: FormatFit
) -> Offload | None:
    accelerator, n, weights = cluster.accelerator, cluster.n_accelerators, form.weights
    split = needed_split(arch, weights, form.memory, n)
    if split is None or (on_host := split_bytes(arch, weights, split)) > ram_bytes:
        return None
    time = split_time(arch, accelerator, processor, weights, split, context=float(context), n_devices=n)
    try:
        prompt = offloaded_prompt_time(arch, accelerator, weights, on_host, context)
    except UnpredictableError:
        prompt = None
    reads = None if prompt is None else prompt.inverse(context)
    return Offload(weights, arch.n_layers - split.layers, split.expert_layers, on_host, processor, time.inverse(), reads)


def parts(run: LocalRun) -> Iterator[tuple[str, float]]:
    """What fills the fullest device in the chosen format: weights, cache, states, buffers of a batch."""
    if run.chosen is None:
        return
    memory = run.chosen.memory
    states = min(run.state_bytes / run.machine.n_devices, memory.cache)
    yield from (("weights", memory.weights), ("cache", memory.cache - states), ("state", states), ("buffers", memory.workspace))
