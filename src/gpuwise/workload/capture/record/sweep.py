"""A captured step at any batch size (or sequence length), made from a few captures without running torch again.

Along one size ``x`` every dimension, storage and FLOP count of a step is a polynomial of known degree: of the batch
all are affine; of the sequence length scores that are written out grow with its square. Operations are matched one by
one over the captures, and every integer is interpolated exactly (Lagrange, in fractions):

    v(x) = sum_i v_i prod_{j != i} (x - x_j) / (x_i - x_j)

over the ``degree + 1`` captured sizes around ``x``. What does not match (another number of operations, a kernel chosen
by size, padding that makes a size no whole number) raises, and the caller captures ``x`` itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import cast

import numpy as np

from gpuwise.errors import UnpredictableError
from gpuwise.workload.capture.captured import I64, Capture, Signature, TensorSpec

DEGREES: Mapping[str, int] = {"batch": 1, "seq": 2}
"""Degree of the polynomials to begin with, along each size that can be swept."""
REASON = "sizes not polynomial"


@dataclass(frozen=True, slots=True)
class Sweep:
    """Captures of one step that differ in one size only. ``sizes`` ascends and has at least ``degree + 1`` entries."""

    axis: str
    sizes: tuple[int, ...]
    captures: tuple[Capture, ...]
    degree: int

    def at(self, size: int) -> Capture:
        """The step at ``size``: a captured one, or made from the captured ones around it.

        Raises UnpredictableError (``sizes not polynomial``) where the captures do not match op by op, or a size
        that must be whole is not.
        """
        if size in self.sizes:
            return self.captures[self.sizes.index(size)]
        neighbours = _around(self.sizes, size, self.degree + 1)
        weights = _weights([self.sizes[i] for i in neighbours], size)
        nearest = min(range(len(neighbours)), key=lambda i: abs(self.sizes[neighbours[i]] - size))
        return _interpolated([self.captures[i] for i in neighbours], weights, nearest, size, self.axis)

    def with_capture(self, size: int, capture: Capture) -> Sweep:
        """The sweep with one more captured size."""
        return sweep_of({**dict(zip(self.sizes, self.captures, strict=True)), size: capture}, self.axis, self.degree)

    def refined(self) -> Sweep:
        """The sweep with polynomials of one degree more (a loss over all pairs of a batch grows with its square)."""
        return sweep_of(dict(zip(self.sizes, self.captures, strict=True)), self.axis, self.degree + 1)


def sweep_of(captures: Mapping[int, Capture], axis: str = "batch", degree: int | None = None) -> Sweep:
    """A sweep over ``captures`` by size. Raises ValueError for fewer than ``degree + 1`` of them."""
    power = DEGREES[axis] if degree is None else degree
    if len(captures) <= power:
        raise ValueError(f"{len(captures)} captures do not settle a polynomial of degree {power}")
    sizes = tuple(sorted(captures))
    return Sweep(axis, sizes, tuple(captures[size] for size in sizes), power)


def differences(candidate: Capture, real: Capture) -> tuple[str, ...]:
    """How a made step differs from the captured one, most telling first; empty when they are the same step."""
    if len(candidate.op_signature) != len(real.op_signature):
        return (f"{len(candidate.op_signature):,} operations made, {len(real.op_signature):,} captured",)
    lines: list[str] = []
    for i, j in _pairs([candidate, real]):
        a, b = candidate.signatures[i], real.signatures[j]
        if (a.op, a.inputs, a.outputs, a.flop, a.n_kernels) != (b.op, b.inputs, b.outputs, b.flop, b.n_kernels):
            lines.append(f"{a.op} of {_shapes(a)} made, {b.op} of {_shapes(b)} captured")
    if len(candidate.storage_bytes) != len(real.storage_bytes):
        lines.append(f"{len(candidate.storage_bytes):,} storages made, {len(real.storage_bytes):,} captured")
    elif not np.array_equal(candidate.storage_bytes, real.storage_bytes):
        lines.append(f"{int((candidate.storage_bytes != real.storage_bytes).sum()):,} storages differ in size")
    if candidate.peak_bytes() != real.peak_bytes():
        lines.append(f"peak of {candidate.peak_bytes():,} bytes made, {real.peak_bytes():,} captured")
    return tuple(lines)


def _shapes(s: Signature) -> str:
    return " ".join("x".join(map(str, t.shape)) or "1" for t in s.inputs)


def _around(sizes: Sequence[int], size: int, n: int) -> list[int]:
    """Positions of ``n`` neighbouring entries of ``sizes`` that hold ``size`` as near their middle as can be."""
    below = sum(s < size for s in sizes)
    first = min(max(below - (n + 1) // 2, 0), len(sizes) - n)
    return list(range(first, first + n))


def _weights(points: Sequence[int], x: int) -> list[Fraction]:
    weights: list[Fraction] = []
    for i, p in enumerate(points):
        weight = Fraction(1)
        for j, q in enumerate(points):
            if i != j:
                weight *= Fraction(x - q, p - q)
        weights.append(weight)
    return weights


def _interpolated(captures: Sequence[Capture], weights: Sequence[Fraction], nearest: int, size: int, axis: str) -> Capture:
    near = captures[nearest]
    _check_same_program(captures)
    pairs = _pairs(captures)
    signatures = [_signature([c.signatures[i] for c, i in zip(captures, pair, strict=True)], weights, nearest) for pair in pairs]
    lookup = {pair: i for i, pair in enumerate(pairs)}
    columns = np.stack([c.op_signature for c in captures])
    distinct, inverse = np.unique(columns, axis=1, return_inverse=True)
    order = np.array([lookup[tuple(int(v) for v in column)] for column in distinct.T], dtype=np.int64)
    host = _whole([c.host_bytes for c in captures], weights)
    return replace(
        near,
        signatures=tuple(signatures),
        op_signature=order[inverse.reshape(-1)],
        storage_bytes=_bytes([c.storage_bytes for c in captures], weights),
        host_bytes=max(host, 0),
        batch=size if axis == "batch" else near.batch,
    )


def _check_same_program(captures: Sequence[Capture]) -> None:
    """Raises UnpredictableError unless the captures run the same operations on storages with the same lives."""
    first = captures[0]
    for other in captures[1:]:
        for what, a, b in (
            ("operations", first.op_signature, other.op_signature),
            ("storages", first.storage_bytes, other.storage_bytes),
            ("memory events", first.event_op, other.event_op),
        ):
            if len(a) != len(b):
                raise UnpredictableError(REASON, f"the step runs {len(a):,} {what} at one size and {len(b):,} at another")
        if first.steps != other.steps or not np.array_equal(_lives(first), _lives(other)):
            raise UnpredictableError(REASON, "tensors live longer at one size than at another")


def _lives(capture: Capture) -> I64:
    """[S, 2] operation at which each storage is born and freed (-2: not in the record)."""
    lives = np.full((len(capture.storage_bytes), 2), -2, dtype=np.int64)
    born = capture.event_sign > 0
    lives[capture.event_storage[born], 0] = capture.event_op[born]
    lives[capture.event_storage[~born], 1] = capture.event_op[~born]
    return lives


def _pairs(captures: Sequence[Capture]) -> list[tuple[int, ...]]:
    """The distinct combinations of signatures that operations have over the captures."""
    if not len(captures[0].op_signature):
        return []
    distinct = np.unique(np.stack([c.op_signature for c in captures]), axis=1)
    return [tuple(int(v) for v in column) for column in distinct.T]


def _bytes(columns: Sequence[I64], weights: Sequence[Fraction]) -> I64:
    """Each storage's bytes at the new size, exactly. Raises UnpredictableError where one is no whole number."""
    result = columns[0].copy()
    varies = np.flatnonzero(np.any(np.stack(columns) != columns[0], axis=0))
    scale = int(np.lcm.reduce([w.denominator for w in weights]))
    factors = [int(w * scale) for w in weights]
    rows = [column[varies].tolist() for column in columns]
    for at, values in zip(varies.tolist(), zip(*rows, strict=True), strict=True):
        result[at] = _divided(sum(f * v for f, v in zip(factors, values, strict=True)), scale)
    return result


def _divided(total: int, scale: int) -> int:
    whole, remainder = divmod(total, scale)
    if remainder or whole < 0:
        raise UnpredictableError(REASON, f"a size of {total / scale:.1f} at this size is not a whole number")
    return whole


def _whole(values: Sequence[int], weights: Sequence[Fraction]) -> int:
    """The interpolated value as an integer. Raises UnpredictableError if it is not one."""
    if all(v == values[0] for v in values):
        return values[0]
    total = sum((w * v for w, v in zip(weights, values, strict=True)), Fraction(0))
    if total.denominator != 1:
        raise UnpredictableError(REASON, f"a size of {float(total):.1f} at this size is not a whole number")
    return total.numerator


def _signature(same: Sequence[Signature], weights: Sequence[Fraction], nearest: int) -> Signature:
    first = same[0]
    if all(s is first or s == first for s in same):
        return first
    if any(
        s.op != first.op or len(s.inputs) != len(first.inputs) or len(s.outputs) != len(first.outputs) or s.kind != first.kind
        for s in same
    ):
        raise UnpredictableError(REASON, f"{first.op} at one size is {same[-1].op} at another")
    near = same[nearest]
    attributes = tuple((name, _attribute([s.attribute(name) for s in same], weights, nearest)) for name, _ in near.attributes)
    flop, read_bytes, written_bytes = (
        float(sum(float(w) * v for w, v in zip(weights, column, strict=True)))
        for column in ([s.flop for s in same], [s.bytes_read for s in same], [s.bytes_written for s in same])
    )
    return replace(
        near,
        inputs=_tensors([s.inputs for s in same], weights),
        outputs=_tensors([s.outputs for s in same], weights),
        attributes=attributes,
        flop=max(round(flop), 0.0),
        bytes_read=max(round(read_bytes), 0.0),
        bytes_written=max(round(written_bytes), 0.0),
    )


def _tensors(columns: Sequence[tuple[TensorSpec, ...]], weights: Sequence[Fraction]) -> tuple[TensorSpec, ...]:
    specs: list[TensorSpec] = []
    for same in zip(*columns, strict=True):
        first = same[0]
        if all(t == first for t in same):
            specs.append(first)
            continue
        if any(t.dtype != first.dtype or len(t.shape) != len(first.shape) for t in same):
            raise UnpredictableError(REASON, "a tensor has another format or rank at another size")
        shape = tuple(_whole(d, weights) for d in zip(*(t.shape for t in same), strict=True))
        stride = tuple(_whole(d, weights) for d in zip(*(t.stride for t in same), strict=True))
        specs.append(TensorSpec(shape, stride, first.dtype))
    return tuple(specs)


def _attribute(values: Sequence[object], weights: Sequence[Fraction], nearest: int) -> object:
    """Whole numbers and sequences of them follow the size; anything else that differs is the nearest capture's."""
    first = values[0]
    if all(v == first for v in values):
        return first
    if all(isinstance(v, int) and not isinstance(v, bool) for v in values):
        return _whole(cast("Sequence[int]", values), weights)
    if all(isinstance(v, (tuple, list)) for v in values):
        rows = cast("Sequence[Sequence[object]]", values)
        if all(len(r) == len(rows[0]) for r in rows):
            return tuple(_attribute(column, weights, nearest) for column in zip(*rows, strict=True))
    return values[nearest]
