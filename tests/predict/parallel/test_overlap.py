"""What hides behind what, by hand."""

from dataclasses import replace
from typing import Any

import pytest

from gpuwise.predict.parallel.overlap import beside, exposed_after, exposed_once, gathered_passes
from gpuwise.predict.stack_costs import find_stack_costs

COSTS = replace(find_stack_costs("eager-fsdp"), contention=0.2, network_slowdown=1.5, dp_overlap=0.5)


def of(function: Any, *seconds: float, **more: Any) -> Any:
    return function(*seconds, COSTS, **more)


def test_work_beside_a_transfer_takes_the_longer_and_a_share_of_the_shorter() -> None:
    assert of(beside, 10.0, 4.0) == of(beside, 4.0, 10.0) == pytest.approx(10.8)
    assert of(beside, 10.0, 0.0) == 10.0


def test_gathers_and_copies_run_behind_the_passes() -> None:
    # 2 s of gathers at the stack's network and 1 s of copies beside 10 s; 4 s and 2 s beside 20 s
    found = of(gathered_passes, 10.0, 20.0, 2.0, 4.0, copied_s=(1.0, 2.0))
    assert found == pytest.approx((10.0 + 0.2 * 4.0, 20.0 + 0.2 * 8.0))


def test_what_is_not_hidden_is_exposed() -> None:
    assert of(exposed_after, 4.0, 10.0) == pytest.approx(6.0 - 3.0 * 0.8)  # half of it can hide
    assert of(exposed_after, 4.0, 10.0, overlap=1.0) == pytest.approx(6.0 - 6.0 * 0.8)
    assert of(exposed_after, 4.0, 2.0, overlap=1.0) == pytest.approx(6.0 - 2.0 * 0.8)  # behind 2 s of work at the most
    assert of(exposed_after, 4.0, 0.0) == pytest.approx(6.0)


def test_gradients_are_reduced_behind_the_backward_and_weights_gathered_behind_the_forward() -> None:
    reduced, gathered = of(exposed_after, 4.0, 10.0), of(exposed_after, 2.0, 1.0)
    assert of(exposed_once, 4.0, 2.0, 1.0, 10.0) == pytest.approx(reduced + gathered)
    assert of(exposed_once, 4.0, 2.0, 1.0, 10.0, reductions=3) == pytest.approx(3 * reduced + gathered)
