# pyright: basic
"""Signatures of aten calls, made once for each distinct call: names, kinds, FLOP, bytes and kernels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gpuwise.workload.capture.captured import Signature, TensorSpec
from gpuwise.workload.capture.ops.flop import RULES, flop_of
from gpuwise.workload.capture.ops.traffic import NO_KERNEL, bytes_of, kernels_of
from gpuwise.workload.row_codes import Kind

DTYPES = {
    torch.float64: "fp64",
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.bool: "bool",
    torch.complex64: "c64",
    torch.complex128: "c128",
    torch.complex32: "c32",
    torch.uint16: "u16",
    torch.uint32: "u32",
    torch.uint64: "u64",
}
for _name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"):
    if hasattr(torch, _name):
        DTYPES[getattr(torch, _name)] = "fp8"
if hasattr(torch, "float4_e2m1fn_x2"):
    DTYPES[torch.float4_e2m1fn_x2] = "fp4"

_EMBEDDING = frozenset(
    {
        "embedding",
        "embedding_dense_backward",
        "_embedding_bag",
        "_embedding_bag_forward_only",
        "_embedding_bag_dense_backward",
        "embedding_renorm_",
        "_embedding_bag_backward",
    }
)
_COPY = frozenset({"copy_", "_to_copy", "_copy_from", "_copy_from_and_resize"})
_COLLECTIVE = ("c10d", "_c10d_functional", "c10d_functional", "_dtensor", "fsdp", "symm_mem")
_IGNORED_ARGUMENTS = frozenset({"device", "generator", "pin_memory", "layout", "non_blocking", "lr"})
_PLAIN = (int, float, bool, str, type(None))


def dtype_name(dtype: torch.dtype) -> str:
    """The project's name of a torch dtype; unknown ones are bytes of their width."""
    return DTYPES.get(dtype) or {1: "u8", 2: "u16", 4: "u32"}.get(dtype.itemsize, "u64")


def spec_of(tensor: Tensor) -> TensorSpec:
    """Shape, stride and dtype of a tensor; sparse layouts count as dense of their shape."""
    shape = tuple(int(n) for n in tensor.shape)
    try:
        stride = tuple(int(n) for n in tensor.stride())
    except (RuntimeError, NotImplementedError):  # sparse and nested layouts have no strides
        stride, step = [], 1
        for n in reversed(shape):
            stride.insert(0, step)
            step *= max(n, 1)
        stride = tuple(stride)
    return TensorSpec(shape, stride, dtype_name(tensor.dtype))


class Overload:
    """Constant properties of one operator overload."""

    __slots__ = ("arguments", "copies", "mutated", "name", "namespace", "op", "view")

    def __init__(self, func: Any) -> None:
        schema = func._schema
        self.op = str(func)
        self.namespace, _, self.name = schema.name.partition("::")
        self.arguments = tuple(a.name for a in schema.arguments)
        self.mutated = tuple(a.alias_info is not None and a.alias_info.is_write for a in schema.arguments)
        returned = [r.alias_info for r in schema.returns]
        self.view = not any(self.mutated) and any(a is not None and not a.is_write for a in returned)
        self.copies = self.name in _COPY


COLLECTIVE_ATTRIBUTES = ("collective", "payload_bytes", "group_size", "group_ranks")
"""Attributes that :mod:`gpuwise.workload.capture.ops.distributed` adds to the call of a collective."""


class Signatures:
    """Interns calls: :meth:`index` gives the position of a call's signature in :attr:`all`."""

    def __init__(self) -> None:
        self.all: list[Signature] = []
        self.overloads: dict[Any, Overload] = {}
        self._index: dict[Any, int] = {}
        self._same: dict[Signature, int] = {}
        self.autocast: dict[str, None] = {}
        """Formats autocast had when a call was first seen, in order."""

    def index(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
        host_copy: str = "",
        visible: float | None = None,
    ) -> int:
        """Position of the signature of this call; of an attention, ``visible`` is the share of its scores that a mask leaves."""
        key: list[Any] = [func, host_copy, visible]
        first: Tensor | None = None
        for arg in args:
            cls = arg.__class__
            if cls is Tensor or isinstance(arg, Tensor):
                if arg.layout is torch.strided:
                    key.append((arg.dtype, arg.shape, arg.stride()))
                else:
                    key.append((arg.dtype, arg.shape))
                if first is None:
                    first = arg
                elif arg is first:
                    key.append("again")
            elif cls is list or cls is tuple:
                key.append(self._list_key(arg))
            else:
                key.append(arg)
        if kwargs:
            for name, value in kwargs.items():
                if name in _IGNORED_ARGUMENTS:
                    continue
                key.append(name)
                if isinstance(value, Tensor):
                    key.append((value.dtype, value.shape, value.stride()))
                elif value.__class__ in (list, tuple):
                    key.append(self._list_key(value))
                else:
                    key.append(value)
        if isinstance(result, Tensor):
            key.append(result.shape)
        whole = tuple(key)
        try:
            position = self._index.get(whole)
        except TypeError:  # an argument that cannot be hashed (a script object)
            whole, position = tuple(map(repr, key)), None
            position = self._index.get(whole)
        if position is None:
            position = self._index[whole] = self._make(func, args, kwargs, result, host_copy, visible)
        return position

    def _list_key(self, values: Any) -> Any:
        if values and isinstance(values[0], Tensor):
            return tuple([(v.dtype, v.shape, v.stride()) if isinstance(v, Tensor) else v for v in values])
        if values and values[0].__class__ is float:
            return len(values)
        return tuple(
            [
                self._list_key(v) if v.__class__ in (list, tuple) else ((v.dtype, v.shape) if isinstance(v, Tensor) else v)
                for v in values
            ]
        )

    def overload(self, func: Any) -> Overload:
        """The fixed facts of ``func``."""
        entry = self.overloads.get(func)
        if entry is None:
            entry = self.overloads[func] = Overload(func)
        return entry

    def _make(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any, host_copy: str, visible: float | None
    ) -> int:
        over = self.overload(func)
        if torch.is_autocast_enabled("cuda"):
            self.autocast[dtype_name(torch.get_autocast_dtype("cuda"))] = None
        arguments: dict[str, Any] = dict(zip(over.arguments, args, strict=False)) | kwargs
        specs: dict[int, TensorSpec] = {}
        call = {name: self._value(value, specs) for name, value in arguments.items()}
        inputs: list[TensorSpec] = []
        for name in over.arguments:
            _flatten(call.get(name), inputs)
        distinct = list(specs.values())
        write_specs: list[TensorSpec] = []
        for name, is_written in zip(over.arguments, over.mutated, strict=True):
            if is_written:
                _flatten(call.get(name), write_specs)
        returned: list[TensorSpec] = []
        outputs = [*_flatten(self._value(result, specs), returned)]
        fresh = [o for o in outputs if not any(o is i for i in distinct)]
        read_bytes, write = (0.0, 0.0) if over.view else bytes_of(over.name, call, distinct, fresh, write_specs)
        kernels = kernels_of(over.name, call, inputs, outputs, over.view)
        signature = Signature(
            op=over.op,
            kind=_kind(over, kernels, host_copy),
            inputs=tuple(inputs),
            outputs=tuple(outputs),
            attributes=(*_attributes(over, call, host_copy), *((("visible", visible),) if visible is not None else ())),
            flop=flop_of(over.name, call, outputs) * (1.0 if visible is None else visible),
            bytes_read=read_bytes,
            bytes_written=write,
            n_kernels=kernels,
        )
        position = self._same.get(signature)
        if position is None:
            position = self._same[signature] = len(self.all)
            self.all.append(signature)
        return position

    def _value(self, value: Any, specs: dict[int, TensorSpec]) -> Any:
        if isinstance(value, Tensor):
            spec = specs.get(id(value))
            if spec is None:
                spec = specs[id(value)] = spec_of(value)
            return spec
        if isinstance(value, (list, tuple)):
            return tuple(self._value(v, specs) for v in value)
        return value


def _flatten(value: Any, into: list[TensorSpec]) -> list[TensorSpec]:
    if isinstance(value, TensorSpec):
        into.append(value)
    elif isinstance(value, tuple):
        for item in value:
            _flatten(item, into)
    return into


def _attributes(over: Overload, call: dict[str, Any], host_copy: str) -> list[tuple[str, object]]:
    attributes: list[tuple[str, object]] = []
    for name in over.arguments:
        if name not in call or name in _IGNORED_ARGUMENTS:
            continue
        value = call[name]
        if isinstance(value, TensorSpec) or (isinstance(value, tuple) and any(isinstance(v, TensorSpec) for v in value)):
            continue
        if isinstance(value, tuple) and len(value) > 16:
            continue
        if isinstance(value, torch.dtype):
            attributes.append((name, dtype_name(value)))
        elif isinstance(value, _PLAIN):
            if value is not None:
                attributes.append((name, value))
        elif isinstance(value, tuple) and all(isinstance(v, _PLAIN) for v in value):
            attributes.append((name, value))
        elif isinstance(value, torch.memory_format):
            attributes.append((name, str(value)))
    if host_copy:
        attributes.append(("direction", host_copy))
    attributes.extend((name, call[name]) for name in COLLECTIVE_ATTRIBUTES if name in call)
    return attributes


def _kind(over: Overload, kernels: int, host_copy: str) -> Kind:
    name = over.name
    if host_copy:
        return Kind.COPY
    if over.namespace in _COLLECTIVE:
        return Kind.COLLECTIVE
    if over.view or name in NO_KERNEL:
        return Kind.HOST
    if name in RULES:
        if "attention" in name:
            return Kind.ATTENTION
        if name.startswith(("conv", "_conv", "cudnn_conv", "mkldnn_conv")):
            return Kind.CONVOLUTION
        if name in ("_grouped_mm", "_scaled_grouped_mm"):
            return Kind.GROUPED
        if name.startswith("_fft"):
            return Kind.MEMORY
        return Kind.MATMUL
    if name in _EMBEDDING:
        return Kind.EMBEDDING
    if name.startswith(("_fused_ada", "_fused_sgd")):
        return Kind.OPTIMIZER
    return Kind.MEMORY if kernels else Kind.HOST
