"""What one subject serves: the widest weights it holds, its cache, and tokens a second, one sequence or many.

Where vLLM runs and its kernels can be predicted, iterations are those of :mod:`gpuwise.predict.inference` in tensor
groups, alone or several side by side. Elsewhere one sequence is decoded as llama.cpp does
(:mod:`gpuwise.predict.single_stream`), which says nothing about batches.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

import numpy as np

from gpuwise.errors import InputError, UnknownNameError, UnpredictableError
from gpuwise.facts.accelerators import Accelerator
from gpuwise.facts.models import Architecture
from gpuwise.facts.software import support_of
from gpuwise.facts.systems import Cluster
from gpuwise.predict.estimate import Estimate
from gpuwise.predict.inference import WEIGHT_BYTES, Iterations, Serving, iteration_time
from gpuwise.predict.memory_device import usable_bytes
from gpuwise.predict.single_stream import FORMAT_BITS, token_time
from gpuwise.units import format_bytes
from gpuwise.workload.parameters import count_parameters
from gpuwise.workload.transformer import layer_kinds

ENGINE_SHARE = 0.9
"""Of the device's memory an engine takes for weights, cache and work space (vLLM's default
``gpu_memory_utilization``, docs.vllm.ai/en/stable/serving/engine_args.html)."""
MOST_SEQUENCES = 256
"""Sequences an engine runs at once unless told otherwise (vLLM's default ``max_num_seqs`` for servers)."""
LOCAL_FORMAT = {"bf16": "F16", "fp16": "F16", "fp8": "Q8_0", "int8_wo": "Q8_0", "int4_wo": "Q4_K_M"}
"""The file format of llama.cpp that stands for a weight format."""
PRECISIONS = {
    "bf16": "bf16", "fp16": "fp16", "fp8": "fp8", "mxfp8": "fp8", "nvfp4": "nvfp4", "mxfp4": "mxfp4", "int8": "int8_wo",
    "int4": "int4_wo",
}  # fmt: skip
"""Weight formats by the names ``--precision`` takes."""
WIDEST_FIRST = ("bf16", "fp8", "int4_wo")
CACHE_BYTES = 2.0
"""One element of the cache, kept in 16 bits."""


@dataclass(frozen=True, slots=True)
class Served:
    """``weights`` None: it cannot, and ``why_not`` says why. Rates are tokens a second of the whole subject;
    ``cache_tokens`` what fits beside one copy of the weights."""

    weights: str | None
    words: str = ""
    why_not: str = ""
    cache_tokens: float | None = None
    single: Estimate | None = None
    single_words: str = ""
    batched: Estimate | None = None
    batch_words: str = ""
    prefill: Estimate | None = None
    prefill_words: str = ""


@dataclass(frozen=True, slots=True)
class _Group:
    """A tensor group of ``tp`` accelerators that holds the model once; ``copies`` of it side by side."""

    tp: int
    copies: int
    cache_tokens: int
    sequences: int


def weight_format(precision: str) -> str:
    """The format weights are held in for ``--precision``. Raises UnknownNameError."""
    if precision not in PRECISIONS:
        raise UnknownNameError("weight format", precision, PRECISIONS, hint="served weights are " + ", ".join(PRECISIONS))
    return PRECISIONS[precision]


def serve(arch: Architecture, cluster: Cluster, context: int, precision: str | None) -> Served:
    """Serve ``arch`` on ``cluster`` with sequences of ``context`` tokens; ``precision`` None takes the widest weights
    that fit. Raises UnknownNameError for a precision nothing is served in."""
    formats = WIDEST_FIRST if precision is None else (weight_format(precision),)
    if arch.kind != "decoder":
        return Served(None, why_not=f"{arch.name} writes no text")
    refused = ""
    for weights in formats:
        done = _in_format(arch, cluster, weights, context)
        if done.weights is not None:
            return done
        refused = done.why_not
    return Served(None, why_not=refused)


def _in_format(arch: Architecture, cluster: Cluster, weights: str, context: int) -> Served:
    if not _engine_runs(cluster.accelerator):
        return _alone(arch, cluster, weights, context)
    groups = _groups(arch, cluster, weights, context)
    if not groups:
        need = held_bytes(arch, weights) + sequence_bytes(arch, 1, context)
        return Served(None, why_not=_too_big(need, ENGINE_SHARE * cluster.accelerator.memory_bytes * cluster.n_accelerators))
    try:
        return _batched(arch, cluster, weights, context, groups)
    except InputError as error:
        return Served(None, why_not=error.message)
    except (UnpredictableError, LookupError):
        # no rate for a kernel of the engine: one sequence can still be predicted
        return _alone(arch, cluster, weights, context)


def _too_big(need: float, room: float) -> str:
    return f"needs {format_bytes(need)} of {format_bytes(room)}"


def held_bytes(arch: Architecture, weights: str) -> float:
    """Bytes of one copy of the weights; embedding and output projection stay in 16 bits."""
    count = count_parameters(arch)
    wide = count.embedding + count.head
    return (count.total - wide) * WEIGHT_BYTES[weights] + wide * 2.0


def cache_bytes_per_token(arch: Architecture, tp: int) -> float:
    """Bytes of cache a token takes on one rank: keys and values of its heads, or the whole latent."""
    if arch.mla is not None:
        return arch.n_layers * (arch.mla.kv_lora_rank + arch.mla.qk_rope_head_dim) * CACHE_BYTES
    heads = max(1, arch.kv_heads // tp)
    return 2.0 * arch.n_layers * heads * arch.head_dim * CACHE_BYTES


def sequence_bytes(arch: Architecture, tp: int, context: int) -> float:
    """Bytes of cache a sequence of ``context`` tokens takes on one rank; windowed layers keep their window."""
    whole = cache_bytes_per_token(arch, tp) * context
    if arch.window is None or arch.window >= context:
        return whole
    local = sum(kind.endswith(".local") for kind in layer_kinds(arch)) / arch.n_layers
    return whole * (1.0 - local + local * arch.window / context)


def _groups(arch: Architecture, cluster: Cluster, weights: str, context: int) -> list[_Group]:
    """Every way to split the cluster into tensor groups that hold the weights and one sequence each."""
    n, host = cluster.n_accelerators, min(cluster.n_accelerators, max(cluster.system.domain_size, cluster.system.count))
    room = min(ENGINE_SHARE * cluster.accelerator.memory_bytes, usable_bytes(cluster.accelerator))
    found: list[_Group] = []
    for tp in (t for t in range(1, host + 1) if n % t == 0 and arch.heads % t == 0 and t & (t - 1) == 0):
        free = room - held_bytes(arch, weights) / tp
        fitting = int(free / sequence_bytes(arch, tp, context)) if free > 0 else 0
        if fitting:
            tokens = int(free / sequence_bytes(arch, tp, context) * context)
            found.append(_Group(tp, n // tp, tokens, min(fitting, MOST_SEQUENCES)))
    return found


@cache
def _engine_runs(accelerator: Accelerator) -> bool:
    return support_of(accelerator).of("framework", "vllm").level in ("full", "partial")


def _batched(arch: Architecture, cluster: Cluster, weights: str, context: int, groups: Iterable[_Group]) -> Served:
    """The best group for one sequence, for a full batch and for reading."""
    single: list[tuple[Estimate, str]] = []
    batched: list[tuple[Estimate, str]] = []
    prefill: list[tuple[Estimate, str]] = []
    tokens = 0
    for g in groups:
        times = iteration_time(
            arch, cluster.system, Serving(weights=weights, tp=g.tp),
            Iterations(np.array([1, g.sequences, 1]), np.array([1, 1, context]), np.full(3, context)),
        )  # fmt: skip
        split = f", tensor parallel {g.tp}" if g.tp > 1 else ""
        copies = f", {g.copies} copies" if g.copies > 1 else ""
        rates = [
            Estimate.from_log_sigma(float(work / times.time_s[i]), float(times.log_sigma[i]), times.basis)
            for i, work in enumerate((1, g.sequences * g.copies, context * g.copies))
        ]
        single.append((rates[0], split.removeprefix(", ")))
        batched.append((rates[1], f"{g.sequences * g.copies} sequences{split}{copies}"))
        prefill.append((rates[2], f"{split}{copies}".removeprefix(", ")))
        tokens = max(tokens, g.cache_tokens * g.copies)
    best = [max(options, key=lambda o: o[0].expected) for options in (single, batched, prefill)]
    (one, one_words), (many, many_words), (read, read_words) = best
    return Served(weights, f"{weights} (vLLM)", "", float(tokens), one, one_words, many, many_words, read, read_words)


def _alone(arch: Architecture, cluster: Cluster, weights: str, context: int) -> Served:
    """One sequence under llama.cpp."""
    name = LOCAL_FORMAT.get(weights)
    if name is None or arch.mla is not None:
        return Served(None, why_not=f"no kernel for {weights} is predicted on it")
    time = token_time(arch, cluster.accelerator, name, context=context, n_devices=cluster.n_accelerators)
    rate = Estimate.from_log_sigma(1.0 / float(time.time_s[0]), float(time.log_sigma[0]), time.basis)
    room = usable_bytes(cluster.accelerator) * cluster.n_accelerators
    held = count_parameters(arch).total * FORMAT_BITS[name] / 8.0
    tokens = (room - held) / cache_bytes_per_token(arch, 1)
    if tokens < context:
        return Served(None, why_not=_too_big(held + sequence_bytes(arch, 1, context), room))
    return Served(weights, f"{name} (llama.cpp)", "", tokens, rate, "", None, "batches are not predicted on it", None,
                  "not predicted on it")  # fmt: skip
