"""Fits boosted oblivious trees (see ``predict.boosted``) with numpy alone, deterministically.

Each tree is grown level by level: the (feature, edge) whose split of all current leaves lowers the squared
error of the clipped residual most. Most of the rows and of the features are drawn afresh for each tree.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuwise.predict.kernels.boosted import Trees

F64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Settings:
    """How trees are grown: their count, depth, step and the limits on their leaves."""

    trees: int = 256
    depth: int = 7
    learning_rate: float = 0.28
    edges: int = 48
    """Most edges per feature."""
    clip: float = 0.25
    """Residuals count at most this much: a glitch of the measurement moves nothing."""
    leaf_penalty: float = 5.0
    """Rows of zero residual added to every leaf."""
    row_share: float = 0.7
    feature_share: float = 0.6
    seed: int = 20261121


def edges_of(features: F64, most: int) -> tuple[NDArray[np.float32], ...]:
    """Edges between distinct values, at quantiles where there are too many, for ``features`` [F, R]."""
    out: list[NDArray[np.float32]] = []
    for row in features:
        values, counts = np.unique(row.astype(np.float32), return_counts=True)
        middle = (values[1:] + values[:-1]) / 2
        if len(middle) > most:
            share = np.cumsum(counts)[:-1] / counts.sum()
            picked = np.searchsorted(share, (np.arange(most) + 0.5) / most)
            middle = middle[np.unique(np.minimum(picked, len(middle) - 1))]
        out.append(np.unique(middle).astype(np.float32))
    return tuple(out)


def fit(features: F64, target: F64, weight: F64 | None = None, settings: Settings = Settings()) -> Trees:
    """Trees whose sum follows ``target`` [R] over ``features`` [F, R]."""
    s = settings
    rng = np.random.default_rng(s.seed)
    edges = edges_of(features, s.edges)
    trees = Trees(
        np.zeros((s.trees, s.depth), np.uint8),
        np.zeros((s.trees, s.depth), np.uint8),
        np.zeros((s.trees, 2**s.depth), np.float32),
        edges,
    )
    binned = trees.binned(features)
    rows = int(features.shape[1])
    weights: F64 = np.ones(rows) if weight is None else weight
    usable = np.array([i for i, e in enumerate(edges) if len(e)])
    sum_so_far = np.zeros(rows)
    for t in range(s.trees):
        residual: F64 = np.clip(target - sum_so_far, -s.clip, s.clip)
        picked = np.flatnonzero(rng.random(rows) < s.row_share)
        candidates = usable[rng.random(len(usable)) < s.feature_share]
        candidates = candidates if len(candidates) else usable
        leaf = np.zeros(len(picked), np.int64)
        for level in range(s.depth):
            feature, cut = _best_split(binned, residual, weights, picked, leaf, 2**level, candidates, edges, s.leaf_penalty)
            trees.feature[t, level], trees.cut[t, level] = feature, cut
            leaf += (binned[feature, picked] > cut).astype(np.int64) << level
        total = np.bincount(leaf, weights[picked] * residual[picked], 2**s.depth)
        count = np.bincount(leaf, weights[picked], 2**s.depth)
        trees.leaf[t] = s.learning_rate * total / (count + s.leaf_penalty)
        index = np.zeros(rows, np.int64)
        for level in range(s.depth):
            index += (binned[trees.feature[t, level]] > trees.cut[t, level]).astype(np.int64) << level
        sum_so_far += trees.leaf[t][index]
    return trees


def _best_split(
    binned: NDArray[np.uint8],
    residual: F64,
    weight: F64,
    picked: NDArray[np.int64],
    leaf: NDArray[np.int64],
    leaves: int,
    candidates: NDArray[np.int64],
    edges: tuple[NDArray[np.float32], ...],
    penalty: float,
) -> tuple[int, int]:
    w = weight[picked]
    wr = w * residual[picked]
    best, answer = -np.inf, (int(candidates[0]), 0)
    for feature in map(int, candidates):
        bins = len(edges[feature]) + 1
        key = leaf * bins + binned[feature, picked]
        total = np.cumsum(np.bincount(key, wr, leaves * bins).reshape(leaves, bins), axis=1)
        count = np.cumsum(np.bincount(key, w, leaves * bins).reshape(leaves, bins), axis=1)
        below, below_n = total[:, :-1], count[:, :-1]
        above, above_n = total[:, -1:] - below, count[:, -1:] - below_n
        gain = (below**2 / (below_n + penalty) + above**2 / (above_n + penalty)).sum(axis=0)
        cut = int(gain.argmax())
        if gain[cut] > best:
            best, answer = float(gain[cut]), (int(feature), cut)
    return answer
