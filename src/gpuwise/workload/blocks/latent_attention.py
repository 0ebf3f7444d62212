"""Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1): keys and values from one latent vector a token."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwise.facts.models.architecture import Architecture, Mla
from gpuwise.workload.blocks.attention import Attention, rope

if TYPE_CHECKING:
    from gpuwise.workload.blocks.rows import Rows


class LatentAttention(Attention):
    """Self-attention over latents."""

    own_row = "attention.kv_up"
    token_launches = 20
    repeated = ("attention.q_up", "attention.kv_up", "attention.rope", "attention.concat")
    one_product = ("attention.q_down", "attention.kv_down")
    after_norm = ("attention.q_down", "attention.q_up", "attention.kv_up")

    def parameters(self, arch: Architecture) -> dict[str, int]:
        """Equations 9 to 19, with the norms on both latents."""
        mla = _mla(arch)
        qk = mla.qk_nope_head_dim + mla.qk_rope_head_dim
        if mla.q_lora_rank is None:
            query = arch.hidden * arch.heads * qk
        else:
            query = arch.hidden * mla.q_lora_rank + mla.q_lora_rank + mla.q_lora_rank * arch.heads * qk
        down = arch.hidden * (mla.kv_lora_rank + mla.qk_rope_head_dim) + mla.kv_lora_rank
        up = mla.kv_lora_rank * arch.heads * (mla.qk_nope_head_dim + mla.v_head_dim)
        return {"attention": query + down + up + arch.heads * mla.v_head_dim * arch.hidden}

    def products(self, arch: Architecture) -> list[tuple[str, int, int]]:
        h, mla = arch.hidden, _mla(arch)
        qk, up = mla.qk_nope_head_dim + mla.qk_rope_head_dim, mla.qk_nope_head_dim + mla.v_head_dim
        wide = [("kv_down", h, mla.kv_lora_rank + mla.qk_rope_head_dim), ("kv_up", mla.kv_lora_rank, arch.heads * up)]
        if mla.q_lora_rank is None:
            wide.append(("q", h, arch.heads * qk))
        else:
            wide += [("q_down", h, mla.q_lora_rank), ("q_up", mla.q_lora_rank, arch.heads * qk)]
        return [*wide, ("out", arch.heads * mla.v_head_dim, h)]

    def projected(self, rows: Rows, arch: Architecture) -> tuple[int, int, int, int]:
        """Down- and up-projections."""
        mla = _mla(arch)
        p = rows.point
        heads, qk_dim = arch.heads // p.tp, mla.qk_nope_head_dim + mla.qk_rope_head_dim
        if mla.q_lora_rank:
            rows.linear("attention.q_down", p.shard_tokens, arch.hidden, mla.q_lora_rank)
            rows.norm("attention.q_norm", p.shard_tokens, mla.q_lora_rank, kind=arch.norm, fp32=arch.norm_in_fp32)
            rows.linear("attention.q_up", p.tokens, mla.q_lora_rank, heads * qk_dim, saved_tokens=p.shard_tokens)
        else:
            rows.linear("attention.q", p.tokens, arch.hidden, heads * qk_dim)
        rows.linear("attention.kv_down", p.shard_tokens, arch.hidden, mla.kv_lora_rank + mla.qk_rope_head_dim, saves_input=False)
        rows.norm("attention.kv_norm", p.shard_tokens, mla.kv_lora_rank, kind=arch.norm, fp32=arch.norm_in_fp32)
        rows.linear(
            "attention.kv_up",
            p.tokens,
            mla.kv_lora_rank,
            heads * (mla.qk_nope_head_dim + mla.v_head_dim),
            saved_tokens=p.shard_tokens,
        )
        rope(rows, heads * 2 * mla.qk_rope_head_dim)
        elements = float(p.tokens * heads * qk_dim)
        rows.memory("attention.concat", elements, elements, backward_read=elements, backward_written=elements)
        return heads, heads, qk_dim, mla.v_head_dim

    def shared_heads(self, arch: Architecture) -> int:
        return 0

    def cache_elements(self, arch: Architecture, tp: int) -> float:
        mla = _mla(arch)
        return float(mla.kv_lora_rank + mla.qk_rope_head_dim)


def _mla(arch: Architecture) -> Mla:
    assert arch.mla is not None
    return arch.mla
