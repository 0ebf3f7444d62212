"""FP32 products: measured kernels, and laws of tiles and waves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwise.errors import UnpredictableError
from gpuwise.facts.hardware.accelerators import accelerators
from gpuwise.facts.hardware.naming import find_accelerator
from gpuwise.predict.kernels.gemm.fp32 import linear_time, peak_rate

CARDS = sorted(
    a.id for a in accelerators().values() if a.vendor in ("NVIDIA", "AMD") and "fp32" in a.peak_flop_per_s and a.compute_units
)


# Milliseconds of torch.nn.Linear and torch.bmm in fp32: NeuSight's per-operation tables (MIT).
@pytest.mark.parametrize(
    ("card", "batch", "m", "n", "k", "milliseconds"),
    [
        ("a100-pcie-40gb", 1, 4096, 4096, 4096, 8.357),
        ("a100-pcie-40gb", 1, 4096, 1024, 1024, 0.672),
        ("a100-pcie-40gb", 1, 512, 1024, 4096, 0.427),
        ("a100-pcie-40gb", 80, 1024, 64, 1024, 1.343),
        ("v100-pcie-32gb", 1, 4096, 1024, 4096, 2.627),
        ("v100-pcie-32gb", 1, 8192, 4096, 16384, 79.9),
        ("t4", 1, 4096, 4096, 4096, 31.55),
        ("p100-pcie-16gb", 1, 2048, 16384, 4096, 37.52),
    ],
)
def test_measured_products(card: str, batch: int, m: int, n: int, k: int, milliseconds: float) -> None:
    time = linear_time(find_accelerator(card), m, n, k, batch)
    assert time.time_s[0] * 1e3 == pytest.approx(milliseconds, rel=0.2)
    assert time.basis == "fitted"


def test_basis_says_what_was_measured() -> None:
    assert linear_time(find_accelerator("h100-sxm-80gb"), 64, 64, 64).basis == "derived"
    assert linear_time(find_accelerator("rtx-5090"), 64, 64, 64).basis == "specified"


def test_cdna_multiplies_on_its_matrix_cores() -> None:
    accelerator = find_accelerator("mi210")
    assert peak_rate(accelerator) > 1.9 * accelerator.peak("fp32")
    seconds = linear_time(accelerator, 8192, 8192, 8192).time_s[0]
    assert 2 * 8192**3 / seconds > accelerator.peak("fp32")


def test_narrow_batched_products_waste_a_wide_tile() -> None:
    """Probabilities times V with 64-wide heads: 0.44 of peak on A100, where the tile is 128 wide
    (NeuSight)."""
    accelerator = find_accelerator("a100-pcie-40gb")
    seconds = linear_time(accelerator, 1024, 64, 1024, 512).time_s[0]
    assert 2 * 512 * 1024 * 1024 * 64 / seconds / 19.5e12 == pytest.approx(0.435, abs=0.05)


def test_wide_units_take_a_narrow_tile_for_narrow_batched_products() -> None:
    """64 rows or columns cost little more than half of 128, and more of them never less."""
    accelerator = find_accelerator("h100-sxm-80gb")
    sizes = np.array([32, 64, 68, 96, 128, 256])
    for seconds in (
        linear_time(accelerator, 1024, sizes, 1024, 512).time_s,
        linear_time(accelerator, sizes, 1024, 1024, 512).time_s,
    ):
        assert seconds[1] < 0.65 * seconds[4]
        assert (np.diff(seconds) >= 0.0).all()


def test_an_unknown_rate_is_an_error() -> None:
    accelerator = find_accelerator("l4")
    with pytest.raises(UnpredictableError):
        linear_time(replace(accelerator, peak_flop_per_s={}), 8, 8, 8)
    with pytest.raises(UnpredictableError):
        linear_time(replace(accelerator, compute_units=None), 8, 8, 8)


@given(
    card=st.sampled_from(CARDS),
    batch=st.integers(1, 300),
    m=st.integers(1, 9000),
    n=st.integers(1, 9000),
    k=st.integers(1, 9000),
    more=st.integers(2, 4),
)
def test_laws(card: str, batch: int, m: int, n: int, k: int, more: int) -> None:
    accelerator = find_accelerator(card)
    assert accelerator.compute_units is not None
    time = linear_time(accelerator, [m, m], [n, n], [4 * k, more * 4 * k], batch).time_s
    assert np.all(time >= 2.0 * batch * m * n * 4 * k / (1.25 * peak_rate(accelerator)))
    assert time[1] >= time[0]
    peak = {d: r * more for d, r in accelerator.peak_flop_per_s.items()}
    bigger = replace(
        accelerator,
        compute_units=accelerator.compute_units * more,
        peak_flop_per_s=peak,
        fp32_matrix_flop_per_s=(accelerator.fp32_matrix_flop_per_s or 0.0) * more or None,
        memory_bandwidth_bytes_per_s=accelerator.memory_bandwidth_bytes_per_s * more,
        tdp_w=accelerator.tdp_w and accelerator.tdp_w * more,
    )
    assert linear_time(bigger, m, n, 4 * k, batch).time_s[0] <= time[0] * 1.001


def test_small_pascal_wants_every_side_aligned() -> None:
    """``sgemm_128x128x8_NT_vec`` of the P4 runs where M, N and K are multiples of 4; one off costs a third and more, and more
    again where the operands are far larger than the cache. The P100 minds K alone."""
    small, large = find_accelerator("Tesla P4"), find_accelerator("Tesla P100-PCIE-16GB")
    for m, n, k in ((2047, 2048, 2048), (2048, 2047, 2048), (2048, 2048, 2047)):
        aligned, off = (linear_time(small, *s).time_s[0] for s in ((2048, 2048, 2048), (m, n, k)))
        assert off > 1.3 * aligned
    huge, near = (linear_time(small, *s).time_s[0] for s in ((16383, 16384, 16384), (16384, 16384, 16384)))
    assert huge > 1.7 * near
    square, odd = (linear_time(large, *s).time_s[0] for s in ((2048, 2048, 2048), (2047, 2048, 2048)))
    assert odd == pytest.approx(square, rel=0.01)
