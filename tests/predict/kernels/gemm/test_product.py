"""Matrix products: laws, published rates, refusals."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwise.errors import InputError, UnknownNameError, UnpredictableError
from gpuwise.facts.hardware.accelerators import Accelerator, accelerators
from gpuwise.predict.kernels.gemm.alignment import misaligned_time
from gpuwise.predict.kernels.gemm.coefficients import NEAREST, coefficients_of
from gpuwise.predict.kernels.gemm.fp32 import linear_time
from gpuwise.predict.kernels.gemm.physics import burst_rate, physical_time
from gpuwise.predict.kernels.gemm.product import evaluate, evaluate_as_measured, gemm_time, sustained_factor

NAMES = (
    "a100-sxm-80gb",
    "h100-sxm-80gb",
    "l40s",
    "b200-sxm",
    "rtx-4090",
    "rtx-5090",
    "mi300x",
    "v100-sxm-16gb",
    "t4",
)
SIZE = st.integers(min_value=1, max_value=40_000)
ACCELERATOR = st.sampled_from(NAMES)


def known(name: str) -> Accelerator:
    return accelerators()[name]


def half(accelerator: Accelerator) -> str:
    return "bf16" if "bf16" in accelerator.peak_flop_per_s else "fp16"


@settings(deadline=None, max_examples=2 * settings().max_examples)
@given(ACCELERATOR, SIZE, SIZE, SIZE, st.integers(1, 64))
def test_never_faster_than_arithmetic_or_memory_allow(name: str, m: int, n: int, k: int, batch: int) -> None:
    accelerator = known(name)
    dtype = half(accelerator)
    time = float(gemm_time(accelerator, dtype, m, n, k, batch, cold=True).time_s[0])
    peak, units = accelerator.peak(dtype), accelerator.compute_units
    assert units is not None
    assert time >= 2 * m * n * k * batch / burst_rate(peak, units, accelerator.boost_hz) * (1 - 1e-12)
    least_bytes = 2 * (m * k + n * k + m * n) * batch
    assert time >= least_bytes / accelerator.memory_bandwidth_bytes_per_s * (1 - 1e-9)


@settings(deadline=None, max_examples=2 * settings().max_examples)
@given(ACCELERATOR, SIZE, SIZE, SIZE, st.floats(1, 3), st.floats(1, 3), st.floats(1, 3), st.floats(1, 3))
def test_more_of_everything_is_never_slower(
    name: str, m: int, n: int, k: int, units: float, bandwidth: float, cache: float, power: float
) -> None:
    small = replace(known(name), id="small")
    assert small.compute_units and small.l2_bytes and small.tdp_w
    more = int(small.compute_units * units)
    big = replace(
        small,
        id="big",
        compute_units=more,
        peak_flop_per_s={d: r * more / small.compute_units for d, r in small.peak_flop_per_s.items()},
        memory_bandwidth_bytes_per_s=small.memory_bandwidth_bytes_per_s * bandwidth,
        l2_bytes=small.l2_bytes * cache,
        tdp_w=small.tdp_w * power,
    )
    for dtype in small.peak_flop_per_s.keys() & {"bf16", "fp16", "fp8", "nvfp4", "int8"}:
        slow, fast = (gemm_time(a, dtype, m, n, k).time_s[0] for a in (small, big))
        assert fast <= slow * (1 + 1e-9)


def test_siblings_keep_the_order_of_their_specifications() -> None:
    rng = np.random.default_rng(0)
    m, n, k = (np.exp2(rng.uniform(0, 15, 3000)).astype(int) for _ in range(3))
    h100, h200 = (gemm_time(known(g), "bf16", m, n, k).time_s for g in ("h100-sxm-80gb", "h200-sxm-141gb"))
    assert (h200 <= h100 * (1 + 1e-9)).all()
    assert (h200 < 0.8 * h100).any()


@settings(deadline=None, max_examples=2 * settings().max_examples)
@given(ACCELERATOR, SIZE, SIZE, SIZE, st.integers(0, 2), st.integers(2, 8))
def test_the_physical_form_grows_with_every_size(name: str, m: int, n: int, k: int, which: int, factor: int) -> None:
    c = coefficients_of(known(name), half(known(name)))
    sizes = [np.array([float(x)]) for x in (m, n, k)]
    larger = [x * factor if i == which else x for i, x in enumerate(sizes)]
    one = np.ones(1)
    before = physical_time(c.physics, c.device, c.form, *sizes, one)
    after = physical_time(c.physics, c.device, c.form, *larger, one)
    assert after >= before * (1 - 1e-9)


def test_large_products_grow_up_to_tile_effects() -> None:
    rng = np.random.default_rng(1)
    sizes = [256 * rng.integers(8, 64, 400) for _ in range(3)]
    for name in ("a100-sxm-80gb", "h100-sxm-80gb", "b200-sxm"):
        base = gemm_time(known(name), "bf16", *sizes).time_s
        for i in range(3):
            grown = gemm_time(known(name), "bf16", *(2 * c if j == i else c for j, c in enumerate(sizes))).time_s
            assert (grown > 1.5 * base).all()


@pytest.mark.parametrize(
    ("name", "shape", "tflop_per_s"),
    [
        ("a100-sxm-80gb", (1024, 10240, 5120), 271.2),
        ("a100-pcie-80gb", (2048, 5120, 6144), 252.9),
        ("h100-sxm-80gb", (2048, 2048, 13312), 794.5),
        ("gh200-96gb", (1024, 15360, 4096), 828.6),
        ("b200-sxm", (1792, 16128, 3072), 1745.0),
        ("b300-sxm", (12288, 18432, 1024), 1769.0),
        ("gb200", (4096, 9728, 2048), 1822.0),
    ],
)
def test_best_long_run_rates(name: str, shape: tuple[int, int, int], tflop_per_s: float) -> None:
    """Maximum achieved bf16 matmul FLOP/s (stas00/ml-engineering, MAMF), best shape of each accelerator."""
    m, n, k = shape
    time = float(gemm_time(known(name), "bf16", m, n, k, sustained=True).time_s[0])
    assert 2 * m * n * k / time / 1e12 == pytest.approx(tflop_per_s, rel=0.10)


@pytest.mark.parametrize(
    ("name", "shape", "tflop_per_s"),
    [
        ("h100-sxm-80gb", (1024, 9216, 14336), 1402.6),
        ("h200-sxm-141gb", (1280, 4096, 12032), 1453.4),
        ("b200-sxm", (15360, 4096, 3072), 3432.5),
        ("b300-sxm", (3072, 6144, 7168), 3353.3),
        ("gb200", (19456, 5120, 1536), 3615.6),
    ],
)
def test_bare_fp8_products(name: str, shape: tuple[int, int, int], tflop_per_s: float) -> None:
    """fp8 figures of the same source; no table has the bare product, so the tolerance is wide."""
    m, n, k = shape
    time = float(gemm_time(known(name), "fp8", m, n, k, implementation="fp8_gemm").time_s[0])
    assert 2 * m * n * k / time / 1e12 == pytest.approx(tflop_per_s, rel=0.25)


def test_every_accelerator_with_a_rate_has_an_answer() -> None:
    wide = {}
    for accelerator in accelerators().values():
        for dtype in accelerator.peak_flop_per_s.keys() & {
            "fp32",
            "tf32",
            "fp16",
            "bf16",
            "fp8",
            "nvfp4",
            "int8",
        }:
            time, sigma, basis = gemm_time(accelerator, dtype, [1, 300, 4096], 4096, 4096)
            assert np.isfinite(time).all()
            assert (time > 0).all()
            if dtype != "fp32":
                wide.setdefault(basis, []).append(sigma.max())
    assert np.mean(wide["fitted"]) < np.mean(wide["derived"]) < np.mean(wide["specified"])


def test_basis_says_what_was_measured() -> None:
    assert gemm_time(known("h100-sxm-80gb"), "bf16", 64, 4096, 4096).basis == "fitted"
    assert gemm_time(known("h200-sxm-141gb"), "bf16", 64, 4096, 4096).basis == "derived"
    assert gemm_time(known("rtx-5090"), "bf16", 64, 4096, 4096).basis == "specified"
    assert gemm_time(known("mi300x"), "bf16", 64, 4096, 4096).basis == "specified"


def test_weights_out_of_cache_cost_more() -> None:
    l40s = known("l40s")
    hot = gemm_time(l40s, "bf16", 16, 1024, 4096).time_s[0]
    cold = gemm_time(l40s, "bf16", 16, 1024, 4096, cold=True).time_s[0]
    assert cold > 1.3 * hot
    big = [gemm_time(l40s, "bf16", 16, 16384, 16384, cold=c).time_s[0] for c in (False, True)]
    assert big[0] == pytest.approx(big[1], rel=1e-6)


def test_narrow_weights_pay_when_memory_limits() -> None:
    a100 = known("a100-sxm-80gb")
    times = [float(gemm_time(a100, "bf16", 1, 16384, 16384, implementation=i).time_s[0]) for i in ("int4_wo", "int8_wo", "bf16")]
    assert times[0] < times[1] < times[2]


def test_fp32_is_the_vector_units_model() -> None:
    v100 = known("v100-sxm-16gb")
    assert gemm_time(v100, "fp32", 512, 1024, 768).time_s == linear_time(v100, 512, 1024, 768).time_s


def test_arrays_broadcast_and_batches_add_up() -> None:
    h100 = known("h100-sxm-80gb")
    table = gemm_time(h100, "bf16", [128, 256], 4096, 4096)
    assert table.time_s.shape == table.log_sigma.shape == (2,)
    one, many = (gemm_time(h100, "bf16", 2048, 2048, 2048, b).time_s[0] for b in (1, 32))
    assert 20 * one < many < 32 * one
    assert gemm_time(h100, "bf16", [], 1, 1).time_s.shape == (0,)


def test_host_launch_shows_only_in_what_was_measured() -> None:
    c = coefficients_of(known("h100-sxm-80gb"), "fp8_block")
    small = [np.array([128.0])] * 3
    assert c.host_floor_s > 5e-5
    assert evaluate_as_measured(c, *small, np.ones(1)) > 4 * evaluate(c, *small, np.ones(1))


def test_sustained_never_gains() -> None:
    for name in NAMES:
        assert 0.2 < sustained_factor(known(name), half(known(name))) <= 1.0


def test_a_borrowed_family_is_in_the_table() -> None:
    for family, near in NEAREST.items():
        assert near[0] == family
        assert any("bf16" and f in {"Ada", "Ampere-GA100", "Hopper", "Blackwell", "Xe2-HPG"} for f in near)


@pytest.mark.parametrize("bad", [0, -1, float("nan")])
def test_sizes_below_one_are_refused(bad: float) -> None:
    with pytest.raises(InputError, match="at least 1"):
        gemm_time(known("l40s"), "bf16", bad, 1, 1)


def test_unknown_formats_and_missing_rates_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="bf61"):
        gemm_time(known("l40s"), "bf61", 1, 1, 1)
    with pytest.raises(UnpredictableError, match="no published dense fp8"):
        gemm_time(known("a100-sxm-80gb"), "fp8", 1, 1, 1)
    with pytest.raises(UnpredictableError, match="no published dense bf16"):
        gemm_time(known("v100-sxm-16gb"), "bf16", 1, 1, 1)


@pytest.mark.parametrize("name", ["a100-sxm-80gb", "h100-sxm-80gb", "rtx-4090"])
def test_a_batch_is_never_shorter_than_half_of_it(name: str) -> None:
    small = gemm_time(known(name), half(known(name)), 129, 1, 46, [1, 2, 3, 5, 6, 12, 24]).time_s
    doubled = gemm_time(known(name), half(known(name)), 129, 1, 46, [2, 4, 6, 10, 12, 24, 48]).time_s
    assert (doubled >= small).all()


def test_a_correction_is_for_units_like_the_measured_ones() -> None:
    """GeForce cards of Ada sum at half the rate of the L40S, which was measured."""
    assert coefficients_of(known("rtx-6000-ada"), "bf16").family_trees is not None
    assert coefficients_of(known("rtx-4090"), "bf16").family_trees is None
    assert coefficients_of(known("h200-sxm-141gb"), "bf16").family_trees is not None


def test_misaligned_rows_slow_the_arithmetic_not_the_memory() -> None:
    device = known("a100-sxm-80gb")
    one = np.ones(1)
    large, narrow = (np.array([8192.0]), np.array([8200.0])), (np.array([8192.0]), np.array([1.0]))
    for (m, n), at_least, at_most in ((large, 1.4, 1.61), (narrow, 1.0, 1.1)):
        time = gemm_time(device, "bf16", m, n, 4096).time_s
        slowed = misaligned_time(device, "bf16", time, m, n, 4096 * one, one)
        assert at_least <= float((slowed / time)[0]) <= at_most
    aligned = misaligned_time(device, "bf16", one, 8192 * one, 8192 * one, 4096 * one, one)
    assert aligned[0] == 1.0


@settings(deadline=None, max_examples=2 * settings().max_examples)
@given(
    st.sampled_from(["h100-sxm-80gb", "h200-sxm-141gb", "b200-sxm", "rtx-5090", "gb300"]),
    st.sampled_from(["int8_wo", "int4_wo"]),
    SIZE,
    SIZE,
    SIZE,
)
def test_narrow_weights_are_slower_only_where_that_was_measured(name: str, implementation: str, m: int, n: int, k: int) -> None:
    narrow = gemm_time(known(name), "bf16", m, n, k, implementation=implementation)
    assert narrow.basis == "specified"
    assert narrow.time_s[0] <= gemm_time(known(name), "bf16", m, n, k).time_s[0]


def test_one_engines_kernel_does_not_stand_for_anothers() -> None:
    """SGLang was measured on H100, TensorRT-LLM on A100 and L40S: H200 under the latter does not take the former's."""
    h100, h200 = known("h100-sxm-80gb"), known("h200-sxm-141gb")
    assert coefficients_of(h100, "int8_wo_sglang").basis == "fitted"
    assert coefficients_of(h100, "int8_wo").basis == coefficients_of(h200, "int8_wo").basis == "specified"
    m = np.array([1.0, 64.0, 4096.0])
    plugin, sglang = (
        evaluate_as_measured(coefficients_of(h200, i), m, np.full(3, 4096.0), np.full(3, 4096.0), np.ones(3))
        for i in ("int8_wo", "int8_wo_sglang")
    )
    assert (sglang > 1.3 * plugin).all()


def test_int8_products_on_hopper_run_amperes_instructions() -> None:
    c = coefficients_of(known("h100-sxm-80gb"), "sq")
    assert c.device.rate_flop_per_s == pytest.approx(0.629 * 132 * 1.98e9 * 8192)
    assert coefficients_of(known("l40s"), "sq").device.rate_flop_per_s == pytest.approx(733e12, rel=0.01)


def test_a_wave_of_whole_tiles_is_the_least_that_fp4_takes() -> None:
    """A block makes 128 x 128: below 512 rows the 188 units of a workstation card have one tile each, however few the rows."""
    card = known("rtx-pro-6000-blackwell-server")
    one, some, many = gemm_time(card, "nvfp4", [1, 512, 4096], 4096, 4096).time_s
    assert one > 12e-6
    assert some < 1.3 * one
    assert many > 2.5 * some


def test_the_hosts_launch_goes_with_the_kernel() -> None:
    h100, m = known("h100-sxm-80gb"), np.array([16.0])
    sizes = (m, np.array([256.0]), np.array([256.0]), np.ones(1))
    names = ("FlashInferFp8BlockScaledMMKernel", "DeepGemmFp8BlockScaledMMKernel", "CutlassFp8BlockScaledMMKernel")
    floors = [coefficients_of(h100, "fp8_block", name).host_floor_s for name in names]
    assert floors == pytest.approx([60e-6, 86e-6, 178e-6], rel=0.05)
    b200 = coefficients_of(known("b200-sxm"), "fp8_block", "DeepGemmFp8BlockScaledMMKernel")
    assert b200.host_floor_unpadded_s > 1.2 * b200.host_floor_s
    workstation = coefficients_of(known("rtx-pro-6000-blackwell-server"), "fp8_block", "CutlassFp8BlockScaledMMKernel")
    assert evaluate_as_measured(workstation, *sizes)[0] > 1e-4
    assert evaluate(workstation, *sizes)[0] < 5e-5
    assert coefficients_of(h100, "bf16").host_floor_s == 0.0
