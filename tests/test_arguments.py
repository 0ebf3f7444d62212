"""Arguments of another type than a signature's are refused with the project's error and a hint."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import gpuwise
from gpuwise.errors import InputError

ANY: Any = gpuwise


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda: ANY.make_plan(model=3), "model is 3, of type int"),
        (lambda: ANY.make_fit("bert-base", ["4090"]), r"on is \['4090'\], of type list"),
        (lambda: ANY.make_fit("bert-base", "4090", {"tokens": 1}), "wishes is .* of type dict"),
        (lambda: ANY.make_fit("bert-base", "4090", ANY.Wishes(seq_len="many")), "wishes.seq_len is 'many'"),
        (lambda: ANY.make_fit("bert-base", "4090", ANY.Wishes(precision="bf16")), "wishes.precision is 'bf16'"),
        (lambda: ANY.make_capacity("llama-3.1-8b", "h100", users="many"), "users is 'many', of type str"),
        (lambda: ANY.find_cluster(b"h100"), "of type bytes"),
        (lambda: ANY.estimate("bert-base", "4090", None, seq_len=3), "strategy is None"),
        (lambda: ANY.lab.occupancy("9.0", block_threads="many"), "block_threads is 'many'"),
    ],
)
def test_a_wrong_type_is_refused_by_name(ask: Callable[[], object], said: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        ask()
    assert caught.value.hint and caught.value.hint.startswith("give ")


def test_what_counts_as_a_number_is_taken() -> None:
    numpy = pytest.importorskip("numpy")
    wishes = ANY.Wishes(seq_len=numpy.int64(512), tokens=10**6, precision=["bf16"])
    assert ANY.make_fit("bert-base", "4090", wishes).estimate.fits
