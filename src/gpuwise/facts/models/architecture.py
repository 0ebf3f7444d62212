"""Model architectures as dimensions. No weights, no framework."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import ClassVar


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
    """Mixture of experts: after ``first_dense`` dense layers, the last of every ``every`` layers has experts
    instead of the MLP (DeepSeek-V3: first_dense 3; Llama 4 Maverick: every 2)."""

    n_experts: int
    n_active: int
    expert_ffn: int
    n_shared: int = 0
    shared_ffn: int = 0
    """Width of all shared experts together."""
    first_dense: int = 0
    every: int = 1
    router_bias: bool = False
    """One number per expert beside the router weight (a bias, or DeepSeek-V3's load-balancing correction)."""
    shared_gate: bool = False
    """A sigmoid gate (hidden weights) on the shared experts, as in Qwen2-MoE."""
    groups: int = 1
    top_groups: int = 1
    """Experts are in ``groups`` groups (one a node in training), of which a token's choices lie in ``top_groups``
    (node-limited routing: arXiv 2405.04434 section 2.2.1, 2412.19437 section 2.1.2)."""
    latent: int = 0
    """Width that tokens are projected to before the routed experts and back from after them (Nemotron 3 Super); 0: none."""


@dataclass(frozen=True, slots=True)
class Mamba:
    """A state-space mixer: Mamba-2 (arXiv 2405.21060), whose ``heads`` share a decay each, or with ``heads`` 0 Mamba
    (arXiv 2312.00752), where every channel has its own step, made from ``dt_rank`` numbers."""

    inner: int
    """Channels that go through the recurrence."""
    state: int
    heads: int = 0
    groups: int = 1
    """Groups of heads that share the matrices B and C."""
    conv: int = 4
    """Width of the causal convolution before the recurrence."""
    chunk: int = 256
    """Tokens that Mamba-2 works on at once, as products of matrices."""
    dt_rank: int = 0
    conv_bias: bool = True
    projection_bias: bool = False
    gated_norm: bool = True
    """Mamba-2: the gated result is normalised, with a weight for each channel."""
    parameter_norms: bool = False
    """Mamba: step, B and C are normalised, with weights (Jamba)."""
    may_be_zero: ClassVar = ("heads",)

    def wrong(self) -> tuple[str, str, str] | None:
        """The field, what is wrong with it and a hint; None where the dimensions fit one another."""
        if bool(self.heads) == bool(self.dt_rank):
            return "dt_rank", "a mixer has heads (Mamba-2) or dt_rank (Mamba)", "give one of them"
        if self.heads and (self.inner % self.heads or self.heads % self.groups):
            return "groups", "heads do not divide the channels, or groups the heads", "check the dimensions"
        return None

    @property
    def shown(self) -> str:
        """Its dimensions for people to read."""
        kind = f"Mamba-2, {self.heads} heads in {self.groups} groups" if self.heads else f"Mamba, step rank {self.dt_rank}"
        return f"{kind}, {self.inner:,} channels of {self.state}"

    @property
    def conv_width(self) -> int:
        """Channels of the convolution: those of the recurrence and, in Mamba-2, B and C."""
        return self.inner + (2 * self.groups * self.state if self.heads else 0)

    @property
    def in_width(self) -> int:
        """Outputs of the first projection: gate, channels of the convolution and a step for each head."""
        return self.inner + self.conv_width + self.heads


@dataclass(frozen=True, slots=True)
class LinearAttention:
    """Gated linear attention by the delta rule (Gated DeltaNet, arXiv 2412.06464): each value head keeps a state of ``key_dim``
    x ``value_dim`` numbers, and queries and keys are shared by the value heads of one key head."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv: int = 4
    """Width of the causal convolution of queries, keys and values."""
    chunk: int = 64
    """Tokens worked on at once, as products of matrices (flash-linear-attention ops/gated_delta_rule)."""
    gate_rank: int = 0
    """Kimi Delta Attention (arXiv 2510.26692): decay and output gate of every channel, each through so many numbers; 0: a decay
    for each head, and the gate from the first projection."""
    may_be_zero: ClassVar = ("gate_rank",)

    def wrong(self) -> tuple[str, str, str] | None:
        """The field, what is wrong with it and a hint; None where the dimensions fit one another."""
        if self.value_heads % self.key_heads:
            return "key_heads", f"{self.key_heads} key heads do not divide {self.value_heads} value heads", "check the dimensions"
        return None

    @property
    def shown(self) -> str:
        """Its dimensions for people to read."""
        return f"{self.value_heads} heads, {self.key_heads} of keys, with a state of {self.key_dim} x {self.value_dim},"

    @property
    def keys(self) -> int:
        """Channels of the keys, and of the queries."""
        return self.key_heads * self.key_dim

    @property
    def values(self) -> int:
        """Channels of the values, and of the gate."""
        return self.value_heads * self.value_dim

    @property
    def conv_width(self) -> int:
        """Channels of the convolution: queries, keys and values."""
        return 2 * self.keys + self.values

    @property
    def in_width(self) -> int:
        """Outputs of the first projection: queries, keys, values, gate, and for each value head step and decay."""
        if self.gate_rank:
            return self.conv_width + 2 * self.gate_rank + self.value_heads
        return self.conv_width + self.values + 2 * self.value_heads


@dataclass(frozen=True, slots=True)
class ShortConv:
    """A gated causal convolution over a few tokens in place of attention (LFM2, arXiv 2511.23404)."""

    conv: int = 3
    """Tokens that an output sees."""
    bias: bool = False

    @property
    def shown(self) -> str:
        """Its dimensions for people to read."""
        return f"{self.conv} tokens wide"


@dataclass(frozen=True, slots=True)
class Encoder:
    """The encoder stack of an encoder-decoder (T5, Whisper, BART). Norms, biases, activation and MLP form
    are the decoder's."""

    n_layers: int
    hidden: int
    ffn: int
    heads: int
    head_dim: int
    seq_len: int
    n_mels: int = 0
    """Whisper's audio stem: two convolutions of width 3 over this many mel channels; 0: token input."""
    position_rows: int = 0
    """Rows of the encoder's own stored position table (learned, or fixed but kept in the checkpoint)."""


@dataclass(frozen=True, slots=True)
class Patches:
    """The input of a vision transformer: an image cut into squares, each projected to ``hidden`` (ViT)."""

    image_size: int
    patch_size: int
    channels: int = 3
    bias: bool = True
    class_token: bool = True

    @property
    def n_tokens(self) -> int:
        """Sequence length, class token included."""
        return (self.image_size // self.patch_size) ** 2 + int(self.class_token)


@dataclass(frozen=True, slots=True)
class GlobalAttention:
    """Attention of the layers that see the whole context, where its sizes are not those of the windowed layers (Gemma 4)."""

    heads: int
    kv_heads: int
    head_dim: int
    keys_are_values: bool = False
    """One projection makes both, each with a norm of its own; both are in the cache."""


@dataclass(frozen=True, slots=True)
class SharedCache:
    """The last ``layers`` layers have no keys and values of their own: they read the cache of the last layer before them that
    sees as far (Gemma 3n, Gemma 4 E2B)."""

    layers: int
    ffn: int
    """Width of the MLP of these layers."""


@dataclass(frozen=True, slots=True)
class StoredBytes:
    """Bytes of the weights in a file, by what reads them."""

    embedding: int
    """Of it a token reads a row; where there is no head it is the head too, and read whole."""
    tables: int
    """Other tables of which a token reads a row."""
    head: int
    layers: int
    """All of the layers and the norms beside them, but routed experts."""
    experts: int
    prediction: int
    """Blocks that predict further tokens, which a run may leave out."""

    @property
    def total(self) -> int:
        """Bytes that a run holds."""
        return self.embedding + self.tables + self.head + self.layers + self.experts + self.prediction


PARTS = {"moe": Moe, "mla": Mla, "encoder": Encoder, "patches": Patches, "mamba": Mamba, "linear_attention": LinearAttention} | {
    "global_attention": GlobalAttention,
    "shared_cache": SharedCache,
    "short_conv": ShortConv,
}
"""Fields of an :class:`Architecture` that have dimensions of their own."""


@dataclass(frozen=True, slots=True)
class Letter:
    """A letter of a pattern of layers."""

    name: str
    part: str = ""
    """The field of the architecture that it needs."""
    attends: bool = False
    """It has attention over the tokens in the cache."""


LETTERS = {
    "M": Letter("state space", "mamba"),
    "*": Letter("attention", attends=True),
    "P": Letter("both side by side", "mamba", attends=True),
    "L": Letter("linear attention", "linear_attention"),
    "C": Letter("short convolution", "short_conv"),
    "-": Letter("MLP"),
    "E": Letter("experts", "moe"),
}
NEEDED_BY_LETTERS = {
    "mamba": ("mixer", "M and P in the pattern need a mixer, and a mixer needs one of them"),
    "linear_attention": ("linear attention", "L in the pattern needs linear attention, and linear attention needs an L"),
    "short_conv": ("a short convolution", "C in the pattern needs a short convolution, and a short convolution needs a C"),
    "moe": ("experts", "E in the pattern needs experts, and experts need an E"),
}
"""What a part is called and which letters need it, for messages."""
WITHOUT_PATTERN = ("moe",)
"""Parts that models without a pattern may have too."""


READ_AS = "is read as"
"""In the note of a model whose name is near one of the catalogue."""


def spelled_out(pattern: str) -> str:
    """``pattern`` with each ``3x(M- *-)`` written three times."""
    return re.sub(r"(\d+)x\(([^()]*)\)", lambda found: " ".join([found[2]] * int(found[1])), pattern)


@dataclass(frozen=True, slots=True)
class Extra:
    """Parameters that no field expresses, with what they are."""

    what: str
    parameters: int


@dataclass(frozen=True, slots=True)
class Architecture:
    """Dimensions of a transformer or a hybrid of attention and state space or linear attention. Shapes below use B batch,
    S sequence, H hidden, F ffn, A heads, K kv_heads, D head_dim, V vocabulary."""

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
    """``silu``, ``gelu``, ``relu``, ``relu2``, or ``gelu_new``: GPT-2's tanh form, a chain of kernels in eager torch."""
    dropout: float = 0.0
    """Of hidden states in training, by its checkpoint's configuration (``resid_pdrop``, ``hidden_dropout_prob``)."""
    attention_dropout: float = 0.0
    """The same of attention's probabilities."""
    norm: str = "rms"
    """``rms`` (weight) or ``layer`` (weight and bias) or ``layer-no-bias`` or ``none`` (non-parametric)."""
    norms_per_layer: int = 2
    """Without the cross-attention's, which a decoder with an encoder has besides."""
    final_norm: bool = True
    embedding_norm: bool = False
    qk_norm: bool = False
    """Normalised queries and keys, with one weight per head_dim shared by the heads unless
    ``qk_norm_full``."""
    qkv_bias: bool = False
    attention_out_bias: bool = False
    mlp_bias: bool = False
    head_bias: bool = False
    position: str = "rope"
    """``rope``, ``learned`` (adds max_seq_len x H weights), ``alibi``, ``relative`` (T5 buckets),
    ``sinusoidal``, ``none``."""
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
    mamba: Mamba | None = None
    linear_attention: LinearAttention | None = None
    short_conv: ShortConv | None = None
    global_attention: GlobalAttention | None = None
    shared_cache: SharedCache | None = None
    per_layer_embedding: int = 0
    """Width of a second embedding of each token, a table for every layer, which a gate of the layer's output lets in (Gemma 4
    E2B)."""
    keys_are_values: bool = False
    """Keys and values come from one projection."""
    pattern: str = ""
    """Of a model whose layers differ in kind, the sub-blocks of each layer, a letter each, every sub-block with a norm and a
    residual of its own: ``M`` state-space mixer, ``L`` linear attention, ``C`` short convolution, ``*`` attention, ``P`` state
    space and attention side by side, ``-`` MLP, ``E`` experts. With spaces a word is a layer (``M- M- *-``), without each letter
    is (``M-M*-``). Empty: attention and MLP or experts in every layer."""
    encoder: Encoder | None = None
    extra_parameters: int = 0
    """Parameters the fields above cannot express (patch embedding, pooler, classifier, ...), itemised in
    ``extras``."""
    published_weights: str | None = None
    """Format of the matrices in the published checkpoint (``fp8_block``), and ``published_experts`` of routed experts alone
    (``mxfp4``); None: 16 bits."""
    published_experts: str | None = None
    stored_format: str | None = field(default=None, compare=False)
    """Format that the name or the config asked for says (``Qwen3-8B-AWQ``: ``int4_wo``); None: as published."""
    stored_bytes: StoredBytes | None = None
    """Of the file that the model was read from, in ``stored_format``."""
    published_parameters: int | None = None
    """The exact published count of the checkpoint; ``gpuwise.workload.transformer.parameters`` must reproduce it."""
    license: str | None = None
    source: str = ""
    family: str = ""
    key_bias: bool = True
    """With ``qkv_bias``: whether keys have one too (not in Whisper)."""
    qk_norm_full: bool = False
    """``qk_norm`` has a weight for every query and key channel (OLMo 2, Command R+) instead of one per
    head_dim."""
    qk_norm_weights: bool = True
    """False: the query-key norm has no weights (Llama 4)."""
    norm_in_fp32: bool = False
    """An RMS norm multiplies by its weight in fp32 and casts the product (Gemma), not the other way round (Llama)."""
    fused_projections: bool = False
    """Its reference code has one matrix for queries, keys and values, and one for gate and up (GPT-2, NeoX, Phi-3)."""
    attention_sinks: bool = False
    """One learned logit per query head (gpt-oss)."""
    attention_output_gate: bool = False
    """The result of attention is multiplied by a sigmoid of a projection as wide as the queries' (Qwen3-Next)."""
    position_rows: int | None = None
    """Rows of the learned position table when not ``max_seq_len`` (OPT, BART, RoBERTa keep two more)."""
    relative_buckets: int = 32
    """Buckets of a ``relative`` position table, one per stack, each with a weight per head."""
    lm_head: bool = True
    """False: the model ends at its last norm (BERT's body, CLIP's text tower, ViT); no vocabulary matmul."""
    pooled: bool = False
    """Trained to make one vector of a text (``--for embed``): no loss over the vocabulary, which BERT's body (without
    ``lm_head``) has in pre-training."""
    patches: Patches | None = None
    n_classes: int = 0
    """Outputs of a linear classifier with bias (ViT)."""
    prediction_layers: int = 0
    """Extra multi-token-prediction blocks after the main model (DeepSeek-V3), left out of its parameter
    count."""
    extras: tuple[Extra, ...] = ()
    """The items of ``extra_parameters``."""
    published_rounded: str | None = None
    """The published figure as printed (``"175B"``) when no exact count exists; ``"~350M"`` within 5 %."""
    published_note: str = ""
    """Why the computed count differs from a published figure, or what the figure includes."""
    aliases: tuple[str, ...] = ()
    """Other names, Hugging Face ids among them."""
    notes: tuple[str, ...] = ()
    """What the reader assumed or left out."""
    open_log_sigma: float = 0.0
    """Uncertainty of a token's time from unknown dimensions: standard deviation of its logarithm, in addition to that of the
    prediction."""

    def __hash__(self) -> int:
        return hash(self.id)  # of 60 fields, 15 us: a key of every table

    @property
    def assumption(self) -> str:
        """What its name was taken for; empty where that was clear."""
        return next((note for note in self.notes if READ_AS in note), "")

    @property
    def pooler(self) -> bool:
        """Whether the first token goes through a dense layer of ``hidden`` before the loss (BERT; one of ``extras``)."""
        return any(e.what.startswith("pooler") for e in self.extras)

    @property
    def layer_blocks(self) -> tuple[str, ...]:
        """The sub-blocks of each layer of ``pattern``; empty for a plain transformer."""
        return tuple(self.pattern.split()) if " " in self.pattern else tuple(self.pattern)

    @property
    def n_mamba_layers(self) -> int:
        """Layers that have a state-space mixer."""
        return self.layers_with_part("mamba")

    def layers_with_part(self, part: str) -> int:
        """Layers of ``pattern`` with a letter that needs ``part``."""
        return self._layers_with(*(letter for letter, what in LETTERS.items() if what.part == part))

    @property
    def n_attention_layers(self) -> int:
        """Layers that have attention (beside an encoder's)."""
        if not self.pattern:
            return self.n_layers
        return self._layers_with(*(letter for letter, what in LETTERS.items() if what.attends))

    def _layers_with(self, *letters: str) -> int:
        return sum(any(letter in blocks for letter in letters) for blocks in self.layer_blocks)

    @property
    def n_moe_layers(self) -> int:
        """Layers that have experts instead of an MLP."""
        if self.pattern:
            return sum("E" in blocks for blocks in self.layer_blocks)
        return 0 if self.moe is None else (self.n_layers - self.moe.first_dense) // self.moe.every

    @property
    def n_dense_layers(self) -> int:
        """Layers with an ordinary MLP."""
        if self.pattern:
            return sum("-" in blocks for blocks in self.layer_blocks)
        return self.n_layers - self.n_moe_layers

    @property
    def n_global_layers(self) -> int:
        """Layers whose attention sees the whole context; the others see ``window`` tokens."""
        if self.window is None:
            return self.n_attention_layers
        return 0 if self.global_every is None else self.n_layers // self.global_every
