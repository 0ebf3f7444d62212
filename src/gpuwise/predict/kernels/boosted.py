"""Evaluates boosted oblivious trees: the smooth-to-rough correction that fitted families add to a physical
form.

An oblivious tree asks the same ``depth`` questions of every row (feature > threshold); the answers are the
bits of a leaf's index. Many trees over many rows are then byte comparisons and one table lookup per tree.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]
_CHUNK = 512


@dataclass(frozen=True, slots=True)
class Trees:
    """``feature`` [T, depth] and ``cut`` [T, depth]: is the row's value of that feature above its
    ``cut``-th edge?

    ``edges`` one sorted array per feature; ``leaf`` [T, 2**depth] in units of ``scale``.
    """

    feature: NDArray[np.uint8]
    cut: NDArray[np.uint8]
    leaf: NDArray[np.float32]
    edges: tuple[NDArray[np.float32], ...]

    def evaluate(self, features: F64) -> F64:
        """Sum over trees [R] for ``features`` [F, R]."""
        rows = features.shape[1]
        out = np.empty(rows)
        for start in range(0, rows, _CHUNK):
            out[start : start + _CHUNK] = self._chunk(features[:, start : start + _CHUNK])
        return out

    def _chunk(self, features: F64) -> F64:
        binned = self.binned(features)
        trees, depth = self.feature.shape
        index = np.zeros((trees, features.shape[1]), dtype=np.uint8)
        for level in range(depth):
            above = binned[self.feature[:, level]] > self.cut[:, level, None]
            index += above.view(np.uint8) << np.uint8(level)
        flat = index.astype(np.intp)
        flat += (np.arange(trees, dtype=np.intp) * self.leaf.shape[1])[:, None]
        picked: NDArray[np.float32] = self.leaf.ravel()[flat]
        return np.add.reduce(picked, axis=0, dtype=np.float64)

    def binned(self, features: F64) -> NDArray[np.uint8]:
        """Number of edges of its feature below each value [F, R]."""
        out = np.empty(features.shape, dtype=np.uint8)
        for i, edge in enumerate(self.edges):
            out[i] = np.searchsorted(edge, features[i].astype(np.float32), side="left")
        return out


def pack(name: str, trees: Trees) -> dict[str, NDArray[Any]]:
    """Arrays of ``trees`` for a coefficient file, in one record: leaves as 8-bit multiples of one scale per tree, and of the
    edges those at which a tree cuts."""
    scale = np.maximum(np.abs(trees.leaf).max(axis=1), 1e-9) / 127.0
    cut, edges = _edges_cut_at(trees)
    parts = {
        "question": np.stack([trees.feature, cut]),
        "leaf": np.rint(trees.leaf / scale[:, None]).astype(np.int8),
        "scale": scale.astype(np.float32),
        "edges": np.concatenate(edges).astype(np.float32),
        "edge_counts": np.array([len(e) for e in edges], dtype=np.int16),
    }
    record = np.zeros((), dtype=[(part, a.dtype, a.shape) for part, a in parts.items()])
    for part, array in parts.items():
        record[part] = array
    return {name: record}


def _edges_cut_at(trees: Trees) -> tuple[NDArray[np.uint8], list[NDArray[np.float32]]]:
    """``cut`` [T, depth] counted among the edges that some tree uses, and those edges; results are unchanged."""
    cut = trees.cut.copy()
    edges: list[NDArray[np.float32]] = []
    for i, edge in enumerate(trees.edges):
        asks = trees.feature == i
        indices, cut[asks] = np.unique(trees.cut[asks], return_inverse=True)
        edges.append(edge[indices])
    return cut, edges


def unpack(name: str, arrays: Mapping[str, NDArray[Any]]) -> Trees | None:
    """Trees stored under ``name``; None if there are none."""
    if name not in arrays:
        return None
    record = arrays[name]
    question = record["question"]
    leaf = record["leaf"].astype(np.float32) * record["scale"][:, None]
    edges = np.split(record["edges"], np.cumsum(record["edge_counts"])[:-1])
    return Trees(question[0], question[1], leaf, tuple(edges))
