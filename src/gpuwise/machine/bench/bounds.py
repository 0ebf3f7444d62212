"""Maximum error of a computed product, by format. A result outside is wrong, not merely inexact.

For C = A B with inputs exact in their format, accumulated in any order with unit roundoff ``u`` over ``k`` terms and
rounded once to the output's format with ``v`` (Higham, Accuracy and Stability of Numerical Algorithms, 3.1 and 3.5)::

    |C - AB| <= ((1 + u)^k - 1) |A| |B| (1 + v) + v |AB|

Tensor cores truncate where others round, which doubles ``u`` (Fasi, Higham, Mikaitis, Pranesh, Numerical behavior of
NVIDIA tensor cores, PeerJ CS 2021). TF32 first rounds both inputs to 11 significant bits.

If ``k u`` is near 1 the bound is useless: for fp8 a matrix of zeros would pass. The measured operands have random signs, and a
sum of such terms with root of squares ``r`` never exceeds ``SIGMAS r`` on its way (Hoeffding, Probability inequalities for
sums of bounded random variables, 1963), so one rounding of it is at most ``u SIGMAS r`` instead of ``u |A||B|``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rounding:
    """Unit roundoffs: of the inputs as the unit takes them (0: exact), of its accumulator, of the output."""

    inputs: float
    accumulate: float
    output: float
    terms: int = 1
    """Terms of the sum that are added before the accumulator is rounded, as far as known."""


ROUNDINGS: Mapping[str, Rounding] = {
    "fp64": Rounding(0.0, 2.0**-52, 2.0**-53),
    "fp32": Rounding(0.0, 2.0**-23, 2.0**-24),
    "tf32": Rounding(2.0**-11, 2.0**-22, 2.0**-24),
    "fp16": Rounding(0.0, 2.0**-22, 2.0**-11),
    "bf16": Rounding(0.0, 2.0**-22, 2.0**-8),
    # Hopper keeps about 14 bits while it accumulates fp8 (DeepSeek-V3 technical report, 3.3.2); the output is bf16
    # and adds 32 products at a time (PTX ISA, wgmma and mma: k of the 8-bit shapes)
    "fp8": Rounding(0.0, 2.0**-13, 2.0**-8, 32),
    "int8": Rounding(0.0, 0.0, 0.0),
}


def product_bound(dtype: str, k: int, magnitude: float, value: float) -> float:
    """The largest |C - AB| of an element whose |A||B| is ``magnitude`` and whose AB is ``value``; ``k`` terms."""
    u = ROUNDINGS[dtype]
    growth = math.expm1(k * math.log1p(u.accumulate) + 2.0 * math.log1p(u.inputs))
    return growth * magnitude * (1.0 + u.output) + u.output * abs(value)


SIGMAS = 8.0
"""A sum of random signs is beyond it with 2 exp(-SIGMAS^2 / 2): 3e-14."""


def random_growth(dtype: str, k: int) -> float:
    """Maximum |C - AB| of an element, relative to the root of the sum of its ``k`` squared terms, before C is rounded.

    For operands with random signs. Roundings of the accumulator may all go one way (it is truncated while its sign stays);
    those of single terms and of inputs have the terms' signs, and add up like random ones.
    """
    u = ROUNDINGS[dtype]
    steps = k / u.terms
    single = math.sqrt(k) * SIGMAS if u.terms > 1 else 0.0
    return SIGMAS * ((steps + single) * u.accumulate + 2.0 * u.inputs * (1.0 + u.inputs))


def attention_bound(dtype: str, head_dim: int, keys: int, largest_score: float, weighted: float, value: float) -> float:
    """The largest error of an element of softmax(q k^T / sqrt d) v.

    ``largest_score`` is max |q||k| / sqrt d (magnitudes), ``weighted`` the sum of p |v| and ``value`` the true element.
    Scores are off by the product's bound, which moves each probability by that factor twice (numerator and sum);
    probabilities are rounded to the input's format before they meet v, and the sum over ``keys`` accumulates.
    """
    u = ROUNDINGS[dtype]
    of_score = math.expm1((head_dim + 4) * math.log1p(u.accumulate) + 2.0 * math.log1p(u.inputs)) * largest_score
    relative = math.expm1(2.0 * of_score + (keys + 8) * math.log1p(u.accumulate)) + 2.0 * u.output
    return relative * weighted + u.output * abs(value)
