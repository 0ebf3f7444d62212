"""The gate's judgement on distances as runs give them."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch

from gpuwise.train.tune.parity import Curve, Distance, batches_differ, changes_of, distance, judge, precision_of

NOISE = Distance((1e-6, 2e-6), (1e-6,), {"a": 1e-5, "b": 3e-5})
NONE = Distance((0.0, 0.0), (0.0,), {"a": 0.0, "b": 0.0})


def test_within_rounding_passes_and_beyond_is_refused_with_the_place() -> None:
    near = Distance((2e-6, 3e-6), (2e-6,), {"a": 4e-5, "b": 1e-4})
    assert judge(near, NOISE, NONE, changes="exact", precision="fp32 reordered").passed
    far = Distance((2e-6, 3e-6), (2e-6,), {"a": 4e-5, "b": 0.02})
    verdict = judge(far, NOISE, NONE, changes="exact", precision="fp32 reordered")
    assert (verdict.passed, verdict.what, verdict.over) == (False, "gradient of b", 1)
    assert judge(far, NOISE, Distance((0.0,), (0.0,), {"b": 0.01}), changes="exact", precision="fp32 reordered").passed


def test_what_is_no_number_or_missing_is_refused() -> None:
    nan = Distance((float("inf"),), (), {"a": 0.0})
    assert not judge(nan, NOISE, NONE, changes="exact", precision="bf16").passed
    lost = Distance((0.0,), (), {"a": 0.0}, ("c",))
    verdict = judge(lost, NOISE, NONE, changes="exact", precision="bf16")
    assert not verdict.passed and "c" in verdict.words
    assert not judge(Distance((), (), {}), NOISE, NONE, changes="exact", precision="bf16").passed


def test_distances_of_kept_gradients(tmp_path: Path) -> None:
    def kept(name: str, **gradients: torch.Tensor) -> str:
        torch.save({"gradients": gradients, "parameters": {}}, tmp_path / name)
        return str(tmp_path / name)

    one = Curve((2.0, 1.0), (1.0,), (kept("one", a=torch.ones(4), b=torch.zeros(2)),))
    two = Curve((2.0, 1.1), (1.0,), (kept("two", a=torch.tensor([1.0, 1.0, 1.0, 2.0]), b=torch.zeros(2), c=torch.ones(1)),))
    found = distance(one, two)
    assert found.losses == pytest.approx((0.0, 0.05)) and found.gradients == pytest.approx({"a": 0.5, "b": 0.0})
    assert found.missing == ("c",)
    assert distance(one, Curve((2.0, float("nan")), (), ())).losses[1] == float("inf")
    assert distance(one, Curve((2.0,), (1.0,), ())).missing == ("all of optimizer 0",)


def test_the_coarsest_format_and_the_furthest_change_hold() -> None:
    assert precision_of({"workers": 2, "tf32": True}) == "tf32"
    assert precision_of({"tf32": True, "autocast": "bf16"}) == "bf16"
    assert precision_of({}, "bfloat16") == "bf16"
    assert changes_of({"workers": 2, "fused_optimizer": True}) == "order"
    assert changes_of({"workers": 2, "autocast": "bf16"}) == "precision"


def test_batches(tmp_path: Path) -> None:
    def keep(folder: str, pixels: torch.Tensor, labels: torch.Tensor) -> Path:
        (tmp_path / folder).mkdir(exist_ok=True)
        torch.save((pixels, labels), tmp_path / folder / "000000.pt")
        return tmp_path / folder

    pixels, labels = torch.rand(8, 4, 4, generator=torch.Generator().manual_seed(0)), torch.arange(8)
    first = keep("first", pixels, labels)
    assert batches_differ(first, keep("same", pixels, labels), augmented=False) is None
    drawn = keep("drawn", pixels.flip(2) + 0.01, labels)
    assert batches_differ(first, drawn, augmented=True) is None
    assert batches_differ(first, drawn, augmented=False) == "batch 0 holds other values"
    assert batches_differ(first, keep("order", pixels, labels.flip(0)), augmented=True) == "batch 0 holds other values"
    assert "elsewhere" in str(batches_differ(first, keep("bright", pixels + 3, labels), augmented=True))
    assert "shapes" in str(batches_differ(first, keep("short", pixels[:4], labels[:4]), augmented=True))
    assert batches_differ(first, tmp_path / "none", augmented=True) == "batch 0 is not there"
