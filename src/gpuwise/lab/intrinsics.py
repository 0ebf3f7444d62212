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


FUNCTIONS: Mapping[str, Function] = {
    **{
        name: Function(getattr(np, name), "sfu") for name in ("exp", "log", "sqrt", "sin", "cos", "tanh", "exp2", "log2", "log10")
    },
    **{name: Function(getattr(np, name), "sfu") for name in ("sinh", "cosh", "expm1", "log1p", "cbrt", "tan", "hypot")},
    "rsqrt": Function(lambda x: 1 / np.sqrt(x), "sfu"),
    "atan": Function(np.arctan, "sfu"),
    "atan2": Function(np.arctan2, "sfu"),
    "asin": Function(np.arcsin, "sfu"),
    "acos": Function(np.arccos, "sfu"),
    "pow": Function(np.power, "sfu"),
    "erf": Function(lambda x: _erf(x).astype(np.asarray(x).dtype), "sfu"),
    "fmod": Function(np.fmod, "sfu"),
    "copysign": Function(np.copysign, ""),
    "floor": Function(np.floor, ""),
    "ceil": Function(np.ceil, ""),
    "trunc": Function(np.trunc, ""),
    "round": Function(np.rint, ""),
    "rint": Function(np.rint, ""),
    "isnan": Function(np.isnan, "int"),
    "isinf": Function(np.isinf, "int"),
    "isfinite": Function(np.isfinite, "int"),
    "popc": Function(_bits, "int"),
    "brev": Function(_reversed, "int"),
    "clz": Function(lambda x: 32 - np.ceil(np.log2(np.maximum(x, 0) + 1.0)).astype(np.int64), "int"),
    "ffs": Function(lambda x: _bits(x ^ (x - 1)) * (x != 0), "int"),
}
"""By numba's name. Those of the special function unit are counted as one of its instructions, as ``expf`` is nearly."""
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
"""What is stored, of what stood there and what is given."""


def run_atomic(name: str, data: Values, at: NDArray[np.int64], values: Values, *, used: bool) -> Values:
    """Apply ``name`` at the places ``at`` one lane after the other, in the order of lanes; what each found there.

    Of results that nobody uses the sum, the largest and the like are taken at once.
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
    """One lane after the other, in the order of lanes: put ``given`` where ``expected`` stands; what each found."""
    old = np.empty(len(at), data.dtype)
    for lane, place in enumerate(at.tolist()):
        old[lane] = data[place]
        if old[lane] == expected[lane]:
            data[place] = values[lane]
    return old
