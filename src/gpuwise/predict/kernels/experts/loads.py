"""How many tokens the experts of one rank get: a few representative loads and how many experts have each."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuwise.errors import InputError

F64 = NDArray[np.float64]
Distribution = Literal["balanced", "power_law"]

ALPHA = 1.2
"""Exponent of the power law that the measured imbalanced routing draws expert loads from (aiconfigurator
collector)."""
_QUANTILES = 16


class Loads(NamedTuple):
    """``tokens`` [Q, R] rows that an expert gets and ``experts`` [Q, R] how many experts get that many (on
    average)."""

    tokens: F64
    experts: F64

    @property
    def routed(self) -> F64:
        """Rows over all experts of the rank [R]."""
        return (self.tokens * self.experts).sum(axis=0)

    @property
    def active(self) -> F64:
        """Experts with any row [R]."""
        return self.experts.sum(axis=0)


def even(experts: F64, tokens: F64) -> Loads:
    """``tokens`` [R] spread as evenly as whole rows allow over ``experts`` [R]."""
    active = np.minimum(experts, np.maximum(tokens, 1.0))
    low = np.floor(tokens / active)
    high = np.maximum(tokens - low * active, 0.0)
    return Loads(np.stack([np.maximum(low, 1.0), low + 1.0]), np.stack([active - high, high]))


def balanced(tokens: F64, top_k: F64, n_experts: F64, ep: F64, reachable: F64) -> Loads:
    """Loads of the first of ``ep`` ranks when every expert is chosen equally often [R].

    ``reachable`` [R]: share of the experts that a batch's tokens can choose (group-limited routing,
    DeepSeek-V3: ties in a balanced load leave half the groups); they sit on the first ranks.
    """
    local = n_experts / ep
    within = np.minimum(local, n_experts * reachable)
    share = within / (n_experts * reachable)
    return even(within, np.maximum(np.ceil(tokens * top_k * share - 1e-9), 1.0))


def power_law(tokens: F64, top_k: F64, n_experts: F64, ep: F64) -> Loads:
    """Loads of the busiest of ``ep`` ranks when expert loads follow a power law of exponent :data:`ALPHA`
    [R].

    Loads are drawn between 1 and 0.8 tokens (0.01 and 2 where there are fewer choices than experts), scaled
    to the number of choices and rounded; a token chooses an expert once, so that what an expert would get beyond the
    tokens goes to the least loaded. The busiest rank holds the most loaded expert, its others are an average sample.
    """
    local = n_experts / ep
    few = tokens * top_k <= n_experts
    low = np.where(few, 0.01, 1.0)
    high = np.where(few, 2.0, np.maximum(0.8 * tokens, 1.0 + 1e-9))
    power = 1.0 - ALPHA
    top = 0.5 / n_experts
    u = np.concatenate([((np.arange(_QUANTILES) + 0.5) / _QUANTILES)[:, None] * (1.0 - 2.0 * top), 1.0 - top[None]])
    drawn = ((high**power - low**power) * u + low**power) ** (1.0 / power)
    weight = np.concatenate(
        [
            np.broadcast_to((n_experts - 1.0) / _QUANTILES, (_QUANTILES, *tokens.shape)),
            np.ones((1, *tokens.shape)),
        ]
    )
    loads = drawn * (tokens * top_k / (drawn * weight).sum(axis=0))
    loads = _filled(np.minimum(loads, tokens), weight, (np.maximum(loads - tokens, 0.0) * weight).sum(axis=0))
    here = np.concatenate(
        [
            np.broadcast_to((local - 1.0) / _QUANTILES, (_QUANTILES, *tokens.shape)),
            np.ones((1, *tokens.shape)),
        ]
    )
    rounded = np.rint(loads)
    rounded[-1] = np.maximum(rounded[-1], 1.0)
    return Loads(np.maximum(rounded, 1.0), here * (rounded >= 1.0) + here * (rounded < 1.0) * 1e-9)


def _filled(loads: F64, weight: F64, more: F64) -> F64:
    """``loads`` [Q, R], ascending, of ``weight`` [Q, R] experts each, with ``more`` [R] rows given to the least loaded until
    they are level."""
    level = (np.cumsum(loads * weight, axis=0) + more) / np.cumsum(weight, axis=0)
    # the first experts whose level stays below the next one's load; else all
    after = np.concatenate([loads[1:], np.full_like(loads[:1], np.inf)])
    last = np.argmax(level <= after, axis=0)
    reached = np.take_along_axis(level, last[None], axis=0)
    return np.where(more > 0, np.maximum(loads, reached), loads)


def loads_of(distribution: Distribution, tokens: F64, top_k: F64, n_experts: F64, ep: F64, reachable: F64) -> Loads:
    """Load distribution by name. Raises InputError for an unknown one."""
    if distribution == "balanced":
        return balanced(tokens, top_k, n_experts, ep, reachable)
    if distribution == "power_law":
        return power_law(tokens, top_k, n_experts, ep)
    raise InputError(f"unknown distribution {distribution!r}", hint="balanced or power_law")
