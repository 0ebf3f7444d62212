"""One reader per Hugging Face ``model_type``: which keys hold the dimensions, and what the model code fixes.

Defaults are those of the configuration classes of Hugging Face transformers, given only where published
configs rely on them. ``READERS`` is the whole list.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

from gpuwise.facts.models.architecture import Architecture, Extra, GlobalAttention, Moe, SharedCache
from gpuwise.facts.models.config_classic import CLASSIC_READERS
from gpuwise.facts.models.config_fields import Config, latent, leading_dense
from gpuwise.facts.models.config_hybrid import HYBRID_READERS

Reader = Callable[[Config], Architecture]


def _activation(name: str) -> str:
    """The activation's family: variants of GELU cost the same but for the one that is a chain of kernels."""
    name = name.lower()
    if name in ("gelu_new", "gelu_fast"):
        return "gelu_new"
    if "gelu" in name:
        return "gelu"
    return {"swish": "silu", "silu": "silu", "relu": "relu", "relu2": "relu2"}.get(name, name[:40])


def _base(c: Config, **fixed: Any) -> Architecture:
    """The keys that Llama and most models after it share; ``fixed`` overrides what the model code decides."""
    hidden = c.count("hidden_size", default=fixed.get("hidden"))
    heads = c.count("num_attention_heads", default=fixed.get("heads"))
    moe = fixed.get("moe")
    values: dict[str, Any] = {
        "id": "config",
        "name": "config",
        "kind": "decoder",
        "hidden": hidden,
        "heads": heads,
        "n_layers": c.count("num_hidden_layers"),
        "kv_heads": c.count("num_key_value_heads", default=heads),
        "vocab": c.count("vocab_size", default=fixed.get("vocab")),
        "max_seq_len": c.count("max_position_embeddings", "model_max_length", default=4096),
        "activation": _activation(c.word("hidden_act", "silu")),
        "tied_embeddings": c.flag("tie_word_embeddings", False),
        "prediction_layers": c.count("num_nextn_predict_layers", default=0, zero=True),
        **fixed,
    }
    if "head_dim" not in values:
        values["head_dim"] = _head_dim(c, hidden, heads)
    if "ffn" not in values:
        values["ffn"] = c.count("intermediate_size", default=None if moe is None else moe.expert_ffn)
    return Architecture(**values)


def _head_dim(c: Config, hidden: int, heads: int) -> int:
    head_dim = c.maybe("head_dim")
    if head_dim is None:
        if hidden % heads:
            raise c.error(
                f"hidden_size {hidden} is not divisible by {heads} heads",
                field="num_attention_heads",
                hint="change one, or give head_dim",
            )
        head_dim = hidden // heads
    return head_dim


def _local(c: Config, *, window: int | None, every: int | None = None) -> dict[str, Any]:
    """``window`` and ``global_every`` from the sliding window and the pattern of layers."""
    types = c.words("layer_types")
    if window is None or (types and not any(t in ("sliding_attention", "chunked_attention") for t in types)):
        return {"window": None, "global_every": None}
    if types:
        full = sum(t == "full_attention" for t in types)
        every = None if full == 0 else len(types) // full
    return {"window": window, "global_every": every}


def _bias_flags(c: Config, default: bool = False) -> dict[str, Any]:
    bias = c.flag("attention_bias", default)
    return {"qkv_bias": bias, "attention_out_bias": bias, "mlp_bias": c.flag("mlp_bias", False)}


def _llama(c: Config) -> Architecture:
    return _base(c, **_bias_flags(c))


def _tied_llama(c: Config) -> Architecture:
    return _base(c, **_bias_flags(c), tied_embeddings=c.flag("tie_word_embeddings", True))


def _mistral(c: Config) -> Architecture:
    return _base(c, **_local(c, window=c.maybe("sliding_window")))


def _phi3(c: Config) -> Architecture:
    return replace(_mistral(c), fused_projections=True)


def _experts(c: Config, *, bias: bool = False) -> Moe:
    """Mixtral's keys: every layer has experts of ``intermediate_size``."""
    return Moe(
        c.count("num_local_experts", "num_experts"),
        c.count("num_experts_per_tok", "experts_per_token"),
        c.count("intermediate_size"),
        router_bias=bias,
    )


def _mixtral(c: Config) -> Architecture:
    return _base(c, moe=_experts(c), **_local(c, window=c.maybe("sliding_window")))


def _qwen2(c: Config) -> Architecture:
    """Qwen2's window, when used, holds from layer ``max_window_layers`` on; it is off in every released
    config."""
    window = c.maybe("sliding_window") if c.flag("use_sliding_window", False) else None
    return _base(c, qkv_bias=True, **_local(c, window=window))


def _sparse_experts(c: Config) -> Moe:
    """Qwen's keys: experts in every ``decoder_sparse_step``-th layer, one gated shared expert."""
    shared = c.count("shared_expert_intermediate_size", default=0, zero=True)
    return Moe(
        c.count("num_experts", "num_local_experts"),
        c.count("num_experts_per_tok"),
        c.count("moe_intermediate_size"),
        n_shared=int(shared > 0),
        shared_ffn=shared,
        shared_gate=shared > 0,
        every=c.count("decoder_sparse_step", default=1),
    )


def _qwen2_moe(c: Config) -> Architecture:
    return _base(c, moe=_sparse_experts(c), qkv_bias=c.flag("qkv_bias", True))


def _qwen3(c: Config) -> Architecture:
    head_dim = c.count("head_dim", default=128)
    return _base(c, head_dim=head_dim, qk_norm=True, **_bias_flags(c))


def _qwen3_moe(c: Config) -> Architecture:
    return _base(c, moe=_sparse_experts(c), qk_norm=True, **_bias_flags(c))


def _gemma(c: Config, **fixed: Any) -> Architecture:
    values: dict[str, Any] = {
        "head_dim": c.count("head_dim", default=256),
        "activation": "gelu",
        "norm_in_fp32": True,
        "tied_embeddings": c.flag("tie_word_embeddings", True),
        "qkv_bias": c.flag("attention_bias", False),
        "attention_out_bias": c.flag("attention_bias", False),
        **fixed,
    }
    return _base(c, **values)


def _gemma2(c: Config) -> Architecture:
    local = _local(c, window=c.count("sliding_window", default=4096), every=2)
    return _gemma(c, norms_per_layer=4, **local)


def _gemma3(c: Config) -> Architecture:
    """Published Gemma 3 text configs leave out what equals the class defaults."""
    every = c.count("sliding_window_pattern", default=6)
    local = _local(c, window=c.count("sliding_window", default=4096), every=every)
    heads = c.count("num_attention_heads", default=8)
    return _gemma(
        c,
        norms_per_layer=4,
        qk_norm=True,
        heads=heads,
        kv_heads=c.count("num_key_value_heads", default=4),
        vocab=c.count("vocab_size", default=262_208),
        hidden=c.count("hidden_size", default=2304),
        max_seq_len=c.count("max_position_embeddings", default=131_072),
        **local,
    )


def _gemma4(c: Config) -> Architecture:
    """Gemma 4: global layers have sizes of their own, the last layers may read the cache of others, a second embedding may enter
    every layer, and experts stand beside an MLP (``transformers`` models/gemma4)."""
    n, hidden, ffn = (c.count(key) for key in ("num_hidden_layers", "hidden_size", "intermediate_size"))
    heads, kv_heads = c.count("num_attention_heads"), c.count("num_key_value_heads")
    same = c.flag("attention_k_eq_v", False)
    layers = c.part("per_layer_config").values  # as later releases write it, by the layer's number
    wide = Config(next((cast("dict[str, object]", v) for v in layers.values() if isinstance(v, dict)), c.values), c.file)
    wide_kv = wide.count("num_key_value_heads", default=kv_heads) if layers else kv_heads
    if same and not layers:
        wide_kv = c.count("num_global_key_value_heads", default=kv_heads)
    moe, extras = None, ()
    if c.flag("enable_moe_block", False):
        active, width = c.count("top_k_experts"), c.count("moe_intermediate_size")
        moe = Moe(c.count("num_experts"), active, width, n_shared=1, shared_ffn=ffn, router_bias=True)
        extras = (Extra(f"three norms and the router's scale in each of {n} layers", 4 * hidden * n),)
    shared = c.count("num_kv_shared_layers", default=0, zero=True)
    return _gemma(
        c,
        norms_per_layer=4,
        qk_norm=True,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=c.count("head_dim", default=256),
        global_attention=GlobalAttention(
            heads,
            wide_kv,
            wide.count("head_dim", default=512) if layers else c.count("global_head_dim", default=512),
            same,
        ),
        shared_cache=SharedCache(shared, ffn * (2 if c.flag("use_double_wide_mlp", False) else 1)) if shared else None,
        per_layer_embedding=c.count("hidden_size_per_layer_input", default=0, zero=True),
        moe=moe,
        extras=extras,
        extra_parameters=sum(e.parameters for e in extras),
        **_local(c, window=c.count("sliding_window", default=512), every=6),
    )


def _olmo(c: Config) -> Architecture:
    return _base(c, norm="none", **_bias_flags(c))


def _olmo2(c: Config) -> Architecture:
    local = _local(c, window=c.maybe("sliding_window"), every=4)
    return _base(c, qk_norm=True, qk_norm_full=True, **_bias_flags(c), **local)


def _olmoe(c: Config) -> Architecture:
    return _base(c, moe=_experts(c), qk_norm=True, qk_norm_full=True, **_bias_flags(c))


def _stablelm(c: Config) -> Architecture:
    parallel = c.flag("use_parallel_residual", False)
    return _base(
        c,
        norm="layer",
        qkv_bias=c.flag("use_qkv_bias", False),
        qk_norm=c.flag("qk_layernorm", False),
        qk_norm_full=c.flag("qk_layernorm", False),
        parallel_block=parallel,
        norms_per_layer=1 if parallel else 2,
    )


def _starcoder2(c: Config) -> Architecture:
    bias = c.flag("use_bias", True)
    return _base(
        c,
        norm="layer",
        gated_mlp=False,
        activation="gelu",
        qkv_bias=bias,
        attention_out_bias=bias,
        mlp_bias=bias,
        tied_embeddings=c.flag("tie_word_embeddings", True),
        **_local(c, window=c.maybe("sliding_window")),
    )


def _cohere(c: Config) -> Architecture:
    local = _local(c, window=c.maybe("sliding_window"), every=c.count("sliding_window_pattern", default=4))
    return _base(
        c,
        norm="layer-no-bias",
        norms_per_layer=1,
        parallel_block=True,
        qk_norm=c.flag("use_qk_norm", False),
        qk_norm_full=c.flag("use_qk_norm", False),
        tied_embeddings=c.flag("tie_word_embeddings", True),
        **_bias_flags(c),
        **local,
    )


def _granite_moe(c: Config) -> Architecture:
    return _base(c, moe=_experts(c), **_bias_flags(c))


def _internlm(c: Config) -> Architecture:
    bias = c.flag("bias", True)
    return _base(c, qkv_bias=bias, attention_out_bias=bias)


def _internlm3(c: Config) -> Architecture:
    bias = c.flag("bias", False)
    return _base(c, qkv_bias=c.flag("qkv_bias", False), attention_out_bias=bias, mlp_bias=bias)


def _baichuan(c: Config) -> Architecture:
    """The 13B has ALiBi, the 7B rotary positions; only the hidden size tells them apart."""
    return _base(c, position="alibi" if c.count("hidden_size") == 5120 else "rope")


def _routed(c: Config, *, correction: bool) -> Moe:
    """DeepSeek's keys: leading dense layers, shared experts as wide as ``n_shared_experts`` routed ones."""
    ffn = c.count("moe_intermediate_size")
    n_shared = c.count("n_shared_experts", "num_shared_experts", default=0, zero=True)
    limited = c.has("n_group") and c.has("topk_group") and c.values.get("topk_method") != "greedy"
    return Moe(
        c.count("n_routed_experts", "num_experts"),
        c.count("num_experts_per_tok"),
        ffn,
        n_shared=n_shared,
        shared_ffn=n_shared * ffn,
        first_dense=c.count("first_k_dense_replace", default=leading_dense(c), zero=True),
        every=c.count("moe_layer_freq", default=1),
        router_bias=correction,
        groups=c.count("n_group", default=1) if limited else 1,
        top_groups=c.count("topk_group", default=1) if limited else 1,
    )


def _deepseek(c: Config) -> Architecture:
    return _base(c, moe=_routed(c, correction=False) if c.has("n_routed_experts") else None)


def _deepseek_latent(c: Config) -> Architecture:
    """DeepSeek-V2 and V3; the latter, by ``topk_method``, corrects the router's scores per expert."""
    mla = latent(c)
    moe = None
    if c.has("n_routed_experts"):
        corrected = ("deepseek_v3", "deepseek_v32", "glm_moe_dsa", "glm4_moe_lite")
        correction = c.word("topk_method", "") == "noaux_tc" or c.word("model_type", "") in corrected
        moe = _routed(c, correction=correction)
    notes = ("the index heads of its sparse attention are left out",) if c.has("index_topk") else ()
    return _base(
        c,
        mla=mla,
        moe=moe,
        head_dim=mla.qk_nope_head_dim + mla.qk_rope_head_dim,
        notes=notes,
    )


def _glm(c: Config) -> Architecture:
    norms = 4 if c.word("model_type", "") == "glm4" else 2
    return _base(c, qkv_bias=c.flag("attention_bias", True), norms_per_layer=norms)


def _glm4_moe(c: Config) -> Architecture:
    return _base(
        c,
        moe=_routed(c, correction=True),
        qkv_bias=c.flag("attention_bias", False),
        qk_norm=c.flag("use_qk_norm", False),
    )


def _gpt_oss(c: Config) -> Architecture:
    local = _local(c, window=c.count("sliding_window", default=128), every=2)
    return _base(
        c,
        moe=_experts(c, bias=True),
        qkv_bias=True,
        attention_out_bias=True,
        mlp_bias=True,
        attention_sinks=True,
        head_dim=c.count("head_dim", default=64),
        **local,
    )


def _llama4(c: Config) -> Architecture:
    expert = c.count("intermediate_size")
    moe = Moe(
        c.count("num_local_experts"),
        c.count("num_experts_per_tok", default=1),
        expert,
        n_shared=1,
        shared_ffn=expert,
        every=c.count("interleave_moe_layer_step", default=1),
    )
    every = c.count("no_rope_layer_interval", default=4)
    return _base(
        c,
        moe=moe,
        ffn=c.count("intermediate_size_mlp", default=16_384),
        head_dim=c.count("head_dim", default=128),
        qk_norm=c.flag("use_qk_norm", True),
        qk_norm_weights=False,
        window=c.count("attention_chunk_size", default=8192),
        global_every=every,
        notes=("local layers attend inside chunks of `window` tokens",),
    )


def _phi_moe(c: Config) -> Architecture:
    bias = c.flag("attention_bias", False)
    return _base(
        c,
        moe=_experts(c),
        norm="layer",
        qkv_bias=bias,
        attention_out_bias=bias,
        head_bias=c.flag("lm_head_bias", False),
    )


def _nemotron(c: Config) -> Architecture:
    """Nemotron's LayerNorm stores its weight minus one, with a bias; the MLP is squared ReLU without gate."""
    return _base(c, norm="layer", gated_mlp=False, activation="relu2", **_bias_flags(c))


def _minimax_m2(c: Config) -> Architecture:
    per_layer = c.word("qk_norm_type", "per_layer") == "per_layer"
    return _base(c, moe=_experts(c, bias=True), qk_norm=c.flag("use_qk_norm", True), qk_norm_full=per_layer)


def _seed_oss(c: Config) -> Architecture:
    return _base(
        c,
        qkv_bias=c.flag("attention_bias", True),
        attention_out_bias=c.flag("attention_out_bias", False),
        head_dim=c.count("head_dim", default=128),
    )


def _exaone4(c: Config) -> Architecture:
    local = _local(c, window=c.maybe("sliding_window"), every=4)
    return _base(c, qk_norm=True, **local)


def _arcee(c: Config) -> Architecture:
    return _base(c, gated_mlp=False, activation="relu2", **_bias_flags(c))


def _dots(c: Config) -> Architecture:
    return _base(c, moe=_routed(c, correction=True), qk_norm=True, **_bias_flags(c))


def _ernie_moe(c: Config) -> Architecture:
    """ERNIE 4.5: experts from one layer on, a score correction per expert, biases only where ``use_bias`` says so."""
    ffn, bias = c.count("moe_intermediate_size"), c.flag("use_bias", False)
    n_shared = c.count("moe_num_shared_experts", default=0, zero=True)
    moe = Moe(
        c.count("moe_num_experts"),
        c.count("moe_k"),
        ffn,
        n_shared=n_shared,
        shared_ffn=n_shared * ffn,
        first_dense=c.count("moe_layer_start_index", default=1, zero=True),
        every=c.count("moe_layer_interval", default=1),
        router_bias=True,
    )
    tied = c.flag("tie_word_embeddings", True)
    return _base(c, moe=moe, qkv_bias=bias, attention_out_bias=bias, mlp_bias=bias, tied_embeddings=tied)


def _hunyuan(c: Config) -> Architecture:
    """Hunyuan writes one number for all layers, or a list of equal ones."""
    values = dict(c.values)
    for key in ("moe_topk", "moe_intermediate_size", "num_shared_expert"):
        listed = values.get(key)
        if isinstance(listed, list):
            if len(set(cast("list[object]", listed))) != 1:
                raise c.error(f"{key} differs between layers", field=key, hint="such layers are not described")
            values[key] = listed[0]
    c, moe = Config(values, c.file), None
    if c.count("num_experts", default=1) > 1:
        ffn = c.count("moe_intermediate_size", default=c.count("intermediate_size"))
        n_shared = c.count("num_shared_expert", default=1, zero=True)
        moe = Moe(c.count("num_experts"), c.count("moe_topk"), ffn, n_shared=n_shared, shared_ffn=n_shared * ffn)
    return _base(c, moe=moe, qk_norm=c.flag("use_qk_norm", True), **_bias_flags(c))


def _afmoe(c: Config) -> Architecture:
    """Trinity: four norms a layer, an output gate as wide as the queries, sigmoid routing with a correction per expert."""
    ffn, n_shared = c.count("moe_intermediate_size"), c.count("num_shared_experts", default=0, zero=True)
    moe = Moe(
        c.count("num_experts"),
        c.count("num_experts_per_tok"),
        ffn,
        n_shared=n_shared,
        shared_ffn=n_shared * ffn,
        first_dense=c.count("num_dense_layers", default=1, zero=True),
        router_bias=True,
    )
    every = c.count("global_attn_every_n_layers", default=4)
    local = _local(c, window=c.maybe("sliding_window"), every=every)
    return _base(c, moe=moe, qk_norm=True, norms_per_layer=4, attention_output_gate=True, **local, **_bias_flags(c))


def _laguna(c: Config) -> Architecture:
    """Laguna: a gate for each head of attention, and layers whose number of heads may differ by their kind."""
    ffn, hidden = c.count("moe_intermediate_size"), c.count("hidden_size")
    heads, n = c.count("num_attention_heads"), c.count("num_hidden_layers")
    listed, kinds = c.values.get("num_attention_heads_per_layer"), c.words("layer_types")
    each = [int(x) for x in cast("list[object]", listed) if isinstance(x, int)] if isinstance(listed, list) else [heads] * n
    whole = {h for h, kind in zip(each, kinds, strict=False) if kind == "full_attention"} or {heads}
    near = {h for h, kind in zip(each, kinds, strict=False) if kind != "full_attention"} or whole
    if len(whole) > 1 or len(near) > 1 or (whole != near and not c.has("sliding_window")):
        raise c.error("heads differ between layers of a kind", field="num_attention_heads_per_layer", hint="not described")
    kv_heads, head_dim = c.count("num_key_value_heads"), _head_dim(c, hidden, heads)
    gates = Extra("the gate of each head of attention", hidden * sum(each))
    if c.values.get("gating") not in (True, "per-head"):
        raise c.error("only a gate for each head is described", field="gating", hint="not described")
    moe = Moe(
        c.count("num_experts"),
        c.count("num_experts_per_tok"),
        ffn,
        n_shared=1,
        shared_ffn=c.count("shared_expert_intermediate_size"),
        first_dense=leading_dense(c),
        router_bias=True,
    )
    return _base(
        c,
        moe=moe,
        qk_norm=True,
        heads=min(near),
        global_attention=GlobalAttention(min(whole), kv_heads, head_dim) if whole != near else None,
        extras=(gates,),
        extra_parameters=gates.parameters,
        **_local(c, window=c.maybe("sliding_window")),
        **_bias_flags(c),
    )


def _dbrx(c: Config) -> Architecture:
    attention, ffn = c.part("attn_config"), c.part("ffn_config")
    width, heads, hidden = ffn.count("ffn_hidden_size"), c.count("n_heads"), c.count("d_model")
    return Architecture(
        id="config",
        name="config",
        kind="decoder",
        n_layers=c.count("n_layers"),
        hidden=hidden,
        ffn=width,
        heads=heads,
        kv_heads=attention.count("kv_n_heads", default=1),
        head_dim=_head_dim(c, hidden, heads),
        vocab=c.count("vocab_size"),
        max_seq_len=c.count("max_seq_len", default=2048),
        norm="layer-no-bias",
        moe=Moe(ffn.count("moe_num_experts"), ffn.count("moe_top_k"), width),
        tied_embeddings=c.flag("tie_word_embeddings", False),
    )


def read_generic(c: Config) -> Architecture:
    """A decoder of unknown type whose keys have usual names."""
    hidden, heads = (
        c.count("hidden_size", "n_embd", "d_model"),
        c.count("num_attention_heads", "n_head", "n_heads"),
    )
    moe = None
    if c.has("num_local_experts", "num_experts", "n_routed_experts"):
        ffn = c.count("moe_intermediate_size", "intermediate_size")
        shared = c.count("n_shared_experts", default=0, zero=True)
        moe = Moe(
            c.count("num_local_experts", "num_experts", "n_routed_experts"),
            c.count("num_experts_per_tok"),
            ffn,
            n_shared=shared,
            shared_ffn=shared * ffn,
            first_dense=c.count("first_k_dense_replace", default=0, zero=True),
        )
    bias = c.flag("attention_bias", c.flag("qkv_bias", False))
    ffn = c.count(
        "intermediate_size",
        "ffn_dim",
        "ffn_hidden_size",
        "n_inner",
        "d_ff",
        default=moe.expert_ffn if moe else None,
    )
    return Architecture(
        id="config",
        name="config",
        kind="decoder",
        hidden=hidden,
        heads=heads,
        ffn=ffn,
        moe=moe,
        qkv_bias=bias,
        n_layers=c.count("num_hidden_layers", "n_layer", "num_layers", "n_layers"),
        kv_heads=c.count("num_key_value_heads", "num_kv_heads", "n_kv_heads", default=heads),
        head_dim=_head_dim(c, hidden, heads),
        vocab=c.count("vocab_size", "padded_vocab_size"),
        max_seq_len=c.count("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", default=4096),
        activation=_activation(c.word("hidden_act", "silu")),
        mlp_bias=c.flag("mlp_bias", False),
        tied_embeddings=c.flag("tie_word_embeddings", False),
        mla=latent(c) if c.has("kv_lora_rank") else None,
        **_local(c, window=c.maybe("sliding_window") if c.has("layer_types") else None),
    )


READERS: dict[str, Reader] = {
    "llama": _llama,
    "mistral": _mistral,
    "ministral": _mistral,
    "ministral3": _mistral,
    "mistral4": _deepseek_latent,
    "mixtral": _mixtral,
    "smollm3": _tied_llama,
    "granite": _llama,
    "phi3": _phi3,
    "yi": _llama,
    "Yi": _llama,
    "aquila": _llama,
    "ernie4_5": _tied_llama,
    "ernie4_5_moe": _ernie_moe,
    "hunyuan_v1_dense": _hunyuan,
    "hunyuan_v1_moe": _hunyuan,
    "solar_open": _glm4_moe,
    "afmoe": _afmoe,
    "laguna": _laguna,
    "qwen2": _qwen2,
    "qwen2_moe": _qwen2_moe,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "qwen2_vl_text": _qwen2,
    "qwen2_5_vl_text": _qwen2,
    "qwen3_vl_text": _qwen3,
    "qwen3_vl_moe_text": _qwen3_moe,
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    "gemma4_text": _gemma4,
    "gemma4_unified_text": _gemma4,
    "olmo": _olmo,
    "olmo2": _olmo2,
    "olmo3": _olmo2,
    "olmoe": _olmoe,
    "stablelm": _stablelm,
    "starcoder2": _starcoder2,
    "cohere": _cohere,
    "cohere2": _cohere,
    "granitemoe": _granite_moe,
    "internlm": _internlm,
    "internlm2": _internlm,
    "internlm3": _internlm3,
    "baichuan": _baichuan,
    "deepseek": _deepseek,
    "deepseek_v2": _deepseek_latent,
    "deepseek_v3": _deepseek_latent,
    "deepseek_v32": _deepseek_latent,
    "glm_moe_dsa": _deepseek_latent,
    "glm4_moe_lite": _deepseek_latent,
    "mimo": _qwen2,
    "kimi_k2": _deepseek_latent,
    "glm": _glm,
    "glm4": _glm,
    "glm4_moe": _glm4_moe,
    "gpt_oss": _gpt_oss,
    "llama4_text": _llama4,
    "phimoe": _phi_moe,
    "nemotron": _nemotron,
    "dbrx": _dbrx,
    "minimax_m2": _minimax_m2,
    "arcee": _arcee,
    "dots1": _dots,
    "seed_oss": _seed_oss,
    "exaone4": _exaone4,
    **CLASSIC_READERS,
    **HYBRID_READERS,
}
