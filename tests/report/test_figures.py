from __future__ import annotations

import pytest

from gpuwise.report.answers.drawings import style
from gpuwise.report.colours import BAD, DARK, GOOD, INK, MUTED, PAPER, SERIES


def _luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    r, g, b = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def _contrast(one: str, other: str) -> float:
    high, low = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("colour", [INK, MUTED, GOOD, BAD, *SERIES])
def test_colours_stand_out_on_light_and_on_dark(colour: str) -> None:
    """WCAG 2: 4.5 to 1 for text, 3 to 1 for what is drawn."""
    least = 4.5 if colour in (INK, MUTED) else 3.0
    assert _contrast(colour, PAPER) >= least and _contrast(DARK[colour], DARK[PAPER]) >= least


def test_every_colour_that_is_drawn_has_a_dark_one() -> None:
    light, dark = style().split("@media")
    for colour in (INK, MUTED, GOOD, BAD, *SERIES):
        assert colour in light and DARK[colour] in dark
