"""How many (query, key) pairs an attention looks at: the one place where causal halves and windows are counted."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

F64 = NDArray[np.float64]


def attention_pairs(q_len: ArrayLike, kv_len: ArrayLike, *, causal: bool, window: ArrayLike = 0) -> F64:
    """Visible pairs per head and sequence, for arrays or numbers.

    Causal with q_len == kv_len == S: S (S + 1) / 2. A window of w tokens (the query's own included) removes the
    triangle beyond it. With q_len < kv_len the queries are the last ones (chunked prefill, decode).
    Without causality a query sees ``min(kv_len, window)`` keys.

    >>> float(attention_pairs(4, 4, causal=True))
    10.0
    >>> float(attention_pairs(4, 4, causal=True, window=2))
    7.0
    """
    q, kv, w = (np.asarray(x, dtype=np.float64) for x in (q_len, kv_len, window))
    limit = np.where(w > 0, w, np.inf)
    if not causal:
        return q * np.minimum(kv, limit)
    return _sum_of_min(np.maximum(kv - q + 1.0, 1.0), kv, limit)


def _sum_of_min(first: F64, last: F64, limit: F64) -> F64:
    """Sum of min(v, limit) over the integers v from ``first`` to ``last``."""
    below = np.minimum(np.maximum(np.minimum(last, limit) - first + 1.0, 0.0), last - first + 1.0)
    small = below * first + below * (below - 1.0) / 2.0
    n_above = last - first + 1.0 - below
    return small + np.where(n_above > 0, n_above * np.where(np.isfinite(limit), limit, 0.0), 0.0)
