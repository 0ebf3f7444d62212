"""Time of work on a processor (CPU): a roofline whose two ceilings are what published measurements reach.

    product              t = FLOP / (s_k P) + 2 bytes / (s_stream B) + t_fork
      on one thread      t = FLOP / (s_k P / cores) + bytes / (s_stream B) + t_call
    attention            t = FLOP / (s_k P) + bytes / (s_stream B) + t_fork
    stream               t = bytes / (s_stream B) + t_fork
    chain                t = steps c / f + t_call
    training             t = FLOP / (s_network P) + bytes of optimizer states / (s_stream B)

``P`` is the peak at the all-core clock, ``B`` the bandwidth of the memory channels, ``s_k`` the share of the
vector unit (``product``) or of the matrix unit, ``t_fork`` what waking a pool of threads costs, ``f`` the clock
and ``c`` the cycles that one result waits for the one before. Packing the
operands does not overlap with the arithmetic, so the two terms add; what one thread has packed, others read
again. Shares and their widths are ``coefficients/cpu.json``, fitted by ``studies.cpu_fit``; formats without
instructions run as fp32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gpuwise.dtypes import FORMAT_BYTES
from gpuwise.errors import InputError, UnpredictableError
from gpuwise.facts.hardware.cpus import Cpu
from gpuwise.facts.models.architecture import Architecture
from gpuwise.predict.coefficients import load_json
from gpuwise.predict.estimate import Basis, Estimate
from gpuwise.workload.attention_flop import attention_pairs
from gpuwise.workload.optimizer import RULES
from gpuwise.workload.transformer.parameters import count_parameters
from gpuwise.workload.transformer.tables import model_flop_per_token

THREAD_WORK = 2**18
"""Multiply-adds of a product for each thread that OpenBLAS wakes (interface/gemm.c: SMP_THRESHOLD_MIN 65,536 times
GEMM_MULTITHREAD_THRESHOLD 4); below two of them it computes on the thread that calls. Matrix units have other libraries."""

CHAIN_CYCLES = 4.0
"""From a multiply-add to the next one that needs its result: Intel from Skylake on, AMD Zen 3 and 4, Arm Neoverse N1 and V1
(uops.info, Arm's optimisation guides; 5 on Zen and Zen 2)."""


@dataclass(frozen=True, slots=True)
class CpuTime:
    """``time_s`` with the seconds its two ceilings take: ``compute_s`` arithmetic, ``memory_s`` traffic."""

    time_s: Estimate
    compute_s: float
    memory_s: float
    dtype: str
    """Format the arithmetic runs in: fp32 if the processor has no instructions for the requested one."""
    busy_cores: int = 0
    """Cores that work, the small ones included."""

    @property
    def bound(self) -> str:
        """``compute``, ``memory`` or ``latency``, whichever takes most of the time."""
        most = max(self.compute_s, self.memory_s)
        if most < 0.5 * self.time_s.expected:
            return "latency"
        return "compute" if self.compute_s >= self.memory_s else "memory"


def computing_dtype(cpu: Cpu, dtype: str) -> str:
    """The format ``cpu`` computes ``dtype`` in: its own instructions, else fp32."""
    return dtype if dtype in cpu.peak_flop_per_s else "fp32"


def matmul_time(cpu: Cpu, dtype: str, m: float, n: float, k: float, batch: float = 1.0) -> CpuTime:
    """``batch`` products C[m, n] = A[m, k] B[k, n]. Raises InputError for sizes below 1."""
    _check(m, n, k, batch)
    used = computing_dtype(cpu, dtype)
    flop = 2.0 * batch * m * n * k
    moved = batch * ((m * k + k * n) * FORMAT_BYTES[used] + m * n * max(FORMAT_BYTES[used], 2))
    if used in cpu.matrix_dtypes:
        return _roofline(cpu, used, flop, moved)
    cores = cpu.cores + cpu.efficiency_cores
    threads = min(max(flop / 2 // THREAD_WORK, 1.0), cores)
    if threads == 1:
        return _roofline(cpu, used, flop, moved, 1 / cores, "call_s")
    again = 2.0 if min(m, n) > 1 else 1.0  # a product with a vector packs nothing
    return _roofline(cpu, used, flop, again * moved, threads / cores)


def chain_time(cpu: Cpu, steps: float) -> CpuTime:
    """``steps`` fp32 multiply-adds, each of which needs the result of the one before: one thread, at the all-core clock. Raises
    InputError for no step, UnpredictableError for a processor whose clock is unknown."""
    _check(steps)
    if cpu.allcore_hz is None:
        raise UnpredictableError("no clock", f"the clock of {cpu.name} is unknown", hint="name another processor: EPYC 9654")
    _, sigma, _ = share_of_peak(cpu, "product")
    compute = CHAIN_CYCLES * steps / cpu.allcore_hz
    time = compute + load_json("cpu")["call_s"]
    return CpuTime(Estimate.from_log_sigma(time, sigma, "specified"), compute, 0.0, "fp32", 1)


def attention_time(
    cpu: Cpu, dtype: str, batch: float, heads: float, seq: float, head_dim: float, *, causal: bool = True
) -> CpuTime:
    """Forward attention over ``seq`` tokens; scores stay in cache. Raises InputError for sizes below 1."""
    _check(batch, heads, seq, head_dim)
    used = computing_dtype(cpu, dtype)
    flop = 4.0 * batch * heads * head_dim * float(attention_pairs(seq, seq, causal=causal))
    return _roofline(cpu, used, flop, 4.0 * batch * heads * seq * head_dim * FORMAT_BYTES[used])


def stream_time(cpu: Cpu, read_bytes: float, written_bytes: float) -> CpuTime:
    """Time to read and write arrays in memory; for an array in a cache it is 2 to 8 times too long. Raises InputError if
    nothing is moved."""
    moved = read_bytes + written_bytes
    _check(max(moved, 0.0))
    share, sigma, basis = share_of_peak(cpu, "stream")
    memory = moved / (share * cpu.memory_bandwidth_bytes_per_s)
    time = Estimate.from_log_sigma(memory + load_json("cpu")["fork_s"], sigma, basis)
    return CpuTime(time, 0.0, memory, "fp32", cpu.cores + cpu.efficiency_cores)


def training_time(
    cpu: Cpu, arch: Architecture, tokens: float, seq_len: int, *, tokens_per_step: float, dtype: str = "fp32"
) -> CpuTime:
    """Seconds to train on ``tokens``: arithmetic of forward and backward, and AdamW's states once a step.

    The share of peak is that of whole networks in PyTorch, read on single images; larger batches do better,
    which the interval holds. Raises InputError for counts below 1.
    """
    _check(tokens, seq_len, tokens_per_step)
    used = computing_dtype(cpu, dtype)
    share, sigma, basis = share_of_peak(cpu, "network")
    if used in cpu.matrix_dtypes:  # the arithmetic speeds up as products do, what is around it does not
        matrix, matrix_sigma, basis = share_of_peak(cpu, _matrix_kind(cpu))
        share, sigma = share * matrix / share_of_peak(cpu, "product")[0], (sigma**2 + matrix_sigma**2) ** 0.5
    compute = tokens * model_flop_per_token(arch, seq_len) / (share * cpu.peak(used))
    stream, _, _ = share_of_peak(cpu, "stream")
    state = count_parameters(arch).total * (RULES["adamw"].traffic_bytes + 3 * FORMAT_BYTES["fp32"])
    steps = max(tokens / tokens_per_step, 1.0)
    memory = steps * state / (stream * cpu.memory_bandwidth_bytes_per_s)
    return CpuTime(Estimate.from_log_sigma(compute + memory, sigma, basis), compute, memory, used)


def _roofline(cpu: Cpu, dtype: str, flop: float, moved: float, busy: float = 1.0, start: str = "fork_s") -> CpuTime:
    """``busy``: the share of the cores that compute."""
    kind = _matrix_kind(cpu) if dtype in cpu.matrix_dtypes else "product"
    share, sigma, basis = share_of_peak(cpu, kind)
    stream, stream_sigma, _ = share_of_peak(cpu, "stream")
    compute = flop / (share * busy * cpu.peak(dtype))
    memory = moved / (stream * cpu.memory_bandwidth_bytes_per_s)
    time = compute + memory + load_json("cpu")[start]
    estimate = Estimate.from_log_sigma(time, sigma if compute >= memory else stream_sigma, basis)
    return CpuTime(estimate, compute, memory, dtype, round(busy * (cpu.cores + cpu.efficiency_cores)))


def _matrix_kind(cpu: Cpu) -> str:
    return "matrix-apple" if cpu.vendor == "Apple" else "matrix-intel"


def share_of_peak(cpu: Cpu, kind: str) -> tuple[float, float, Basis]:
    """Share of peak, log sigma, and whether this very processor was among those measured."""
    entry: dict[str, Any] = load_json("cpu")["shares"][kind]
    basis: Basis = "fitted" if cpu.id in entry["measured"] else "derived"
    return float(entry["share"]), float(entry["log_sigma"]), basis


def _check(*sizes: float) -> None:
    if not all(1.0 <= size < float("inf") for size in sizes):
        raise InputError("work on a processor needs sizes of at least 1", hint="sizes count elements or bytes")
