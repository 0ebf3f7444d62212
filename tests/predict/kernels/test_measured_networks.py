"""Cards that whole measured networks stand for: laws of convolutions and of the factors, and who has them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwise.errors import UnpredictableError
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.facts.hardware.naming import find_accelerator
from gpuwise.predict.coefficients import load_json
from gpuwise.predict.kernels.accelerator_factors import factor_key, step_log_sigma
from gpuwise.predict.kernels.conditions import Conditions
from gpuwise.predict.kernels.gemm.fp32 import linear_time
from gpuwise.predict.kernels.gemm.product import gemm_time
from gpuwise.predict.kernels.registry import kernel_times
from gpuwise.predict.step.capture_time import captured_time
from gpuwise.workload.capture.captured import Capture, Settings, Signature, StepSpan, TensorSpec
from gpuwise.workload.capture.record.rows import rows_of
from gpuwise.workload.row_codes import Kind

CARD = find_accelerator("RTX 4090")


def dense(*shape: int, dtype: str = "fp16", last: bool = False) -> TensorSpec:
    stride, step = [0] * len(shape), 1
    order = [1, *range(len(shape) - 1, 1, -1), 0] if last else list(range(len(shape) - 1, -1, -1))
    for d in order:
        stride[d], step = step, step * shape[d]
    return TensorSpec(shape, tuple(stride), dtype)


def convolution(batch: int = 64, channels: int = 64, groups: int = 1, last: bool = False) -> Signature:
    image, weight = dense(batch, channels, 32, 32, last=last), dense(channels, channels // groups, 3, 3)
    flop = 2.0 * batch * 1024 * channels * channels // groups * 9
    moved = 2.0 * batch * channels * 1024
    return Signature(
        "aten.convolution.default", Kind.CONVOLUTION, (image, weight), (image,), (("groups", groups),), flop, moved, moved, 1
    )


def product(m: int, n: int, k: int) -> Signature:
    a, b, out = dense(m, k), dense(k, n), dense(m, n)
    return Signature("aten.mm.default", Kind.MATMUL, (a, b), (out,), (), 2.0 * m * n * k, 2.0 * (m * k + k * n), 2.0 * m * n, 1)


def pointwise(elements: int) -> Signature:
    t = dense(elements)
    return Signature("aten.gelu.default", Kind.MEMORY, (t,), (t,), (), 0.0, 2.0 * elements, 2.0 * elements, 1)


def time_of(s: Signature, card: Accelerator = CARD, *, old: bool = False, compiled: bool = False) -> float:
    conditions = Conditions(emulated=True, compiled=compiled, before_torch_2=old)
    return float(kernel_times(rows_of([s], Settings("2.13.0", (8, 9))), card, conditions).time_s[0])


def step_of(*signatures: Signature) -> Capture:
    n = len(signatures)
    zeros = np.zeros(n, dtype=np.int64)
    none = np.zeros(0, dtype=np.int64)
    return Capture(
        signatures,
        ("",),
        ("",),
        ("",),
        np.arange(n),
        zeros,
        zeros,
        zeros,
        zeros,
        zeros,
        none,
        none,
        none,
        none,
        (),
        none,
        none,
        np.zeros(0, dtype=np.int8),
        none,
        (StepSpan(0, n, 0, 0),),
        Settings("2.13.0", (8, 9)),
    )


@given(st.integers(64, 4096), st.integers(2, 8))
def test_more_work_takes_longer(m: int, factor: int) -> None:
    assert time_of(product(m * factor, 512, 512)) > time_of(product(m, 512, 512))
    assert time_of(pointwise(1 << 20)) < time_of(pointwise(factor << 20))


@given(st.integers(1, 7))
def test_channels_that_are_no_multiple_of_a_vector_are_padded(extra: int) -> None:
    assert time_of(convolution(channels=512 + extra)) > time_of(convolution(channels=512)) * 0.999


def test_channels_last_saves_the_change_of_layout() -> None:
    assert time_of(convolution(last=True)) < time_of(convolution())
    assert time_of(convolution(), compiled=True) < time_of(convolution())


def test_groups_and_their_gradients_have_constants_of_their_own() -> None:
    dense_, grouped, depthwise = (convolution(channels=256, groups=g) for g in (1, 8, 256))
    rates = [s.flop / time_of(s) for s in (dense_, grouped, depthwise)]
    assert rates[0] > rates[1] > rates[2]


def test_no_card_is_faster_than_its_rates() -> None:
    big = product(8192, 8192, 8192)
    assert time_of(big) > big.flop / (CARD.peak("fp16") * 1.2)
    stream = pointwise(1 << 30)
    assert time_of(stream) > (stream.bytes_read + stream.bytes_written) / CARD.memory_bandwidth_bytes_per_s


def test_convolutions_of_torch_1_and_their_bytes_take_another_time() -> None:
    factor = load_json("captured_kernels")["before_torch_2"]["memory"]
    assert time_of(convolution(), old=True) != time_of(convolution())
    stream = pointwise(1 << 26)
    assert time_of(stream, old=True) / time_of(stream) == pytest.approx(factor, rel=0.01)


def test_cards_nobody_stands_for_are_not_taken_for_overclocked_ones() -> None:
    workstation = find_accelerator("RTX A6000")
    assert step_log_sigma(CARD) is not None
    assert step_log_sigma(workstation) is None
    work = convolution(1024, 512)
    share = [work.flop / time_of(work, card) / card.peak("fp16") for card in (CARD, workstation)]
    assert share[1] < 0.8 * share[0]


def test_the_factor_is_a_fact_of_the_card() -> None:
    """The 4090 clocks above its published boost; the L40S has the same architecture and does not."""
    factors = load_json("card_factors")["factor"]["sm_89"]
    work = product(512, 512, 512)
    card, board = find_accelerator("RTX 4090"), find_accelerator("L40S")
    plain = gemm_time(card, "fp16", 512, 512, 512, cold=True, sustained=True).time_s[0]
    assert time_of(work, card) == pytest.approx(plain * factors["matmul"], rel=1e-12)
    assert time_of(work, board) == gemm_time(board, "fp16", 512, 512, 512, cold=True, sustained=True).time_s[0]


def test_no_factor_takes_a_product_beyond_the_peak() -> None:
    work, card = product(16384, 16384, 16384), find_accelerator("RTX 3090")
    assert time_of(work, card) >= work.flop / card.peak("fp16")


def test_products_on_the_vector_lanes_have_no_factor() -> None:
    single = replace(product(512, 512, 512), inputs=(dense(512, 512, dtype="fp32"),) * 2)
    plain = linear_time(CARD, 512, 512, 512, layout="nn").time_s[0]
    assert time_of(single) == plain


def test_compiled_steps_fuse_what_waits_for_memory() -> None:
    capture = step_of(*[pointwise(1 << 24)] * 20)
    one, other = (captured_time(capture, CARD, compiled=c).device_total_s for c in (True, False))
    assert one < other


def test_a_card_without_rates_is_refused() -> None:
    with pytest.raises(UnpredictableError):
        time_of(convolution(), replace(CARD, peak_flop_per_s={}))


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("RTX 4090", "sm_89"),
        ("RTX 3060", "sm_86"),
        ("RTX 2080 Ti", "geforce"),
        ("RTX 5000 Ada Generation", None),
        ("Quadro RTX 5000", None),
        ("RTX PRO 6000 Blackwell Max-Q", "rtx-pro-6000-blackwell-max-q"),
        ("RTX A6000", None),
        ("H100-SXM5-80GB", None),
    ],
)
def test_factors_are_of_the_card_its_architecture_or_geforce(name: str, key: str | None) -> None:
    assert factor_key(find_accelerator(name)) == key


def test_the_mean_of_geforce_lies_between_its_architectures() -> None:
    factors = load_json("card_factors")["factor"]
    known = [v for k, v in factors.items() if k.startswith("sm_")]
    for family, value in factors["geforce"].items():
        assert min(f[family] for f in known) - 1e-3 <= value <= max(f[family] for f in known) + 1e-3
    for table in load_json("captured_kernels")["architecture"].values():
        known_rates = [v for k, v in table.items() if k.startswith("sm_")]
        assert min(known_rates) <= table["geforce"] <= max(known_rates)
