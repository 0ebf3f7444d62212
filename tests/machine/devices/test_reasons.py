"""Words for event reasons."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpuwise.machine.devices.readings import EventReason
from gpuwise.machine.devices.reasons import REASON_WORDS, event_reason_words


def test_every_known_bit_has_words_of_its_own() -> None:
    assert set(REASON_WORDS) == set(EventReason)
    assert len(set(REASON_WORDS.values())) == len(EventReason)


@given(st.integers(0, 2**64 - 1))
def test_no_bit_is_dropped(bits: int) -> None:
    words = event_reason_words(bits)
    assert len(words) == bits.bit_count()
    known = sum(bits & bit == bit for bit in EventReason)
    assert sum(w.startswith("unknown (0x") for w in words) == bits.bit_count() - known


def test_nothing_and_not_told_say_nothing() -> None:
    assert event_reason_words(0) == event_reason_words(None) == ()
    assert event_reason_words(0x824) == ("power limit", "heat (driver)", "unknown (0x800)")
