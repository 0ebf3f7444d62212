"""One operation on any device: laws over sizes and formats, agreement with the predictors it rests on."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwise.errors import InputError
from gpuwise.facts.hardware.cpus import find_cpu
from gpuwise.facts.hardware.systems import Cluster
from gpuwise.facts.hardware.targets import find_target
from gpuwise.plan import one_op
from gpuwise.predict.estimate import Estimate

GPUS = ("a100", "h100-sxm", "b200", "rtx-4090", "l4", "t4", "mi300x", "apple-m2-ultra")
ANY_GPU = st.sampled_from(GPUS)
SIZE = st.integers(1, 16_384)


@settings(max_examples=2 * settings().max_examples, deadline=None)
@given(ANY_GPU, SIZE, SIZE, SIZE)
def test_no_product_beats_its_ceilings_and_twice_the_batch_is_no_slower_than_twice(name: str, m: int, n: int, k: int) -> None:
    target = find_target(name)
    assert isinstance(target, Cluster)
    dtype = "fp16" if "fp16" in target.accelerator.peak_flop_per_s else "fp32"
    row = one_op.matmul(m, n, k, dtype, [target]).rows[0]
    assert row.flop_per_s is not None and 0 < row.share_of_peak <= 1.0
    assert 0 < row.time_s.low < row.time_s.expected < row.time_s.high < math.inf
    assert row.bound in ("compute", "memory", "latency", "launch")
    twice = one_op.matmul(m, n, k, dtype, [target], batch=2).rows[0]
    assert twice.time_s.expected >= row.time_s.expected


def test_work_is_counted_from_the_definition() -> None:
    target = [find_target("a100")]
    product = one_op.matmul(10_000, 10_000, 10_000, "bf16", target).work
    assert product.flop == 2e12 and product.bytes == 3 * 2 * 1e8
    assert product.intensity == pytest.approx(1e4 / 3)
    fp32 = one_op.matmul(10_000, 10_000, 10_000, "fp32", target).work
    assert fp32.bytes == 2 * product.bytes
    square = one_op.attention(2, 8, 1024, 64, "bf16", target, causal=False).work
    assert square.flop == 4 * 2 * 8 * 1024 * 1024 * 64
    half = one_op.attention(2, 8, 1024, 64, "bf16", target).work
    assert half.flop == pytest.approx(square.flop * 1025 / 2048)
    grouped = one_op.attention(2, 8, 1024, 64, "bf16", target, kv_heads=2).work
    assert grouped.flop == half.flop and grouped.bytes < half.bytes
    assert one_op.stream(1e9, target).work.bytes == 2e9


@settings(max_examples=settings().max_examples, deadline=None)
@given(st.floats(1e-6, 1e3), st.floats(1e-6, 1e3), st.floats(0.01, 0.5), st.floats(0.01, 0.5))
def test_a_ratio_carries_both_widths(slow: float, fast: float, first: float, second: float) -> None:
    one, two = Estimate.from_log_sigma(slow, first, "fitted"), Estimate.from_log_sigma(fast, second, "specified")
    ratio = one_op.ratio(one, two)
    assert ratio.expected == pytest.approx(slow / fast) and ratio.basis == "specified"
    widest = max(one.high / one.low, two.high / two.low)
    assert widest <= ratio.high / ratio.low <= one.high / one.low * two.high / two.low * 1.0001


def test_a_processor_may_stand_among_the_gpus() -> None:
    cpu = find_cpu("epyc 9654")
    answer = one_op.matmul(4096, 4096, 4096, "bf16", [find_target("h100-sxm"), cpu], cpu)
    gpu, same = answer.rows
    assert gpu.speedup is not None and gpu.speedup.expected > 10
    assert same.speedup is not None and same.speedup.expected == pytest.approx(1.0)


def test_several_hosts_share_their_network() -> None:
    two = [find_target(n) for n in ("8xh100-sxm", "64xh100-sxm")]
    inside, across = one_op.allreduce(1e9, two).rows
    assert inside.time_s.expected < across.time_s.expected
    assert across.peak <= inside.peak and "hosts" in across.path
    with pytest.raises(InputError, match="several devices"):
        one_op.allreduce(1e9, [find_target("a100")])


@pytest.mark.parametrize("size", [0.0, -1.0, 1e16, math.nan, math.inf])
def test_sizes_that_cannot_be_meant(size: float) -> None:
    target = [find_target("a100")]
    for work in (one_op.stream, one_op.copy):
        with pytest.raises(InputError):
            work(size, target)


def test_error_correction_in_the_memory_is_said_where_it_takes_bandwidth() -> None:
    a40, l40, h100, rtx = (find_target(name) for name in ("a40", "l40", "h100-sxm", "rtx-4090"))
    rows = one_op.stream(1e9, [a40, l40, h100, rtx]).rows
    assert [any("(ECC)" in note for note in r.notes) for r in rows] == [True, True, False, False]
    assert rows[0].share_of_peak < 0.8 and "88 % of peak" in rows[0].notes[0]
