"""The played cards: what each writes into the folder, in the form of its driver."""

from __future__ import annotations

import json
import plistlib
import shutil
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar

from gpuwise.errors import UnknownNameError
from gpuwise.facts.hardware.naming import find_accelerator

READINGS = (
    "utilization",
    "memory_utilization",
    "memory_used_bytes",
    "memory_total_bytes",
    "power_w",
    "power_limit_w",
    "temperature_c",
    "memory_temperature_c",
    "sm_clock_hz",
    "memory_clock_hz",
    "energy_j",
)
"""Names are those of gpuwise: SI units, shares from 0 to 1."""
_SPEEDS = {3: "8.0", 4: "16.0", 5: "32.0"}


def write_files(root: Path, files: Mapping[str, str | bytes]) -> None:
    """Files by their path under ``root``, each replaced as a whole."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_name(f".{path.name}.new")
        fresh.write_bytes(content if isinstance(content, bytes) else content.encode())
        fresh.replace(path)


class FakeCard(ABC):
    """One card; the next reading shows every change."""

    starts: ClassVar[Mapping[str, float]] = {}

    def __init__(self, name: str, index: int, changed: Callable[[], None]) -> None:
        accelerator = find_accelerator(name)
        self.name, self.index, self._changed = accelerator.name, index, changed
        limit = float(accelerator.tdp_w or 0.0)
        self.readings: dict[str, float] = {
            "utilization": 0.0,
            "memory_utilization": 0.0,
            "memory_used_bytes": float(200 << 20),
            "memory_total_bytes": float(accelerator.memory_bytes),
            "power_w": 0.1 * limit,
            "power_limit_w": limit,
            "temperature_c": 35.0,
            "memory_temperature_c": 35.0,
            "sm_clock_hz": 500e6,
            "memory_clock_hz": 900e6,
            "energy_j": 0.0,
        }
        self.gone = False

    @property
    def slot(self) -> str:
        """Its place on the bus, as the kernel writes it."""
        return f"0000:{0x03 + 0x20 * self.index:02x}:00.0"

    def set(self, **readings: float) -> None:
        """Change readings. Raises UnknownNameError."""
        for name, value in readings.items():
            if name not in READINGS:
                raise UnknownNameError("reading", name, READINGS)
            self.readings[name] = float(value)
        self._changed()

    def lose(self) -> None:
        """Fall off the bus."""
        self.gone = True
        self._changed()

    def restore(self) -> None:
        """Return to the bus after :meth:`lose`."""
        self.gone = False
        self._changed()

    @abstractmethod
    def files(self) -> dict[str, str | bytes]:
        """Path under the root -> content."""


class DrmFakeCard(FakeCard):
    """A card with a folder under ``/sys/class/drm``."""

    vendor_id: ClassVar[str]
    device_ids: ClassVar[Mapping[str, str]]
    driver: ClassVar[str]

    def __init__(self, name: str, index: int, number: int, changed: Callable[[], None]) -> None:
        super().__init__(name, index, changed)
        self.folder = f"sys/class/drm/card{number}"

    def write(self, root: Path) -> None:
        """Write the card's files, or take its folder away."""
        if self.gone:
            shutil.rmtree(root / self.folder, ignore_errors=True)
        else:
            write_files(root, self.files())

    def _device_id(self) -> str:
        return next((number for name, number in self.device_ids.items() if name in self.name), "0x0001")

    def common(self) -> dict[str, str | bytes]:
        """Values that every driver shows of a device."""
        device = f"{self.folder}/device"
        return {
            f"{device}/vendor": f"{self.vendor_id}\n",
            f"{device}/device": f"{self._device_id()}\n",
            f"{device}/uevent": f"DRIVER={self.driver}\nPCI_SLOT_NAME={self.slot}\n",
            f"{device}/numa_node": "-1\n",
            f"{device}/current_link_speed": f"{_SPEEDS[4]} GT/s PCIe\n",
            f"{device}/current_link_width": "16\n",
            f"{device}/max_link_speed": f"{_SPEEDS[4]} GT/s PCIe\n",
            f"{device}/max_link_width": "16\n",
        }


class FakeAmd(DrmFakeCard):
    """An AMD card of the amdgpu driver, its node of KFD, and its answers in ``amdsmi``."""

    vendor_id, driver = "0x1002", "amdgpu"
    device_ids: ClassVar[Mapping[str, str]] = {"MI300X": "0x74a1", "MI210": "0x740f", "RX 7900 XTX": "0x744c"}

    def files(self) -> dict[str, str | bytes]:
        r, device = self.readings, f"{self.folder}/device"
        hwmon = f"{device}/hwmon/hwmon{self.index}"
        node = f"sys/class/kfd/kfd/topology/nodes/{self.index + 1}"
        bus = int(self.slot[5:7], 16)
        metrics = bytearray(120)
        struct.pack_into("<HBB", metrics, 0, len(metrics), 1, 3)
        return self.common() | {
            f"{device}/gpu_busy_percent": f"{100 * r['utilization']:.0f}\n",
            f"{device}/mem_busy_percent": f"{100 * r['memory_utilization']:.0f}\n",
            f"{device}/mem_info_vram_total": f"{r['memory_total_bytes']:.0f}\n",
            f"{device}/mem_info_vram_used": f"{r['memory_used_bytes']:.0f}\n",
            f"{device}/pp_dpm_sclk": f"0: {r['sm_clock_hz'] / 1e6:.0f}Mhz *\n",
            f"{device}/pp_dpm_mclk": f"0: {r['memory_clock_hz'] / 1e6:.0f}Mhz *\n",
            f"{device}/gpu_metrics": bytes(metrics),
            f"{device}/unique_id": f"{0xC0FFEE0000000000 + self.index:016x}\n",
            f"{hwmon}/power1_average": f"{r['power_w'] * 1e6:.0f}\n",
            f"{hwmon}/power1_cap": f"{r['power_limit_w'] * 1e6:.0f}\n",
            f"{hwmon}/power1_cap_default": f"{r['power_limit_w'] * 1e6:.0f}\n",
            f"{hwmon}/power1_cap_max": f"{r['power_limit_w'] * 1e6:.0f}\n",
            f"{hwmon}/temp1_input": f"{r['temperature_c'] * 1e3 - 5000:.0f}\n",
            f"{hwmon}/temp1_label": "edge\n",
            f"{hwmon}/temp2_input": f"{r['temperature_c'] * 1e3:.0f}\n",
            f"{hwmon}/temp2_label": "junction\n",
            f"{hwmon}/temp2_crit": "100000\n",
            f"{hwmon}/temp3_input": f"{r['memory_temperature_c'] * 1e3:.0f}\n",
            f"{hwmon}/temp3_label": "mem\n",
            f"{node}/gpu_id": f"{1000 + self.index}\n",
            f"{node}/properties": f"cpu_cores_count 0\nsimd_count 1216\nsimd_per_cu 4\ngfx_target_version 90402\n"
            f"location_id {bus << 8}\ndomain 0\n",
        }

    def answers(self) -> dict[str, object]:
        """Answers of ``amdsmi`` for this card, by function and number of the handle."""
        r, n = self.readings, self.index
        return {
            f"amdsmi_get_gpu_device_bdf {n}": self.slot,
            f"amdsmi_get_gpu_board_info {n}": {"product_name": f"AMD {self.name}", "product_serial": f"69240800{n:04d}"},
            f"amdsmi_get_gpu_activity {n}": {
                "gfx_activity": round(100 * r["utilization"]),
                "umc_activity": round(100 * r["memory_utilization"]),
                "mm_activity": "N/A",
            },
            f"amdsmi_get_energy_count {n}": {
                "energy_accumulator": round(r["energy_j"] / 15.259e-6),
                "counter_resolution": 15.259,
                "timestamp": 1,
            },
            f"amdsmi_get_power_info {n}": {
                "socket_power": round(r["power_w"]),
                "current_socket_power": round(r["power_w"]),
                "average_socket_power": "N/A",
                "power_limit": round(r["power_limit_w"] * 1e6),
            },
        }


class FakeIntel(DrmFakeCard):
    """An Intel card of the xe driver."""

    vendor_id, driver = "0x8086", "xe"
    device_ids: ClassVar[Mapping[str, str]] = {"Arc B580": "0xe20b"}

    def files(self) -> dict[str, str | bytes]:
        r, device = self.readings, f"{self.folder}/device"
        hwmon, clock = f"{device}/hwmon/hwmon{self.index}", f"{device}/tile0/gt0/freq0"
        return self.common() | {
            f"{self.folder}/lmem_total_bytes": f"{r['memory_total_bytes']:.0f}\n",
            f"{hwmon}/energy1_input": f"{r['energy_j'] * 1e6:.0f}\n",
            f"{hwmon}/power1_max": f"{r['power_limit_w'] * 1e6:.0f}\n",
            f"{hwmon}/power1_rated_max": f"{r['power_limit_w'] * 1e6:.0f}\n",
            f"{hwmon}/temp2_input": f"{r['temperature_c'] * 1e3:.0f}\n",
            f"{hwmon}/temp2_crit": "100000\n",
            f"{hwmon}/temp3_input": f"{r['memory_temperature_c'] * 1e3:.0f}\n",
            f"{clock}/act_freq": f"{r['sm_clock_hz'] / 1e6:.0f}\n",
            f"{clock}/rp0_freq": "2850\n",
            f"{clock}/throttle/status": "0\n",
        }


class FakeApple(FakeCard):
    """The GPU of a Mac, as its commands report it."""

    def files(self) -> dict[str, str | bytes]:
        r = self.readings
        shown = {
            "SPDisplaysDataType": [
                {
                    "_name": self.name,
                    "sppci_model": self.name,
                    "sppci_cores": "40",
                    "spdisplays_vendor": "sppci_vendor_Apple",
                }
            ]
        }
        registry = {
            "IOClass": "AGXAcceleratorG15X",
            "PerformanceStatistics": {
                "Device Utilization %": round(100 * r["utilization"]),
                "Renderer Utilization %": round(100 * r["utilization"]),
                "In use system memory": round(r["memory_used_bytes"]),
            },
        }
        return {
            "outputs/system_profiler": json.dumps(shown),
            "outputs/ioreg": plistlib.dumps([] if self.gone else [registry]),
            "outputs/sysctl": f"{r['memory_total_bytes']:.0f}\n",
            "outputs/sw_vers": "15.2\n",
            "outputs/powermetrics": f"GPU HW active frequency: {r['sm_clock_hz'] / 1e6:.0f} MHz\n"
            f"GPU HW active residency: {100 * r['utilization']:.2f}%\nGPU Power: {1e3 * r['power_w']:.0f} mW\n",
        }
