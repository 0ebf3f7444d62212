# pyright: basic
"""Levers on the model: formats, compilation, layout; and what the parity gate needs of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from gpuwise.train.levers.forward import replace_compiled_call, replace_forward
from gpuwise.train.levers.saving import compiled_by_lever
from gpuwise.workload.capture.device.patching import Patches
from gpuwise.workload.capture.repeats import kinds_of, repeated_blocks

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
MODES = {
    "whole": {},
    "reduce-overhead": {"mode": "reduce-overhead"},
    "max-autotune": {"mode": "max-autotune-no-cudagraphs"},
}
Tell = Callable[..., None]
Undo = Callable[[], None]


def device_of(module: nn.Module) -> torch.device:
    """Device of its first parameter."""
    return next(p.device for p in module.parameters())


def autocast(module: nn.Module, name: str, tell: Tell) -> Undo:
    """The module's forward under autocast; results in the short format come out as fp32, as they did before."""
    dtype, kind = DTYPES[name], device_of(module).type

    def wrap(_: nn.Module, inner: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            with torch.autocast(kind, dtype):
                result = inner(*args, **kwargs)
            return each_tensor(result, lambda t: t.float() if t.dtype is dtype else t)

        return run

    tell("lever", name="autocast", applied=True)
    return replace_forward(module, wrap)


def each_tensor(value: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """``value`` with every tensor in it changed, however it is nested; of the same types."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, Mapping):
        changed = {k: each_tensor(v, change) for k, v in value.items()}
        try:
            return type(value)(**changed) if hasattr(value, "__dataclass_fields__") else type(value)(changed)  # type: ignore[call-arg]
        except TypeError:
            return changed
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(each_tensor(v, change) for v in value))
    if isinstance(value, (tuple, list)):
        return type(value)(each_tensor(v, change) for v in value)
    return value


def compile_model(module: nn.Module, how: str, tell: Tell) -> Undo:
    """Repeated blocks each (``regional``), or all of the module."""
    compiled_by_lever(module)
    if how == "regional":
        blocks = repeated_blocks(module)
        if not blocks:
            tell("lever", name="compile", applied=False, why="the model has no repeated blocks")
            return lambda: None
        # as nn.Module.compile does
        back = [replace_compiled_call(block, torch.compile(block._call_impl)) for block in blocks]
        tell("lever", name="compile", applied=True, n_blocks=len(blocks), kind=kinds_of(blocks))

        def undo() -> None:
            for one in back:
                one()

        return undo
    tell("lever", name="compile", applied=True)
    # not Module.compile(): hooks on the module would be compiled with it
    return replace_forward(module, lambda _, inner: torch.compile(inner, **MODES[how]))


def channels_last(module: nn.Module, tell: Tell) -> Undo:
    """Four-dimensional inputs with channels innermost, which convolutions and what follows keep.

    The weights stay as they are, for strides go into every file: a convolution brings its own into the layout of its input at
    each call, which moves the parameters' bytes a few times a step and no activation's.
    """
    if not any(isinstance(m, nn.Conv2d) for m in module.modules()):
        tell("lever", name="channels_last", applied=False, why="the model has no two-dimensional convolution")
        return lambda: None

    def inner_channels(tensor: torch.Tensor) -> torch.Tensor:
        is_image = tensor.dim() == 4 and tensor.is_floating_point()
        return tensor.contiguous(memory_format=torch.channels_last) if is_image else tensor

    def wrap(_: nn.Module, inner: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: inner(*each_tensor(args, inner_channels), **each_tensor(kwargs, inner_channels))

    tell("lever", name="channels_last", applied=True)
    return replace_forward(module, wrap)


def without_dropout(patches: Patches) -> Callable[[nn.Module], Undo]:
    """Disable dropout: runs that draw random numbers in different order can then be compared."""
    functional = nn.functional

    def keep(input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
        return input

    for name in ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout"):
        patches.set(functional, name, keep)
    attention = functional.scaled_dot_product_attention

    def attend(query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, *args: Any, **kwargs: Any) -> Any:
        return attention(query, key, value, attn_mask, 0.0, *args, **kwargs)

    patches.set(functional, "scaled_dot_product_attention", attend)

    def prepare(module: nn.Module) -> Undo:
        dropouts = [(m, m.p) for m in module.modules() if isinstance(m, nn.modules.dropout._DropoutNd)]
        dropouts += [(m, m.dropout) for m in module.modules() if isinstance(m, (nn.MultiheadAttention, nn.RNNBase))]
        for m, _ in dropouts:
            setattr(m, "p" if hasattr(m, "p") else "dropout", 0.0)

        def undo() -> None:
            for m, before in dropouts:
                setattr(m, "p" if hasattr(m, "p") else "dropout", before)

        return undo

    return prepare


class Rounding:
    """Monte Carlo arithmetic: what every innermost module gives, and the gradient that comes back to it, is moved by a random
    share of up to ``unit``, as rounding to a format with that unit does. What becomes of losses and gradients is what rounding
    alone can do to this model (Parker, Monte Carlo Arithmetic, 1997)."""

    def __init__(self, unit: float, seed: int = 0) -> None:
        self._unit, self._seed = unit, seed
        self._generator: torch.Generator | None = None

    def __call__(self, module: nn.Module) -> Undo:
        if self._generator is None:
            self._generator = torch.Generator(device_of(module)).manual_seed(self._seed)
        handles = [m.register_forward_hook(self._hook) for m in module.modules() if not any(True for _ in m.children())]
        handles.append(module.register_forward_hook(self._hook))

        def undo() -> None:
            for handle in handles:
                handle.remove()

        return undo

    def _hook(self, module: nn.Module, args: Any, output: Any) -> Any:
        return each_tensor(output, self._moved)

    def _moved(self, tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_floating_point() or not tensor.numel():
            return tensor
        if tensor.requires_grad:
            tensor = tensor * self._factors(tensor)
            tensor.register_hook(lambda gradient: gradient * self._factors(gradient))
        return tensor

    def _factors(self, tensor: torch.Tensor) -> torch.Tensor:
        noise = torch.empty(tensor.shape, dtype=torch.float32, device=tensor.device)
        return noise.uniform_(-self._unit, self._unit, generator=self._generator).add_(1.0).to(tensor.dtype)
