"""The processor's roofline: laws, published readings within its intervals, refusals."""

from __future__ import annotations

import math
from dataclasses import replace
from types import MappingProxyType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwise.errors import InputError
from gpuwise.facts.hardware.cpus import cpus, find_cpu
from gpuwise.facts.models.catalogue import find_model
from gpuwise.predict.coefficients import load_json
from gpuwise.predict.cpu import THREAD_WORK, attention_time, matmul_time, stream_time, training_time
from studies import cpu_fit

ANY_CPU = st.sampled_from(sorted(cpus()))
SIZE = st.integers(1, 20_000)


def test_the_coefficients_are_those_of_a_refit() -> None:
    assert cpu_fit.fit() == load_json("cpu")


def test_every_measured_row_has_a_source_and_stays_below_its_peak() -> None:
    for row in cpu_fit.rows():
        assert row.number("reached") * 1e9 < cpu_fit.peak_of(find_cpu(row.text("cpu")), row), row.values


@settings(max_examples=2 * settings().max_examples, deadline=None)
@given(ANY_CPU, SIZE, SIZE, SIZE, st.sampled_from(("fp32", "bf16", "int8", "fp8")))
def test_a_product_obeys_both_ceilings_and_grows(name: str, m: int, n: int, k: int, dtype: str) -> None:
    cpu = cpus()[name]
    time = matmul_time(cpu, dtype, m, n, k)
    seconds = time.time_s
    assert 0 < seconds.low < seconds.expected < seconds.high < math.inf
    assert seconds.expected > 2.0 * m * n * k / cpu.peak(time.dtype)
    assert seconds.expected > m * n / cpu.memory_bandwidth_bytes_per_s
    work = m * n * k / THREAD_WORK
    steady = not 0.5 <= work < cpu.cores + cpu.efficiency_cores  # between, a larger product is given more threads
    for bigger in ((2 * m, n, k), (m, 2 * n, k), (m, n, 2 * k)):
        assert matmul_time(cpu, dtype, *bigger).time_s.expected > seconds.expected * (1.0 if steady else 0.5)
    two = matmul_time(cpu, dtype, m, n, k, batch=2).time_s.expected
    if steady:
        assert two <= 2 * seconds.expected


MEASURED_US = {32: 2.7, 48: 4.5, 64: 9.1, 80: 16.1, 96: 36.5, 128: 55.9, 160: 103.5, 192: 121.1, 256: 293.6, 512: 1780.4}
"""numpy's fp32 products on two cores of an EPYC whose product of 2,048 and copy of 128 MiB reach 157 GFLOP/s and 31.6 GB/s
(benchmarks/records/lab/lab_2026-11-28.md)."""


def test_small_products_on_one_thread_and_on_two() -> None:
    shares = load_json("cpu")["shares"]
    peak = MappingProxyType({"fp32": 157e9 / shares["product"]["share"]})
    bandwidth = 31.6e9 / shares["stream"]["share"]
    two_cores = replace(
        find_cpu("5950x"), cores=2, efficiency_cores=0, peak_flop_per_s=peak, memory_bandwidth_bytes_per_s=bandwidth
    )
    for n, measured in MEASURED_US.items():
        assert 0.75 < 1e6 * matmul_time(two_cores, "fp32", n, n, n).time_s.expected / measured < 1.25, n


@settings(max_examples=settings().max_examples, deadline=None)
@given(ANY_CPU, st.floats(1e6, 1e12))
def test_a_stream_is_linear_and_below_the_channels(name: str, size: float) -> None:
    cpu = cpus()[name]
    once, twice = stream_time(cpu, size, size).time_s.expected, stream_time(cpu, 2 * size, 2 * size).time_s.expected
    assert once < twice <= 2 * once
    assert 2 * size / once < cpu.memory_bandwidth_bytes_per_s


def test_a_format_without_instructions_runs_as_fp32() -> None:
    zen3, zen4 = find_cpu("5950x"), find_cpu("epyc 9654")
    assert matmul_time(zen3, "bf16", 512, 512, 512).dtype == "fp32"
    assert matmul_time(zen4, "bf16", 512, 512, 512).dtype == "bf16"
    assert matmul_time(zen4, "bf16", 4096, 4096, 4096).time_s.expected < (
        0.6 * matmul_time(zen4, "fp32", 4096, 4096, 4096).time_s.expected
    )


def test_causal_attention_is_half_the_work() -> None:
    cpu = find_cpu("epyc 9654")
    half = attention_time(cpu, "bf16", 1, 32, 4096, 128, causal=True).compute_s
    assert attention_time(cpu, "bf16", 1, 32, 4096, 128, causal=False).compute_s == pytest.approx(2 * half, rel=1e-3)


def test_training_is_arithmetic_and_scales_with_tokens() -> None:
    arch = find_model("bert-base")
    cpu = find_cpu("epyc 7742")
    once = training_time(cpu, arch, 1e7, 128, tokens_per_step=4096)
    assert once.bound == "compute"
    assert training_time(cpu, arch, 2e7, 128, tokens_per_step=4096).time_s.expected == pytest.approx(2 * once.time_s.expected)
    often = training_time(cpu, arch, 1e7, 128, tokens_per_step=128)
    assert often.memory_s == pytest.approx(32 * once.memory_s) and often.time_s.expected > once.time_s.expected
    matrix = training_time(find_cpu("xeon 8480+"), arch, 1e7, 128, tokens_per_step=4096, dtype="bf16")
    plain = training_time(find_cpu("xeon 8480+"), arch, 1e7, 128, tokens_per_step=4096)
    assert matrix.compute_s < plain.compute_s and matrix.time_s.high / matrix.time_s.low > plain.time_s.high / plain.time_s.low


@pytest.mark.parametrize("size", [0, -1, math.inf, math.nan])
def test_sizes_that_cannot_be_are_refused(size: float) -> None:
    cpu, arch = find_cpu("epyc 9654"), find_model("llama-3.1-8b")
    for refused in (
        lambda: matmul_time(cpu, "fp32", size, 1, 1),
        lambda: attention_time(cpu, "fp32", 1, 1, size, 64),
        lambda: training_time(cpu, arch, size, 128, tokens_per_step=128),
    ):
        with pytest.raises(InputError):
            refused()
