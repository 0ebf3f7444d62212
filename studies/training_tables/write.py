"""Write ``src/gpuwise/workload/tables/data/NAME.json.xz``: ``python -m studies.training_tables.write [NAME ...]``.

Each variant of a network is captured at two sizes; where its whole numbers are not those of both captures, and of a third one
with another batch that nothing was made from, the program stops.
"""

from __future__ import annotations

import json
import lzma
import sys
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from gpuwise.workload.capture.captured import Capture, OpFlag, Signature, TensorSpec
from gpuwise.workload.row_codes import Kind
from gpuwise.workload.tables.sizes import Term, term_of
from gpuwise.workload.tables.table import FOLDER, FORMAT, attention_work, spec_bytes

SCALED = 1e-4
"""Largest relative difference of two ratios of bytes that are the same."""


class Encoder:
    """Terms, tensors and signatures of a pair of captures, each written once."""

    def __init__(self, low: Capture, high: Capture, ratio: float, markers: Sequence[int], affine: int) -> None:
        self.low, self.high = low, high
        self.ratio, self.markers, self.affine = ratio, markers, affine
        self.terms: dict[Term, int] = {}
        self.tensors: dict[Any, int] = {}

    def term(self, low: int, high: int) -> int:
        """Index of the term of a value."""
        made = term_of(int(low), int(high), self.ratio, self.markers, self.affine)
        return self.terms.setdefault(made, len(self.terms))

    def tensor(self, low: TensorSpec, high: TensorSpec) -> int:
        """Index of a tensor."""
        assert low.dtype == high.dtype and len(low.shape) == len(high.shape), (low, high)
        key = (
            low.dtype,
            tuple(self.term(a, b) for a, b in zip(low.shape, high.shape, strict=True)),
            tuple(self.term(a, b) for a, b in zip(low.stride, high.stride, strict=True)),
        )
        return self.tensors.setdefault(key, len(self.tensors))

    def attribute(self, low: object, high: object) -> object:
        """An attribute, whole numbers that grow as terms."""
        if isinstance(low, tuple | list) and isinstance(high, tuple | list):
            lows, highs = cast("Sequence[object]", low), cast("Sequence[object]", high)
            if len(lows) == len(highs):
                return [self.attribute(a, b) for a, b in zip(lows, highs, strict=True)]
        if isinstance(low, int) and not isinstance(low, bool) and isinstance(high, int) and low != high:
            return {"t": self.term(low, high)}
        return cast("object", low)

    def bytes(self, low: Signature, high: Signature, *, reads: bool) -> object:
        """Bytes read or written, as a multiple of the tensors' where it is one."""
        parts = [(s.bytes_read, s.inputs) if reads else (s.bytes_written, s.outputs) for s in (low, high)]
        sums = [spec_bytes(tensors) for _, tensors in parts]
        if all(sums):
            ratios = [moved / total for (moved, _), total in zip(parts, sums, strict=True)]
            if abs(ratios[0] - ratios[1]) <= SCALED * max(ratios) or max(ratios) < 1.0:
                return {"k": round(sum(ratios) / 2.0, 6)}
        return self.term(int(parts[0][0]), int(parts[1][0]))

    def signature(self, low: Signature, high: Signature, *, micro: bool) -> list[Any]:
        """One signature; of what only the host does, its name alone."""
        assert low.op == high.op, (low.op, high.op)
        if micro or low.op.startswith("aten._fused_sgd_"):
            return [low.op, int(low.kind), [], [], [], self.term(0, 0), self.term(0, 0), self.term(0, 0), low.n_kernels]
        work = attention_work(low)
        flop: object = {"a": low.flop / work} if work and low.kind is Kind.ATTENTION else self.term(int(low.flop), int(high.flop))
        others = dict(high.attributes)
        return [
            low.op,
            int(low.kind),
            [self.tensor(a, b) for a, b in zip(low.inputs, high.inputs, strict=True)],
            [self.tensor(a, b) for a, b in zip(low.outputs, high.outputs, strict=True)],
            [[name, self.attribute(value, others[name])] for name, value in low.attributes if name != "size"],
            flop,
            self.bytes(low, high, reads=True),
            self.bytes(low, high, reads=False),
            low.n_kernels,
        ]


def encoded(low: Capture, high: Capture, ratio: float, markers: Sequence[int], affine: int) -> dict[str, Any]:
    """One variant: the steady step of two captures that differ in the size."""
    for what in ("op_signature", "storage_bytes", "event_op"):
        a, b = len(getattr(low, what)), len(getattr(high, what))
        assert a == b, f"{what}: {a} and {b}"
    assert np.array_equal(low.event_storage, high.event_storage), "tensors live longer at one size"
    e = Encoder(low, high, ratio, markers, affine)
    span = low.steady
    pairs: dict[tuple[int, int, bool], int] = {}
    signatures: dict[str, int] = {}
    rows: list[list[Any]] = []
    op_signature: list[int] = []
    for i in range(span.first_op, span.end_op):
        key = (int(low.op_signature[i]), int(high.op_signature[i]), bool(low.op_flags[i] & OpFlag.MICRO))
        if key not in pairs:
            row = e.signature(low.signatures[key[0]], high.signatures[key[1]], micro=key[2])
            text = json.dumps(row)
            if text not in signatures:
                signatures[text] = len(rows)
                rows.append(row)
            pairs[key] = signatures[text]
        op_signature.append(pairs[key])
    # set-up: what lives when the step begins is born before it
    before = slice(0, span.first_event)
    alive = np.bincount(low.event_storage[before], weights=low.event_sign[before], minlength=len(low.storage_bytes)) > 0
    inside = slice(span.first_event, span.end_event)
    used = np.flatnonzero(alive | np.isin(np.arange(len(alive)), low.event_storage[inside]))
    at = {int(s): i for i, s in enumerate(used)}
    events = [(at[int(s)], 1, -1) for s in np.flatnonzero(alive)]
    first_event = len(events)
    events += [
        (at[int(s)], int(sign), max(int(op) - span.first_op, -1))
        for s, sign, op in zip(low.event_storage[inside], low.event_sign[inside], low.event_op[inside], strict=True)
    ]
    dtypes = sorted(set(low.storage_dtype))
    columns: dict[str, Sequence[int]] = {
        "op_signature": op_signature,
        "op_phase": low.op_phase[span.first_op : span.end_op].tolist(),
        "op_module": low.op_module[span.first_op : span.end_op].tolist(),
        "op_flags": low.op_flags[span.first_op : span.end_op].tolist(),
        "storage_bytes": [e.term(int(low.storage_bytes[s]), int(high.storage_bytes[s])) for s in used],
        "storage_category": low.storage_category[used].tolist(),
        "storage_op": [max(int(op) - span.first_op, -1) for op in low.storage_op[used]],
        "storage_module": low.storage_module[used].tolist(),
        "storage_dtype": [dtypes.index(low.storage_dtype[s]) for s in used],
        "event_storage": [x[0] for x in events],
        "event_sign": [x[1] for x in events],
        "event_op": [x[2] for x in events],
    }
    parameters = [
        [p.name, at.get(p.storage, -1), [e.term(a, b) for a, b in zip(p.shape, q.shape, strict=True)], p.dtype, int(p.trainable)]
        for p, q in zip(low.parameters, high.parameters, strict=True)
    ]
    return {
        "terms": [[_short(x) for x in t] for t in e.terms],
        "tensors": [list(t) for t in e.tensors],
        "signatures": rows,
        "columns": {name: np.diff(np.array(c, np.int64), prepend=0).tolist() for name, c in columns.items()},
        "dtypes": dtypes,
        "modules": list(low.modules),
        "module_types": list(low.module_types),
        "first_event": first_event,
        "channels_last": low.settings.channels_last,
        "parameters": parameters,
        "calls": [],
    }


def _short(x: float) -> float:
    return int(x) if x == int(x) else x


def document(size: int, torch_version: str, variants: dict[str, Any]) -> bytes:
    """The file of a network."""
    text = json.dumps({"format": FORMAT, "size": size, "torch": torch_version, "variants": variants}, separators=(",", ":"))
    return lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME)


def main() -> None:
    from studies.training_tables.capturing import BATCH, RANK, captured
    from studies.training_tables.networks import FROZEN, NETWORKS, variants_of

    for name in sys.argv[1:] or [*NETWORKS, *FROZEN]:
        _, (low, high), frames = {**NETWORKS, **FROZEN}[name]
        made: dict[str, Any] = {}
        version = ""
        for variant, method, recompute, half in variants_of(name):
            small, large = (captured(name, method, recompute=recompute, half=half, size=size) for size in (low, high))
            version = small.settings.torch_version
            made[variant] = encoded(small, large, high / low, (BATCH, RANK if method == "lora" else 1, frames), affine_of(name))
        FOLDER.joinpath(f"{name}.json.xz").write_bytes(document(low, version, made))


def affine_of(name: str) -> int:
    """Power of the size in sums of tokens: 2 of a side, 1 of a length."""
    from studies.training_tables.networks import FROZEN, LENGTHS, NETWORKS

    return 1 if {**NETWORKS, **FROZEN}[name][1] in LENGTHS else 2


if __name__ == "__main__":
    main()
