"""Decode on a processor (CPU), as llama.cpp does it.

    t = max(bytes of weights and caches / (s_decode B), FLOP / (s_network P32))

``B`` the bandwidth of the memory channels, ``P32`` the fp32 peak at the all-core clock, ``s`` the shares that published
measurements reach (``coefficients/cpu.json``).
"""

from __future__ import annotations

from gpuwise.errors import InputError
from gpuwise.facts.hardware.cpus import Cpu
from gpuwise.facts.models.architecture import Architecture
from gpuwise.predict.cpu import CpuTime, share_of_peak
from gpuwise.predict.estimate import Estimate
from gpuwise.predict.memory.kv_cache import kv_cache_bytes
from gpuwise.serve.engines.llama_cpp import LAYOUT
from gpuwise.serve.formats import weight_bytes_read
from gpuwise.workload.transformer.tables import model_flop_per_token


def token_time(cpu: Cpu, arch: Architecture, weights: str, *, context: float = 1024.0, batch: float = 1.0) -> CpuTime:
    """Seconds of one generated token of each of ``batch`` sequences at ``context`` tokens in an fp16 cache,
    ``weights`` as llama.cpp names them (F16, Q8_0, Q4_K_M).

    Raises UnknownNameError for another format, InputError for a context or a batch below 1.
    """
    if not all(1.0 <= size < float("inf") for size in (context, batch)):
        raise InputError("decoding needs a context and a batch of at least 1")
    cache = float(kv_cache_bytes(arch, context, LAYOUT.unpadded)) * batch
    share, sigma, basis = share_of_peak(cpu, "decode")
    memory = (weight_bytes_read(arch, weights) + cache) / (share * cpu.memory_bandwidth_bytes_per_s)
    network, network_sigma, _ = share_of_peak(cpu, "network")
    flop = batch * model_flop_per_token(arch, min(int(context), arch.max_seq_len)) / 3.0
    compute = flop / (network * cpu.peak("fp32"))
    slow = memory >= compute
    time = Estimate.from_log_sigma(max(memory, compute), sigma if slow else network_sigma, basis)
    return CpuTime(time, compute, memory, "fp32")
