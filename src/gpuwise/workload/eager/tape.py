"""A tape of PyTorch operations without PyTorch: shapes and formats go in, the operations of an eager step come out.

Each operation writes the signature that a capture of the same call has (same FLOP, bytes and kernels, by the same
functions), and leaves a node that writes its backward: :meth:`Tape.backward` walks the nodes in reverse, adds gradients that
meet, and casts as autograd does. :meth:`Tape.capture` hands the step over in the form of a captured one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from gpuwise.workload.capture.captured import Capture, Category, OpFlag, Settings, Signature, StepSpan, TensorSpec
from gpuwise.workload.capture.ops.flop import RULES, flop_of
from gpuwise.workload.capture.ops.traffic import bytes_of, kernels_of
from gpuwise.workload.row_codes import Kind, Phase

Shape = tuple[int, ...]
WIDEST = ("fp64", "fp32", "tf32", "fp16", "bf16")
"""Formats that a sum or product of two promotes to, widest first."""
MICRO = int(OpFlag.MICRO)


@dataclass(slots=True, eq=False)
class Value:
    """A tensor: its layout, its storage, and the node that made it; a leaf with ``needs_grad`` is a parameter."""

    spec: TensorSpec
    storage: int
    needs_grad: bool = False
    node: Node | None = None

    @property
    def shape(self) -> Shape:
        return self.spec.shape

    @property
    def dtype(self) -> str:
        return self.spec.dtype


Gradients = Callable[[list["Value | None"]], Sequence["Value | None"]]


@dataclass(slots=True, eq=False)
class Node:
    """One operation to differentiate: ``gradients`` takes those of its outputs and gives those of its inputs."""

    inputs: tuple[Value, ...]
    gradients: Gradients
    module: int
    op: int
    """Position of the forward operation."""
    saves: str
    """``inputs`` (saved before the kernel runs), ``outputs`` (after it) or nothing: where a recomputation may stop."""
    outputs: list[Value] = field(default_factory=list["Value"])


def strides_of(shape: Shape) -> Shape:
    """Strides of a dense tensor of ``shape``."""
    strides, step = [1] * len(shape), 1
    for i in range(len(shape) - 1, -1, -1):
        strides[i] = step
        step *= shape[i]
    return tuple(strides)


@lru_cache(maxsize=65536)
def spec(shape: Shape, dtype: str) -> TensorSpec:
    """The spec of a dense tensor."""
    return laid(shape, strides_of(shape), dtype)


@lru_cache(maxsize=65536)
def laid(shape: Shape, strides: Shape, dtype: str) -> TensorSpec:
    """The spec of a tensor with ``strides``; equal ones are one object, so that a tape knows an operation by them at once."""
    return TensorSpec(shape, strides, dtype)


@lru_cache(maxsize=4096)
def _mergeable(one: TensorSpec, shape: Shape) -> bool:
    """Whether ``one`` can be viewed as ``shape`` without a copy: merged dimensions must be contiguous."""
    runs: list[list[int]] = []
    for size, stride in zip(one.shape, one.stride, strict=True):
        if size == 1:
            continue
        if runs and runs[-1][1] == stride * size:
            runs[-1] = [runs[-1][0] * size, stride]
        else:
            runs.append([size, stride])
    sizes = [n for n in shape if n != 1]
    for size, _ in runs:
        whole = 1
        while sizes and whole < size:
            whole *= sizes.pop(0)
        if whole != size:
            return False
    return True


def _kind(name: str, kernels: int) -> Kind:
    if not kernels:
        return Kind.HOST
    if "attention" in name:
        return Kind.ATTENTION
    if "convolution" in name:
        return Kind.CONVOLUTION
    if name == "_grouped_mm":
        return Kind.GROUPED
    if name in RULES:
        return Kind.MATMUL
    return Kind.EMBEDDING if name.startswith("embedding") else Kind.MEMORY


REMEMBERED = 8192
_signatures: dict[tuple[Any, ...], Signature] = {}
"""The latest signatures of all tapes: another micro-batch of the same layer, another optimizer or loss has many of them."""


def _signature(
    name: str,
    overload: str,
    inputs: tuple[TensorSpec, ...],
    outputs: tuple[TensorSpec, ...],
    attributes: tuple[tuple[str, object], ...],
    call: dict[str, Any],
) -> Signature:
    """Signature of a call; ``call`` follows from the other arguments."""
    key = (name, overload, inputs, outputs, attributes)
    if (known := _signatures.get(key)) is not None:
        return known
    arguments = {"self": inputs[0] if inputs else None, **call}
    read_bytes, written_bytes = bytes_of(name, arguments, inputs, outputs, ())
    kernels = kernels_of(name, arguments, inputs, outputs, False)
    flop, kind = flop_of(name, arguments, outputs), _kind(name, kernels)
    made = Signature(f"aten.{name}.{overload}", kind, inputs, outputs, attributes, flop, read_bytes, written_bytes, kernels)
    if len(_signatures) >= REMEMBERED:
        _signatures.clear()
    _signatures[key] = made
    return made


class Mark(NamedTuple):
    """How much is on a tape at one moment."""

    ops: int
    storages: int
    held: int
    unpacking: int


class Tape:
    """Operations in program order. ``phase`` is that of what is written next; ``module`` where it is written."""

    def __init__(self) -> None:
        self.phase = int(Phase.FORWARD)
        self.modules = [""]
        self.parts = [0]
        """Part of the model of each module."""
        self.part = 0
        self.module = 0
        self.nodes: list[Node] = []
        self._signatures: dict[tuple[Any, ...], int] = {}
        self._known: dict[tuple[Any, ...], int] = {}
        """The same by the identity of the specs; :attr:`_alive` keeps them alive so that no identity is reused."""
        self._alive: list[TensorSpec] = []
        self._made: list[Signature] = []
        self._ops: list[tuple[int, int, int, int]] = []
        self._flow: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
        self._storages = 0
        self._kept: set[int] = set()
        self.weights: dict[int, int] = {}
        """Parameter tensors by part."""
        self.held: list[tuple[int, int, int]] = []
        """(storage, operation, operation where its layer's forward runs again): a variable names the storage until then,
        though nothing reads it any more."""
        self.gradients: dict[int, int] = {}
        """Storage of each parameter's gradient."""
        self.unpacking: list[tuple[int, int]] = []
        """First and last operation of the backward of each node that takes saved tensors."""
        self._reduced: int | None = None
        self._frames: list[list[int]] = []

    def __len__(self) -> int:
        return len(self._ops)

    @property
    def operations(self) -> Sequence[tuple[int, int, int, int]]:
        """Signature, phase, module and flag of each."""
        return self._ops

    @property
    def flow(self) -> Sequence[tuple[tuple[int, ...], tuple[int, ...]]]:
        """Storages that each operation reads, and those it writes."""
        return self._flow

    @property
    def signatures(self) -> tuple[Signature, ...]:
        """Those that :attr:`operations` name."""
        return tuple(self._made)

    def mark(self) -> Mark:
        """Current position on the tape."""
        return Mark(len(self._ops), self._storages, len(self.held), len(self.unpacking))

    # --- tensors and operations ---

    def leaf(self, shape: Shape, dtype: str, *, trained: bool = False, frozen: bool = False) -> Value:
        """A parameter (``trained`` or ``frozen``), a buffer or an input."""
        self._storages += 1
        self._kept.add(self._storages - 1)
        if trained:
            self.weights[self.part] = self.weights.get(self.part, 0) + 1
        return Value(spec(shape, dtype), self._storages - 1, trained)

    @contextmanager
    def inside(self, name: str, *arguments: Value) -> Generator[None]:
        """Operations meanwhile are those of the module ``name``, called with ``arguments``."""
        before = self.module
        self.modules.append(name)
        self.parts.append(self.part)
        self.module = len(self.modules) - 1
        try:
            with self.frame(*arguments):
                yield
        finally:
            self.module = before

    @contextmanager
    def frame(self, *arguments: Value) -> Generator[None]:
        """The body of a Python function: what its variables name (``arguments``, :meth:`bind`) lives until it returns."""
        self._frames.append([v.storage for v in arguments])
        try:
            yield
        finally:
            last = len(self._ops) - 1
            self.held += [(storage, last, last) for storage in self._frames.pop()]

    def bind(self, value: Value) -> Value:
        """``value``, named by a variable of the innermost frame that is not assigned again."""
        self._frames[-1].append(value.storage)
        return value

    def run(
        self,
        name: str,
        inputs: Sequence[Value],
        outputs: Sequence[TensorSpec],
        *,
        overload: str = "default",
        call: dict[str, Any] | None = None,
        attributes: tuple[tuple[str, object], ...] = (),
    ) -> list[Value]:
        """One kernel call. ``call`` holds the arguments whose names decide FLOP, bytes or kernels; ``attributes`` the rest."""
        objects = (name, overload, attributes, *[id(v.spec) for v in inputs], 0, *[id(s) for s in outputs])
        at = self._known.get(objects)
        if at is None:
            at = self._known[objects] = self._signature(name, overload, [v.spec for v in inputs], outputs, call or {}, attributes)
        first = self._storages
        self._storages += len(outputs)
        self._write(at, tuple([v.storage for v in inputs]), tuple(range(first, self._storages)))
        return [Value(one, first + i) for i, one in enumerate(outputs)]

    def _signature(
        self,
        name: str,
        overload: str,
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        call: dict[str, Any],
        attributes: tuple[tuple[str, object], ...],
    ) -> int:
        """Which of the signatures a call has, by what its tensors are rather than which."""
        specs = tuple(inputs)
        self._alive += [*specs, *outputs]
        key = (name, overload, specs, tuple(outputs), attributes)
        at = self._signatures.get(key)
        if at is None:
            at = self._signatures[key] = len(self._made)
            self._made.append(_signature(name, overload, specs, tuple(outputs), attributes, call))
        return at

    def view(self, x: Value, shape: Shape, name: str = "view", *, strides: Shape | None = None) -> Value:
        """The same storage in another shape: the host's work alone."""
        result = self.alias(x, shape, name, strides)
        if x.needs_grad:
            back = "view" if name in ("view", "_unsafe_view") else name
            self.note([x], [result], lambda g: [g[0] and self.alias(g[0], x.shape, back)])
        return result

    def alias(self, x: Value, shape: Shape, name: str = "view", strides: Shape | None = None) -> Value:
        """A view that nothing differentiates; where the layout does not allow it, a copy first (``reshape``)."""
        if name == "view" and strides is None and not _mergeable(x.spec, shape):
            x = self.run("clone", [x], [spec(x.shape, x.dtype)])[0]
        layout = laid(shape, strides, x.dtype) if strides is not None else spec(shape, x.dtype)
        objects = (name, "view", id(x.spec), id(layout))
        at = self._known.get(objects)
        if at is None:
            self._alive += [x.spec, layout]
            key = (name, "view", (x.spec,), (layout,), ())
            at = self._signatures.get(key)
            if at is None:
                at = self._signatures[key] = len(self._made)
                self._made.append(Signature(f"aten.{name}.default", Kind.HOST, (x.spec,), (layout,), (), 0.0, 0.0, 0.0, 0))
            self._known[objects] = at
        self._write(at, (x.storage,), (x.storage,), MICRO)
        return Value(layout, x.storage)

    def transposed(self, x: Value, a: int, b: int, name: str = "transpose") -> Value:
        """Two dimensions exchanged."""
        result = self.flipped(x, a, b, name)
        if x.needs_grad:
            self.note([x], [result], lambda g: [g[0] and self.flipped(g[0], a, b, name)])
        return result

    def flipped(self, x: Value, a: int, b: int, name: str) -> Value:
        """Two dimensions exchanged in a view that nothing differentiates."""
        shape, strides = list(x.shape), list(x.spec.stride)
        shape[a], shape[b], strides[a], strides[b] = shape[b], shape[a], strides[b], strides[a]
        return self.alias(x, tuple(shape), name, tuple(strides))

    def _write(self, at: int, reads: tuple[int, ...], writes: tuple[int, ...], flag: int = 0) -> None:
        self._ops.append((at, self.phase, self.module, flag))
        self._flow.append((reads, writes))

    # --- differentiation ---

    def note(self, inputs: Sequence[Value], outputs: Sequence[Value], gradients: Gradients, saves: str = "") -> None:
        """A node for the operation just written, where an input needs a gradient."""
        if self.phase != int(Phase.FORWARD) or True not in [v.needs_grad for v in inputs]:
            return
        node = Node(tuple(inputs), gradients, self.module, len(self._ops) - 1, saves, list(outputs))
        for one in outputs:
            one.needs_grad, one.node = True, node
        self.nodes.append(node)

    def backward(self, loss: Value, borders: Sequence[int] = ()) -> list[Mark]:
        """Write the backward of everything ``loss`` depends on. For each of ``borders``, operations of the forward from the
        last to the first: what is on the tape when the backward comes to an operation before it."""
        self.phase = int(Phase.BACKWARD)
        marks: list[Mark] = []
        gradient_of: dict[int, Value] = {id(loss): self.run("ones_like", [loss], [loss.spec])[0]}
        for node in reversed(self.nodes):
            while len(marks) < len(borders) and node.op < borders[len(marks)]:
                marks.append(self.mark())
            output_gradients = [gradient_of.pop(id(v), None) for v in node.outputs]
            if not any(output_gradients):
                continue
            self.module = node.module
            first, self._reduced = len(self._ops), None
            gradients = node.gradients(output_gradients)
            self._hold(first, {g.storage for g in output_gradients if g is not None}, node)
            for value, gradient in zip(node.inputs, gradients, strict=True):
                if gradient is None or not value.needs_grad:
                    continue
                partial = gradient_of.get(id(value))
                if partial is not None:
                    gradient = self.run("add", [partial, gradient], [partial.spec], overload="Tensor")[0]
                gradient_of[id(value)] = gradient
                if value.node is None:
                    self._kept.add(gradient.storage)
                    self.gradients[value.storage] = gradient.storage
                    self.alias(gradient, gradient.shape, "detach", gradient.spec.stride)
        self.module = 0
        return marks + [self.mark()] * (len(borders) - len(marks))

    def reduced(self) -> None:
        """From here on a gradient is summed to its input's shape; inputs of the node's formula are freed."""
        if self._reduced is None:
            self._reduced = len(self._ops)

    def _hold(self, first: int, given: set[int], node: Node) -> None:
        """Lifetime rule: tensors created in a node's backward live to the end of its formula; its inputs and saved tensors to
        the end of the following sums; tensors saved in a recomputed forward are freed with the formula."""
        last = len(self._ops) - 1
        end = last if self._reduced is None else self._reduced - 1
        storages = {s for op in range(first, last) for s in self._flow[op][1]}
        for op in range(first, last):
            for storage in self._flow[op][0]:
                if storage in given:
                    self.held.append((storage, last, last))
                elif op < end:
                    self.held.append((storage, end if storage in storages else last, end))
        if node.saves and last >= first:
            self.unpacking.append((first, end))

    # --- the step ---

    def saved_within(self, first: int, end: int) -> int:
        """Tensors that operations ``first`` to ``end`` save for their backward: statistics and seeds beside the inputs."""
        inside = (n for n in self.nodes if n.saves and first <= n.op < end)
        return sum(len(n.inputs) + (2 if n.saves == "outputs" else 0) for n in inside)

    def saved_until(self, first: int, end: int) -> int:
        """End of what a checkpoint of the operations ``first`` to ``end`` runs again: torch stops at the last tensor that
        was saved (``torch.utils.checkpoint``, early stop)."""
        inside = (n for n in self.nodes if n.saves and first <= n.op < end)
        return max((n.op + (n.saves == "outputs") for n in inside), default=first)

    def capture(self, name: str, settings: Settings) -> Capture:
        """The operations as one steady step."""
        n, ops = len(self._ops), np.array(self._ops, np.int64).reshape(-1, 4)
        ends = [np.cumsum([len(f[side]) for f in self._flow]).astype(np.int64) for side in (0, 1)]
        flow = [np.array([s for f in self._flow for s in f[side]], np.int64) for side in (0, 1)]
        freed = np.array(sorted(set(range(self._storages)) - self._kept), np.int64)
        zero = np.zeros(n, np.int64)
        return Capture(
            signatures=tuple(self._made),
            modules=tuple(self.modules),
            module_types=tuple("" for _ in self.modules),
            lines=("",),
            op_signature=ops[:, 0],
            op_phase=ops[:, 1],
            op_module=ops[:, 2],
            op_line=zero,
            op_stream=zero,
            op_flags=ops[:, 3],
            storage_bytes=np.zeros(self._storages, np.int64),
            storage_category=np.full(self._storages, int(Category.TEMPORARY)),
            storage_op=np.full(self._storages, -1, np.int64),
            storage_module=np.zeros(self._storages, np.int64),
            storage_dtype=("",) * self._storages,
            storage_stream=np.zeros(self._storages, np.int64),
            event_storage=freed,
            event_sign=np.full(len(freed), -1, np.int8),
            event_op=np.full(len(freed), max(n - 1, 0), np.int64),
            steps=(StepSpan(0, n, 0, len(freed)),),
            settings=settings,
            name=name,
            op_inputs=flow[0],
            op_input_end=ends[0],
            op_outputs=flow[1],
            op_output_end=ends[1],
        )


# --- operations with their backward ---


def promoted(*dtypes: str) -> str:
    """The widest floating-point format."""
    return dtypes[0] if len(dtypes) == 1 else min(dtypes, key=WIDEST.index)


def broadcast(*shapes: Shape) -> Shape:
    """The shape that all of them spread to."""
    if len(shapes) == 1:
        return shapes[0]
    width = max(len(s) for s in shapes)
    columns = zip(*((1,) * (width - len(s)) + s for s in shapes), strict=True)
    return tuple(max(c) for c in columns)


def cast(t: Tape, x: Value, dtype: str) -> Value:
    """``x`` in another format; itself where it has it."""
    if x.dtype == dtype:
        return x
    result = _copied(t, x, dtype)
    t.note([x], [result], lambda g: [g[0] and _copied(t, g[0], x.dtype)])
    return result


def _copied(t: Tape, x: Value, dtype: str) -> Value:
    """A copy preserves the layout; expanded tensors become dense."""
    dense = 0 in x.spec.stride and math.prod(x.shape) > 1
    layout = spec(x.shape, dtype) if dense else laid(x.shape, x.spec.stride, dtype)
    return t.run("_to_copy", [x], [layout], attributes=(("dtype", dtype),))[0]


def each(t: Tape, name: str, inputs: Sequence[Value], dtype: str | None = None, overload: str = "Tensor") -> Value:
    """An elementwise operation whose backward is written by its caller."""
    one = inputs[0].spec
    if dtype in (None, one.dtype) and 0 not in one.stride and all(v.spec is one for v in inputs):
        return t.run(name, inputs, [one], overload=overload)[0]
    shape = broadcast(*(v.shape for v in inputs))
    layout = next((v.spec.stride for v in inputs if v.shape == shape and 0 not in v.spec.stride), strides_of(shape))
    return t.run(name, inputs, [laid(shape, layout, dtype or promoted(*[v.dtype for v in inputs]))], overload=overload)[0]


def summed_to(t: Tape, g: Value, like: Value) -> Value:
    """``g`` summed over what ``like`` was spread over, in the format of ``like``."""
    wide, shape = g.shape, (1,) * (len(g.shape) - len(like.shape)) + like.shape
    dims = tuple(i for i, (a, b) in enumerate(zip(wide, shape, strict=True)) if b == 1 and a != 1)
    if dims:
        t.reduced()
        g = t.run("sum", [g], [spec(shape, g.dtype)], overload="dim_IntList", attributes=(("dim", dims), ("keepdim", True)))[0]
    if g.shape != like.shape:
        g = t.alias(g, like.shape)
    return g if g.dtype == like.dtype else _copied(t, g, like.dtype)


def mul(t: Tape, a: Value, b: Value) -> Value:
    """``a * b``, element by element."""
    result = each(t, "mul", [a, b])

    def gradients(g: list[Value | None]) -> list[Value | None]:
        if g[0] is None:
            return [None, None]
        wide = [each(t, "mul", [g[0], y]) if x.needs_grad else None for x, y in ((a, b), (b, a))]
        return [one and summed_to(t, one, x) for one, x in zip(wide, (a, b), strict=True)]

    t.note([a, b], [result], gradients, "inputs")
    return result


def scaled(t: Tape, a: Value) -> Value:
    """Every element times a number."""
    result = each(t, "mul", [a])
    t.note([a], [result], lambda g: [g[0] and each(t, "mul", [g[0]])])
    return result


def add(t: Tape, a: Value, b: Value) -> Value:
    """``a + b``, element by element."""
    result = each(t, "add", [a, b])
    t.note([a, b], [result], lambda g: [g[0] and (summed_to(t, g[0], x) if x.needs_grad else None) for x in (a, b)])
    return result


def shifted(t: Tape, a: Value) -> Value:
    """Every element plus a number."""
    result = each(t, "add", [a])
    t.note([a], [result], lambda g: [g[0]])
    return result


def power(t: Tape, x: Value) -> Value:
    """``x ** 2`` (or 3), in fp32 under autocast."""
    result = each(t, "pow", [x], overload="Tensor_Scalar")

    def gradients(g: list[Value | None]) -> list[Value | None]:
        inner = each(t, "mul", [each(t, "pow", [x], overload="Tensor_Scalar")], overload="Scalar")
        return [g[0] and each(t, "mul", [g[0], inner])]

    t.note([x], [result], gradients, "inputs")
    return result


def row_mean(t: Tape, x: Value) -> Value:
    """Over the last dimension, which stays as 1."""
    result = t.run(
        "mean", [x], [spec((*x.shape[:-1], 1), x.dtype)], overload="dim", attributes=(("dim", (-1,)), ("keepdim", True))
    )[0]

    def gradients(g: list[Value | None]) -> list[Value | None]:
        if g[0] is None:
            return [None]
        spread = t.alias(g[0], x.shape, "expand", (*g[0].spec.stride[:-1], 0))
        return [t.run("div", [spread], [spec(x.shape, x.dtype)], overload="Scalar")[0]]

    t.note([x], [result], gradients)
    return result


def rsqrt(t: Tape, x: Value) -> Value:
    """``1 / sqrt(x)``, element by element."""
    result = each(t, "rsqrt", [x], overload="default")
    t.alias(result, result.shape, "detach")

    def gradients(g: list[Value | None]) -> list[Value | None]:
        inner = each(t, "mul", [each(t, "pow", [result], overload="Tensor_Scalar")], overload="Scalar")
        return [g[0] and each(t, "mul", [g[0], inner])]

    t.note([x], [result], gradients, "outputs")
    return result


def unary(t: Tape, name: str, x: Value) -> Value:
    """silu, gelu, relu, tanh, sigmoid: one kernel forward, one backward."""
    result = each(t, name, [x], overload="default")
    saved_value = result if name in ("tanh", "relu", "sigmoid") else x
    backward = "threshold_backward" if name == "relu" else f"{name}_backward"
    saves = "outputs" if saved_value is result else "inputs"
    t.note([x], [result], lambda g: [g[0] and each(t, backward, [g[0], saved_value], overload="default")], saves)
    return result


def negated(t: Tape, x: Value) -> Value:
    """``-x``."""
    result = each(t, "neg", [x], overload="default")
    t.note([x], [result], lambda g: [g[0] and each(t, "neg", [g[0]], overload="default")])
    return result


def part(t: Tape, x: Value, shape: Shape) -> Value:
    """A slice along one dimension; its backward writes zeros around the gradient."""
    result = t.alias(x, shape, "slice", x.spec.stride)
    t.note(
        [x], [result], lambda g: [g[0] and t.run("slice_backward", [g[0]], [spec(x.shape, x.dtype)], attributes=(("dim", 3),))[0]]
    )
    return result


def split(t: Tape, x: Value, n: int, at: int) -> list[Value]:
    """``n`` equal parts along the last dimension of [.., n width]; the backward puts them together."""
    shape = (*x.shape[:-1], at)
    parts = [Value(laid(shape, x.spec.stride, x.dtype), x.storage) for _ in range(n)]
    t.alias(x, shape, "split", x.spec.stride)

    def gradients(g: list[Value | None]) -> list[Value | None]:
        return [joined(t, [p for p in g if p is not None], x.shape, x.dtype)]

    t.note([x], parts, gradients)
    return parts


def joined(t: Tape, parts: Sequence[Value], shape: Shape, dtype: str) -> Value:
    """``cat`` of ``parts`` into ``shape``, without a gradient."""
    return t.run("cat", parts, [spec(shape, dtype)], call={"tensors": parts})[0]


def concatenated(t: Tape, parts: Sequence[Value], shape: Shape) -> Value:
    """``cat`` along one dimension; the backward takes slices."""
    dtype = promoted(*(p.dtype for p in parts))
    result = joined(t, parts, shape, dtype)

    def gradients(g: list[Value | None]) -> list[Value | None]:
        if g[0] is None:
            return [None] * len(parts)
        slices = [t.alias(g[0], p.shape, "slice", g[0].spec.stride) for p in parts]
        return [summed_to(t, s, p) if p.needs_grad else None for s, p in zip(slices, parts, strict=True)]

    t.note(parts, [result], gradients)
    return result
