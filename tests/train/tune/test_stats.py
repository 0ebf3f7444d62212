from __future__ import annotations

import math

import pytest

from gpuwise.train.tune.stats import gain_of


def test_one_pair_decides_nothing() -> None:
    gain = gain_of([(10.0, 30.0)])
    assert gain.ratio == pytest.approx(3.0)
    assert (gain.low, gain.high) == (0.0, math.inf)
    assert gain.verdict == "undecided"


def test_pairs_that_agree_decide() -> None:
    assert gain_of([(10, 20), (11, 22.5), (9, 17.8)]).verdict == "faster"
    assert gain_of([(10, 9), (11, 9.8), (9, 8.2)]).verdict == "not faster"


def test_pairs_that_disagree_do_not() -> None:
    assert gain_of([(10, 20), (10, 8), (10, 13)]).verdict == "undecided"


def test_from_six_pairs_on_one_disturbed_run_does_not_move_the_median() -> None:
    pairs = [(10.0, 20.0 + k / 10) for k in range(10)]
    disturbed = [*pairs[:-1], (10.0, 0.1)]
    assert gain_of(disturbed).ratio == pytest.approx(gain_of(pairs).ratio, rel=0.01)
    assert gain_of(disturbed).verdict == "faster"


def test_six_pairs_reach_from_the_smallest_to_the_largest() -> None:
    gain = gain_of([(1.0, r) for r in (1.1, 1.2, 1.3, 1.4, 1.5, 1.6)])
    assert (gain.low, gain.high) == (pytest.approx(1.1), pytest.approx(1.6))


def test_a_lever_is_kept_for_now_on_less() -> None:
    pairs = [(8.1, 1602.0), (120.2, 2018.0)]
    assert gain_of(pairs).verdict == "undecided"
    assert gain_of(pairs, tentative=True).verdict == "faster"
    assert gain_of([(10, 12), (10, 8)], tentative=True).verdict == "undecided"


def test_four_pairs_that_all_say_so_keep_a_lever_however_far_apart_they_are() -> None:
    """As measured on a machine that others filled."""
    pairs = [(20.0, 1624.8), (15.1, 35.3), (13.4, 38.4), (8.4, 859.2)]
    assert gain_of(pairs).verdict == "undecided"
    assert gain_of(pairs, tentative=True).low == pytest.approx(35.3 / 15.1)
