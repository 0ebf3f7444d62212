"""Rows of tables by index, against kernels that were timed on an H100 (benchmarks/records/gpu/*_2026-11-26)."""

from __future__ import annotations

import numpy as np
import pytest

from gpuwise.facts.hardware.naming import find_accelerator
from gpuwise.predict.kernels.lookup.tables import distinct_rows, gather_time, table_gradient_time

H100 = find_accelerator("h100-sxm-80gb")


@pytest.mark.parametrize(
    ("entries", "width", "count", "element", "measured_s"),
    [
        (50257, 768, 8192, 2, 12.0e-6),
        (128256, 2048, 4096, 2, 15.0e-6),
        (50257, 768, 8192, 4, 20.8e-6),
        (10000, 512, 16384, 4, 21.4e-6),
        (200000, 64, 32768, 2, 21.7e-6),
    ],
)
def test_rows_are_gathered_as_measured(entries: int, width: int, count: int, element: int, measured_s: float) -> None:
    """The last: 128 bytes a row, so that blocks start one after the other."""
    assert gather_time(H100, count, width * element, entries).time_s[0] == pytest.approx(measured_s, rel=0.12)


@pytest.mark.parametrize(
    ("entries", "width", "count", "element", "cleared_s", "measured_s"),
    [
        (50257, 768, 8192, 4, 50e-6, 203.9e-6),
        (256000, 2304, 4096, 2, 383e-6, 234.6e-6),
        (10000, 512, 16384, 4, 7e-6, 160.1e-6),
        (1024, 768, 1024, 4, 2e-6, 28.1e-6),
        (32000, 1024, 2048, 4, 43e-6, 93.6e-6),
    ],
)
def test_gradients_of_tables_take_as_long_as_in_real_steps(
    entries: int, width: int, count: int, element: int, cleared_s: float, measured_s: float
) -> None:
    """GPT-2's tokens, Gemma 2's, an LSTM's, GPT-2's places and a small Llama's; zeroes are a kernel before."""
    seconds = table_gradient_time(H100, count, width, element, entries).time_s[0]
    assert seconds == pytest.approx(cleared_s + measured_s, rel=0.15)


def test_more_rows_and_wider_ones_take_longer() -> None:
    counts = np.array([100, 3000, 4000, 50000])
    for seconds in (
        gather_time(H100, counts, 4096, 50000).time_s,
        gather_time(H100, 4096, np.array([64, 256, 4096, 16384]), 50000).time_s,
        table_gradient_time(H100, np.array([4000, 8000, 50000]), 768, 2, 50000).time_s,
        table_gradient_time(H100, 8192, 768, 2, np.array([10000, 100000, 1000000])).time_s,
    ):
        assert np.all(np.diff(seconds) >= 0)
        assert seconds[-1] > seconds[0]


def test_a_table_without_a_size_is_read_once_a_row() -> None:
    assert distinct_rows(np.array([10.0, 10.0]), np.array([0.0, 10.0])) == pytest.approx([10.0, 10.0 * (1 - np.exp(-1.0))])
