"""Dimensions typed by hand."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwise.errors import FieldError
from gpuwise.facts.models.catalogue import find_model, models
from gpuwise.facts.models.checks import check_architecture
from gpuwise.facts.models.dimensions import architecture_from_dimensions, parse_dimensions
from gpuwise.workload.transformer.parameters import count_parameters

LLAMA = "layers=32,hidden=4096,heads=32,kv_heads=8,ffn=14336,vocab=128256"


def test_llama_by_hand_is_the_llama_of_the_catalogue() -> None:
    arch = find_model(LLAMA + ",seq=8k")
    named = models()["llama-3-8b"]
    for field in (
        "n_layers",
        "hidden",
        "ffn",
        "heads",
        "kv_heads",
        "head_dim",
        "vocab",
        "max_seq_len",
        "gated_mlp",
    ):
        assert getattr(arch, field) == getattr(named, field)
    assert count_parameters(arch).total == named.published_parameters


def test_gpt_by_hand() -> None:
    arch = architecture_from_dimensions(n_layer=12, n_embd=768, n_head=12, vocab_size=50257)
    assert (arch.ffn, arch.gated_mlp, arch.activation, arch.kv_heads) == (3072, False, "gelu", 12)


def test_experts_by_hand() -> None:
    arch = find_model("layers=32,hidden=4096,heads=32,kv_heads=8,vocab=32000,experts=8,top_k=2,expert_ffn=14336,name=my mixtral")
    assert arch.name == "my mixtral"
    assert count_parameters(arch).total == models()["mixtral-8x7b"].published_parameters
    shared = parse_dimensions(LLAMA + ",experts=8,active_experts=2,expert_ffn=64,shared_ffn=128,first_dense=1")
    assert shared.moe is not None and shared.moe.n_shared == 1 and shared.n_dense_layers == 1


@pytest.mark.parametrize(
    ("text", "field", "hint"),
    [
        ("layers=32,hiden=4096,heads=32,vocab=1000", "hiden", "hidden"),
        ("layers=32,hidden=4096,heads=32", "vocab", "layers=32"),
        ("layers=32,hidden=4096,heads=33,vocab=1000", "heads", "head_dim"),
        ("layers=32,hidden=4096,heads=32,kv_heads=5,vocab=1000", "kv_heads", "divide"),
        ("layers=-32,hidden=4096,heads=32,vocab=1000", "n_layers", "4096"),
        ("layers=0,hidden=4096,heads=32,vocab=1000", "n_layers", "4096"),
        ("layers=nan,hidden=4096,heads=32,vocab=1000", "n_layers", "4096"),
        ("layers=inf,hidden=4096,heads=32,vocab=1000", "n_layers", "4096"),
        ("layers=3.5,hidden=4096,heads=32,vocab=1000", "n_layers", "4096"),
        ("layers=1e3,hidden=4096,heads=32,vocab=1000", "n_layers", "4096"),
        ("layers=٣,hidden=4096,heads=32,vocab=1000", "n_layers", "4096"),
        ("layers=32,hidden=4096,heads=32,vocab=32k", "vocab", "vocab"),
        ("layers=99999999,hidden=4096,heads=32,vocab=1000", "n_layers", "check"),
        ("layers=32,layers=32,hidden=4096,heads=32,vocab=1000", "layers", "remove"),
        ("layers=32,num_layers=32,hidden=4096,heads=32,vocab=1000", "n_layers", "remove"),
        ("layers=32,hidden=4096,heads=32,vocab=1000,norm=batch", "norm", "rms"),
        ("layers=32,hidden=4096,heads=32,vocab=1000,tied=maybe", "tied_embeddings", "true"),
        ("layers=32,hidden=4096,heads=32,vocab=1000,experts=8", "active_experts", "experts=8"),
        ("layers=32,hidden=4096,heads=32,vocab=1000,experts=8,top_k=2", "expert_ffn", "width"),
        ("layers=32,hidden=4096,heads=32,vocab=1000,experts=8,top_k=9,expert_ffn=64", "n_active", "fewer"),
        ("layers=32,hidden", "hidden", "layers=32"),
        ("layers=32,,hidden=1", None, "layers=32"),
        ("=", None, "layers=32"),
    ],
)
def test_refusals_name_field_and_remedy(text: str, field: str | None, hint: str) -> None:
    with pytest.raises(FieldError) as caught:
        find_model(text)
    assert caught.value.field == field
    assert hint in str(caught.value.hint)


@pytest.mark.parametrize("value", [math.nan, math.inf, -1, 0, -0.0, 1.5, True, None, "4 096", [], {}, "1" * 50])
def test_refused_values(value: object) -> None:
    with pytest.raises(FieldError):
        architecture_from_dimensions(layers=value, hidden=64, heads=4, vocab=100)


def test_numbers_and_flags_as_values() -> None:
    arch = architecture_from_dimensions(
        layers=2.0,
        hidden=64,
        heads=4,
        vocab="1_000",
        window="4k",
        tied=True,
        position="alibi",
        norm="layer",
        qk_norm="yes",
    )
    assert (arch.n_layers, arch.vocab, arch.window, arch.tied_embeddings) == (2, 1000, 4096, True)
    assert (arch.position, arch.norm, arch.qk_norm) == ("alibi", "layer", True)


KEYS = st.sampled_from(
    [
        "layers",
        "hidden",
        "heads",
        "kv_heads",
        "ffn",
        "vocab",
        "head_dim",
        "seq",
        "window",
        "experts",
        "active_experts",
        "expert_ffn",
        "shared_ffn",
        "first_dense",
        "tied",
        "norm",
        "global_every",
    ]
)
VALUES = st.one_of(
    st.integers(),
    st.floats(),
    st.booleans(),
    st.none(),
    st.text(max_size=10),
    st.integers(1, 512),
    st.integers(1, 8),
)


@given(st.dictionaries(KEYS, VALUES))
def test_any_values_give_a_sound_model_or_a_field_error(dims: dict[str, Any]) -> None:
    try:
        arch = architecture_from_dimensions(**dims)
    except FieldError as error:
        assert error.hint
        return
    assert check_architecture(arch) is arch
    assert count_parameters(arch).total > 0


@given(st.text(alphabet="layershidn=,0123456789-. nank", max_size=60))
def test_any_text_of_pairs(text: str) -> None:
    try:
        parse_dimensions(text)
    except FieldError:
        return
