"""The sustained clock: published shares of peak, and the laws of a power limit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwise.facts.hardware.accelerators import accelerators
from gpuwise.facts.hardware.naming import find_accelerator
from gpuwise.predict.kernels.clock import arithmetic_power_w, power_budget_w, step_clock, sustained_fraction
from gpuwise.predict.kernels.gemm.fp32 import linear_time, peak_rate

CARDS = sorted(a.id for a in accelerators().values() if a.tdp_w and "fp32" in a.peak_flop_per_s)


# Sustained share of peak in large fp32 products: NeuSight's per-operation tables (MIT), medians over real
# shapes.
@pytest.mark.parametrize(
    ("card", "share"),
    [
        ("t4", 0.49),
        ("l4", 0.28),
        ("a100-pcie-40gb", 0.81),
        ("a100-pcie-80gb", 0.90),
        ("v100-pcie-32gb", 0.96),
        ("h100-sxm-80gb", 0.75),
    ],
)
def test_large_products_run_at_the_published_share_of_peak(card: str, share: float) -> None:
    accelerator = find_accelerator(card)
    flop = 2.0 * 8192 * 8192 * 4096
    seconds = float(linear_time(accelerator, 8192, 8192, 4096).time_s[0])
    assert flop / seconds / peak_rate(accelerator) == pytest.approx(share, rel=0.07)


def test_slot_powered_cards_are_held_back_and_large_ones_hardly() -> None:
    for card in ("l4", "t4", "rtx-a2000-12gb"):
        assert sustained_fraction(find_accelerator(card), 0.75) < 0.85
    for card in ("v100-sxm-32gb", "h100-sxm-80gb", "mi100", "rtx-2080-ti", "rtx-3090"):
        assert sustained_fraction(find_accelerator(card), 0.75) > 0.95


def test_the_power_limit_explains_pcie_against_sxm_in_bf16() -> None:
    """0.81 of peak on an A100 PCIe, 0.87 on an A100 SXM (S. Bekman, MAMF table)."""
    pcie, sxm = (float(sustained_fraction(find_accelerator(c), 0.875, "bf16")) for c in ("a100-pcie-80gb", "a100-sxm-80gb"))
    assert pcie / sxm == pytest.approx(0.811 / 0.869, rel=0.03)


def test_no_limit_is_invented_where_power_or_rate_is_unknown() -> None:
    accelerator = replace(find_accelerator("l4"), tdp_w=None)
    assert np.all(sustained_fraction(accelerator, [0.2, 1.0]) == 1.0)
    assert arithmetic_power_w(replace(accelerator, peak_flop_per_s={}), "fp32") is None


@given(
    card=st.sampled_from(CARDS),
    busy=st.floats(0.0, 1.0),
    more=st.floats(0.0, 1.0),
    watts=st.floats(1.0, 3.0),
)
def test_clock_falls_with_work_and_rises_with_power(card: str, busy: float, more: float, watts: float) -> None:
    accelerator = find_accelerator(card)
    low, high = sorted((busy, more))
    x_low, x_high = sustained_fraction(accelerator, np.array([low, high]))
    assert 0.0 < x_high <= x_low <= 1.0
    assert low * x_low <= high * x_high + 1e-9  # held back, more work still gets more done
    assert accelerator.tdp_w is not None
    cooler = replace(accelerator, tdp_w=accelerator.tdp_w * watts)
    assert sustained_fraction(cooler, high) >= x_high - 1e-12


@pytest.mark.parametrize("others", [0.0, 0.2])
def test_a_step_over_the_design_power_runs_at_the_clock_that_keeps_it(others: float) -> None:
    h100 = find_accelerator("H100-SXM")
    budget_w = power_budget_w(h100)
    assert budget_w is not None
    follows, device_s = np.array([True, False]), np.array([0.8, 0.2])
    clocks: list[float] = []
    for share in (0.9, 1.1, 1.3):
        work_j = np.array([share - others, others]) * budget_w
        at = step_clock(h100, follows, device_s, work_j, 1.0)
        drawn_w = (work_j[0] * at.joules + min(others, 0.2) * budget_w) / (0.8 / at.clock + 0.2)
        assert drawn_w == pytest.approx(min(share, 1.0) * budget_w, rel=0.01)
        clocks.append(at.clock)
    assert clocks[0] == 1.0 > clocks[1] > clocks[2] > 0.7
    waits = step_clock(h100, follows, device_s, np.array([1.3, 0.0]) * budget_w, 1.4)
    assert waits.clock == 1.0
