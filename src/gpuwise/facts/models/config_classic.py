"""Readers of the ``model_type`` values before Llama's form: GPT-like decoders, encoders, encoder-decoders,
vision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpuwise.facts.models.architecture import Architecture, Encoder, Extra, Patches
from gpuwise.facts.models.config_fields import Config


def _decoder(c: Config, *, hidden: int, heads: int, n_layers: int, **values: Any) -> Architecture:
    """A LayerNorm decoder with a two-matrix MLP of ``4 * hidden`` unless ``values`` says otherwise."""
    if hidden % heads:
        raise c.error(
            f"hidden size {hidden} is not divisible by {heads} heads",
            field="num_attention_heads",
            hint="change one",
        )
    defaults: dict[str, Any] = {
        "kv_heads": heads,
        "head_dim": hidden // heads,
        "ffn": 4 * hidden,
        "gated_mlp": False,
        "activation": "gelu",
        "norm": "layer",
        "kind": "decoder",
    }
    return Architecture(id="config", name="config", n_layers=n_layers, hidden=hidden, heads=heads, **{**defaults, **values})


_ALL_BIASES = {"qkv_bias": True, "attention_out_bias": True, "mlp_bias": True}


def _activation(name: str) -> str:
    if name in ("gelu_new", "gelu_fast"):  # a chain of kernels in transformers
        return "gelu_new"
    return "gelu" if "gelu" in name else name[:40]


def _gpt2(c: Config) -> Architecture:
    hidden, heads = c.count("n_embd", "hidden_size"), c.count("n_head", "num_attention_heads")
    return _decoder(
        c,
        hidden=hidden,
        heads=heads,
        n_layers=c.count("n_layer", "num_hidden_layers"),
        position="learned",
        activation=_activation(c.word("activation_function", "gelu_new")),
        fused_projections=True,
        ffn=c.count("n_inner", default=4 * hidden),
        vocab=c.count("vocab_size"),
        **_ALL_BIASES,
        max_seq_len=c.count("n_positions", "n_ctx"),
        tied_embeddings=c.flag("tie_word_embeddings", True),
        kv_heads=1 if c.flag("multi_query", False) else heads,
        dropout=c.share("resid_pdrop", 0.1),
        attention_dropout=c.share("attn_pdrop", 0.1),
    )


def _gpt_bigcode(c: Config) -> Architecture:
    if "multi_query" in c.values:
        return _gpt2(c)
    return _gpt2(Config({**c.values, "multi_query": True}, c.file))


def _gpt_neo(c: Config) -> Architecture:
    """Attention alternates between the whole context and ``window_size``."""
    hidden = c.count("hidden_size")
    return _decoder(
        c,
        activation=_activation(c.word("activation_function", "gelu_new")),
        hidden=hidden,
        heads=c.count("num_heads"),
        n_layers=c.count("num_layers"),
        position="learned",
        ffn=c.count("intermediate_size", default=4 * hidden),
        vocab=c.count("vocab_size"),
        attention_out_bias=True,
        mlp_bias=True,
        max_seq_len=c.count("max_position_embeddings"),
        window=c.count("window_size", default=256),
        global_every=2,
        tied_embeddings=c.flag("tie_word_embeddings", True),
    )


def _gptj(c: Config) -> Architecture:
    hidden = c.count("n_embd")
    return _decoder(
        c,
        activation=_activation(c.word("activation_function", "gelu_new")),
        hidden=hidden,
        heads=c.count("n_head"),
        n_layers=c.count("n_layer"),
        ffn=c.count("n_inner", default=4 * hidden),
        vocab=c.count("vocab_size"),
        max_seq_len=c.count("n_positions"),
        norms_per_layer=1,
        parallel_block=True,
        mlp_bias=True,
        head_bias=True,
        tied_embeddings=c.flag("tie_word_embeddings", False),
    )


def _gpt_neox(c: Config) -> Architecture:
    bias = c.flag("attention_bias", True)
    return _decoder(
        c,
        fused_projections=True,
        hidden=c.count("hidden_size"),
        heads=c.count("num_attention_heads"),
        n_layers=c.count("num_hidden_layers"),
        ffn=c.count("intermediate_size"),
        vocab=c.count("vocab_size"),
        max_seq_len=c.count("max_position_embeddings"),
        parallel_block=c.flag("use_parallel_residual", True),
        qkv_bias=bias,
        attention_out_bias=bias,
        mlp_bias=True,
        tied_embeddings=c.flag("tie_word_embeddings", False),
        activation=_activation(c.word("hidden_act", "gelu")),
    )


def _opt(c: Config) -> Architecture:
    """Two position rows are reserved; OPT-350m norms after its blocks and embeds narrower than it
    computes."""
    hidden = c.count("hidden_size")
    length, width = c.count("max_position_embeddings"), c.count("word_embed_proj_dim", default=hidden)
    before = c.flag("do_layer_norm_before", True)
    bias = c.flag("enable_bias", True)
    return _decoder(
        c,
        hidden=hidden,
        heads=c.count("num_attention_heads"),
        n_layers=c.count("num_hidden_layers"),
        ffn=c.count("ffn_dim"),
        vocab=c.count("vocab_size"),
        max_seq_len=length,
        position="learned",
        position_rows=length + 2,
        embedding_dim=None if width == hidden else width,
        qkv_bias=bias,
        attention_out_bias=bias,
        mlp_bias=bias,
        activation=_activation(c.word("activation_function", "relu")),
        dropout=c.share("dropout", 0.1),
        attention_dropout=c.share("attention_dropout", 0.0),
        final_norm=before and not c.flag("_remove_final_layer_norm", False),
        norm="layer" if c.flag("layer_norm_elementwise_affine", True) else "none",
        tied_embeddings=c.flag("tie_word_embeddings", True),
    )


def _bloom(c: Config) -> Architecture:
    return _decoder(
        c,
        fused_projections=True,
        hidden=c.count("hidden_size", "n_embed"),
        heads=c.count("n_head", "num_attention_heads"),
        n_layers=c.count("n_layer", "num_hidden_layers"),
        vocab=c.count("vocab_size"),
        max_seq_len=c.count("seq_length", default=2048),
        position="alibi",
        embedding_norm=True,
        **_ALL_BIASES,
        tied_embeddings=c.flag("tie_word_embeddings", True),
    )


def _falcon(c: Config) -> Architecture:
    hidden, heads = c.count("hidden_size"), c.count("num_attention_heads", "n_head")
    new, parallel = c.flag("new_decoder_architecture", c.has("n_head_kv")), c.flag("parallel_attn", True)
    bias = c.flag("bias", False)
    if new:
        kv_heads, norms = (
            c.count("num_kv_heads", "n_head_kv", default=heads),
            c.count("num_ln_in_parallel_attn", default=2),
        )
    else:
        kv_heads, norms = 1 if c.flag("multi_query", True) else heads, 1 if parallel else 2
    return _decoder(
        c,
        fused_projections=True,
        hidden=hidden,
        heads=heads,
        n_layers=c.count("num_hidden_layers", "n_layer"),
        kv_heads=kv_heads,
        ffn=c.count("ffn_hidden_size", default=4 * hidden),
        vocab=c.count("vocab_size"),
        norms_per_layer=norms,
        max_seq_len=c.count("max_position_embeddings", default=2048),
        parallel_block=new or parallel,
        qkv_bias=bias,
        attention_out_bias=bias,
        mlp_bias=bias,
        position="alibi" if c.flag("alibi", False) else "rope",
        tied_embeddings=c.flag("tie_word_embeddings", True),
    )


def _mpt(c: Config) -> Architecture:
    hidden, heads = c.count("d_model"), c.count("n_heads")
    attention, bias = c.part("attn_config"), not c.flag("no_bias", False)
    learned = c.flag("learned_pos_emb", True) and not attention.flag("alibi", False)
    position = "learned" if learned else "alibi" if attention.flag("alibi", False) else "rope"
    kv_heads = 1 if attention.word("attn_type", "") == "multiquery_attention" else heads
    return _decoder(
        c,
        fused_projections=True,
        hidden=hidden,
        heads=heads,
        n_layers=c.count("n_layers"),
        vocab=c.count("vocab_size"),
        ffn=hidden * c.count("expansion_ratio", default=4),
        max_seq_len=c.count("max_seq_len"),
        position=position,
        kv_heads=attention.count("kv_n_heads", default=kv_heads),
        norm="layer" if bias else "layer-no-bias",
        qkv_bias=bias,
        attention_out_bias=bias,
        mlp_bias=bias,
        tied_embeddings=c.flag("tie_word_embeddings", True),
    )


def _phi(c: Config) -> Architecture:
    return _decoder(
        c,
        activation=_activation(c.word("hidden_act", "gelu_new")),
        hidden=c.count("hidden_size"),
        heads=c.count("num_attention_heads"),
        n_layers=c.count("num_hidden_layers"),
        kv_heads=c.count("num_key_value_heads", default=c.count("num_attention_heads")),
        ffn=c.count("intermediate_size"),
        vocab=c.count("vocab_size"),
        max_seq_len=c.count("max_position_embeddings"),
        norms_per_layer=1,
        parallel_block=True,
        head_bias=True,
        qk_norm=c.flag("qk_layernorm", False),
        **_ALL_BIASES,
        tied_embeddings=c.flag("tie_word_embeddings", False),
    )


def _bert(c: Config, *, reserved_rows: int = 0, pooler: bool = True, **fixed: Any) -> Architecture:
    """BERT's body with its pooler; ``reserved_rows`` of the position table hold no token (RoBERTa: 2)."""
    hidden, rows = c.count("hidden_size"), c.count("max_position_embeddings")
    extras = (Extra(f"pooler: {hidden} x {hidden} and bias", hidden * hidden + hidden),) if pooler else ()
    values: dict[str, Any] = {
        "kind": "encoder",
        "position": "learned",
        "position_rows": rows,
        "max_seq_len": max(1, rows - reserved_rows),
        "n_token_types": c.count("type_vocab_size", default=2, zero=True),
        "embedding_norm": True,
        "dropout": c.share("hidden_dropout_prob", 0.1),
        "attention_dropout": c.share("attention_probs_dropout_prob", 0.1),
        "final_norm": False,
        "tied_embeddings": True,
        "lm_head": False,
        "notes": ("the body without a task head",),
        **_ALL_BIASES,
        **fixed,
    }
    return _decoder(
        c,
        hidden=hidden,
        heads=c.count("num_attention_heads"),
        n_layers=c.count("num_hidden_layers"),
        ffn=c.count("intermediate_size"),
        vocab=c.count("vocab_size"),
        extras=extras,
        extra_parameters=sum(e.parameters for e in extras),
        **values,
    )


def _roberta(c: Config) -> Architecture:
    return _bert(c, reserved_rows=2)


def _distilbert(c: Config) -> Architecture:
    return _decoder(
        c,
        kind="encoder",
        hidden=c.count("dim"),
        heads=c.count("n_heads"),
        n_layers=c.count("n_layers"),
        ffn=c.count("hidden_dim"),
        vocab=c.count("vocab_size"),
        max_seq_len=c.count("max_position_embeddings"),
        position="learned",
        embedding_norm=True,
        dropout=c.share("dropout", 0.1),
        attention_dropout=c.share("attention_dropout", 0.1),
        final_norm=False,
        tied_embeddings=True,
        lm_head=False,
        **_ALL_BIASES,
    )


def _deberta_v2(c: Config) -> Architecture:
    hidden, buckets = c.count("hidden_size"), c.maybe("position_buckets")
    if buckets is None or not c.flag("share_att_key", False) or c.word("norm_rel_ebd", "") != "layer_norm":
        raise c.error(
            "only DeBERTa v3's form is described (shared keys, bucketed and normed relative positions)",
            field="share_att_key",
            hint="use microsoft/deberta-v3-base or -large",
        )
    extras = (
        Extra(f"relative-position embedding: {2 * buckets} x {hidden}", 2 * buckets * hidden),
        Extra("norm of the relative-position embedding", 2 * hidden),
    )
    arch = _bert(c, pooler=False, position="none", position_rows=None)
    return _with_extras(arch, extras)


def _with_extras(arch: Architecture, extras: tuple[Extra, ...]) -> Architecture:
    from dataclasses import replace

    return replace(arch, extras=extras, extra_parameters=sum(e.parameters for e in extras))


def _t5(c: Config) -> Architecture:
    """T5, its 1.1 form and mT5: a table of relative positions in the first layer of each stack."""
    hidden, heads, ffn = c.count("d_model"), c.count("num_heads"), c.count("d_ff")
    head_dim, n_layers = c.count("d_kv"), c.count("num_layers")
    length = c.count("n_positions", default=512)
    projection = c.word("feed_forward_proj", "relu")
    gated = projection.startswith("gated")
    return Architecture(
        id="config",
        name="config",
        kind="encoder-decoder",
        n_layers=c.count("num_decoder_layers", default=n_layers),
        hidden=hidden,
        ffn=ffn,
        heads=heads,
        kv_heads=heads,
        head_dim=head_dim,
        vocab=c.count("vocab_size"),
        max_seq_len=length,
        gated_mlp=gated,
        activation=_activation(projection),
        position="relative",
        relative_buckets=c.count("relative_attention_num_buckets", default=32),
        tied_embeddings=c.flag("tie_word_embeddings", True),
        encoder=Encoder(n_layers, hidden, ffn, heads, head_dim, length),
    )


def _bart(c: Config) -> Architecture:
    """BART norms after its blocks; mBART before them, with a last norm per stack."""
    hidden, length = c.count("d_model"), c.count("max_position_embeddings")
    heads = c.count("encoder_attention_heads")
    if hidden % heads:
        raise c.error(
            f"d_model {hidden} is not divisible by {heads} heads",
            field="encoder_attention_heads",
            hint="change one",
        )
    encoder = Encoder(
        c.count("encoder_layers"),
        hidden,
        c.count("encoder_ffn_dim"),
        heads,
        hidden // heads,
        length,
        position_rows=length + 2,
    )
    return _decoder(
        c,
        kind="encoder-decoder",
        hidden=hidden,
        heads=c.count("decoder_attention_heads"),
        n_layers=c.count("decoder_layers"),
        ffn=c.count("decoder_ffn_dim"),
        vocab=c.count("vocab_size"),
        max_seq_len=length,
        position="learned",
        position_rows=length + 2,
        embedding_norm=True,
        final_norm=c.word("model_type", "") == "mbart",
        tied_embeddings=c.flag("tie_word_embeddings", True),
        encoder=encoder,
        activation=_activation(c.word("activation_function", "gelu")),
        **_ALL_BIASES,
    )


def _whisper(c: Config) -> Architecture:
    hidden, heads = c.count("d_model"), c.count("encoder_attention_heads")
    if hidden % heads:
        raise c.error(
            f"d_model {hidden} is not divisible by {heads} heads",
            field="encoder_attention_heads",
            hint="change one",
        )
    frames = c.count("max_source_positions", default=1500)
    encoder = Encoder(
        c.count("encoder_layers"),
        hidden,
        c.count("encoder_ffn_dim"),
        heads,
        hidden // heads,
        frames,
        n_mels=c.count("num_mel_bins", default=80),
        position_rows=frames,
    )
    return _decoder(
        c,
        kind="encoder-decoder",
        hidden=hidden,
        heads=c.count("decoder_attention_heads"),
        n_layers=c.count("decoder_layers"),
        ffn=c.count("decoder_ffn_dim"),
        vocab=c.count("vocab_size"),
        max_seq_len=c.count("max_target_positions", default=448),
        position="learned",
        key_bias=False,
        tied_embeddings=c.flag("tie_word_embeddings", True),
        encoder=encoder,
        **_ALL_BIASES,
    )


def _vit(c: Config) -> Architecture:
    image, patch = c.count("image_size", default=224), c.count("patch_size", default=16)
    patches = Patches(image, patch, c.count("num_channels", default=3))
    labels = len(c.part("id2label").values)
    return _decoder(
        c,
        kind="vision",
        hidden=c.count("hidden_size"),
        heads=c.count("num_attention_heads"),
        vocab=0,
        n_layers=c.count("num_hidden_layers"),
        ffn=c.count("intermediate_size"),
        max_seq_len=patches.n_tokens,
        position="learned",
        qkv_bias=c.flag("qkv_bias", True),
        attention_out_bias=True,
        mlp_bias=True,
        lm_head=False,
        patches=patches,
        n_classes=labels,
        notes=() if labels else ("the body without a classifier",),
    )


def _clip_text(c: Config) -> Architecture:
    return _decoder(
        c,
        hidden=c.count("hidden_size", default=512),
        heads=c.count("num_attention_heads", default=8),
        n_layers=c.count("num_hidden_layers", default=12),
        ffn=c.count("intermediate_size", default=2048),
        vocab=c.count("vocab_size", default=49_408),
        max_seq_len=c.count("max_position_embeddings", default=77),
        position="learned",
        tied_embeddings=True,
        lm_head=False,
        **_ALL_BIASES,
    )


CLASSIC_READERS: dict[str, Callable[[Config], Architecture]] = {
    "gpt2": _gpt2,
    "gpt_bigcode": _gpt_bigcode,
    "gpt_neo": _gpt_neo,
    "gptj": _gptj,
    "gpt_neox": _gpt_neox,
    "opt": _opt,
    "bloom": _bloom,
    "falcon": _falcon,
    "RefinedWeb": _falcon,
    "RefinedWebModel": _falcon,
    "mpt": _mpt,
    "phi": _phi,
    "bert": _bert,
    "roberta": _roberta,
    "xlm-roberta": _roberta,
    "camembert": _roberta,
    "distilbert": _distilbert,
    "deberta-v2": _deberta_v2,
    "t5": _t5,
    "mt5": _t5,
    "bart": _bart,
    "mbart": _bart,
    "whisper": _whisper,
    "vit": _vit,
    "clip_text_model": _clip_text,
}
