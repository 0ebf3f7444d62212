"""Small captures made by hand, for tests of what reads them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpuwise.workload.capture.captured import Capture, Category, OpFlag, Settings, Signature, StepSpan, TensorSpec
from gpuwise.workload.row_codes import Kind, Phase

WIDTH = {"fp64": 8, "fp32": 4, "fp16": 2, "bf16": 2, "i64": 8, "bool": 1}


def spec(*shape: int, dtype: str = "fp32", last: bool = False) -> TensorSpec:
    """A dense tensor, row-major or channels last."""
    order = [0, *range(2, len(shape)), 1] if last else list(range(len(shape)))
    stride, step = [0] * len(shape), 1
    for d in reversed(order):
        stride[d] = step
        step *= max(shape[d], 1)
    return TensorSpec(tuple(shape), tuple(stride), dtype)


def size(t: TensorSpec) -> float:
    return float(np.prod(t.shape)) * WIDTH[t.dtype]


def op(
    name: str,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    *,
    kind: Kind = Kind.MEMORY,
    flop: float = 0.0,
    kernels: int = 1,
    **attributes: object,
) -> Signature:
    """A signature whose bytes are those of its tensors."""
    return Signature(
        f"aten.{name}.default",
        kind,
        tuple(inputs),
        tuple(outputs),
        tuple(attributes.items()),
        flop,
        sum(map(size, inputs)) if kernels else 0.0,
        sum(map(size, outputs)) if kernels else 0.0,
        kernels,
    )


def matmul(m: int, n: int, k: int, dtype: str = "bf16") -> Signature:
    return op(
        "mm",
        [spec(m, k, dtype=dtype), spec(k, n, dtype=dtype)],
        [spec(m, n, dtype=dtype)],
        kind=Kind.MATMUL,
        flop=2.0 * m * n * k,
    )


def pointwise(n: int, dtype: str = "bf16", name: str = "relu") -> Signature:
    return op(name, [spec(n, dtype=dtype)], [spec(n, dtype=dtype)])


def convolution(
    b: int,
    c_in: int,
    c_out: int,
    side: int,
    kernel: int = 3,
    *,
    groups: int = 1,
    stride: int = 1,
    dtype: str = "fp16",
    last: bool = False,
    backward: bool = False,
    mask: tuple[bool, bool, bool] = (True, True, False),
    transposed: bool = False,
) -> Signature:
    """Same padding; ``side`` is that of the forward's input."""
    out = side * stride if transposed else side // stride
    image, result = spec(b, c_in, side, side, dtype=dtype, last=last), spec(b, c_out, out, out, dtype=dtype, last=last)
    weight = spec(*((c_in, c_out // groups) if transposed else (c_out, c_in // groups)), kernel, kernel, dtype=dtype)
    places = side * side if transposed else out * out
    flop = 2.0 * b * places * float(np.prod(weight.shape))
    common: dict[str, object] = {"stride": (stride, stride), "transposed": transposed, "groups": groups}
    if backward:
        made = [t for t, wanted in zip((image, weight), mask, strict=False) if wanted]
        return op(
            "convolution_backward",
            [result, image, weight],
            made,
            kind=Kind.CONVOLUTION,
            flop=flop * sum(mask[:2]),
            kernels=sum(mask),
            output_mask=mask,
            **common,
        )
    return op("convolution", [image, weight], [result], kind=Kind.CONVOLUTION, flop=flop, **common)


def capture(
    program: Sequence[tuple[Signature, Phase]],
    *,
    settings: Settings | None = None,
    flow: bool = False,
    flags: Sequence[int] = (),
) -> Capture:
    """One step of ``program``. With ``flow`` each operation reads what the one before wrote, and frees it after."""
    signatures = list(dict.fromkeys(s for s, _ in program))
    n = len(program)
    zeros = np.zeros(n, np.int64)
    events = [(i, 1, i) for i in range(n)] + [(i, -1, i + 1) for i in range(n - 1)]
    events.sort(key=lambda e: (e[2], -e[1]))
    ends = np.cumsum([len(s.inputs) for s, _ in program]) if n else zeros
    inputs = [i - 1 if k == 0 and i else n + 8 * i + k for i, (s, _) in enumerate(program) for k in range(len(s.inputs))]
    made = [int(sum(map(size, s.outputs))) for s, _ in program]
    return Capture(
        signatures=tuple(signatures),
        modules=("", "body"),
        module_types=("", "Body"),
        lines=("",),
        op_signature=np.array([signatures.index(s) for s, _ in program], np.int64),
        op_phase=np.array([int(p) for _, p in program], np.int64),
        op_module=zeros + 1,
        op_line=zeros,
        op_stream=zeros,
        op_flags=np.array(flags or [0 if s.n_kernels else int(OpFlag.MICRO) for s, _ in program], np.int64),
        storage_bytes=np.array(made, np.int64),
        storage_category=zeros + int(Category.TEMPORARY),
        storage_op=np.arange(n),
        storage_module=zeros,
        storage_dtype=("fp32",) * n,
        storage_stream=zeros,
        event_storage=np.array([e[0] for e in events], np.int64),
        event_sign=np.array([e[1] for e in events], np.int8),
        event_op=np.array([min(e[2], n - 1) for e in events], np.int64),
        steps=(StepSpan(0, n, 0, len(events)),),
        settings=settings or Settings("2.13.0", (8, 0)),
        op_inputs=np.array(inputs if flow else [], np.int64),
        op_input_end=np.asarray(ends, np.int64) if flow else np.zeros(0, np.int64),
        op_outputs=np.arange(n) if flow else np.zeros(0, np.int64),
        op_output_end=np.arange(1, n + 1) if flow else np.zeros(0, np.int64),
    )
