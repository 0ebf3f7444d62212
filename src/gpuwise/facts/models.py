"""Model architectures as dimensions. No weights, no framework."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mla:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1)."""

    q_lora_rank: int | None
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int


@dataclass(frozen=True, slots=True)
class Moe:
    """Mixture of experts: routed experts replace the MLP in ``n_layers - first_dense`` layers, every ``every``-th."""

    n_experts: int
    n_active: int
    expert_ffn: int
    n_shared: int = 0
    shared_ffn: int = 0
    """Width of all shared experts together."""
    first_dense: int = 0
    every: int = 1
    router_bias: bool = False
    shared_gate: bool = False


@dataclass(frozen=True, slots=True)
class Encoder:
    """The encoder stack of an encoder-decoder (T5, Whisper, BART)."""

    n_layers: int
    hidden: int
    ffn: int
    heads: int
    head_dim: int
    seq_len: int


@dataclass(frozen=True, slots=True)
class Architecture:
    """Transformer dimensions. Shapes below use B batch, S sequence, H hidden, F ffn, A heads, K kv_heads, D head_dim,
    V vocabulary."""

    id: str
    name: str
    kind: str
    """``decoder`` (causal), ``encoder`` (bidirectional), ``encoder-decoder``, ``vision``."""
    n_layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    max_seq_len: int
    gated_mlp: bool = True
    """SwiGLU/GeGLU: three F x H matrices instead of two."""
    activation: str = "silu"
    norm: str = "rms"
    """``rms`` (weight) or ``layer`` (weight and bias) or ``layer-no-bias`` or ``none`` (non-parametric)."""
    norms_per_layer: int = 2
    final_norm: bool = True
    embedding_norm: bool = False
    qk_norm: bool = False
    qkv_bias: bool = False
    attention_out_bias: bool = False
    mlp_bias: bool = False
    head_bias: bool = False
    position: str = "rope"
    """``rope``, ``learned`` (adds max_seq_len x H weights), ``alibi``, ``relative`` (T5 buckets), ``sinusoidal``."""
    n_token_types: int = 0
    tied_embeddings: bool = False
    embedding_dim: int | None = None
    """Width of the token embedding when it is not ``hidden`` (OPT-350m, ALBERT)."""
    parallel_block: bool = False
    """Attention and MLP side by side (GPT-J, NeoX, Falcon)."""
    window: int | None = None
    """Sliding-window length in tokens of the local layers, None when all attention is global."""
    global_every: int | None = None
    """One global layer per this many layers when ``window`` is set; None: every layer is local."""
    mla: Mla | None = None
    moe: Moe | None = None
    encoder: Encoder | None = None
    extra_parameters: int = 0
    """Parameters the fields above cannot express (patch embedding, pooler, classifier, ...), itemised in the file."""
    published_parameters: int | None = None
    license: str | None = None
    source: str = ""
