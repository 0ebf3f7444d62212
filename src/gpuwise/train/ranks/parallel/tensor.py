# pyright: basic
"""Tensor parallel layers for models shaped like Llama (``parallelize_module``): columns of the projections into heads and into
the inner width, rows of those back, so that a layer exchanges once after attention and once after the MLP in each direction."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from gpuwise.errors import InputError, LayoutError
from gpuwise.train.levers.modules import repeated_blocks

COLUMNS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj")
ROWS = ("self_attn.o_proj", "mlp.down_proj")
"""Names in a layer, as Transformers has them for Llama and those built like it."""


def parallelize(model: nn.Module, mesh: DeviceMesh) -> None:
    """Divide the layers of ``model`` over the ranks of ``mesh``. Raises InputError for a model of another shape, LayoutError
    where heads or widths do not divide."""
    n, blocks = mesh.size(), repeated_blocks(model)
    names = [{name for name, m in block.named_modules() if isinstance(m, nn.Linear)} for block in blocks]
    if not blocks or any(set(COLUMNS + ROWS) - found for found in names):
        kind = type(blocks[0]).__name__ if blocks else type(model).__name__
        missing = sorted(set(COLUMNS + ROWS) - names[0])[0] if blocks else "repeated layers"
        raise InputError(
            f"tensor parallel: {kind} has no {missing}",
            hint="it divides layers named as in Transformers' Llama; --sharding zero3 divides any model",
        )
    for block in blocks:
        _check_heads(block, n)
        plan: dict[str, Any] = {name: ColwiseParallel() for name in COLUMNS} | {name: RowwiseParallel() for name in ROWS}
        parallelize_module(block, mesh, plan)
    head = getattr(model, "lm_head", None)
    if isinstance(head, nn.Linear) and not any(head.weight is m.weight for m in model.modules() if isinstance(m, nn.Embedding)):
        parallelize_module(model, mesh, {"lm_head": ColwiseParallel(output_layouts=Replicate())})


def _check_heads(block: nn.Module, n: int) -> None:
    width = getattr(block.get_submodule("self_attn"), "head_dim", 1)
    for name in COLUMNS:
        rows = block.get_parameter(f"{name}.weight").shape[0]
        unit = width if name.startswith("self_attn") else 1
        if rows // unit % n:
            raise LayoutError("tensor", f"{name}: {rows // unit} {'heads' if unit > 1 else 'rows'} do not divide over {n} ranks",
                              hint="take a --tp that divides them")  # fmt: skip
