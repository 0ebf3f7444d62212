import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwise import units
from gpuwise.errors import InputError


@pytest.mark.parametrize(
    ("text", "expected"),
    [("80GB", 80e9), ("80 GiB", 80 * 2**30), ("512 b", 512), ("1.5TiB", 1.5 * 2**40), ("2e3 kb", 2e6)],
)
def test_bytes_know_gb_from_gib(text: str, expected: float) -> None:
    assert units.parse_bytes(text) == expected


@pytest.mark.parametrize(("text", "expected"), [("15B", 15e9), ("1.5T", 1.5e12), ("300M", 3e8), ("2e9", 2e9), ("1_000", 1000)])
def test_counts(text: str, expected: float) -> None:
    assert units.parse_count(text) == expected


@pytest.mark.parametrize(("text", "expected"), [("12h", 43200), ("3d", 259200), ("90min", 5400), ("30 s", 30)])
def test_durations(text: str, expected: float) -> None:
    assert units.parse_duration(text) == expected


@given(st.text(max_size=12))
def test_parsers_give_a_finite_number_or_an_input_error(text: str) -> None:
    for parse in (units.parse_bytes, units.parse_count, units.parse_duration):
        try:
            value = parse(text)
        except InputError as error:
            assert error.hint
        else:
            assert math.isfinite(value) and value >= 0


@pytest.mark.parametrize("text", ["nan", "inf", "-3GB", "80 bananas", "", "1e999B"])
def test_nonsense_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        units.parse_count(text)


@given(st.floats(min_value=1e-7, max_value=3e10))
def test_formatted_durations_stay_within_half_a_percent(seconds: float) -> None:
    number, unit = units.format_duration(seconds).split()
    scale = {"us": 1e-6, "ms": 1e-3, "s": 1, "min": 60, "h": 3600, "days": 86400, "years": 365.25 * 86400}[unit]
    assert float(number) * scale == pytest.approx(seconds, rel=5.1e-3)


def test_formats() -> None:
    assert units.format_bytes(80 * 2**30) == "80.0 GiB"
    assert units.format_count(8_030_261_248) == "8.03B"
    assert [units.format_number(x) for x in (0.06941, 27.12, 999.4, 999.6, 31_523)] == [
        "0.0694",
        "27.1",
        "999",
        "1,000",
        "31,500",
    ]
    assert units.format_rate(3.35e12, "B/s") == "3.35 TB/s"
    assert units.format_usd(1204) == "$1,204"
    assert units.format_duration(999 * units.DAY_S) == "999 days" and units.format_duration(1001 * units.DAY_S) == "2.74 years"
    assert units.format_duration(455_000 * 365.25 * units.DAY_S) == "455,000 years"


@pytest.mark.parametrize(
    ("n", "text"),
    [(1, "1st"), (2, "2nd"), (3, "3rd"), (4, "4th"), (11, "11th"), (12, "12th"), (113, "113th"), (1003, "1,003rd")],
)
def test_ordinals(n: int, text: str) -> None:
    assert units.ordinal(n) == text
