from __future__ import annotations

import pytest

from gpuwise.errors import UnknownNameError
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
        ("stable-diffusion-xl", "denoising"),
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
