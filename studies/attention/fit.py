"""Fits one attention kernel: the rising network by Adam, then oblivious trees on what it leaves. numpy only,
deterministic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuwise.predict.kernels.attention.features import AttentionWork
from gpuwise.predict.kernels.attention.net import DEPTH, HIDDEN, Trees, layout
from gpuwise.units import MICRO

F32 = NDArray[Any]
"""float32 throughout; numpy's stubs lose it in mixed arithmetic."""
F64 = NDArray[np.float64]
Params = dict[str, F32]

_RISING = ("W1", "W2", "w3", "w4")
"""Parameters kept as logarithms while fitting: their exponentials are never negative."""
_ELBOW = 0.05
"""Residuals (logarithms) below this count squared, above by their size: MAPE with a differentiable middle."""

_NEGLIGIBLE = 2.3
"""The network is pulled no further below the fetch than a tenth of it."""


@dataclass(frozen=True, slots=True)
class Rows:
    """What the network learns from: the work of R calls, their free features [R, f], measured seconds [R]."""

    work: AttentionWork
    free: F64
    seconds: F64


@dataclass(frozen=True, slots=True)
class Fit:
    """How to fit: bounds of the memory factor ``c``, pull towards explaining time by memory, share of a batch
    that comes from imagined devices, steps, seed."""

    c_low: float
    c_high: float
    pull: float = 0.02
    imagined: float = 0.375
    steps: int = 8000
    batch: int = 1024
    rate: float = 0.02
    seed: int = 1


def _activate(u: F32) -> tuple[F32, F32]:
    half = u.shape[1] // 2
    root = np.sqrt(u * u + 1.0)
    sign = np.ones(u.shape[1], dtype=np.float32)
    sign[half:] = -1.0
    return 0.5 * (u + sign * root), 0.5 * (1.0 + sign * u / root)


def _start(n: int, f: int, seed: int) -> Params:
    rng, (h1, h2) = np.random.default_rng(seed), HIDDEN

    def positive(a: int, b: int) -> F64:
        return rng.normal(size=(a, b)) * 0.5 + np.log(1.2 / a)

    start = {
        "W1": positive(n, h1),
        "b1": rng.normal(size=h1),
        "W2": positive(h1, h2),
        "b2": rng.normal(size=h2) * 0.5,
        "w3": positive(h2, 1)[:, 0],
        "w4": positive(n, 1)[:, 0] - 1.0,
        "b": np.zeros(1),
        "F1": rng.normal(size=(f, h1)) * 0.3,
        "F2": rng.normal(size=(f, h2)) * 0.3,
        "f": rng.normal(size=f) * 0.1,
        "c": np.zeros(1),
        "p": np.full(1, np.log(0.7)),
    }
    return {k: v.astype(np.float32) for k, v in start.items()}


def _bounded(params: Params, fit: Fit) -> tuple[float, float, float]:
    """(c, its logistic, p): ``c`` between its bounds, ``p`` between 0.8 and 6."""
    share = 1.0 / (1.0 + np.exp(-float(params["c"][0])))
    return fit.c_low * (fit.c_high / fit.c_low) ** share, share, min(0.8 + float(np.exp(params["p"][0])), 6.0)


def _inside(params: Params, x: F32, z: F32) -> tuple[F32, tuple[F32, ...]]:
    w = {k: np.exp(params[k]) for k in _RISING}
    h1, d1 = _activate(x @ w["W1"] + z @ params["F1"] + params["b1"])
    h2, d2 = _activate(h1 @ w["W2"] + z @ params["F2"] + params["b2"])
    return h2 @ w["w3"] + x @ w["w4"] + z @ params["f"] + params["b"], (h1, d1, h2, d2)


def _gradient(params: Params, x: F32, z: F32, memory: F32, target: F32, fit: Fit) -> Params:
    """Gradient of mean sqrt(e^2 + elbow^2), plus ``pull`` on the network where memory could explain the
    time."""
    inside, (h1, d1, h2, d2) = _inside(params, x, z)
    c, share, p = _bounded(params, fit)
    fetched = memory + np.float32(np.log(c))
    top = np.maximum(inside, fetched)
    a, b = np.exp(p * (inside - top)), np.exp(p * (fetched - top))
    both = a + b
    error = top + np.log(both) / p - target
    rows = len(x)
    slope = error / np.sqrt(error * error + _ELBOW**2) / rows
    weight = a / both
    pull = fit.pull * (1.0 - weight) * (inside > top - _NEGLIGIBLE) / rows
    g = (slope * weight + pull).astype(np.float32)
    w = {k: np.exp(params[k]) for k in _RISING}
    g2 = (g[:, None] * w["w3"]) * d2
    g1 = (g2 @ w["W2"].T) * d1
    dp = float((slope * (-np.log(both) / p**2 + ((inside - top) * a + (fetched - top) * b) / both / p)).sum())
    dc = float((slope * (1.0 - weight)).sum()) * np.log(fit.c_high / fit.c_low) * share * (1.0 - share)
    return {
        "W1": x.T @ g1 * w["W1"],
        "F1": z.T @ g1,
        "b1": g1.sum(0),
        "W2": h1.T @ g2 * w["W2"],
        "F2": z.T @ g2,
        "b2": g2.sum(0),
        "w3": h2.T @ g * w["w3"],
        "w4": x.T @ g * w["w4"],
        "f": z.T @ g,
        "b": g.sum(keepdims=True),
        "c": np.full(1, dc, np.float32),
        "p": np.full(1, dp * (p - 0.8) if p < 6.0 else max(dp, 0.0), np.float32),
    }


def fit_network(rows: Rows, fit: Fit, imagined: Rows | None = None) -> F32:
    """The flat parameters of a network fitted to ``rows`` (net.layout) and, in part, to
    ``imagined`` ones."""
    joined = np.concatenate([rows.work.features, rows.free], axis=1)
    mean, spread = joined.mean(0), joined.std(0)
    scale = np.where(spread > 1e-6, 1.0 / np.maximum(spread, 1e-6), 0.0)
    real = _inputs(rows, mean, scale)
    params = _start(rows.work.features.shape[1], rows.free.shape[1], fit.seed)
    params["b"] += real[3].mean() - _inside(params, real[0], real[1])[0].mean()
    _adam(params, real, None if imagined is None else _inputs(imagined, mean, scale), fit)
    c, _, p = _bounded(params, fit)
    named: dict[str, Any] = {k: np.exp(v) if k in _RISING else v for k, v in params.items()}
    named |= {"mean": mean, "scale": scale, "c": np.array([c]), "p": np.array([p])}
    where = layout(rows.work.features.shape[1])
    flat = np.zeros(where.size, dtype=np.float32)
    for name, (part, _) in where.fields.items():
        flat[part] = np.asarray(named[name]).ravel()
    return flat


def _inputs(rows: Rows, mean: F64, scale: F64) -> tuple[F32, F32, F32, F32]:
    """Standardised rising and free features, log microseconds of the fetch and of the measurement."""
    n = rows.work.features.shape[1]
    inputs = ((np.concatenate([rows.work.features, rows.free], axis=1) - mean) * scale).astype(np.float32)
    memory = np.log(np.maximum(rows.work.memory_s / MICRO, 1e-9)).astype(np.float32)
    return inputs[:, :n], inputs[:, n:], memory, np.log(rows.seconds / MICRO).astype(np.float32)


def _adam(params: Params, real: tuple[F32, F32, F32, F32], imagined: tuple[F32, F32, F32, F32] | None, fit: Fit) -> None:
    """Adam with a warm-up and a cosine decay, on shuffled batches, in place."""
    rng = np.random.default_rng(fit.seed + 1)
    first = {k: np.zeros_like(v) for k, v in params.items()}
    second = {k: np.zeros_like(v) for k, v in params.items()}
    batch = min(fit.batch, len(real[0]))
    from_imagined = int(batch * fit.imagined) if imagined is not None else 0
    sources = [(real, batch - from_imagined)] + ([(imagined, from_imagined)] if imagined is not None else [])
    orders = [rng.permutation(len(source[0])) for source, _ in sources]
    at = [0] * len(sources)
    for step in range(1, fit.steps + 1):
        picked: list[tuple[F32, ...]] = []
        for i, (source, size) in enumerate(sources):
            if at[i] + size > len(source[0]):
                orders[i], at[i] = rng.permutation(len(source[0])), 0
            pick = orders[i][at[i] : at[i] + size]
            at[i] += size
            picked.append(tuple(c[pick] for c in source))
        x, z, memory, target = (np.concatenate(c) for c in zip(*picked, strict=True))
        gradient = _gradient(params, x, z, memory, target, fit)
        rate = fit.rate * min(1.0, step / 100) * (0.5 * (1 + np.cos(np.pi * step / fit.steps)) + 0.002)
        for k, g in gradient.items():
            first[k] = 0.9 * first[k] + 0.1 * g
            second[k] = 0.99 * second[k] + 0.01 * g * g
            move = (first[k] / (1 - 0.9**step)) / (np.sqrt(second[k] / (1 - 0.99**step)) + 1e-8)
            params[k] = params[k] - np.float32(rate) * move.astype(np.float32)


def fit_trees(codes: NDArray[np.uint8], residual: F64, n_trees: int, *, depth: int = DEPTH, rate: float = 0.15) -> Trees:
    """Boosted oblivious trees on ``residual`` [R] (logarithms); ``codes`` [R, F] bins (net.bins).

    Each level takes the question that lowers the squared residual most, residuals beyond 0.5 counted as 0.5,
    so that a single stray measurement does not steer a tree. A leaf is shrunk towards zero by 5 rows of zero.
    """
    remainder = residual.copy()
    rows, wide = codes.shape
    widest = int(codes.max()) + 1 if rows else 1
    feature, cut = np.zeros((n_trees, DEPTH), np.uint8), np.full((n_trees, DEPTH), 255, np.uint8)
    leaf = np.zeros((n_trees, 2**DEPTH))
    wide_codes = [codes[:, j].astype(np.int64) for j in range(wide)]
    for t in range(n_trees):
        target = np.clip(remainder, -0.5, 0.5)
        index = np.zeros(rows, np.int64)
        for level in range(depth):
            feature[t, level], cut[t, level] = _question(wide_codes, index, target, 2**level, widest)
            index = index * 2 + (codes[:, feature[t, level]] > cut[t, level])
        index <<= DEPTH - depth
        count = np.bincount(index, minlength=2**DEPTH)
        leaf[t] = rate * np.bincount(index, target, minlength=2**DEPTH) / (count + 5.0)
        remainder -= leaf[t][index]
    step = max(float(np.abs(leaf).max()) / 127.0, 1e-9)
    return Trees(feature, cut, np.round(leaf / step).astype(np.int8), step)


def _question(codes: list[NDArray[np.int64]], index: NDArray[np.int64], target: F64, leaves: int, widest: int) -> tuple[int, int]:
    """The (feature, cut) whose split of every leaf at once explains most of ``target``."""
    best, answer = -1.0, (0, 254)
    for j, code in enumerate(codes):
        place = index * widest + code
        count = np.bincount(place, minlength=leaves * widest).reshape(leaves, widest).cumsum(1)
        total = np.bincount(place, target, minlength=leaves * widest).reshape(leaves, widest).cumsum(1)
        n_low, s_low = count[:, :-1], total[:, :-1]
        n_high, s_high = count[:, -1:] - n_low, total[:, -1:] - s_low
        gain = (s_low**2 / (n_low + 5.0) + s_high**2 / (n_high + 5.0)).sum(0)
        at = int(gain.argmax()) if gain.size else 0
        if gain.size and gain[at] > best:
            best, answer = float(gain[at]), (j, at)
    return answer
