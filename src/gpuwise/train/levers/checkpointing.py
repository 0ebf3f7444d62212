# pyright: basic
"""Activations: disable the script's own recomputation, and recompute a model's repeated blocks in the backward pass."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.utils import checkpoint as torch_checkpoint

from gpuwise.train.levers.forward import replace_compiled_call, replace_forward
from gpuwise.train.ticks import Tick
from gpuwise.workload.capture.device.patching import Patches
from gpuwise.workload.capture.packages import without_caches
from gpuwise.workload.capture.repeats import kinds_of, repeated_blocks

Tell = Callable[..., None]
Undo = Callable[[], None]
CHECKPOINT = torch_checkpoint.checkpoint
OPTIONS = (
    *(n for n, p in inspect.signature(CHECKPOINT).parameters.items() if p.kind is p.KEYWORD_ONLY),
    "preserve_rng_state",
)
"""Options of a checkpoint call: everything else belongs to the function."""
TOLD_AT = (1, 3, 8)
"""Ticks at which the number of calls is reported."""


def replace_everywhere(patches: Patches, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """``make(checkpoint)`` in place of ``checkpoint``, also where a module that is loaded already holds it by name
    (``checkpoint_sequential``, transformers and timm reach it through such names)."""
    replacing = make(CHECKPOINT)
    for module in list(sys.modules.values()):
        for name, value in list(getattr(module, "__dict__", {}).items()):
            if value is CHECKPOINT and module is not sys.modules[__name__]:
                patches.set(module, name, replacing)


def plain_calls(patches: Patches, tell: Tell) -> None:
    """Disable recomputation: a checkpoint becomes a plain call of its function."""
    told: list[bool] = []

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def plain(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            if not told:
                told.append(True)
                tell("lever", name="checkpointing", applied=True)
            return function(*args, **{k: v for k, v in kwargs.items() if k not in OPTIONS})

        # a compiler that follows __wrapped__ would find the checkpoint again
        del plain.__wrapped__
        return plain

    replace_everywhere(patches, make)


class CountedCalls:
    """How often the script calls a checkpoint in a step."""

    def __init__(self, patches: Patches, tell: Tell) -> None:
        self._tell, self._calls, self._n_ticks = tell, 0, 0

        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(original)
            def counted(*args: Any, **kwargs: Any) -> Any:
                self._calls += 1
                return original(*args, **kwargs)

            return counted

        replace_everywhere(patches, make)

    def on_tick(self, tick: Tick) -> None:
        """After certain numbers of steps, say how often parts were computed again."""
        self._n_ticks += 1
        if self._n_ticks in TOLD_AT:
            self._tell("checkpoints", calls=self._calls, ticks=self._n_ticks)


def recompute_blocks(module: nn.Module, tell: Tell) -> Undo:
    """The model's repeated blocks keep their inputs only, and are run again in the backward pass with the same random numbers."""
    blocks = repeated_blocks(module)
    if not blocks:
        tell("lever", name="checkpointing", applied=False, why="the model has no repeated blocks")
        return lambda: None
    undo = [_recompute(block) for block in blocks]
    tell("lever", name="checkpointing", applied=True, n_blocks=len(blocks), kind=kinds_of(blocks))

    def back() -> None:
        for one in undo:
            one()

    return back


def _recompute(block: nn.Module) -> Undo:
    compiled = getattr(block, "_compiled_call_impl", None)
    if compiled is None:
        return replace_forward(block, lambda module, inner: recomputed(module, inner))
    # outside of what is compiled, which stays as it is
    return replace_compiled_call(block, recomputed(block, compiled))


def recomputed(module: nn.Module, inner: Callable[..., Any]) -> Callable[..., Any]:
    """``inner`` under a checkpoint wherever there will be a backward pass."""

    def run(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled() or not module.training:
            return inner(*args, **kwargs)
        return under_checkpoint(module, inner, *args, **kwargs)

    return run


def under_checkpoint(module: nn.Module, inner: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """One call that is run again in the backward pass; running statistics of normalisation see it once."""
    args, kwargs = without_caches(args, kwargs)
    return CHECKPOINT(
        lambda *a: inner(*a, **kwargs),
        *args,
        use_reentrant=False,
        preserve_rng_state=True,
        context_fn=lambda: (nullcontext(), statistics_kept(module)),
    )


@contextmanager
def statistics_kept(module: nn.Module) -> Iterator[None]:
    """Running means and variances are put back at the end: the second run of a batch must not move them again."""
    norms = [m for m in module.modules() if isinstance(m, nn.modules.batchnorm._NormBase) and m.track_running_stats]
    buffers = [(buffer, buffer.detach().clone()) for m in norms for buffer in m.buffers(recurse=False)]
    try:
        yield
    finally:
        for buffer, before in buffers:
            # .data: what autograd has saved of it counts as unchanged
            buffer.data.copy_(before)
