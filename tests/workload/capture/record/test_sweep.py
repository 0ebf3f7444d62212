"""Steps made from captures at other sizes: exact where sizes are polynomial, refused where they are not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwise.errors import UnpredictableError
from gpuwise.workload.capture.captured import Capture, Category, Settings, Signature, StepSpan, TensorSpec
from gpuwise.workload.capture.record.sweep import differences, sweep_of
from gpuwise.workload.row_codes import Kind, Phase


def _tensor(*shape: int) -> TensorSpec:
    stride = tuple(int(np.prod(shape[i + 1 :])) for i in range(len(shape)))
    return TensorSpec(shape, stride, "fp32")


def _signature(op: str, kind: Kind, inputs: list[TensorSpec], output: TensorSpec, flop: float, **more: object) -> Signature:
    size = [4.0 * float(np.prod(t.shape)) for t in (*inputs, output)]
    return Signature(op, kind, tuple(inputs), (output,), tuple(more.items()), flop, sum(size[:-1]), size[-1], 1)


def step(batch: int, seq: int = 8, width: int = 16, heads: int = 2) -> Capture:
    """A linear layer and unfused scores of ``batch`` sequences, with a weight that stays."""
    rows = batch * seq
    mm = _signature(
        "aten.mm.default",
        Kind.MATMUL,
        [_tensor(rows, width), _tensor(width, width)],
        _tensor(rows, width),
        2.0 * rows * width * width,
    )
    scores = _signature(
        "aten.bmm.default",
        Kind.MATMUL,
        [_tensor(batch * heads, seq, width), _tensor(batch * heads, width, seq)],
        _tensor(batch * heads, seq, seq),
        2.0 * batch * heads * seq * seq * width,
    )
    view = replace(
        _signature("aten.view.default", Kind.HOST, [_tensor(rows, width)], _tensor(batch, seq, width), 0.0),
        attributes=(("size", (batch, seq, width)), ("flat", True), ("scale", 1.0 / batch)),
        n_kernels=0,
    )
    weight, hidden, score = 4 * width * width, 4 * rows * width, 4 * batch * heads * seq * seq
    one = np.ones(4, dtype=np.int64)
    return Capture(
        signatures=(mm, view, scores),
        modules=("", "fc"),
        module_types=("", "Linear"),
        lines=("", "train.py:3 in step"),
        op_signature=np.array([0, 1, 2, 0]),
        op_phase=np.array([0, 0, 0, 2]) * int(Phase.FORWARD),
        op_module=one,
        op_line=one,
        op_stream=0 * one,
        op_flags=0 * one,
        storage_bytes=np.array([weight, hidden, score]),
        storage_category=np.array([Category.PARAMETER, Category.ACTIVATION, Category.TEMPORARY]),
        storage_op=np.array([-1, 0, 2]),
        storage_module=np.ones(3, dtype=np.int64),
        storage_dtype=("fp32",) * 3,
        storage_stream=np.zeros(3, dtype=np.int64),
        event_storage=np.array([0, 1, 2, 2, 1]),
        event_sign=np.array([1, 1, 1, -1, -1], dtype=np.int8),
        event_op=np.array([-1, 0, 2, 3, 3]),
        steps=(StepSpan(0, 4, 1, 5),),
        settings=Settings("2.13.0", (8, 0)),
        batch=batch,
    )


@settings(deadline=None, max_examples=2 * settings().max_examples)
@given(st.sets(st.integers(2, 40), min_size=2, max_size=4), st.integers(2, 4000))
def test_any_batch_is_what_a_capture_gives(points: set[int], batch: int) -> None:
    made = sweep_of({p: step(p) for p in points}).at(batch)
    real = step(batch)
    assert differences(made, real) == ()
    assert made.batch == batch and made.flop() == real.flop() and made.peak_bytes() == real.peak_bytes()
    assert made.signatures[made.op_signature[1]].attribute("size") == (batch, 8, 16)


@settings(deadline=None, max_examples=2 * settings().max_examples)
@given(st.sets(st.integers(2, 64), min_size=3, max_size=4), st.integers(2, 5000))
def test_written_out_scores_grow_with_the_square_of_the_sequence(points: set[int], seq: int) -> None:
    sweep = sweep_of({p: step(2, seq=p) for p in points}, "seq")
    assert differences(sweep.at(seq), step(2, seq=seq)) == ()


def test_a_line_does_not_pass_for_a_parabola() -> None:
    linear = sweep_of({p: step(2, seq=p) for p in (4, 8, 16)}, "seq", degree=1)
    told = differences(linear.at(64), step(2, seq=64))
    assert any("bmm" in t for t in told) and any("peak" in t for t in told)
    assert differences(linear.refined().at(64), step(2, seq=64)) == ()


def test_a_captured_size_is_the_capture_itself() -> None:
    at_four = step(4)
    assert sweep_of({2: step(2), 4: at_four}).at(4) is at_four


def test_pieces_follow_the_captures_around_a_size() -> None:
    """Padding from batch 8 on: each side follows its own two captures."""

    def padded(batch: int) -> Capture:
        plain = step(batch)
        return replace(plain, storage_bytes=plain.storage_bytes + (4096 if batch >= 8 else 0))

    sweep = sweep_of({p: padded(p) for p in (2, 4, 8, 16)})
    assert differences(sweep.at(3), padded(3)) == () and differences(sweep.at(12), padded(12)) == ()
    assert differences(sweep.at(64), padded(64)) == ()


def test_another_program_is_refused() -> None:
    short = step(2)
    longer = replace(short, op_signature=np.array([0, 1, 2, 0, 0]))
    with pytest.raises(UnpredictableError, match="4 operations at one size and 5 at another"):
        sweep_of({2: short, 4: longer}).at(8)
    kernel = replace(step(4), signatures=(replace(step(4).signatures[0], op="aten.addmm.default"), *step(4).signatures[1:]))
    with pytest.raises(UnpredictableError, match=r"is aten\.addmm"):
        sweep_of({2: short, 4: kernel}).at(8)
    kept = replace(step(4), event_op=np.array([-1, 0, 2, 3, 2]))
    with pytest.raises(UnpredictableError, match="live longer"):
        sweep_of({2: short, 4: kept}).at(8)


def test_half_a_byte_is_refused() -> None:
    def halves(batch: int) -> Capture:
        return replace(step(batch), storage_bytes=step(batch).storage_bytes + np.array([0, 0, batch // 2]))

    with pytest.raises(UnpredictableError, match="not a whole number"):
        sweep_of({4: halves(4), 8: halves(8)}).at(7)


def test_too_few_captures_are_our_bug() -> None:
    with pytest.raises(ValueError, match="degree 1"):
        sweep_of({2: step(2)})
