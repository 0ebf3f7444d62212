"""Seconds of the rows of a serving iteration: weights from memory, attention over the cache, engines' own
all-reduce."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.facts.hardware.systems import System
from gpuwise.facts.models.architecture import Architecture
from gpuwise.predict.coefficients import load_json
from gpuwise.predict.comm.collectives import collective_time
from gpuwise.predict.estimate import Basis, weakest
from gpuwise.predict.kernels.accelerator_factors import family_factor
from gpuwise.predict.kernels.attention.fused import attention_decode_time, attention_forward_time
from gpuwise.predict.kernels.attention.implementations import serving_kernel
from gpuwise.predict.kernels.conditions import SERVING
from gpuwise.predict.kernels.experts.grouped import moe_layer_time
from gpuwise.predict.kernels.experts.loads import Distribution, loads_of
from gpuwise.predict.kernels.kernel_time import KernelTime
from gpuwise.predict.kernels.lookup.tables import gather_time
from gpuwise.predict.kernels.memory_bound import dram_rate, memory_time
from gpuwise.predict.kernels.registry import DistinctCalls, kernel_times
from gpuwise.predict.kernels.single import matmul
from gpuwise.serve.engines.engine import Engine, EngineConfig, version_number
from gpuwise.serve.formats import BNB, FORMATS
from gpuwise.serve.unpacked import unpacked_time
from gpuwise.workload.blocks.kinds import LATENT
from gpuwise.workload.blocks.mlp import matrices
from gpuwise.workload.row_codes import Kind
from gpuwise.workload.step import FAMILIES, OpTable

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
Mask = NDArray[np.bool_]
LATENT_COMPUTE, LATENT_STREAM = 0.6, 0.8
"""Share of peak arithmetic and of bandwidth that latent-attention decode reaches (FlashMLA's published 660 of
989 TFLOP/s compute-bound and 3000 of 3350 GB/s memory-bound on H800, less the tail of a step)."""

EVEN_EXPERTS = 8
"""Number of experts up to which real text is distributed almost evenly (Mixtral of Experts, arXiv 2401.04088, figure 7: each
near an eighth in every layer and on every domain)."""


class RowTimes(NamedTuple):
    """Seconds [R] per launch: of kernels and of collectives (each row has one of the two)."""

    kernel_s: F64
    communication_s: F64
    log_sigma: F64
    basis: Basis


@dataclass(frozen=True, eq=False)
class IterationRows:
    """Rows of iterations, the same on every device and in every format; derived properties of their names are computed once."""

    table: OpTable
    owner: I64
    """[R] which iteration a row is of."""
    count: F64
    """[R] times that the iteration launches it."""
    sequences: I64
    """[R] of each row's iteration, as ``q_len`` and ``kv_len``."""
    q_len: I64
    kv_len: I64

    def __len__(self) -> int:
        return len(self.table)

    @cached_property
    def absorbed(self) -> Mask:
        """Up-projections that latent attention's decode does without."""
        return self._named(lambda name: name == LATENT.own_row) & (self.q_len == 1)

    @cached_property
    def products(self) -> tuple[Mask, OpTable, Mask]:
        """Rows that are products, and among them those multiplied in 16 bits regardless of the weights' format."""
        mask = (self.table.kind == Kind.MATMUL) & ~self.absorbed
        return mask, self.table.select(mask), self._named(lambda name: name.startswith(("head.", "moe.router")))[mask]

    @cached_property
    def own_kernel(self) -> tuple[tuple[Mask, OpTable], ...]:
        """Rows that name a kernel of their own, as a mixer's recurrence, and convolutions."""
        named = (self.table.kind == Kind.MEMORY) & (self.table.kernel != 0)
        masks = (named, self.table.kind == Kind.CONVOLUTION)
        return tuple((mask, self.table.select(mask)) for mask in masks if mask.any())

    @cached_property
    def summed(self) -> Mask:
        """All-reduces over the tensor group that shared experts' sum is not part of."""
        return self._named(lambda name: name.startswith("tp.all_reduce") and "shared" not in name)

    @cached_property
    def summed_experts(self) -> Mask:
        """Sums over a token's experts."""
        return self._named(lambda name: name == "moe.unpermute")

    def _named(self, wanted: Callable[[str], bool]) -> Mask:
        found = {name: wanted(name) for name in set(self.table.name)}
        return np.array([found[name] for name in self.table.name], bool)


def row_times(rows: IterationRows, arch: Architecture, system: System, config: EngineConfig) -> RowTimes:
    """Evaluate ``rows``."""
    device, table, kv_len, q_len = system.accelerator, rows.table, rows.kv_len, rows.q_len
    kernel, comm, sigma = np.zeros(len(rows)), np.zeros(len(rows)), np.zeros(len(rows))
    bases: list[Basis] = []

    def put(mask: Mask, result: KernelTime) -> None:
        kernel[mask], sigma[mask] = result.time_s, result.log_sigma
        bases.append(result.basis)

    s = table.shape
    if rows.absorbed.any():
        put(rows.absorbed, _absorbed(device, arch, config, s[rows.absorbed, 1]))
    if rows.products[0].any():
        put(rows.products[0], _products(device, config, rows))
    # the fused layer is the row of its first product; its other operations were removed from the rows
    mask = table.kind == Kind.GROUPED
    if mask.any():
        spread = spans_hosts(system, config)
        put(mask, _experts(device, arch, config, rows.sequences[mask] * q_len[mask], beside=q_len[mask] == 1, spread=spread))
    for decode in (True, False):
        mask = (table.kind == Kind.ATTENTION) & ((q_len == 1) == decode)
        if mask.any():
            attention = _attention(device, arch, config, table, mask, kv_len[mask], decode)
            put(mask, _on_card(device, table.family[mask], attention))
    for mask, named in rows.own_kernel:
        made = kernel_times(named, device, SERVING)
        put(mask, KernelTime(made.time_s, made.log_sigma, made.basis))
    mask = (table.kind == Kind.MEMORY) & (table.kernel == 0)
    if mask.any():
        put(mask, _on_card(device, table.family[mask], memory_time(device, table.bytes_read[mask], table.bytes_written[mask])))
    mask = table.kind == Kind.EMBEDDING
    if mask.any():
        put(mask, gather_time(device, s[mask, 0], table.bytes_read[mask] / np.maximum(s[mask, 0], 1), s[mask, 2]))
    if config.tp * config.attention_dp > 1:
        _communicate(rows, arch, system, config, comm)
    return RowTimes(kernel, comm, sigma, weakest(*bases))


def _on_card(device: Accelerator, family: I64, plain: KernelTime) -> KernelTime:
    """``plain`` with what whole networks say of each row's family on cards of which no kernel was measured."""
    codes: list[int] = family.tolist()
    factors = {code: family_factor(device, FAMILIES[code]) for code in set(codes)}
    return plain._replace(time_s=plain.time_s * np.array([factors[code] for code in codes]))


def _products(device: Accelerator, config: EngineConfig, rows: IterationRows) -> KernelTime:
    """Matrix products: the layers' by weights in their format, head and router in 16 bits."""
    if config.weights in config.program.unpacked:
        return _unpacked_products(device, config, rows)
    calls = _distinct_products(rows, product_format(device, config.weights), half_format(device))
    times = calls.times(device, SERVING)
    return KernelTime(times.time_s, times.log_sigma, times.basis)


def _unpacked_products(device: Accelerator, config: EngineConfig, rows: IterationRows) -> KernelTime:
    """Products whose weights the engine unpacks; bitsandbytes leaves the head in 16 bits."""
    _, table, in_half = rows.products
    _, m, n, k = table.shape[:, :4].T
    version = version_number(config.version or config.program.newest)
    fused = version >= version_number(config.program.unpacked[config.weights].plugin_since)
    times = unpacked_time(device, config.weights, half_format(device), m, n, k, fused=fused)
    if config.weights != BNB or not in_half.any():
        return times
    wide = _distinct_products(rows, half_format(device), half_format(device)).times(device, SERVING)
    seconds = np.where(in_half, wide.time_s, times.time_s)
    return times._replace(time_s=seconds, log_sigma=np.where(in_half, wide.log_sigma, times.log_sigma))


@lru_cache(maxsize=64)
def _distinct_products(rows: IterationRows, narrow: str, half: str) -> DistinctCalls:
    _, table, in_half = rows.products
    return DistinctCalls.of(replace(table, dtype=tuple(half if h else narrow for h in in_half.tolist())))


def half_format(device: Accelerator) -> str:
    """The 16-bit format an engine runs in: bf16, or fp16 on devices older than it (vLLM's ``--dtype half``)."""
    older = device.vendor.lower() == "nvidia" and "bf16" not in device.peak_flop_per_s and "fp16" in device.peak_flop_per_s
    return "fp16" if older else "bf16"


def product_format(device: Accelerator, weights: str) -> str:
    """Kernel that multiplies by weights stored as ``weights``: if the device lacks that rate, the weights are widened to 16
    bits (Marlin)."""
    if weights == "bf16":
        return half_format(device)
    if weights in ("fp8", "fp8_block") and "fp8" not in device.peak_flop_per_s:
        return "int8_wo"
    if weights in ("nvfp4", "mxfp4"):
        return next((w for w in ("nvfp4", weights) if w in device.peak_flop_per_s), "int4_wo")
    return weights


def spans_hosts(system: System, config: EngineConfig) -> bool:
    """Whether experts are shared by ranks of several hosts that attend apart: tokens then go to the ranks of their experts alone
    (DeepEP), experts are moved and copied until every rank has as many tokens (EPLB), and of two batches one computes while the
    other communicates, as DeepSeek and SGLang run it (deepseek-ai/open-infra-index, 202502OpenSourceWeek/day_6_one_more_thing;
    lmsys.org/blog/2025-05-05-large-scale-ep)."""
    return config.attention_dp > 1 and config.moe_ep > 1 and config.ranks > max(system.domain_size, system.count)


def _experts(
    device: Accelerator, arch: Architecture, config: EngineConfig, tokens: I64, *, beside: Mask, spread: bool = False
) -> KernelTime:
    """Fused expert layers over ``tokens`` of all ranks, with the skewed routing of real text where experts are many and not
    ``spread`` by load: however alike its tokens are, a batch goes to as many experts as one of them. Where shared experts run
    ``beside`` them on a stream of their own, the weights of both come through the same memory."""
    moe = arch.moe
    assert moe is not None

    skew: Distribution = "power_law" if moe.n_experts > EVEN_EXPERTS and not spread else "balanced"
    n_experts, ep, rows = moe.n_experts, config.moe_ep, tokens.astype(np.float64)
    if config.program.sorts_expert_rows and ep > 1:
        # the measured layer goes through other ranks' rows as well: a layer of the rank's experts over the busiest rank's rows
        one = np.ones_like(rows)
        rows = np.maximum(loads_of(skew, rows, moe.n_active * one, n_experts * one, ep * one, one).routed / moe.n_active, 1.0)
        n_experts, ep = n_experts // ep, 1

    if _padded(config):
        rows = np.maximum(rows, PADDED_ROWS * n_experts / min(moe.n_active, n_experts))
        skew = "balanced"

    least_s: F64 = np.zeros(len(rows))
    if moe.shared_ffn and beside.any():
        one = np.ones_like(rows)
        sizes = tuple(x * one for x in (min(moe.n_active, n_experts), n_experts, ep, 1))
        routed = np.maximum(loads_of(skew, rows, *sizes).active, loads_of("balanced", one, *sizes).active)
        least_s = beside * _weights_s(device, arch, config, routed)

    def seconds(name: str) -> KernelTime:
        found, one = layers(name, rows, skew), layers(name, np.ones(1), "balanced")
        return found._replace(time_s=np.maximum(np.maximum(found.time_s, one.time_s), least_s))

    def layers(name: str, rows: F64, distribution: Distribution) -> KernelTime:
        return moe_layer_time(
            device,
            name,
            rows,
            moe.latent or arch.hidden,
            moe.expert_ffn,
            min(moe.n_active, n_experts),
            n_experts,
            config.moe_tp,
            ep,
            gated=arch.gated_mlp,
            distribution=distribution,
            implementation=_expert_kernel(device, config.program, name, _plain(config, name)),
            cold=True,
        )

    name = expert_format(device, config.expert_weights or config.weights, config.program)
    if name == "fp8" and _plain(config, name):  # in the kernels of block scales, as on Hopper
        name = "fp8_block"
    if name != "int8_wo":
        return seconds(name)
    # not measured: interpolate between the widths on both sides, with or without the cost of widening
    narrow, wide = seconds("int4_wo"), seconds(half_format(device))
    low, width, high = (FORMATS[n].bytes_per_weight for n in ("int4_wo", "int8_wo", "bf16"))
    share = (width - low) / (high - low)
    return narrow._replace(time_s=narrow.time_s + share * np.maximum(wide.time_s - narrow.time_s, 0.0))


def _weights_s(device: Accelerator, arch: Architecture, config: EngineConfig, routed: F64) -> F64:
    """Seconds to read the weights of ``routed`` experts of a rank and of the shared experts."""
    moe = arch.moe
    assert moe is not None
    expert = matrices(arch, moe.latent or arch.hidden, moe.expert_ffn) / config.moe_tp
    shared = matrices(arch, arch.hidden, moe.shared_ffn) / config.tp
    narrow, wide = (FORMATS[name].bytes_per_weight for name in (config.expert_weights or config.weights, config.weights))
    return (routed * expert * narrow + shared * wide) / dram_rate(device)


_TRITON = "sglang_fused_moe_triton"
"""Experts before FlashInfer's, and with ``--moe-backend triton``: measured under SGLang on Blackwell."""


def _plain(config: EngineConfig, weights: str) -> bool:
    """Whether an engine multiplies experts of a format in Triton."""
    since, version = config.program.flashinfer_experts.get(weights), config.version
    if since is None:
        return False
    older = version is not None and version_number(version) < version_number(since)
    return config.experts == "triton" or (config.experts is None and older)


PADDED_ROWS = 32
"""Rows of each expert in Triton that take as long as DeepGEMM's padded ones, all experts among them: of 16, 32, 64 and 128 the
best on token times of Qwen3 235B in 8 bits on H100 whose layouts and devices were kept from it, too (ML.ENERGY, aiconfigurator;
benchmarks/records/serving/engines_2026-11-29.md)."""
_UNPADDED_ON_EIGHT = "0.12"
"""Version since which eight tensor ranks run Triton."""


def _padded(config: EngineConfig) -> bool:
    """Whether the engine's version pads the rows of each expert."""
    versions = config.program.padded_experts.get(config.expert_weights or config.weights)
    if versions is None or config.version is None or config.experts is not None:
        return False
    since, before = (version_number(v) for v in versions)
    mine = version_number(config.version)
    return since <= mine < before and not (config.tp == 8 and mine >= version_number(_UNPADDED_ON_EIGHT))


def _expert_kernel(device: Accelerator, engine: Engine, weights: str, plain: bool = False) -> str | None:
    measured = load_json("moe")["physics"].get(weights, {})
    names = engine.expert_kernels.get(weights, ())
    for name in (*(n for n in names if "flashinfer" not in n), _TRITON) if plain else names:
        if device.family in measured.get(name, {}):
            return name
    return None


def expert_format(device: Accelerator, weights: str, engine: Engine) -> str:
    """The fused expert kernel for weights stored as ``weights``.

    MXFP4 is widened to 16 bits if the engine has no kernel in 8 bits. If Marlin was not measured on these weights, its times
    on four-bit integers are used: the same kernel, whose weights differ in their scales by 3 %. Devices without an 8-bit rate
    widen 8-bit weights as they do those of dense layers (``int8_wo``).
    """
    if weights in ("fp8", "fp8_block") and "fp8" not in device.peak_flop_per_s:
        return "int8_wo"
    if weights == "fp8" and device.family in engine.fp8_experts_in_blocks:
        return "fp8_block"
    if weights == "mxfp4":
        if "mxfp8" in device.peak_flop_per_s and (engine.mxfp8_experts is None or device.family in engine.mxfp8_experts):
            return "w4a8_mxfp4_mxfp8"
        unmeasured = device.vendor == "NVIDIA" and _expert_kernel(device, engine, "w4a16_mxfp4") is None
        return "int4_wo" if engine.marlin_experts and unmeasured else "w4a16_mxfp4"
    if weights == "nvfp4" and "nvfp4" not in device.peak_flop_per_s:
        return "int4_wo"
    return weights


def mxfp4_kernel(device: Accelerator, engine: Engine) -> str:
    """``marlin``, ``triton`` or ``cutlass``: whose kernels multiply experts in MXFP4."""
    name = expert_format(device, "mxfp4", engine)
    if name == "w4a16_mxfp4":
        return "marlin" if "marlin" in (_expert_kernel(device, engine, name) or "") else "triton"
    return "marlin" if name == "int4_wo" else "cutlass"


def _attention(
    device: Accelerator,
    arch: Architecture,
    config: EngineConfig,
    rows: OpTable,
    mask: Mask,
    kv_len: I64,
    decode: bool,
) -> KernelTime:
    b, q, _, heads, kv_heads, dim, v_dim = (rows.shape[mask, i] for i in range(7))
    if not decode:
        return attention_forward_time(
            device,
            half_format(device),
            b,
            q,
            np.maximum(kv_len, q),
            heads,
            kv_heads,
            dim,
            v_dim,
            causal=arch.kind == "decoder",
            window=rows.window[mask],
            kernel=config.attention or serving_kernel(device, config.measured_as, "forward"),
        )
    if arch.mla is not None:
        return _latent_decode(device, arch, config, b, kv_len, heads)
    return attention_decode_time(
        device,
        half_format(device),
        b,
        kv_len,
        heads,
        kv_heads,
        dim,
        window=rows.window[mask],
        kv_dtype=config.kv_dtype,
        kernel=serving_kernel(device, config.measured_as, "decode", config.kv_dtype),
    )


def _absorbed(device: Accelerator, arch: Architecture, config: EngineConfig, tokens: I64) -> KernelTime:
    """Decode's two batched products per layer in place of the up-projection of keys and values: a head's
    query into the latent space, its latent result into values [T, nope] x [nope, r] and [T, r] x [r, v] for
    each of A/t heads, in bf16."""
    assert arch.mla is not None
    m, heads = arch.mla, arch.heads // config.tp
    into = matmul(device, half_format(device), tokens, m.kv_lora_rank, m.qk_nope_head_dim, heads, SERVING)
    out = matmul(device, half_format(device), tokens, m.v_head_dim, m.kv_lora_rank, heads, SERVING)
    return KernelTime(into.time_s + out.time_s, np.maximum(into.log_sigma, out.log_sigma), into.basis)


def _latent_decode(
    device: Accelerator, arch: Architecture, config: EngineConfig, batch: I64, kv_len: I64, heads: I64
) -> KernelTime:
    """Absorbed latent attention (DeepSeek-V2, section 2.1.2): every head reads the one latent of width r +
    rope and sums values of width r; FLOP 2 A (2 r + rope) and (r + rope) elements of cache for each token
    seen."""
    assert arch.mla is not None
    rank, rope = arch.mla.kv_lora_rank, arch.mla.qk_rope_head_dim
    cached_tokens = batch.astype(np.float64) * kv_len
    element = 1.0 if config.kv_dtype == "fp8" else 2.0
    stream = cached_tokens * (rank + rope) * element / (LATENT_STREAM * dram_rate(device))
    arithmetic = 2.0 * cached_tokens * heads * (2 * rank + rope) / (LATENT_COMPUTE * device.peak(half_format(device)))
    launch = memory_time(device, 0.0, 1.0).time_s[0]
    return KernelTime(np.maximum(stream, arithmetic) + 2 * launch, np.full(cached_tokens.shape, 0.25), "specified")


def _communicate(rows: IterationRows, arch: Architecture, system: System, config: EngineConfig, comm: F64) -> None:
    """All-reduces over the tensor group, and what crosses between attention and experts."""
    local = min(config.tp, system.domain_size)
    local = max(d for d in range(1, local + 1) if config.tp % d == 0)
    for graph in (True, False):
        here = (rows.q_len == 1) == graph
        if config.tp > 1:
            mask = rows.summed & here
            comm[mask] = _all_reduce(system, config, rows.table.shape[mask, 0], local, graph)
        # the experts' own sum, shared experts' with it
        mask = rows.summed_experts & here
        if not mask.any():
            continue
        payload = rows.table.bytes_written[mask].astype(np.int64)
        if config.attention_dp == 1:
            comm[mask] += _all_reduce(system, config, payload, local, graph)
        elif spans_hosts(system, config):
            comm[mask] += _all_to_all(system, config, arch, payload, apart=graph)
        else:
            comm[mask] += _exchange(system, config, payload)


def _all_reduce(system: System, config: EngineConfig, payload: NDArray[np.int64], local: int, graph: bool) -> F64:
    return collective_time(system, "all_reduce", payload, config.tp, local, library=config.measured_as, graph=graph).time_s


def _exchange(system: System, config: EngineConfig, payload: NDArray[np.int64]) -> F64:
    """Between data-parallel attention and experts on all ranks: gather every group's tokens, give the sums
    back."""
    ranks = config.tp * config.attention_dp
    local = max(d for d in range(1, min(ranks, system.domain_size) + 1) if ranks % d == 0)
    full = payload * config.attention_dp
    return sum(collective_time(system, op, full, ranks, local).time_s for op in ("all_gather", "reduce_scatter"))  # type: ignore[return-value]


def _all_to_all(system: System, config: EngineConfig, arch: Architecture, payload: NDArray[np.int64], *, apart: bool) -> F64:
    """A token to every rank that has one of its experts, and the results back in 16 bits. Steps without a prompt send to each
    rank (``apart``), others once to each host, which hands it on (deepseek-ai/DeepEP README, low-latency and normal kernels)."""
    moe = arch.moe
    assert moe is not None
    inside = max(system.domain_size, system.count)
    places = config.moe_ep if apart else -(-config.moe_ep // inside)
    copies = places * (1.0 - (1.0 - 1.0 / places) ** moe.n_active)
    if not apart and moe.groups > 1:
        copies = min(copies, float(moe.top_groups))
    narrow = FORMATS[config.expert_weights or config.weights].bytes_per_weight
    share = 0.5 if narrow <= 1.0 else 1.0
    return sum(  # type: ignore[return-value]
        collective_time(system, "all_to_all", payload * copies * part, config.ranks, inside).time_s for part in (share, 1.0)
    )
