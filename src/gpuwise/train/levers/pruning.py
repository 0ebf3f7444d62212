# pyright: basic
"""Magnitude pruning (``torch.nn.utils.prune``): the smallest weights of linear and convolution layers become and stay zeros.

The masks are those of torch's own methods. They are stored beside the parameters, not in a parametrisation, so files of the
model have the script's own names of its weights. A masked weight and its gradient are zero, and changes by the optimizer are
reset after its step. Two of four in a row (``2:4``) is the form that NVIDIA's tensor cores skip from compute capability 8.0 on
(Mishra et al. 2021, arXiv 2104.08378); elsewhere it costs accuracy and saves nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.utils import prune
from torch.optim.optimizer import register_optimizer_step_post_hook

from gpuwise.errors import InputError

SEMI_STRUCTURED = "2:4"
SEMI_STRUCTURED_FROM = (8, 0)
HINT = f"a share between 0 and 1 like 0.5, or {SEMI_STRUCTURED} on a GPU that skips these zeros"
NOTHING = "no linear or convolution layer has trained weights"
KINDS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
Tell = Callable[..., None]
Undo = Callable[[], None]


class TwoOfFour(prune.BasePruningMethod):
    """The two smallest of every four weights in a row."""

    PRUNING_TYPE = "unstructured"

    def compute_mask(self, t: torch.Tensor, default_mask: torch.Tensor) -> torch.Tensor:
        """Mask of a matrix whose rows are multiples of four long."""
        fours = t.detach().abs().reshape(-1, 4)
        mask = torch.zeros_like(fours).scatter_(1, fours.topk(2, dim=1).indices, 1.0)
        return mask.reshape(t.shape) * default_mask


def share_of(value: object) -> float | None:
    """The share of weights that go; None for two of four. Raises InputError for anything else."""
    if value == SEMI_STRUCTURED:
        return None
    try:
        share = float(str(value))
    except ValueError:
        share = -1.0
    if isinstance(value, bool) or not 0.0 < share < 1.0:
        raise InputError(f"pruning takes no {value!r}", hint=HINT)
    return share


def why_not_semi_structured(device: torch.device) -> str | None:
    """Why two of four zeros save nothing on ``device``; None where they do."""
    if device.type != "cuda" or torch.version.cuda is None:
        return f"{SEMI_STRUCTURED} zeros are skipped by NVIDIA's tensor cores alone, and the model is on no such GPU"
    if torch.cuda.get_device_capability(device) < SEMI_STRUCTURED_FROM:
        return f"{SEMI_STRUCTURED} zeros are skipped from compute capability 8.0 on"
    return None


class WeightMasks:
    """Masks of a model's weights; :meth:`keep` after every step. ``zeros`` of ``n`` weights in all layers taken are zero."""

    def __init__(self, model: nn.Module, value: object) -> None:
        share = share_of(value)
        self.masks: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._hooks: list[Any] = []
        layers = [m for m in model.modules() if isinstance(m, KINDS)]
        shared = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
        for weight in {id(m.weight): m.weight for m in layers if id(m.weight) not in shared}.values():
            if not weight.requires_grad or (share is None and (weight.dim() != 2 or weight.shape[1] % 4)):
                continue
            method = TwoOfFour() if share is None else prune.L1Unstructured(share)
            mask = method.compute_mask(weight.detach(), torch.ones_like(weight))
            self.masks.append((weight, mask))
            self._hooks.append(weight.register_hook(lambda gradient, mask=mask: gradient * mask.to(gradient.device)))
        self.keep()

    @property
    def n(self) -> int:
        """Weights under a mask."""
        return sum(mask.numel() for _, mask in self.masks)

    @property
    def zeros(self) -> int:
        """Weights that masks set to zero."""
        return sum(int(mask.numel() - mask.count_nonzero()) for _, mask in self.masks)

    def keep(self, *_: object) -> None:
        """Set masked weights to zero."""
        with torch.no_grad():
            for weight, mask in self.masks:
                weight.mul_(mask.to(weight.device))

    def undo(self) -> None:
        """Weights may move again."""
        for hook in self._hooks:
            hook.remove()


def prune_model(module: nn.Module, value: object, tell: Tell) -> Undo:
    """The lever: acts from the model's first call on."""
    device = next(p.device for p in module.parameters())
    why = why_not_semi_structured(device) if share_of(value) is None else None
    pruned = None if why is not None else WeightMasks(module, value)
    if pruned is not None and not pruned.masks:
        why = NOTHING
    if pruned is None or why is not None:
        tell("lever", name="pruning", applied=False, why=why)
        return lambda: None
    handle = register_optimizer_step_post_hook(pruned.keep)
    tell("lever", name="pruning", applied=True, zeros=pruned.zeros, weights=pruned.n)

    def undo() -> None:
        handle.remove()
        pruned.undo()

    return undo
