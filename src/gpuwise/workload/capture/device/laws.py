"""Expected statistics of unknown values: how many entries of a mask are true, how many values an index can take.

A capture has no data, but the program's operations imply much about it: the best of 8 logits is one of 8 experts, so ``indices
== 3`` holds for one element in 8, ``one_hot`` of it has a mean of 1/8, and its sum over the tokens is tokens / 8. This is the
balanced choice: data-dependent sizes follow it unless the program implies something else.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

UNKNOWN_SHARE = 0.5
"""Assumed share of true entries in an unknown mask."""


@dataclass(frozen=True, slots=True)
class Law:
    """Expected statistics of each element."""

    mean: float | None = None
    """Expected value; of a mask, the share that is true."""
    n_values: int = 0
    """Elements are integers from 0 to one less than this; 0: unknown."""
    uniform: bool = False
    """Elements are spread evenly over 0 to 1."""

    @property
    def share(self) -> float | None:
        """Share of elements that are not zero."""
        if self.n_values:
            return 1 - 1 / self.n_values
        return None if self.mean is None else min(1.0, max(0.0, abs(self.mean)))


Rule = Callable[["Call"], Law | None]


class Call:
    """One operation: its arguments, and what is expected of them."""

    __slots__ = ("args", "kwargs", "law", "result")

    def __init__(self, args: Any, kwargs: Any, result: Any, law: Callable[[Any], Law]) -> None:
        self.args, self.kwargs, self.result, self.law = args, kwargs, result, law

    def first(self) -> Law:
        return self.law(self.args[0])

    def number(self, index: int, name: str = "") -> float | None:
        value = self.args[index] if len(self.args) > index else self.kwargs.get(name)
        return float(value) if isinstance(value, (int, float)) else None


def _constant(value: float) -> Rule:
    return lambda call: Law(value)


def _full(call: Call) -> Law | None:
    value = next((a for a in reversed(call.args) if isinstance(a, (int, float))), call.kwargs.get("fill_value"))
    return Law(float(value)) if isinstance(value, (int, float)) else None


def _randint(call: Call) -> Law | None:
    bounds = [a for a in call.args if isinstance(a, int) and not isinstance(a, bool)]
    if not bounds:
        return None
    low, high = (0, bounds[0]) if len(bounds) == 1 else bounds[:2]
    return Law((low + high - 1) / 2, max(high, 0) if low >= 0 else 0)


def _bernoulli(call: Call) -> Law | None:
    p = call.number(1, "p")
    return Law(p) if p is not None else (Law(0.5) if call.first().uniform else call.first())


def _same(call: Call) -> Law | None:
    return call.first()


def _equal(call: Call) -> Law | None:
    a, n = call.first(), call.first().n_values
    other = call.args[1]
    if isinstance(other, Tensor):
        n = n or call.law(other).n_values
        constant = call.law(other).mean if other.numel() == 1 and not call.law(other).n_values else None
    else:
        constant = float(other)
    if n and constant is not None and not 0 <= constant < n:
        return Law(0.0)
    if n:
        return Law(1 / n)
    if a.mean is not None and constant == 0:
        return Law(max(0.0, 1 - a.mean))
    if a.mean is not None and constant == 1:
        return Law(min(1.0, a.mean))
    return Law(0.0) if constant is not None and constant < 0 else None


def _above(call: Call, *, strict: bool) -> float | None:
    """Share of elements above the second argument."""
    a, c = call.first(), call.number(1)
    if c is None:
        return None
    if a.uniform:
        return min(1.0, max(0.0, 1 - c))
    if a.n_values:
        least = math.floor(c) + 1 if strict else math.ceil(c)
        return min(1.0, max(0.0, (a.n_values - least) / a.n_values))
    if a.mean is None:
        return None
    least = c if strict else c - 1
    return min(1.0, max(0.0, a.mean)) if least == 0 else float(a.mean > c)


def _compare(*, strict: bool, below: bool) -> Rule:
    def rule(call: Call) -> Law | None:
        share = _above(call, strict=strict != below)
        return None if share is None else Law(1 - share if below else share)

    return rule


def _both(call: Call) -> Law | None:
    a, b = call.first().mean, call.law(call.args[1]).mean
    return Law(a * b) if a is not None and b is not None else None


def _either(call: Call) -> Law | None:
    """Two masks made apart hardly overlap: a union is near the sum of the two."""
    a, b = call.first().mean, call.law(call.args[1]).mean
    return Law(a + b - a * b) if a is not None and b is not None else None


def _complement(rule: Rule) -> Rule:
    def inverted(call: Call) -> Law | None:
        law = rule(call)
        return None if law is None or law.mean is None else Law(1 - law.mean)

    return inverted


def _sum(call: Call) -> Law | None:
    mean = call.first().mean
    reduced = call.args[0].numel() / max(1, call.result.numel())
    return Law(mean * reduced) if mean is not None else None


def _any(call: Call) -> Law | None:
    mean = call.first().mean
    return Law(min(1.0, mean * call.args[0].numel() / max(1, call.result.numel()))) if mean is not None else None


def _all(call: Call) -> Law | None:
    mean = call.first().mean
    return Law(mean ** (call.args[0].numel() / max(1, call.result.numel()))) if mean is not None else None


def _into(call: Call, elements: int, value: Any, *, accumulate: bool) -> Law | None:
    """``elements`` of the first argument replaced by ``value``, or ``value`` added to them."""
    before, value_mean = call.first().mean, call.law(value).mean if isinstance(value, Tensor) else value
    size = call.args[0].numel()
    if before is None or value_mean is None or not size:
        return None
    share = elements / size if accumulate else min(1.0, elements / size)
    return Law((before if accumulate else before * (1 - share)) + float(value_mean) * share)


def _scatter(call: Call) -> Law | None:
    value = call.args[3] if len(call.args) > 3 else call.kwargs.get("src", call.kwargs.get("value"))
    return None if value is None else _into(call, call.args[2].numel(), value, accumulate=False)


def _scatter_add(call: Call) -> Law | None:
    return _into(call, call.args[2].numel(), call.args[3], accumulate=True)


def _index_put(call: Call) -> Law | None:
    indices = [t for t in call.args[1] if t is not None]
    if any(t.dtype in (torch.bool, torch.uint8) for t in indices):
        share = call.law(indices[0]).share
        elements = round(call.args[0].numel() * (UNKNOWN_SHARE if share is None else share))
    else:
        row_elements = math.prod(call.args[0].shape[len(indices) :])
        elements = math.prod(torch.broadcast_shapes(*(t.shape for t in indices))) * row_elements  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType]
    accumulate = call.args[3] if len(call.args) > 3 else call.kwargs.get("accumulate", False)
    return _into(call, elements, call.args[2], accumulate=bool(accumulate))


def _where(call: Call) -> Law | None:
    if len(call.args) < 3:
        return None
    share = call.first().mean
    a, b = (call.law(v).mean if isinstance(v, Tensor) else float(v) for v in call.args[1:3])
    return None if share is None or a is None or b is None else Law(share * a + (1 - share) * b)


def _masked_fill(call: Call) -> Law | None:
    a, share, value = call.first(), call.law(call.args[1]).mean, call.number(2)
    if a.mean is None or share is None or value is None:
        return None
    n_values = a.n_values if 0 <= value < a.n_values else 0
    return Law(a.mean * (1 - share) + value * share, n_values)


def _joined(call: Call) -> Law | None:
    laws = [(call.law(t), t.numel()) for t in call.args[0]]
    size = sum(n for _, n in laws)
    if not size or any(law.mean is None for law, _ in laws):
        return None
    limits = [law.n_values for law, _ in laws]
    return Law(sum((law.mean or 0.0) * n for law, n in laws) / size, max(limits) if all(limits) else 0)


def _counts(call: Call) -> Law | None:
    """bincount and histc: every element of the first argument falls into one bin."""
    return Law(call.args[0].numel() / max(1, call.result.numel()))


def _remainder(call: Call) -> Law | None:
    n = call.number(1)
    return Law((n - 1) / 2, int(n)) if n is not None and n >= 1 and n == int(n) else None


def _quotient(call: Call) -> Law | None:
    n, a = call.number(1), call.first()
    if n is None or n < 1:
        return None
    return Law(None if a.mean is None else a.mean / n, math.ceil(a.n_values / n))


def _largest(call: Call) -> Law | None:
    n = call.first().n_values
    return Law(float(n - 1)) if n else call.first()


def _arithmetic(sign: int) -> Rule:
    def rule(call: Call) -> Law | None:
        other = call.args[1]
        a, b = call.first().mean, call.law(other).mean if isinstance(other, Tensor) else call.number(1)
        return Law(a + sign * b) if a is not None and b is not None else None

    return rule


RULES: dict[str, Rule] = {
    **dict.fromkeys(("zeros", "zeros_like", "new_zeros", "zero_"), _constant(0.0)),
    **dict.fromkeys(("ones", "ones_like", "new_ones"), _constant(1.0)),
    **dict.fromkeys(("full", "full_like", "new_full", "fill_"), _full),
    **dict.fromkeys(("rand", "rand_like", "uniform_"), lambda call: Law(0.5, uniform=True)),
    **dict.fromkeys(("randint", "randint_like", "random_"), _randint),
    **dict.fromkeys(("bernoulli", "bernoulli_"), _bernoulli),
    **dict.fromkeys(
        ("clone", "_to_copy", "index_select", "gather", "index", "repeat", "contiguous", "mean", "roll", "flip"), _same
    ),
    "eq": _equal,
    "ne": _complement(_equal),
    "gt": _compare(strict=True, below=False),
    "ge": _compare(strict=False, below=False),
    "lt": _compare(strict=True, below=True),
    "le": _compare(strict=False, below=True),
    **dict.fromkeys(("bitwise_and", "logical_and", "__and__", "mul"), _both),
    **dict.fromkeys(("bitwise_or", "logical_or", "__or__"), _either),
    **dict.fromkeys(("bitwise_not", "logical_not"), _complement(_same)),
    "sum": _sum,
    "any": _any,
    "all": _all,
    **dict.fromkeys(("scatter", "scatter_"), _scatter),
    **dict.fromkeys(("scatter_add", "scatter_add_"), _scatter_add),
    **dict.fromkeys(("index_put", "index_put_"), _index_put),
    "where": _where,
    **dict.fromkeys(("masked_fill", "masked_fill_"), _masked_fill),
    **dict.fromkeys(("cat", "stack"), _joined),
    **dict.fromkeys(("bincount", "histc"), _counts),
    **dict.fromkeys(("remainder", "fmod"), _remainder),
    **dict.fromkeys(("floor_divide",), _quotient),
    **dict.fromkeys(("max", "amax"), _largest),
    "add": _arithmetic(1),
    "sub": _arithmetic(-1),
}
"""Operations that give one tensor, by schema name."""


def _dimension(call: Call, index: int, default: int | None) -> int:
    """Size of the dimension named by the argument ``index``, the last one by default."""
    value = call.args[index] if len(call.args) > index else call.kwargs.get("dim", default)
    tensor = call.args[0]
    return tensor.numel() if value is None or not tensor.dim() else tensor.shape[value]


INDICES: dict[str, tuple[int, int, int | None]] = {
    "topk": (1, 2, -1),
    "sort": (1, 1, -1),
    "argsort": (-1, 1, -1),
    "max": (1, 1, 0),
    "min": (1, 1, 0),
    "mode": (1, 1, -1),
    "argmax": (-1, 1, None),
    "argmin": (-1, 1, None),
    "multinomial": (-1, 9, -1),
    "randperm": (-1, 9, None),
}
"""Operations whose result holds indices: which result (-1 the only one), which argument is the dimension, its default."""


def laws_of(name: str, call: Call) -> list[tuple[Tensor, Law]]:
    """Laws of the results of the operation ``name``."""
    if name in INDICES and call.args:
        which, place, default = INDICES[name]
        several = isinstance(call.result, (tuple, list))
        if several == (which >= 0):
            n = int(call.args[0]) if name == "randperm" else _dimension(call, place, default)
            index = call.result[which] if several else call.result
            return [(index, Law((n - 1) / 2, n))]
    rule = RULES.get(name)
    if rule is None or not isinstance(call.result, Tensor):
        return []
    law = rule(call)
    if law is None or law == Law():
        return []
    if call.result.dtype is torch.bool and law.n_values:
        law = replace(law, mean=law.share, n_values=0)
    return [(call.result, law)]


def balanced(mean: float, size: int) -> Tensor:
    """``size`` whole numbers with this mean, as equal as can be: their sum is round(mean x size)."""
    total = round(mean * size)
    steps = torch.arange(size + 1, dtype=torch.float64)
    return torch.floor(steps * total / max(size, 1) + 1e-9).diff().to(torch.int64)
