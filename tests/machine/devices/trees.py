"""Fake trees of ``/sys`` and ``/proc``."""

from __future__ import annotations

import struct
from pathlib import Path


def write(root: Path, files: dict[str, str | bytes]) -> None:
    """Files by their path under the root."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


def amd_card(root: Path, n: int, slot: str = "0000:83:00.0", *, hot_bits: int = 0, energy: int = 0) -> Path:
    """An MI210 as amdgpu shows it; its folder is returned."""
    device = f"sys/class/drm/card{n}/device"
    hwmon = f"{device}/hwmon/hwmon4"
    metrics = bytearray(120)
    struct.pack_into("<HBB", metrics, 0, 120, 1, 3)
    struct.pack_into("<Q", metrics, 24, energy)
    struct.pack_into("<Q", metrics, 112, hot_bits)
    write(
        root,
        {
            f"{device}/vendor": "0x1002\n",
            f"{device}/device": "0x740f\n",
            f"{device}/uevent": f"DRIVER=amdgpu\nPCI_SLOT_NAME={slot}\n",
            f"{device}/gpu_busy_percent": "87\n",
            f"{device}/mem_busy_percent": "33\n",
            f"{device}/mem_info_vram_total": "68702699520\n",
            f"{device}/mem_info_vram_used": "10000000000\n",
            f"{device}/pp_dpm_sclk": "0: 500Mhz\n1: 800Mhz\n2: 1700Mhz *\n",
            f"{device}/pp_dpm_mclk": "0: 400Mhz\n1: 1600Mhz *\n",
            f"{device}/current_link_speed": "16.0 GT/s PCIe\n",
            f"{device}/current_link_width": "8\n",
            f"{device}/max_link_speed": "16.0 GT/s PCIe\n",
            f"{device}/max_link_width": "16\n",
            f"{device}/unique_id": "c0ffee0123456789\n",
            f"{device}/vbios_version": "113-D67301-063\n",
            f"{device}/numa_node": "1\n",
            f"{device}/pcie_replay_count": "5\n",
            f"{device}/ras/umc_err_count": "ue: 2\nce: 40\n",
            f"{device}/gpu_metrics": bytes(metrics),
            f"{hwmon}/power1_average": "210000000\n",
            f"{hwmon}/power1_cap": "250000000\n",
            f"{hwmon}/power1_cap_default": "300000000\n",
            f"{hwmon}/power1_cap_max": "300000000\n",
            f"{hwmon}/power1_cap_min": "0\n",
            f"{hwmon}/temp1_input": "51000\n",
            f"{hwmon}/temp1_label": "edge\n",
            f"{hwmon}/temp2_input": "64000\n",
            f"{hwmon}/temp2_label": "junction\n",
            f"{hwmon}/temp2_crit": "100000\n",
            f"{hwmon}/temp2_emergency": "105000\n",
            f"{hwmon}/temp3_input": "60000\n",
            f"{hwmon}/temp3_label": "mem\n",
            f"{hwmon}/temp3_crit": "95000\n",
        },
    )
    return root / device


def kfd_node(root: Path, number: int, *, bus: int, gpu_id: int, links: dict[int, int] | None = None) -> None:
    """Its node of KFD."""
    base = f"sys/class/kfd/kfd/topology/nodes/{number}"
    write(
        root,
        {
            f"{base}/gpu_id": f"{gpu_id}\n",
            f"{base}/properties": "cpu_cores_count 0\nsimd_count 416\nsimd_per_cu 4\ngfx_target_version 90010\n"
            f"location_id {bus << 8}\ndomain 0\n",
        },
    )
    for i, (other, kind) in enumerate((links or {}).items()):
        write(root, {f"{base}/io_links/{i}/properties": f"type {kind}\nnode_from {number}\nnode_to {other}\n"})


def intel_card(root: Path, n: int, slot: str = "0000:03:00.0", driver: str = "xe") -> Path:
    """An Arc B580 as the xe or the i915 driver shows it."""
    card = f"sys/class/drm/card{n}"
    device = f"{card}/device"
    write(
        root,
        {
            f"{device}/vendor": "0x8086\n",
            f"{device}/device": "0xe20b\n",
            f"{device}/uevent": f"DRIVER={driver}\nPCI_SLOT_NAME={slot}\n",
            f"{device}/numa_node": "-1\n",
            f"{device}/current_link_speed": "2.5 GT/s PCIe\n",
            f"{device}/current_link_width": "1\n",
            f"{device}/hwmon/hwmon2/energy1_input": "5000000\n",
            f"{device}/hwmon/hwmon2/power1_max": "190000000\n",
            f"{device}/hwmon/hwmon2/power1_rated_max": "190000000\n",
            f"{device}/hwmon/hwmon2/temp2_input": "55000\n",
            f"{device}/hwmon/hwmon2/temp3_input": "70000\n",
            f"{device}/hwmon/hwmon2/temp2_crit": "100000\n",
        },
    )
    if driver == "xe":
        freq = f"{device}/tile0/gt0/freq0"
        write(
            root,
            {
                f"{freq}/act_freq": "2850\n",
                f"{freq}/rp0_freq": "2850\n",
                f"{freq}/throttle/status": "1\n",
                f"{freq}/throttle/reason_pl1": "1\n",
                f"{freq}/throttle/reason_thermal": "0\n",
            },
        )
    else:
        write(
            root,
            {
                f"{card}/gt/gt0/rps_act_freq_mhz": "1200\n",
                f"{card}/gt/gt0/rps_RP0_freq_mhz": "1500\n",
                f"{card}/gt/gt0/throttle_reason_status": "1\n",
                f"{card}/gt/gt0/throttle_reason_prochot": "1\n",
            },
        )
    return root / device
