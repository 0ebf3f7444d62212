"""Where the driver's library is looked for."""

from __future__ import annotations

from typing import Any

import pynvml
import pytest

from gpuwise.machine.devices.nvml import calls
from gpuwise.machine.devices.nvml.errors import NvmlError


@pytest.mark.parametrize("there", ["/usr/local/nvidia/lib64/libnvidia-ml.so.1", "/usr/lib/wsl/lib/libnvidia-ml.so.1"])
def test_a_library_that_the_loader_does_not_search_is_found(monkeypatch: pytest.MonkeyPatch, there: str) -> None:
    def refuse() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    def load(path: str) -> Any:
        if path != there:
            raise OSError(path)
        return path

    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "_LoadNvmlLibrary", refuse)
    monkeypatch.setattr(calls, "CDLL", load)
    calls._load()
    assert pynvml.nvmlLib == there
    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(calls, "ELSEWHERE", ())
    with pytest.raises(NvmlError):
        calls._load()
