"""A second embedding of each token for every layer (Gemma 3n, Gemma 4 E2B; transformers modeling_gemma4.py): a gate of the
layer's output lets it in, and a projection adds it to the residual. The embedding comes from a table that is only looked up, and
from a projection of the first hidden states, counted here as the share of one layer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwise.facts.models.architecture import Architecture
from gpuwise.workload.blocks.block import Block
from gpuwise.workload.blocks.ends import norm_weights

if TYPE_CHECKING:
    from gpuwise.workload.blocks.rows import Rows


class PerLayerInput(Block):
    """Gate, product, projection and norm at the end of a layer."""

    where = "per_layer"
    token_launches = 6

    def parameters(self, arch: Architecture) -> dict[str, int]:
        return {"mlp": 3 * arch.hidden * arch.per_layer_embedding, "norm": norm_weights(arch, arch.hidden)}

    def products(self, arch: Architecture) -> list[tuple[str, int, int]]:
        h, w = arch.hidden, arch.per_layer_embedding
        return [("per_layer_input_gate", h, w), ("per_layer_projection", w, h)]

    def fused_rows(self, rows: Rows, arch: Architecture) -> None:
        """Rows, not divided over tensor ranks: the table's rows are narrow."""
        p, h, w = rows.point, arch.hidden, arch.per_layer_embedding
        elements = float(p.tokens * w)
        rows.linear("per_layer.model_projection", p.tokens, h, w)
        rows.linear("per_layer.gate", p.tokens, h, w)
        rows.memory(
            "per_layer.activation",
            2 * elements,
            elements,
            saved=2 * elements,
            backward_read=3 * elements,
            backward_written=2 * elements,
        )
        rows.linear("per_layer.projection", p.tokens, w, h)
        rows.norm("per_layer.norm", p.shard_tokens, h, kind=arch.norm, fp32=arch.norm_in_fp32)
        rows.residual("per_layer.residual", p.shard_tokens, h)
