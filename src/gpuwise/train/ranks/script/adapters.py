# pyright: basic
"""Adapters on the model of a script, trained instead of its weights (PEFT). The script saves its own weights with the adapters
merged, under its own names; after loading, the adapters start again from zero."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor

from gpuwise.errors import InputError
from gpuwise.train.ranks.layout import Layout
from gpuwise.train.ranks.methods import add_adapters

NAME = "default"
"""Name of the adapters, PEFT's default."""


def adapt(model: nn.Module, params: list[Any], layout: Layout, first: Callable[[], None]) -> list[Any]:
    """``params`` of an optimizer (tensors, named ones, or groups) with each weight's adapters in its place; the rest is frozen
    and removed. ``first`` is called before any communication. Raises MissingExtraError, InputError."""
    before = {name: id(p) for name, p in model.named_parameters(remove_duplicate=False)}
    on = next(iter(model.parameters())).device
    first()
    add_adapters(model, layout, on)
    of: dict[int, list[tuple[str, nn.Parameter]]] = {}
    for path, layer in model.named_modules():
        if not hasattr(layer, "lora_A") or not hasattr(layer, "get_base_layer"):
            continue
        named = [(f"{path}.{n}", p) for n, p in layer.named_parameters() if p.requires_grad]
        for _, parameter in named:
            dist.broadcast(parameter.data, 0)
        of[before[f"{path}.weight"]] = named
        layer._register_state_dict_hook(_merged)
        layer.register_load_state_dict_pre_hook(_load)
    groups = list(_in_place(params, of))
    if not groups:
        raise InputError("the script's optimizer trains no layer that has an adapter", hint="name layers: --lora-targets q_proj")
    return groups


def _in_place(params: list[Any], of: Mapping[int, list[tuple[str, nn.Parameter]]]) -> Any:
    for each in params:
        if isinstance(each, Mapping):
            value = each["params"]
            group = list(_in_place([value] if isinstance(value, torch.Tensor) else list(value), of))
            if group:
                yield {**each, "params": group}
        elif isinstance(each, tuple):
            yield from of.get(id(each[1]), ())
        else:
            yield from (parameter for _, parameter in of.get(id(each), ()))


def _whole(tensor: Any) -> torch.Tensor:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach()


def _weight(layer: Any) -> torch.Tensor:
    """The frozen weight, out of its 4 bits."""
    weight = layer.get_base_layer().weight
    if hasattr(weight, "quant_state"):
        return import_module("bitsandbytes").functional.dequantize_4bit(weight.data, weight.quant_state)
    return _whole(weight)


def _merged(layer: Any, state: dict[str, Any], prefix: str, _: Any) -> dict[str, Any]:
    low, high = (_whole(getattr(layer, n)[NAME].weight).float() for n in ("lora_A", "lora_B"))
    added = high @ low * layer.scaling[NAME]
    weight, bias = _weight(layer), layer.get_base_layer().bias
    kept = {"weight": weight + (added.T if layer.fan_in_fan_out else added).to(weight.dtype)}
    if bias is not None:
        kept["bias"] = _whole(bias)
    for name in [n for n in state if n.startswith(prefix)]:
        del state[name]
    state.update({prefix + name: value for name, value in kept.items()})
    return state


def _load(layer: Any, state: dict[str, Any], prefix: str, *_: Any) -> None:
    base = layer.get_base_layer()
    if prefix + "weight" not in state:
        return
    if hasattr(base.weight, "quant_state"):
        raise InputError(
            "weights are loaded into a model whose own are in 4 bits already", hint="load them before the optimizer is made"
        )
    for name in ("weight", "bias"):
        if prefix + name in state:
            state[f"{prefix}base_layer.{name}"] = _as(state.pop(prefix + name), getattr(base, name))
    for name, beginning in (("lora_A", torch.clone), ("lora_B", torch.zeros_like)):
        state[f"{prefix}{name}.{NAME}.weight"] = beginning(getattr(layer, name)[NAME].weight.detach())


def _as(value: torch.Tensor, parameter: Any) -> torch.Tensor:
    if not isinstance(parameter, DTensor) or isinstance(value, DTensor):
        return value
    return distribute_tensor(value.to(parameter.device), parameter.device_mesh, parameter.placements, src_data_rank=None)
