"""Readers of configurations of state-space models and of hybrids with attention, or of it and linear attention, one per
``model_type``.

Defaults are those of the configuration classes of Hugging Face transformers, given only where published configs rely on them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from gpuwise.facts.models.architecture import Architecture, LinearAttention, Mamba, Moe, ShortConv
from gpuwise.facts.models.config_fields import Config, latent, leading_dense

_LETTERS = {"mamba": "M", "linear_attention": "M", "attention": "*", "full_attention": "*", "mlp": "-", "moe": "E"}
"""Kinds of layers by their names in ``layers_block_type`` and ``layer_types``."""


def _pattern(words: Sequence[str]) -> str:
    """Words of layers as a pattern: without spaces where each is one letter."""
    return ("" if all(len(word) == 1 for word in words) else " ").join(words)


def _letters(c: Config, key: str, names: Sequence[str]) -> list[str]:
    unknown = next((name for name in names if name not in _LETTERS), None)
    if unknown is not None:
        raise c.error(f"{key} has {unknown[:40]!r}", field=key, hint="known: " + ", ".join(_LETTERS))
    return [_LETTERS[name] for name in names]


def _architecture(c: Config, **fixed: Any) -> Architecture:
    """What all share; without attention the sizes that a split divides are the mixer's."""
    mamba: Mamba | None = fixed.get("mamba")
    moe: Moe | None = fixed.get("moe")
    hidden = c.count("hidden_size")
    heads = c.count("num_attention_heads", default=None if mamba is None else mamba.heads or 1)
    width = mamba.inner if mamba is not None else None if moe is None else moe.expert_ffn
    values: dict[str, Any] = {
        "id": "config",
        "name": "config",
        "kind": "decoder",
        "hidden": hidden,
        "heads": heads,
        "kv_heads": c.count("num_key_value_heads", default=heads),
        "head_dim": c.count("head_dim", "attention_head_dim", default=max(hidden // heads, 1)),
        "ffn": c.count("intermediate_size", default=width),
        "vocab": c.count("vocab_size"),
        "max_seq_len": c.count("max_position_embeddings", default=2048),
        "position": "none",
        "tied_embeddings": c.flag("tie_word_embeddings", False),
        **fixed,
    }
    return Architecture(**values)


def _channels(c: Config, **keys: str) -> Mamba:
    """Mamba: the step's rank is a sixteenth of the hidden size unless given."""
    hidden = c.count("hidden_size")
    rank = c.values.get(keys["rank"])
    return Mamba(
        inner=c.count(keys["expand"], default=2) * hidden,
        state=c.count(keys["state"], default=16),
        conv=c.count(keys["conv"], default=4),
        dt_rank=-(-hidden // 16) if rank in (None, "auto") else c.count(keys["rank"]),
        conv_bias=c.flag(keys["conv_bias"], True),
        projection_bias=c.flag(keys["bias"], False),
    )


def _mamba(c: Config) -> Architecture:
    keys = {"rank": "time_step_rank", "expand": "expand", "state": "state_size", "conv": "conv_kernel"}
    mixer = _channels(c, **keys, conv_bias="use_conv_bias", bias="use_bias")
    n = c.count("num_hidden_layers")
    return _architecture(c, n_layers=n, mamba=mixer, pattern="M" * n, tied_embeddings=c.flag("tie_word_embeddings", True))


def _mamba2(c: Config) -> Architecture:
    heads, n = c.count("num_heads"), c.count("num_hidden_layers")
    mixer = Mamba(
        inner=c.count("expand", default=2) * c.count("hidden_size"),
        state=c.count("state_size", default=128),
        heads=heads,
        groups=c.count("n_groups", default=8),
        conv=c.count("conv_kernel", default=4),
        chunk=c.count("chunk_size", default=256),
        conv_bias=c.flag("use_conv_bias", True),
        projection_bias=c.flag("use_bias", False),
    )
    return _architecture(c, n_layers=n, mamba=mixer, pattern="M" * n)


def _jamba(c: Config) -> Architecture:
    """A layer has attention or a mixer, then an MLP or experts, each at a period and an offset."""
    keys = {"rank": "mamba_dt_rank", "expand": "mamba_expand", "state": "mamba_d_state", "conv": "mamba_d_conv"}
    plain = _channels(c, **keys, conv_bias="mamba_conv_bias", bias="mamba_proj_bias")
    mixer = Mamba(plain.inner, plain.state, 0, 1, plain.conv, plain.chunk, plain.dt_rank, plain.conv_bias, parameter_norms=True)
    n, experts = c.count("num_hidden_layers"), c.count("num_experts", default=16)
    every, first = c.count("attn_layer_period", default=8), c.count("attn_layer_offset", default=4, zero=True)
    routed, offset = c.count("expert_layer_period", default=2), c.count("expert_layer_offset", default=1, zero=True)
    words = [("*" if i % every == first else "M") + ("E" if experts > 1 and i % routed == offset else "-") for i in range(n)]
    moe = None
    if any("E" in word for word in words):
        moe = Moe(experts, c.count("num_experts_per_tok", default=2), c.count("intermediate_size"))
    return _architecture(c, n_layers=n, mamba=mixer, moe=moe, pattern=_pattern(words))


def _grouped(c: Config, **more: Any) -> Mamba:
    """Mamba-2 as Bamba, Granite 4 and Falcon-H1 write it."""
    inner = c.maybe("mamba_d_ssm") or c.count("mamba_expand", default=2) * c.count("hidden_size")
    return Mamba(
        inner=inner,
        state=c.count("mamba_d_state", default=256),
        heads=c.count("mamba_n_heads", default=128),
        groups=c.count("mamba_n_groups", default=1),
        conv=c.count("mamba_d_conv", default=4),
        chunk=c.count("mamba_chunk_size", default=256),
        conv_bias=c.flag("mamba_conv_bias", True),
        projection_bias=c.flag("mamba_proj_bias", False),
        **more,
    )


def _bias(c: Config) -> dict[str, Any]:
    bias = c.flag("attention_bias", False)
    return {"qkv_bias": bias, "attention_out_bias": bias, "mlp_bias": c.flag("mlp_bias", False)}


def _bamba(c: Config) -> Architecture:
    n = c.count("num_hidden_layers")
    listed = c.values.get("attn_layer_indices")
    at = cast("list[object]", listed) if isinstance(listed, list) else []
    words = ["*-" if i in at else "M-" for i in range(n)]
    return _architecture(c, n_layers=n, mamba=_grouped(c), pattern=_pattern(words), position="rope", **_bias(c))


def _granite_hybrid(c: Config) -> Architecture:
    """Every layer has a shared MLP, and experts beside it where there are any."""
    kinds = _letters(c, "layer_types", c.words("layer_types") or c.words("layers_block_type"))
    n, experts = c.count("num_hidden_layers"), c.count("num_local_experts", default=8, zero=True)
    shared = c.count("shared_intermediate_size", default=1024)
    moe, ffn = None, shared
    if experts:
        ffn = c.count("intermediate_size")
        moe = Moe(experts, c.count("num_experts_per_tok", default=2), ffn, n_shared=1, shared_ffn=shared)
    words = [kind + ("E" if experts else "-") for kind in kinds or ["M"] * n]
    mixer = None if not any("M" in word for word in words) else _grouped(c)
    if mixer is None:
        raise c.error("no layer has a state-space mixer", field="layer_types", hint="give it as model_type granitemoe")
    position = "rope" if c.word("position_embedding_type", "none") == "rope" else "none"
    bias = {**_bias(c), "mlp_bias": False}
    return _architecture(c, n_layers=n, mamba=mixer, moe=moe, ffn=ffn, pattern=_pattern(words), position=position, **bias)


def _falcon_h1(c: Config) -> Architecture:
    n = c.count("num_hidden_layers")
    mixer = _grouped(c, gated_norm=c.flag("mamba_rms_norm", False))
    return _architecture(c, n_layers=n, mamba=mixer, pattern=_pattern(["P-"] * n), position="rope", **_bias(c))


def _nemotron_h(c: Config) -> Architecture:
    """Each layer is one sub-block; experts may work in a narrower latent space (Nemotron 3 Super)."""
    text = c.word("hybrid_override_pattern", "")
    named = c.words("layers_block_type") or c.words("layer_types")
    letters = list(text) if text else _letters(c, "layers_block_type", named)
    if not letters:
        raise c.error("layers_block_type is missing", field="layers_block_type", hint="give hybrid_override_pattern, as M-M*-")
    moe = None
    if "E" in letters:
        shared = c.count("n_shared_experts", default=1, zero=True) * c.count("moe_shared_expert_intermediate_size", default=7688)
        moe = Moe(
            c.count("n_routed_experts", default=8),
            c.count("num_experts_per_tok", default=2),
            c.count("moe_intermediate_size", default=7688),
            n_shared=int(shared > 0),
            shared_ffn=shared,
            latent=c.count("moe_latent_size", default=0, zero=True),
        )
    heads = c.count("mamba_num_heads", default=128)
    mixer = Mamba(
        inner=heads * c.count("mamba_head_dim", default=64),
        state=c.count("ssm_state_size", default=128),
        heads=heads,
        groups=c.count("n_groups", default=8),
        conv=c.count("conv_kernel", default=4),
        chunk=c.count("chunk_size", default=128),
        conv_bias=c.flag("use_conv_bias", True),
        projection_bias=c.flag("use_bias", False) or c.flag("mamba_proj_bias", False),
    )
    return _architecture(
        c,
        n_layers=len(letters),
        mamba=mixer,
        moe=moe,
        pattern="".join(letters),
        head_dim=c.count("head_dim", "attention_head_dim", default=128),
        gated_mlp=False,
        activation="relu2",
        mlp_bias=c.flag("mlp_bias", False),
        prediction_layers=c.count("num_nextn_predict_layers", default=0, zero=True),
    )


def _qwen3_next(c: Config) -> Architecture:
    """Qwen3-Next and the language models of Qwen3.5 and 3.6: every so many layers full attention with an output gate."""
    n, every = c.count("num_hidden_layers"), c.count("full_attention_interval", default=4)
    kinds = c.words("layer_types") or tuple("linear_attention" if (i + 1) % every else "full_attention" for i in range(n))
    unknown = next((kind for kind in kinds if kind not in ("linear_attention", "full_attention")), None)
    if unknown is not None:
        raise c.error(f"layer_types has {unknown[:40]!r}", field="layer_types", hint="known: linear_attention, full_attention")
    experts, step = c.maybe("num_experts", zero=True), c.count("decoder_sparse_step", default=1)
    listed = c.values.get("mlp_only_layers")
    dense = cast("list[object]", listed) if isinstance(listed, list) else []
    mlps = ["E" if experts and i not in dense and (i + 1) % step == 0 else "-" for i in range(len(kinds))]
    moe = None
    if experts and "E" in mlps:
        shared = c.count("shared_expert_intermediate_size")
        active, width = c.count("num_experts_per_tok"), c.count("moe_intermediate_size")
        moe = Moe(experts, active, width, n_shared=1, shared_ffn=shared, shared_gate=True)
    linear = LinearAttention(
        key_heads=c.count("linear_num_key_heads"),
        value_heads=c.count("linear_num_value_heads"),
        key_dim=c.count("linear_key_head_dim"),
        value_dim=c.count("linear_value_head_dim"),
        conv=c.count("linear_conv_kernel_dim", default=4),
    )
    return _architecture(
        c,
        n_layers=n,
        linear_attention=linear if "linear_attention" in kinds else None,
        moe=moe,
        pattern=_pattern([("L" if kind == "linear_attention" else "*") + mlp for kind, mlp in zip(kinds, mlps, strict=True)]),
        head_dim=c.count("head_dim", default=256),
        position="rope",
        qk_norm=True,
        norm_in_fp32=True,
        attention_output_gate=True,
        prediction_layers=c.count("mtp_num_hidden_layers", default=0, zero=True),
        **{**_bias(c), "mlp_bias": False},
    )


def _kimi_linear(c: Config) -> Architecture:
    """Kimi Linear: delta attention with a decay for every channel, and latent attention without positions in between."""
    n = c.count("num_hidden_layers")
    kinds, within = c.words("layer_types"), c.part("linear_attn_config")
    if not kinds:  # as the checkpoint's own code writes it, counted from 1
        listed = within.values.get("full_attn_layers")
        full = cast("list[object]", listed) if isinstance(listed, list) else []
        kinds = tuple("full_attention" if i + 1 in full else "linear_attention" for i in range(n))
    heads, dim = c.maybe("linear_num_heads") or within.count("num_heads"), c.maybe("linear_head_dim") or within.count("head_dim")
    conv = c.maybe("linear_conv_kernel_dim") or within.count("short_conv_kernel_size", default=4)
    ffn, n_shared = c.count("moe_intermediate_size"), c.count("num_shared_experts", default=1, zero=True)
    dense = c.count("first_k_dense_replace", default=leading_dense(c), zero=True)
    moe = Moe(
        c.count("num_experts"),
        c.count("num_experts_per_token", "num_experts_per_tok"),
        ffn,
        n_shared=n_shared,
        shared_ffn=n_shared * ffn,
        router_bias=True,
    )
    mla = latent(c)
    words = [("L" if kind == "linear_attention" else "*") + ("-" if i < dense else "E") for i, kind in enumerate(kinds)]
    return _architecture(
        c,
        n_layers=n,
        moe=moe,
        mla=mla,
        linear_attention=LinearAttention(heads, heads, dim, dim, conv, gate_rank=dim),
        pattern=_pattern(words),
        head_dim=mla.qk_nope_head_dim + mla.qk_rope_head_dim,
        max_seq_len=c.count("model_max_length", "max_position_embeddings", default=4096),
    )


def _lfm2(c: Config) -> Architecture:
    """LFM2: short convolutions and attention in turn; with experts after the first dense layers (``lfm2_moe``)."""
    n, ffn = c.count("num_hidden_layers"), c.count("intermediate_size", "block_ff_dim")
    kinds, at = c.words("layer_types"), c.values.get("full_attn_idxs")
    if not kinds:
        attends = cast("list[object]", at) if isinstance(at, list) else []
        kinds = tuple("full_attention" if i in attends else "conv" for i in range(n))
    unknown = next((kind for kind in kinds if kind not in ("conv", "full_attention")), None)
    if unknown is not None:
        raise c.error(f"layer_types has {unknown[:40]!r}", field="layer_types", hint="known: conv, full_attention")
    experts = c.maybe("num_experts")
    if experts is None and c.flag("block_auto_adjust_ff_dim", True):  # modeling_lfm2.py Lfm2MLP
        factor, step = c.values.get("block_ffn_dim_multiplier", 1.0), c.count("block_multiple_of", default=256)
        if factor is not None:
            if isinstance(factor, bool) or not isinstance(factor, int | float) or not factor > 0:
                raise c.error(
                    "block_ffn_dim_multiplier is not a number above zero", field="block_ffn_dim_multiplier", hint="check it"
                )
            ffn = step * -(-int(factor * int(2 * ffn / 3)) // step)
        else:
            ffn = int(2 * ffn / 3)
    dense = c.count("num_dense_layers", default=0, zero=True) if experts else n
    moe = None
    if experts is not None:
        active, width = c.count("num_experts_per_tok"), c.count("moe_intermediate_size")
        moe = Moe(experts, active, width, router_bias=c.flag("use_expert_bias", True))
    words = [("C" if kind == "conv" else "*") + ("-" if i < dense else "E") for i, kind in enumerate(kinds)]
    return _architecture(
        c,
        n_layers=n,
        ffn=ffn,
        moe=moe if any("E" in word for word in words) else None,
        short_conv=ShortConv(c.count("conv_L_cache", default=3), c.flag("conv_bias", False)) if "conv" in kinds else None,
        pattern=_pattern(words),
        position="rope",
        qk_norm=True,
        tied_embeddings=c.flag("tie_word_embeddings", c.flag("tie_embedding", True)),
    )


HYBRID_READERS: dict[str, Callable[[Config], Architecture]] = {
    "mamba": _mamba,
    "falcon_mamba": _mamba,
    "mamba2": _mamba2,
    "jamba": _jamba,
    "bamba": _bamba,
    "granitemoehybrid": _granite_hybrid,
    "falcon_h1": _falcon_h1,
    "nemotron_h": _nemotron_h,
    "qwen3_next": _qwen3_next,
    "qwen3_5_text": _qwen3_next,
    "qwen3_5_moe_text": _qwen3_next,
    "kimi_linear": _kimi_linear,
    "lfm2": _lfm2,
    "lfm2_moe": _lfm2,
}
