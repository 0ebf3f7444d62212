import xml.etree.ElementTree as ET

import numpy as np
import pytest

from gpuwise.cli.timeline_sketch import columns, show_timeline
from gpuwise.errors import InputError
from gpuwise.predict.memory.timeline import MemoryTimeline, Peak, PhaseSpan
from gpuwise.report.memory_timeline import thin, timeline_drawing, timeline_page, write_timeline

pytest.importorskip("matplotlib")
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
    drawing = timeline_drawing(timeline())
    ET.fromstring(drawing.svg)
    for word in ("parameters", "activations", "reserved", "forward", "backward", "most in use", "capacity 6 GiB"):
        assert word.replace("6 GiB", "") in drawing.svg
    assert "5 GiB" in drawing.title and "aten.mm in layers.3" in drawing.caption
    assert len(drawing.svg) < 200_000
    assert drawing.svg == timeline_drawing(timeline()).svg


def test_the_page_escapes_names_and_lists_categories():
    html = timeline_page(timeline())
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
    import io

    from rich.console import Console

    out = io.StringIO()
    show_timeline(Console(file=out, width=width, highlight=False, emoji=False, markup=False), timeline(rows))
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    text = out.getvalue()
    assert "\x1b" not in text and "peak" in text and "█" in text and "parameters 2 GiB" in text


def test_every_column_of_the_sketch_is_a_moment_of_the_timeline():
    full = timeline(37)
    shares, reserved, ends = columns(full, 90)
    assert shares.shape == (2, 90) and ends[-1] == 36
    assert set(shares.sum(axis=0).tolist()) <= set(full.total_bytes.astype(float).tolist())
    assert (reserved >= shares.sum(axis=0) - 1).all()
