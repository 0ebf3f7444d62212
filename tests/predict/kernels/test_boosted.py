"""Boosted oblivious trees: evaluation against a plain reading, storage."""

import numpy as np

from gpuwise.predict.kernels.boosted import Trees, pack, unpack


def random_trees(rng: np.random.Generator) -> Trees:
    edges = tuple(np.sort(rng.normal(size=size)).astype(np.float32) for size in (5, 9, 1))
    feature = rng.integers(0, 3, (7, 4)).astype(np.uint8)
    cut = np.array([[rng.integers(0, len(edges[f])) for f in row] for row in feature], dtype=np.uint8)
    return Trees(feature, cut, rng.normal(size=(7, 16)).astype(np.float32), edges)


def plain(trees: Trees, features: np.ndarray) -> np.ndarray:
    out = np.zeros(features.shape[1])
    for row in range(features.shape[1]):
        for tree in range(len(trees.leaf)):
            leaf = 0
            for level in range(trees.feature.shape[1]):
                f = trees.feature[tree, level]
                leaf |= int(np.float32(features[f, row]) > trees.edges[f][trees.cut[tree, level]]) << level
            out[row] += trees.leaf[tree, leaf]
    return out


def test_evaluation_is_what_the_trees_say() -> None:
    rng = np.random.default_rng(0)
    trees = random_trees(rng)
    features = rng.normal(size=(3, 1100))
    features[0, :5] = trees.edges[0]
    assert np.allclose(trees.evaluate(features), plain(trees, features), atol=1e-5)


def test_packing_keeps_the_sum_within_its_steps() -> None:
    rng = np.random.default_rng(1)
    trees = random_trees(rng)
    again = unpack("x", pack("x", trees))
    assert again is not None
    features = rng.normal(size=(3, 200))
    step = np.abs(trees.leaf).max(axis=1).sum() / 127.0
    assert np.abs(again.evaluate(features) - trees.evaluate(features)).max() <= step
    assert unpack("y", pack("x", trees)) is None


def test_edges_at_which_no_tree_cuts_are_not_stored() -> None:
    rng = np.random.default_rng(2)
    trees = random_trees(rng)
    few = Trees(trees.feature % 2, np.minimum(trees.cut, 1), trees.leaf, trees.edges)
    again = unpack("x", pack("x", few))
    assert again is not None
    assert [len(e) for e in again.edges] == [2, 2, 0]
    features = np.concatenate([rng.normal(size=(3, 200)), np.stack([e[:1] for e in trees.edges])], axis=1)
    assert np.allclose(again.evaluate(features), plain(again, features), atol=1e-5)
    stored = Trees(few.feature, few.cut, again.leaf, few.edges)
    assert np.array_equal(again.evaluate(features), stored.evaluate(features))
