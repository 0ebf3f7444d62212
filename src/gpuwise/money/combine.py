"""Sums and products of estimates, by how their parts move together.

An interval is the central 80 %. Parts that come from the same cause (shares of the same run time) move
together: their ends add. Independent parts add by the squares of their half-widths, above and below apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from gpuwise.predict.estimate import Basis, Estimate, weakest


def exactly(value: float, basis: Basis = "specified") -> Estimate:
    """A number without spread."""
    return Estimate(value, value, value, basis)


def sum_together(parts: Sequence[Estimate]) -> Estimate:
    """The sum of parts that are perfectly correlated."""
    return Estimate(
        sum(p.low for p in parts),
        sum(p.expected for p in parts),
        sum(p.high for p in parts),
        _basis(parts),
    )


def sum_independent(parts: Sequence[Estimate]) -> Estimate:
    """The sum of parts that are independent."""
    expected = sum(p.expected for p in parts)
    below = math.sqrt(sum((p.expected - p.low) ** 2 for p in parts))
    above = math.sqrt(sum((p.high - p.expected) ** 2 for p in parts))
    return Estimate(max(expected - below, 0.0), expected, expected + above, _basis(parts))


def product(factors: Sequence[Estimate]) -> Estimate:
    """The product of independent positive factors: squares of the logarithms of their ends add, above and
    below apart. A factor whose low end is zero takes the product's low end to zero."""
    expected = math.prod([f.expected for f in factors])
    basis = _basis(factors)
    if expected == 0:
        return Estimate(0.0, 0.0, 0.0, basis)
    above = math.sqrt(sum([math.log(f.high / f.expected) ** 2 for f in factors]))
    if min([f.low for f in factors]) <= 0:
        return Estimate(0.0, expected, expected * math.exp(above), basis)
    below = math.sqrt(sum([math.log(f.expected / f.low) ** 2 for f in factors]))
    return Estimate(expected * math.exp(-below), expected, expected * math.exp(above), basis)


def _basis(parts: Sequence[Estimate]) -> Basis:
    bases: list[Basis] = [p.basis for p in parts]
    return weakest(*bases)
