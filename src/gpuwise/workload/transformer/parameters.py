"""Parameters of a model, counted from its dimensions: total, active per token, and by part.

Shapes: H hidden, F ffn, A query heads, K kv heads, D head_dim, V vocabulary, E experts.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache

from gpuwise.facts.models.architecture import Architecture, Encoder
from gpuwise.workload.adapters import carries
from gpuwise.workload.blocks.attention import projections
from gpuwise.workload.blocks.ends import embedding_weights, norm_weights, stem_weights
from gpuwise.workload.blocks.kinds import arch_of_layer, blocks_of_layer, is_plain, layer_kinds
from gpuwise.workload.blocks.mlp import matrices
from gpuwise.workload.blocks.prediction import prediction_weights


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
    mixer: int = 0
    """Mixers of the sequence beside attention (state space)."""

    @property
    def total(self) -> int:
        """Parameters of one layer, every expert counted."""
        dense = self.attention + self.norm + self.cross_attention + self.mlp
        return dense + self.router + self.experts + self.shared_experts + self.latent + self.mixer

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
    def mixer(self) -> int:
        """Mixers of all layers."""
        return self._sum("mixer")

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
    embedding, lookup = embedding_weights(arch)
    tables = 0
    if arch.position == "relative":
        stacks = (arch.heads,) if arch.encoder is None else (arch.heads, arch.encoder.heads)
        tables = arch.relative_buckets * sum(stacks)
    differ = arch.global_attention is not None or arch.shared_cache is not None
    kinds = tuple(layer_kinds(arch)) if differ else arch.layer_blocks
    dense = 0 if kinds else arch.n_dense_layers
    encoder = arch.encoder
    n_stacks = 1 if encoder is None else 2
    vocabulary = arch.vocab * (arch.embedding_dim or arch.hidden) if arch.lm_head else 0
    classifier = arch.n_classes * (arch.hidden + 1)
    return ParameterCount(
        embedding=embedding,
        stem=stem_weights(arch),
        layer=_layer(arch, "dense") if dense else None,
        n_layers=dense,
        moe_layer=None if arch.moe is None or kinds else _layer(arch, "moe"),
        n_moe_layers=0 if kinds else arch.n_moe_layers,
        encoder_layer=None if encoder is None else _encoder_layer(arch, encoder),
        n_encoder_layers=0 if encoder is None else encoder.n_layers,
        stack_tables=tables,
        final_norm=n_stacks * norm_weights(arch, arch.hidden) if arch.final_norm else 0,
        head=(0 if arch.tied_embeddings else vocabulary) + (arch.vocab if arch.head_bias else 0) + classifier,
        tied_head=vocabulary if arch.tied_embeddings else 0,
        extra=arch.extra_parameters,
        prediction=arch.prediction_layers * _prediction_block(arch),
        lookup=lookup + tables,
        hybrid_layers=tuple((_layer(arch, kind), kinds.count(kind)) for kind in dict.fromkeys(kinds)),
    )


def _layer(arch: Architecture, kind: str) -> LayerParameters:
    """One layer of ``kind``, its blocks and their norms."""
    blocks, arch = blocks_of_layer(arch, kind), arch_of_layer(arch, kind)
    n_norms = arch.norms_per_layer + (0 if arch.encoder is None else 1) if is_plain(kind) else len(kind)
    parts: dict[str, int] = {"attention": 0, "norm": n_norms * norm_weights(arch, arch.hidden)}
    for block in blocks:
        for part, n in block.parameters(arch).items():
            parts[part] = parts.get(part, 0) + n if part in ("attention", "mlp", "mixer", "norm") else n
    return LayerParameters(**parts)


def _encoder_layer(arch: Architecture, encoder: Encoder) -> LayerParameters:
    return LayerParameters(
        projections(arch, encoder.hidden, encoder.heads, encoder.heads, encoder.head_dim),
        arch.norms_per_layer * norm_weights(arch, encoder.hidden),
        mlp=matrices(arch, encoder.hidden, encoder.ffn),
    )


def _prediction_block(arch: Architecture) -> int:
    return prediction_weights(arch, _layer(arch, "dense" if arch.moe is None else "moe").total)


def layer_adapter_parameters(arch: Architecture, targets: tuple[str, ...], rank: int, kind: str) -> int:
    """Trained parameters of one layer of ``kind``: ``rank`` (in + out) for each adapted product."""
    sizes = arch_of_layer(arch, kind)
    wide = [product for block in blocks_of_layer(arch, kind) for product in block.products(sizes)]
    return rank * sum(k + n for name, k, n in wide if carries(targets, name))


def adapter_parameters(arch: Architecture, targets: tuple[str, ...], rank: int) -> int:
    """Trained parameters of all layers of the main stack (arXiv 2106.09685, section 4.1)."""
    return sum(n * layer_adapter_parameters(arch, targets, rank, kind) for kind, n in Counter(layer_kinds(arch)).items())
