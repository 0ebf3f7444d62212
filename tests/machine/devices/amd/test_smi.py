"""AMD's own library beside the driver's files: the true way it is found and called, on a stand-in of its package."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.machine.devices.trees import write

from gpuwise.errors import DeviceError, DeviceLostError, DevicePermissionError, NoDriverError, ReadingError
from gpuwise.machine.devices.amd.backend import AmdDevices
from gpuwise.machine.devices.amd.smi import FROM_THE_SECOND, OTHER_FORM, AmdSmi
from gpuwise.machine.devices.amd.smi_answers import HEALTH, IDENTITY, SAMPLE, amd_smi_error
from gpuwise.machine.devices.readings import EventReason, GpuProcess, State
from gpuwise.testing import fake_gpus

DOUBLE = Path(fake_gpus.__file__).with_name("amdsmi_package.py")
BUS = "00000000:c1:00.0"
METRICS = {
    "accumulation_counter": 1000,
    "prochot_residency_acc": 0,
    "ppt_residency_acc": 100,
    "socket_thm_residency_acc": 7,
    "vr_thm_residency_acc": 0,
    "hbm_thm_residency_acc": "N/A",
    "temperature_hotspot": 61,
    "throttle_status": "N/A",
}
ANSWERS: dict[str, Any] = {
    "amdsmi_shut_down": None,
    "amdsmi_get_processor_handles": 1,
    "amdsmi_get_gpu_device_bdf": "0000:c1:00.0",
    "amdsmi_get_lib_version": {"major": 26, "minor": 0, "release": 2, "build": "0"},
    "amdsmi_get_gpu_driver_info": {"driver_name": "amdgpu", "driver_version": "6.14.14", "driver_date": "2015/01/01 00:00"},
    "amdsmi_get_gpu_board_info": {
        "model_number": "102-G30211-0C",
        "product_serial": "692408000147",
        "fru_id": "113-AMDG302110C0003",
        "product_name": "AMD Instinct MI300X OAM",
        "manufacturer_name": "AMD",
    },
    "amdsmi_get_gpu_asic_info": {"market_name": "0x74a1", "vendor_id": "0x1002", "asic_serial": "0x0123456789ABCDEF"},
    "amdsmi_get_power_cap_info": {
        "power_cap": 750000000,
        "default_power_cap": 750000000,
        "dpm_cap": 2100,
        "min_power_cap": 0,
        "max_power_cap": 750000000,
    },
    "amdsmi_get_pcie_info": {
        "pcie_static": {"max_pcie_width": 16, "max_pcie_speed": 32000, "pcie_interface_version": 5, "slot_type": "OAM"},
        "pcie_metric": {
            "pcie_width": 8,
            "pcie_speed": 16000,
            "pcie_bandwidth": 24,
            "pcie_replay_count": 3,
            "pcie_l0_to_recovery_count": 1,
            "pcie_replay_roll_over_count": "N/A",
            "pcie_nak_sent_count": 0,
            "pcie_nak_received_count": 0,
        },
    },
    "amdsmi_get_gpu_xgmi_link_status": {"status": ["X", "U", "U", "D", "U", "U", "U", "U"], "total_links": 8},
    "amdsmi_get_energy_count": {"energy_accumulator": 2**40, "counter_resolution": 15.259, "timestamp": 1},
    "amdsmi_get_gpu_metrics_info": METRICS,
    "amdsmi_get_gpu_activity": {"gfx_activity": 93, "umc_activity": 41, "mm_activity": "N/A"},
    "amdsmi_get_power_info": {
        "socket_power": 512,
        "current_socket_power": 512,
        "average_socket_power": "N/A",
        "gfx_voltage": "N/A",
        "soc_voltage": "N/A",
        "mem_voltage": "N/A",
        "power_limit": 750000000,
    },
    "amdsmi_get_gpu_process_list": [
        {
            "name": "python",
            "pid": 4242,
            "mem": 10,
            "engine_usage": {"gfx": 0, "enc": 0},
            "cu_occupancy": "N/A",
            "memory_usage": {"gtt_mem": 5, "cpu_mem": 6, "vram_mem": 2**33},
        }
    ],
    "amdsmi_get_gpu_ecc_count": {"correctable_count": 4, "uncorrectable_count": 1, "deferred_count": 0},
    "amdsmi_get_gpu_bad_page_info": [{"value": 0, "page_address": 4096, "page_size": 4096, "status": 1}],
    "amdsmi_get_link_metrics": {
        "num_links": 2,
        "links": [{"bdf": "0000:00:00.0", "bit_rate": 32, "link_type": 2, "read": 10, "write": 20}] * 2,
    },
    "amdsmi_topo_get_link_type": {"hops": 1, "type": 2},
    "amdsmi_is_P2P_accessible": True,
}


@dataclass
class Machine:
    """A tree with bare cards, and the package beside it."""

    root: Path
    packages: Path
    devices: AmdDevices
    smi: ModuleType
    now_s: list[float]

    def play(self, **changes: Any) -> None:
        play(self.packages, **changes)


def play(packages: Path, **changes: Any) -> None:
    answers = {k: v for k, v in {**ANSWERS, **changes.pop("answers", {})}.items() if v is not ...}
    (packages / "amdsmi/play.json").write_text(json.dumps({"answers": answers, **changes}))


def bare_card(root: Path, n: int, slot: str) -> Path:
    """A card whose driver's files say nothing."""
    device = f"sys/class/drm/card{n}/device"
    uevent = f"DRIVER=amdgpu\nPCI_SLOT_NAME={slot}\n"
    write(root, {f"{device}/vendor": "0x1002", f"{device}/device": "0x74a1", f"{device}/uevent": uevent})
    return root / device


def install(packages: Path, **changes: Any) -> None:
    (packages / "amdsmi").mkdir(parents=True, exist_ok=True)
    shutil.copy(DOUBLE, packages / "amdsmi/__init__.py")
    play(packages, **changes)


@pytest.fixture
def machine(tmp_path: Path) -> Callable[..., Machine]:
    def made(*slots: str, **changes: Any) -> Machine:
        for n, slot in enumerate(slots or ("0000:c1:00.0",)):
            bare_card(tmp_path, n, slot)
        install(tmp_path / "packages", **changes)
        spec = importlib.util.spec_from_file_location("amdsmi_of_a_test", tmp_path / "packages/amdsmi/__init__.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        now_s = [0.0]
        devices = AmdDevices(root=tmp_path)
        devices.use_library(AmdSmi(module, clock=lambda: now_s[0]))
        return Machine(tmp_path, tmp_path / "packages", devices, module, now_s)

    return made


def test_what_the_files_do_not_tell(machine: Callable[..., Machine]) -> None:
    m = machine()
    (i,), s, h, driver = m.devices.identities(), m.devices.sample(0), m.devices.health(0), m.devices.driver()
    assert (i.name, i.serial, i.n_nvlinks) == ("AMD Instinct MI300X OAM", "692408000147", 7)
    assert (i.power_limit_default_w, i.power_limit_min_w, i.power_limit_max_w) == pytest.approx((750, 0, 750))
    assert (i.pcie_generation_max, i.pcie_width_max, s.pcie_generation, s.pcie_width) == (5, 16, 4, 8)
    assert s.energy_j == pytest.approx(2**40 * 15.259e-6)
    assert (s.utilization, s.memory_utilization, s.power_w, s.power_limit_w) == pytest.approx((0.93, 0.41, 512, 750))
    assert s.processes == (GpuProcess(4242, "compute", 2**33),)
    assert (h.ecc_corrected, h.ecc_uncorrected, h.retired_pages_pending, h.pcie_replays) == (4, 1, True, 3)
    assert (h.nvlinks_active, h.nvlink_sent_bytes, h.nvlink_received_bytes) == (6, 40_000, 20_000)
    assert (driver.version, driver.library_version) == ("6.14.14", "26.0.2")
    for told in (i, s, h):
        assert {f.name for f in fields(told) if getattr(told, f.name) is None} - {"error"} == set(told.unknown)
    assert s.unknown["event_reasons"] == FROM_THE_SECOND


def test_the_files_come_first_and_what_they_tell_is_not_asked_for(machine: Callable[..., Machine]) -> None:
    m = machine()
    write(m.root, {"sys/class/drm/card0/device/gpu_busy_percent": "12", "sys/class/drm/card0/device/mem_busy_percent": "5"})
    s = m.devices.sample(0, processes=False)
    assert (s.utilization, s.memory_utilization, s.processes) == (0.12, 0.05, None)
    assert "amdsmi_get_gpu_activity" not in m.smi.calls and "amdsmi_get_gpu_process_list" not in m.smi.calls


def test_what_holds_the_clocks_is_what_its_counters_grew_by(machine: Callable[..., Machine]) -> None:
    m = machine()
    m.devices.sample(0), m.devices.health(0)
    m.now_s[0] = 10.0
    m.play(answers={"amdsmi_get_gpu_metrics_info": METRICS | {"accumulation_counter": 2000, "ppt_residency_acc": 350}})
    assert m.devices.sample(0).event_reasons == EventReason.SW_POWER_CAP
    held = m.devices.health(0).held_back_s
    assert held == pytest.approx({"SW_POWER_CAP": 2.5, "SW_THERMAL": 0.0, "HW_THERMAL": 0.0})
    m.now_s[0] = 12.0
    grown = {"accumulation_counter": 2200, "ppt_residency_acc": 350, "socket_thm_residency_acc": 107, "vr_thm_residency_acc": 50}
    m.play(answers={"amdsmi_get_gpu_metrics_info": METRICS | grown})
    assert m.devices.sample(0).event_reasons == EventReason.SW_THERMAL
    assert m.devices.health(0).held_back_s == pytest.approx({"SW_POWER_CAP": 2.5, "SW_THERMAL": 1.0, "HW_THERMAL": 0.0})
    # the driver was loaded anew: counters begin again
    m.play()
    assert m.devices.sample(0).unknown["event_reasons"] == FROM_THE_SECOND
    assert m.devices.sample(0).event_reasons == 0


@pytest.mark.parametrize(
    ("changes", "reading", "reason"),
    [
        ({"errors": {"amdsmi_get_energy_count": 10}}, "energy_j", "no permission"),
        ({"errors": {"amdsmi_get_energy_count": 2}}, "energy_j", "not supported"),
        ({"errors": {"amdsmi_get_energy_count": 777}}, "energy_j", "error 777"),
        ({"missing": ["amdsmi_get_energy_count"]}, "energy_j", "this library does not have it yet"),
        ({"answers": {"amdsmi_get_energy_count": []}}, "energy_j", OTHER_FORM),
        ({"answers": {"amdsmi_get_energy_count": {"energy_accumulator": 5}}}, "energy_j", OTHER_FORM),
        (
            {"answers": {"amdsmi_get_gpu_activity": {"gfx_activity": "N/A", "umc_activity": 65535}}},
            "memory_utilization",
            "not supported",
        ),
        ({"answers": {"amdsmi_get_gpu_process_list": ["handle"]}}, "processes", OTHER_FORM),
        ({"answers": {"amdsmi_get_gpu_metrics_info": {"ppt_residency_acc": "N/A"}}}, "event_reasons", "not supported"),
        ({"answers": {"amdsmi_get_gpu_device_bdf": "0000:77:00.0"}}, "energy_j", "amdsmi does not list this device"),
    ],
)
def test_a_refused_reading_is_unknown_with_the_reason(
    machine: Callable[..., Machine], changes: dict[str, Any], reading: str, reason: str
) -> None:
    m = machine(**changes)
    s = m.devices.sample(0)
    assert s.state is State.OK and getattr(s, reading) is None and s.unknown[reading] == reason


def test_lost_and_back(machine: Callable[..., Machine]) -> None:
    m = machine()
    device = m.root / "sys/class/drm/card0/device"
    name = m.devices.identities()[0].name
    m.play(errors={"amdsmi_get_energy_count": 31, "amdsmi_get_gpu_board_info": 31})
    device.rename(m.root / "away")
    assert m.devices.sample(0).state is State.LOST and m.devices.identities()[0].name == name
    with pytest.raises(DeviceLostError):
        m.devices.health(0)
    (m.root / "away").rename(device)
    m.play(errors={"amdsmi_init": 34})
    assert m.devices.sample(0).unknown["energy_j"] == "amdsmi does not list this device"
    device.rename(m.root / "away")
    m.devices.sample(0)
    (m.root / "away").rename(device)
    m.play()
    assert m.devices.sample(0).energy_j is not None
    m.devices.close()
    assert m.smi.calls[-1] == "amdsmi_shut_down"
    assert m.devices.sample(0).energy_j is None
    m.devices.close()


@pytest.mark.parametrize("old", [False, True])
def test_links_by_the_numbers_of_each_release(
    machine: Callable[..., Machine], monkeypatch: pytest.MonkeyPatch, old: bool
) -> None:
    m = machine(
        "0000:c1:00.0",
        "0000:c6:00.0",
        answers={
            "amdsmi_get_processor_handles": 2,
            "amdsmi_get_gpu_device_bdf 1": "0000:c6:00.0",
            "amdsmi_topo_get_link_type": {"hops": 1, "type": 1 if old else 2},
        },
    )
    if old:
        # numbered the other way round
        kinds = type("AmdSmiIoLinkType", (), {"UNDEFINED": 0, "PCIEXPRESS": 2, "XGMI": 1})
        monkeypatch.setattr(m.smi, "AmdSmiIoLinkType", kinds, raising=False)
    assert [(p.a, p.b, p.link, p.can_read) for p in m.devices.peers()] == [(0, 1, "xgmi", True)]
    m.play(errors={"amdsmi_topo_get_link_type": 10, "amdsmi_is_P2P_accessible": 2})
    assert [(p.link, p.can_read) for p in m.devices.peers()] == [("unknown", None)]


@pytest.mark.parametrize(
    ("code", "index", "kind"),
    [
        (10, 0, DevicePermissionError),
        (10, None, DevicePermissionError),
        (34, 0, NoDriverError),
        (34, None, NoDriverError),
        (31, 2, DeviceLostError),
        (32, 2, DeviceLostError),
        (2, 0, ReadingError),
        (999, 0, ReadingError),
        (18, None, DeviceError),
    ],
)
def test_statuses_are_errors_of_our_tree(code: int, index: int | None, kind: type[DeviceError]) -> None:
    error = amd_smi_error(code, index, "energy_j")
    assert type(error) is kind and error.code == code and error.vendor == "amd" and error.message


def _keys(answer: Any) -> set[str]:
    inner = answer.values() if isinstance(answer, dict) else answer if isinstance(answer, list) else ()
    return (set(answer) if isinstance(answer, dict) else set()).union(*map(_keys, inner))


KEYS = sorted(_keys({}).union(*map(_keys, ANSWERS.values())))
ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=True) | st.text(max_size=5) | st.just("N/A"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner),
    max_leaves=6,
)


@given(ANY, st.sampled_from([*IDENTITY, *SAMPLE, *HEALTH]))
def test_no_answer_is_an_error(answer: Any, question: Any) -> None:
    smi = ModuleType("amdsmi")
    for name in {q.function for q in (*IDENTITY, *SAMPLE, *HEALTH)} | {"amdsmi_get_gpu_metrics_info"}:
        setattr(smi, name, lambda *args: answer)
    smi.amdsmi_init = lambda: None  # type: ignore[attr-defined]
    smi.amdsmi_get_processor_handles = lambda: [1]  # type: ignore[attr-defined]
    smi.amdsmi_get_gpu_device_bdf = lambda handle: "0000:c1:00.0"  # type: ignore[attr-defined]
    library = AmdSmi(smi)
    for ask in (library.identity, library.sample, library.health):
        told = ask(BUS, (*question.readings, "event_reasons", "held_back_s"))
        assert set(told.values) <= {*question.readings, "event_reasons", "held_back_s"}
        assert not set(question.readings) & told.values.keys() & told.reasons.keys()


LOOK = """
import json, sys
from pathlib import Path
from gpuwise.machine.devices.amd.backend import open_amd
assert "amdsmi" not in sys.modules
devices = open_amd(root=Path(sys.argv[1]))
print(json.dumps([devices.sample(0).energy_j, devices.driver().library_version, devices.driver().unknown.get("library_version")]))
devices.close()
"""


@pytest.mark.parametrize(
    ("changes", "energy", "reason"),
    [
        ({}, True, None),
        ({"import": "KeyError"}, False, "amdsmi does not load: KeyError"),
        ({"errors": {"amdsmi_init": 18}}, False, "amdsmi does not start: the library does not start (18)"),
        ({"errors": {"amdsmi_init": 34}}, False, "the amdgpu driver is not loaded"),
        ({"errors": {"amdsmi_get_processor_handles": 10}}, False, "amdsmi: starting: no permission"),
        (None, False, "amdsmi is not installed"),
    ],
)
def test_it_is_imported_where_it_is_installed_and_its_failure_leaves_the_files(
    tmp_path: Path, changes: dict[str, Any] | None, energy: bool, reason: str | None
) -> None:
    bare_card(tmp_path, 0, "0000:c1:00.0")
    if changes is not None:
        install(tmp_path / "packages", **changes)
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "packages")}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", LOOK, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=300,
        env=environment,
        check=True,
    )
    assert done.stderr == ""
    energy_j, version, why = json.loads(done.stdout)
    assert (energy_j is not None, version, why) == (energy, "26.0.2" if energy else None, reason)
