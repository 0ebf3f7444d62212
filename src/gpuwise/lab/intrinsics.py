"""What kernels may call: functions of numbers, and atomic operations with the values that each lane gets back."""

# pyright: basic
from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Values = NDArray[Any]


class Function(NamedTuple):
    """A function of one or two numbers and its unit; ``""`` is that of its result."""

    of: Callable[..., Any]
    unit: str


_erf = np.vectorize(math.erf, otypes=[np.float64])


def _bits(words: Any) -> Any:
    """How many bits of a word are set."""
    rest, count = np.asarray(words).astype(np.uint64), np.zeros(np.shape(words), np.int64)
    for _ in range(64):
        count += (rest & np.uint64(1)).astype(np.int64)
        rest = rest >> np.uint64(1)
    return count


def _reversed(words: Any) -> Any:
    """The bits of a word from its end."""
    words = np.asarray(words)
    rest, made = words.astype(np.uint64), np.zeros(np.shape(words), np.uint64)
    for _ in range(8 * words.dtype.itemsize):
        made = (made << np.uint64(1)) | (rest & np.uint64(1))
        rest = rest >> np.uint64(1)
    return made.astype(words.dtype)


_NUMPY = (
    "exp",
    "log",
    "sqrt",
    "sin",
    "cos",
    "tanh",
    "exp2",
    "log2",
    "log10",
    "sinh",
    "cosh",
    "expm1",
    "log1p",
    "cbrt",
    "tan",
    "hypot",
)
FUNCTIONS: Mapping[str, Function] = {
    **{name: Function(getattr(np, name), "sfu") for name in _NUMPY},
    "rsqrt": Function(lambda x: 1 / np.sqrt(x), "sfu"),
    "atan": Function(np.arctan, "sfu"),
    "atan2": Function(np.arctan2, "sfu"),
    "asin": Function(np.arcsin, "sfu"),
    "acos": Function(np.arccos, "sfu"),
    "pow": Function(np.power, "sfu"),
    "erf": Function(lambda x: _erf(x).astype(np.asarray(x).dtype), "sfu"),
    "fmod": Function(np.fmod, "sfu"),
    "copysign": Function(np.copysign, ""),
    "phase": Function(np.angle, "sfu"),
    **{name: Function(getattr(np, name), "sfu") for name in ("floor", "ceil", "trunc", "rint")},
    "round": Function(np.rint, "sfu"),
    "isnan": Function(np.isnan, "int"),
    "isinf": Function(np.isinf, "int"),
    "isfinite": Function(np.isfinite, "int"),
    "popc": Function(_bits, "int"),
    "brev": Function(_reversed, "int"),
    "clz": Function(lambda x: 32 - np.ceil(np.log2(np.maximum(x, 0) + 1.0)).astype(np.int64), "int"),
    "ffs": Function(lambda x: _bits(x ^ (x - 1)) * (x != 0), "int"),
}
"""Functions by numba's name."""
_TIMES: Mapping[str, tuple[tuple[int, int, int], tuple[int, int, int]]] = {
    "exp": ((7, 0, 1), (17, 13, 0)),
    "exp2": ((0, 0, 1), (18, 13, 0)),
    "log": ((15, 10, 0), (30, 25, 0)),
    "log2": ((17, 10, 0), (32, 27, 0)),
    "log10": ((16, 10, 0), (32, 27, 0)),
    "sqrt": ((4, 3, 1), (8, 10, 1)),
    "sin": ((12, 10, 2), (17, 14, 2)),
    "cos": ((12, 10, 2), (17, 14, 2)),
    "tan": ((14, 12, 2), (29, 18, 2)),
    "tanh": ((9, 5, 2), (33, 14, 5)),
    "sinh": ((14, 6, 3), (38, 30, 1)),
    "cosh": ((8, 4, 3), (20, 12, 2)),
    "expm1": ((13, 8, 1), (20, 25, 0)),
    "log1p": ((16, 12, 0), (53, 35, 2)),
    "hypot": ((10, 16, 1), (12, 24, 1)),
    "atan": ((12, 5, 1), (26, 11, 1)),
    **dict.fromkeys(("atan2", "phase"), ((18, 25, 2), (35, 40, 2))),
    "asin": ((14, 7, 1), (41, 14, 1)),
    "acos": ((15, 7, 1), (46, 20, 1)),
    "pow": ((41, 35, 2), (60, 60, 1)),
    "erf": ((9, 10, 1), (41, 14, 4)),
    "divide": ((5, 2, 2), (8, 6, 1)),
    "reciprocal": ((3, 3, 1), (5, 2, 1)),
    "remainder": ((9, 15, 2), (18, 18, 1)),
    "floor_divide": ((29, 40, 5), (42, 60, 5)),
}
"""Instructions of a function in float32 and in float64: floating-point, of whole numbers and on bits, and of the special function
unit. Counted in what ptxas 13.5 makes for sm_90 of the PTX of numba-cuda 0.30 (six calls against two, without the paths for
infinities, denormals and arguments of more than 10^5); the power in float64 is called and not in the count: a judgement."""

_OF_COMPLEX = {
    "exp": ("exp", "sin", "cos"),
    "log": ("hypot", "log", "atan2"),
    "sqrt": ("hypot", "sqrt", "divide"),
    "abs": ("hypot",),
    **dict.fromkeys(("divide", "reciprocal"), ("divide",) * 3),
}
"""Operations in a function of a complex number (numba, cpython/cmathimpl.py)."""


def instructions(name: str, kind: np.dtype[Any]) -> tuple[tuple[str, int], ...]:
    """Units of a function whose result is of ``kind``, and how many instructions of each it is."""
    if kind.kind == "c" and name in _OF_COMPLEX:
        part = np.dtype(f"f{kind.itemsize // 2}")
        return tuple(one for of in _OF_COMPLEX[name] for one in instructions(of, part))
    wide = kind.itemsize >= 8
    times = _TIMES.get(name)
    if times is None or kind.kind != "f":
        function = FUNCTIONS.get(name)
        return ((function.unit if function is not None and function.unit else "sfu", 1),)
    floating, whole, special = times[wide]
    jump = int(name in ("sqrt", "divide", "reciprocal"))  # to what denormals need, which is seldom taken
    parts = (("int", whole), ("sfu", special), ("branch", jump), ("fp64" if wide else "fp32", floating))
    return tuple((unit, n) for unit, n in parts if n)


WHOLE = frozenset({"floor", "ceil", "trunc", "round", "rint"})
"""Functions of which numba gives a whole number where ``math`` does."""


def _increment(old: Any, top: Any) -> Any:
    return np.where(old >= top, 0, old + 1)


def _decrement(old: Any, top: Any) -> Any:
    return np.where((old == 0) | (old > top), top, old - 1)


ATOMICS: Mapping[str, Callable[[Any, Any], Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "max": np.maximum,
    "min": np.minimum,
    "nanmax": np.fmax,
    "nanmin": np.fmin,
    "and_": np.bitwise_and,
    "or_": np.bitwise_or,
    "xor": np.bitwise_xor,
    "exch": lambda old, new: new,
    "inc": _increment,
    "dec": _decrement,
}
"""New value from the old one and the argument."""


def run_atomic(name: str, data: Values, at: NDArray[np.int64], values: Values, *, used: bool) -> Values:
    """Apply ``name`` at the positions ``at``, one lane after the other, in lane order; returns the old values.

    If the results are unused, sums, maxima and the like are computed at once.
    """
    values = values.astype(data.dtype)
    act = ATOMICS[name]
    if not used and isinstance(act, np.ufunc):
        act.at(data, at, values)
        return data[at]
    order = np.argsort(at, kind="stable")
    places, old = at[order], np.empty(len(at), data.dtype)
    first = np.flatnonzero(np.append(True, places[1:] != places[:-1])) if len(at) else np.zeros(0, np.int64)
    lengths = np.diff(np.append(first, len(at)))
    if name == "add" and data.dtype.kind in "iu":
        running = np.cumsum(values[order])
        before = running - values[order]
        before = data[places] + before - np.repeat(before[first], lengths)
        old[order] = before
        np.add.at(data, at, values)
        return old
    for turn in range(int(lengths.max(initial=0))):
        which = order[first[lengths > turn] + turn]
        old[which] = data[at[which]]
        data[at[which]] = act(old[which], values[which])
    return old


def compare_and_swap(data: Values, at: NDArray[np.int64], expected: Values, values: Values) -> Values:
    """One lane after the other, in lane order: store ``given`` if the old value is ``expected``; returns the old values."""
    old = np.empty(len(at), data.dtype)
    for lane, place in enumerate(at.tolist()):
        old[lane] = data[place]
        if old[lane] == expected[lane]:
            data[place] = values[lane]
    return old
