"""Collectives as PyTorch's dispatcher is given them, whoever calls: what the meter of ranks is compared with."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

KINDS = {
    "c10d.allreduce_": "all-reduce",
    "c10d._allgather_base_": "all-gather",
    "c10d._reduce_scatter_base_": "reduce-scatter",
    "c10d.alltoall_base_": "all-to-all",
    "c10d.send": "send",
    "_c10d_functional.all_reduce": "all-reduce",
    "_c10d_functional.all_reduce_": "all-reduce",
    "_c10d_functional.all_gather_into_tensor": "all-gather",
    "_c10d_functional.reduce_scatter_tensor": "reduce-scatter",
    "_c10d_functional.all_to_all_single": "all-to-all",
}
SILENT = ("c10d.recv_", "_c10d_functional.wait_tensor", "_c10d_functional._wrap_tensor_autograd")
"""The other end of a message, and no message."""


class Issued(TorchDispatchMode):
    """Number and bytes by kind, of the larger side; an operator that is none of :data:`KINDS` by its own name."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])

    def take(self) -> dict[str, list[int]]:
        """Since the last time."""
        taken = dict(self.counts)
        self.counts.clear()
        return taken

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(t, DTensor) for t in types):
            # what it makes of this comes here by itself
            return NotImplemented
        made = func(*args, **(kwargs or {}))
        if func.namespace in ("c10d", "_c10d_functional"):
            name = str(func).rpartition(".")[0]
            if name not in SILENT:
                sizes = [t.numel() * t.element_size() for t in tree_leaves((args, made)) if isinstance(t, torch.Tensor)]
                seen = self.counts[KINDS.get(name, name)]
                seen[0] += 1
                seen[1] += max(sizes)
        return made
