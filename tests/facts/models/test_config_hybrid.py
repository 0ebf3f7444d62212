"""Configurations of state-space models and hybrids, against the parameters that transformers makes of them."""

from typing import Any

import pytest

from gpuwise.errors import FieldError
from gpuwise.facts.models.catalogue import models
from gpuwise.facts.models.configs import architecture_from_config
from gpuwise.workload.transformer.parameters import count_parameters

SMALL: dict[str, Any] = {"hidden_size": 256, "vocab_size": 1000}
ATTENTION: dict[str, Any] = {"intermediate_size": 512, "num_attention_heads": 8, "num_key_value_heads": 2}
EIGHT: dict[str, Any] = {"mamba_n_heads": 8, "mamba_n_groups": 2, "mamba_d_state": 256}
NEMOTRON: dict[str, Any] = {
    "model_type": "nemotron_h",
    "head_dim": 64,
    "mamba_num_heads": 8,
    "mamba_head_dim": 64,
    "n_groups": 2,
    "n_routed_experts": 4,
    "moe_intermediate_size": 128,
    "moe_shared_expert_intermediate_size": 256,
}
GRANITE: dict[str, Any] = {"model_type": "granitemoehybrid", "shared_intermediate_size": 1024, "num_experts_per_tok": 2, **EIGHT}
QWEN: dict[str, Any] = {
    "num_hidden_layers": 4,
    "head_dim": 64,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 64,
    **ATTENTION,
}
ROUTED: dict[str, Any] = {
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 128,
    "shared_expert_intermediate_size": 256,
}
QWEN3_NEXT: dict[str, Any] = {
    "model_type": "qwen3_next",
    "decoder_sparse_step": 1,
    "full_attention_interval": 4,
    "head_dim": 256,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 5120,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_value_head_dim": 128,
    "max_position_embeddings": 262144,
    "mlp_only_layers": [],
    "moe_intermediate_size": 512,
    "num_attention_heads": 16,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "num_hidden_layers": 48,
    "num_key_value_heads": 2,
    "partial_rotary_factor": 0.25,
    "shared_expert_intermediate_size": 512,
    "tie_word_embeddings": False,
    "vocab_size": 151936,
}
"""Of https://huggingface.co/Qwen/Qwen3-Next-80B-A3B-Instruct."""
# (config, parameters of AutoModelForCausalLM.from_config(config) in transformers 5.23)
CASES: list[tuple[dict[str, Any], int]] = [
    ({"model_type": "mamba", "num_hidden_layers": 3}, 1_570_304),
    (
        {
            "model_type": "mamba",
            "num_hidden_layers": 3,
            "use_bias": True,
            "use_conv_bias": False,
            "tie_word_embeddings": False,
            "time_step_rank": 20,
        },
        1_840_896,
    ),
    ({"model_type": "falcon_mamba", "num_hidden_layers": 3}, 1_570_304),
    ({"model_type": "mamba2", "num_hidden_layers": 3, "num_heads": 8, "n_groups": 2}, 2_109_000),
    ({"model_type": "jamba", "num_hidden_layers": 8, "num_experts": 4, **ATTENTION}, 11_613_264),
    ({"model_type": "bamba", "num_hidden_layers": 4, "attn_layer_indices": [2], **ATTENTION, **EIGHT}, 4_247_880),
    (
        {
            **GRANITE,
            "num_hidden_layers": 4,
            "num_local_experts": 8,
            "layer_types": ["linear_attention", "full_attention", "linear_attention", "linear_attention"],
            **ATTENTION,
        },
        18_411_848,
    ),
    (
        {**GRANITE, "num_hidden_layers": 2, "num_local_experts": 0, "layer_types": ["mamba", "attention"], **ATTENTION},
        2_915_608,
    ),
    ({"model_type": "falcon_h1", "num_hidden_layers": 3, "mamba_d_ssm": 512, "mamba_n_heads": 8, **ATTENTION}, 3_779_400),
    ({**NEMOTRON, "hybrid_override_pattern": "M-M*ME", **ATTENTION}, 3_093_832),
    ({**NEMOTRON, "layers_block_type": ["mamba", "attention", "mamba", "moe"], "moe_latent_size": 64, **ATTENTION}, 2_135_344),
    ({"model_type": "qwen3_next", **QWEN, **ROUTED}, 5_613_656),
    (
        {
            "model_type": "qwen3_next",
            **QWEN,
            **ROUTED,
            "full_attention_interval": 2,
            "attention_bias": True,
            "mlp_only_layers": [1],
        },
        5_250_448,
    ),
    ({"model_type": "qwen3_next", **QWEN, **ROUTED, "decoder_sparse_step": 2}, 4_429_400),
    ({"model_type": "qwen3_5_text", **QWEN}, 3_245_144),
    (
        {"model_type": "qwen3_5_moe_text", **QWEN, **ROUTED, "layer_types": ["linear_attention", "full_attention"] * 2},
        5_839_504,
    ),
]


@pytest.mark.parametrize(("config", "parameters"), CASES)
def test_parameters_are_those_of_transformers(config: dict[str, Any], parameters: int) -> None:
    assert count_parameters(architecture_from_config({**SMALL, **config})).total == parameters


def test_the_pattern_says_what_each_layer_is() -> None:
    jamba = architecture_from_config({**SMALL, **CASES[4][0]})
    assert jamba.layer_blocks == ("M-", "ME", "M-", "ME", "*-", "ME", "M-", "ME")
    assert (jamba.n_mamba_layers, jamba.n_attention_layers, jamba.n_moe_layers, jamba.n_dense_layers) == (7, 1, 4, 4)
    nemotron = architecture_from_config({**SMALL, **CASES[9][0]})
    assert nemotron.layer_blocks == ("M", "-", "M", "*", "M", "E")
    assert models()["falcon-h1-7b"].n_attention_layers == models()["falcon-h1-7b"].n_mamba_layers == 44


def test_published_config_of_linear_attention_is_the_catalogue_model() -> None:
    read, known = architecture_from_config(QWEN3_NEXT), models()["qwen3-next-80b-a3b"]
    assert count_parameters(read).total == count_parameters(known).total == known.published_parameters
    assert (read.linear_attention, read.moe, read.pattern) == (known.linear_attention, known.moe, known.pattern)
    assert read.n_attention_layers == 12 and read.layers_with_part("linear_attention") == 36
    named = {f: getattr(read, f) for f in ("heads", "kv_heads", "head_dim", "ffn", "vocab", "max_seq_len", "qk_norm")}
    assert named == {f: getattr(known, f) for f in named}
    # the prediction block is in the checkpoint and not in the config; Hugging Face counts it
    count = count_parameters(known)
    assert count.total + count.prediction == 81_324_862_720


@pytest.mark.parametrize(
    "change", [{"layer_types": ["mamba"] * 4}, {"layer_types": ["full_attention"]}, {"linear_num_key_heads": 3}]
)
def test_linear_attention_that_no_model_has_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(FieldError) as caught:
        architecture_from_config({**SMALL, "model_type": "qwen3_next", **QWEN, **ROUTED, **change})
    assert caught.value.field in ("layer_types", "pattern", "key_heads")


def test_the_language_model_of_qwen3_5_is_read() -> None:
    text = {"model_type": "qwen3_5_text", **SMALL, **QWEN, "mtp_num_hidden_layers": 1}
    arch = architecture_from_config({"model_type": "qwen3_5", "text_config": text, "vision_config": {}})
    assert arch.layer_blocks == ("L-", "L-", "L-", "*-") and arch.prediction_layers == 1 and "towers" in arch.notes[0]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"hybrid_override_pattern": "M-MX"}, "pattern"),
        ({"hybrid_override_pattern": "--**"}, "mamba"),
        ({"n_groups": 3, "hybrid_override_pattern": "M*"}, "groups"),
        ({"layers_block_type": ["mamba", "rwkv"]}, "layers_block_type"),
        ({}, "layers_block_type"),
    ],
)
def test_patterns_that_no_model_has_are_refused(change: dict[str, Any], field: str) -> None:
    with pytest.raises(FieldError) as caught:
        architecture_from_config({**SMALL, **NEMOTRON, **ATTENTION, **change})
    assert caught.value.field == field


LFM: dict[str, Any] = {"model_type": "lfm2", **SMALL, **ATTENTION, "num_hidden_layers": 4, "full_attn_idxs": [2]}


def test_short_convolutions_and_attention_in_turn() -> None:
    arch = architecture_from_config(LFM)
    assert arch.layer_blocks == ("C-", "C-", "*-", "C-") and arch.short_conv is not None and arch.ffn == 512
    mixed = architecture_from_config(
        {
            **LFM,
            "model_type": "lfm2_moe",
            "num_dense_layers": 1,
            "moe_intermediate_size": 64,
            "num_experts": 4,
            "num_experts_per_tok": 2,
        }
    )
    assert mixed.layer_blocks == ("C-", "CE", "*E", "CE") and mixed.ffn == 512


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"layer_types": ["conv", "conv", "mamba", "conv"]}, "layer_types"),
        ({"block_ffn_dim_multiplier": "wide"}, "block_ffn_dim_multiplier"),
        ({"block_ffn_dim_multiplier": -1.0}, "block_ffn_dim_multiplier"),
        ({"num_hidden_layers": 5, "layer_types": ["conv"] * 4}, "pattern"),
    ],
)
def test_short_convolutions_that_no_model_has_are_refused(change: dict[str, Any], field: str) -> None:
    with pytest.raises(FieldError) as caught:
        architecture_from_config({**LFM, **change})
    assert caught.value.field == field


def test_shared_attention_is_refused_by_name() -> None:
    with pytest.raises(FieldError, match="shares the weights of its attention"):
        architecture_from_config({**SMALL, **ATTENTION, "model_type": "zamba2", "num_hidden_layers": 4, "mamba_d_state": 64})
