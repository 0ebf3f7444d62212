# pyright: basic
"""Tensor parallel layers for models shaped like Llama (``parallelize_module``): columns of the projections into heads and into
the inner width, rows of those back, so that a layer exchanges once after attention and once after the MLP in each direction."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module

from gpuwise.errors import InputError, LayoutError
from gpuwise.train.ranks.parallel.experts import is_experts
from gpuwise.workload.capture.repeats import largest_kind, repeated_blocks

COLUMNS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj")
ROWS = ("self_attn.o_proj", "mlp.down_proj")
"""Names in a layer, as Transformers has them for Llama and those built like it."""
HIDDEN = "hidden_states"
"""What Transformers names the input of a layer's halves."""
NORMS = ("self_attn.q_norm", "self_attn.k_norm")
"""Of queries and keys, head by head (Qwen3): every rank has the weights, and a part of the heads that their gradient is of."""


def parallelize(model: nn.Module, mesh: DeviceMesh) -> None:
    """Divide the layers of ``model`` over the ranks of ``mesh``. Raises InputError for a model of another shape, LayoutError
    where heads or widths do not divide."""
    n, blocks = mesh.size(), largest_kind(repeated_blocks(model))
    if not blocks:
        raise _unlike(type(model).__name__, "repeated layers")
    for block in blocks:
        parts = dict(block.named_modules())
        # experts stay whole on tensor ranks, or are divided by themselves
        names = [x for x in COLUMNS + ROWS if x.startswith("self_attn") or not any(is_experts(m) for m in parts.values())]
        missing = sorted(x for x in names if not isinstance(parts.get(x), nn.Linear))
        others = {x for x, m in parts.items() if x.startswith("self_attn.") and list(m.parameters(recurse=False))}
        if missing:
            raise _unlike(type(block).__name__, missing[0])
        if unknown := sorted(others - {*names, *NORMS}):
            raise _unlike(type(block).__name__, unknown[0], has=True)
        _check_heads(block, names, n)
        plan: dict[str, Any] = {name: ColwiseParallel() if name in COLUMNS else RowwiseParallel() for name in names}
        plan |= {name: SequenceParallel(sequence_dim=2, use_local_output=True) for name in NORMS if name in parts}
        parallelize_module(block, mesh, plan)
        for name in {x.partition(".")[0] for x in names}:
            parts[name].register_forward_pre_hook(_Shared(mesh), with_kwargs=True)
    head = getattr(model, "lm_head", None)
    if isinstance(head, nn.Linear) and not any(head.weight is m.weight for m in model.modules() if isinstance(m, nn.Embedding)):
        parallelize_module(model, mesh, {"lm_head": ColwiseParallel(output_layouts=Replicate())})


class _Shared:
    """What goes into all columns of a layer's half as one DTensor: its gradients are added here before they are exchanged."""

    def __init__(self, mesh: DeviceMesh) -> None:
        self._mesh = mesh

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        if args and isinstance(args[0], torch.Tensor):
            return (self._shared(args[0]), *args[1:]), kwargs
        if not args and isinstance(kwargs.get(HIDDEN), torch.Tensor):
            return args, {**kwargs, HIDDEN: self._shared(kwargs[HIDDEN])}
        return args, kwargs

    def _shared(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor if isinstance(tensor, DTensor) else DTensor.from_local(tensor, self._mesh, (Replicate(),), run_check=False)


def _unlike(kind: str, name: str, *, has: bool = False) -> InputError:
    return InputError(
        f"tensor parallel: {kind} has {'a' if has else 'no'} {name}",
        hint="it divides layers named as in Transformers' Llama; --sharding zero3 divides any model",
    )


def _check_heads(block: nn.Module, names: list[str], n: int) -> None:
    width = getattr(block.get_submodule("self_attn"), "head_dim", 1)
    for name in (x for x in names if x in COLUMNS):
        rows = block.get_parameter(f"{name}.weight").shape[0]
        unit = width if name.startswith("self_attn") else 1
        if rows // unit % n:
            raise LayoutError("tensor", f"{name}: {rows // unit} {'heads' if unit > 1 else 'rows'} do not divide over {n} ranks",
                              hint="take a --tp that divides them")  # fmt: skip
