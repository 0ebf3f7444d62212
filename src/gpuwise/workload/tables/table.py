"""A shipped step: read, and made for a batch, a size, a rank and an optimizer. No torch here.

``data/NAME.json.xz`` holds the variants of a network (``lora``, ``full``; ``+recompute``: blocks checkpointed; ``+half``: weights
in 16 bits), each one a captured step whose whole numbers are terms (:mod:`.sizes`). What is made is a
:class:`~gpuwise.workload.capture.captured.Capture`, as own code's.
"""

from __future__ import annotations

import json
import lzma
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from gpuwise.dtypes import TENSOR_BYTES
from gpuwise.errors import DataError, InputError
from gpuwise.workload.blocks.point import NF4_BYTES_PER_PARAMETER
from gpuwise.workload.capture.captured import (
    Capture,
    Category,
    ModuleCall,
    Parameter,
    Settings,
    Signature,
    StepSpan,
    TensorSpec,
)
from gpuwise.workload.capture.record.edit import Editor
from gpuwise.workload.capture.record.table import row_shape
from gpuwise.workload.optimizer import BITSANDBYTES, RULES
from gpuwise.workload.row_codes import Kind, Phase
from gpuwise.workload.tables.sizes import Sizes

FOLDER = Path(__file__).with_name("data")
FORMAT = 1
OPTIMIZERS = ("adamw", "adamw8bit", "adafactor", "lion", "momentum", "sgd")
"""Optimizers that a table can be updated by."""


@cache
def table(name: str) -> Mapping[str, Any]:
    """The document of a network. Raises DataError where it is broken or of another format."""
    path = FOLDER / f"{name}.json.xz"
    try:
        document: dict[str, Any] = json.loads(lzma.decompress(path.read_bytes()))
    except (OSError, ValueError, lzma.LZMAError) as error:
        raise DataError(f"{path.name}: {error}") from None
    if document.get("format") != FORMAT:
        raise DataError(f"{path.name} has format {document.get('format')!r}, not {FORMAT}")
    return document


def attention_work(s: Signature) -> float:
    """Products of an attention's sizes: its FLOP are a multiple of this."""
    kind, shape, _ = row_shape(s)
    if kind is not Kind.ATTENTION or len(shape) < 6:
        return 0.0
    b, sq, skv, heads, _, d, _ = shape
    return float(b) * sq * skv * heads * d


def spec_bytes(specs: tuple[TensorSpec, ...]) -> float:
    """Bytes of the tensors."""
    return float(sum(math.prod(t.shape) * TENSOR_BYTES.get(t.dtype, 1) for t in specs))


@dataclass(frozen=True, slots=True)
class Made:
    """Wishes for a step."""

    variant: str
    batch: int
    size: float
    rank: int = 16
    frames: int = 1
    optimizer: str = "adamw"
    half: str = "bf16"
    """The 16-bit format: fp16 where the accelerator lacks bf16."""
    frozen: tuple[str, ...] = ()
    """Networks that run forward before it, whose results are not cached."""
    quantized: bool = False
    """Frozen matrices in 4 bits."""


def made(name: str, wish: Made) -> Capture:
    """The step of the network ``name``. Raises InputError for a variant that was not captured."""
    document = table(name)
    variants = document["variants"]
    if wish.variant not in variants:
        raise InputError(f"{name} has no {wish.variant}", hint="it has " + ", ".join(variants))
    sizes = Sizes(wish.batch, wish.rank, wish.frames, wish.size, document["size"])
    capture = _decoded(variants[wish.variant], sizes, document, wish.half)
    capture = replace(capture, name=name, batch=wish.batch)
    if wish.quantized:
        capture = _quantized(capture)
    capture = _with_frozen(capture, wish)
    return _updated(capture, wish.optimizer)


def _decoded(v: Mapping[str, Any], sizes: Sizes, document: Mapping[str, Any], half: str) -> Capture:
    values = [sizes.of(t) for t in v["terms"]]

    def whole(code: Any) -> Any:
        """An attribute: terms are ``{"t": index}``."""
        if isinstance(code, dict):
            return values[cast("dict[str, int]", code)["t"]]
        return tuple(whole(c) for c in cast("list[Any]", code)) if isinstance(code, list) else code

    def dims(codes: list[int]) -> tuple[int, ...]:
        return tuple(values[i] for i in codes)

    def tensors(codes: list[int]) -> tuple[TensorSpec, ...]:
        return tuple(specs[i] for i in codes)

    def form(dtype: str) -> str:
        return half if dtype == "bf16" else dtype

    specs = [TensorSpec(dims(shape), dims(stride), form(dtype)) for dtype, shape, stride in v["tensors"]]
    signatures: list[Signature] = []
    for op, kind, inputs, outputs, attributes, flop, read, written, kernels in v["signatures"]:
        s = Signature(
            op,
            Kind(kind),
            tensors(inputs),
            tensors(outputs),
            tuple((name, form(value) if isinstance(value, str) else whole(value)) for name, value in attributes),
            0.0,
            0.0,
            0.0,
            kernels,
        )
        flops = cast("dict[str, float]", flop)["a"] * attention_work(s) if isinstance(flop, dict) else float(dims([flop])[0])
        moved = [
            cast("dict[str, float]", code)["k"] * spec_bytes(whose) if isinstance(code, dict) else float(dims([code])[0])
            for code, whose in ((read, s.inputs), (written, s.outputs))
        ]
        signatures.append(replace(s, flop=flops, bytes_read=moved[0], bytes_written=moved[1]))
    columns = {name: _column(runs) for name, runs in v["columns"].items()}
    dtypes = v["dtypes"]
    trained = [
        Parameter(name, storage, dims(shape), form(dtype), bool(trainable))
        for name, storage, shape, dtype, trainable in v["parameters"]
    ]
    n_ops, n_events = len(columns["op_signature"]), len(columns["event_storage"])
    by_module: dict[str, int] = {}
    for p in trained:
        path = p.name.rpartition(".")[0]
        by_module[path] = by_module.get(path, 0) + math.prod(p.shape) * TENSOR_BYTES[p.dtype]
    calls = tuple(ModuleCall(m, a, b, (), ()) for m, a, b in v["calls"])
    zeros = np.zeros(n_ops, np.int64)
    return Capture(
        signatures=tuple(signatures),
        modules=tuple(v["modules"]),
        module_types=tuple(v["module_types"]),
        lines=("",),
        op_signature=columns["op_signature"],
        op_phase=columns["op_phase"],
        op_module=columns["op_module"],
        op_line=zeros,
        op_stream=zeros,
        op_flags=columns["op_flags"],
        storage_bytes=np.array([values[i] for i in columns["storage_bytes"].tolist()], np.int64),
        storage_category=columns["storage_category"],
        storage_op=columns["storage_op"],
        storage_module=columns["storage_module"],
        storage_dtype=tuple(form(dtypes[i]) for i in columns["storage_dtype"].tolist()),
        storage_stream=np.zeros(len(columns["storage_bytes"]), np.int64),
        event_storage=columns["event_storage"],
        event_sign=columns["event_sign"].astype(np.int8),
        event_op=columns["event_op"],
        steps=(StepSpan(0, n_ops, v["first_event"], n_events),),
        settings=Settings(document["torch"], (8, 0), autocast_dtypes=(half,), channels_last=bool(v.get("channels_last"))),
        parameter_count=sum(math.prod(p.shape) for p in trained),
        trainable_count=sum(math.prod(p.shape) for p in trained if p.trainable),
        by_name=True,
        parameter_bytes_by_module=by_module,
        parameters=tuple(trained),
        calls=calls,
    )


def _column(differences: list[int]) -> NDArray[np.int64]:
    return np.cumsum(np.array(differences, np.int64))


def _quantized(capture: Capture) -> Capture:
    """The step with its frozen matrices in NF4: each cast or product of one reads 4 bits and writes 16 before."""
    small = capture.storage_bytes.copy()
    matrices = [p for p in capture.parameters if not p.trainable and len(p.shape) == 2 and p.storage >= 0]
    for p in matrices:
        small[p.storage] = int(math.prod(p.shape) * NF4_BYTES_PER_PARAMETER)
    edit = Editor(capture)
    edit.resize(np.arange(len(small)), small)
    whole = sum(math.prod(p.shape) for p in matrices)
    phases = [Phase.FORWARD, Phase.BACKWARD, *([Phase.RECOMPUTE] if (capture.op_phase == Phase.RECOMPUTE).any() else [])]
    last = len(capture.op_signature) - 1
    for phase in phases:
        moved = TensorSpec((whole,), (1,), "bf16")
        read, written = NF4_BYTES_PER_PARAMETER * whole, 2.0 * whole
        opened = Signature("aten._to_copy.default", Kind.MEMORY, (moved,), (moved,), (), 0.0, read, written, len(matrices))
        edit.op(0 if phase is Phase.FORWARD else last, opened, phase)
    return edit.build()


def _with_frozen(capture: Capture, wish: Made) -> Capture:
    """The step with networks that run forward before it: their weights stay, their results are made of each batch."""
    if not wish.frozen:
        return capture
    edit = Editor(capture)
    for name in wish.frozen:
        part = _frozen(name, wish.batch, wish.size, wish.half)
        weights = sum(math.prod(p.shape) * TENSOR_BYTES[p.dtype] for p in part.parameters)
        edit.born(edit.storage(weights, Category.PARAMETER, wish.half), 0, -1)
        held = edit.storage(max(part.peak_bytes() - weights, 0), Category.TEMPORARY, wish.half, op=0)
        for i in map(int, part.op_signature):
            edit.op(0, part.signatures[i], Phase.FORWARD)
        edit.born(held, 0)
        edit.freed(held, 0)
    return edit.build()


@cache
def _frozen(name: str, batch: int, size: float, half: str) -> Capture:
    document = table(name)
    return _decoded(document["variants"]["forward"], Sizes(batch, 1, 1, size, document["size"]), document, half)


def _updated(capture: Capture, optimizer: str) -> Capture:
    """The step with its update by ``optimizer`` in the place of the captured one."""
    rule = RULES[optimizer]
    trained = [p for p in capture.parameters if p.trainable]
    specs = tuple(TensorSpec(p.shape, (), p.dtype) for p in trained)
    weights = spec_bytes(specs)
    count = sum(math.prod(p.shape) for p in trained)
    share = weights / (4.0 * count) if count and optimizer in ("adamw", "momentum", "lion") else 1.0
    traffic = rule.traffic_bytes * share * count
    one_kernel = optimizer in BITSANDBYTES
    passes = 0.0 if one_kernel else rule.foreach_passes
    kernels = len(trained) if one_kernel else max(1, round(passes * max(len(trained) / 110.0, count / (320.0 * 65536.0))))
    lists = 4 if optimizer.startswith("adamw") else 2
    update = Signature(
        "aten._fused_adamw_.default" if lists == 4 else "aten._fused_sgd_.default",
        Kind.OPTIMIZER,
        specs * lists,
        (),
        (),
        0.0,
        3.0 * weights + traffic / 2.0 + passes * weights,
        weights + traffic / 2.0 + passes * weights,
        kernels,
    )
    last = len(capture.op_signature) - 1
    signatures = (*capture.signatures, update)
    op_signature = capture.op_signature.copy()
    op_signature[last] = len(capture.signatures)
    edit = Editor(replace(capture, signatures=signatures, op_signature=op_signature))
    for p in trained:
        bytes_of, dtype = math.prod(p.shape) * TENSOR_BYTES[p.dtype], "u8" if one_kernel else p.dtype
        left = rule.state_bytes * share * math.prod(p.shape)
        whole = float(math.prod(p.shape) if one_kernel else bytes_of)
        while left > 0:
            edit.born(edit.storage(max(int(min(left, whole)), 1), Category.OPTIMIZER, dtype), 0)
            left -= whole
        if passes:
            temporary = edit.storage(bytes_of, Category.TEMPORARY, p.dtype, op=last)
            edit.born(temporary, last)
            edit.freed(temporary, last + 1)
    built = edit.build()
    names = {"adamw": "AdamW/foreach", "adamw8bit": "AdamW8bit", "momentum": "SGD/foreach", "sgd": "SGD/foreach"}
    settings = replace(built.settings, optimizers=(names.get(optimizer, optimizer.capitalize()),))
    return replace(built, settings=settings, calls=capture.calls)
