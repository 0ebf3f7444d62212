from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwise.cli.options import (
    LayoutOptions,
    Training,
    money,
    pause,
    positive_count,
    positive_duration,
    sequence_length,
    size,
    whole_number,
    wishes_of,
)
from gpuwise.errors import InputError
from gpuwise.workload.strategy import NEUTRAL, OPTIONS

PARSERS: tuple[Callable[[str, str], float], ...] = (whole_number, positive_count, positive_duration, money)
text = st.text(max_size=30) | st.text(alphabet="0123456789.eE+-_,kKmMbBtTdhs$ naif", max_size=20)


@pytest.mark.parametrize("parse", PARSERS)
@given(text=text)
def test_any_text_is_a_positive_finite_number_or_refused_with_a_hint(parse: Callable[[str, str], float], text: str) -> None:
    try:
        value = parse(text, "--option")
    except InputError as error:
        assert error.hint and "--option" in error.message
    else:
        assert math.isfinite(value) and value > 0


@given(n=st.integers(1, 10**9))
def test_whole_numbers_are_read_exactly(n: int) -> None:
    assert whole_number(str(n), "--n") == n
    assert whole_number(f"{n:,}", "--n") == n
    assert whole_number(f" {n}_ ".replace("_ ", ""), "--n") == n


def test_thousands_of_tokens_are_binary() -> None:
    assert whole_number("8k", "--seq") == 8192


def test_numbers_as_people_write_them() -> None:
    assert positive_count("15B", "--tokens") == 15e9
    assert positive_duration("3d", "--deadline") == 3 * 86400
    assert [pause(x, "--think") for x in ("0", "0s", "45s")] == [0.0, 0.0, 45.0]
    assert money("$2,000", "--budget") == 2000
    assert money("2.5k", "--budget") == 2500


def test_each_option_of_the_table_can_be_given() -> None:
    asked = {o.name or field for field, o in OPTIONS.items() if o.help}
    assert asked == {f.name for f in fields(LayoutOptions)}
    assert not asked & {f.name for f in fields(Training)}


@pytest.mark.parametrize("field", [field for field, o in OPTIONS.items() if o.help and field != "lora_rank"])
def test_what_is_given_reaches_the_wishes(field: str) -> None:
    about, neutral = OPTIONS[field], getattr(NEUTRAL, field)
    value = about.choices[-1] if about.choices else not neutral if isinstance(neutral, bool) else 4
    text = "attention" if field == "lora_targets" else value
    lora = field == "lora_targets"
    wishes = wishes_of(Training(lora=lora), LayoutOptions(**{about.name or field: text}))
    got = getattr(wishes, field) if hasattr(wishes, field) else wishes.fixed[field]
    assert got == ((value,) if field == "precision" else ("attention",) if field == "lora_targets" else value)


def test_wishes_carry_what_was_said() -> None:
    wishes = wishes_of(Training(), LayoutOptions(precision="bf16, fp8", qlora=True, tp=4, sharding="zero1", chunked_loss=True))
    assert wishes.precision == ("bf16", "fp8")
    assert wishes.quantized_base and wishes.lora_rank == 16
    assert wishes.fixed == {"tp": 4, "sharding": "zero1"}
    assert wishes.fused_loss is True


def test_contradictions_are_refused() -> None:
    with pytest.raises(InputError, match="adapters"):
        wishes_of(Training(), LayoutOptions(lora_rank=8))
    with pytest.raises(InputError, match="precision"):
        wishes_of(Training(), LayoutOptions(precision=","))
    assert wishes_of(Training(), LayoutOptions()).precision == ()


@pytest.mark.parametrize(
    ("parse", "text", "says"),
    [
        (whole_number, "-8", "negative"),
        (positive_count, "-5B", "negative"),
        (positive_count, "1,5B", "not a count"),
        (positive_count, "1e300", "1,000 trillion"),
        (positive_count, "0", "above zero"),
        (positive_count, "1e-300", "too close to zero"),
        (positive_duration, "-3d", "negative"),
        (positive_duration, "1e300d", "hundred years"),
        (money, "-$5", "negative"),
        (money, "$-5", "negative"),
        (money, "1e300", "trillion US dollars"),
        (size, "-40GB", "negative"),
        (whole_number, "1,5", "whole number"),
        (sequence_length, "999999999", "longer than"),
        (sequence_length, "-1", "negative"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_the_reason(parse: Callable[[str, str], float], text: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        parse(text, "--option")
    assert "--option" in caught.value.message and says in str(caught.value) and caught.value.hint


@given(n=st.integers(1, 10**6), digits=st.integers(1, 99))
def test_a_comma_parts_thousands_and_is_no_decimal_point(n: int, digits: int) -> None:
    assert positive_count(f"{n:,}M", "--tokens") == n * 1e6
    with pytest.raises(InputError):
        positive_count(f"{n},{digits}", "--tokens")
