"""Decode on a processor (CPU), as llama.cpp does it.

    t = ((W + q KV) / (s B))^p + (n N f / P32)^p)^(1/p) + k c b
    s = s_kind (channels / 2)^a    at most 0.95

``W`` and ``KV`` bytes of weights and caches of ``n`` sequences, of which a cache is read ``q`` times
(:func:`gpuwise.serve.streams.cache_reads`), ``B`` the bandwidth of the memory channels, of which machines of a kind (desktop,
laptop, server, board, phone) reach a share: what is in their slots is slower than the fastest that the vendor states, and with
many channels one socket's cores do not draw it all. ``N`` weights take ``f`` operations each to unpack and to multiply, at the
fp32 peak ``P32`` with all cores busy (the width of the vector unit, which the integer instructions share). The threads of ``c``
cores wait for one another ``b`` seconds a core after each of ``k`` operations of the graph
(:func:`gpuwise.serve.streams.token_work`). Fitted by :mod:`studies.serving.processor_fit`
(``coefficients/processor_stream.json``).
"""

from __future__ import annotations

from typing import Any

from gpuwise.errors import InputError
from gpuwise.facts.hardware.cpus import Cpu
from gpuwise.facts.models.architecture import Architecture
from gpuwise.predict.coefficients import load_json
from gpuwise.predict.cpu import CpuTime
from gpuwise.predict.estimate import Estimate
from gpuwise.serve.streams import TokenWork, as_measured, token_work

_VECTOR = 32.0
"""fp32 operations a clock of a core whose peak is its matrix unit's (Apple's, four pipes of 128 bits): llama.cpp's own kernels
run on the vector unit."""
_MOST = 0.95
"""Of the bandwidth, what a processor's memory controllers reach at best."""


def token_time(cpu: Cpu, arch: Architecture, weights: str, *, context: float = 1024.0, batch: float = 1.0) -> CpuTime:
    """Seconds of one generated token of each of ``batch`` sequences at ``context`` tokens in an fp16 cache,
    ``weights`` as llama.cpp names them (F16, Q8_0, Q4_K_M).

    Raises UnknownNameError for another format, InputError for a context or a batch below 1.
    """
    if not all(1.0 <= size < float("inf") for size in (context, batch)):
        raise InputError("decoding needs a context and a batch of at least 1")
    model = load_json("processor_stream")
    parts = seconds_by_part(model, cpu, token_work(arch, weights, context, round(batch)), batch)
    total, (memory, compute, _) = overlapped(model, parts), parts
    basis, width = ("fitted", "log_sigma") if cpu.id in model["measured"] else ("derived", "new_log_sigma")
    estimate = Estimate.from_log_sigma(total, model[width][_kind(model, cpu)], basis)
    time = as_measured(estimate, cpu.corrections).widened(arch.open_log_sigma)
    return CpuTime(time, compute, memory, "fp32")


def seconds_by_part(model: dict[str, Any], cpu: Cpu, work: TokenWork, batch: float = 1.0) -> tuple[float, float, float]:
    """Seconds of memory, of arithmetic and of waiting for other threads; the first two overlap."""
    channels = max(cpu.memory_channels, 2.0) / 2.0
    share = min(model["share"][_kind(model, cpu)] * channels ** model["channels_exponent"], _MOST)
    memory = (work.weight_bytes + work.cache_reads * work.cache_bytes) / (share * cpu.memory_bandwidth_bytes_per_s)
    cores, peak = cpu.cores + cpu.efficiency_cores, cpu.peak("fp32")
    if "fp32" in cpu.matrix_dtypes and cpu.allcore_hz:
        peak = min(peak, _VECTOR * cores * cpu.allcore_hz)
    compute = batch * work.weights * model["flop_per_weight"]["half" if work.wide else "quantised"] / peak
    return memory, compute, work.launches * cores * model["wait_s"]


def overlapped(model: dict[str, Any], parts: tuple[float, float, float]) -> float:
    """Seconds of :func:`seconds_by_part` together."""
    memory, compute, wait = parts
    return (memory ** model["overlap"] + compute ** model["overlap"]) ** (1.0 / model["overlap"]) + wait


def _kind(model: dict[str, Any], cpu: Cpu) -> str:
    """Bandwidth class of the machine; an unknown one counts as a desktop."""
    return cpu.kind if cpu.kind in model["share"] else "desktop"
