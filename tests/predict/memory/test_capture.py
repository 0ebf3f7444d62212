"""Three numbers of a captured step: laws that hold for any capture, and refusals."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwise.errors import FieldError, InputError
from gpuwise.facts.hardware.naming import find_accelerator
from gpuwise.predict.memory.capture import captured_memory, place_of
from gpuwise.predict.memory.device import usable_bytes
from gpuwise.units import GIB, MIB
from gpuwise.workload.capture.captured import Capture, Category, Settings, Signature, StepSpan, TensorSpec
from gpuwise.workload.row_codes import Kind, Phase

CARD = find_accelerator("A100 40GB SXM")


def signature(op: str, n: int) -> Signature:
    spec = TensorSpec((n, 8), (8, 1), "fp32")
    return Signature(op, Kind.MEMORY, (spec, TensorSpec((8, 8), (8, 1), "fp32")), (spec,), (), 0.0, 0.0, 0.0, 1)


def chain(layers: int, activation_bytes: int, *, weight_bytes: int = 4 << 20, steps: int = 2) -> Capture:
    """Weights, then in each step ``layers`` activations that the backward frees in reverse; optimizer state after step 0."""
    sizes, categories, made = [weight_bytes], [Category.PARAMETER], [-1]
    events: list[tuple[int, int, int]] = [(0, 1, -1)]
    op, spans, phases = 0, [], []
    for step in range(steps):
        first_op, first_event = op, len(events)
        live = []
        for _ in range(layers):
            sizes.append(activation_bytes)
            categories.append(Category.ACTIVATION)
            made.append(op)
            live.append(len(sizes) - 1)
            events.append((live[-1], 1, op))
            phases.append(Phase.FORWARD)
            op += 1
        for storage in reversed(live):
            events.append((storage, -1, op))
            phases.append(Phase.BACKWARD)
            op += 1
        if step == 0:
            sizes.append(weight_bytes)
            categories.append(Category.OPTIMIZER)
            made.append(op)
            events.append((len(sizes) - 1, 1, op))
        phases.append(Phase.OPTIMIZER)
        op += 1
        spans.append(StepSpan(first_op, op, first_event, len(events)))
    ints = lambda values: np.array(values, dtype=np.int64)  # noqa: E731
    return Capture(
        signatures=(signature("aten.mm.default", 16), signature("aten.add.Tensor", 16)),
        modules=("", "layer"),
        module_types=("", "Linear"),
        lines=("", "train.py:3 in step"),
        op_signature=ints([0] * op),
        op_phase=ints(phases),
        op_module=ints([1] * op),
        op_line=ints([1] * op),
        op_stream=ints([0] * op),
        op_flags=ints([0] * op),
        storage_bytes=ints(sizes),
        storage_category=ints(categories),
        storage_op=ints(made),
        storage_module=ints([0] * len(sizes)),
        storage_dtype=("fp32",) * len(sizes),
        storage_stream=ints([0] * len(sizes)),
        event_storage=ints([e[0] for e in events]),
        event_sign=np.array([e[1] for e in events], dtype=np.int8),
        event_op=ints([e[2] for e in events]),
        steps=tuple(spans),
        settings=Settings("2.6.0", (8, 0)),
    )


@settings(deadline=None, max_examples=2 * settings().max_examples)
@given(st.integers(1, 12), st.integers(1, 1 << 27), st.sampled_from(["worst", "first", "steady"]))
def test_allocated_reserved_process_in_order(layers: int, size: int, step: str) -> None:
    capture = chain(layers, size)
    memory = captured_memory(capture, CARD, step=step)  # type: ignore[arg-type]
    assert 0 < memory.allocated.expected <= memory.reserved.expected <= memory.process.expected
    assert memory.process.expected == pytest.approx(memory.reserved.expected + memory.context.expected)
    for estimate in (memory.allocated, memory.reserved, memory.process):
        assert estimate.low <= estimate.expected <= estimate.high
    requested = sum(memory.by_category.values())
    assert requested <= memory.allocated.expected
    assert max(memory.first.allocated_bytes, memory.steady.allocated_bytes) <= memory.run.peaks().allocated_bytes
    assert 0 < memory.fit_probability < 1


@settings(deadline=None, max_examples=settings().max_examples)
@given(st.integers(1, 8), st.integers(1, 1 << 24), st.integers(1, 8))
def test_a_larger_batch_never_needs_less(layers: int, size: int, factor: int) -> None:
    small = captured_memory(chain(layers, size), CARD)
    large = captured_memory(chain(layers, size * factor), CARD)
    assert large.allocated.expected >= small.allocated.expected
    # blocks that grow past 1 MiB leave the small pool's segments for one of 20 MiB
    assert large.reserved.expected >= small.reserved.expected - 20 * 2**20


def test_the_second_step_holds_the_optimizers_state() -> None:
    memory = captured_memory(chain(4, 16 << 20), CARD)
    assert memory.steady.requested_bytes == memory.first.requested_bytes + 4 * MIB
    assert memory.by_category[Category.OPTIMIZER] == 4 * MIB
    assert memory.by_category[Category.ACTIVATION] == 64 * MIB


def test_the_peak_is_named_and_workspaces_are_their_own() -> None:
    memory = captured_memory(chain(4, 16 << 20), CARD)
    assert memory.peak.phase == "forward" and memory.peak.line == "train.py:3 in step" and memory.peak.module == "layer"
    # cuBLAS's workspace stays from the first product on
    assert memory.by_category[Category.WORKSPACE] >= 8519680
    assert memory.largest[0].size_bytes == 16 << 20 and memory.largest[0].category is Category.ACTIVATION
    sizes = [held.size_bytes for held in memory.largest]
    assert sizes == sorted(sizes, reverse=True)


def test_where_memory_runs_out() -> None:
    capture = chain(8, 1 << 30)
    memory = captured_memory(capture, CARD, capacity_bytes=6 * GIB)
    assert not memory.fits and memory.oom is not None and memory.fit_probability <= 0.5
    assert memory.limited is not None and memory.limited.is_overfull and memory.verdict == "does not fit"
    assert memory.oom.step == 0 and memory.oom.requested_bytes == 1 << 30 and memory.oom.place.phase == "forward"
    roomy = captured_memory(capture, CARD)
    assert roomy.fits and roomy.oom is None and roomy.fit_probability >= 0.5


def test_capacity_decides_exactly_at_what_is_reserved() -> None:
    capture = chain(6, 64 << 20)
    free = captured_memory(capture, CARD)
    need = free.run.peak_reserved_bytes + free.context.expected
    assert captured_memory(capture, CARD, capacity_bytes=need + 1).fits
    tight = captured_memory(capture, CARD, capacity_bytes=need - 80 * MIB)
    assert tight.fits == (tight.oom is None) and tight.limited is not None
    assert not captured_memory(capture, CARD, capacity_bytes=need - 80 * MIB).fits


@pytest.mark.parametrize("capacity", [0.0, -1.0, math.nan, math.inf])
def test_absurd_capacities_are_refused(capacity: float) -> None:
    with pytest.raises(InputError):
        captured_memory(chain(1, 1024), CARD, capacity_bytes=capacity)


def test_bad_input_is_refused() -> None:
    with pytest.raises(InputError):
        captured_memory(chain(1, 1024), CARD, step="last")  # type: ignore[arg-type]
    with pytest.raises(InputError):
        captured_memory(replace(chain(1, 1024), steps=()), CARD)
    with pytest.raises(FieldError):
        captured_memory(chain(1, 1024), CARD, allocator_conf="no_such_key:1")
    with pytest.raises(InputError):
        captured_memory(chain(1, 1024), CARD, torch_version="new")


def test_expandable_segments_reserve_no_more_than_needed() -> None:
    capture = chain(5, 30 << 20)
    plain = captured_memory(capture, CARD)
    growing = captured_memory(capture, CARD, allocator_conf="expandable_segments:True")
    assert growing.allocated.expected == pytest.approx(plain.allocated.expected, rel=0.02)
    assert growing.reserved.expected >= growing.allocated.expected


def test_a_card_nobody_measured_is_an_extrapolation() -> None:
    memory = captured_memory(chain(2, 1024), find_accelerator("MI300X"))
    assert memory.context.basis == "extrapolated" and memory.process.basis == "extrapolated"
    assert memory.context.low == 0.0


def test_communicators_are_counted() -> None:
    one = captured_memory(chain(2, 1024), CARD, group_sizes=())
    many = captured_memory(chain(2, 1024), CARD, group_sizes=(4,))
    assert many.process.expected - one.process.expected == pytest.approx(688 * MIB)


def test_place_before_the_first_operation() -> None:
    assert place_of(chain(1, 1024), -1).phase == "set-up"
    assert usable_bytes(CARD) < CARD.memory_bytes
