"""Serving on one cluster: in which weight format it fits, how fast a user reads, how much a replica carries.

    step(B)      seconds of one decode step with B sequences (``predict.inference`` or, for one user, ``single_stream``)
    capacity(B)  = 1 / (prefill + output x step(B) / B)   requests a second of a replica that stays full
    replicas     = ceil(peak rate / capacity)

Nothing queues here: latency under bursts is another question than which hardware.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from gpuwise.errors import GpuwiseError, InputError, UnpredictableError
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.facts.hardware.systems import Cluster
from gpuwise.pick.jobs import PEAK_OVER_MEAN, Job
from gpuwise.pick.outcomes import CHANGED, SAME
from gpuwise.predict.coefficients import load_json
from gpuwise.predict.estimate import Basis, Estimate, weakest
from gpuwise.predict.inference import (
    WEIGHT_BYTES,
    Iterations,
    Serving,
    device_times,
    engine_costs,
    spread,
    with_engine,
)
from gpuwise.predict.memory.serving import ServingMemory, engine_memory, local_memory
from gpuwise.predict.single_stream import FORMAT_BITS, token_time, weight_bytes_read

ENGINE_FORMATS = {16: "bf16", 8: "fp8", 4: "int4_wo"}
LOCAL_FORMATS = {16: "F16", 8: "Q8_0", 4: "Q4_K_M"}
BATCHES = (1, 8, 32, 128, 256)
"""Sequences a replica is tried with under a load (256: vLLM's default max_num_seqs on large devices)."""
NEW_VENDOR_FACTOR = "new_family_factor"


@dataclass(frozen=True, slots=True)
class Served:
    """One replica on ``ranks`` devices, and how many replicas the load takes."""

    bits: int
    format: str
    engine: str
    ranks: int
    replicas: int
    batch: int
    tokens_per_s: Estimate
    """Written a second for one user."""
    capacity_tokens_per_s: float
    """Under a load tokens read and written a second by all replicas when they stay full; tokens written for all users
    without one."""
    memory: ServingMemory
    tier: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TooLargeToServe:
    """The narrowest format allowed needs ``short_bytes`` more on each device."""

    short_bytes: float
    bits: int


def tier_of(job: Job, bits: int) -> int:
    """8-bit weights answer like 16-bit ones, 4-bit weights nearly (Kurtic et al., arXiv 2411.02355): the latter are a change
    unless they alone were asked for."""
    return CHANGED if bits == 4 and job.bits[0] > 4 else SAME


def ranks_for(job: Job, accelerator: Accelerator) -> tuple[int, ...]:
    """Device counts of one replica that could hold the narrowest format allowed, fewest first."""
    return tuple(n for n in (1, 2, 4, 8, 16) if fitting_bits(job, accelerator, n) is not None)


def fitting_bits(job: Job, accelerator: Accelerator, n: int) -> int | None:
    """The widest format whose weights and one sequence's cache fit on ``n`` devices; None when none does."""
    for bits in job.bits:
        users = max(job.load.users, 1)
        if (_local(job, n) and _local_memory(job, accelerator, bits, n).fits) or _engine_memory(
            job, accelerator, bits, n, users
        ).fits:
            return bits
    return None


def least_short(job: Job, accelerator: Accelerator, n: int) -> TooLargeToServe:
    """How much is missing on each of ``n`` devices in the narrowest format."""
    bits = job.bits[-1]
    needs = [_engine_memory(job, accelerator, bits, n, max(job.load.users, 1))]
    if _local(job, n):
        needs.append(_local_memory(job, accelerator, bits, n))
    return TooLargeToServe(min(m.total - m.most for m in needs), bits)


def least_token_s(job: Job, accelerator: Accelerator, n: int) -> float:
    """No step is shorter: the weights of one token, in the narrowest format allowed, read once at the specified bandwidth."""
    bits = job.bits[-1]
    bytes_each = min(WEIGHT_BYTES[ENGINE_FORMATS[bits]], FORMAT_BITS[LOCAL_FORMATS[bits]] / 8)
    read = weight_bytes_read(job.arch, "F16") / 2.0 * bytes_each
    return read / (n * accelerator.memory_bandwidth_bytes_per_s)


def least_replicas(job: Job, accelerator: Accelerator, ranks: int) -> int:
    """No fewer carry the load: every peak reached, weights read once for a full batch."""
    rate = job.load.requests_per_s
    if rate is None:
        return 1
    tokens = job.load.prompt_tokens + job.load.output_tokens
    peak = max(accelerator.peak_flop_per_s.values(), default=0.0)
    if not peak:
        return 1
    arithmetic = tokens * job.flop_per_served_token / (peak * ranks)
    stream = job.load.output_tokens * least_token_s(job, accelerator, ranks) / _most_sequences(job, accelerator, ranks)
    return max(1, math.ceil(rate * PEAK_OVER_MEAN * max(arithmetic, stream)))


def _most_sequences(job: Job, accelerator: Accelerator, ranks: int) -> float:
    """The most sequences whose cache fits beside the narrowest weights, up to the largest batch."""
    empty = _engine_memory(job, accelerator, job.bits[-1], ranks, 0)
    one = _engine_memory(job, accelerator, job.bits[-1], ranks, 1)
    return min(max((one.most - empty.total) / (one.total - empty.total), 1.0), float(BATCHES[-1]))


def serve_on(job: Job, cluster: Cluster, ranks: int) -> Served | TooLargeToServe:
    """One replica on ``ranks`` devices of ``cluster`` in the widest format that fits and is fast enough, by whichever engine
    is faster.

    Raises UnpredictableError when neither engine's kernels can be predicted on the device.
    """
    slow: Served | None = None
    refusal: GpuwiseError | None = None
    for bits in job.bits:
        found: list[Served] = []
        if _local(job, ranks) and _local_memory(job, cluster.accelerator, bits, ranks).fits:
            found.append(_locally(job, cluster.accelerator, bits, ranks))
        if _engine_memory(job, cluster.accelerator, bits, ranks, max(job.load.users, 1)).fits:
            try:
                found.append(_by_engine(job, cluster, bits, ranks))
            except (InputError, UnpredictableError) as error:
                refusal = refusal or error
        if found:
            best = min(found, key=lambda s: (s.replicas, 1 / s.tokens_per_s.expected))
            if best.tokens_per_s.expected >= job.load.least_tokens_per_s:
                return best
            slow = best
    if slow is not None:
        return slow
    if refusal is not None:
        raise refusal
    return least_short(job, cluster.accelerator, ranks)


def _local(job: Job, n: int) -> bool:
    """Whether llama.cpp is a way: one user."""
    return job.load.users == 1 and n <= 4


def _local_memory(job: Job, accelerator: Accelerator, bits: int, n: int) -> ServingMemory:
    return local_memory(job.arch, accelerator, LOCAL_FORMATS[bits], n_devices=n, context=job.load.context)


def _engine_memory(job: Job, accelerator: Accelerator, bits: int, n: int, sequences: int) -> ServingMemory:
    context = job.load.context if job.load.users else _length(job)
    return engine_memory(job.arch, accelerator, ENGINE_FORMATS[bits], tp=n, sequences=sequences, context=context)


def _length(job: Job) -> int:
    return min(job.load.prompt_tokens + job.load.output_tokens, job.arch.max_seq_len)


def _locally(job: Job, accelerator: Accelerator, bits: int, ranks: int) -> Served:
    """llama.cpp: layers in turn on the devices. The fit knows NVIDIA and Apple; other vendors get a wider interval."""
    name = LOCAL_FORMATS[bits]
    context = min(job.load.context, job.arch.max_seq_len)
    one = token_time(job.arch, accelerator, name, context=context / 2, n_devices=ranks)
    sigma = float(one.log_sigma[0])
    basis: Basis = one.basis
    notes: tuple[str, ...] = ()
    if accelerator.vendor not in load_json("single_stream")["form"]["vendors"]:
        sigma *= float(load_json("memory_bound")["log_sigma"][NEW_VENDOR_FACTOR])
        basis = "extrapolated"
        notes = ("llama.cpp was fitted on NVIDIA and Apple devices only",)
    seconds = Estimate.from_log_sigma(float(one.time_s[0]), sigma, basis)
    memory = _local_memory(job, accelerator, bits, ranks)
    rate = _inverse(seconds)
    return Served(bits, name, "llama.cpp", ranks, 1, 1, rate, rate.expected, memory, tier_of(job, bits), notes)


def _by_engine(job: Job, cluster: Cluster, bits: int, ranks: int) -> Served:
    """vLLM on a tensor-parallel group. Raises InputError for a split the model cannot have, UnpredictableError."""
    serving = Serving(weights=ENGINE_FORMATS[bits], tp=ranks, moe_tp=ranks if job.arch.moe is not None else 1)
    if ranks > min(cluster.system.domain_size, cluster.n_accelerators):
        raise InputError(f"{ranks} ranks are more than the {cluster.system.domain_size} with fast links")
    batches = _batches(job, cluster.accelerator, bits, ranks)
    length = _length(job)
    seen = job.load.context // 2 if job.load.users else job.load.prompt_tokens + job.load.output_tokens // 2
    rows = Iterations(
        np.array([*batches, 1]),
        np.array([1] * len(batches) + [job.load.prompt_tokens]),
        np.array([max(min(seen, job.arch.max_seq_len), 1)] * len(batches) + [job.load.prompt_tokens]),
    )
    device, costs = device_times(job.arch, cluster.system, serving, rows), engine_costs(serving)
    seconds = with_engine(device, costs, rows.sequences.astype(np.float64), job.arch.n_layers)
    steps, prefill = seconds[:-1], float(seconds[-1])
    basis = weakest(device.basis, "fitted")
    capacity = 1.0 / (prefill + job.load.output_tokens * steps / np.array(batches))
    quick = job.load.least_tokens_per_s * steps <= 1.0
    best = int(np.argmax(np.where(quick, capacity, 0.0))) if job.load.requests_per_s is not None else 0
    rate = job.load.requests_per_s
    replicas = 1 if rate is None else max(1, math.ceil(rate * PEAK_OVER_MEAN / float(capacity[best])))
    step = Estimate.from_log_sigma(float(steps[best]), float(spread(device, costs)[best]), basis)
    notes = () if bits != 8 or "fp8" in cluster.accelerator.peak_flop_per_s else ("8-bit weights are widened on the way",)
    return Served(
        bits,
        ENGINE_FORMATS[bits],
        "vllm",
        ranks,
        replicas,
        batches[best],
        _inverse(step),
        float(capacity[best]) * length * replicas if rate is not None else job.load.users / step.expected,
        _engine_memory(job, cluster.accelerator, bits, ranks, batches[best]),
        tier_of(job, bits),
        notes,
    )


def _batches(job: Job, accelerator: Accelerator, bits: int, ranks: int) -> tuple[int, ...]:
    """The users, or under a load every batch that fits."""
    if job.load.requests_per_s is None:
        return (job.load.users,)
    return tuple(b for b in BATCHES if _engine_memory(job, accelerator, bits, ranks, b).fits)


def _inverse(seconds: Estimate) -> Estimate:
    return Estimate(1 / seconds.high, 1 / seconds.expected, 1 / seconds.low, seconds.basis)
