import xml.etree.ElementTree as ET

import numpy as np
import pytest

from gpuwise.cli.answer import text
from gpuwise.cli.areas import columns
from gpuwise.errors import InputError
from gpuwise.predict.memory.timeline import MemoryTimeline, Peak, PhaseSpan, thin
from gpuwise.report.answers.exported import pictures
from gpuwise.report.answers.memory import area_of, timeline_answer, write_timeline
from gpuwise.report.answers.written import body

GIB = 1 << 30


def timeline(rows: int = 5000, oom: int | None = None) -> MemoryTimeline:
    x = np.linspace(0, np.pi, rows)
    values = np.stack((np.full(rows, 2 * GIB), (3 * GIB * np.sin(x)).astype(np.int64)))
    total = values.sum(axis=0)
    row = int(total.argmax())
    peak = Peak(row, int(total[row]), "aten.mm.default", "layers.3", "train.py:31 in step", (("activations <of> layers.3", GIB),))
    phases = (PhaseSpan("forward", 1, rows // 2), PhaseSpan("backward", rows // 2, rows))
    return MemoryTimeline(
        "train.py:<make>",
        ("parameters", "activations"),
        values,
        np.maximum.accumulate(total) + 10**8,
        None,
        phases,
        peak,
        capacity_bytes=6 * GIB,
        oom_row=oom,
    )


def test_the_figure_is_whole_small_and_says_what_it_shows():
    drawing = pictures(body(timeline_answer(timeline())))
    ET.fromstring(drawing)
    for word in ("parameters", "activations", "reserved", "forward", "backward"):
        assert word in drawing
    assert len(drawing) < 200_000
    page = body(timeline_answer(timeline()))
    assert "5 GiB" in page and "aten.mm in layers.3" in page and "of 6 GiB" in page
    assert drawing == pictures(body(timeline_answer(timeline())))


def test_the_page_escapes_names_and_lists_categories():
    html = body(timeline_answer(timeline()))
    assert "train.py:&lt;make&gt;" in html and "<make>" not in html and "&lt;of&gt;" in html
    assert "<script" not in html and "http" not in html.replace("http://www.w3.org", "")


def test_thinning_keeps_the_peak_and_the_ends():
    full = timeline()
    rows, values, reserved = thin(full, 100)
    assert rows[0] == 0 and rows[-1] == full.n_rows - 1 and full.peak.row in rows
    assert values.sum(axis=0).max() == full.peak.requested_bytes and len(rows) <= 103 and reserved.shape == rows.shape
    assert thin(timeline(50))[0].size == 50


def test_files(tmp_path):
    write_timeline(timeline(), tmp_path / "a.svg")
    ET.parse(tmp_path / "a.svg")
    write_timeline(timeline(oom=4000), tmp_path / "a.html")
    assert "runs out of memory" in (tmp_path / "a.html").read_text()
    with pytest.raises(InputError):
        write_timeline(timeline(), tmp_path / "a.png")


@pytest.mark.parametrize("rows", [2, 7, 5000])
@pytest.mark.parametrize("width", [40, 80, 120])
def test_the_sketch_fits_the_terminal(rows, width):
    shown = text(timeline_answer(timeline(rows)), ("step",), width)
    assert max(map(len, shown.splitlines())) <= width
    assert "\x1b" not in shown and "peak" in shown and "█" in shown and "parameters 2 GiB" in shown


def test_every_column_of_the_sketch_is_a_moment_of_the_timeline():
    full = timeline(37)
    shares, reserved = columns(area_of(full), 90)
    assert len(shares) == len(reserved) == 90 and all(len(column) == 2 for column in shares)
    assert {sum(column) for column in shares} <= set(full.total_bytes.astype(float).tolist())
    assert all(most >= sum(column) - 1 for most, column in zip(reserved, shares, strict=True))
