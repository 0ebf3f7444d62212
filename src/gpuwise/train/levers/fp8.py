# pyright: basic
"""Matrix products of linear layers in 8-bit floating point, by torchao.

torchao scales activations, weights and gradients to the range of the format at every product (``tensorwise``: one scale for a
tensor, gradients in e5m2; ``rowwise``: one for each row, all in e4m3) and keeps the weights themselves as they are. Tensor cores
multiply these formats from NVIDIA's Ada (compute capability 8.9) and Hopper on (CUDA C++ Programming Guide, compute
capabilities), where both sides of a layer are multiples of 16 (torchao, ``float8``).

Imports torch only with a model: the decision to try it does not need torch.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

FP8_FROM = (8, 9)
MULTIPLE = 16
Tell = Callable[..., None]
Undo = Callable[[], None]


def why_not_fp8(capability: tuple[int, int] | None) -> str | None:
    """Why it cannot be had on a GPU of this compute capability, with these packages; None where it can."""
    if capability is None or capability < FP8_FROM:
        return "this GPU has no fp8 tensor cores"
    if importlib.util.find_spec("torchao") is None:
        return "torchao is not installed: pip install torchao"
    return None


def chosen_layers(module: nn.Module) -> dict[str, nn.Linear]:
    """The linear layers worth converting, by name: inside the model's repeated blocks, or without blocks all but the first and
    last. Layers at a model's ends have the ranges that lose most in 8 bits, and torchao's own example skips the last.
    Subclasses are skipped: their ``forward`` is not that of ``nn.Linear``."""
    from torch import nn

    from gpuwise.workload.capture.repeats import repeated_blocks

    inside = {id(m) for block in repeated_blocks(module) for m in block.modules()}
    layers = {name: m for name, m in module.named_modules() if type(m) is nn.Linear}
    chosen_layers = {n: m for n, m in layers.items() if id(m) in inside} if inside else dict(list(layers.items())[1:-1])
    return {n: m for n, m in chosen_layers.items() if n and not m.in_features % MULTIPLE and not m.out_features % MULTIPLE}


def convert(module: nn.Module, recipe: str, tell: Tell, *, emulate: bool = False) -> Undo:
    """The chosen layers multiply in fp8; they keep their parameters, so an existing optimizer continues to work.

    ``emulate``: by casting to fp8 and multiplying in the wide format, as a device without the units can.
    """
    from gpuwise.train.levers.forward import replace_forward

    why = _why_not(module, emulate)
    layers: dict[str, nn.Linear] = {}
    if why is None:
        layers = chosen_layers(module)
        why = None if layers else f"no inner linear layer has sides that are multiples of {MULTIPLE}"
    if why is not None:
        tell("lever", name="fp8", applied=False, why=why)
        return lambda: None
    from torchao.float8 import Float8LinearConfig  # pyright: ignore[reportMissingImports]
    from torchao.float8.float8_linear import Float8Linear  # pyright: ignore[reportMissingImports]

    # a last, smaller batch of an epoch has any number of rows
    config = replace(Float8LinearConfig.from_recipe_name(recipe), emulate=emulate, pad_inner_dim=True)
    back = [replace_forward(layer, multiplying(Float8Linear.from_float(layer, config))) for layer in layers.values()]
    tell("lever", name="fp8", applied=True, n_layers=len(layers))

    def undo() -> None:
        for one in back:
            one()

    return undo


def multiplying(stand_in: nn.Module) -> Callable[[nn.Module, Callable[..., Any]], Callable[..., Any]]:
    """``stand_in`` multiplies for a layer, which stays in the model with its parameters: files and copies hold no other."""

    def wrap(layer: nn.Module, _: Callable[..., Any]) -> Callable[..., Any]:
        def run(x: Any) -> Any:
            # the model may have been moved since
            stand_in.weight, stand_in.bias = layer.weight, layer.bias  # type: ignore[assignment]
            return stand_in.forward(x)

        return run

    return wrap


def _why_not(module: nn.Module, emulate: bool) -> str | None:
    import torch

    device = next(p.device for p in module.parameters())
    if emulate:
        return None if importlib.util.find_spec("torchao") else "torchao is not installed: pip install torchao"
    if device.type != "cuda" or torch.version.cuda is None:
        return "the model is on no NVIDIA GPU"
    return why_not_fp8(torch.cuda.get_device_capability(device))
