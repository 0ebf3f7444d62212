"""Cuts into pipeline stages against trying every cut, and units read from captures made by hand."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.workload.layer_captures import Layer, layer_capture, seconds_of

from gpuwise.errors import InputError, LayoutError, UnpredictableError
from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.plan.step.pipeline_cut import CutUnit, cut_pipeline, cut_units

_unit = st.builds(CutUnit, st.just("u"), st.integers(1, 20).map(float), st.integers(0, 30), st.integers(0, 30), st.integers(0, 9))


def _cuts(n: int, p: int) -> list[tuple[int, ...]]:
    return [(0, *inner, n) for inner in combinations(range(1, n), p - 1)]


def _memory(units: list[CutUnit], edges: tuple[int, ...], m: int) -> list[float]:
    p = len(edges) - 1
    return [sum(u.state_bytes + min(p - k, m) * u.saved_bytes for u in units[a:b]) for k, (a, b) in enumerate(pairwise(edges))]


@given(st.lists(_unit, min_size=2, max_size=8), st.integers(1, 4), st.integers(1, 8), st.integers(20, 900))
def test_the_cut_is_the_best_of_all_cuts(units: list[CutUnit], p: int, m: int, limit: int) -> None:
    if p > len(units):
        with pytest.raises(LayoutError):
            cut_pipeline(tuple(units), p, micro_batches=m, memory_bytes=limit)
        return
    fitting = [
        (max(sum(u.time_s for u in units[a:b]) for a, b in pairwise(edges)), max(_memory(units, edges, m)))
        for edges in _cuts(len(units), p)
        if max(_memory(units, edges, m)) <= limit
    ]
    if not fitting:
        with pytest.raises(UnpredictableError, match="no cut"):
            cut_pipeline(tuple(units), p, micro_batches=m, memory_bytes=limit)
        return
    found = cut_pipeline(tuple(units), p, micro_batches=m, memory_bytes=limit)
    assert found.slowest_s == pytest.approx(min(fitting)[0])
    assert found.peak_bytes <= limit
    assert [s.first for s in found.stages] + [found.stages[-1].end] == sorted({0, len(units), *(s.first for s in found.stages)})
    assert sum(s.time_s for s in found.stages) == pytest.approx(sum(u.time_s for u in units))
    total = sum(s.time_s for s in found.stages)
    assert found.bubble_s == pytest.approx(total - found.slowest_s if p > 1 else 0.0)
    assert found.step_s == pytest.approx(m * found.slowest_s + found.bubble_s)


@given(st.lists(_unit, min_size=4, max_size=9), st.integers(2, 4))
def test_more_memory_never_slows(units: list[CutUnit], p: int) -> None:
    loose = cut_pipeline(tuple(units), p, micro_batches=4, memory_bytes=1e9)
    tight = cut_pipeline(tuple(units), p, micro_batches=4, memory_bytes=max(loose.peak_bytes, 1))
    assert tight.slowest_s == pytest.approx(loose.slowest_s)


def test_the_first_stage_gets_fewer_layers_when_memory_binds() -> None:
    units = tuple(CutUnit(f"layers.{i}", 1.0, 10, 100, 5) for i in range(12))
    free = cut_pipeline(units, 4, micro_batches=8, memory_bytes=1e9)
    assert [s.end - s.first for s in free.stages] == [3, 3, 3, 3]
    assert [s.in_flight for s in free.stages] == [4, 3, 2, 1]
    tight = cut_pipeline(units, 4, micro_batches=8, memory_bytes=900)
    sizes = [s.end - s.first for s in tight.stages]
    assert sizes[0] < sizes[-1]
    assert tight.slowest_s > free.slowest_s


def test_interleaving_shrinks_the_bubble() -> None:
    units = tuple(CutUnit(f"layers.{i}", 1.0, 1, 1, 5) for i in range(16))
    plain = cut_pipeline(units, 4, micro_batches=8, memory_bytes=1e9)
    twice = cut_pipeline(units, 4, micro_batches=8, memory_bytes=1e9, schedule="interleaved", virtual_stages=2)
    assert len(twice.stages) == 8
    assert twice.bubble_s == pytest.approx(plain.bubble_s / 2)


def test_sends_cost_time_on_a_system() -> None:
    units = tuple(CutUnit(f"layers.{i}", 1e-3, 1, 1, 2**26) for i in range(8))
    system = find_cluster("16x H100 SXM").system
    near = cut_pipeline(units, 2, micro_batches=4, memory_bytes=1e9, system=system, ranks_apart=1)
    far = cut_pipeline(units, 2, micro_batches=4, memory_bytes=1e9, system=system, ranks_apart=8)
    assert 4e-3 < near.slowest_s < far.slowest_s


def test_units_of_a_capture_add_up() -> None:
    layers = [
        Layer("stem", 5, 2, 0, ((4, 4),)),
        *(Layer(f"layers.{i}", 20 + i, 3, 4, ((3, 2),)) for i in range(4)),
        Layer("head", 1, 1),
    ]
    capture = layer_capture(layers)
    op_s = seconds_of(capture)
    units = cut_units(capture, op_s)
    assert [u.path for u in units] == [layer.path for layer in layers]
    assert [u.saved_bytes for u in units] == [layer.saved + layer.out for layer in layers]
    assert [u.output_bytes for u in units] == [layer.out for layer in layers]
    assert [u.time_s for u in units] == pytest.approx([3.0] * 6)
    assert [u.state_bytes for u in units] == [16 * 16, *[16 * 6] * 4, 0]


def test_refusals() -> None:
    units = (CutUnit("a", 1.0, 1, 1, 1),) * 4
    for bad in ({"micro_batches": 0}, {"memory_bytes": 0}, {"memory_bytes": np.inf}, {"schedule": "zigzag"}):
        with pytest.raises(InputError):
            cut_pipeline(units, 2, **{"micro_batches": 1, "memory_bytes": 10, **bad})
