# pyright: basic, reportPrivateImportUsage=false, reportAttributeAccessIssue=false
"""What each operation's call gives, remembered by the metadata of its arguments.

Meta kernels are partly slow Python decompositions; a step calls the same ones with the same metadata over and over.
The first call of a signature runs the kernel and its result becomes a plan: new storages of given size, stride and
dtype; one of the arguments itself; or a plain value. Calls whose result shares storage with an argument in another
way (views) are never planned but run each time, as C++ meta views.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

NEW, ARG, MANY, VALUE, DIRECT = range(5)
_empty_strided = torch._C._VariableFunctions.empty_strided
_NEVER_PLANNED = frozenset({"_cudnn_rnn_flatten_weight"})
"""Operations that change their arguments without saying so in their schema."""


class OpInfo:
    """Constant properties of one operator overload, computed at its first call."""

    __slots__ = (
        "floats_matter",
        "fresh",
        "func",
        "handler",
        "has_device",
        "mutable",
        "name",
        "planned",
        "plans",
        "short",
        "takes_size",
        "view",
        "written",
    )

    def __init__(self, func: Any) -> None:
        schema = func._schema
        self.func = func
        self.name = str(func)
        self.short = schema.name.partition("::")[2]
        self.mutable = bool(schema.is_mutable)
        returns = [r.alias_info for r in schema.returns]
        self.view = not self.mutable and any(a is not None and not a.is_write for a in returns)
        names = [a.name for a in schema.arguments]
        self.has_device = "device" in names
        self.fresh = any(a is None for a in returns)
        """It returns something that is not one of its arguments."""
        self.written = 0 if returns and not self.fresh else None
        self.floats_matter = not (torch.Tag.pointwise in func.tags or (self.mutable and not any(n == "out" for n in names)))
        self.takes_size = any(a.name in ("size", "repeats", "pad") and "int" in str(a.type).lower() for a in schema.arguments)
        self.plans: dict[Any, Any] = {}
        self.handler: Any = None
        self.planned = self.short not in _NEVER_PLANNED


class Scan:
    """The arguments of one call: its key and its tensors."""

    __slots__ = ("cpu", "key", "meta")

    def __init__(self) -> None:
        self.key: list[Any] = []
        self.meta: list[Tensor] = []
        self.cpu: list[Tensor] = []

    def add(self, arg: Any, floats_matter: bool) -> None:
        key = self.key
        if isinstance(arg, Tensor):
            if arg.is_meta:
                self.meta.append(arg)
                key.append(1)
            else:
                self.cpu.append(arg)
                key.append(2)
            key.append(arg.dtype)
            key.append(arg.shape)
            if arg.layout is torch.strided:
                key.append(arg.stride())
            return
        cls = arg.__class__
        if cls is list or cls is tuple:
            key.append(len(arg) + 1000)
            for item in arg:
                self.add(item, floats_matter)
            return
        key.append(cls)
        if cls is not float or floats_matter:
            key.append(arg)


def plan_of(result: Any, args: tuple[Any, ...], tensors: list[Tensor]) -> tuple[Any, ...]:
    """How to make ``result`` again without the kernel."""
    if isinstance(result, Tensor):
        return _plan_tensor(result, args, tensors)
    if isinstance(result, (list, tuple)):
        parts = [plan_of(r, args, tensors) for r in result]
        keys = [r.untyped_storage()._cdata for r, p in zip(result, parts, strict=True) if p[0] == NEW]
        if any(p[0] in (DIRECT, MANY) and not isinstance(r, (list, tuple)) for r, p in zip(result, parts, strict=True)):
            return (DIRECT,)
        if any(p[0] == DIRECT for p in parts) or len(set(keys)) < len(keys):
            return (DIRECT,)
        return (MANY, type(result) if type(result) in (list, tuple) else tuple, tuple(parts))
    return (VALUE, result)


def _plan_tensor(result: Tensor, args: tuple[Any, ...], tensors: list[Tensor]) -> tuple[Any, ...]:
    for i, arg in enumerate(args):
        if arg is result:
            return (ARG, i)
    if not result.is_meta or result.layout is not torch.strided or result.is_conj() or result.is_neg():
        return (DIRECT,)
    storage = result.untyped_storage()
    if result.storage_offset() or any(t.untyped_storage()._cdata == storage._cdata for t in tensors if t.layout is torch.strided):
        return (DIRECT,)
    size, stride = tuple(result.shape), result.stride()
    extent = 0 if 0 in size else 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
    if storage.nbytes() != extent * result.element_size():
        return (DIRECT,)
    return (NEW, size, stride, result.dtype, storage.nbytes())
