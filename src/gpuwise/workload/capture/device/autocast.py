# pyright: basic
"""Autocast for the pretended device: torch's own C++ rules ask ``tensor.is_cuda()``, so they are given again here.

The four lists and their meaning: ATen/autocast_mode.h (``AT_FORALL_LOWER_PRECISION_FP``, ``AT_FORALL_FP32``,
``AT_FORALL_FP32_SET_OPT_DTYPE``, ``AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE``, ``AT_FORALL_PROMOTE``). Which overloads
the running torch has is read from its dispatcher; one it has that no list names is cast to nothing and reported.
"""

from __future__ import annotations

import warnings
import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._C import DispatchKey

from gpuwise.workload.capture.device.patching import Patches, register_kernel
from gpuwise.workload.capture.operations import operations

if TYPE_CHECKING:
    from gpuwise.workload.capture.device.state import DeviceState

_LISTS = operations()["autocast"]
LOWER, FP32, FP32_SET_OPT_DTYPE, PROMOTE = (_LISTS[n] for n in ("lower", "fp32", "fp32_set_opt_dtype", "promote"))
FP32_APPEND_DTYPE = {"norm.Scalar": "norm.ScalarOpt_dtype", "norm.ScalarOpt_dim": "norm.ScalarOpt_dim_dtype"}
BANNED = ["binary_cross_entropy"]
_KEYS = torch._C.DispatchKeySet(DispatchKey.AutocastCUDA)


class Caster:
    """Casts with autocast's cache: a leaf weight's copy lives until the outermost autocast context ends."""

    def __init__(self, acc: DeviceState) -> None:
        self.acc = acc
        self.cache: dict[int, tuple[Any, Tensor]] = {}

    def eligible(self, value: Any) -> bool:
        return (
            isinstance(value, Tensor)
            and value.is_meta
            and value.dtype.is_floating_point
            and value.dtype is not torch.float64
            and self.acc.is_device(value)
        )

    def cast(self, value: Any, dtype: torch.dtype, lower: bool) -> Any:
        if isinstance(value, Tensor):
            if value.dtype is dtype or not self.eligible(value):
                return value
            return self._cached(value, dtype) if lower else value.to(dtype)
        if isinstance(value, (list, tuple)):
            return type(value)([self.cast(v, dtype, lower) for v in value])
        return value

    def _cached(self, value: Tensor, dtype: torch.dtype) -> Tensor:
        usable = (
            value.dtype is torch.float32
            and value.requires_grad
            and value.is_leaf
            and not value._is_view()
            and torch.is_autocast_cache_enabled()
        )
        if not usable:
            return value.to(dtype)
        entry = self.cache.get(id(value))
        if entry is not None and entry[0]() is value and entry[1].dtype is dtype:
            return entry[1]
        copy = value.to(dtype)
        self.cache[id(value)] = (weakref.ref(value), copy)
        return copy


def install(acc: DeviceState, patches: Patches) -> Any:
    """Register the kernels and make autocast's key part of every call; returns the function that takes it back."""
    caster = Caster(acc)
    library = torch.library.Library("aten", "IMPL")
    present = {
        n.partition("::")[2]
        for n in torch._C._dispatch_get_registrations_for_dispatch_key("AutocastCUDA")
        if n.startswith("aten::")
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for names, make in (
            (LOWER, _lower),
            (FP32, _fp32),
            (FP32_SET_OPT_DTYPE, _opt_dtype),
            (FP32_APPEND_DTYPE, _append),
            (PROMOTE, _promote),
            (BANNED, _banned),
        ):
            for name in names:
                if name in present:
                    register_kernel(library, name, make(caster, _op(name), name), "AutocastCUDA")
        register_kernel(library, "_cudnn_rnn", _rnn(caster), "AutocastCUDA")
    clear = torch.clear_autocast_cache

    def clear_cache() -> None:
        caster.cache.clear()
        clear()

    patches.set(torch, "clear_autocast_cache", clear_cache)
    guard = torch._C._IncludeDispatchKeyGuard(DispatchKey.AutocastCUDA)
    guard.__enter__()

    def undo() -> None:
        guard.__exit__(None, None, None)
        caster.cache.clear()
        library._destroy()

    return undo


def _op(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def _without() -> Any:
    return torch._C._ExcludeDispatchKeyGuard(_KEYS)


def _lower(caster: Caster, op: Any, name: str) -> Any:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        with _without():
            dtype = torch.get_autocast_dtype("cuda")
            return op(*(caster.cast(a, dtype, True) for a in args), **{k: caster.cast(v, dtype, True) for k, v in kwargs.items()})

    return kernel


def _fp32(caster: Caster, op: Any, name: str) -> Any:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        with _without():
            lowest = torch.float32
            return op(
                *(caster.cast(a, lowest, False) for a in args), **{k: caster.cast(v, lowest, False) for k, v in kwargs.items()}
            )

    return kernel


def _opt_dtype(caster: Caster, op: Any, name: str) -> Any:
    index = [a.name for a in op._schema.arguments].index("dtype")

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with _without():
            if caster.eligible(args[0]):
                if len(args) > index:
                    if args[index] is None:
                        args = (*args[:index], torch.float32, *args[index + 1 :])
                elif kwargs.get("dtype") is None:
                    kwargs = {**kwargs, "dtype": torch.float32}
            return op(*args, **kwargs)

    return kernel


def _append(caster: Caster, op: Any, name: str) -> Any:
    target = _op(FP32_APPEND_DTYPE[name])
    defaults = [a.default_value for a in op._schema.arguments]

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with _without():
            args = (*args, *defaults[len(args) :])
            return target(*args, dtype=torch.float32 if caster.eligible(args[0]) else args[0].dtype, **kwargs)

    return kernel


def _promote(caster: Caster, op: Any, name: str) -> Any:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        with _without():
            dtype = torch.get_autocast_dtype("cuda")
            for value in _flat((*args, *kwargs.values())):
                if caster.eligible(value) and value.dtype is torch.float32:
                    dtype = torch.float32
            args = tuple(caster.cast(a, dtype, False) for a in args)
            kwargs = {k: caster.cast(v, dtype, False) for k, v in kwargs.items()}
            return op(*args, **kwargs)

    return kernel


def _flat(values: Any) -> Any:
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from _flat(value)
        else:
            yield value


def _banned(caster: Caster, op: Any, name: str) -> Any:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(
            "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast. "
            "Use binary_cross_entropy_with_logits or torch.nn.BCEWithLogitsLoss."
        )

    return kernel


def _rnn(caster: Caster) -> Any:
    """cuDNN layers: inputs and states are cast, and the weights copied into one flat buffer of the lower format.

    ``_cudnn_rnn_cast_reflatten`` of ATen/cudnn/AutocastRNN.cpp.
    """
    op = torch.ops.aten._cudnn_rnn.default

    def kernel(input: Tensor, weight: Any, weight_stride0: int, weight_buf: Any, hx: Tensor, cx: Any, *extra: Any) -> Any:
        with _without():
            dtype = torch.get_autocast_dtype("cuda")
            if any(caster.eligible(w) and w.dtype is not dtype for w in weight):
                flat = torch.empty(sum(w.numel() for w in weight), dtype=dtype, device=input.device)
                weight, weight_buf = _into(flat, weight, dtype), flat
            input, hx, cx = (caster.cast(t, dtype, False) for t in (input, hx, cx))
            return op(input, weight, weight_stride0, weight_buf, hx, cx, *extra)

    return kernel


def _into(flat: Tensor, weights: Any, dtype: torch.dtype) -> list[Tensor]:
    """Casts of ``weights`` that autograd sees, each lying in its part of ``flat``."""
    out: list[Tensor] = []
    offset = 0
    for w in weights:
        cast = w.to(dtype)
        cast.data = flat[offset : offset + w.numel()].view(w.shape)
        offset += w.numel()
        out.append(cast)
    return out
