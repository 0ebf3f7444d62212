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


def test_shared_attention_is_refused_by_name() -> None:
    with pytest.raises(FieldError, match="shares the weights of its attention"):
        architecture_from_config({**SMALL, **ATTENTION, "model_type": "zamba2", "num_hidden_layers": 4, "mamba_d_state": 64})
