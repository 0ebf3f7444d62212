# pyright: basic
"""Changes to the optimizer: its implementation, its states, where they live, when it steps, and how gradients gather."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from gpuwise.errors import UnknownNameError
from gpuwise.workload.capture.changes.watch import Watch, patched

BLOCK = 256
"""Elements that share a scale in 8-bit states (Dettmers and others 2022, arXiv 2110.02861, use blocks of 2048; their
library bitsandbytes has 256 since 0.44)."""
SMALLEST_8BIT = 4096
"""Elements below which bitsandbytes keeps a tensor's states in fp32 (its ``min_8bit_size``)."""


def _implementation(watch: Watch, **flags: Any) -> None:
    def choose(optimizer: torch.optim.Optimizer) -> None:
        if "foreach" not in optimizer.defaults:
            return  # not one of torch's own
        if flags["fused"] and "fused" not in optimizer.defaults:
            return
        for group in [optimizer.defaults, *optimizer.param_groups]:
            group.update(flags)
        if flags["fused"]:
            optimizer._step_supports_amp_scaling = True  # type: ignore[attr-defined]
        watch.sites.touched += 1

    watch.on_optimizer.append(choose)


def _fused(watch: Watch, fused: bool | None) -> None:
    """One kernel for all parameters (or, with ``False``, a loop over them)."""
    _implementation(watch, fused=fused is not False, foreach=False)


def _become(watch: Watch, kind: type[torch.optim.Optimizer], defaults: dict[str, Any], keep: tuple[str, ...]) -> None:
    def swap(optimizer: torch.optim.Optimizer) -> None:
        settings = {k: optimizer.defaults[k] for k in keep if k in optimizer.defaults}
        optimizer.__class__ = kind
        optimizer.defaults = {**defaults, **settings}
        for group in optimizer.param_groups:
            group_options = {k: group[k] for k in ("params", *keep) if k in group}
            group.clear()
            group.update({**optimizer.defaults, **group_options})
        optimizer._patch_step_function()
        watch.sites.touched += 1

    watch.on_optimizer.append(swap)


OPTIMIZERS = {
    "adamw": torch.optim.AdamW,
    "adam": torch.optim.Adam,
    "sgd": torch.optim.SGD,
    "momentum": torch.optim.SGD,
    "adafactor": torch.optim.Adafactor,
    "rmsprop": torch.optim.RMSprop,
    "adagrad": torch.optim.Adagrad,
}


def _named(watch: Watch, name: str) -> None:
    """Another optimizer in place of the step's own, with the defaults of its class; what is tried to save memory keeps the
    weight decay too."""
    if name == "adamw8bit":
        defaults = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0}
        return _become(watch, BlockwiseAdam, defaults, ("lr", "weight_decay"))
    if name not in OPTIMIZERS:
        raise UnknownNameError("optimizer", name, OPTIMIZERS, hint="torch has " + ", ".join(OPTIMIZERS))
    if name == "momentum":
        return _become(watch, torch.optim.SGD, _defaults(watch, torch.optim.SGD, momentum=0.9), ("lr", "weight_decay"))
    return _become(watch, OPTIMIZERS[name], _defaults(watch, OPTIMIZERS[name]), ("lr",))


def _defaults(watch: Watch, kind: Any, **options: Any) -> dict[str, Any]:
    """The options of an optimizer of ``kind`` as it makes them itself."""
    watch.quiet = True
    try:
        return dict(kind([nn.Parameter(torch.zeros(1))], lr=1e-3, **options).defaults)
    finally:
        watch.quiet = False


class BlockwiseAdam(torch.optim.Optimizer):
    """Adam with both states in 8 bits and one fp32 scale for each block of 256: the memory and the passes over memory
    of bitsandbytes' AdamW8bit (one kernel a tensor reads gradient, weight and states and writes the last three)."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = None if closure is None else closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self._update(p)
        return loss

    def _update(self, p: torch.Tensor) -> None:
        state = self.state[p]
        if not state:
            small = p.numel() < SMALLEST_8BIT
            for name in ("first", "second"):
                state[name] = torch.zeros_like(p, dtype=torch.float32 if small else torch.uint8)
                if not small:
                    state[f"{name}_scale"] = torch.zeros(-(-p.numel() // BLOCK), dtype=torch.float32, device=p.device)
        # what the kernel moves: both states and the weight are read and written, the gradient is read
        state["first"].add_(1)
        state["second"].add_(1)
        p.add_(p.grad, alpha=-1e-3)  # type: ignore[arg-type]


@contextmanager
def _set_to_none(watch: Watch, _: Any) -> Iterator[None]:
    """``zero_grad`` frees the gradients regardless of its arguments."""

    def free(original: Any) -> Any:
        def zero_grad(self: Any, set_to_none: bool = True) -> Any:
            watch.sites.touched += not set_to_none
            return original(self, True)

        return zero_grad

    with patched(torch.optim.Optimizer, "zero_grad", free), patched(nn.Module, "zero_grad", free):
        yield


def _zero_after_step(watch: Watch, _: Any) -> None:
    """Free the gradients right after the optimizer's update, not at the start of the next step."""

    def free(optimizer: torch.optim.Optimizer) -> None:
        optimizer.register_step_post_hook(lambda o, a, k: o.zero_grad(set_to_none=True))
        watch.sites.touched += 1

    watch.on_optimizer.append(free)


@contextmanager
def _micro_batches(watch: Watch, _: Any) -> Iterator[None]:
    """One micro-batch of several: gradients of earlier ones stay and are accumulated."""

    def keep(original: Any) -> Any:
        def zero_grad(self: Any, set_to_none: bool = True) -> None:
            watch.sites.touched += 1

        return zero_grad

    with patched(torch.optim.Optimizer, "zero_grad", keep), patched(nn.Module, "zero_grad", keep):
        yield


def _step_in_backward(watch: Watch, _: Any) -> None:
    """Each parameter is updated as soon as its gradient is there, and the gradient freed: gradients never stand together."""

    def split(optimizer: torch.optim.Optimizer) -> None:
        if getattr(optimizer, "_gpuwise_part", False):
            return
        kind, parts = type(optimizer), {}
        for group in optimizer.param_groups:
            options = {k: v for k, v in group.items() if k != "params" and v is not None and k != "initial_lr"}
            for p in group["params"]:
                if p.requires_grad:
                    part = torch.optim.Optimizer.__new__(kind)
                    part.__dict__.update({k: v for k, v in optimizer.__dict__.items() if k not in ("state", "param_groups")})
                    part.state = type(optimizer.state)(dict)
                    part.param_groups = [{**group, **options, "params": [p]}]
                    part._gpuwise_part = True  # type: ignore[attr-defined]
                    parts[p] = part

        def update(p: torch.Tensor) -> None:
            parts[p].step()
            p.grad = None

        for p in parts:
            p.register_post_accumulate_grad_hook(update)
        watch.sites.touched += len(parts)

    watch.on_optimizer.append(split)


OPTIMIZER: dict[str, Callable[[Watch, Any], Any]] = {
    "fused_optimizer": _fused,
    "optimizer": _named,
    "set_to_none": _set_to_none,
    "zero_after_step": _zero_after_step,
    "micro_batches": _micro_batches,
    "step_in_backward": _step_in_backward,
}
