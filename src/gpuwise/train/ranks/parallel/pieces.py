# pyright: basic
"""Checkpoints of matrices whose columns tensor ranks hold in another order: written and read where one process has them.

DCP takes a rank's part of a tensor as one piece. Here each piece of it has its own place, by what these planners say of it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadPlan, SavePlan
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list
from torch.distributed.tensor import DTensor

from gpuwise.train.ranks.parallel.halves import orders_of

Order = tuple[int, tuple[tuple[int, int], ...]]
"""The dimension, and first column and number of each piece."""


def stored_orders(model: nn.Module, state: Mapping[str, Any]) -> dict[str, Order]:
    """For each tensor of a checkpoint's ``state`` in another order (weights and their optimizer states): its order."""
    orders: dict[str, Order] = {}
    shapes = {n: p.shape for n, p in model.named_parameters()}
    for name, dim, order in orders_of(model):
        orders |= {f"model.{name}": (dim, order)} if name in state.get("model", {}) else {}
        for key, value in state.get("optimizer", {}).items():
            if key.rpartition(".")[0] == name and value.shape == shapes[name]:
                orders[f"optimizer.{key}"] = (dim, order)
    return orders


def pieces(chunk: ChunkStorageMetadata, order: Order) -> list[tuple[ChunkStorageMetadata, int]]:
    """Parts of a rank's chunk, each where one process has it, with where it begins in the chunk."""
    dim, parts = order
    first, behind = chunk.offsets[dim], chunk.offsets[dim] + chunk.sizes[dim]
    found, at = [], 0
    for start, size in parts:
        low, high = max(first, at), min(behind, at + size)
        if low < high:
            offsets, sizes = list(chunk.offsets), list(chunk.sizes)
            offsets[dim], sizes[dim] = start + low - at, high - low
            found.append((ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes)), low - first))
        at += size
    return found


def _chunk_of(tensor: DTensor) -> ChunkStorageMetadata:
    return tensor.__create_chunk_list__()[0]  # type: ignore[attr-defined]


def _piece(tensor: DTensor, order: Order, index: MetadataIndex) -> torch.Tensor:
    """The part of this rank's tensor at an index of the checkpoint."""
    for chunk, at in pieces(_chunk_of(tensor), order):
        if chunk.offsets == index.offset:
            return tensor.to_local().narrow(order[0], at, chunk.sizes[order[0]])
    raise KeyError(index)


class PieceWriter(DefaultSavePlanner):
    """Writes each piece at its own place. ``orders``: by the names of tensors in the checkpoint."""

    def __init__(self, orders: Mapping[str, Order]) -> None:
        super().__init__()
        self._orders = orders

    def create_local_plan(self) -> SavePlan:
        """Same as DCP's, with the pieces of reordered tensors instead."""
        plan, items = super().create_local_plan(), []
        for item in plan.items:
            order, data = self._orders.get(item.index.fqn), item.tensor_data
            if order is None or data is None:
                items.append(item)
                continue
            for chunk, _ in pieces(data.chunk, order):
                index = MetadataIndex(item.index.fqn, chunk.offsets)
                items.append(dataclasses.replace(item, index=index, tensor_data=dataclasses.replace(data, chunk=chunk)))
        self.plan = dataclasses.replace(plan, items=items)
        return self.plan

    def lookup_object(self, index: MetadataIndex) -> Any:
        """A tensor of the state, or a piece of it."""
        order = self._orders.get(index.fqn)
        return super().lookup_object(index) if order is None else _piece(self.state_dict[index.fqn], order, index)


class PieceReader(DefaultLoadPlanner):
    """Reads each piece from where one process has it."""

    def __init__(self, orders: Mapping[str, Order]) -> None:
        super().__init__()
        self._orders = orders

    def create_local_plan(self) -> LoadPlan:
        """Same as DCP's, with the pieces of reordered tensors instead."""
        plan = super().create_local_plan()
        items = [item for item in plan.items if item.dest_index.fqn not in self._orders]
        assert self.metadata is not None
        for name, order in self._orders.items():
            metadata, tensor = self.metadata.state_dict_metadata.get(name), self.state_dict.get(name)
            if isinstance(metadata, TensorStorageMetadata) and tensor is not None:
                chunks = [chunk for chunk, _ in pieces(_chunk_of(tensor), order)]
                items += create_read_items_for_chunk_list(name, metadata, chunks)
        return dataclasses.replace(plan, items=items)

    def lookup_tensor(self, index: MetadataIndex) -> torch.Tensor:
        """A tensor of the state, or a piece of it."""
        order = self._orders.get(index.fqn)
        return super().lookup_tensor(index) if order is None else _piece(self.state_dict[index.fqn], order, index)
