"""Routed experts: router, dispatch, one grouped product, combine, and the shared experts.

Collectives are written where they happen, named ``group.operation.where``; their payload is the full gathered buffer
(all_gather, reduce_scatter), the buffer of each rank (all_reduce) or what a rank holds (all_to_all, send_recv).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwise.dtypes import FORMAT_BYTES
from gpuwise.facts.models.architecture import Architecture, Moe
from gpuwise.workload.blocks.block import Block
from gpuwise.workload.blocks.mlp import activation, matrices, mlp, widths
from gpuwise.workload.blocks.point import QUANTIZED, SCALE_BYTES_PER_ELEMENT
from gpuwise.workload.row_codes import BWD, FWD, Kind

if TYPE_CHECKING:
    from gpuwise.workload.blocks.rows import Rows

FP8_DISPATCH_BYTES = 1.0 + 4.0 / 128
"""An 8-bit element and its share of an fp32 scale per 128 (DeepSeek-V3, arXiv 2412.19437, section 3.3.3)."""


_PICK, _ADD = 4.0, 5.0
"""Kernels of an expert in a loop beside its products (transformers 4.57 models/qwen3_moe/modeling_qwen3_moe.py): three for the
places of its tokens and one to pick them out; activation, product with the gate, the routing weights picked out and applied, the
sum."""


class Experts(Block):
    """The experts in place of a layer's MLP."""

    where = "mlp"
    token_launches = 15
    divided_as = "ffn"
    own_row = "moe.activation"
    repeated = ("moe.activation",)
    after_norm = ("moe.router", "moe.shared.up")
    after_activation = ("moe.shared.down",)
    in_one_kernel = ("moe.top_k", "moe.permute", "moe.activation", "moe.down")
    beside_in_decode = "moe.shared"

    def parameters(self, arch: Architecture) -> dict[str, int]:
        m = _moe(arch)
        expert = matrices(arch, m.latent or arch.hidden, m.expert_ffn)
        shared = matrices(arch, arch.hidden, m.shared_ffn) if m.shared_ffn else 0
        return {
            "router": m.n_experts * (arch.hidden + int(m.router_bias)),
            "experts": m.n_experts * expert,
            "active_experts": m.n_active * expert,
            "shared_experts": shared + (arch.hidden if m.shared_gate else 0),
            "latent": 2 * arch.hidden * m.latent,
        }

    def products(self, arch: Architecture) -> list[tuple[str, int, int]]:
        """Routed experts have no adapter."""
        m = _moe(arch)
        latent = [("latent_in", arch.hidden, m.latent), ("latent_out", m.latent, arch.hidden)] if m.latent else []
        return (widths(arch, m.shared_ffn) if m.shared_ffn else []) + latent

    def fused_rows(self, rows: Rows, arch: Architecture) -> None:
        """Tokens are taken as balanced over experts (what training with an auxiliary loss or forced balance gives); each rank
        of the expert-parallel group receives ``tokens * n_active`` rows, those of all tensor ranks where experts are divided
        over them."""
        moe = _moe(arch)
        p = rows.point
        h, e = arch.hidden, p.element_bytes
        local = max(1, moe.n_experts // p.ep)
        tokens = p.shard_tokens
        routed = tokens * moe.n_active
        placed = routed * (p.etp if p.ep == 1 else 1)
        loops = local if p.stack.loops_experts else 0
        width = moe.latent or h
        # routing is computed in fp32 (Megatron-Core moe_router_dtype, DeepSeek-V3 section 2.1.2)
        rows.to.add(
            "moe.router",
            Kind.MATMUL,
            FWD,
            "tf32" if p.precision != "fp32" else "fp32",
            (1, tokens, moe.n_experts, h),
            flop=2.0 * tokens * h * moe.n_experts,
            read_bytes=tokens * h * 4.0,
            written_bytes=tokens * moe.n_experts * 4.0,
            saved=0.0 if p.lora_rank else tokens * h * e,
        )
        rows.memory(
            "moe.top_k", 2.0 * tokens * moe.n_experts, tokens * moe.n_experts, saved=2.0 * tokens * moe.n_experts, n_kernels=6.0
        )
        if moe.latent:
            rows.linear("moe.latent_in", tokens, h, width, saves_input=False)
        rows.memory(
            "moe.permute",
            float(placed * width),
            float(placed * width),
            n_kernels=max(_PICK * loops, 2.0),
            backward_read=float(placed * width),
            backward_written=float(tokens * width),
        )
        _expert_exchange(rows, moe, routed * width)
        if p.etp > 1:  # Megatron-Core token_dispatcher.py: tokens are gathered whole, or their copies after an exchange
            gathered = p.etp * (tokens if p.ep == 1 else routed) * width * e
            for phase in (FWD, BWD):
                rows.collective("tp.all_gather.experts", gathered, phase)
                rows.collective("tp.reduce_scatter.experts", gathered, phase)
        _grouped_mlp(rows, arch, moe, local, routed)
        rows.memory(
            "moe.unpermute",
            float(placed * width),
            float(tokens * width),
            saved=float(placed) + (float(placed * width) if p.stack.keeps_expert_outputs else 0.0),
            n_kernels=max(_ADD * loops, 2.0),
            backward_read=float(tokens * width),
            backward_written=float(placed * width),
        )
        if moe.latent:
            rows.linear("moe.latent_out", tokens, width, h)
        if moe.n_shared:
            mlp(rows, arch, moe.shared_ffn, where="moe.shared", saves_input=p.lora_rank > 0)

    def trained_parts(self, arch: Architecture) -> tuple[int, ...]:
        shared = _moe(arch).shared_ffn
        return (shared,) if shared else ()


def _moe(arch: Architecture) -> Moe:
    assert arch.moe is not None
    return arch.moe


def _expert_exchange(rows: Rows, moe: Moe, elements: int) -> None:
    """``elements`` of tokens out to the experts' ranks and their results back, in both passes. In the backward pass
    gradients go the same ways; those that enter the experts may travel in 8 bits as the tokens do."""
    p = rows.point
    if p.ep == 1:
        return
    once = p.expert_dispatch != "all-to-all"
    copies, reachable = (moe.n_active, moe.top_groups / moe.groups) if once else (0, 1.0)
    into = FP8_DISPATCH_BYTES if p.expert_dispatch == "deepep-fp8" else p.element_bytes
    ways = (
        ("dispatch", FWD, into),
        ("combine", FWD, p.element_bytes),
        ("combine.backward", BWD, into),
        ("dispatch.backward", BWD, p.element_bytes),
    )
    for where, phase, size in ways:
        rows.collective(f"ep.all_to_all.{where}", elements * size, phase, copies=copies, reachable=reachable)


def _grouped_mlp(rows: Rows, arch: Architecture, moe: Moe, local: int, routed: int) -> None:
    ffn, routed = moe.expert_ffn // rows.point.etp, routed * rows.point.etp
    up = ffn * (2 if arch.gated_mlp else 1)
    width = moe.latent or arch.hidden
    _grouped(rows, "moe.up", local, routed, width, up, gated=arch.gated_mlp)
    _expert_bias(rows, arch, "moe.up", local, float(routed * up))
    activation(rows, arch, "moe", float(routed * ffn))
    _grouped(rows, "moe.down", local, routed, ffn, width)
    _expert_bias(rows, arch, "moe.down", local, float(routed * width))


def _expert_bias(rows: Rows, arch: Architecture, name: str, local: int, elements: float) -> None:
    """If each expert has its own launch, its bias is added expert by expert and the parts concatenated (Megatron-Core
    transformer/moe/experts.py ``_apply_bias``): a sum and a copy, and in the backward pass a reduction for each."""
    if not (arch.mlp_bias and rows.point.stack.expert_streams):
        return
    rows.memory(
        f"{name}.bias",
        2 * elements,
        2 * elements,
        n_kernels=local + 1.0,
        backward_read=3 * elements,
        backward_written=2 * elements,
    )


def _grouped(rows: Rows, name: str, local: int, routed: int, k: int, n: int, *, gated: bool = False) -> None:
    """One of the experts' linears with its two backward products; inputs are cast and saved as in a linear layer."""
    p = rows.point
    e = p.element_bytes
    flop, weights = 2.0 * routed * k * n, float(local * k * n)
    frozen = p.lora_rank > 0
    n_kernels, kernel = (float(local), "streams") if p.stack.expert_streams else (1.0, "")
    if p.stack.loops_experts:
        n_kernels = local * (2.0 if name == "moe.up" and gated else 1.0)
    saved_width = FORMAT_BYTES[p.precision] + SCALE_BYTES_PER_ELEMENT.get(p.precision, 0.0) if p.precision in QUANTIZED else e
    rows.quantize(name, FWD, routed, k, n, frozen)
    rows.to.add(
        name,
        Kind.GROUPED,
        FWD,
        p.precision,
        (local, routed, n, k),
        flop=flop,
        read_bytes=(routed * k + weights) * e,
        written_bytes=routed * n * e,
        saved=0.0 if frozen else routed * k * saved_width,
        n_kernels=n_kernels,
        kernel=kernel,
    )
    rows.quantize(name, BWD, routed, k, n, frozen)
    rows.to.add(
        f"{name}.dgrad",
        Kind.GROUPED,
        BWD,
        p.precision,
        (local, routed, k, n),
        flop=flop,
        read_bytes=(routed * n + weights) * e,
        written_bytes=routed * k * e,
        n_kernels=n_kernels,
        kernel=kernel,
    )
    if not frozen:
        rows.to.add(
            f"{name}.wgrad",
            Kind.GROUPED,
            BWD,
            p.precision,
            (local, routed, n, k),
            flop=flop,
            read_bytes=routed * (k + n) * e,
            written_bytes=weights * (8.0 if p.stack.fused_wgrad else e),
            n_kernels=n_kernels,
            kernel=kernel,
        )
