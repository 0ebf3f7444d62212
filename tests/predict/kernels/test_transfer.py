"""Host copies against published rates."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwise.errors import InputError, UnpredictableError
from gpuwise.facts.hardware.accelerators import accelerators
from gpuwise.predict.kernels.transfer import transfer_time
from gpuwise.units import GIB

HOSTED = [a for a in accelerators().values() if a.pcie_bytes_per_s]


@pytest.mark.parametrize(
    ("name", "direction", "gb_per_s"),
    [
        ("a100-sxm-80gb", "h2d", 26.3),  # Azure/AI-benchmarking-guide ND A100 v4
        ("h100-sxm-80gb", "d2h", 52),  # ND H100 v5
        ("gh200-96gb", "h2d", 346),  # NVIDIA/nvbandwidth#23
    ],
)
def test_published_rates(name: str, direction: str, gb_per_s: float):
    seconds = transfer_time(accelerators()[name], GIB, direction).time_s[0]
    assert GIB / seconds / 1e9 == pytest.approx(gb_per_s, rel=0.05)


@given(st.sampled_from(HOSTED), st.sampled_from(["h2d", "d2h"]), st.floats(1, 1e12), st.integers(1, 16))
def test_copies_grow_with_bytes_and_never_gain_from_company(a, direction: str, size: float, at_once: int):
    one = transfer_time(a, [0, size, 2 * size], direction)
    assert one.time_s[0] == 0 and one.time_s[2] == pytest.approx(2 * one.time_s[1])
    assert transfer_time(a, size, direction, pinned=False).time_s[0] >= one.time_s[1]
    together = transfer_time(a, size, direction, at_once=at_once, host_bytes_per_s=200e9)
    assert together.time_s[0] >= one.time_s[1] * (1 - 1e-12)
    assert np.all(one.log_sigma > 0)


def test_what_cannot_be_is_refused():
    h100 = accelerators()["h100-sxm-80gb"]
    with pytest.raises(InputError):
        transfer_time(h100, 1.0, "sideways")
    with pytest.raises(InputError):
        transfer_time(h100, 1.0, at_once=0)
    with pytest.raises(UnpredictableError):
        transfer_time(next(a for a in accelerators().values() if a.pcie_bytes_per_s is None), 1.0)
