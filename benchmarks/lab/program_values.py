"""What numpy says must come out of the kernels of programs.py, and the arrays that some of them are given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Values = Mapping[str, Any]
F32, I32 = np.float32, np.int32
M = 1 << 20
PICTURE = 2048


def rng(seed: int = 11) -> np.random.Generator:
    return np.random.default_rng(seed)


def normal(*shape: int, seed: int = 11) -> NDArray[Any]:
    return rng(seed).standard_normal(shape, dtype=F32)


def picture() -> NDArray[Any]:
    return rng().integers(0, 256, (PICTURE, PICTURE), np.uint8)


def sobel(a: Values) -> dict[str, NDArray[Any]]:
    p = a["picture"].astype(int)
    x = p[:-2, 2:] + 2 * p[1:-1, 2:] + p[2:, 2:] - p[:-2, :-2] - 2 * p[1:-1, :-2] - p[2:, :-2]
    y = p[2:, :-2] + 2 * p[2:, 1:-1] + p[2:, 2:] - p[:-2, :-2] - 2 * p[:-2, 1:-1] - p[:-2, 2:]
    out = np.zeros(p.shape, I32)
    out[1:-1, 1:-1] = np.abs(x) + np.abs(y)
    return {"out": out}


def mandelbrot(a: Values) -> dict[str, NDArray[Any]]:
    h, w = a["out"].shape
    x0 = (F32(-2.0) + np.arange(w, dtype=F32) * F32(3.0 / w))[None, :] + np.zeros((h, 1), F32)
    y0 = (F32(-1.5) + np.arange(h, dtype=F32) * F32(3.0 / h))[:, None] + np.zeros((1, w), F32)
    x, y, count = np.zeros((h, w), F32), np.zeros((h, w), F32), np.zeros((h, w), I32)
    for _ in range(64):
        live = x * x + y * y <= 4
        count += live
        x, y = np.where(live, x * x - y * y + x0, x), np.where(live, F32(2) * x * y + y0, y)
    return {"out": count}


def life(a: Values) -> dict[str, NDArray[Any]]:
    c = a["cells"]
    around = sum(np.roll(np.roll(c, dy, 0), dx, 1) for dy in (-1, 0, 1) for dx in (-1, 0, 1)) - c
    return {"out": ((around == 3) | ((c == 1) & (around == 2))).astype(I32)}


def sparse(rows: int, most: int) -> dict[str, Any]:
    dice = rng()
    each = dice.integers(1, most, rows)
    start = np.concatenate([[0], np.cumsum(each)]).astype(I32)
    column = dice.integers(0, rows, start[-1]).astype(I32)
    return {
        "start": start,
        "column": column,
        "value": dice.random(start[-1], F32),
        "x": dice.random(rows, F32),
        "out": np.zeros(rows, F32),
    }


def sparse_product(a: Values) -> dict[str, NDArray[Any]]:
    return {"out": np.add.reduceat(a["value"].astype(float) * a["x"][a["column"]], a["start"][:-1])}


def pulls(a: Values) -> dict[str, NDArray[Any]]:
    b = a["bodies"].astype(float)
    out = np.zeros((len(b), 3))
    for first in range(0, len(b), 512):
        apart = b[None, :, :3] - b[first : first + 512, None, :3]
        out[first : first + 512] = (apart * (b[None, :, 3] * ((apart**2).sum(2) + 0.01) ** -1.5)[:, :, None]).sum(1)
    return {"pull": out}


def layer_norm(a: Values) -> dict[str, NDArray[Any]]:
    x = a["x"].astype(float)
    return {"out": (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5) * a["gain"] + a["bias"]}


def softmax(a: Values) -> dict[str, NDArray[Any]]:
    e = np.exp(a["x"].astype(float) - a["x"].max(1, keepdims=True))
    return {"out": e / e.sum(1, keepdims=True)}


def bitonic(a: Values) -> dict[str, NDArray[Any]]:
    x, i = a["x"].copy(), np.arange(len(a["x"]))
    other = i ^ a["j"]
    up = (i & a["k"]) == 0
    low, high = np.minimum(x, x[other]), np.maximum(x, x[other])
    return {"x": np.where((i < other) == up, low, high)}


def options(n: int) -> dict[str, Any]:
    r = rng()
    price, strike = r.uniform(5, 30, n).astype(F32), r.uniform(1, 100, n).astype(F32)
    return {"call": np.zeros(n, F32), "price": price, "strike": strike, "years": r.uniform(0.25, 10, n).astype(F32)}


def calls(a: Values) -> dict[str, NDArray[Any]]:
    price, strike, years = (a[n].astype(float) for n in ("price", "strike", "years"))
    d1 = (np.log(price / strike) + (0.02 + 0.5 * 0.3**2) * years) / (0.3 * np.sqrt(years))
    d2 = d1 - 0.3 * np.sqrt(years)

    def cumulated(d: NDArray[Any]) -> NDArray[Any]:
        k = 1.0 / (1.0 + 0.2316419 * np.abs(d))
        v = (
            0.3989422804014327
            * np.exp(-0.5 * d * d)
            * (k * (0.31938153 + k * (-0.356563782 + k * (1.781477937 + k * (-1.821255978 + k * 1.330274429)))))
        )
        return np.where(d > 0, 1.0 - v, v)

    return {"call": price * cumulated(d1) - strike * np.exp(-0.02 * years) * cumulated(d2)}


def rotated(a: Values) -> dict[str, NDArray[Any]]:
    x = a["x"].astype(float)
    angle = (np.arange(len(x)) % 1024)[:, None] * np.exp(np.arange(64) * -0.14391156831)
    low, high = x[:, :64], x[:, 64:]
    return {"x": np.concatenate([low * np.cos(angle) - high * np.sin(angle), low * np.sin(angle) + high * np.cos(angle)], 1)}


def nearest(a: Values) -> NDArray[Any]:
    p, c = a["points"].astype(float), a["centres"].astype(float)
    return np.argmin((c**2).sum(1) - 2 * p @ c.T, axis=1)


def thrown(a: Values) -> NDArray[Any]:
    state = (np.arange(1 << 17, dtype=np.int64) * 747796405 + 2891336453) & 0xFFFFFFFF
    n = np.zeros(1 << 17, I32)
    for _ in range(32):
        parts: list[NDArray[Any]] = []
        for _ in range(2):
            state = (state * 1664525 + 1013904223) & 0xFFFFFFFF
            parts.append((state >> 8).astype(F32) * F32(5.9604645e-08))
        n += parts[0] * parts[0] + parts[1] * parts[1] < 1
    return n
