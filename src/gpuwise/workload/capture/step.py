# pyright: basic
"""The default step of a module: forward, loss, backward, update, gradients freed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import torch
from torch import nn

from gpuwise.errors import InputError, UnknownNameError, require
from gpuwise.workload.capture.ops.nested import tensors_in

OPTIMIZERS = ("adamw", "adam", "sgd", "momentum", "rmsprop", "adagrad", "adafactor", "adam8bit", "adamw8bit")


def make_optimizer(optimizer: Any, parameters: list[nn.Parameter]) -> Any:
    """An optimizer from a name, a class, a factory (called with the parameters), or an optimizer object.

    Raises UnknownNameError for an unknown name, MissingExtraError if its library is not installed, InputError if there is
    nothing to train.
    """
    if optimizer is None or hasattr(optimizer, "step"):
        return optimizer if not isinstance(optimizer, type) else optimizer(parameters)
    if not parameters:
        raise InputError(
            "the module has no parameter that requires a gradient", hint="pass train=False to capture its forward only"
        )
    if callable(optimizer):
        return optimizer(parameters)
    name = str(optimizer).lower().replace("_", "").replace("-", "")
    simple: dict[str, Callable[..., Any]] = {
        "adamw": torch.optim.AdamW,
        "adam": torch.optim.Adam,
        "rmsprop": torch.optim.RMSprop,
        "adagrad": torch.optim.Adagrad,
        "sgd": lambda p: torch.optim.SGD(p, lr=1e-3),
        "momentum": lambda p: torch.optim.SGD(p, lr=1e-3, momentum=0.9),
    }
    if hasattr(torch.optim, "Adafactor"):
        simple["adafactor"] = torch.optim.Adafactor
    if name in simple:
        return simple[name](parameters)
    if name in ("adam8bit", "adamw8bit"):
        return _eight_bit(parameters, name)
    raise UnknownNameError("optimizer", str(optimizer), OPTIMIZERS)


def _eight_bit(parameters: list[nn.Parameter], name: str) -> Any:
    require("bitsandbytes", f"the optimizer {name!r}")
    bitsandbytes: Any = import_module("bitsandbytes")
    return (bitsandbytes.optim.AdamW8bit if name == "adamw8bit" else bitsandbytes.optim.Adam8bit)(parameters)


def call_with(module: Callable[..., Any], inputs: Any) -> Any:
    """``module(**inputs)`` for a mapping, ``module(*inputs)`` for a tuple or list, else ``module(inputs)``."""
    if inputs is None:
        return module()
    if isinstance(inputs, Mapping):
        return module(**inputs)
    if isinstance(inputs, (tuple, list)):
        return module(*inputs)
    return module(inputs)


def loss_of(output: Any, inputs: Any, loss: Any) -> torch.Tensor:
    """A scalar: ``loss`` of the output (and of the inputs if it takes two), ``output.loss``, or the mean of the first floating
    tensor. Raises InputError if there is none."""
    if loss is not None:
        value = loss(output, inputs) if _takes_two(loss) else loss(output)
    else:
        value = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if isinstance(value, torch.Tensor):
        return value if value.dim() == 0 else value.float().mean()
    output_tensor = next((t for t in tensors_in(output) if t.is_floating_point() and t.requires_grad), None)
    if output_tensor is None:
        raise InputError(
            "the module returned no floating-point tensor that requires a gradient, so there is nothing to go backward from",
            hint="pass loss=, or train=False to capture the forward only",
        )
    return output_tensor.float().mean()


def _takes_two(loss: Callable[..., Any]) -> bool:
    import inspect

    try:
        required = [
            p
            for p in inspect.signature(loss).parameters.values()
            if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]
    except (TypeError, ValueError):
        return False
    return len(required) >= 2


def training_step(module: nn.Module, inputs: Any, optimizer: Any, loss: Any) -> Callable[[], Any]:
    """Forward in training mode, loss, backward, update, ``zero_grad(set_to_none=True)``."""
    module.train()

    def step() -> None:
        output = call_with(module, inputs)
        loss_of(output, inputs, loss).backward()
        del output
        if optimizer is not None:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        else:
            for parameter in module.parameters():
                parameter.grad = None

    return step


def inference_step(module: nn.Module, inputs: Any) -> Callable[[], Any]:
    """Forward in evaluation mode without a graph."""
    module.eval()

    def step() -> None:
        with torch.no_grad():
            call_with(module, inputs)

    return step
