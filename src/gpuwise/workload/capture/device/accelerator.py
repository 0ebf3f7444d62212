# pyright: basic
"""A pretended CUDA device: code between ``with`` and its end runs as on a GPU, and computes nothing.

Device tensors are plain meta tensors, which C++ knows on every build of torch; Python is told ``cuda:0``. Nothing needs
a GPU, and everything replaced in torch is put back when the context ends, also after an exception.
"""

from __future__ import annotations

import threading
from typing import Any

import torch

from gpuwise.errors import InputError
from gpuwise.workload.capture.device import autocast, compiler_guard, tensor_api
from gpuwise.workload.capture.device import cuda_api as device_api
from gpuwise.workload.capture.device.ledger import CUDA0, HOST, META, Ledger, inside
from gpuwise.workload.capture.device.observer import NullObserver, Observer
from gpuwise.workload.capture.device.patching import Patches
from gpuwise.workload.capture.ops import composites, flexible, regions
from gpuwise.workload.capture.ops.dispatch import CaptureMode
from gpuwise.workload.capture.ops.regions import Regions

_active: list[FakeAccelerator] = []


class FakeAccelerator:
    """Context manager. ``capability`` decides attention kernels; ``total_memory_bytes`` is what the program is told.

    ``memo=False`` runs every meta kernel (slower, same calls to the observer). Raises
    :class:`gpuwise.errors.InputError` when another one is active.
    """

    def __init__(
        self,
        *,
        capability: tuple[int, int] = (9, 0),
        device_count: int = 1,
        total_memory_bytes: int = 80 << 30,
        name: str = "NVIDIA H100 80GB HBM3",
        multi_processor_count: int = 132,
        observer: Observer | None = None,
        memo: bool = True,
    ) -> None:
        if device_count < 1 or total_memory_bytes < 1:
            raise InputError("a pretended accelerator has at least one device and one byte")
        self.capability, self.device_count, self.name = capability, device_count, name
        self.total_memory_bytes, self.multi_processor_count = total_memory_bytes, multi_processor_count
        self.observer: Observer = observer or NullObserver()
        self.memo = memo
        self.ledger = Ledger(self.observer)
        self.values = self.ledger.values
        self.current_stream = 0
        """Id of the stream operations are issued to; 0 is the default stream."""
        self.current_device = 0
        self.regions = Regions()
        self.region_flags = self.regions.flags
        """``OpFlag`` bits of the regions the program is in."""
        self.meta_depth = 0
        """Above zero while the program itself asks for a tensor on the meta device."""
        self._patches = Patches()
        self._exits: list[Any] = []

    # -- the context -------------------------------------------------------------------------------------------------

    def __enter__(self) -> FakeAccelerator:
        if _active:
            raise InputError(
                "a capture is already running in this process", hint="end it first: captures are not nested and not concurrent"
            )
        _active.append(self)
        self.thread = threading.get_ident()
        try:
            self._enter()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def _enter(self) -> None:
        lift = torch._C._only_lift_cpu_tensors()
        torch._C._set_only_lift_cpu_tensors(True)
        self._exits.append(lambda: torch._C._set_only_lift_cpu_tensors(lift))
        self._exits.append(compiler_guard.install(self._patches))
        device_api.install(self, self._patches)
        tensor_api.install(self, self._patches)
        regions.install(self, self._patches)
        self._exits.append(composites.install(self))
        self._exits.append(flexible.install(self))
        self._exits.append(autocast.install(self, self._patches))
        mode = self.mode = CaptureMode(self)
        mode.__enter__()
        self._exits.append(lambda: mode.__exit__(None, None, None))

    def __exit__(self, *_: object) -> None:
        inside[0] = 0
        errors: list[BaseException] = []
        while self._exits:
            try:
                self._exits.pop()()
            except Exception as error:  # noqa: BLE001 - everything else must still be restored
                errors.append(error)
        self._patches.undo()
        self.ledger.close()
        _active.remove(self)
        if errors:
            raise errors[0]

    # -- for the parts -----------------------------------------------------------------------------------------------

    def device_of(self, device: Any) -> torch.device:
        """A device as the program names it, with its index; refuses indices beyond ``device_count``."""
        if isinstance(device, int):
            device = torch.device("cuda", device)
        elif not isinstance(device, torch.device):
            device = torch.device(device)
        if device.type == "cpu":
            return HOST
        if device.type == "meta":
            return META
        if device.type == "cuda":
            index = self.current_device if device.index is None else device.index
            if index == 0:
                return CUDA0
            if index >= self.device_count:
                raise RuntimeError("CUDA error: invalid device ordinal")
            return torch.device("cuda", index)
        return device

    def is_device(self, tensor: Any) -> bool:
        return tensor.is_meta and self.ledger.label(tensor).type == "cuda"

    def sync(self, message: str) -> None:
        """The host would wait for the device here."""
        self.observer.finding("sync", message, "the device idles meanwhile; keep values on the device or read them seldom")

    def finding(self, kind: str, message: str, hint: str = "") -> None:
        self.observer.finding(kind, message, hint)

    def mixed(self, func: Any, first: Any, second: Any) -> None:
        """Tensors of two devices in one operation: an error on real hardware."""
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, {first} and {second}! "
            f"(when checking arguments of {func})"
        )


def active() -> FakeAccelerator | None:
    """The running capture's accelerator."""
    return _active[0] if _active else None
