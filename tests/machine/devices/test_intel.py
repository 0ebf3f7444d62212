"""Intel devices in a fake tree of /sys."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from gpuwise.errors import DeviceLostError, InputError, NoDriverError, ReadingError
from gpuwise.machine.devices.intel import INTEGRATED, IntelDevices, open_intel
from gpuwise.machine.devices.readings import EventReason, State

from .trees import intel_card, write


def test_xe(tmp_path: Path) -> None:
    device = intel_card(tmp_path, 0)
    now = [100.0]
    devices = IntelDevices(root=tmp_path, clock=lambda: now[0])
    s = devices.sample(0)
    assert (s.sm_clock_hz, s.temperature_c, s.memory_temperature_c, s.energy_j) == (2850e6, 55.0, 70.0, 5.0)
    assert (s.power_limit_w, s.pcie_generation, s.pcie_width) == (190.0, 1, 1)
    assert s.event_reasons == EventReason.SW_POWER_CAP
    assert s.unknown["power_w"] == "known from the second sample on" and s.unknown["utilization"] == "the driver tells root only"
    now[0] += 2.0
    write(device, {"hwmon/hwmon2/energy1_input": "205000000"})
    assert devices.sample(0).power_w == 100.0
    write(device, {"hwmon/hwmon2/energy1_input": "1000000"})  # the counter began anew
    now[0] += 2.0
    assert devices.sample(0).power_w is None
    (i,) = devices.identities()
    assert (i.name, i.unified_memory, i.numa_node, i.temperature_shutdown_c) == ("Intel GPU 0xe20b", False, None, 100.0)


def test_a_clock_that_jumps_back_gives_no_power(tmp_path: Path) -> None:
    intel_card(tmp_path, 0)
    now = [100.0]
    devices = IntelDevices(root=tmp_path, clock=lambda: now[0])
    devices.sample(0)
    now[0] -= 50.0
    assert devices.sample(0).power_w is None


def test_i915_and_a_state_without_a_reason(tmp_path: Path) -> None:
    intel_card(tmp_path, 0, driver="i915")
    devices = open_intel(root=tmp_path)
    assert devices.sample(0).event_reasons == EventReason.HW_THERMAL
    write(tmp_path, {"sys/class/drm/card0/gt/gt0/throttle_reason_prochot": "0"})
    assert devices.sample(0).event_reasons == 1 << 63
    write(tmp_path, {"sys/class/drm/card0/gt/gt0/throttle_reason_status": "0"})
    assert devices.sample(0).event_reasons == 0


def test_graphics_of_the_processor_share_its_memory(tmp_path: Path) -> None:
    intel_card(tmp_path, 0, INTEGRATED[4:], "i915")
    (i,) = open_intel(root=tmp_path).identities()
    assert i.unified_memory and i.pcie_width_max is None


def test_gone_and_nothing(tmp_path: Path) -> None:
    with pytest.raises(NoDriverError):
        open_intel(root=tmp_path)
    device = intel_card(tmp_path, 0)
    devices = open_intel(root=tmp_path)
    shutil.rmtree(device)
    assert devices.sample(0).state is State.LOST and devices.identities()[0].name == "lost"
    with pytest.raises(DeviceLostError):
        devices.health(0)
    with pytest.raises(InputError):
        devices.sample(-1)
    with pytest.raises(ReadingError):
        devices.wait_for_xid(0)
    assert devices.peers() == () and devices.driver().unknown
