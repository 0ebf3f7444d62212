# pyright: basic
"""What a rank's loss counts for: a mean over its rows is a part of the mean over all rows, as large as its rows are many.

The functions of ``torch.nn.functional`` say how they reduce. Where the loss of a step is one cross-entropy over targets of which
some are ignored, it counts for those that are not; where it is a sum, sums are added; else it counts for the rows of its batch.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional

from gpuwise.train.ranks.script.batches import Batches
from gpuwise.workload.capture.device.patching import Patches

TERMS = ("cross_entropy", "nll_loss")
"""Losses that leave targets out (``ignore_index``) and divide by how many are left."""
MOST = 8
"""Losses between two backward passes that are looked at: the newest."""


@dataclass(frozen=True, slots=True)
class ScriptLoss:
    """A loss that the script computed."""

    how: str
    """Its reduction."""
    terms: torch.Tensor | None
    """How many targets a mean is over, where that is not the number of rows."""
    made: weakref.ReferenceType[torch.Tensor]
    """Freed if unused."""


class Losses:
    """Weights backward passes, and puts the mean over all ranks into the loss that the script uses. ``multiple``: 1 if
    gradients are summed over the ranks, the number of ranks if they are averaged."""

    def __init__(self, patches: Patches, batches: Batches, multiple: Callable[[], float], after: Callable[[Any], None]) -> None:
        self._batches, self._multiple, self._after = batches, multiple, after
        self._seen: deque[ScriptLoss] = deque(maxlen=MOST)
        self._inside = False
        self._unscaled: tuple[Any, Any] | None = None
        for name, function in vars(functional).items():
            if inspect.isfunction(function) and "reduction" in inspect.signature(function).parameters:
                patches.set(functional, name, self._noting(name, function))
        self._backward = torch.autograd.backward
        patches.set(torch.autograd, "backward", self._weighed)
        scale = torch.amp.GradScaler.scale

        def scaled(scaler: Any, outputs: Any) -> Any:
            loss = scale(scaler, outputs)
            self._unscaled = (loss, outputs)
            return loss

        patches.set(torch.amp.GradScaler, "scale", scaled)

    def _noting(self, name: str, function: Any) -> Any:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def noting(*args: Any, **kwargs: Any) -> Any:
            loss = function(*args, **kwargs)
            if not torch.compiler.is_compiling() and torch.is_grad_enabled():
                bound = signature.bind(*args, **kwargs)
                bound.apply_defaults()
                values = bound.arguments
                self._seen.append(
                    ScriptLoss(str(values["reduction"]), _terms(values) if name in TERMS else None, weakref.ref(loss))
                )
            return loss

        return noting

    def _weighed(self, tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> Any:
        if self._inside:
            # a checkpoint's own, within a weighted one
            return self._backward(tensors, grad_tensors, *args, **kwargs)
        roots = (tensors,) if isinstance(tensors, torch.Tensor) else tuple(tensors)
        weight, mean = self._exchanged(roots[0], self._batches.backward_begins())
        gradients = grad_tensors if isinstance(grad_tensors, tuple | list) else (grad_tensors,) * len(roots)
        starts = [
            (torch.ones_like(r) if g is None else g) * weight.to(r.device, r.dtype) if r.requires_grad else g
            for r, g in zip(roots, gradients, strict=True)
        ]
        self._inside = True
        try:
            return self._backward(roots, starts, *args, **kwargs)
        finally:
            self._inside = False
            self._tell(mean, kept=bool(kwargs.get("retain_graph") or kwargs.get("create_graph")))

    def _exchanged(self, root: torch.Tensor, rows: int) -> tuple[torch.Tensor, list[tuple[torch.Tensor, torch.Tensor]]]:
        """Factor on gradients, and scalars of this step each with its value over all ranks: the root first."""
        seen = list(self._seen)
        self._seen.clear()
        alive = [loss for s in seen if (loss := s.made()) is not None]
        scalars = [root, *(made for made in alive if made.numel() == 1 and made is not root)]
        dtype = torch.float32 if root.device.type == "mps" else torch.float64
        values = torch.stack([s.detach().to(root.device, dtype).sum() for s in scalars])
        number = torch.full((), float(rows), device=root.device, dtype=dtype)
        if seen and all(s.how == "sum" for s in seen):
            # a rank without its own rows counts as zero
            losses = values * (rows > 0)
            dist.all_reduce(losses)
            return self._multiple() * (number > 0), list(zip(scalars, losses, strict=True))
        means = [s for s in seen if s.how == "mean"]
        if rows and len(means) == 1 and means[0].terms is not None:
            number = means[0].terms.to(root.device, dtype)
        # a rank that leaves all its targets out has no mean, which counts for nothing
        both = torch.cat((number.reshape(1), torch.where(number > 0, number * values, 0.0)))
        dist.all_reduce(both)
        return number / both[0] * self._multiple(), list(zip(scalars, both[1:] / both[0], strict=True))

    def _tell(self, losses: list[tuple[torch.Tensor, torch.Tensor]], *, kept: bool) -> None:
        root, loss = losses[0]
        unscaled, self._unscaled = self._unscaled, None
        if unscaled is not None and unscaled[0] is root and isinstance(unscaled[1], torch.Tensor):
            factor = unscaled[1].detach().to(loss.device, loss.dtype) / root.detach().to(loss.device, loss.dtype)
            losses, loss = [(unscaled[1], loss * factor), *losses[1:]], loss * factor
        for scalar, whole in losses:
            if scalar.numel() == 1 and not kept:
                scalar.data.copy_(whole.reshape(scalar.shape))
        self._after(loss)


def _terms(values: dict[str, Any]) -> torch.Tensor | None:
    """How many targets a mean is over, or the sum of their weights; None where every row has one alike."""
    target, weight = values["target"], values["weight"]
    if not isinstance(target, torch.Tensor) or target.is_floating_point():
        return None
    counted = target != values["ignore_index"]
    if weight is None:
        return counted.sum()
    return (weight[target.clamp(min=0)] * counted).sum()
