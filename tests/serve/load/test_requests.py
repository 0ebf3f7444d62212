"""Requests as columns: rates, prompts that share tokens, and their blocks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwise.errors import InputError
from gpuwise.serve.load.requests import NO_PARENT, Requests, Texts, texts_of_hashes


def requests(arrival: list[float], prompt: list[int], output: list[int] | None = None, **more: object) -> Requests:
    n = len(prompt)
    answers = np.array(output or [1] * n, np.int64)
    return Requests(np.array(arrival, float), np.array(prompt, np.int64), answers, **more)  # type: ignore[arg-type]


def test_scaled_keeps_the_order_and_reaches_the_rate() -> None:
    load = requests([1.0, 2.0, 5.0], [10, 20, 30])
    assert load.mean_rate == pytest.approx(0.5)
    faster = load.scaled(8.0)
    assert faster.mean_rate == pytest.approx(8.0)
    assert faster.arrival_s.tolist() == pytest.approx([0.0, 0.0625, 0.25])


def test_requests_that_all_arrive_at_once_cannot_be_scaled() -> None:
    with pytest.raises(InputError, match="all arrive at once"):
        requests([0.0, 0.0], [10, 20]).scaled(1.0)


def test_cut_to_a_context_leaves_every_request_within_it() -> None:
    load = requests([0, 1, 2], [100, 5000, 3], [10, 10, 9000])
    assert load.longer_than(4096).tolist() == [1, 2]
    cut = load.cut_to(4096)
    assert not len(cut.longer_than(4096))
    assert cut.prompt_tokens.tolist() == [100, 4086, 3]
    assert cut.output_tokens.tolist() == [10, 10, 2048]


def test_two_prompts_of_one_text_share_the_shorter_one() -> None:
    load = requests([0, 1, 2], [100, 300, 200], text=np.array([0, 0, 0]))
    assert load.reused_tokens().tolist() == [0, 100, 200]


def test_texts_that_begin_like_another_share_that_beginning_through_it() -> None:
    texts = Texts(np.array([NO_PARENT, 0, 1, 0]), np.array([0, 64, 48, 80]))
    load = requests([0, 1, 2, 3], [100, 100, 100, 100], text=np.arange(4), texts=texts)
    assert load.reused_tokens().tolist() == [0, 64, 48, 80]
    assert load.reused_share == pytest.approx(192 / 400)


def test_blocks_of_a_prompt_are_named_by_the_text_that_first_had_them() -> None:
    texts = Texts(np.array([NO_PARENT, 0]), np.array([0, 40]))
    blocks = requests([0, 1], [64, 64], text=np.arange(2), texts=texts).prefixes(16)
    first, second = blocks.of(0), blocks.of(1)
    assert len(first) == len(second) == 4
    assert (first[:2] == second[:2]).all()
    assert not set(first[2:].tolist()) & set(second[2:].tolist())


@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=6), min_size=1, max_size=12))
def test_hashes_of_a_trace_give_back_what_a_set_of_blocks_would_have_hit(words: list[list[int]]) -> None:
    """Chained hashes: a block's hash stands for all before it, so a prefix of words stands for them."""
    ids: dict[tuple[int, ...], int] = {}
    hashes = [[ids.setdefault(tuple(w[: k + 1]), len(ids)) for k in range(len(w))] for w in words]
    text, texts = texts_of_hashes(hashes, 32)
    load = requests([float(i) for i in range(len(words))], [32 * len(w) for w in words], text=text, texts=texts)
    seen: set[int] = set()
    expected: list[int] = []
    for mine in hashes:
        expected.append(32 * sum(key in seen for key in mine))
        seen |= set(mine)
    assert load.reused_tokens().tolist() == expected
    blocks = load.prefixes(32)
    found: set[int] = set()
    by_block: list[int] = []
    for i in range(len(words)):
        mine = blocks.of(i).tolist()
        by_block.append(32 * sum(key in found for key in mine))
        found |= set(mine)
    assert by_block == expected
