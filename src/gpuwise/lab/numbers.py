"""Numbers of a kernel, with the types that numba gives them.

A float is a float64 and an integer an int64; combined with a float32 array they give float64. A literal that float32
represents exactly does not: the compiler narrows such an operation again.
"""

# pyright: basic
from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

NARROW = {np.dtype("float32"), np.dtype("complex64"), np.dtype("float16")}
WIDE = {np.dtype("float64"), np.dtype("complex128")}


@dataclass(slots=True)
class Lanes:
    """A value of every lane, and the events it depends on."""

    data: NDArray[Any]
    source: tuple[int, ...] = ()


class Inside(Lanes):
    """A place in an array that no lane has outside of it."""


class LiteralFloat(float):
    """A float literal."""


class LiteralWhole(int):
    """An integer literal."""


class UnrolledIndex(int):
    """The counter of a loop that the compiler unrolls."""


def literal(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(literal, value))
    if isinstance(value, bool):
        return value
    return LiteralWhole(value) if type(value) is int else LiteralFloat(value) if type(value) is float else value


def kind_of(value: Any) -> np.dtype[Any]:
    if isinstance(value, Lanes):
        return value.data.dtype
    if isinstance(value, np.generic):
        return value.dtype
    if isinstance(value, np.ndarray):
        return value.dtype
    names = {bool: "bool", int: "int64", float: "float64", complex: "complex128"}
    return np.dtype(next(name for kind, name in names.items() if isinstance(value, kind)))


def common(a: Any, b: Any) -> np.dtype[Any]:
    """The type in which numba computes with both."""
    kinds = kind_of(a), kind_of(b)
    for value, beside in ((a, kinds[1]), (b, kinds[0])):
        if beside in NARROW and isinstance(value, LiteralFloat | LiteralWhole):
            same = not math.isfinite(value) or float(np.float32(value)) == value
            if same:
                return beside
    if kinds[0].kind + kinds[1].kind in ("iu", "ui"):
        return np.promote_types(*kinds) if np.promote_types(*kinds).kind == "i" else np.dtype("int64")
    return np.promote_types(*kinds)


def folded(function: Any, a: Any, b: Any) -> Any:
    """Result of two numbers shared by all lanes."""
    if isinstance(a, np.generic) or isinstance(b, np.generic):
        kind = common(a, b)
        value = function(np.asarray(a).astype(kind), np.asarray(b).astype(kind))
        return value[()] if value.dtype.kind == "f" and value.dtype.itemsize < 8 else value.item()
    value = function(a, b).item()
    both = all(isinstance(v, LiteralFloat | LiteralWhole) for v in (a, b))
    return literal(value) if both else value


def cast_to(dtype: np.dtype[Any], value: Any) -> Any:
    if isinstance(value, Lanes):
        return Lanes(value.data.astype(dtype), value.source)
    made = dtype.type(value)
    return made if dtype.kind in "fc" and dtype.itemsize < 8 else literal(made.item())


def data_of(value: Any) -> NDArray[Any]:
    return value.data if isinstance(value, Lanes) else np.asarray(value)


def source_of(value: Any) -> tuple[int, ...]:
    return value.source if isinstance(value, Lanes) else ()


def unit_of(data: NDArray[Any]) -> str:
    if data.dtype.kind not in "fc":
        return "int"
    return "fp64" if data.dtype in WIDE else "fp32"
