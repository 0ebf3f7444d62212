# pyright: basic
"""The life of every storage: births and deaths in order, and what each one was used for."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch

from gpuwise.workload.capture.captured import Category
from gpuwise.workload.capture.record.signatures import dtype_name
from gpuwise.workload.row_codes import Phase

_UNKNOWN = -1


class Storages:
    """Columns of storages and of memory events, written while a step runs."""

    def __init__(self) -> None:
        self.nbytes: list[int] = []
        self.category: list[int] = []
        self.op: list[int] = []
        self.module: list[int] = []
        self.dtype: list[str] = []
        self.stream: list[int] = []
        self.event_storage: list[int] = []
        self.event_sign: list[int] = []
        self.event_op: list[int] = []
        self.alive: dict[int, int] = {}
        """``_cdata`` of each living device storage to its index."""
        self.host: dict[int, int] = {}
        self.host_bytes = 0
        self.host_peak = 0
        self.saved: set[int] = set()
        self.communication: set[int] = set()
        self.resized: set[int] = set()
        self.inputs: set[int] = set()
        self.backwards: list[tuple[int, int]] = []
        """Half-open ranges of events inside a run of the autograd engine."""
        self.fresh: list[int] = []
        """Keys of storages born since the last operation."""

    # --- events ---

    def born(self, key: int, nbytes: int, host: bool, op: int, module: int, stream: int) -> None:
        """A new storage, made by operation ``op``."""
        if host:
            self.host[key] = nbytes
            self.host_bytes += nbytes
            self.host_peak = max(self.host_peak, self.host_bytes)
            return
        index = len(self.nbytes)
        self.alive[key] = index
        self.nbytes.append(nbytes)
        self.category.append(_UNKNOWN)
        self.op.append(op)
        self.module.append(module)
        self.dtype.append("u8")
        self.stream.append(stream)
        self._event(index, 1, op)
        self.fresh.append(key)

    def freed(self, key: int, op: int) -> None:
        """Mark the storage as freed; ``op`` is the last operation that ran."""
        index = self.alive.pop(key, None)
        if index is None:
            self.host_bytes -= self.host.pop(key, 0)
            return
        self._event(index, -1, op)

    def resize(self, key: int, new: int, op: int) -> None:
        """A free of the old size and an allocation of the new one under the same key (FSDP2 does this)."""
        index = self.alive.get(key)
        if index is None:
            if key in self.host:
                self.host_bytes += new - self.host[key]
                self.host[key] = new
            return
        self._event(index, -1, op)
        again = len(self.nbytes)
        self.alive[key] = again
        for column in (self.category, self.module, self.dtype, self.stream):
            column.append(column[index])  # type: ignore[attr-defined]
        self.nbytes.append(new)
        self.op.append(op)
        self.resized.update((index, again))
        self._event(again, 1, op)

    def _event(self, index: int, sign: int, op: int) -> None:
        self.event_storage.append(index)
        self.event_sign.append(sign)
        self.event_op.append(op)

    def name_fresh(self, result: object) -> None:
        """Note the dtype of the storages an operation has just made."""
        fresh = self.fresh
        if isinstance(result, torch.Tensor):
            if len(fresh) == 1:
                index = self.alive.get(fresh[0])
                if index is not None:
                    self.dtype[index] = dtype_name(result.dtype)
        elif isinstance(result, (list, tuple)):
            for tensor in result:
                if isinstance(tensor, torch.Tensor) and tensor.layout is torch.strided:
                    index = self.alive.get(tensor.untyped_storage()._cdata)
                    if index is not None:
                        self.dtype[index] = dtype_name(tensor.dtype)
        fresh.clear()

    # --- what a storage is ---

    def index_of(self, tensor: torch.Tensor) -> int:
        """Index of a tensor's storage; -1 if it is not on the device."""
        if tensor.layout is not torch.strided:
            return -1
        if tensor.__class__ is not torch.Tensor:
            tensor = getattr(tensor, "_local_tensor", tensor)  # a DTensor holds this rank's part
        try:
            return self.alive.get(tensor.untyped_storage()._cdata, -1)
        except (RuntimeError, NotImplementedError):  # wrapper subclasses have no storage of their own
            return -1

    def classify(self, tensor: torch.Tensor, category: Category) -> int:
        """Say what ``tensor``'s storage holds; a later, equally certain word wins except over a parameter."""
        index = self.index_of(tensor)
        if index >= 0 and (self.category[index] != Category.PARAMETER or category is Category.PARAMETER):
            self.category[index] = int(category)
        return index

    def mark(self, tensors: Iterable[torch.Tensor], into: set[int]) -> None:
        """Add the storages of ``tensors`` to a set of indices."""
        for tensor in tensors:
            index = self.index_of(tensor)
            if index >= 0:
                into.add(index)

    def decide(self, phases: np.ndarray, first_step_op: int) -> np.ndarray:
        """Category of every storage: its label, else from its lifetime.

        Collective buffers, then inputs. Saved for backward: referenced by a node of the graph at the start of the backward, or
        allocated in a (recomputed) forward and freed by the backward. Buffer: allocated in the set-up without an owner.
        Optimizer state: allocated by an optimizer step and still live. The rest is temporary.
        """
        count = len(self.nbytes)
        born_op = np.array(self.op, np.int64)
        storage, sign = np.array(self.event_storage, np.int64), np.array(self.event_sign, np.int64)
        died = np.full(count, -1, np.int64)
        died[storage[sign < 0]] = np.flatnonzero(sign < 0)
        lives = died < 0
        padded = np.append(phases, Phase.FORWARD)
        birth = np.where(born_op < len(phases), padded[np.minimum(born_op, len(phases))], Phase.FORWARD)
        ops = np.array([*self.event_op, -1], np.int64)
        inside = np.zeros(len(ops), bool)
        for begin, end in self.backwards:
            inside[begin:end] = True
        in_backward = ~lives & inside[died] & (padded[ops[died]] == Phase.BACKWARD)
        forward = (birth == Phase.FORWARD) | (birth == Phase.RECOMPUTE)
        is_activation = forward & in_backward & (born_op >= first_step_op)
        categories = np.full(count, int(Category.TEMPORARY), np.int64)
        categories[is_activation] = int(Category.ACTIVATION)
        categories[lives & (birth == Phase.OPTIMIZER)] = int(Category.OPTIMIZER)
        categories[lives & (born_op < first_step_op)] = int(Category.BUFFER)
        for indices, category in (
            (self.saved, Category.ACTIVATION),
            (self.inputs, Category.INPUT),
            (self.communication, Category.COMMUNICATION),
        ):
            categories[list(indices)] = int(category)
        labels = np.array(self.category, np.int64)
        categories = np.where(labels != _UNKNOWN, labels, categories)
        resized = np.array(sorted(self.resized), np.int64)
        categories[resized] = int(Category.COMMUNICATION)
        return categories
