# pyright: basic
"""Values that are known although the device is pretended: small tensors copied from the host keep theirs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

KNOWN_LIMIT = 64
"""Elements up to which a copy to the device remembers its values."""


class Values:
    """Storage keys of device tensors with the host tensor they were copied from, as long as nothing wrote to them."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[int, Tensor]] = {}

    def note_copy(self, device_tensor: Tensor, host: Tensor) -> None:
        if host.numel() > KNOWN_LIMIT or host.layout is not torch.strided:
            return
        self._known[device_tensor.untyped_storage()._cdata] = (_version(device_tensor), host.detach().clone())

    def forget(self, key: int) -> None:
        self._known.pop(key, None)

    def of(self, tensor: Tensor) -> Tensor | None:
        """The values of ``tensor`` if known."""
        if not self._known:
            return None
        known = self._known.get(tensor.untyped_storage()._cdata)
        if known is None:
            return None
        version, host = known
        if version != _version(tensor) or host.dtype is not tensor.dtype or host.shape != tensor.shape:
            return None
        return host

    def scalar(self, tensor: Tensor) -> Any:
        host = self.of(tensor)
        return None if host is None else host.item()

    def clear(self) -> None:
        self._known.clear()


def _version(tensor: Tensor) -> int:
    """Writes counted so far; tensors made in inference mode do not count, they are taken as never written to."""
    return 0 if tensor.is_inference() else tensor._version
