from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest

from gpuwise.train.tune.stats import LEAST_GAIN, WORTH_KNOWING, Gain, gain_of, pairs_that_tell, student_t


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


@pytest.mark.parametrize(("n", "left_out"), [(7, 2), (8, 3)])
def test_signed_ranks_are_those_of_the_tables(n: int, left_out: int) -> None:
    """Hollander, Wolfe and Chicken, Nonparametric Statistical Methods: of all means of two, so many may be left out at 5 %."""
    rates = [1.1**k for k in range(1, n + 1)]
    means = sorted((math.log(a) + math.log(b)) / 2 for at, a in enumerate(rates) for b in rates[at:])
    gain = gain_of([(1.0, r) for r in rates])
    assert (gain.low, gain.high) == (pytest.approx(math.exp(means[left_out])), pytest.approx(math.exp(means[-1 - left_out])))


def test_nine_pairs_leave_out_the_smallest_and_the_largest() -> None:
    gain = gain_of([(1.0, 1.0 + k / 10) for k in range(1, 10)])
    assert (gain.low, gain.high) == (pytest.approx(1.2), pytest.approx(1.8))


@pytest.mark.parametrize("scatter", [0.05, 0.1])
def test_a_true_gain_is_found_more_often_the_more_pairs_there_are(scatter: float) -> None:
    """Where one pair of six to eight decided all, more of them found less. No gain at all is found as seldom as promised."""
    rng = np.random.default_rng(0)

    def found(gain: float, n: int) -> float:
        logs = rng.normal(0.0, scatter, (400, n, 2)) + np.log([1.0, gain])
        return sum(gain_of([(a, b) for a, b in row]).verdict == "faster" for row in np.exp(logs).tolist()) / 400

    shares = [found(1.0 + 3.0 * scatter, n) for n in (4, 6, 8)]
    assert shares == sorted(shares) and shares[-1] > 0.9
    assert all(found(1.03, n) <= 0.05 for n in (4, 5, 6, 7, 8, 9))


def test_the_more_levers_are_tried_the_less_each_may_miss() -> None:
    """Ten levers that change nothing: the best of them must not be kept."""
    pairs = [(10.0, 10.9), (10.0, 11.5), (10.0, 11.1), (10.0, 11.3)]
    assert gain_of(pairs).verdict == "faster"
    assert gain_of(pairs, missed=0.05 / 10).verdict == "undecided"


def test_student_is_that_of_the_tables() -> None:
    """NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.6.7.2."""
    for freedom, value in ((1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (7, 2.365), (10, 2.228)):
        assert student_t(0.975, freedom) == pytest.approx(value, abs=6e-4)
    assert student_t(0.9, 1) == pytest.approx(3.078, abs=6e-4)
    assert student_t(0.995, 3) == pytest.approx(5.841, abs=6e-4)


def test_noise_alone_is_seldom_kept() -> None:
    """Tunings of ten levers without effect, on a machine whose runs scatter by 15 %."""
    rng = np.random.default_rng(0)
    kept = 0
    for _ in range(100):
        for _ in range(10):
            pairs: list[tuple[float, float]] = []
            for at in range(8):
                a, b = np.exp(rng.normal(0.0, 0.15, 2)).tolist()
                pairs.append((a, b))
                if at >= 2 and gain_of(pairs, missed=0.05 / 10).verdict != "undecided":
                    break
            if gain_of(pairs, missed=0.05 / 10).verdict == "faster":
                kept += 1
                break
    assert kept <= 10


@pytest.mark.parametrize("ratio", [1.0, 1.14])
def test_the_pairs_that_are_said_to_tell_do_tell(ratio: float) -> None:
    """Four pairs as far apart as those that follow; what is said is what a normal distribution needs, to a pair or two."""

    def pairs(n: int) -> list[tuple[float, float]]:
        return [(1.0, ratio * math.exp(0.08 * NormalDist().inv_cdf((at + 0.5) / n))) for at in range(n)]

    assert gain_of(pairs(4)).verdict == "undecided"
    said = pairs_that_tell(gain_of(pairs(4)), missed=0.05, most=100)
    assert said is not None
    told, before = gain_of(pairs(said + 2)), gain_of(pairs(max(said // 2, 3)))
    assert told.low > LEAST_GAIN or told.high < WORTH_KNOWING
    assert before.low < LEAST_GAIN and before.high > WORTH_KNOWING


def test_no_number_of_pairs_is_said_where_they_lie_too_far_apart() -> None:
    assert pairs_that_tell(Gain(1.1, 0.3, 4.0, 3), missed=0.05, most=8) is None
    assert pairs_that_tell(gain_of([(1.0, 1.2)]), missed=0.05, most=8) is None
