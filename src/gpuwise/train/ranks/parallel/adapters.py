# pyright: basic
"""Adapters on tensor-parallel matrices. For column-parallel ones the first factor is replicated, with gradients of each rank's
own columns, and the second is split like them; for row-parallel ones the first is split, its results are summed, and the
second is replicated."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.nn import functional

from gpuwise.train.levers.items import random_numbers_kept
from gpuwise.train.ranks.parallel.halves import in_order, is_turned
from gpuwise.train.ranks.parallel.stages import LayerCall
from gpuwise.train.ranks.parallel.tensor import DividedLayers, SharedInput, distribute, given_to


def divide_adapters(
    model: nn.Module, mesh: DeviceMesh, divided: DividedLayers, call: LayerCall, *, on_host: bool = False
) -> DividedLayers:
    """Lay both factors of each adapter (of PEFT, named ``default``) out as the matrix under them. ``call`` of the first layer is
    run once, but not where it has to stay ``on_host``."""
    names = {m: n for block in divided.rows for n, m in block.named_modules()}
    again: set[str] = set()
    for each in model.modules():
        module: Any = each
        base: Any = getattr(module, "base_layer", None)
        if base is None or not isinstance(base.weight, DTensor):
            continue
        first, second = module.lora_A["default"], module.lora_B["default"]
        if base.weight.placements[0] == Shard(1 if is_turned(base) else 0):
            order = getattr(base, "column_order", None)
            if order is not None:
                second.weight.data = in_order(second.weight.data, 0, order)
                second.column_order = order
            _WholeFactor(first, mesh, Replicate())
            _Columns(second, mesh, Shard(0))
            module.register_forward_pre_hook(SharedInput(mesh), with_kwargs=True)
        else:
            _Rows(first, mesh, Shard(1))
            # the second factor keeps that sum for the backward pass, behind the matrix's own
            again.add(names[module])
    unmoved = frozenset[str]() if on_host else _unmoved(divided, call, torch.device(mesh.device_type))
    return replace(divided, needed=divided.needed | again, unmoved=unmoved)


def _unmoved(divided: DividedLayers, call: LayerCall, device: torch.device) -> frozenset[str]:
    """Rows of the first layer whose columns take what no trained weight is in."""
    found: set[str] = set()

    def look(row: str, _: nn.Module, given: Any) -> None:
        if not given[0].requires_grad:
            found.add(row)

    parts = {row: call.block.get_submodule(divided.columns[row]) for row in divided.rows[call.block]}
    handles = [m.register_forward_pre_hook(partial(look, row)) for row, m in parts.items()]
    args, kwargs = given_to(call, device)
    try:
        call.block.to(device)
        with random_numbers_kept(), torch.enable_grad():
            call.block(*args, **kwargs)
    finally:
        for handle in handles:
            handle.remove()
    return frozenset(found)


def added_columns(block: nn.Module) -> list[nn.Parameter]:
    """First factors for which every rank has the gradient of its own columns."""
    return [_factor(m).weight for m in block.modules() if isinstance(m.forward, _WholeFactor)]


def added_rows(block: nn.Module) -> list[int]:
    """Numbers per token of each sum over the ranks that adapters add to a forward pass."""
    return [_factor(m).weight.shape[0] for m in block.modules() if isinstance(m.forward, _Rows)]


def _factor(module: Any) -> Any:
    return module.forward.factor


class _ShardedFactor:
    """Forward pass of a factor, which replaces its own."""

    def __init__(self, factor: Any, mesh: DeviceMesh, placement: Any) -> None:
        self.factor, self._mesh = factor, mesh
        distribute(factor, "weight", factor.weight, mesh, placement)
        factor.forward = self


class _WholeFactor(_ShardedFactor):
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        parts = (Partial(),)
        own = x.to_local(grad_placements=parts) if isinstance(x, DTensor) else x
        return functional.linear(own, self.factor.weight.to_local(grad_placements=parts))


class _Columns(_ShardedFactor):
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self.factor.weight.to_local())


class _Rows(_ShardedFactor):
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        own = DTensor.from_local(functional.linear(x, self.factor.weight.to_local()), self._mesh, (Partial(),), run_check=False)
        return own.redistribute(placements=(Replicate(),)).to_local()
