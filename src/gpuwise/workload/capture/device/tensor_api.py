# pyright: basic, reportPrivateImportUsage=false, reportAttributeAccessIssue=false
"""``torch.Tensor`` as a program on a GPU sees it: devices, moves between them, values read back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gpuwise.workload.capture.device.ledger import CUDA0, inside
from gpuwise.workload.capture.device.patching import Patches

if TYPE_CHECKING:
    from gpuwise.workload.capture.device.state import DeviceState

_device_of = torch._C.TensorBase.device.__get__
_is_meta = torch._C.TensorBase.is_meta.__get__
_to = torch._C.TensorBase.to
_ADDRESS_SHIFT = 12
"""Simulated addresses are spaced by this many bits per byte of the storage's own address."""
_NUMPY_ERROR = "can't convert {} device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory first."


def install(acc: DeviceState, patches: Patches) -> None:
    """Replace the functions that report or change a tensor's device."""
    ledger = acc.ledger
    labels = ledger.labels

    def device(self: Tensor) -> torch.device:
        if inside[0] or not _is_meta(self):
            return _device_of(self)
        if not labels:
            return CUDA0
        return labels.get(self.untyped_storage()._cdata, CUDA0)

    def is_cuda(self: Tensor) -> bool:
        return device(self).type == "cuda"

    def is_cpu(self: Tensor) -> bool:
        return device(self).type == "cpu"

    def get_device(self: Tensor) -> int:
        where = device(self)
        return where.index if where.type == "cuda" else -1

    patches.set(Tensor, "device", property(device))
    patches.set(Tensor, "is_cuda", property(is_cuda))
    patches.set(Tensor, "is_cpu", property(is_cpu))
    patches.set(Tensor, "get_device", get_device)
    _install_moves(acc, patches, device)
    _install_reads(acc, patches, device)
    _install_data(acc, patches)
    _install_meta(acc, patches)


def _install_moves(acc: DeviceState, patches: Patches, device: Any) -> None:
    def to(self: Tensor, *arguments: Any, **kwargs: Any) -> Tensor:
        if inside[0]:
            return _to(self, *arguments, **kwargs)
        keywords, args = dict(kwargs), list(arguments)
        target: Any = kwargs.pop("device", None)
        first = args[0] if args else kwargs.pop("other", None)
        if isinstance(first, Tensor):
            target = device(first)
            args[:1] = [first.dtype]
        elif isinstance(first, (str, torch.device, int)) and not isinstance(first, bool):
            target = first
            args.pop(0)
        elif args and first is None:
            args.pop(0)
        if target is None:
            return _to(self, *arguments, **keywords)
        target = acc.device_of(target)
        for name, value in zip(("dtype", "non_blocking", "copy", "memory_format"), _aligned(args), strict=False):
            if value is not None:
                kwargs[name] = value
        if target == device(self):
            kwargs.pop("non_blocking", None)
            if kwargs.get("dtype") is None and not kwargs.get("copy") and kwargs.get("memory_format") is None:
                return self
            return _to(self, kwargs.pop("dtype", None) or self.dtype, **kwargs)
        return _move(self, target, **kwargs)

    def cuda(self: Tensor, device: Any = None, non_blocking: bool = False, memory_format: Any = torch.preserve_format) -> Tensor:
        return to(self, "cuda" if device is None else device, non_blocking=non_blocking, memory_format=memory_format)

    def cpu(self: Tensor, memory_format: Any = torch.preserve_format) -> Tensor:
        return to(self, "cpu", memory_format=memory_format)

    def pin_memory(self: Tensor, device: Any = None) -> Tensor:
        return self

    def record_stream(self: Tensor, stream: Any) -> None:
        return None

    patches.set(Tensor, "to", to)
    patches.set(Tensor, "cuda", cuda)
    patches.set(Tensor, "cpu", cpu)
    patches.set(Tensor, "pin_memory", pin_memory)
    patches.set(Tensor, "is_pinned", lambda self, device=None: False)
    patches.set(Tensor, "record_stream", record_stream)


def _aligned(args: list[Any]) -> list[Any]:
    """Positional arguments of ``Tensor.to`` after the device, as (dtype, non_blocking, copy)."""
    return [None, *args] if args and isinstance(args[0], bool) else args


def _move(
    tensor: Tensor,
    target: torch.device,
    dtype: Any = None,
    non_blocking: bool = False,
    copy: bool = False,
    memory_format: Any = torch.preserve_format,
) -> Tensor:
    """A copy on another device; differentiable like ``Tensor.to``."""
    del copy
    return torch.ops.aten._to_copy.default(
        tensor,
        dtype=dtype,
        device=target,
        non_blocking=non_blocking,
        memory_format=None if memory_format is torch.preserve_format else memory_format,
    )


def _install_reads(acc: DeviceState, patches: Patches, device: Any) -> None:
    numpy_of, tolist_of, repr_of = Tensor.numpy, Tensor.tolist, Tensor.__repr__

    def numpy(self: Tensor, *, force: bool = False) -> Any:
        if not _is_meta(self) or inside[0]:
            return numpy_of(self, force=force)
        import numpy as np

        where = device(self)
        if where.type != "cpu" and not force and not acc.host_is_device:
            raise TypeError(_NUMPY_ERROR.format(where))
        if where.type == "cuda":
            acc.sync("a tensor is copied to the host (.numpy(force=True))")
        name = {torch.bool: "bool"}.get(self.dtype, str(self.dtype).partition(".")[2])
        return np.zeros(tuple(self.shape), dtype=name)

    def tolist(self: Tensor) -> Any:
        if not _is_meta(self):
            return tolist_of(self)
        if device(self).type == "cuda":
            acc.sync("a tensor is read to the host (.tolist())")
        contents = acc.values.of(self)
        if contents is not None:
            return contents.tolist()
        mean = acc.values.law(self).mean
        value: Any = acc.values.guess(self.dtype) if mean is None or self.dtype is torch.bool else mean
        if not self.dtype.is_floating_point and not isinstance(value, bool):
            value = round(value)
        for n in reversed(self.shape):
            value = [value] * n
        return value

    def show(self: Tensor, *, tensor_contents: Any = None) -> str:
        if not _is_meta(self):
            return repr_of(self, tensor_contents=tensor_contents)
        where = device(self)
        if where.type == "cuda":
            acc.sync("a tensor is printed")
        grad = ", requires_grad=True" if self.requires_grad else ""
        return f"tensor(..., device='{where}', size={tuple(self.shape)}, dtype={self.dtype}{grad})"

    format_of = Tensor.__format__

    def formatted(self: Tensor, spec: str) -> str:
        return format(self.item(), spec) if _is_meta(self) and not self.dim() else format_of(self, spec)

    patches.set(Tensor, "__format__", formatted)
    patches.set(Tensor, "numpy", numpy)
    patches.set(Tensor, "tolist", tolist)
    patches.set(Tensor, "__repr__", show)


def _install_data(acc: DeviceState, patches: Patches) -> None:
    """``p.data = q`` and ``module.to()`` between real host tensors and pretended ones, keeping the Python object."""
    original = torch._C.TensorBase.data

    def set_data(self: Tensor, value: Tensor) -> None:
        if _is_meta(self) == _is_meta(value):
            original.__set__(self, value)
            return
        grad = self.grad if self.is_leaf else None
        fresh = value.detach()
        fresh.requires_grad_(self.requires_grad and self.is_leaf)
        torch._C._swap_tensor_impl(self, fresh)
        if grad is not None:  # Module._apply moves it next, by its own ``data``
            self.grad = torch.empty_like(self)

    compatible = torch._has_compatible_shallow_copy_type

    def has_compatible(a: Tensor, b: Tensor) -> bool:
        return _is_meta(a) != _is_meta(b) or compatible(a, b)

    patches.set(Tensor, "data", property(original.__get__, set_data))
    patches.set(torch, "_has_compatible_shallow_copy_type", has_compatible)

    pointer_of, storage_pointer_of = Tensor.data_ptr, torch.UntypedStorage.data_ptr

    def data_ptr(self: Tensor) -> int:
        """A unique address for each storage: programs compare addresses to detect shared memory."""
        if not _is_meta(self) or inside[0]:
            return pointer_of(self)
        if not self.numel():
            return 0
        return (self.untyped_storage()._cdata << _ADDRESS_SHIFT) + self.storage_offset() * self.element_size()

    def storage_data_ptr(self: Any) -> int:
        if self.device.type != "meta" or inside[0]:
            return storage_pointer_of(self)
        return self._cdata << _ADDRESS_SHIFT if self.nbytes() else 0

    patches.set(Tensor, "data_ptr", data_ptr)
    patches.set(torch.UntypedStorage, "data_ptr", storage_data_ptr)
    resize_of = torch.UntypedStorage.resize_

    def resize_(self: Any, size: int) -> Any:
        result = resize_of(self, size)
        acc.ledger.resize(self)
        return result

    patches.set(torch.UntypedStorage, "resize_", resize_)


_FACTORIES = [
    "empty",
    "zeros",
    "ones",
    "full",
    "arange",
    "rand",
    "randn",
    "randint",
    "tensor",
    "empty_strided",
    "eye",
    "linspace",
    "empty_like",
    "zeros_like",
]


def _read_back(values: Any) -> Any:
    """A list with the pretended scalars in it read back, as ``torch.tensor`` does with those of a GPU."""
    if type(values) in (list, tuple):
        return [_read_back(v) for v in values] if any(isinstance(v, (list, tuple, Tensor)) for v in values) else values
    return values.tolist() if isinstance(values, Tensor) and _is_meta(values) else values


def _install_meta(acc: DeviceState, patches: Patches) -> None:
    """Distinguish a program's own ``device="meta"`` from torch's internal name of the simulated device."""

    def wrap(factory: Any) -> Any:
        def construct(*args: Any, **kwargs: Any) -> Any:
            if factory is tensor and args and type(args[0]) in (list, tuple):
                args = (_read_back(args[0]), *args[1:])
            device = kwargs.get("device")
            if device is None:
                return factory(*args, **kwargs)
            kwargs["device"] = where = acc.device_of(device)  # with its index: torch.tensor queries CUDA for a missing one
            if where.type != "meta":
                return factory(*args, **kwargs)
            acc.meta_depth += 1
            try:
                return factory(*args, **kwargs)
            finally:
                acc.meta_depth -= 1

        return construct

    from torch.utils._device import DeviceContext, _device_constructors

    tensor = torch.tensor
    _device_constructors()  # torch builds this table once, at first use: from its own functions, not from ours
    for name in _FACTORIES:
        patches.set(torch, name, wrap(getattr(torch, name)))

    of = DeviceContext.__torch_function__

    def torch_function(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.device.type != "meta":
            if func in _device_constructors() and not (kwargs and kwargs.get("device") is not None):
                kwargs = {**(kwargs or {}), "device": acc.device_of(self.device)}
            return of(self, func, types, args, kwargs)
        acc.meta_depth += 1
        try:
            return of(self, func, types, args, kwargs)
        finally:
            acc.meta_depth -= 1

    patches.set(DeviceContext, "__torch_function__", torch_function)

    def lifted(convert: Any) -> Any:
        def converted(obj: Any, *args: Any, device: Any = None, **kwargs: Any) -> Tensor:
            if device is None or torch.device(device).type != "cuda":
                return convert(obj, *args, device=device, **kwargs)
            if isinstance(obj, Tensor):
                return obj.to(device, *args, **kwargs)
            return convert(obj, *args, **kwargs).to(device)

        return converted

    for name in ("as_tensor", "asarray"):
        patches.set(torch, name, lifted(getattr(torch, name)))

    script = torch.jit.script

    def scripted(*args: Any, **kwargs: Any) -> Any:
        """The script compiler reads torch's functions by identity: it sees torch as it is."""
        with patches.suspended():
            return script(*args, **kwargs)

    patches.set(torch.jit, "script", scripted)
