"""Which linear layers carry adapters, and how many parameters those have."""

from __future__ import annotations

import pytest

from gpuwise.errors import UnknownNameError
from gpuwise.facts.models.catalogue import find_model
from gpuwise.workload.adapters import (
    ALL_LINEAR,
    ATTENTION,
    DEFAULT_TARGETS,
    MLP,
    carries,
    module_names,
    split_targets,
)
from gpuwise.workload.transformer.parameters import adapter_parameters

LLAMA = find_model("llama-3.1-8b")


def test_parameters_by_hand() -> None:
    """rank (in + out) for each of the seven matrices of a layer of Llama 3.1 8B: PEFT prints 41,943,040 at rank 16."""
    h, f, q, kv = 4096, 14336, 4096, 1024
    attention = 16 * ((h + q) + 2 * (h + kv) + (q + h))
    mlp = 16 * 3 * (h + f)
    assert adapter_parameters(LLAMA, (ATTENTION,), 16) == 32 * attention
    assert adapter_parameters(LLAMA, (MLP,), 16) == 32 * mlp
    assert adapter_parameters(LLAMA, DEFAULT_TARGETS, 16) == 32 * (attention + mlp) == 41_943_040


def test_the_usual_pair_of_llama() -> None:
    """q_proj and v_proj at rank 8: 3,407,872 parameters (the adapters of Llama 3 8B as PEFT's defaults make them)."""
    assert adapter_parameters(LLAMA, ("q_proj", "v_proj"), 8) == 3_407_872


def test_fused_projections_have_one_adapter() -> None:
    gpt2 = find_model("gpt2")
    assert adapter_parameters(gpt2, ("c_attn",), 8) == 12 * 8 * (768 + 3 * 768) == 294_912
    assert adapter_parameters(gpt2, ("q_proj",), 8) == 294_912


def test_experts_and_heads_carry_none() -> None:
    mixtral = find_model("mixtral-8x7b")
    assert adapter_parameters(mixtral, DEFAULT_TARGETS, 8) == adapter_parameters(mixtral, (ATTENTION,), 8)
    assert not carries(DEFAULT_TARGETS, "head")


def test_latent_attention() -> None:
    deepseek = find_model("deepseek-v3")
    assert adapter_parameters(deepseek, ("q_a_proj",), 16) == 61 * 16 * (7168 + 1536)


def test_names() -> None:
    assert split_targets(" q_proj, v_proj ") == ("q_proj", "v_proj")
    assert carries(("linear_qkv",), "k") and not carries(("linear_qkv",), "out")
    assert carries((ALL_LINEAR,), "down") and carries(("v_proj",), "qkv")
    assert module_names((ATTENTION, "q_proj")) == ("q_proj", "k_proj", "v_proj", "o_proj")


@pytest.mark.parametrize("text", ["q_prj", "", "attention,nothing"])
def test_unknown_names_are_refused(text: str) -> None:
    with pytest.raises(UnknownNameError):
        split_targets(text)
