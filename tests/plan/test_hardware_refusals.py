"""Comparing rented clusters: a slip in the wishes is named, never blamed on the hardware."""

from __future__ import annotations

import datetime

import pytest

from gpuwise.errors import DataError, UnknownNameError, UnpredictableError
from gpuwise.facts.models.catalogue import find_model
from gpuwise.plan import hardware
from gpuwise.plan.goal import Wishes
from gpuwise.plan.hardware import compare
from gpuwise.plan.planner import Pricing

TODAY = Pricing(datetime.date(2026, 11, 21))


@pytest.mark.parametrize(
    "wrong",
    [
        {"optimizer": "adamm"},
        {"stack": "megatron"},
        {"precision": ("bf61",)},
        {"fixed": {"sharding": "zero4"}},
    ],
)
def test_a_misspelt_wish_is_named(wrong):
    with pytest.raises(UnknownNameError) as caught:
        compare(find_model("gpt2"), Wishes(tokens=1e9, **wrong), TODAY)
    assert "it is one of" in (caught.value.hint or "")


def test_an_unknown_provider_is_named():
    with pytest.raises(UnknownNameError, match="nobody"):
        compare(find_model("gpt2"), Wishes(tokens=1e9), Pricing(TODAY.today, provider="nobody"))


def test_a_layout_that_runs_nowhere_says_which_rule():
    with pytest.raises(UnpredictableError, match="rule: "):
        compare(find_model("gpt2"), Wishes(tokens=1e9, fixed={"tp": 5}), TODAY)


def test_a_corrupt_file_is_not_passed_over(monkeypatch):
    def broken(*_: object, **__: object) -> object:
        raise DataError("coefficient file gemm.json does not match its checksum")

    monkeypatch.setattr(hardware, "search_on", broken)
    with pytest.raises(DataError):
        compare(find_model("gpt2"), Wishes(tokens=1e9), TODAY)
