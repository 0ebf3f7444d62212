"""The function takes no number that the command would refuse."""

import math
from dataclasses import replace
from typing import Any

import pytest

import gpuwise
from gpuwise.errors import InputError
from gpuwise.plan.goal import Wishes


@pytest.mark.parametrize(
    "numbers",
    [
        *({name: value} for name in ("requests_per_s", "users") for value in (math.nan, math.inf, -1, 0)),
        *({"users": 3, "think_s": value} for value in (math.nan, math.inf, -1.0)),
        {"requests_per_s": 1.0, "users": 3},
        {"bits": ()},
        {"bits": (7,)},
        {"workload": ""},
    ],
)
def test_a_load_that_means_nothing_is_refused(numbers: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        gpuwise.make_capacity("llama-3.1-8b", "h100", **numbers)


@pytest.mark.parametrize("name", ["seq_len", "global_batch", "packed_document_len", "year", "lora_rank", "etp"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -1, 2.5])
def test_wishes_are_whole_numbers(name: str, value: Any) -> None:
    with pytest.raises(InputError):
        gpuwise.make_fit("llama-3.1-8b", "8xh100", replace(Wishes(), **{name: value}))


def test_a_price_and_a_provider_are_two_prices() -> None:
    with pytest.raises(InputError, match="both set"):
        gpuwise.make_plan("llama-3.1-8b", "8xh100", Wishes(tokens=1e9), usd_per_hour=2.0, provider="lambda")
