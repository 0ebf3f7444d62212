from __future__ import annotations

import pytest

from gpuwise.errors import AmbiguousNameError, UnknownNameError
from gpuwise.facts.models.catalogue import find_model, models
from gpuwise.facts.models.unmodelled import refuse_unmodelled
from gpuwise.workload.transformer.parameters import count_parameters


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("clip", "text tower"),
        ("openai/clip-vit-large-patch14", "text tower"),
        ("siglip-so400m", "text tower"),
        ("rwkv-7", "recurrence"),
        ("dinov2-large", "plain vision"),
        ("resnet50", "plain vision"),
        ("stable-diffusion-xl", "trained by name"),
        ("gpt-4o", "not published"),
        ("claude-3.5-sonnet", "not published"),
    ],
)
def test_what_no_dimensions_describe_is_refused_with_the_reason(name: str, why: str) -> None:
    with pytest.raises(UnknownNameError) as caught:
        find_model(name)
    assert name in caught.value.message and why in (caught.value.hint or "")


@pytest.mark.parametrize("model", [*models()])
def test_no_model_of_the_catalogue_is_refused(model: str) -> None:
    refuse_unmodelled(model)
    for alias in (models()[model].name, *models()[model].aliases):
        assert find_model(alias).id == model


@pytest.mark.parametrize(
    ("name", "kind", "parameters"),
    [
        ("bert-base-uncased", "encoder", 109.5e6),
        ("roberta-large", "encoder", 355e6),
        ("modernbert-base", "encoder", 149.0e6),
        ("answerdotai/ModernBERT-large", "encoder", 394.8e6),
        ("vit-b", "vision", 86.6e6),
        ("clip-text-l", "decoder", 123.1e6),
    ],
)
def test_encoders_by_name_are_what_they_are(name: str, kind: str, parameters: float) -> None:
    arch = find_model(name)
    assert arch.kind == kind
    assert count_parameters(arch).total == pytest.approx(parameters, rel=2e-3)


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("Llama-3.1-8B-Q4_K_M.gguf", "llama-3.1-8b"),
        ("Meta-Llama-3.1-8B-Instruct-IQ4_XS.gguf", "llama-3.1-8b"),
        ("bartowski/Qwen2.5-7B-Instruct-GGUF", "qwen2.5-7b"),
        ("gemma-3-27b-it-UD-Q4_K_XL.gguf", "gemma-3-27b"),
        ("llama3.1:8b-instruct-q8_0", "llama-3.1-8b"),
        ("qwen3-30b-a3b.Q5_0.gguf", "qwen3-30b-a3b"),
    ],
)
def test_a_file_of_llama_cpp_is_the_model_it_holds(name: str, model: str) -> None:
    assert find_model(name).id == model


def test_of_several_models_the_usual_and_smaller_come_first() -> None:
    with pytest.raises(AmbiguousNameError) as caught:
        find_model("gpt-3")
    assert caught.value.candidates[0] == "gpt3-1.3b" and caught.value.candidates[-1] == "gpt3-760m"
    assert find_model("bert").id == "bert-base"
    assert find_model("llama3").id == "llama-3-8b"
