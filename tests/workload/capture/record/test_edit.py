"""Edits of a capture keep its laws: every birth before its death, ranges that still mean the same steps."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.workload.layer_captures import Layer, layer_capture

from gpuwise.errors import InputError
from gpuwise.workload.capture.captured import Capture, Category, Signature
from gpuwise.workload.capture.record.blocks import ModuleTree, blocks, passes, units
from gpuwise.workload.capture.record.edit import Editor, lifetimes
from gpuwise.workload.capture.record.recompute import outermost, recomputed
from gpuwise.workload.row_codes import Kind, Phase

LAYERS = [Layer("stem", 5, 2), *(Layer(f"layers.{i}", 20 + i, 3, 4, ((3, 2),)) for i in range(4)), Layer("head", 1, 1, 9)]
OP = Signature("test.extra", Kind.COLLECTIVE, (), (), (), 0.0, 0.0, 0.0, 1)


def _lawful(capture: Capture) -> None:
    assert np.all(np.diff(capture.event_op) >= 0)
    birth, death = lifetimes(capture)
    assert np.all(birth < death)
    assert np.bincount(capture.event_storage[capture.event_sign > 0], minlength=len(birth)).max() == 1
    assert np.all(capture.live_bytes() >= 0)
    columns = (capture.op_signature, capture.op_phase, capture.op_module, capture.op_line, capture.op_stream, capture.op_flags)
    assert len({len(c) for c in columns}) == 1
    assert capture.steps[-1].end_op == len(capture.op_phase)
    assert capture.steps[-1].end_event == len(capture.event_op)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30), st.integers(1, 99)), max_size=6))
def test_operations_and_storages_put_in_stay_where_they_were_put(spots: list[tuple[int, int, int]]) -> None:
    old = layer_capture(LAYERS, n_steps=1)
    n = len(old.op_phase)
    edit = Editor(old)
    for a, b, size in spots:
        first, last = sorted((min(a, n), min(b, n)))
        handle = edit.op(first, OP, Phase.FORWARD)
        s = edit.storage(size, Category.COMMUNICATION, "fp32", op=first)
        edit.born(s, first, handle)
        edit.freed(s, last)
    new = edit.build()
    _lawful(new)
    assert len(new.op_phase) == n + len(spots)
    extra = new.op_signature == len(new.signatures) - 1 if spots else np.zeros(n, bool)
    assert np.array_equal(new.op_signature[~extra], old.op_signature)
    for op in np.flatnonzero(extra):
        assert np.any((new.event_op == op) & (new.event_sign > 0))
    assert new.peak_bytes() >= old.peak_bytes()


def test_nothing_changed_is_nothing_changed() -> None:
    old = layer_capture(LAYERS)
    new = Editor(old).build()
    assert np.array_equal(new.live_bytes(), old.live_bytes())
    assert new.steps == old.steps
    assert np.array_equal(new.event_op, old.event_op)


def test_resizing_changes_the_bytes_of_every_moment() -> None:
    old = layer_capture(LAYERS)
    edit = Editor(old)
    everything = np.arange(len(old.storage_bytes))
    edit.resize(everything, old.storage_bytes * 2)
    assert np.array_equal(edit.build().live_bytes(), 2 * old.live_bytes())
    with pytest.raises(InputError):
        edit.resize(everything, old.storage_bytes - 10**9)


@given(st.sets(st.sampled_from(["stem", "head", *(f"layers.{i}" for i in range(4))])), st.integers(1, 3))
def test_checkpointing_keeps_the_laws(chosen: set[str], n_passes: int) -> None:
    old = layer_capture(LAYERS, n_passes=n_passes)
    new = recomputed(old, chosen)
    _lawful(new)
    again = int((new.op_phase == Phase.RECOMPUTE).sum())
    assert again == 3 * len(chosen) * n_passes * len(old.steps)
    assert new.flop() - old.flop() == pytest.approx(3e12 * len(chosen) * n_passes)
    live, was = new.live_bytes(), old.live_bytes()
    assert live[-1] == was[-1]


def test_blocks_units_and_passes() -> None:
    capture = layer_capture(LAYERS, n_passes=2)
    assert blocks(capture) == tuple(f"layers.{i}" for i in range(4))
    assert units(capture) == ("stem", *blocks(capture), "head")
    two = passes(capture)
    assert len(two) == 2
    assert two[0].end_op == two[1].first_op
    assert all(p.backward_op - p.first_op == 3 * len(LAYERS) for p in two)
    tree = ModuleTree.of(capture)
    assert tree.under("layers") == ("layers", *(path for b in blocks(capture) for path in (b, f"{b}.inner")))
    assert outermost(["a.b", "a", "ab"]) == ("a", "ab")
