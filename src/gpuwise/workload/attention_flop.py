"""How many (query, key) pairs an attention looks at: the one place where causal halves and windows are counted."""

from __future__ import annotations


def attention_pairs(q_len: int, kv_len: int, *, causal: bool, window: int = 0) -> float:
    """Visible pairs per head and sequence.

    Causal with q_len == kv_len == S: S (S + 1) / 2. A window of w tokens (the query's own included) removes the
    triangle beyond it. With q_len < kv_len the queries are the last ones (chunked prefill, decode).
    Without causality a window reaches w - 1 tokens to either side.

    >>> attention_pairs(4, 4, causal=True)
    10.0
    >>> attention_pairs(4, 4, causal=True, window=2)
    7.0
    """
    if not causal:
        return float(q_len) * (min(kv_len, 2 * window - 1) if window > 0 else kv_len)
    q = min(q_len, kv_len)
    first_visible = kv_len - q + 1
    pairs = q * (first_visible + kv_len) / 2.0
    if 0 < window < kv_len:
        least, most = max(first_visible - window, 1), kv_len - window
        pairs -= (most - least + 1) * (least + most) / 2.0
    return pairs
