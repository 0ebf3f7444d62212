# pyright: basic
"""Operations whose result depends on values: scalars read back are guessed, sizes are taken at their upper bound."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gpuwise.workload.capture.device.ledger import CUDA0, META
from gpuwise.workload.capture.device.values import guess
from gpuwise.workload.capture.record.capture import OpFlag

if TYPE_CHECKING:
    from gpuwise.workload.capture.device.memo import OpInfo
    from gpuwise.workload.capture.ops.dispatch import CaptureMode

aten = torch.ops.aten
_SYNC = int(OpFlag.SYNC)
HANDLERS: dict[Any, Any] = {}


def handles(*ops: Any) -> Any:
    """Register a handler ``(mode, info, args, kwargs) -> result`` for overloads."""

    def register(function: Any) -> Any:
        for op in ops:
            HANDLERS[op] = function
        return function

    return register


def _overloads(name: str, *overloads: str) -> list[Any]:
    packet = getattr(aten, name, None)
    return [getattr(packet, o) for o in overloads if packet is not None and o in packet.overloads()]


@handles(*_overloads("_local_scalar_dense", "default"))
def scalar(mode: CaptureMode, info: OpInfo, args: Any, kwargs: Any) -> Any:
    tensor = args[0]
    if not tensor.is_meta:
        return info.func(tensor)
    acc = mode.acc
    value = acc.values.scalar(tensor)
    known = value is not None
    if value is None:
        value = guess(tensor.dtype)
    if acc.is_device(tensor):
        acc.sync("a value is read from the device (.item(), bool(), float() or print())")
        if not known:
            acc.finding(
                "guess", f"the value read from the device is taken to be {value!r}", "the step is captured as if it were so"
            )
        acc.observer.operation(info.func, args, kwargs, value, _SYNC | acc.region_flags())
    return value


@handles(*_overloads("equal", "default"), *_overloads("allclose", "default"))
def equal(mode: CaptureMode, info: OpInfo, args: Any, kwargs: Any) -> Any:
    if not any(t.is_meta for t in args[:2]):
        return info.func(*args, **kwargs)
    mode.acc.sync(f"torch.{info.short} reads its answer from the device")
    mode.acc.observer.operation(info.func, args, kwargs, True, _SYNC | mode.acc.region_flags())
    return args[0].shape == args[1].shape


@handles(*_overloads("_assert_async", "default", "msg"), *_overloads("_assert_tensor_metadata", "default"))
def assertion(mode: CaptureMode, info: OpInfo, args: Any, kwargs: Any) -> Any:
    return None if args[0].is_meta else info.func(*args, **kwargs)


def _bounded(mode: CaptureMode, info: OpInfo, args: Any, kwargs: Any, result: Any, label: Any) -> Any:
    """Note births, tell the observer, and say that a size was taken at its upper bound."""
    acc = mode.acc
    for item in result if isinstance(result, (tuple, list)) else (result,):
        if isinstance(item, Tensor) and item.is_meta:
            acc.ledger.see(item, label)
    if label.type == "cuda":
        name = info.func._schema.name.partition("::")[2]
        acc.sync(f"{name} gives a size that depends on values: the host waits for it")
        acc.finding(
            "data-dependent",
            f"the size of {name}'s result depends on values; its upper bound is used",
            "memory and time are upper bounds here; masks of fixed size avoid both the wait and the doubt",
        )
        acc.observer.operation(info.func, args, kwargs, result, _SYNC | acc.region_flags())
    return result


def _empty(shape: Any, dtype: torch.dtype) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=META)


@handles(*_overloads("nonzero", "default"))
def nonzero(mode: CaptureMode, info: OpInfo, args: Any, kwargs: Any) -> Any:
    x = args[0]
    if not x.is_meta:
        return info.func(x)
    known = mode.acc.values.of(x)
    rows = int(known.count_nonzero()) if known is not None else x.numel()
    out = torch.empty_strided((rows, x.dim()), (1, max(rows, 1)), dtype=torch.int64, device=META)
    return _bounded(mode, info, args, kwargs, out, mode.ledger.label(x))


@handles(*_overloads("masked_select", "default"))
def masked_select(mode: CaptureMode, info: OpInfo, args: Any, kwargs: Any) -> Any:
    x, mask = args
    if not (x.is_meta or mask.is_meta):
        return info.func(x, mask)
    n = math.prod(torch.broadcast_shapes(x.shape, mask.shape))
    return _bounded(mode, info, args, kwargs, _empty((n,), x.dtype), mode.ledger.label(x if x.is_meta else mask))


@handles(
    *_overloads("_unique2", "default"),
    *_overloads("_unique", "default"),
    *_overloads("unique_consecutive", "default"),
    *_overloads("unique_dim", "default"),
    *_overloads("unique_dim_consecutive", "default"),
)
def unique(mode: CaptureMode, info: OpInfo, args: Any, kwargs: Any) -> Any:
    x = args[0]
    if not x.is_meta:
        return info.func(*args, **kwargs)
    name = info.func._schema.name
    bound = {a.name: a.default_value for a in info.func._schema.arguments}
    bound.update(zip([a.name for a in info.func._schema.arguments], args, strict=False))
    bound.update(kwargs)
    dim = bound.get("dim")
    n = x.numel() if dim is None else x.shape[dim]
    values = _empty((n,), x.dtype) if dim is None else torch.empty_like(x, device=META)
    inverse_shape = tuple(x.shape) if dim is None else (n,)
    inverse = _empty(inverse_shape if bound.get("return_inverse") else (0,), torch.int64)
    counts = _empty((n,) if bound.get("return_counts") else (0,), torch.int64)
    result = (values, inverse) if name.endswith("::_unique") else (values, inverse, counts)
    return _bounded(mode, info, args, kwargs, result, mode.ledger.label(x))


@handles(*_overloads("repeat_interleave", "Tensor"))
def repeat_interleave(mode: CaptureMode, info: OpInfo, args: Any, kwargs: Any) -> Any:
    repeats = args[0]
    if not repeats.is_meta:
        return info.func(*args, **kwargs)
    size = kwargs.get("output_size")
    if size is None:
        known = mode.acc.values.of(repeats)
        size = int(known.sum()) if known is not None else repeats.numel()
        return _bounded(mode, info, args, kwargs, _empty((size,), repeats.dtype), mode.ledger.label(repeats))
    return mode.run(info, args, kwargs)


@handles(*_overloads("bincount", "default"))
def bincount(mode: CaptureMode, info: OpInfo, args: Any, kwargs: Any) -> Any:
    x = args[0]
    if not x.is_meta:
        return info.func(*args, **kwargs)
    weights = args[1] if len(args) > 1 else kwargs.get("weights")
    least = args[2] if len(args) > 2 else kwargs.get("minlength", 0)
    dtype = torch.int64 if weights is None else (torch.float32 if weights.dtype is torch.float32 else torch.float64)
    return _bounded(mode, info, args, kwargs, _empty((max(least, 1),), dtype), mode.ledger.label(x))


@handles(*_overloads("index", "Tensor"), *_overloads("_unsafe_index", "Tensor"))
def index(mode: CaptureMode, info: OpInfo, args: Any, kwargs: Any) -> Any:
    x, indices = args
    if not x.is_meta:
        real = [i for i in indices if i is not None]
        if not any(i.is_meta for i in real):
            return mode.run(info, args, kwargs)
    bounded, masks = _bound_masks(mode, indices)
    if not masks:
        return mode.run(info, args, kwargs)
    acc = mode.acc
    acc.sync("indexing with a boolean mask: the host waits for the count")
    acc.finding(
        "data-dependent",
        "the size of a tensor indexed by a boolean mask depends on values; its upper bound is used",
        "torch.where or a multiplication by the mask keeps the size fixed and needs no wait",
    )
    return mode.run(info, (x, bounded), kwargs, _SYNC)


def _bound_masks(mode: CaptureMode, indices: Any) -> tuple[list[Any], int]:
    """Boolean masks as the index tensors ``nonzero`` would give, at their upper bound."""
    out: list[Any] = []
    masks = 0
    for item in indices:
        if item is None or item.dtype not in (torch.bool, torch.uint8):
            out.append(item)
            continue
        if not item.is_meta:
            out.extend(item.nonzero(as_tuple=True))
            continue
        masks += 1
        known = mode.acc.values.of(item)
        n = int(known.count_nonzero()) if known is not None else item.numel()
        for _ in range(item.dim()):
            position = _empty((n,), torch.int64)
            mode.ledger.see(position, CUDA0)
            out.append(position)
    return out, masks


@handles(
    *_overloads("index_put_", "default"),
    *_overloads("_index_put_impl_", "default"),
    *_overloads("index_put", "default"),
)
def index_put(mode: CaptureMode, info: OpInfo, args: Any, kwargs: Any) -> Any:
    x, indices = args[0], args[1]
    if not x.is_meta or not any(i is not None and i.dtype in (torch.bool, torch.uint8) and i.is_meta for i in indices):
        return mode.run(info, args, kwargs)
    acc = mode.acc
    if not acc.is_device(x):
        return x
    acc.sync("assigning through a boolean mask: the host waits for the count")
    if info.fresh:
        result = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=META)
        mode.ledger.see(result)
    else:
        result = x
    acc.observer.operation(info.func, args, kwargs, result, _SYNC | acc.region_flags())
    return result


@handles(*_overloads("_to_copy", "default"))
def to_copy(mode: CaptureMode, info: OpInfo, args: Any, kwargs: Any) -> Any:
    x = args[0]
    device = kwargs.get("device")
    if device is None or not x.is_meta or torch.device(device).type != "cpu":
        result = mode.run(info, args, kwargs)
        if not x.is_meta and result.is_meta:
            mode.acc.values.note(result, x)
        return result
    acc = mode.acc
    on_device = acc.is_device(x)
    if x.numel() <= mode.host_limit:
        known = acc.values.of(x)
        dtype = kwargs.get("dtype") or x.dtype
        result = torch.full(x.shape, guess(dtype), dtype=dtype) if known is None else known.to(dtype)
        if on_device:
            acc.observer.operation(info.func, args, kwargs, result, _SYNC | acc.region_flags())
    else:
        result = mode.run(info, args, kwargs, _SYNC)
        if on_device:
            acc.observer.operation(info.func, args, kwargs, result, _SYNC | acc.region_flags())
    if on_device:
        if not kwargs.get("non_blocking"):
            acc.sync("a tensor is copied to the host (.cpu(), .to('cpu'))")
        acc.finding("host-copy", "values copied from the device to the host are not known", "zeros stand for them")
    return result


@handles(*_overloads("copy_", "default"))
def copy(mode: CaptureMode, info: OpInfo, args: Any, kwargs: Any) -> Any:
    dst, src = args[0], args[1]
    if dst.is_meta or not src.is_meta:
        result = mode.run(info, args, kwargs)
        if dst.is_meta and not src.is_meta and src.shape == dst.shape:
            mode.acc.values.note(dst, src, 0 if dst.is_inference() else 1)
        return result
    acc = mode.acc
    if acc.is_device(src):
        if not (args[2] if len(args) > 2 else kwargs.get("non_blocking")):
            acc.sync("a tensor is copied to the host (copy_)")
        acc.observer.operation(info.func, args, kwargs, dst, _SYNC | acc.region_flags())
    return dst


@handles(*_overloads("_amp_update_scale_", "default"))
def update_scale(mode: CaptureMode, info: OpInfo, args: Any, kwargs: Any) -> Any:
    """A healthy step leaves the loss scale as it is."""
    values = mode.acc.values
    known = values.of(args[0]) if args[0].is_meta else None
    result = mode.run(info, args, kwargs)
    if known is not None:
        values.note(args[0], known, 1)
    return result


@handles(*_overloads("_pack_padded_sequence", "default"))
def pack_padded(mode: CaptureMode, info: OpInfo, args: Any, kwargs: Any) -> Any:
    """Lengths are on the host, where their values are known: [batch] lengths, longest first."""
    x, lengths = args[0], args[1]
    if not x.is_meta or lengths.is_meta:
        return mode.run(info, args, kwargs)
    steps = lengths.tolist()
    if any(b > a for a, b in itertools.pairwise(steps)):
        raise RuntimeError("`lengths` array must be sorted in decreasing order when `enforce_sorted` is True.")
    if steps[-1] <= 0:
        raise RuntimeError("Length of all samples has to be greater than 0, but found an element in 'lengths' that is <= 0")
    sizes = torch.tensor([sum(n > t for n in steps) for t in range(steps[0])], dtype=torch.int64)
    data = _empty((sum(steps), *x.shape[2:]), x.dtype)
    acc = mode.acc
    label = mode.ledger.label(x)
    acc.ledger.see(data, label)
    if label.type == "cuda":
        acc.observer.operation(info.func, args, kwargs, (data, sizes), acc.region_flags())
    return data, sizes
