from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwise.errors import InputError, UnpredictableError
from gpuwise.facts.hardware.accelerators import accelerators
from gpuwise.facts.hardware.naming import find_accelerator
from gpuwise.facts.models.catalogue import find_model
from gpuwise.pick.roofline import Roof, decode_points, roofline, with_points

ROOFS = st.builds(Roof, st.floats(1e9, 1e17), st.floats(1e9, 1e14))
INTENSITIES = st.floats(0.0, 1e9)


@given(ROOFS, INTENSITIES, INTENSITIES)
def test_attainable_never_falls_with_intensity(roof: Roof, a: float, b: float) -> None:
    low, high = roof.attainable([min(a, b), max(a, b)])
    assert low <= high


@given(ROOFS, INTENSITIES)
def test_attainable_stays_under_both_ceilings_and_touches_one(roof: Roof, intensity: float) -> None:
    got = float(roof.attainable(intensity))
    assert got <= roof.flop_per_s and got <= intensity * roof.bytes_per_s
    assert got in (roof.flop_per_s, intensity * roof.bytes_per_s)


@given(ROOFS)
def test_the_ceilings_meet_at_the_ridge(roof: Roof) -> None:
    around = roof.attainable(np.array([1 - 1e-9, 1.0, 1 + 1e-9]) * roof.ridge)
    assert np.allclose(around, roof.flop_per_s, rtol=1e-8)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0, [1.0, -2.0]])
def test_an_intensity_that_cannot_be_is_refused(bad: object) -> None:
    with pytest.raises(InputError):
        Roof(1e12, 1e12).attainable(bad)  # type: ignore[arg-type]


def test_what_is_reached_never_exceeds_the_specification_on_any_accelerator() -> None:
    seen = 0
    for a in accelerators().values():
        for dtype in ("bf16", "fp16"):
            if dtype not in a.peak_flop_per_s:
                continue
            line = roofline(a, dtype)
            if line.reached is not None:
                seen += 1
                assert line.reached.flop_per_s <= line.specified.flop_per_s * (1 + 1e-9), a.id
                assert 0 < line.reached.bytes_per_s <= line.specified.bytes_per_s * (1 + 1e-9), a.id
    assert seen > 150


def test_the_cache_is_faster_than_the_memory_behind_it() -> None:
    for name in ("h100-sxm", "4090", "l40s"):
        line = roofline(find_accelerator(name))
        assert line.cache is not None and line.reached is not None
        assert line.cache.bytes_per_s > line.reached.bytes_per_s
        assert line.cache.ridge < line.reached.ridge


def test_a_missing_rate_is_said() -> None:
    with pytest.raises(UnpredictableError, match="fp8"):
        roofline(find_accelerator("a100-sxm-80gb"), "fp8")


def test_points_are_where_the_model_puts_them() -> None:
    a, arch = find_accelerator("h100-sxm"), find_model("llama-3.1-8b")
    line = with_points(roofline(a), a, arch, seq_len=4096)
    by_name = {(p.name, p.phase): p for p in line.points}
    mlp = by_name["MLP", "forward"]
    # three 4096 x 14336 products over 4096 tokens: FLOP over operands and results read or written once
    up, down = 2 * 4096 * 4096 * 28672, 2 * 4096 * 14336 * 4096
    moved = 2 * (4096 * 4096 + 4096 * 28672 + 4096 * 28672) + 2 * (4096 * 14336 + 14336 * 4096 + 4096 * 4096)
    assert mlp.intensity == pytest.approx((up + down) / moved, rel=1e-6)
    assert by_name["MLP", "backward"].flop_per_s < a.peak("bf16")
    training = [p.share for p in line.points if p.phase != "decode"]
    assert 0.8 < sum(training) < 1.0  # the rest is kernels that do no arithmetic to speak of
    assert all(p.flop_per_s <= a.peak("bf16") for p in line.points)


def test_decode_climbs_the_slope_of_memory_with_its_batch() -> None:
    a, arch = find_accelerator("a100-sxm-80gb"), find_model("llama-3.1-8b")
    one, some, many = decode_points(a, arch, 2048)
    assert one.intensity == pytest.approx(1.0, rel=0.02)  # two FLOP for each 16-bit weight
    assert one.intensity < some.intensity < many.intensity
    assert one.flop_per_s < some.flop_per_s < many.flop_per_s
    assert one.flop_per_s <= float(roofline(a).specified.attainable(one.intensity))


def test_a_micro_batch_of_nothing_is_refused() -> None:
    a = find_accelerator("h100-sxm")
    with pytest.raises(InputError):
        with_points(roofline(a), a, find_model("gpt2"), micro_batch=0, seq_len=1024)


def test_a_device_without_the_format_goes_without_points() -> None:
    a = find_accelerator("v100-sxm2-16gb")
    line = roofline(a, "fp16")
    assert with_points(line, a, find_model("gpt2"), seq_len=1024).specified == line.specified
