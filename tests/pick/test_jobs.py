"""Jobs: gaps filled with stated defaults, nonsense refused."""

from __future__ import annotations

import math

import pytest

from gpuwise.errors import InputError, UnknownNameError
from gpuwise.facts.models.catalogue import find_model
from gpuwise.pick.jobs import OUTPUT_TOKENS, PROMPT_TOKENS, serving_job, training_job
from gpuwise.workload.transformer.tables import model_flop_per_token

LLAMA = find_model("llama-3.1-8b")


def test_flop_of_training_is_that_of_the_workload_room() -> None:
    job = training_job(LLAMA, tokens=1e9, seq_len=4096)
    assert job.flop == pytest.approx(1e9 * model_flop_per_token(LLAMA, 4096))
    assert job.flop == pytest.approx(6 * 8.03e9 * 1e9, rel=0.15)


def test_adapters_do_without_weight_gradients() -> None:
    full = training_job(LLAMA, purpose="finetune", tokens=1e6, method="full")
    lora = training_job(LLAMA, purpose="finetune", tokens=1e6, method="lora")
    assert 0.6 < lora.flop / full.flop < 0.75


def test_what_is_assumed_is_said() -> None:
    job = training_job(LLAMA, purpose="finetune")
    assert any("tokens to fine-tune on" in a for a in job.assumed) and any("LoRA" in a for a in job.assumed)
    told = training_job(LLAMA, purpose="finetune", tokens=1e6, seq_len=512, method="lora")
    assert told.assumed == ()


def test_tokens_a_day_are_requests_of_the_output_length() -> None:
    a = serving_job(LLAMA, tokens_per_day=1e6 * OUTPUT_TOKENS)
    b = serving_job(LLAMA, requests_per_day=1e6)
    assert a.load.requests_per_s == pytest.approx(b.load.requests_per_s)
    assert b.served_tokens == pytest.approx(1e6 * 365.25 * (PROMPT_TOKENS + OUTPUT_TOKENS))


def test_a_users_day_is_shorter_than_a_loads() -> None:
    assert serving_job(LLAMA, users=3).hours == pytest.approx(8 * 365.25)
    assert serving_job(LLAMA, requests_per_day=10).hours == pytest.approx(24 * 365.25)
    assert serving_job(LLAMA, users=3, hours_per_day=2, years=2).hours == pytest.approx(4 * 365.25)


@pytest.mark.parametrize("tokens", [0.0, -1.0, math.nan, math.inf, 1e30])
def test_tokens_that_cannot_be_are_refused(tokens: float) -> None:
    with pytest.raises(InputError):
        training_job(LLAMA, tokens=tokens)


def test_training_needs_tokens_and_methods_have_names() -> None:
    with pytest.raises(InputError, match="--tokens"):
        training_job(LLAMA)
    with pytest.raises(UnknownNameError):
        training_job(LLAMA, purpose="finetune", method="magic")


@pytest.mark.parametrize(
    "bad",
    [
        {"users": 0},
        {"users": -1},
        {"requests_per_day": math.nan},
        {"context": 10**9},
        {"hours_per_day": 25.0},
        {"years": 0.0},
        {"users": 2, "requests_per_day": 5.0},
        {"tokens_per_day": -4.0},
        {"least_tokens_per_s": 0.0},
    ],
)
def test_loads_that_cannot_be_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(InputError):
        serving_job(LLAMA, **bad)  # type: ignore[arg-type]


def test_an_encoder_writes_no_text() -> None:
    with pytest.raises(InputError, match="decoder"):
        serving_job(find_model("bert-base"))
