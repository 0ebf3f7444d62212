# pyright: basic
"""Which storages live on the fake device, on the host, or nowhere (a user's own meta tensors), and how many bytes.

All three are plain ``meta`` tensors to torch. A storage without a label is on device 0.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch

from gpuwise.workload.capture.device.observer import Observer
from gpuwise.workload.capture.device.values import Values

HOST = torch.device("cpu")
META = torch.device("meta")
CUDA0 = torch.device("cuda", 0)

inside = [0]
"""Above zero while a kernel runs: tensors then report their real device (meta)."""


class _Alive(weakref.ref):
    __slots__ = ("host", "key", "nbytes")


class Ledger:
    """Every live storage of the capture with its label and bytes; notifies the observer of allocations and frees."""

    def __init__(self, observer: Observer) -> None:
        self.observer = observer
        self.alive: dict[int, _Alive] = {}
        self.labels: dict[int, torch.device] = {}
        self.live_bytes = 0
        self.peak_bytes = 0
        self.host_bytes = 0
        self.host_peak_bytes = 0
        self.values = Values()

    def see(self, tensor: torch.Tensor, label: torch.device = CUDA0) -> int:
        """Note the storage of a meta tensor if it is new; returns its key."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self.alive:
            self.birth(storage, key, storage.nbytes(), label)
        return key

    def birth(self, storage: Any, key: int, nbytes: int, label: torch.device = CUDA0) -> None:
        """Register a new storage. The user's own meta tensors are labelled but have no bytes."""
        ref = _Alive(storage, self._death)
        ref.key, ref.nbytes, ref.host = key, nbytes, False
        self.alive[key] = ref
        if label is not CUDA0 and label != CUDA0:
            self.labels[key] = label
            if label.type == "meta":
                ref.nbytes = -1
                return
            ref.host = label.type == "cpu"
        if ref.host:
            self.host_bytes += nbytes
            self.host_peak_bytes = max(self.host_peak_bytes, self.host_bytes)
        else:
            self.live_bytes += nbytes
            if self.live_bytes > self.peak_bytes:
                self.peak_bytes = self.live_bytes
        self.observer.born(storage, nbytes, ref.host)

    def _death(self, ref: _Alive) -> None:
        key, nbytes = ref.key, ref.nbytes
        if self.alive.pop(key, None) is None:
            return
        if self.labels:
            self.labels.pop(key, None)
        self.values.forget(key)
        if nbytes < 0:
            return
        if ref.host:
            self.host_bytes -= nbytes
        else:
            self.live_bytes -= nbytes
        self.observer.freed(key, nbytes, ref.host)

    def resize(self, storage: Any) -> None:
        """Read the storage's bytes again after something may have resized it."""
        key = storage._cdata
        ref = self.alive.get(key)
        if ref is None or ref.nbytes < 0:
            return
        old, new = ref.nbytes, storage.nbytes()
        if old == new:
            return
        ref.nbytes = new
        if ref.host:
            self.host_bytes += new - old
            self.host_peak_bytes = max(self.host_peak_bytes, self.host_bytes)
        else:
            self.live_bytes += new - old
            self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        self.observer.resized(key, old, new)

    def label(self, tensor: torch.Tensor) -> torch.device:
        """Simulated device of a meta tensor."""
        if not self.labels:
            return CUDA0
        return self.labels.get(tensor.untyped_storage()._cdata, CUDA0)

    def close(self) -> None:
        """Forget everything; later deaths are not reported."""
        self.alive.clear()
        self.values.clear()
        self.labels.clear()
