# pyright: basic
"""The host as the captured device: what a program puts on the CPU is counted as device storage."""

from __future__ import annotations

from typing import Any

import torch
from torch.optim import optimizer  # type: ignore[attr-defined]
from torch.overrides import TorchFunctionMode
from torch.utils import _foreach_utils

from gpuwise.workload.capture.device.ledger import inside
from gpuwise.workload.capture.device.patching import Patches, default_device
from gpuwise.workload.capture.device.state import DeviceState

_CPU = torch.device("cpu")
_RECURRENT = frozenset({"lstm", "gru", "rnn_tanh", "rnn_relu", "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"})


def _as_pretended(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value if value.is_meta else value.to("cuda:0")
    return type(value)(map(_as_pretended, value)) if type(value) in (tuple, list) else value


def _is_cpu(value: Any) -> bool:
    return (isinstance(value, torch.device) and value.type == "cpu") or value == "cpu"


class HostAsDevice(TorchFunctionMode):
    """Sends every tensor a program makes on the CPU to the pretended device instead.

    Sizes and lifetimes are those of the program's own operations; kernels that exist on one device only (fused
    attention) are those of the pretended one. Tensors made without passing here (``torch.Tensor(8)``, ``torch.from_numpy``)
    are the dispatch mode's to send or, where they hold values, to take beside those of the device.
    """

    def __init__(self, accelerator: DeviceState) -> None:
        super().__init__()
        self._accelerator = accelerator
        self._patches = Patches()

    def __enter__(self) -> Any:
        self._patches.set(torch.cuda, "is_available", lambda: False)
        for module in (_foreach_utils, optimizer):  # on the host, optimizers loop over parameters
            self._patches.set(module, "_get_foreach_kernels_supported_devices", list)
        self._accelerator.host_is_device = True
        self._restore = default_device()
        torch.set_default_device("cuda:0")
        return super().__enter__()

    def __exit__(self, *exc: Any) -> None:
        super().__exit__(*exc)
        self._restore()
        self._accelerator.host_is_device = False
        self._patches.undo()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if inside[0]:  # a kernel that the capture itself runs
            return func(*args, **kwargs)
        if any(_is_cpu(a) for a in args if isinstance(a, (str, torch.device))):
            args = tuple("cuda:0" if isinstance(a, (str, torch.device)) and _is_cpu(a) else a for a in args)
        device = kwargs.get("device")
        if device is not None and _is_cpu(device):
            kwargs = {**kwargs, "device": "cuda:0"}
        name = getattr(func, "__name__", "")
        if name == "randperm":  # the order of samples: batches of one sample, again and again, are too short or too long
            return func(*args, **{**kwargs, "device": _CPU})
        if name in _RECURRENT:  # these compare devices themselves
            args = tuple(_as_pretended(a) for a in args)
        return func(*args, **kwargs)
