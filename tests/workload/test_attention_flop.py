from hypothesis import given
from hypothesis import strategies as st

from gpuwise.workload.attention_flop import attention_pairs

lengths = st.integers(1, 40)


@given(lengths, lengths, st.integers(0, 50))
def test_causal_pairs_equal_a_count_by_hand(q_len: int, kv_len: int, window: int) -> None:
    q = min(q_len, kv_len)
    by_hand = sum(
        1
        for row in range(kv_len - q, kv_len)
        for column in range(kv_len)
        if column <= row and (window == 0 or row - column < window)
    )
    assert attention_pairs(q_len, kv_len, causal=True, window=window) == by_hand


@given(lengths, st.integers(1, 50))
def test_a_window_never_adds_pairs(length: int, window: int) -> None:
    for causal in (True, False):
        assert attention_pairs(length, length, causal=causal, window=window) <= attention_pairs(length, length, causal=causal)
