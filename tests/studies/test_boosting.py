"""Fitting boosted oblivious trees."""

import numpy as np

from studies.boosting import Settings, edges_of, fit


def test_a_step_and_an_interaction_are_learnt() -> None:
    rng = np.random.default_rng(0)
    x = rng.uniform(size=(3, 4000))
    y = 0.3 * (x[0] > 0.5) + 0.2 * (x[1] > 0.3) * (x[0] > 0.7)
    trees = fit(x, y, settings=Settings(trees=40, depth=3, learning_rate=0.3))
    fresh = rng.uniform(size=(3, 1000))
    truth = 0.3 * (fresh[0] > 0.5) + 0.2 * (fresh[1] > 0.3) * (fresh[0] > 0.7)
    assert np.abs(trees.evaluate(fresh) - truth).mean() < 0.02


def test_one_glitch_moves_nothing_much() -> None:
    x = np.linspace(0, 1, 500)[None]
    y = np.zeros(500)
    y[250] = 50.0
    trees = fit(x, y, settings=Settings(trees=20, depth=2))
    assert np.abs(trees.evaluate(x)).max() < 0.2


def test_fitting_is_deterministic() -> None:
    rng = np.random.default_rng(3)
    x, y = rng.uniform(size=(2, 600)), rng.normal(size=600)
    first, second = (fit(x, y, settings=Settings(trees=5, depth=3)) for _ in range(2))
    assert (first.leaf == second.leaf).all()
    assert (first.feature == second.feature).all()


def test_edges_lie_between_values() -> None:
    (edges,) = edges_of(np.array([[1.0, 1.0, 2.0, 4.0]]), most=8)
    assert edges.tolist() == [1.5, 3.0]
    (many,) = edges_of(np.random.default_rng(0).normal(size=(1, 1000)), most=8)
    assert len(many) <= 8
