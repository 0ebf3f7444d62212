"""Decode on a processor: published speeds and laws."""

from __future__ import annotations

import math

import pytest

from gpuwise.errors import InputError, UnknownNameError
from gpuwise.facts.hardware.cpus import find_cpu
from gpuwise.facts.models.catalogue import find_model
from gpuwise.serve.processor import token_time


def test_published_decoding_lies_within_the_intervals() -> None:
    """llama.cpp of readings that took no part in the fit's model files: sizes from our own parameter counts."""
    phi, llama = find_model("phi-4"), find_model("llama-3.1-8b")
    published = [
        ("epyc 9554", phi, "Q8_0", 19.194),
        ("epyc 9554", phi, "Q6_K", 23.246),
        ("epyc 9554", phi, "Q4_K_M", 28.74),
        ("i5-9500", llama, "Q4_K_M", 6.51),
        ("i7-7820hq", llama, "Q4_K_M", 5.62),
    ]
    for name, arch, weights, tokens_per_s in published:
        time = token_time(find_cpu(name), arch, weights, context=128).time_s
        assert 1 / time.high < tokens_per_s < 1 / time.low, (name, weights, 1 / time.expected)


def test_decoding_is_bound_by_memory_until_sequences_share_the_weights() -> None:
    cpu, arch = find_cpu("epyc 9654"), find_model("llama-3.1-8b")
    one = token_time(cpu, arch, "F16")
    many = token_time(cpu, arch, "F16", batch=64)
    assert one.bound == "memory" and many.bound == "compute"
    assert one.time_s.expected < many.time_s.expected < 64 * one.time_s.expected
    narrow = token_time(cpu, arch, "Q4_K_M").time_s.expected
    assert narrow < one.time_s.expected < 4 * narrow
    assert token_time(cpu, arch, "F16", context=100_000).time_s.expected > one.time_s.expected


@pytest.mark.parametrize("size", [0, -1, math.inf, math.nan])
def test_sizes_that_cannot_be_are_refused(size: float) -> None:
    cpu, arch = find_cpu("epyc 9654"), find_model("llama-3.1-8b")
    for refused in (
        lambda: token_time(cpu, arch, "F16", context=size),
        lambda: token_time(cpu, arch, "F16", batch=size),
    ):
        with pytest.raises(InputError):
            refused()
    with pytest.raises(UnknownNameError):
        token_time(cpu, arch, "Q1")
