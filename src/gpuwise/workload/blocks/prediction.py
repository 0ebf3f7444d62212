"""Multi-token prediction: blocks behind the last layer that predict the tokens after the next one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from gpuwise.facts.models.architecture import Architecture
from gpuwise.workload.blocks.ends import loss, norm_weights

if TYPE_CHECKING:
    from gpuwise.workload.blocks.rows import Rows


def prediction(rows: Rows, arch: Architecture, layer: Callable[[Rows], None]) -> None:
    """A multi-token-prediction block: the hidden state and the next token's embedding normed, joined and projected, one
    layer, and logits and loss again (arXiv 2412.19437, section 2.2)."""
    p = rows.point
    vocab = -(-arch.vocab // p.tp)
    for which in ("hidden", "embedding"):
        rows.norm(f"prediction.{which}_norm", p.shard_tokens, arch.hidden, kind=arch.norm, fp32=arch.norm_in_fp32)
    rows.enter("prediction", 2 * arch.hidden)
    rows.linear("prediction.join", p.tokens, 2 * arch.hidden, max(1, arch.hidden // p.tp), saved_tokens=p.column_tokens)
    layer(rows)
    rows.norm("prediction.norm", p.shard_tokens, arch.hidden, kind=arch.norm, fp32=arch.norm_in_fp32)
    rows.enter("head", arch.hidden)
    rows.in_half_precision().linear("prediction.logits", p.tokens, arch.hidden, vocab, saved_tokens=p.column_tokens)
    loss(rows, float(p.tokens * vocab))


def prediction_weights(arch: Architecture, layer: int) -> int:
    """A block with a layer of ``layer`` weights, the 2H x H projection and three norms (arXiv 2412.19437, section 2.2)."""
    return layer + 2 * arch.hidden**2 + 3 * norm_weights(arch, arch.hidden)
