"""Misspelt names of models: the nearest by what people run."""

from __future__ import annotations

import pytest

from gpuwise.errors import UnknownNameError
from gpuwise.facts.models.catalogue import find_model


@pytest.mark.parametrize(
    ("typed", "first"),
    [
        ("mistrl", "mistral-7b"),
        ("lama", "llama-3.1-8b"),
        ("lama3", "llama-3-8b"),
        ("gema", "gemma-3-4b"),
        ("gemma3-4", "gemma-3-4b"),
        ("qwem", "qwen3-8b"),
        ("deepsek", "deepseek-v3"),
        ("mixtrl", "mixtral-8x7b"),
        ("llama-3.1-8", "llama-3.1-8b"),
        ("qwen3-8", "qwen3-8b"),
    ],
)
def test_a_misspelt_name_gives_the_model_that_people_run_first(typed: str, first: str) -> None:
    with pytest.raises(UnknownNameError) as refused:
        find_model(typed)
    assert refused.value.hint is not None and refused.value.hint.startswith(f"did you mean '{first}'")
