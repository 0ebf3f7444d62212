# pyright: basic
"""A cross entropy that never holds all logits: head and loss run on a chunk of rows at a time, and again in the backward
pass (as Liger's fused linear cross entropy and torchtune's chunked loss do)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from gpuwise.workload.capture.changes.watch import Watch

SMALLEST_HEAD = 8192
"""Classes below which logits are not what fills a memory."""


class PendingLogits(torch.Tensor):
    """The output of a head that has not been computed: the hidden rows and the head's weight.

    Views, slices of rows and casts act on the rows; a cross entropy runs in chunks; any other use computes it.
    """

    rows: torch.Tensor
    head: nn.Linear
    form: torch.dtype
    chunks: int
    whole: torch.Tensor | None

    @staticmethod
    def __new__(cls, rows: torch.Tensor, head: nn.Linear, form: torch.dtype, chunks: int) -> PendingLogits:
        shape = (*rows.shape[:-1], head.out_features)
        # a pretended accelerator's tensors are meta tensors to the code below Python
        place = torch.device("meta") if rows.is_meta else rows.device
        pending = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=form, device=place, requires_grad=True)
        pending.rows, pending.head, pending.form, pending.chunks, pending.whole = rows, head, form, chunks, None
        return pending

    def __init__(self, *_: Any) -> None: ...

    def computed(self) -> torch.Tensor:
        """All logits."""
        if self.whole is None:
            self.whole = functional.linear(self.rows, self.head.weight, self.head.bias).to(self.form)
        return self.whole

    def moved(self, rows: torch.Tensor, form: torch.dtype | None = None) -> PendingLogits:
        return PendingLogits(rows, self.head, form or self.form, self.chunks)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        self = args[0] if args and isinstance(args[0], PendingLogits) else None
        if self is not None and name in _HANDLED:
            result = _HANDLED[name](self, *args[1:], **kwargs)
            if result is not NotImplemented:
                return result
        with torch._C.DisableTorchFunctionSubclass():
            if name in ("__get__", "size", "dim", "numel", "is_floating_point", "ndimension", "__set__", "stride", "__len__"):
                return func(*args, **kwargs)
            return func(*[_plain(a) for a in args], **{k: _plain(v) for k, v in kwargs.items()})

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*[_plain(a) for a in args], **{k: _plain(v) for k, v in (kwargs or {}).items()})


def _plain(value: Any) -> Any:
    if isinstance(value, PendingLogits):
        return value.computed()
    return [_plain(v) for v in value] if isinstance(value, list) else value


def _view(self: PendingLogits, *shape: Any) -> Any:
    sizes = tuple(shape[0]) if shape and isinstance(shape[0], (tuple, list, torch.Size)) else shape
    if not sizes or sizes[-1] not in (self.shape[-1], -1) or (sizes[-1] == -1 and -1 in sizes[:-1]):
        return NotImplemented
    width = self.rows.shape[-1]
    if sizes[-1] == -1:
        count = self.rows.numel() // width
        before = 1
        for n in sizes[:-1]:
            before *= n
        if before != count:
            return NotImplemented
    return self.moved(self.rows.reshape(*sizes[:-1], width))


def _item(self: PendingLogits, index: Any) -> Any:
    keys = index if isinstance(index, tuple) else (index,)
    if not all(isinstance(k, slice) or k is Ellipsis for k in keys):
        return NotImplemented
    whole = slice(None)
    if (Ellipsis in keys or len(keys) == self.dim()) and keys[-1] not in (whole, Ellipsis):
        return NotImplemented
    return self.moved(self.rows[index])


def _flatten(self: PendingLogits, start: int = 0, end: int = -1) -> Any:
    last = end % self.dim()
    return NotImplemented if last == self.dim() - 1 else self.moved(self.rows.flatten(start, last))


def _to(self: PendingLogits, *args: Any, **kwargs: Any) -> Any:
    dtypes = [a for a in (*args, *kwargs.values()) if isinstance(a, torch.dtype)]
    return self.moved(self.rows, dtypes[0]) if dtypes else self


def _cross_entropy(
    logits: PendingLogits,
    target: torch.Tensor,
    weight: Any = None,
    size_average: Any = None,
    ignore_index: int = -100,
    reduce: Any = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Any:
    if logits.dim() != 2 or reduction not in ("mean", "sum") or weight is not None or target.dim() != 1:
        return NotImplemented
    from torch.utils.checkpoint import checkpoint

    head, form = logits.head, logits.form

    def part(rows: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        scores = functional.linear(rows, head.weight, head.bias).to(form)
        return functional.cross_entropy(
            scores, target, ignore_index=ignore_index, reduction="sum", label_smoothing=label_smoothing
        )

    pieces = zip(logits.rows.chunk(logits.chunks), target.chunk(logits.chunks), strict=True)
    total: Any = sum(checkpoint(part, rows, labels, use_reentrant=False) for rows, labels in pieces)  # type: ignore[misc]
    return total / (target != ignore_index).sum() if reduction == "mean" else total


_HANDLED: dict[str, Callable[..., Any]] = {
    "view": _view,
    "reshape": _view,
    "flatten": _flatten,
    "__getitem__": _item,
    "cross_entropy": _cross_entropy,
    "to": _to,
    "float": lambda self: self.moved(self.rows, torch.float32),
    "contiguous": lambda self, **_: self,
}


@contextmanager
def _chunked(watch: Watch, chunks: int) -> Iterator[None]:
    """The widest linear layer of each model gives pending logits while gradients are on."""

    def wrap(root: nn.Module) -> None:
        layers = [m for m in root.modules() if isinstance(m, nn.Linear) and m.out_features >= SMALLEST_HEAD]
        if not layers:
            return
        head = max(layers, key=lambda m: m.out_features)
        forward = head.forward

        def pending(rows: torch.Tensor) -> torch.Tensor:
            if not (torch.is_grad_enabled() and rows.dim() >= 2):
                return forward(rows)
            watch.sites.touched += 1
            form = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else rows.dtype
            return PendingLogits(rows, head, form, chunks)

        head.forward = pending  # type: ignore[method-assign]

    watch.on_model.append(wrap)
    yield


LOSS: dict[str, Callable[[Watch, Any], Any]] = {"chunked_loss": _chunked}
