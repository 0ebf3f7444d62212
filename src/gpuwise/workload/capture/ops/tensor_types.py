# pyright: basic, reportPrivateImportUsage=false, reportAttributeAccessIssue=false
"""``torch.FloatTensor``, ``torch.cuda.FloatTensor`` and their kind: types as programs before ``device=`` name them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gpuwise.workload.capture.device.ledger import inside
from gpuwise.workload.capture.device.patching import Patches

FORMATS = {
    "FloatTensor": torch.float32,
    "DoubleTensor": torch.float64,
    "HalfTensor": torch.float16,
    "BFloat16Tensor": torch.bfloat16,
    "LongTensor": torch.int64,
    "IntTensor": torch.int32,
    "ShortTensor": torch.int16,
    "CharTensor": torch.int8,
    "ByteTensor": torch.uint8,
    "BoolTensor": torch.bool,
}


class _TensorType(type):
    """A tensor type by format and device: ``isinstance`` checks both, a call creates a tensor there."""

    dtype: torch.dtype
    kind: str
    on_host: Any

    def __instancecheck__(cls, tensor: Any) -> bool:
        return isinstance(tensor, Tensor) and tensor.dtype is cls.dtype and tensor.device.type == cls.kind

    def __call__(cls, *args: Any, **kwargs: Any) -> Tensor:
        if cls.kind == "cpu":
            return cls.on_host(*args, **kwargs)
        sizes = args[0] if len(args) == 1 and isinstance(args[0], torch.Size) else args
        if all(type(n) is int for n in sizes):
            return torch.empty(tuple(sizes) or (0,), dtype=cls.dtype, device=cls.kind)
        if isinstance(args[0], Tensor) and args[0].device.type == cls.kind:
            return args[0].to(cls.dtype)
        return cls.on_host(*args, **kwargs).to(cls.kind)


def install(patches: Patches) -> None:
    """Replace the types' names and ``Tensor.type`` for the length of a capture."""
    by_name: dict[str, Any] = {}
    for name, dtype in FORMATS.items():
        on_host = getattr(torch, name)
        for place, kind in ((torch, "cpu"), (torch.cuda, "cuda")):
            full, facts = f"{place.__name__}.{name}", {"dtype": dtype, "kind": kind, "on_host": on_host}
            by_name[full] = _TensorType(name, (), {**facts, "__module__": place.__name__})
            patches.set(place, name, by_name[full])
    names = {(t.dtype, t.kind): name for name, t in by_name.items()}
    type_of = Tensor.type

    def converted(self: Tensor, dtype: Any = None, non_blocking: bool = False, **kwargs: Any) -> Any:
        if inside[0]:
            return type_of(self, dtype, non_blocking, **kwargs)
        if dtype is None:
            return names.get((self.dtype, self.device.type)) or type_of(self)
        wanted = by_name.get(dtype, dtype) if isinstance(dtype, str) else dtype
        if isinstance(wanted, _TensorType):
            return self.to(wanted.kind, wanted.dtype, non_blocking=non_blocking)
        return type_of(self, wanted, non_blocking, **kwargs)

    def set_default_tensor_type(wanted: Any) -> None:
        wanted = by_name.get(wanted, wanted) if isinstance(wanted, str) else wanted
        torch.set_default_dtype(wanted.dtype)
        torch.set_default_device(wanted.kind)

    patches.set(Tensor, "type", converted)
    patches.set(torch, "set_default_tensor_type", set_default_tensor_type)
