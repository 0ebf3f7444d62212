# pyright: basic
"""The halves of a transformer's layer that tensor ranks divide: names of its projections, as Transformers has them.

A half consists of column-parallel matrices (into heads or the inner width), computation per head or element, and a
row-parallel matrix back. Several matrices may be in one: parts behind each other (queries, keys, values; gate and up), or the
three of each head together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from gpuwise.errors import InputError, LayoutError

HINT = "--sharding zero3 divides any model"
PARTS, HEADS = "parts", "heads"
WIDTHS = ("head_dim", "attention_head_size", "head_size")
"""Attribute names for the head width of an attention."""


@dataclass(frozen=True, slots=True)
class Half:
    """Names in a layer. ``fused``: how one matrix of columns holds several."""

    columns: tuple[str, ...]
    row: str
    fused: str = ""
    added_to: bool = False
    """Whether the layer adds to what this half gives, in place."""

    @property
    def inside(self) -> str:
        """The module that computes between columns and rows; empty where that is the layer."""
        return self.columns[0].rpartition(".")[0]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all matrices."""
        return (*self.columns, self.row)


def _half(inside: str, columns: str, row: str, fused: str = "", *, added_to: bool = False) -> Half:
    before = f"{inside}." if inside else ""
    return Half(tuple(before + c for c in columns.split()), before + row, fused, added_to)


ATTENTION = (
    _half("self_attn", "q_proj k_proj v_proj", "o_proj"),  # Llama and most since
    _half("self_attn", "q_proj k_proj v_proj", "out_proj"),  # OPT, CLIP
    _half("self_attn", "q_proj k_proj v_proj", "dense"),  # Phi
    _half("self_attn", "qkv_proj", "o_proj", PARTS),  # Phi-3
    _half("self_attn", "query_key_value", "dense", HEADS),  # Persimmon
    _half("attention", "q_proj k_proj v_proj", "o_proj"),  # ViT, DINOv2
    _half("attention", "self.query self.key self.value", "output.dense"),  # BERT
    _half("attention", "q_lin k_lin v_lin", "out_lin"),  # DistilBERT
    _half("attention", "query_key_value", "dense", HEADS),  # GPT-NeoX
    _half("self_attention", "query_key_value", "dense", HEADS),  # Falcon, BLOOM
    _half("attn", "c_attn", "c_proj", PARTS),  # GPT-2
    _half("attn", "q_proj k_proj v_proj", "out_proj"),  # GPT-J
    _half("attn.attention", "q_proj k_proj v_proj", "out_proj"),  # GPT-Neo
    _half("attn", "Wqkv", "Wo", PARTS),  # ModernBERT
    _half("attn", "Wqkv", "out_proj", PARTS),  # MPT
)
INNER = (
    _half("mlp", "gate_proj up_proj", "down_proj"),
    _half("mlp", "gate_up_proj", "down_proj", PARTS),  # Phi-3, GLM-4
    _half("mlp", "up_proj", "down_proj"),  # Nemotron, Arcee
    _half("mlp", "fc1", "fc2"),
    _half("", "fc1", "fc2"),  # OPT
    _half("mlp", "c_fc", "c_proj"),  # GPT-2, StarCoder2
    _half("mlp", "fc_in", "fc_out"),  # GPT-J
    _half("mlp", "dense_h_to_4h", "dense_4h_to_h", added_to=True),  # GPT-NeoX, Falcon, BLOOM
    _half("", "intermediate.dense", "output.dense"),  # BERT
    _half("ffn", "lin1", "lin2"),  # DistilBERT
    _half("ffn", "up_proj", "down_proj"),  # MPT
    _half("mlp", "Wi", "Wo", PARTS),  # ModernBERT
)


def is_turned(module: nn.Module) -> bool:
    """Whether it is a matrix with its inputs as rows (``Conv1D`` of Transformers)."""
    return type(module).__name__ == "Conv1D" and hasattr(module, "nf")


def is_matrix(module: Any) -> bool:
    """Whether it multiplies by one matrix."""
    return isinstance(module, nn.Linear) or is_turned(module)


def out_features(module: Any) -> int:
    """Numbers that a matrix gives for a row."""
    return int(module.weight.shape[1 if is_turned(module) else 0])


def in_features(module: Any) -> int:
    """Numbers that a matrix takes for a row."""
    return int(module.weight.shape[0 if is_turned(module) else 1])


def halves_of(block: nn.Module, *, experts: bool) -> list[Half]:
    """Attention and what follows it in a layer; ``experts``: the second half is theirs. Raises InputError for a layer of another
    form."""
    found = [_first(block, ATTENTION, "attention")]
    if not experts:
        found.append(_first(block, INNER, "two matrices behind its attention"))
    inside = {name for half in found for name in half.names}
    kept = ("mlp.",) if experts else ()
    for name, module in block.named_modules():
        if is_matrix(module) and name not in inside and not name.startswith(kept):
            raise unlike(type(block).__name__, name, has=True)
    return found


def _first(block: nn.Module, forms: tuple[Half, ...], what: str) -> Half:
    parts = dict(block.named_modules())
    for half in forms:
        if all(is_matrix(parts.get(name)) for name in half.names):
            return half
    raise unlike(type(block).__name__, f"{what} with names that ranks know")


def unlike(kind: str, name: str, *, has: bool = False) -> InputError:
    """Message that a layer of class ``kind`` lacks ``name``, or has it too."""
    return InputError(
        f"tensor parallel: {kind} has {'a' if has else 'no'} {name}",
        hint=f"it divides layers whose halves are named as in one of Transformers' models that it knows; {HINT}",
    )


# --- how columns are divided ---


def heads_of(block: nn.Module, half: Half) -> Any:
    """The width of a head; 1 in the half behind the attention."""
    if half not in ATTENTION:
        return 1
    return head_width(block.get_submodule(half.inside))


def head_width(attention: nn.Module) -> int:
    """Numbers of one head's query; 1 where the attention does not say."""
    return next((w for name in WIDTHS if isinstance(w := getattr(attention, name, None), int)), 1)


def part_sizes(block: nn.Module, half: Half, column: str) -> list[int]:
    """Columns of each matrix within one, in order."""
    n = out_features(block.get_submodule(column))
    if half.fused != PARTS:
        return [n]
    if half not in ATTENTION:
        return [n // 2, n - n // 2]
    queries = in_features(block.get_submodule(half.row))
    return [queries, (n - queries) // 2, (n - queries) // 2]


def check_columns(block: nn.Module, half: Half, n_ranks: int) -> None:
    """Raises LayoutError where heads or widths do not divide."""
    width = heads_of(block, half)
    for column in half.columns:
        sizes, unit = part_sizes(block, half, column), width
        if half.fused == HEADS:
            unit = sizes[0] // max(_groups(block.get_submodule(half.inside)), 1)
        for size in sizes:
            if size % unit or size // unit % n_ranks or size < unit:
                what = "rows" if unit == 1 else "heads"
                raise LayoutError(
                    "tensor",
                    f"{column}: {size // unit} {what} do not divide over {n_ranks} ranks",
                    hint="take a --tp that divides them",
                )


def _groups(attention: Any) -> int:
    """Groups of queries with one key and value each."""
    config = getattr(attention, "config", None)
    for owner, names in ((attention, ("num_kv_heads", "num_heads")), (config, ("num_attention_heads",))):
        for name in names:
            if isinstance(n := getattr(owner, name, None), int):
                return n
    return 1


def order_of(sizes: list[int], n_ranks: int) -> tuple[tuple[int, int], ...]:
    """Order of concatenated parts in which every rank's share of each is contiguous: first column and length of each piece."""
    starts = [sum(sizes[:at]) for at in range(len(sizes))]
    return tuple(
        (start + r * size // n_ranks, size // n_ranks) for r in range(n_ranks) for start, size in zip(starts, sizes, strict=True)
    )


def orders_of(model: nn.Module) -> Iterator[tuple[str, int, tuple[tuple[int, int], ...]]]:
    """For each parameter with columns in another order than in one process: its name, their dimension, their pieces."""
    for path, module in model.named_modules():
        order: Any = getattr(module, "column_order", None)
        for name, parameter in module.named_parameters(recurse=False) if order else ():
            turned = is_turned(module) and parameter.dim() == 2
            yield f"{path}.{name}", int(turned), order


def in_order(tensor: torch.Tensor, dim: int, order: tuple[tuple[int, int], ...]) -> torch.Tensor:
    """``tensor`` as one process has it, rearranged."""
    return torch.cat([tensor.narrow(dim, start, size) for start, size in order], dim)
