# pyright: basic
"""Ends of the rows of a batch, and removal of padding columns.

B rows, T columns. A row ends where a run of one and the same number reaches the last column, as padding does; a row that ends
in another number fills all T. With several tensors in a batch (ids, labels, a mask) the longest result counts, so no used
entry of any of them is cut.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch

from gpuwise.workload.capture.ops.nested import tensors_in

Tell = Callable[..., None]
MULTIPLE = 8
"""Lengths are rounded up to this: odd sizes keep matrix units from their fast kernels (NVIDIA, Matrix Multiplication
Background User's Guide, on alignment to 8 elements of 2 bytes)."""


def row_lengths(batch: Any) -> torch.Tensor | None:
    """[B] columns that each row needs, on the host; None where the batch has no ids."""
    shape, lengths = None, None
    for tensor in tensors_in(batch):
        if not is_ids(tensor):
            continue
        if shape is None:
            shape = tensor.shape
        if tensor.shape != shape:
            continue
        tensor = tensor.cpu()
        if len(tensor) > 1 and bool((tensor == tensor[:1]).all()) and not bool((tensor == tensor[:1, -1:]).all()):
            # positions: the same in all rows, no word on where they end
            continue
        real_ends = ends(tensor)
        lengths = real_ends if lengths is None else torch.maximum(lengths, real_ends)
    return lengths


def is_ids(tensor: torch.Tensor) -> bool:
    """[B, T] of whole numbers or truth values, more than one column."""
    return tensor.dim() == 2 and not tensor.is_floating_point() and not tensor.is_complex() and tensor.shape[1] > 1


def ends(ids: torch.Tensor) -> torch.Tensor:
    """[B] columns before the closing run of the number that most rows end in; at least 1."""
    last = ids[:, -1]
    padding = last.to(torch.int64).mode().values
    differs = ids != padding
    columns = torch.arange(1, ids.shape[1] + 1)
    return (differs * columns).amax(dim=1).clamp_(min=1)


def rounded(length: int, most: int) -> int:
    """Up to a multiple of ``MULTIPLE``, at most ``most``."""
    return min(-(-length // MULTIPLE) * MULTIPLE, most)


def tensors_of_ids(batch: Any) -> list[torch.Tensor]:
    """A batch's tensors of rows of ids."""
    return [t for t in tensors_in(batch) if is_ids(t)]


def trimmed(batch: Any, lengths: torch.Tensor) -> Any:
    """The batch without the columns that no row needs."""
    n_rows, n_columns = tensors_of_ids(batch)[0].shape
    columns = rounded(int(lengths.max()), n_columns)
    if columns == n_columns:
        return batch
    return rebuilt(batch, lambda t: cut(t, n_rows, n_columns, columns))


def cut(tensor: torch.Tensor, n_rows: int, n_columns: int, columns: int) -> torch.Tensor:
    """``tensor`` [B, T, ...] with T cut to ``needed``, a mask [B, 1, T, T] in both; any other as it is."""
    if tensor.dim() == 4 and tensor.shape[0] == n_rows and tensor.shape[2:] == (n_columns, n_columns):
        return tensor[:, :, :columns, :columns].contiguous()
    if tensor.dim() >= 2 and tensor.shape[0] == n_rows and tensor.shape[1] == n_columns:
        # contiguous, for loops that call view on it
        return tensor[:, :columns].contiguous()
    return tensor


def rebuilt(batch: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """A batch of the same types, with its tensors changed."""
    if isinstance(batch, torch.Tensor):
        return change(batch)
    if isinstance(batch, Mapping):
        other = copy.copy(batch)
        for name, value in batch.items():
            other[name] = rebuilt(value, change)  # type: ignore[index]
        return other
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(rebuilt(v, change) for v in batch))
    if isinstance(batch, (tuple, list)):
        return type(batch)(rebuilt(v, change) for v in batch)
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        return dataclasses.replace(batch, **{f.name: rebuilt(getattr(batch, f.name), change) for f in dataclasses.fields(batch)})
    return batch


class Padding:
    """How much of the batches is padding, over the first ``MOST`` of them."""

    MOST = 64

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._n = self._total = self._useful = 0

    def __call__(self, batch: Any) -> Any:
        if self._n < self.MOST:
            self._n += 1
            lengths = row_lengths(batch)
            if lengths is not None:
                self._useful += int(lengths.sum())
                self._total += next(t.numel() for t in tensors_in(batch) if is_ids(t))
            if self._n in (4, 16, self.MOST):
                self._say()
        return batch

    def _say(self) -> None:
        if self._total:
            self._tell("padding", n_batches=self._n, columns=self._total, useful=self._useful)
