"""Evaluates a kernel's fitted time: a network that only rises with its features, and trees for measured
irregularities.

The network. Features ``x`` [R, n] (logarithms of times, see ``features``) enter through weights that
are never negative, free features ``z`` [R, f] through weights of any sign:

    h1 = a(x W1 + z F1 + b1),  h2 = a(h1 W2 + z F2 + b2),  y = h2 w3 + x w4 + z f + b
    a(u) = (u + sqrt(u^2 + 1)) / 2 on the first half of the units, -a(-u) on the second

so ``exp(y)`` microseconds rise with every feature (the convex and concave halves make any rising function
reachable: Runje and Shankaranarayana, "Constrained Monotonic Neural Networks", ICML 2023). Time to fetch what
misses the cache, at ``c`` times the time of the full bandwidth, joins in the p-norm: the bandwidth of a
device enters there and nowhere else.

The trees are oblivious: level j of a tree asks one question of every row, the answers are the bits of the
leaf's index. They read the call's dimensions only, never the device, so they cannot break a law between
devices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuwise.predict.kernels.attention.features import FREE_FEATURES, AttentionWork
from gpuwise.units import MICRO

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]

HIDDEN = (24, 16)
DEPTH = 8
"""Levels of a tree: the answers of one row and tree are one byte."""
_NOTHING_US = 1e-9
_CHUNK_ROWS = 2048


class Layout(NamedTuple):
    """Layout of the parameters of a network with ``n`` rising features in its flat row: name to (slice, shape)."""

    fields: dict[str, tuple[slice, tuple[int, ...]]]
    size: int


def layout(n: int) -> Layout:
    """The flat layout of a network with ``n`` rising features."""
    f, (h1, h2) = len(FREE_FEATURES), HIDDEN
    shapes: dict[str, tuple[int, ...]] = {
        "mean": (n + f,),
        "scale": (n + f,),
        "W1": (n, h1),
        "F1": (f, h1),
        "b1": (h1,),
        "W2": (h1, h2),
        "F2": (f, h2),
        "b2": (h2,),
        "w3": (h2,),
        "w4": (n,),
        "f": (f,),
        "b": (1,),
        "c": (1,),
        "p": (1,),
    }
    fields: dict[str, tuple[slice, tuple[int, ...]]] = {}
    at = 0
    for name, shape in shapes.items():
        size = int(np.prod(shape))
        fields[name] = (slice(at, at + size), shape)
        at += size
    return Layout(fields, at)


def unpack(flat: NDArray[Any], n: int) -> dict[str, F32]:
    """The named parameters of one network."""
    flat = flat.astype(np.float32, copy=False)  # stored in 16 bits
    return {name: flat[where].reshape(shape) for name, (where, shape) in layout(n).fields.items()}


def activation(u: NDArray[Any]) -> NDArray[Any]:
    """Convex on the first half of the columns, concave on the second; rising everywhere."""
    half = u.shape[1] // 2
    root = np.sqrt(u * u + 1.0)
    root[:, half:] *= -1.0
    return 0.5 * (u + root)


def _product(x: F32, weights: F32) -> F32:
    """``x`` [R, n] times ``weights`` [n, m], summed one input after the other: a row's rounding does not depend on how many
    rows there are, as a library's does, so that a call takes the same time asked alone and among others."""
    total = x[:, :1] * weights[0]
    for i in range(1, len(weights)):
        total += x[:, i : i + 1] * weights[i]
    return total


def network_seconds(parameters: dict[str, F32], work: AttentionWork, free: F64) -> F64:
    """[R] seconds."""
    p = parameters
    n = work.features.shape[1]
    x = ((np.concatenate([work.features, free], axis=1) - p["mean"]) * p["scale"]).astype(np.float32)
    rising, z = x[:, :n], x[:, n:]
    h1 = activation(_product(rising, p["W1"]) + _product(z, p["F1"]) + p["b1"])
    h2 = activation(_product(h1, p["W2"]) + _product(z, p["F2"]) + p["b2"])
    last = _product(h2, p["w3"][:, None]) + _product(rising, p["w4"][:, None]) + _product(z, p["f"][:, None])
    inside = (last[:, 0] + p["b"]).astype(np.float64)
    memory = np.log(np.maximum(work.memory_s / MICRO * float(p["c"][0]), _NOTHING_US))
    norm = float(p["p"][0])
    top = np.maximum(inside, memory)
    return np.exp(top + np.log(np.exp(norm * (inside - top)) + np.exp(norm * (memory - top))) / norm) * MICRO


@dataclass(frozen=True, slots=True)
class Trees:
    """Trees of one kernel. ``feature``, ``cut`` [T, 8]: row goes right where its bin of that feature exceeds
    the cut.

    ``leaf`` [T, 256] in units of ``step`` (logarithm of time). A tree shallower than 8 levels repeats an
    impossible cut.
    """

    feature: NDArray[np.uint8]
    cut: NDArray[np.uint8]
    leaf: NDArray[np.int8]
    step: float


def bins(values: F64, edges: list[F64]) -> NDArray[np.uint8]:
    """[R, F] bin of each feature: the number of its edges below the value."""
    return np.stack([np.searchsorted(e, values[:, j], side="left") for j, e in enumerate(edges)], axis=1).astype(np.uint8)


def leaf_index(trees: Trees, codes: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """[R, T] leaf of each row in each tree."""
    answers = codes[:, trees.feature.ravel()] > trees.cut.ravel()
    return np.packbits(answers.reshape(len(codes), -1, DEPTH), axis=2)[:, :, 0]


def trees_log(trees: Trees, codes: NDArray[np.uint8]) -> F64:
    """[R] what the trees add to the logarithm of the time."""
    total = np.zeros(len(codes))
    n = len(trees.feature)
    if n == 0:
        return total
    flat, base = trees.leaf.ravel(), np.arange(n, dtype=np.int32) * 2**DEPTH
    for at in range(0, len(codes), _CHUNK_ROWS):
        index = leaf_index(trees, codes[at : at + _CHUNK_ROWS]) + base
        total[at : at + _CHUNK_ROWS] = flat[index].sum(axis=1, dtype=np.int32)
    return total * trees.step
