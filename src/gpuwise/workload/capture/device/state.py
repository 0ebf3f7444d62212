"""What a pretended CUDA device is and knows: its identity, the ledger of storages, where the program is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from gpuwise.errors import InputError
from gpuwise.workload.capture.device.ledger import CUDA0, HOST, META, Ledger
from gpuwise.workload.capture.device.observer import NullObserver, Observer
from gpuwise.workload.capture.device.regions import Regions


class DeviceState:
    """State shared by all replaced parts of torch; ``FakeAccelerator`` adds the context that replaces it.

    ``capability`` decides attention kernels; ``total_memory_bytes`` is reported to the program. Raises InputError if there is
    no device or no memory.
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
        guesses: Mapping[str, float] | None = None,
        at_bound: bool = False,
    ) -> None:
        if device_count < 1 or total_memory_bytes < 1:
            raise InputError("a pretended accelerator has at least one device and one byte")
        self.capability, self.device_count, self.name = capability, device_count, name
        self.total_memory_bytes, self.multi_processor_count = total_memory_bytes, multi_processor_count
        self.observer: Observer = observer or NullObserver()
        self.memo = memo
        self.guesses = dict(guesses or {})
        """Share of elements that operations pick, by kind (``nonzero``, ``unique``, ``nms``)."""
        self.at_bound = at_bound
        """Sizes that depend on values are taken at their upper bound."""
        self.handlers: dict[Any, Any] = {}
        """Who answers an operation instead of its meta kernel, by overload or name."""
        self.ledger = Ledger(self.observer)
        self.values = self.ledger.values
        self.visible: float | None = None
        """Share of the scores that a block mask leaves to the attention that runs now."""
        self.assumed: Any = None
        """Value of every scalar read back, while a function of torch checks its own intermediate results."""
        self.values.share = 1.0 if at_bound else (guesses or {}).get("nonzero")
        self.host_is_device = False
        """Host tensors of the program count as device memory (``HostAsDevice``)."""
        self.current_stream = 0
        """Id of the stream operations are issued to; 0 is the default stream."""
        self.current_device = 0
        self.regions = Regions()
        self.region_flags = self.regions.flags
        """``OpFlag`` bits of the regions the program is in."""
        self.meta_depth = 0
        """Above zero while the program itself creates a tensor on the meta device."""

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
        """Point where the host would wait for the device."""
        self.observer.finding("sync", message, "the device idles meanwhile; keep values on the device or read them seldom")

    def finding(self, kind: str, message: str, hint: str = "") -> None:
        self.observer.finding(kind, message, hint)

    def mixed(self, func: Any, first: Any, second: Any) -> None:
        """Tensors of two devices in one operation: an error on real hardware."""
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, {first} and {second}! "
            f"(when checking arguments of {func})"
        )
