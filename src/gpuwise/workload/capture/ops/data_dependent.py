# pyright: basic
"""Operations whose result depends on values: scalars read back are guessed, sizes are a balanced choice or the upper bound."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gpuwise.workload.capture.captured import OpFlag
from gpuwise.workload.capture.device.laws import UNKNOWN_SHARE, balanced
from gpuwise.workload.capture.device.ledger import META
from gpuwise.workload.capture.device.values import KNOWN_WHOLE_LIMIT, Values

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
    """``item()`` of a tensor: its value, or what is expected of it, as a finding; a synchronisation."""
    tensor = args[0]
    if not tensor.is_meta:
        return info.func(tensor)
    acc = mode.acc
    value = acc.values.scalar(tensor) if acc.assumed is None else acc.assumed
    is_known = value is not None and not acc.values.is_guessed(tensor)
    if value is None:
        value = _expected(acc.values, acc.values.law(tensor).mean, tensor.dtype)
    if acc.is_device(tensor):
        acc.sync("a value is read from the device (.item(), bool(), float() or print())")
        if not is_known:
            taken = f"taken to be {'a falling loss' if isinstance(value, float) else repr(value)}"
            phrase = "a balanced choice" if acc.values.is_guessed(tensor) else taken
            acc.finding("guess", f"the value read from the device is {phrase}", "the step is captured as if it were so")
        acc.observer.operation(info.func, args, kwargs, value, _SYNC | acc.region_flags())
    return value


@handles(*_overloads("equal", "default"), *_overloads("allclose", "default"))
def equal(mode: CaptureMode, info: OpInfo, args: Any, kwargs: Any) -> Any:
    """Whether two tensors are equal, read from the device; a synchronisation."""
    if not any(t.is_meta for t in args[:2]):
        return info.func(*args, **kwargs)
    mode.acc.sync(f"torch.{info.short} reads its answer from the device")
    mode.acc.observer.operation(info.func, args, kwargs, True, _SYNC | mode.acc.region_flags())
    return args[0].shape == args[1].shape if mode.acc.assumed is None else mode.acc.assumed


@handles(*_overloads("_assert_async", "default", "msg"), *_overloads("_assert_tensor_metadata", "default"))
def assertion(mode: CaptureMode, info: OpInfo, args: Any, kwargs: Any) -> Any:
    """An assertion on the device: nothing on tensors without values."""
    return None if args[0].is_meta else info.func(*args, **kwargs)


def _expected(values: Values, mean: float | None, dtype: torch.dtype) -> Any:
    """A scalar of ``dtype`` that is expected to be ``mean``."""
    if mean is None or dtype is torch.bool or dtype.is_complex:
        return values.guess(dtype)
    return mean if dtype.is_floating_point else round(mean)


def count(mode: CaptureMode, x: Tensor) -> int:
    """Number of elements of ``x`` assumed nonzero: the true number if its values are known; else the given share, all of them
    for bounds, or the balanced choice."""
    values, n = mode.acc.values, x.numel()
    value = values.of(x) if x.is_meta else x
    if value is not None and not (x.is_meta and values.is_guessed(x)):
        return int(value.count_nonzero())
    if mode.acc.at_bound:
        return n
    if value is not None:
        return int(value.count_nonzero())
    share = values.law(x).share if values.share is None else values.share
    return round(n * (UNKNOWN_SHARE if share is None else share))


def _note_size(mode: CaptureMode, what: str, size: int, most: int) -> None:
    """Report how a size was chosen."""
    acc = mode.acc
    if acc.at_bound:
        how = "its upper bound is used"
    else:
        how = f"{size / most:.3g} of the most it can be is taken" if size < most else "the most it can be is taken"
    acc.finding(
        "data-dependent",
        f"{what} depends on values; {how}",
        "--guess nonzero=0.125 sets the share; masks of fixed size avoid both the wait and the doubt",
    )


def _sized(mode: CaptureMode, info: OpInfo, args: Any, kwargs: Any, result: Any, label: Any, size: int, most: int) -> Any:
    """Record allocations, notify the observer, and report how the size was chosen."""
    acc = mode.acc
    for item in result if isinstance(result, (tuple, list)) else (result,):
        if isinstance(item, Tensor) and item.is_meta:
            acc.ledger.see(item, label)
    if label.type == "cuda":
        name = info.func._schema.name.partition("::")[2]
        acc.sync(f"{name} gives a size that depends on values: the host waits for it")
        _note_size(mode, f"the size of {name}'s result", size, most)
        acc.observer.operation(info.func, args, kwargs, result, _SYNC | acc.region_flags())
    return result


def _empty(shape: Any, dtype: torch.dtype) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=META)


@handles(*_overloads("nonzero", "default"))
def nonzero(mode: CaptureMode, info: OpInfo, args: Any, kwargs: Any) -> Any:
    """``nonzero`` with the number of rows from known values or a guess."""
    x = args[0]
    if not x.is_meta:
        return info.func(x)
    values = mode.acc.values
    value = values.of(x)
    rows = count(mode, x)
    out = torch.empty_strided((rows, x.dim()), (1, max(rows, 1)), dtype=torch.int64, device=META)
    result = _sized(mode, info, args, kwargs, out, mode.ledger.label(x), rows, x.numel())
    if value is not None and rows * x.dim() <= KNOWN_WHOLE_LIMIT:
        places = value.nonzero()
        if len(places) == rows:
            values.note(result, torch.empty_strided(out.shape, out.stride(), dtype=torch.int64).copy_(places), guessed=True)
    return result


@handles(*_overloads("masked_select", "default"))
def masked_select(mode: CaptureMode, info: OpInfo, args: Any, kwargs: Any) -> Any:
    """``masked_select`` with the number of elements from the mask's values or a guess."""
    x, mask = args
    if not (x.is_meta or mask.is_meta):
        return info.func(x, mask)
    most = math.prod(torch.broadcast_shapes(x.shape, mask.shape))
    n = round(most * count(mode, mask) / max(1, mask.numel()))
    label = mode.ledger.label(x if x.is_meta else mask)
    return _sized(mode, info, args, kwargs, _empty((n,), x.dtype), label, n, most)


@handles(
    *_overloads("_unique2", "default"),
    *_overloads("_unique", "default"),
    *_overloads("unique_consecutive", "default"),
    *_overloads("unique_dim", "default"),
    *_overloads("unique_dim_consecutive", "default"),
)
def unique(mode: CaptureMode, info: OpInfo, args: Any, kwargs: Any) -> Any:
    """``unique`` with the number of elements from known values or a guess."""
    x = args[0]
    if not x.is_meta:
        return info.func(*args, **kwargs)
    value = mode.acc.values.of(x)
    if value is not None and not mode.acc.values.is_guessed(x):
        return _computed(mode, info, value, args, kwargs)
    name = info.func._schema.name
    bound = {a.name: a.default_value for a in info.func._schema.arguments}
    bound.update(zip([a.name for a in info.func._schema.arguments], args, strict=False))
    bound.update(kwargs)
    dim = bound.get("dim")
    most = x.numel() if dim is None else x.shape[dim]
    n = _distinct(mode, x, most, dim is None and "consecutive" not in name)
    shape = list(x.shape) if dim is not None else [n]
    if dim is not None:
        shape[dim] = n
    values = _empty(tuple(shape), x.dtype)
    inverse_shape = tuple(x.shape) if dim is None else (most,)
    inverse = _empty(inverse_shape if bound.get("return_inverse") else (0,), torch.int64)
    counts = _empty((n,) if bound.get("return_counts") else (0,), torch.int64)
    result = (values, inverse) if name.endswith("::_unique") else (values, inverse, counts)
    return _sized(mode, info, args, kwargs, result, mode.ledger.label(x), n, most)


def _computed(mode: CaptureMode, info: OpInfo, value: Tensor, args: Any, kwargs: Any) -> Any:
    """Result of the operation on the known values of its first argument; the sizes are exact."""
    real = info.func(value, *args[1:], **kwargs)
    outputs = [torch.empty_strided(r.shape, r.stride(), dtype=r.dtype, device=META) for r in real]
    acc, label = mode.acc, mode.ledger.label(args[0])
    for tensor, values in zip(outputs, real, strict=True):
        acc.ledger.see(tensor, label)
        acc.values.note(tensor, values)
    if label.type == "cuda":
        acc.sync(f"{info.short} gives a size that depends on values: the host waits for it")
        acc.observer.operation(info.func, args, kwargs, tuple(outputs), _SYNC | acc.region_flags())
    return tuple(outputs)


def _distinct(mode: CaptureMode, x: Tensor, most: int, whole: bool) -> int:
    guess = mode.acc.guesses.get("unique")
    if guess is not None:
        return max(1, round(guess * most))
    limit = mode.acc.values.law(x).n_values if whole else 0
    if x.dtype is torch.bool and whole:
        limit = 2
    return min(most, limit) if limit else most


def nms(mode: CaptureMode, info: OpInfo, args: Any, kwargs: Any) -> Any:
    """Boxes left by non-maximum suppression: detectors then take the best few hundred, so all are kept by default."""
    boxes = args[0]
    if not boxes.is_meta:
        return mode.run(info, args, kwargs)
    guess, most = mode.acc.guesses.get("nms"), boxes.shape[0]
    n = most if guess is None else round(guess * most)
    return _sized(mode, info, args, kwargs, _empty((n,), torch.int64), mode.ledger.label(boxes), n, most)


BY_NAME: dict[str, Any] = {"torchvision::nms": nms}
"""Operators of libraries that may be loaded later."""


@handles(*_overloads("repeat_interleave", "Tensor"))
def repeat_interleave(mode: CaptureMode, info: OpInfo, args: Any, kwargs: Any) -> Any:
    """``repeat_interleave`` with the number of rows from ``output_size`` or the values of the repeats."""
    repeats = args[0]
    if not repeats.is_meta:
        return info.func(*args, **kwargs)
    size = kwargs.get("output_size")
    if size is None:
        value = mode.acc.values.of(repeats)
        mean = mode.acc.values.law(repeats).mean
        size = int(value.sum()) if value is not None else round(repeats.numel() * (1.0 if mean is None else mean))
        label = mode.ledger.label(repeats)
        return _sized(mode, info, args, kwargs, _empty((size,), repeats.dtype), label, size, size)
    return mode.run(info, args, kwargs)


@handles(*_overloads("bincount", "default"))
def bincount(mode: CaptureMode, info: OpInfo, args: Any, kwargs: Any) -> Any:
    """``bincount`` with the number of bins from the values."""
    x = args[0]
    if not x.is_meta:
        return info.func(*args, **kwargs)
    weights = args[1] if len(args) > 1 else kwargs.get("weights")
    least = args[2] if len(args) > 2 else kwargs.get("minlength", 0)
    dtype = torch.int64 if weights is None else (torch.float32 if weights.dtype is torch.float32 else torch.float64)
    size = max(least, mode.acc.values.law(x).n_values, 1)
    out = _sized(mode, info, args, kwargs, _empty((size,), dtype), mode.ledger.label(x), size, size)
    if weights is None and size <= KNOWN_WHOLE_LIMIT:
        mode.acc.values.note(out, balanced(x.numel() / size, size), guessed=True)
    return out


@handles(*_overloads("index", "Tensor"), *_overloads("_unsafe_index", "Tensor"))
def index(mode: CaptureMode, info: OpInfo, args: Any, kwargs: Any) -> Any:
    """Indexing; by a mask as :func:`masked_select`."""
    x, indices = args
    if not x.is_meta:
        real = [i for i in indices if i is not None]
        if not any(i.is_meta for i in real):
            return mode.run(info, args, kwargs)
    bounded, masks = _bound_masks(mode, indices)
    if not masks:
        return mode.run(info, args, kwargs)
    if not mode.acc.is_device(x):
        return mode.run(info, (x, bounded), kwargs)
    mode.acc.sync("indexing with a boolean mask: the host waits for the count")
    _note_size(mode, "the size of a tensor indexed by a boolean mask", *masks)
    return mode.run(info, (x, bounded), kwargs, _SYNC)


def _bound_masks(mode: CaptureMode, indices: Any) -> tuple[list[Any], tuple[int, int] | None]:
    """Boolean masks as the index tensors ``nonzero`` would give; how many of how many elements the last one takes."""
    out: list[Any] = []
    masks: tuple[int, int] | None = None
    for item in indices:
        if item is None or item.dtype not in (torch.bool, torch.uint8):
            out.append(item)
            continue
        if not item.is_meta:
            out.extend(item.nonzero(as_tuple=True))
            continue
        n = count(mode, item)
        masks = n, item.numel()
        for _ in range(item.dim()):
            position = _empty((n,), torch.int64)
            mode.ledger.see(position, mode.ledger.label(item))
            out.append(position)
    return out, masks


@handles(
    *_overloads("index_put_", "default"),
    *_overloads("_index_put_impl_", "default"),
    *_overloads("index_put", "default"),
)
def index_put(mode: CaptureMode, info: OpInfo, args: Any, kwargs: Any) -> Any:
    """Writing by indices; a mask on the device is counted with the rows its values, or a guess, say."""
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
    acc.values.follow(info, args, kwargs, result, [x])
    acc.observer.operation(info.func, args, kwargs, result, _SYNC | acc.region_flags())
    return result


@handles(*_overloads("_to_copy", "default"))
def to_copy(mode: CaptureMode, info: OpInfo, args: Any, kwargs: Any) -> Any:
    """``to``; a copy to the host copies known values."""
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
        value = acc.values.of(x)
        dtype = kwargs.get("dtype") or x.dtype
        law = acc.values.law(x)
        result = torch.full(x.shape, _expected(acc.values, law.mean, dtype), dtype=dtype) if value is None else value.to(dtype)
        if on_device:
            acc.observer.operation(info.func, args, kwargs, result, _SYNC | acc.region_flags())
    else:
        result = mode.run(info, args, kwargs, _SYNC)
        if on_device:
            acc.observer.operation(info.func, args, kwargs, result, _SYNC | acc.region_flags())
    if on_device:
        if not kwargs.get("non_blocking"):
            acc.sync("a tensor is copied to the host (.cpu(), .to('cpu'))")
        acc.finding("host-copy", "values copied from the device to the host are unknown", "zeros replace them")
    return result


@handles(*_overloads("copy_", "default"))
def copy(mode: CaptureMode, info: OpInfo, args: Any, kwargs: Any) -> Any:
    """``copy_``; known values are copied between host and device."""
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


@handles(*_overloads("_amp_update_scale_", "default"), *_overloads("_amp_foreach_non_finite_check_and_unscale_", "default"))
def loss_scale(mode: CaptureMode, info: OpInfo, args: Any, kwargs: Any) -> Any:
    """A healthy step leaves the loss scale as it is, and has found nothing infinite."""
    values = mode.acc.values
    kept = args[0] if isinstance(args[0], Tensor) else args[1]
    value = values.of(kept) if kept.is_meta else None
    result = mode.run(info, args, kwargs)
    if value is not None:
        values.note(kept, value, 1)
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
