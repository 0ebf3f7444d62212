from __future__ import annotations

import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from matplotlib import rcParams
from matplotlib.figure import Figure

from gpuwise.pick.compare.comparison import Comparison
from gpuwise.report.compare_figures import comparison_drawings, radar_axes
from gpuwise.report.figures import (
    BAD,
    DARK,
    GOOD,
    INK,
    MUTED,
    PAPER,
    SERIES,
    dark_style,
    draw,
    legend_below,
    margins,
    stand_alone,
)

SVG = "{http://www.w3.org/2000/svg}"


def _paint(figure: Figure) -> None:
    ax = figure.add_subplot()
    ax.plot([1, 2, 3], [1, 4, 9], label='squares & "more" <b>')
    margins(figure, bottom=0.5 + legend_below(figure, ax))


def test_text_stays_text_and_is_escaped() -> None:
    drawing = draw("d", 'A < B & "C"', "what it shows", 3.0, _paint, "1, 4 and 9")
    root = ET.fromstring(drawing.svg)
    words = " ".join(t for e in root.iter(f"{SVG}text") for t in e.itertext())
    assert 'squares & "more" <b>' in words
    assert root.find(f"{SVG}title").text == 'A < B & "C"'  # type: ignore[union-attr]
    assert root.find(f"{SVG}desc").text == "what it shows 1, 4 and 9"  # type: ignore[union-attr]
    assert root.get("role") == "img" and root.get("aria-labelledby") == "d-title d-desc"


def test_the_same_values_give_the_same_bytes_in_another_process() -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\nfrom test_figures import _paint\n"
        "from gpuwise.report.figures import draw\nsys.stdout.write(draw('d', 't', 'c', 3.0, _paint).svg)\n"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    run = [sys.executable, "-c", code, str(Path(__file__).parent)]
    there = subprocess.run(run, capture_output=True, text=True, check=True, timeout=300).stdout
    here = draw("d", "t", "c", 3.0, _paint).svg
    assert here == there and not re.search(r"20\d\d-\d\d-\d\dT", here)


def test_drawing_leaves_no_trace_in_matplotlib() -> None:
    before = dict(rcParams)
    draw("d", "t", "c", 3.0, _paint)
    assert dict(rcParams) == before


def test_ids_are_the_figures_own() -> None:
    a, b = (ET.fromstring(draw(k, "t", "c", 3.0, _paint).svg) for k in ("a", "b"))
    ids = [[e.get("id") for e in root.iter() if e.get("id")] for root in (a, b)]
    assert len(ids[0]) == len(set(ids[0])) and not set(ids[0]) & set(ids[1])
    used = {v.lstrip("#") for e in a.iter() for k, v in e.attrib.items() if k.endswith("href")}
    used |= {m for e in a.iter() for v in e.attrib.values() for m in re.findall(r"url\(#([^)]+)\)", v)}
    assert used and used <= set(ids[0])


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


def test_every_colour_that_is_drawn_has_a_dark_one(comparison: Comparison) -> None:
    for drawing in comparison_drawings(comparison):
        used = set(re.findall(r"(?:fill|stroke): (#[0-9a-f]{6})", drawing.svg))
        assert used and used <= set(DARK), f"{drawing.key}: {used - set(DARK)}"
    assert all(light in dark_style() and dark in dark_style() for light, dark in DARK.items())


def test_a_file_of_figures_is_one_svg(comparison: Comparison) -> None:
    drawings = comparison_drawings(comparison)
    root = ET.fromstring(stand_alone(drawings).encode())
    inner = [e for e in root if e.tag == f"{SVG}svg"]
    assert len(inner) == len(drawings) and root.get("viewBox")
    tops = [float(e.get("y", "nan")) for e in inner]
    assert tops == sorted(tops) and tops[0] == 0 and len(set(tops)) == len(tops)


def test_the_radar_is_a_share_of_the_best(comparison: Comparison) -> None:
    axes = radar_axes(comparison)
    assert len(axes) >= 5
    for label, row, values in axes:
        assert max(values) == pytest.approx(1.0) and all(0 < v <= 1 for v in values), label
        best = values.index(max(values))
        assert not row.best or best in row.best, label


def test_figures_say_their_values(comparison: Comparison, plain_comparison: Comparison) -> None:
    keys = [d.key for d in comparison_drawings(comparison)]
    assert keys == ["radar", "speed", "money", "rooflines", "roofline-0", "roofline-1", "roofline-2"]
    assert [d.key for d in comparison_drawings(plain_comparison)] == ["radar", "reached", "rooflines"]
    speed = comparison_drawings(comparison)[1]
    assert "A100 SXM4 80GB" in speed.svg and "tokens/s" in speed.description
