"""A transformer's training step as Hugging Face's modules run it in eager PyTorch, composed of blocks."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gpuwise.facts.models.architecture import Architecture
from gpuwise.workload.blocks.attention import Attention
from gpuwise.workload.blocks.experts import Experts
from gpuwise.workload.blocks.kinds import block_counts, blocks_of_layer
from gpuwise.workload.blocks.mlp import Mlp
from gpuwise.workload.blocks.point import Point
from gpuwise.workload.eager import attention, ends, mlp
from gpuwise.workload.eager.experts import experts
from gpuwise.workload.eager.modules import TURNED, Modules
from gpuwise.workload.eager.tape import Value, add, each, spec


def describes(arch: Architecture, point: Point) -> bool:
    """Whether the modules of ``arch`` are among those written here, for one whole rank and plain precision."""
    described = arch.kind in ("decoder", "encoder", "vision") and not arch.parallel_block and arch.norm in ("rms", "layer")
    described &= arch.position in ("rope", "learned") and not arch.pattern
    described &= arch.global_attention is None and arch.shared_cache is None
    described &= all(type(block) in (Attention, Mlp, Experts) for block in block_counts(arch))
    described &= arch.moe is None or not arch.moe.n_shared or arch.moe.shared_gate
    whole = point.tp == point.cp == point.ep == 1 and point.packed_document_len is None
    plain = point.precision in ("bf16", "fp16", "fp32", "tf32")
    if point.quantized_base:  # experts stored as one tensor are not linear layers that bitsandbytes converts
        described &= arch.moe is None and point.lora_rank > 0 and point.precision in ("bf16", "fp16")
    return described and whole and plain


@dataclass(frozen=True, slots=True)
class Network(Modules):
    """Writes layers and ends of ``arch`` at ``point``."""

    def masked(self) -> Network:
        """The network with the mask that attention without a fused kernel adds to its scores."""
        t, b, s = self.t, self.point.micro_batch, self.point.seq_len
        if self.point.fused_attention or not (self.arch.kind == "decoder" or self.point.stack.masks_padding):
            return self
        if self.arch.kind != "decoder":
            return replace(self, mask=each(t, "mul", [t.leaf((b, 1, 1, s), self.weight_dtype)]))
        column, row = t.leaf((1, 1, 1, s), "i64"), t.leaf((1, 1, s, 1), "i64")
        mask = t.alias(each(t, "le", [column, row], "bool"), (b, 1, s, s), "expand", (0, s * s, s, 1))
        low = t.leaf((), self.weight_dtype)
        return replace(self, mask=t.run("where", [mask, low, low], [spec((b, 1, s, s), self.weight_dtype)], overload="self")[0])

    def layer(self, x: Value, kind: str, around: tuple[Value, Value] | None) -> Value:
        """One layer of ``kind``: ``dense`` or ``moe``, ``.local`` where its attention is windowed."""
        a, t = self.arch, self.t
        mixing, feed_forward = blocks_of_layer(a, kind)
        assert isinstance(mixing, Attention)
        window = mixing.window(a)
        if a.kind == "encoder" and not a.final_norm:  # BERT: norms behind the residuals
            with t.frame(x):
                attended = attention.attended(self, x, window, around)
            with t.frame(attended, x):
                x = self.norm("norm", add(t, t.bind(self.dropped(attention.projected(self, attended))), x))
            with t.frame(x):
                inner = t.bind(mlp.activated(self, self.linear("up", x, a.ffn, bias=a.mlp_bias)))
                inner = self.linear("down", inner, a.hidden, bias=a.mlp_bias)
                return self.norm("norm", add(t, t.bind(self.dropped(inner)), x))
        first = a.norm == "layer"
        normed = self.norm("attention_norm", x)
        inner = attention.attention(self, normed, window, around)
        if a.norms_per_layer == 4:
            inner = self.norm("post_attention_norm", inner)
        inner = self.dropped(inner)
        if a.family in TURNED:
            inner = t.bind(inner)
        with t.frame(*((normed,) if a.family in TURNED else ())):
            x = add(t, inner, x) if first else add(t, x, inner)
        inner = self.norm("mlp_norm", t.bind(x))
        inner = experts(self, inner, a.moe) if isinstance(feed_forward, Experts) and a.moe is not None else mlp.mlp(self, inner)
        if a.norms_per_layer == 4:
            inner = self.norm("post_mlp_norm", inner)
        return add(t, inner, x) if a.kind == "vision" else add(t, x, inner)

    def embedding(self, table: Value | None) -> tuple[Value, tuple[Value, Value] | None]:
        """The first hidden states [B, S, H], and the cosines and sines of rotary positions."""
        return ends.embedding(self, table)

    def head(self, x: Value, table: Value | None) -> Value:
        """The loss: cross entropy over the vocabulary or the classes, or the mean of the pooled first token."""
        return ends.head(self, x, table)
