"""The roofline of a captured step, its figure and its table."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console
from tests.predict.captures import capture, convolution, matmul, op, pointwise, spec

from gpuwise.cli.step.time_view import show_step_time, step_time_json, time_words
from gpuwise.facts.hardware.naming import find_accelerator
from gpuwise.predict.step.bounds import Bound, pattern_of_path
from gpuwise.predict.step.capture_time import captured_time
from gpuwise.predict.step.roofline import step_roofline
from gpuwise.report.roofline_step import roofline_drawing
from gpuwise.workload.step import Kind, Phase

F, B = Phase.FORWARD, Phase.BACKWARD
H100 = find_accelerator("H100 SXM 80GB")
BIG = matmul(8192, 8192, 8192)
PROGRAM = [(BIG, F), (matmul(16, 4096, 4096), F), (convolution(32, 64, 64, 56, last=True), F), (pointwise(2**26), B)]


def both():
    taken = capture(PROGRAM)
    time = captured_time(taken, H100)
    return time, step_roofline(taken, time, H100)


def test_points_are_what_the_operations_reach():
    time, line = both()
    assert len(line.points) == 3
    assert sum(p.share for p in line.points) + line.without_flop_share == pytest.approx(1.0)
    assert line.without_flop_share == pytest.approx(time.device_s[3] / time.device_total_s)
    big = next(p for p in line.points if p.shapes == "8192x8192 8192x8192")
    assert big.intensity == pytest.approx(BIG.flop / (3 * 2 * 8192**2))
    assert big.flop_per_s == pytest.approx(BIG.flop / time.device_s[0])
    assert 0.5 < big.reached < 1.0
    assert big.bound == Bound.TENSOR_CORE
    thin = next(p for p in line.points if p.shapes.startswith("16x"))
    assert thin.bound in (Bound.BANDWIDTH, Bound.LAUNCH, Bound.HOST)
    assert thin.attainable_flop_per_s == pytest.approx(thin.intensity * line.bytes_per_s)
    assert [p.share for p in line.points] == sorted((p.share for p in line.points), reverse=True)


def test_no_products_no_points():
    taken = capture([(pointwise(2**20), F)])
    line = step_roofline(taken, captured_time(taken, H100), H100)
    assert line.points == ()
    assert line.without_flop_share == 1.0
    assert "100 % of the time" in roofline_drawing(line).caption


def test_the_figure_says_in_words_what_it_shows():
    _, line = both()
    drawing = roofline_drawing(line, "My step")
    assert drawing.svg.startswith("<svg")
    assert "My step" in drawing.svg
    assert "bf16" in drawing.svg
    assert "mathdefault" not in drawing.svg
    assert "TFLOP/s" in drawing.description
    assert drawing.svg == roofline_drawing(line, "My step").svg


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_keeps_its_figures_whole(width):
    time, _ = both()
    out = io.StringIO()
    show_step_time(time, Console(file=out, width=width, no_color=True))
    text = out.getvalue()
    assert max(map(len, text.splitlines())) <= width
    rows = [line for line in text.splitlines() if re.match(r" *(mm|convolution|relu) ", line)]
    assert len(rows) == 4
    for row in rows:
        assert re.search(r"\d (us|ms) +\d+\.\d % ", row), row
    assert "…" not in text.split("bound by")[0]
    assert "tensor cores" in text
    assert ("8192x8192" in text) == (width >= 100)


def test_words_and_json_agree():
    time, _ = both()
    document = step_time_json(time)
    assert document["step_time_s"]["expected"] == time.step_time_s.expected
    assert sum(o["share"] for o in document["top"]) == pytest.approx(1.0)
    assert f"{document['kernels']} kernels" in time_words(time)
    assert sum(document["by_bound_s"].values()) == pytest.approx(time.device_total_s)


def test_the_ten_that_cost_most_are_ten():
    program = [(op("gelu", [spec(2**14 + 64 * i)], [spec(2**14 + 64 * i)], kind=Kind.MEMORY), F) for i in range(25)]
    assert len(captured_time(capture(program), H100).top) == 10
    assert pattern_of_path("model.layers.12.mlp.up_proj") == "model.layers.*.mlp.up_proj"
