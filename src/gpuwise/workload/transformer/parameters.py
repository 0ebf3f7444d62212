"""Parameters of a model, counted from its dimensions: total, active per token, and by part.

Shapes: H hidden, F ffn, A query heads, K kv heads, D head_dim, V vocabulary, E experts.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from gpuwise.facts.models.architecture import Architecture, Encoder, Mamba


@dataclass(frozen=True, slots=True)
class LayerParameters:
    """One transformer layer, by part."""

    attention: int
    norm: int
    cross_attention: int = 0
    mlp: int = 0
    router: int = 0
    experts: int = 0
    """All routed experts."""
    active_experts: int = 0
    """The routed experts one token uses."""
    shared_experts: int = 0
    """Shared experts and their gate."""
    latent: int = 0
    """Projections of tokens to the width of the routed experts and back."""
    mamba: int = 0
    """A state-space mixer."""

    @property
    def total(self) -> int:
        """Parameters of one layer, every expert counted."""
        dense = self.attention + self.norm + self.cross_attention + self.mlp
        return dense + self.router + self.experts + self.shared_experts + self.latent + self.mamba

    @property
    def active(self) -> int:
        """Parameters one token uses."""
        return self.total - self.experts + self.active_experts


@dataclass(frozen=True, slots=True)
class ParameterCount:
    """Parameters of a whole model. ``total = embedding + stem + layers + encoder + final_norm + head +
    extra``."""

    embedding: int
    """Tables looked up by token, position and type, with their norm and width projection."""
    stem: int
    """Patch or audio input convolutions."""
    layer: LayerParameters | None
    """One dense layer of the main stack; None when every layer has experts."""
    n_layers: int
    """Dense layers."""
    moe_layer: LayerParameters | None
    n_moe_layers: int
    encoder_layer: LayerParameters | None
    n_encoder_layers: int
    stack_tables: int
    """Relative-position tables (T5), one per stack."""
    final_norm: int
    """The last norm of each stack."""
    head: int
    """The output projection's own weights: 0 when tied to the embedding."""
    tied_head: int
    """Weights of the embedding that serve again as output projection."""
    extra: int
    prediction: int
    """Multi-token-prediction blocks without the shared embedding and head; not in ``total``."""
    lookup: int
    """The part of ``embedding`` (and of ``stack_tables``) that is only looked up: no multiplication uses
    it."""
    hybrid_layers: tuple[tuple[LayerParameters, int], ...] = ()
    """Each kind of layer of a model with a pattern, and how many there are; the other layers are then none."""

    def _sum(self, part: str) -> int:
        stacks = (
            (self.layer, self.n_layers),
            (self.moe_layer, self.n_moe_layers),
            (self.encoder_layer, self.n_encoder_layers),
            *self.hybrid_layers,
        )
        return sum(getattr(layer, part) * n for layer, n in stacks if layer is not None)

    @property
    def layers(self) -> int:
        """All layers of all stacks."""
        return self._sum("total")

    @property
    def attention(self) -> int:
        """Self- and cross-attention of all layers."""
        return self._sum("attention") + self._sum("cross_attention")

    @property
    def mlp(self) -> int:
        """Dense feed-forward blocks of all layers."""
        return self._sum("mlp")

    @property
    def router(self) -> int:
        """Routers of all layers."""
        return self._sum("router")

    @property
    def experts(self) -> int:
        """Routed experts of all layers."""
        return self._sum("experts")

    @property
    def latent(self) -> int:
        """Projections to the width of the routed experts and back, of all layers."""
        return self._sum("latent")

    @property
    def mamba(self) -> int:
        """State-space mixers of all layers."""
        return self._sum("mamba")

    @property
    def shared_experts(self) -> int:
        """Shared experts of all layers."""
        return self._sum("shared_experts")

    @property
    def norm(self) -> int:
        """Norms inside layers and the last ones."""
        return self._sum("norm") + self.final_norm

    @property
    def encoder(self) -> int:
        """The encoder's layers."""
        return 0 if self.encoder_layer is None else self.encoder_layer.total * self.n_encoder_layers

    @property
    def total(self) -> int:
        """Every parameter, a tied head counted once."""
        outside = self.embedding + self.stem + self.stack_tables + self.final_norm + self.head + self.extra
        return self.layers + outside

    @property
    def active(self) -> int:
        """Parameters one token uses: all but the routed experts it is not sent to. Tables count whole."""
        return self.total - self._sum("experts") + self._sum("active_experts")

    @property
    def embedding_free(self) -> int:
        """Parameters that multiply: without look-up tables, with the output head even when tied. ``2 x``
        this is a dense model's forward FLOP per token apart from attention scores."""
        return self.total - self.lookup + self.tied_head

    @property
    def active_embedding_free(self) -> int:
        """``embedding_free`` of the experts one token uses."""
        return self.embedding_free - self.total + self.active


@lru_cache(256)
def count_parameters(arch: Architecture) -> ParameterCount:
    """Every stored weight of ``arch``, exactly, from its dimensions."""
    embedding, lookup = _embedding(arch)
    tables = 0
    if arch.position == "relative":
        stacks = (arch.heads,) if arch.encoder is None else (arch.heads, arch.encoder.heads)
        tables = arch.relative_buckets * sum(stacks)
    moe_layer = None if arch.moe is None or arch.pattern else _layer(arch, moe=True)
    kinds = arch.layer_blocks
    dense = 0 if kinds else arch.n_dense_layers
    encoder = arch.encoder
    n_stacks = 1 if encoder is None else 2
    vocabulary = arch.vocab * (arch.embedding_dim or arch.hidden) if arch.lm_head else 0
    classifier = arch.n_classes * (arch.hidden + 1)
    return ParameterCount(
        embedding=embedding,
        stem=_stem(arch),
        layer=_layer(arch, moe=False) if dense else None,
        n_layers=dense,
        moe_layer=moe_layer,
        n_moe_layers=0 if kinds else arch.n_moe_layers,
        encoder_layer=None if encoder is None else _encoder_layer(arch, encoder),
        n_encoder_layers=0 if encoder is None else encoder.n_layers,
        stack_tables=tables,
        final_norm=n_stacks * _norm(arch, arch.hidden) if arch.final_norm else 0,
        head=(0 if arch.tied_embeddings else vocabulary) + (arch.vocab if arch.head_bias else 0) + classifier,
        tied_head=vocabulary if arch.tied_embeddings else 0,
        extra=arch.extra_parameters,
        prediction=arch.prediction_layers * _prediction_block(arch),
        lookup=lookup + tables,
        hybrid_layers=tuple((_blocks(arch, kind), kinds.count(kind)) for kind in dict.fromkeys(kinds)),
    )


def _norm(arch: Architecture, width: int) -> int:
    """Weights of one norm over ``width`` channels."""
    return width * {"rms": 1, "layer": 2, "layer-no-bias": 1, "none": 0}[arch.norm]


def _embedding(arch: Architecture) -> tuple[int, int]:
    """(all input tables with their norm and projection, the part that is only looked up)."""
    width = arch.embedding_dim or arch.hidden
    tables = arch.vocab * width + arch.n_token_types * width
    if arch.position == "learned":
        tables += (arch.position_rows or arch.max_seq_len) * arch.hidden
    if arch.encoder is not None:
        tables += arch.encoder.position_rows * arch.encoder.hidden
    total = tables
    if arch.embedding_norm:
        total += _norm(arch, width) * (1 if arch.encoder is None else 2)
    if width != arch.hidden:
        # one projection in, and one out before the tied head
        total += width * arch.hidden * (2 if arch.lm_head else 1)
    return total, tables


def _stem(arch: Architecture) -> int:
    """Patch embedding with its class token (ViT), or the two audio convolutions (Whisper)."""
    total = 0
    if arch.patches is not None:
        p = arch.patches
        total += p.channels * p.patch_size**2 * arch.hidden
        total += arch.hidden * (int(p.bias) + int(p.class_token))
    if arch.encoder is not None and arch.encoder.n_mels:
        h = arch.encoder.hidden
        total += 3 * arch.encoder.n_mels * h + h + 3 * h * h + h
    return total


def _attention(arch: Architecture, hidden: int, heads: int, kv_heads: int, head_dim: int) -> int:
    """Projections of one attention with their biases, query-key norms and sinks."""
    if arch.mla is not None:
        return _latent_attention(arch)
    q, kv = heads * head_dim, kv_heads * head_dim
    total = hidden * (q + 2 * kv) + q * hidden
    if arch.qkv_bias:
        total += q + kv * (2 if arch.key_bias else 1)
    if arch.attention_out_bias:
        total += hidden
    if arch.qk_norm and arch.qk_norm_weights:
        total += q + kv if arch.qk_norm_full else 2 * head_dim
    if arch.attention_sinks:
        total += heads
    return total


def _latent_attention(arch: Architecture) -> int:
    """Multi-head latent attention (arXiv 2405.04434, eqs. 9-19) with the norms on both latents."""
    mla = arch.mla
    assert mla is not None
    qk = mla.qk_nope_head_dim + mla.qk_rope_head_dim
    if mla.q_lora_rank is None:
        query = arch.hidden * arch.heads * qk
    else:
        query = arch.hidden * mla.q_lora_rank + mla.q_lora_rank + mla.q_lora_rank * arch.heads * qk
    down = arch.hidden * (mla.kv_lora_rank + mla.qk_rope_head_dim) + mla.kv_lora_rank
    up = mla.kv_lora_rank * arch.heads * (mla.qk_nope_head_dim + mla.v_head_dim)
    return query + down + up + arch.heads * mla.v_head_dim * arch.hidden


def _mlp(arch: Architecture, hidden: int, ffn: int) -> int:
    matrices = 3 if arch.gated_mlp else 2
    bias = (matrices - 1) * ffn + hidden if arch.mlp_bias else 0
    return matrices * hidden * ffn + bias


def _layer(arch: Architecture, *, moe: bool) -> LayerParameters:
    attention = _attention(arch, arch.hidden, arch.heads, arch.kv_heads, arch.head_dim)
    cross = 0 if arch.encoder is None else attention
    n_norms = arch.norms_per_layer + (0 if arch.encoder is None else 1)
    norm = n_norms * _norm(arch, arch.hidden)
    if not moe:
        return LayerParameters(attention, norm, cross, mlp=_mlp(arch, arch.hidden, arch.ffn))
    return LayerParameters(attention, norm, cross, **_experts(arch))


def _experts(arch: Architecture) -> dict[str, int]:
    """The parts of a layer with experts that are theirs."""
    m = arch.moe
    assert m is not None
    expert = _mlp(arch, m.latent or arch.hidden, m.expert_ffn)
    shared = _mlp(arch, arch.hidden, m.shared_ffn) if m.shared_ffn else 0
    return {
        "router": m.n_experts * (arch.hidden + int(m.router_bias)),
        "experts": m.n_experts * expert,
        "active_experts": m.n_active * expert,
        "shared_experts": shared + (arch.hidden if m.shared_gate else 0),
        "latent": 2 * arch.hidden * m.latent,
    }


def _blocks(arch: Architecture, blocks: str) -> LayerParameters:
    """One layer of the sub-blocks ``blocks``, each with a norm."""
    parts = _experts(arch) if "E" in blocks else {}
    attention = _attention(arch, arch.hidden, arch.heads, arch.kv_heads, arch.head_dim)
    return LayerParameters(
        attention * sum(b in "*P" for b in blocks),
        len(blocks) * _norm(arch, arch.hidden),
        mlp=blocks.count("-") * _mlp(arch, arch.hidden, arch.ffn),
        mamba=sum(_mixer(arch.hidden, arch.mamba) for b in blocks if b in "MP" and arch.mamba is not None),
        **parts,
    )


def _mixer(hidden: int, m: Mamba) -> int:
    """A state-space mixer: projections in and out, the convolution, and of the recurrence decay, skip and step (of
    each head in Mamba-2; in Mamba of each channel, with the projections that make step, B and C from it)."""
    total = hidden * m.in_width + m.inner * hidden + (m.in_width + hidden if m.projection_bias else 0)
    total += m.conv_width * (m.conv + int(m.conv_bias))
    if m.heads:
        return total + 3 * m.heads + (m.inner if m.gated_norm else 0)
    total += m.inner * (m.dt_rank + 2 * m.state) + m.dt_rank * m.inner + m.inner
    total += m.inner * m.state + m.inner
    return total + (m.dt_rank + 2 * m.state if m.parameter_norms else 0)


def _encoder_layer(arch: Architecture, encoder: Encoder) -> LayerParameters:
    return LayerParameters(
        _attention(arch, encoder.hidden, encoder.heads, encoder.heads, encoder.head_dim),
        arch.norms_per_layer * _norm(arch, encoder.hidden),
        mlp=_mlp(arch, encoder.hidden, encoder.ffn),
    )


def _prediction_block(arch: Architecture) -> int:
    """A multi-token-prediction block: one layer, the 2H x H projection and three norms (arXiv 2412.19437,
    sec. 2.2)."""
    layer = _layer(arch, moe=arch.moe is not None)
    return layer.total + 2 * arch.hidden**2 + 3 * _norm(arch, arch.hidden)
