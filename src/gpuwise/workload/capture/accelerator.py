# pyright: basic
"""A simulated CUDA device: code inside the ``with`` block runs as on a GPU, but computes nothing.

Device tensors are plain meta tensors, which C++ supports in every build of torch; Python sees ``cuda:0``. No GPU is needed,
and every replaced part of torch is restored when the context ends, also after an exception.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

from gpuwise.errors import InputError
from gpuwise.workload.capture.device import autocast, compiler_guard, imports, symbols, tensor_api
from gpuwise.workload.capture.device import cuda_api as device_api
from gpuwise.workload.capture.device.ledger import inside
from gpuwise.workload.capture.device.patching import Patches, default_device
from gpuwise.workload.capture.device.state import DeviceState
from gpuwise.workload.capture.ops import composites, data_dependent, flexible, regions, tensor_types
from gpuwise.workload.capture.ops.dispatch import CaptureMode

_active: list[FakeAccelerator] = []


class FakeAccelerator(DeviceState):
    """Context manager. ``capability`` decides attention kernels; ``total_memory_bytes`` is reported to the program.

    ``memo=False`` runs every meta kernel (slower, same calls to the observer). Raises
    :class:`gpuwise.errors.InputError` when another one is active.
    """

    def __enter__(self) -> FakeAccelerator:
        if _active:
            raise InputError(
                "a capture is already running in this process", hint="end it first: captures are not nested and not concurrent"
            )
        _active.append(self)
        self.thread = threading.get_ident()
        self._patches = Patches()
        self._exits: list[Callable[[], Any]] = []
        try:
            self._enter()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def _enter(self) -> None:
        dtype = torch.get_default_dtype()
        self._exits.append(lambda: torch.set_default_dtype(dtype))
        self._exits.append(default_device())
        lift = torch._C._only_lift_cpu_tensors()
        torch._C._set_only_lift_cpu_tensors(True)
        self._exits.append(lambda: torch._C._set_only_lift_cpu_tensors(lift))
        self._exits.append(compiler_guard.install(self._patches))
        self._exits.append(symbols.install())
        self._exits.append(imports.install(self, self._patches))
        device_api.install(self, self._patches)
        tensor_api.install(self, self._patches)
        tensor_types.install(self._patches)
        regions.install(self, self._patches)
        self._exits.append(composites.install(self))
        self._exits.append(flexible.install(self))
        self._exits.append(autocast.install(self, self._patches))
        self.handlers.update({**data_dependent.HANDLERS, **data_dependent.BY_NAME})
        mode = CaptureMode(self, self.handlers)
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


def active() -> FakeAccelerator | None:
    """The running capture's accelerator."""
    return _active[0] if _active else None
