"""What a process holds outside torch: the table, the line through it, and its refusals."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuwise.errors import InputError, UnpredictableError
from gpuwise.facts.hardware.accelerators import accelerators
from gpuwise.facts.hardware.naming import find_accelerator
from gpuwise.predict.memory.context import communicators_estimate, context_estimate, context_rows
from gpuwise.units import GIB, MIB


def test_a_measured_card_answers_with_its_own_rows() -> None:
    own = [r.size_bytes for r in context_rows() if r.accelerator.id == "rtx-4090"]
    answer = context_estimate(accelerators()["rtx-4090"])
    assert len(own) == 2 and answer.expected == pytest.approx(sum(own) / len(own))
    assert answer.basis == "measured"


def test_rows_on_cuda_13_stand_for_the_card_and_not_in_the_line() -> None:
    """0.75 GiB beside what is reserved at each of fifteen steps on an H100; 0.50 before CUDA 13."""
    rows = [r for r in context_rows() if r.accelerator.id == "h100-sxm-80gb" and r.running]
    assert {r.cuda for r in rows} == {0, 13}
    answer = context_estimate(accelerators()["h100-sxm-80gb"])
    assert answer.expected == next(r.size_bytes for r in rows if r.cuda == 13)
    assert answer.low < 0.749 * GIB < 0.759 * GIB < answer.high
    stranger = replace(accelerators()["h100-sxm-80gb"], id="not-in-the-table", family="Another")
    assert context_estimate(stranger).expected < 0.9 * answer.expected


def test_every_card_left_out_is_within_the_stated_interval_or_near() -> None:
    """Leave-one-out: the line through the others, against the card's own mean."""
    cards = {r.accelerator.id for r in context_rows() if r.running and r.loading == "lazy" and r.cuda < 13}
    errors = []
    for card in cards:
        rows = [r.size_bytes for r in context_rows() if r.accelerator.id == card and r.running and r.cuda < 13]
        stranger = replace(accelerators()[card], id="not-in-the-table", family="Another")
        errors.append(abs(context_estimate(stranger).expected - sum(rows) / len(rows)))
    assert max(errors) < 130 * MIB
    assert sorted(errors)[len(errors) // 2] < 50 * MIB


def test_more_units_hold_more() -> None:
    small, large = context_estimate(find_accelerator("L4")), context_estimate(find_accelerator("B200"))
    assert small.expected < large.expected
    for answer in (small, large):
        assert 0 <= answer.low < answer.expected < answer.high and answer.basis == "derived"


def test_eager_loading_holds_all_kernels() -> None:
    lazy, eager = (context_estimate(find_accelerator("RTX 3090"), loading) for loading in ("lazy", "eager"))
    assert eager.expected > lazy.expected + 300 * MIB


def test_what_nobody_measured_is_refused() -> None:
    with pytest.raises(UnpredictableError):
        context_estimate(find_accelerator("MI300X"))
    with pytest.raises(InputError):
        context_estimate(find_accelerator("T4"), "sometimes")  # type: ignore[arg-type]


def test_communicators_by_group() -> None:
    assert communicators_estimate([]).expected == 0
    assert communicators_estimate([1, 1]).expected == 0
    assert communicators_estimate([2]).expected == 544 * MIB
    assert communicators_estimate([4]).expected == 688 * MIB
    assert communicators_estimate([2, 4]).expected == (544 + 688) * MIB
    assert communicators_estimate([3]).expected == 544 * MIB
    assert communicators_estimate([512]).expected >= communicators_estimate([8]).expected
    with pytest.raises(InputError):
        communicators_estimate([0])
