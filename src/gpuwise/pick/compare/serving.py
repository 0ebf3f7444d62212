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
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.facts.hardware.systems import Cluster
from gpuwise.facts.models.architecture import Architecture
from gpuwise.facts.software.support import support_of
from gpuwise.predict.coefficients import load_json
from gpuwise.predict.estimate import Basis, Estimate, weakest
from gpuwise.predict.inference import Iterations, Serving, device_times, engine_costs, spread, with_engine
from gpuwise.predict.memory.serving import ServingMemory, engine_memory, local_memory
from gpuwise.predict.single_stream import token_time
from gpuwise.units import format_bytes

MOST_SEQUENCES = 256
"""Sequences an engine runs at once unless told otherwise (vLLM's default ``max_num_seqs`` on large devices)."""
LOCAL_FORMAT = {"bf16": "F16", "fp16": "F16", "fp8": "Q8_0", "int8_wo": "Q8_0", "int4_wo": "Q4_K_M"}
"""The file format of llama.cpp that stands for a weight format."""
PRECISIONS = {
    "bf16": "bf16",
    "fp16": "fp16",
    "fp8": "fp8",
    "mxfp8": "fp8",
    "nvfp4": "nvfp4",
    "mxfp4": "mxfp4",
    "int8": "int8_wo",
    "int4": "int4_wo",
}
"""Weight formats by the names ``--precision`` takes."""
WIDEST_FIRST = ("bf16", "fp8", "int4_wo")


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
        split = cluster.n_accelerators
        least = engine_memory(arch, cluster.accelerator, weights, tp=split, sequences=1, context=context)
        return Served(None, why_not=_too_big(least))
    try:
        return _batched(arch, cluster, weights, context, groups)
    except InputError as error:
        return Served(None, why_not=error.message)
    except (UnpredictableError, LookupError):
        # no rate for a kernel of the engine: one sequence can still be predicted
        return _alone(arch, cluster, weights, context)


def _too_big(memory: ServingMemory) -> str:
    return f"needs {format_bytes(memory.total)} of {format_bytes(memory.most)}"


def _groups(arch: Architecture, cluster: Cluster, weights: str, context: int) -> list[_Group]:
    """Every way to split the cluster into tensor groups that hold the weights and one sequence each."""
    n, largest = cluster.n_accelerators, max(cluster.system.domain_size, cluster.system.count)
    found: list[_Group] = []
    for tp in (t for t in range(1, min(n, largest) + 1) if n % t == 0 and arch.heads % t == 0 and t & (t - 1) == 0):
        none, one = (engine_memory(arch, cluster.accelerator, weights, tp=tp, sequences=s, context=context) for s in (0, 1))
        if one.fits:
            fitting = (one.most - none.total) / (one.total - none.total)
            found.append(_Group(tp, n // tp, int(fitting * context), min(int(fitting), MOST_SEQUENCES)))
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
        seconds, sigma, basis = _iterations(arch, cluster, weights, g, context)
        split = f", tensor parallel {g.tp}" if g.tp > 1 else ""
        copies = f", {g.copies} copies" if g.copies > 1 else ""
        rates = [
            Estimate.from_log_sigma(work / seconds[i], sigma[i], basis)
            for i, work in enumerate((1, g.sequences * g.copies, context * g.copies))
        ]
        single.append((rates[0], split.removeprefix(", ")))
        batched.append((rates[1], f"{g.sequences * g.copies} sequences{split}{copies}"))
        prefill.append((rates[2], f"{split}{copies}".removeprefix(", ")))
        tokens = max(tokens, g.cache_tokens * g.copies)
    best = [max(options, key=lambda o: o[0].expected) for options in (single, batched, prefill)]
    (one, one_words), (many, many_words), (read, read_words) = best
    return Served(weights, f"{weights} (vLLM)", "", float(tokens), one, one_words, many, many_words, read, read_words)


def _iterations(
    arch: Architecture, cluster: Cluster, weights: str, g: _Group, context: int
) -> tuple[list[float], list[float], Basis]:
    """Seconds, spread and basis of a decode step of one sequence, of the full batch, and of reading one prompt."""
    serving = Serving(weights=weights, tp=g.tp, moe_tp=g.tp if arch.moe is not None else 1)
    rows = Iterations(np.array([1, g.sequences, 1]), np.array([1, 1, context]), np.full(3, context))
    device, costs = device_times(arch, cluster.system, serving, rows), engine_costs(serving)
    seconds = with_engine(device, costs, rows.sequences.astype(np.float64), arch.n_layers)
    return [float(x) for x in seconds], [float(x) for x in spread(device, costs)], weakest(device.basis, "fitted")


def _alone(arch: Architecture, cluster: Cluster, weights: str, context: int) -> Served:
    """One sequence under llama.cpp."""
    name = LOCAL_FORMAT.get(weights)
    if name is None or arch.mla is not None:
        return Served(None, why_not=f"no kernel for {weights} is predicted on it")
    a, n = cluster.accelerator, cluster.n_accelerators
    one = local_memory(arch, a, name, n_devices=n, context=context)
    if not one.fits:
        return Served(None, why_not=_too_big(one))
    time = token_time(arch, a, name, context=context, n_devices=n)
    sigma, basis = float(time.log_sigma[0]), time.basis
    if a.vendor not in load_json("single_stream")["form"]["vendors"]:
        # the fit knows NVIDIA and Apple
        sigma *= float(load_json("memory_bound")["log_sigma"]["new_family_factor"])
        basis = "extrapolated"
    rate = Estimate.from_log_sigma(1.0 / float(time.time_s[0]), sigma, basis)
    tokens = (one.most - one.weights - one.workspace) / one.cache * context
    return Served(
        weights, f"{name} (llama.cpp)", "", tokens, rate, "", None, "batches are not predicted on it", None, "not predicted on it"
    )
