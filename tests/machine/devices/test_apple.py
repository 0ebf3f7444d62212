"""Apple devices from outputs of the form that macOS documents."""

from __future__ import annotations

import json
import plistlib
import sys
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwise.errors import InputError, NoDriverError, ReadingError
from gpuwise.machine.devices.apple import DISPLAYS, MEMORY, REGISTRY, VERSION, open_apple
from gpuwise.machine.devices.readings import State

DISPLAY = {
    "SPDisplaysDataType": [
        {"_name": "Apple M3 Max", "sppci_model": "Apple M3 Max", "sppci_cores": "40", "spdisplays_vendor": "sppci_vendor_Apple"},
        {"_name": "AMD Radeon", "sppci_model": "AMD Radeon Pro", "spdisplays_vendor": "sppci_vendor_amd"},
    ]
}
ENTRY = [{"PerformanceStatistics": {"Device Utilization %": 42, "In use system memory": 5 * 2**30, "Alloc system memory": 2**33}}]


def _mac(**changes: bytes):
    told = {
        DISPLAYS: json.dumps(DISPLAY).encode(),
        REGISTRY: plistlib.dumps(ENTRY),
        MEMORY: b"68719476736\n",
        VERSION: b"15.2\n",
    }
    names = {"displays": DISPLAYS, "registry": REGISTRY, "memory": MEMORY, "version": VERSION}
    told |= {names[k]: v for k, v in changes.items()}

    def run(command: Sequence[str]) -> bytes:
        answer = told[tuple(command)]  # type: ignore[index]
        if answer == b"cannot":
            raise OSError("no such command")
        return answer

    return run


def test_what_macos_tells() -> None:
    devices = open_apple(run=_mac())
    (i,), s = devices.identities(), devices.sample(0)
    assert (i.name, i.n_cores, i.memory_bytes, i.unified_memory) == ("Apple M3 Max", 40, 64 * 2**30, True)
    assert (s.utilization, s.memory_used_bytes, s.memory_total_bytes) == (0.42, 5 * 2**30, 64 * 2**30)
    assert s.power_w is None and s.unknown["power_w"] == "macOS tells root only"
    assert devices.driver().version == "macOS 15.2"
    with pytest.raises(ReadingError):
        devices.wait_for_xid(0)
    with pytest.raises(InputError):
        devices.sample(1)


@pytest.mark.parametrize("displays", [b"", b"{}", b"[]", b"cannot", b'{"SPDisplaysDataType": 3}', b"\xff"])
def test_no_gpu_that_is_told(displays: bytes) -> None:
    with pytest.raises(NoDriverError):
        open_apple(run=_mac(displays=displays))


@given(st.binary(max_size=40) | st.just(b"cannot") | st.just(plistlib.dumps([])) | st.just(plistlib.dumps({"a": 1})))
def test_a_silent_registry_is_unreachable(registry: bytes) -> None:
    s = open_apple(run=_mac(registry=registry, memory=b"x", version=b"cannot")).sample(0)
    assert s.state is State.UNREACHABLE and s.error


@pytest.mark.skipif(sys.platform == "darwin", reason="there it opens")
def test_elsewhere_there_is_none() -> None:
    with pytest.raises(NoDriverError) as caught:
        open_apple()
    assert caught.value.code is None
