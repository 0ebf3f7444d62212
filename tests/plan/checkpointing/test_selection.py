"""Checkpointing per module on networks made by hand, against every selection and against recipes."""

from __future__ import annotations

from collections.abc import Collection
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.workload.layer_captures import Layer, layer_capture, seconds_of

from gpuwise.errors import InputError, UnpredictableError
from gpuwise.plan.checkpointing.selection import (
    checkpoint_choices,
    select_checkpoints,
)
from gpuwise.workload.capture.captured import Capture
from gpuwise.workload.capture.record.blocks import ModuleTree, blocks, passes, runs
from gpuwise.workload.capture.record.recompute import recomputed

MB = 2**20
_sizes = st.integers(1, 30)


def _u_net(widths: tuple[int, ...] = (8, 4, 2, 1, 2, 4, 8)) -> Capture:
    """Wide at both ends: saved bytes fall with the resolution, time with less than that."""
    return layer_capture(
        [Layer(f"blocks.{i}", 40 * w * MB, 4 * w * MB, w * MB, ((64, 64),), seconds=1 + w / 8) for i, w in enumerate(widths)]
    )


def _recompute_s(capture: Capture, paths: Collection[str], op_s: np.ndarray) -> float:
    """Seconds that the modules ``paths`` take in the forward of a step."""
    tree = ModuleTree.of(capture)
    segments = [s for one in passes(capture) for s in runs(capture, tree, one.first_op, one.backward_op, tuple(paths)) if s.path]
    return sum(float(op_s[s.first_op : s.end_op].sum()) for s in segments)


def _best_uniform(capture: Capture, op_s: np.ndarray, target: int) -> float:
    fitting = [
        _recompute_s(capture, paths, op_s)
        for every in range(1, 8)
        if recomputed(capture, paths := blocks(capture)[::every]).peak_bytes() <= target
    ]
    return min(fitting, default=np.inf)


@settings(max_examples=settings().max_examples)
@given(st.lists(st.tuples(_sizes, _sizes, _sizes, st.integers(1, 9)), min_size=1, max_size=5), st.floats(0.3, 1.0))
def test_no_selection_is_cheaper(sizes: list[tuple[int, int, int, int]], share: float) -> None:
    layers = [Layer(f"layers.{i}", s, o, t, ((2,),), float(w)) for i, (s, o, t, w) in enumerate(sizes)]
    capture = layer_capture(layers)
    op_s = seconds_of(capture)
    paths = [layer.path for layer in layers]
    every = [
        (recomputed(capture, chosen).peak_bytes(), _recompute_s(capture, chosen, op_s))
        for n in range(len(paths) + 1)
        for chosen in combinations(paths, n)
    ]
    target = int(share * capture.peak_bytes())
    ok = [seconds for peak, seconds in every if peak <= target]
    if not ok:
        with pytest.raises(UnpredictableError, match="at least"):
            select_checkpoints(capture, target, op_s)
        return
    found = select_checkpoints(capture, target, op_s)
    assert found.peak_bytes <= target
    assert found.recompute_s == pytest.approx(min(ok))
    assert found.slowdown == pytest.approx(1 + found.recompute_s / op_s[capture.steady.first_op : capture.steady.end_op].sum())


@pytest.mark.parametrize("widths", [(8, 4, 2, 1, 2, 4, 8), (2, 3, 8, 1, 6, 2, 5), (2, 9, 1, 7, 3, 12, 1)])
def test_beats_uniform_checkpointing_where_blocks_differ(widths: tuple[int, ...]) -> None:
    capture = _u_net(widths)
    op_s = seconds_of(capture)
    wins = 0
    for share in (0.9, 0.8, 0.7, 0.6, 0.5):
        target = int(share * capture.peak_bytes())
        uniform = _best_uniform(capture, op_s, target)
        try:
            mine = select_checkpoints(capture, target, op_s)
        except UnpredictableError:
            assert uniform == np.inf
            continue
        assert mine.recompute_s <= uniform
        wins += mine.recompute_s < uniform
    assert wins >= 3


def test_every_pass_of_an_accumulated_step_recomputes() -> None:
    layers = [Layer(f"layers.{i}", 50, 5, 1, ((2,),)) for i in range(4)]
    once, thrice = layer_capture(layers), layer_capture(layers, n_passes=3)
    chosen = ("layers.1", "layers.2")
    assert _recompute_s(thrice, chosen, seconds_of(thrice)) == pytest.approx(3 * _recompute_s(once, chosen, seconds_of(once)))
    assert recomputed(thrice, chosen).peak_bytes() < thrice.peak_bytes()


def test_refusals() -> None:
    capture = _u_net()
    op_s = seconds_of(capture)
    with pytest.raises(InputError, match="times for"):
        checkpoint_choices(capture, op_s[1:])
    with pytest.raises(InputError, match="negative or not a number"):
        checkpoint_choices(capture, np.where(np.arange(op_s.size) == 3, np.nan, op_s))
    with pytest.raises(InputError, match="target"):
        select_checkpoints(capture, 0, op_s)
    with pytest.raises(InputError, match="no module"):
        recomputed(capture, ["blocks.99"])
