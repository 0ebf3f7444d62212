"""One person runs a model on their own device with a local program (llama.cpp): which format fits, how fast, how long a context.

    t(w) = (1 - r) t_device(w) + r t_processor(w)        r the share of a token's bytes that lies in the host's memory

``t_device`` is :func:`gpuwise.serve.streams.token_time`, ``t_processor`` :func:`gpuwise.serve.processor.token_time`. Nothing is
copied between them: each computes what it holds (llama.cpp ``-ngl``, ``--n-cpu-moe``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from gpuwise.errors import InputError, UnpredictableError
from gpuwise.facts.hardware.cpus import Cpu, find_cpu
from gpuwise.facts.hardware.systems import Cluster
from gpuwise.facts.models.architecture import Architecture
from gpuwise.predict.coefficients import load_json
from gpuwise.predict.estimate import Estimate, to_document, weakest
from gpuwise.predict.memory.kv_cache import kv_cache_bytes, state_bytes
from gpuwise.serve.engines.engine import ENGINES, LOCAL_ENGINE, EngineConfig, Start, engine_runs
from gpuwise.serve.engines.settings import Settings
from gpuwise.serve.formats import FORMATS, LLAMA_CPP_FORMATS, find_format, weight_bytes
from gpuwise.serve.memory import ServingMemory, local_memory
from gpuwise.serve.processor import token_time as processor_time
from gpuwise.serve.streams import prompt_time, spread, token_time
from gpuwise.units import format_bytes
from gpuwise.workload.transformer.parameters import count_parameters

TRIED = ("Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "IQ4_XS", "Q3_K_M", "Q2_K")
"""Formats to choose from, the closest to the 16-bit model first. F16 is left out: Q8_0 answers as well."""
LOSSES = {"Q8_0": "none", "Q6_K": "very small", "Q5_K_M": "very small", "Q4_K_M": "small", "IQ4_XS": "small", "Q3_K_M": "clear"}
"""Of perplexity against 16 bits: +0.01, 0.1, 0.2, 0.9, 0.9 and 4 % (LLaMA 7B, llama.cpp pull request 1684, tools/quantize
README); the others lose much."""
CONTEXT = 8192
"""Tokens of context to fit by default: a long conversation or some files."""
CONTEXTS = (1024, 8192)
WIDEST_OFFLOADED = 5.0
"""Bits a weight of a format to put partly in the host's memory: a wider one reads more of it for little."""
BOTH_BITS = 6.0
"""Bits a weight from which on a program with 4 and 8 bits alone is started with 8."""
NEAR = 256
"""Tokens that llama.cpp rounds a context up to."""
HOST = "i5-12400"
"""The processor of a PC whose own is not known; its memory is that of its data sheet."""


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


@dataclass(frozen=True, slots=True)
class LocalRun:
    """``chosen`` is the format closest to the 16-bit model that fits with ``context`` tokens; None where none does."""

    arch: Architecture
    cluster: Cluster
    context: int
    formats: tuple[FormatFit, ...]
    chosen: FormatFit | None
    speeds: tuple[Speed, ...]
    cache_bytes_per_sequence: float
    state_bytes: float
    users: int
    """Sequences of ``context`` tokens whose caches fit together."""
    longest_with_q8_cache: int
    offload: Offload | None


def run_locally(
    arch: Architecture, cluster: Cluster, *, context: int | None = None, weights: str | None = None, processor: Cpu | None = None
) -> LocalRun:
    """How ``arch`` runs on the devices of ``cluster``, in ``weights`` or the best format that fits.

    Raises InputError for a model that does not write text, a context beyond the model's or more devices than the program takes;
    UnknownNameError for a format.
    """
    if arch.kind != "decoder":
        raise InputError(f"{arch.name} does not write text token by token", hint="`gpuwise capacity` takes it: --workload")
    engine, n = ENGINES[LOCAL_ENGINE], cluster.n_accelerators
    if n > engine.in_turn:
        raise InputError(
            f"{engine.title} takes up to {engine.in_turn} devices, not {n}", hint="`gpuwise capacity` serves on more"
        )
    if context is not None and not 1 <= context <= arch.max_seq_len:
        raise InputError(f"{arch.name} takes up to {arch.max_seq_len:,} tokens", hint="give a shorter --context")
    length = context or min(CONTEXT, arch.max_seq_len)
    fits = tuple(_format_fit(arch, cluster, name, length) for name in _names(arch, weights))
    chosen = next((fit for fit in fits if fit.memory.fits), None)
    if chosen is None:
        host = processor or find_cpu(HOST)
        return LocalRun(
            arch, cluster, length, fits, None, (), 0.0, state_bytes(arch), 0, 0, _offload(arch, cluster, length, fits, host)
        )
    one = chosen.memory
    room = one.most - one.weights - one.workspace
    lengths = sorted({*(c for c in CONTEXTS if c <= chosen.longest_context), chosen.longest_context})
    half = replace(engine.cache, dtype="q8_0", stages=n)
    return LocalRun(
        arch,
        cluster,
        length,
        fits,
        chosen,
        tuple(_speed(arch, cluster, chosen.weights, c) for c in lengths),
        one.cache,
        state_bytes(arch),
        max(int(room // one.cache), 1) if one.cache else 1,
        _longest(arch, lambda c: one.weights + one.workspace + float(kv_cache_bytes(arch, c, half)) <= one.most),
        None,
    )


def _names(arch: Architecture, weights: str | None) -> tuple[str, ...]:
    """Formats to look at: the one asked for, the file's own, the published one of experts, or those that people choose from."""
    asked = weights or arch.stored_format
    if asked is not None:
        name = find_format(asked).name
        name = name if FORMATS[name].file else FORMATS[name].llama_cpp
        if name not in LLAMA_CPP_FORMATS:
            raise InputError(f"{asked} weights do not run in {LOCAL_ENGINE}", hint="choose from " + ", ".join(TRIED))
        return (name,)
    return ("MXFP4",) if arch.published_experts == "mxfp4" else TRIED


def _format_fit(arch: Architecture, cluster: Cluster, weights: str, context: int) -> FormatFit:
    accelerator, n = cluster.accelerator, cluster.n_accelerators

    def memory(tokens: int) -> ServingMemory:
        return local_memory(ENGINES[LOCAL_ENGINE], arch, accelerator, weights, n_devices=n, context=tokens)

    found, longest = memory(context), _longest(arch, lambda tokens: memory(tokens).fits)
    bits = 8.0 * weight_bytes(arch, weights) / count_parameters(arch).total
    holds = found.weights + found.workspace <= found.most
    rate = token_time(arch, accelerator, weights, context=context, n_devices=n).inverse() if holds else None
    loss = "as published" if weights == "MXFP4" else LOSSES.get(weights, "none" if bits > 8.0 else "large")
    return FormatFit(weights, bits, loss, found, longest, rate)


def _longest(arch: Architecture, fits: Callable[[int], bool]) -> int:
    """The longest context up to the model's that ``fits``, in steps of :data:`NEAR`; 0 where none does."""
    if fits(arch.max_seq_len):
        return arch.max_seq_len
    least, most = 0, arch.max_seq_len // NEAR
    while least < most:
        middle = (least + most + 1) // 2
        least, most = (middle, most) if fits(middle * NEAR) else (least, middle - 1)
    return least * NEAR


def _speed(arch: Architecture, cluster: Cluster, weights: str, context: int) -> Speed:
    accelerator, engine = cluster.accelerator, ENGINES[LOCAL_ENGINE]
    rate = token_time(arch, accelerator, weights, context=context, n_devices=cluster.n_accelerators).inverse()
    try:
        seconds = prompt_time(load_json(engine.streams)["form"], arch, accelerator, weights, batch=engine.prompt_batch)(
            context, 0.0
        )
    except UnpredictableError:
        return Speed(context, rate, None, None)
    first = Estimate.from_log_sigma(seconds, *spread(accelerator))
    return Speed(context, rate, first.inverse(context), first)


def _offload(arch: Architecture, cluster: Cluster, context: int, fits: Sequence[FormatFit], processor: Cpu) -> Offload | None:
    """The widest of the small formats whose rest the device holds: experts of some layers on the host, else whole layers."""
    form = next((f for f in fits if f.bits < WIDEST_OFFLOADED), fits[-1])
    memory, n, layers = form.memory, cluster.n_accelerators, arch.n_layers
    over = (memory.total - memory.most) * n
    if memory.workspace > memory.most:
        return None
    whole = memory.weights * n
    count = count_parameters(arch)
    expert_bytes = whole * count.experts / count.total
    each = expert_bytes / max(arch.n_moe_layers, 1)
    host_layers = math.ceil(over / each) if expert_bytes > over else 0
    if host_layers:
        on_host = host_layers * each
        active = count.active - (count.total - count.experts)
        share = on_host / expert_bytes * active / count.active
        device_layers = layers
    else:
        # a layer moves with its cache
        per_layer = (whole + memory.cache * n) / layers
        gone = min(math.ceil(over / per_layer), layers)
        device_layers, on_host, share = layers - gone, gone * whole / layers, gone / layers
    host = processor_time(processor, arch, form.weights, context=float(context)).time_s.scaled(share)
    device = token_time(arch, cluster.accelerator, form.weights, context=context, n_devices=n).scaled(1.0 - share)
    low, high = host.low + device.low, host.high + device.high
    time = Estimate(low, host.expected + device.expected, high, weakest(host.basis, device.basis))
    return Offload(form.weights, device_layers, host_layers, on_host, processor, time.inverse())


def parts(run: LocalRun) -> Iterator[tuple[str, float]]:
    """What fills the fullest device in the chosen format: weights, cache, states, buffers of a batch."""
    if run.chosen is None:
        return
    memory = run.chosen.memory
    states = min(run.state_bytes / run.cluster.n_accelerators, memory.cache)
    yield from (("weights", memory.weights), ("cache", memory.cache - states), ("state", states), ("buffers", memory.workspace))


def run_document(run: LocalRun) -> dict[str, object]:
    """The answer as ``--json`` prints it: bytes, seconds, tokens per second."""
    count, chosen, device = count_parameters(run.arch), run.chosen, run.cluster
    return {
        "command": "fit",
        "for": "run",
        "model": {"id": run.arch.id, "name": run.arch.name, "parameters": count.total, "active_parameters": count.active},
        "cluster": {"label": device.label, "accelerators": device.n_accelerators, "accelerator": device.accelerator.id},
        "fits": chosen is not None,
        "weights": None if chosen is None else chosen.weights,
        "context": run.context,
        "most_context": run.arch.max_seq_len,
        "device_bytes": run.formats[0].memory.most,
        "memory_bytes": None if chosen is None else chosen.memory.total,
        "memory_parts_bytes": dict(parts(run)),
        "headroom_bytes": None if chosen is None else chosen.memory.most - chosen.memory.total,
        "longest_context": 0 if chosen is None else chosen.longest_context,
        "longest_context_q8_cache": run.longest_with_q8_cache,
        "users": run.users,
        "speeds": [to_document(s) for s in run.speeds],
        "formats": [_format_document(f) for f in run.formats],
        "offload": None if run.offload is None else _offload_document(run.offload),
        "commands": [{"name": name, "words": words} for name, words in commands(run)],
        "assumed": list(_assumed(run)),
    }


def _format_document(f: FormatFit) -> dict[str, object]:
    return {
        "weights": f.weights,
        "bits": f.bits,
        "loss": f.loss,
        "memory_bytes": f.memory.total,
        "fits": f.memory.fits,
        "longest_context": f.longest_context,
        "tokens_per_s": to_document(f.tokens_per_s),
    }


def _offload_document(o: Offload) -> dict[str, object]:
    return {
        "weights": o.weights,
        "device_layers": o.device_layers,
        "host_expert_layers": o.host_expert_layers,
        "host_bytes": o.host_bytes,
        "processor": o.processor.name,
        "tokens_per_s": to_document(o.tokens_per_s),
    }


def commands(run: LocalRun) -> Iterator[tuple[str, list[str]]]:
    """What starts it in each program that runs on the device: its name and the words of the command."""
    held, offload = run.chosen, run.offload
    weights = held.weights if held is not None else offload.weights if offload is not None else None
    if weights is None:
        return
    for engine in ENGINES.values():
        local = engine.name == LOCAL_ENGINE
        if not local and not (engine.streams and engine_runs(run.cluster.accelerator, engine.name) and held is not None):
            continue
        if not local and (run.arch.stored_bytes is not None or run.cluster.n_accelerators > engine.in_turn):
            continue
        form = weights if local else engine.by_bits[8 if held is not None and held.bits > BOTH_BITS else 4]
        config = EngineConfig(engine.name, form, pp=run.cluster.n_accelerators)
        at_once = engine.rules.tiers[0].tokens if engine.rules is not None else engine.prompt_batch
        options = Settings(max_num_batched_tokens=at_once, max_num_seqs=1, prefix_caching=True)
        words = engine.words(Start(run.arch.id, run.arch, config, options, run.context))
        if local and held is None and offload is not None:
            words[words.index("--n-gpu-layers") + 1] = str(offload.device_layers)
            if offload.host_expert_layers:
                words += ["--n-cpu-moe", str(offload.host_expert_layers)]
        yield engine.title, words


def _assumed(run: LocalRun) -> Iterator[str]:
    yield from filter(None, (run.arch.assumption, run.cluster.assumption))
    yield "a recent llama.cpp with flash attention, one conversation at a time, a 16-bit cache"
    if run.offload is not None:
        p = run.offload.processor
        yield f"the host has a {p.name} with {format_bytes(p.memory_bandwidth_bytes_per_s)}/s of memory; its speed decides"
