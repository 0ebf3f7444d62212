"""AMD devices in a fake tree of /sys."""

from __future__ import annotations

import shutil
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.machine.devices.trees import amd_card, kfd_node, write

from gpuwise.errors import DeviceLostError, InputError, NoDriverError, ReadingError
from gpuwise.machine.devices.amd.backend import UNKNOWN_REASON, event_reasons, open_amd
from gpuwise.machine.devices.readings import EventReason, GpuProcess, State

PCI_IDS = """1001  Other
\t740f  Wrong
1002  AMD
\t1234  x
\t740f  Aldebaran/MI200 [Instinct MI210]
1003  Next
"""


def test_what_a_card_tells(tmp_path: Path) -> None:
    amd_card(tmp_path, 1, hot_bits=1 << 36 | 1 << 0, energy=2**20)
    kfd_node(tmp_path, 2, bus=0x83, gpu_id=4711)
    write(
        tmp_path,
        {
            "sys/class/kfd/kfd/proc/99/vram_4711": "1048576\n",
            "sys/class/kfd/kfd/proc/77/vram_1": "5\n",
            "usr/share/misc/pci.ids": PCI_IDS,
            "proc/sys/kernel/osrelease": "6.8.0-49\n",
        },
    )
    devices = open_amd(root=tmp_path)
    (i,), s, h = devices.identities(), devices.sample(0), devices.health(0)
    assert (i.name, i.pci_bus_id, i.architecture) == ("Aldebaran/MI200 [Instinct MI210]", "00000000:83:00.0", "gfx90a")
    assert (i.memory_bytes, i.unified_memory, i.n_cores, i.numa_node) == (68_702_699_520, False, 104 * 64, 1)
    assert (i.power_limit_default_w, i.power_limit_min_w, i.power_limit_max_w) == pytest.approx((300, 0, 300))
    assert (i.sm_clock_max_hz, i.temperature_slowdown_c, i.temperature_shutdown_c) == (1700e6, 100.0, 105.0)
    assert (s.utilization, s.memory_utilization, s.memory_used_bytes) == (0.87, 0.33, 10**10)
    assert (s.power_w, s.power_limit_w) == pytest.approx((210, 250))
    assert (s.temperature_c, s.memory_temperature_c, s.sm_clock_hz, s.memory_clock_hz) == (64.0, 60.0, 1700e6, 1600e6)
    assert (s.pcie_generation, s.pcie_width, i.pcie_width_max) == (4, 8, 16)
    assert s.event_reasons == EventReason.SW_POWER_CAP | EventReason.SW_THERMAL
    assert s.energy_j == pytest.approx(2**20 * 15.259e-6)
    assert s.processes == (GpuProcess(99, "compute", 1048576),)
    assert (h.ecc_corrected, h.ecc_uncorrected, h.pcie_replays) == (40, 2, 5)
    assert devices.driver().version == "amdgpu of Linux 6.8.0-49"
    for told in (i, s, h):
        assert {f.name for f in fields(told) if getattr(told, f.name) is None} - {"error"} == set(told.unknown)


def test_a_card_that_tells_nothing_says_why(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "sys/class/drm/card0/device/vendor": "0x1002",
            "sys/class/drm/card0/device/device": "0x73bf",
            "sys/class/drm/card0/device/uevent": "DRIVER=amdgpu\nPCI_SLOT_NAME=0000:03:00.0\n",
            "sys/class/drm/card0/device/gpu_busy_percent": b"\xff\xfe",
            "sys/class/drm/card0/device/gpu_metrics": b"\x01",
            "sys/class/drm/card0/device/pp_dpm_sclk": "nonsense",
        },
    )
    devices = open_amd(root=tmp_path)
    s = devices.sample(0)
    assert s.state is State.OK and devices.identities()[0].name == "AMD GPU 0x73bf"
    assert s.unknown["utilization"] == "the driver tells no number"
    assert s.unknown["event_reasons"] == "the driver tells it in a form that is not read"
    assert s.unknown["sm_clock_hz"] == "the driver marks no clock"
    assert s.unknown["power_w"] == "not supported"
    assert "processes" not in devices.sample(0, processes=False).unknown


def test_lost_and_back(tmp_path: Path) -> None:
    device = amd_card(tmp_path, 0)
    devices = open_amd(root=tmp_path)
    name = devices.identities()[0].name
    device.rename(tmp_path / "away")
    assert devices.sample(0).state is State.LOST and devices.identities()[0].name == name
    with pytest.raises(DeviceLostError):
        devices.health(0)
    (tmp_path / "away").rename(device)
    assert devices.sample(0).state is State.OK
    shutil.rmtree(device)
    assert devices.sample(0).error == "the device is gone from the bus"


def test_peers_by_kfd(tmp_path: Path) -> None:
    for n, bus in enumerate((0x43, 0x63, 0x83)):
        amd_card(tmp_path, n, f"0000:{bus:02x}:00.0")
    kfd_node(tmp_path, 1, bus=0x43, gpu_id=1, links={2: 11, 3: 2})
    kfd_node(tmp_path, 2, bus=0x63, gpu_id=2, links={1: 11})
    kfd_node(tmp_path, 3, bus=0x83, gpu_id=3)
    assert [(p.a, p.b, p.link) for p in open_amd(root=tmp_path).peers()] == [
        (0, 1, "xgmi"),
        (0, 2, "pcie host bridge"),
        (1, 2, "unknown"),
    ]


def test_no_card_and_a_card_without_its_driver_differ(tmp_path: Path) -> None:
    with pytest.raises(NoDriverError) as nothing:
        open_amd(root=tmp_path)
    assert nothing.value.code is None
    amd_card(tmp_path, 0)
    write(tmp_path, {"sys/class/drm/card0/device/uevent": "DRIVER=vfio-pci\n"})
    with pytest.raises(NoDriverError) as unbound:
        open_amd(root=tmp_path)
    assert unbound.value.code is not None and "modprobe" in (unbound.value.hint or "")


def test_what_cannot_be_asked(tmp_path: Path) -> None:
    amd_card(tmp_path, 0)
    devices = open_amd(root=tmp_path)
    with pytest.raises(ReadingError):
        devices.wait_for_xid(0.0)
    with pytest.raises(InputError):
        devices.sample(1)


@given(st.integers(0, 2**64 - 1))
def test_no_throttle_bit_is_lost(bits: int) -> None:
    made = event_reasons(bits)
    assert (made == 0) == (bits == 0)
    known = sum(1 << n for n in (*range(8), *range(16, 24), *range(32, 48), 56, 57))
    assert bool(made & UNKNOWN_REASON) == bool(bits & ~known)
