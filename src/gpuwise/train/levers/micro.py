# pyright: basic
"""Micro-batches inside the model call, with the activations of only one part in memory at a time.

Each part is a call of the model under a checkpoint; the outputs are concatenated along the batch, so the loop's own loss sees
the whole batch once and has its gradient, for any number of tokens per part. In the backward pass the parts are recomputed and
differentiated one after the other. Only the model's output is in memory as a whole. A loss that the model itself returns is a
mean over a part's labels, and is weighted by their number.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from gpuwise.train.levers import groups
from gpuwise.train.levers.checkpointing import under_checkpoint
from gpuwise.train.levers.forward import replace_forward
from gpuwise.train.levers.real_columns import RealColumns
from gpuwise.workload.capture.ops.nested import tensors_in

Tell = Callable[..., None]


class MicroBatches:
    """Splits the model's calls into ``n_parts``."""

    def __init__(self, n_parts: int, known: RealColumns, tell: Tell) -> None:
        self._n_parts, self._known, self._tell = n_parts, known, tell
        self._said: set[str] = set()

    def __call__(self, module: nn.Module) -> Callable[[], None]:
        coupled = groups.why_coupled(module)
        if coupled is not None:
            self._say(False, coupled)
            return lambda: None
        return replace_forward(module, self._wrap)

    def _wrap(self, module: nn.Module, inner: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            n_rows = rows_of((args, kwargs))
            if not module.training or not torch.is_grad_enabled() or n_rows < 2:
                return inner(*args, **kwargs)
            self._say(True, None)
            return self._split(module, inner, args, kwargs, n_rows)

        return run

    def _split(self, module: nn.Module, inner: Callable[..., Any], args: Any, kwargs: Any, n_rows: int) -> Any:
        most = -(-n_rows // min(self._n_parts, n_rows))
        outputs, weights, sizes = [], [], []
        for begin in range(0, n_rows, most):
            size = min(most, n_rows - begin)
            given, named = (rows_from(v, n_rows, begin, size) for v in (args, kwargs))
            again = functools.partial(under_checkpoint, module, inner)
            output, weight = groups.weighted(self._known, module, again, given, named)
            outputs.append(output)
            weights.append(weight)
            sizes.append(size)
        return merged(outputs, sizes, groups.shares_of(weights, kwargs))

    def _say(self, applied: bool, why: str | None) -> None:
        if str(why) not in self._said:
            self._said.add(str(why))
            self._tell("lever", name="micro_batches", applied=applied, why=why)


def rows_of(values: Any) -> int:
    """Rows of the first tensor with rows in a call; 0 without one."""
    return next((int(t.shape[0]) for t in tensors_in(values) if t.dim()), 0)


def rows_from(value: Any, n_rows: int, begin: int, size: int) -> Any:
    """Arguments of a call for ``size`` rows from ``begin``; arguments without a row per sample go to every part."""
    if isinstance(value, torch.Tensor):
        return value.narrow(0, begin, size) if value.dim() and value.shape[0] == n_rows else value
    if isinstance(value, Mapping):
        return {k: rows_from(v, n_rows, begin, size) for k, v in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(rows_from(v, n_rows, begin, size) for v in value))
    if isinstance(value, (tuple, list)):
        return type(value)(rows_from(v, n_rows, begin, size) for v in value)
    return value


def merged(outputs: list[Any], sizes: list[int], shares: list[torch.Tensor] | None) -> Any:
    """The parts' outputs as one. Raises ValueError where they cannot be put together."""
    first = outputs[0]
    if isinstance(first, torch.Tensor):
        if first.dim() == 0:
            return groups.total_of(outputs, shares)
        if any(len(o) != n for o, n in zip(outputs, sizes, strict=True)):
            raise ValueError(f"the model gives {tuple(first.shape)} for {sizes[0]} rows: parts cannot be put together")
        return torch.cat(outputs)
    if isinstance(first, Mapping):
        parts = {k: merged([o[k] for o in outputs], sizes, shares) for k in first}
        return type(first)(**parts) if hasattr(first, "__dataclass_fields__") else parts
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return type(first)(*(merged(list(o), sizes, shares) for o in zip(*outputs, strict=True)))
    if isinstance(first, (tuple, list)):
        return type(first)(merged(list(o), sizes, shares) for o in zip(*outputs, strict=True))
    # caches of keys and values, which training does not read
    return None
