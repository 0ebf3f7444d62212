"""Kernels that cannot take their sizes, on devices with memory to spare."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gpuwise.facts.hardware.naming import find_accelerator
from gpuwise.predict.memory.capture import captured_memory
from gpuwise.predict.memory.kernel_limits import MOST_BLOCKS, kernel_failures
from gpuwise.workload.capture.captured import Capture, Category, Settings, Signature, StepSpan, TensorSpec
from gpuwise.workload.eager.tape import spec
from gpuwise.workload.row_codes import Kind

CARD = find_accelerator("H200-SXM")


def capture_of(*signatures: Signature, torch: str = "2.7.0") -> Capture:
    n = len(signatures)
    zero = np.zeros(n, np.int64)
    none = np.zeros(0, np.int64)
    return Capture(
        signatures=signatures,
        modules=("",),
        module_types=("",),
        lines=("",),
        op_signature=np.arange(n),
        op_phase=zero,
        op_module=zero,
        op_line=zero,
        op_stream=zero,
        op_flags=zero,
        storage_bytes=np.array([512]),
        storage_category=np.array([int(Category.INPUT)]),
        storage_op=np.array([-1]),
        storage_module=np.zeros(1, np.int64),
        storage_dtype=("fp16",),
        storage_stream=np.zeros(1, np.int64),
        event_storage=np.zeros(1, np.int64),
        event_sign=np.ones(1, np.int8),
        event_op=np.full(1, -1),
        steps=(StepSpan(0, n, 1, 1),),
        settings=Settings(torch, (9, 0)),
        name="probe",
        op_inputs=none,
        op_input_end=zero,
        op_outputs=none,
        op_output_end=zero,
    )


def attention(batch: int, heads: int, kind: str = "efficient", *, logsums: int = 64) -> Signature:
    q, sums = spec((batch, heads, 64, 32), "fp16"), spec((batch, heads, logsums), "fp32")
    name = f"aten._scaled_dot_product_{kind}_attention.default"
    return Signature(name, Kind.ATTENTION, (q, q, q), (q, sums), (), 1.0, 1.0, 1.0, 1)


def depthwise(batch: int, channels: int, side: int, *, size: int = 3, stride: int = 2, last: bool = False) -> Signature:
    shape = (batch, channels, side, side)
    x = TensorSpec(shape, (channels * side * side, 1, channels * side, channels), "fp16") if last else spec(shape, "fp16")
    w, y = spec((channels, 1, size, size), "fp16"), spec((batch, channels, side // stride, side // stride), "fp16")
    said = (("groups", channels), ("stride", (stride, stride)), ("dilation", (1, 1)), ("transposed", False))
    return Signature("aten.convolution.default", Kind.CONVOLUTION, (x, w), (y,), said, 1.0, 1.0, 1.0, 1)


def reasons(*signatures: Signature, torch: str = "2.7.0") -> list[str]:
    return [f.reason for f in kernel_failures(capture_of(*signatures, torch=torch), CARD)]


@pytest.mark.parametrize("kind", ["efficient", "flash"])
def test_sequences_and_heads_are_dimensions_of_a_grid(kind: str) -> None:
    assert reasons(attention(MOST_BLOCKS, 8, kind)) == []
    (reason,) = reasons(attention(MOST_BLOCKS + 1, 8, kind))
    assert "65,536 is above the 65,535" in reason
    (reason,) = reasons(attention(1, MOST_BLOCKS + 1, kind))
    assert "head" in reason


def test_a_later_torch_cuts_the_batch_where_nothing_is_differentiated() -> None:
    assert reasons(attention(MOST_BLOCKS + 1, 8, logsums=0), torch="2.8.0") == []
    assert reasons(attention(MOST_BLOCKS + 1, 8, logsums=0), torch="2.7.1") != []
    assert reasons(attention(MOST_BLOCKS + 1, 8, logsums=64), torch="2.8.0") != []


def test_torchs_depthwise_kernels_count_elements_in_32_bits() -> None:
    # 128 channels of 112 x 112 at stride 2 run in torch's kernels; with 512 channels cuDNN takes them
    assert reasons(depthwise(1337, 128, 112)) == []
    assert "32 bits" in reasons(depthwise(1338, 128, 112))[0]
    assert reasons(depthwise(1338, 512, 112)) == []
    assert "32 bits" in reasons(depthwise(1338, 128, 112, last=True), torch="2.9.1")[0]
    assert reasons(depthwise(1338, 128, 112, last=True), torch="2.4.0") == []
    assert reasons(depthwise(1338, 128, 112, stride=1)) == []
    assert "32 bits" in reasons(depthwise(1338, 128, 112, size=7, stride=1))[0]
    assert reasons(depthwise(1338, 128, 112), torch="2.9.1") == []


def test_average_pooling_counts_its_outputs_in_32_bits() -> None:
    def pooled(batch: int) -> Signature:
        x, y = spec((batch, 96, 128, 128), "fp16"), spec((batch, 96, 64, 64), "fp16")
        return Signature("aten.avg_pool2d.default", Kind.MEMORY, (x,), (y,), (), 1.0, 1.0, 1.0, 1)

    assert reasons(pooled(5461)) == []
    assert reasons(pooled(5462)) == ["average pooling counts elements in 32 bits, and a tensor has 1.00 times 2^31"]


def test_the_first_operation_of_each_reason_is_named() -> None:
    fine, large = attention(4, 8), attention(70000, 8)
    found = kernel_failures(capture_of(fine, large), CARD)
    assert [f.op for f in found] == [1]
    twice = replace(capture_of(fine, large), op_signature=np.array([1, 1]))
    assert [f.op for f in kernel_failures(twice, CARD)] == [0]


def test_the_verdict_says_that_it_fails_with_memory_to_spare() -> None:
    fails = captured_memory(capture_of(attention(70000, 8)), CARD)
    assert (fails.verdict, fails.fits, len(fails.failures)) == ("fails", True, 1)
    fine = captured_memory(capture_of(attention(700, 8)), CARD)
    assert (fine.verdict, fine.failures) == ("fits", ())


def pieces(*sizes: tuple[int, ...]) -> Capture:
    """A step whose first operation bears ``sizes[0]``, whose second frees every other of them and whose third bears
    ``sizes[1]``."""
    first, last = sizes
    kept = list(range(len(first)))
    gone = kept[1::2]
    late = list(range(len(first), len(first) + len(last)))
    whole = capture_of(*([attention(4, 8)] * 3))
    storage = np.array([*kept, *gone, *late])
    sign = np.array([1] * len(kept) + [-1] * len(gone) + [1] * len(late), np.int8)
    n = len(first) + len(last)
    return replace(
        whole,
        storage_bytes=np.array([*first, *last]),
        storage_category=np.full(n, int(Category.TEMPORARY)),
        storage_op=np.zeros(n, np.int64),
        storage_module=np.zeros(n, np.int64),
        storage_dtype=("fp16",) * n,
        storage_stream=np.zeros(n, np.int64),
        event_storage=storage,
        event_sign=sign,
        event_op=np.array([0] * len(kept) + [1] * len(gone) + [2] * len(late)),
        steps=(StepSpan(0, 3, 0, len(storage)),),
    )


GIB = 2**30


@pytest.mark.parametrize(
    ("sizes", "verdict"),
    [
        (((2 * GIB,), (GIB,)), "fits"),
        # 3 GiB freed in one block are not 4 GiB: it fits when they are given back
        (((6 * GIB, 3 * GIB), (4 * GIB,)), "borderline"),
        (((6 * GIB, 3 * GIB), (8 * GIB,)), "does not fit"),
    ],
)
def test_what_needs_cached_memory_back_is_borderline(sizes: tuple[tuple[int, ...], ...], verdict: str) -> None:
    found = captured_memory(pieces(*sizes), find_accelerator("RTX 3060 12GB"))
    assert found.verdict == verdict
    assert found.fits == (verdict != "does not fit")
    assert (found.retries > 0) == (verdict == "borderline") or not found.fits
