"""The played GPUs of AMD, Intel and Apple as gpuwise finds them by their real ways, and as other programs do."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from gpuwise.errors import UnknownNameError
from gpuwise.machine.devices.intel import open_intel
from gpuwise.testing.fake_gpus import FakeGpus, fake_gpus


def _top(fake: FakeGpus) -> list[dict[str, Any]]:
    """What ``gpuwise top`` shows of the cards, in a process of its own."""
    words = [sys.executable, "-m", "gpuwise", "top", "--once", "--json"]
    done = subprocess.run(words, env=fake.env, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 3), done.stderr
    return json.loads(done.stdout.splitlines()[-1])["cards"]


def test_amd_by_the_files_of_its_driver_and_by_its_package() -> None:
    with fake_gpus(amd=["MI300X", "MI300X"]) as fake:
        fake.amd[0].set(utilization=0.9, temperature_c=91, power_w=612, memory_used_bytes=5e10, energy_j=1234.5)
        first, second = _top(fake)
        assert first["identity"]["name"] == "AMD MI300X" and first["identity"]["pci_bus_id"] == "00000000:03:00.0"
        sample = first["sample"]
        assert (sample["utilization"], sample["temperature_c"], sample["power_w"]) == (0.9, 91.0, 612.0)
        assert sample["memory_used_bytes"] == 50_000_000_000 and sample["energy_j"] == pytest.approx(1234.5, rel=1e-4)
        assert second["sample"]["utilization"] == 0.0
        fake.amd[1].lose()
        assert len(_top(fake)) == 1
        fake.amd[1].restore()
        assert len(_top(fake)) == 2


def test_amd_without_its_package() -> None:
    with fake_gpus(amd=["MI210"], amdsmi=False) as fake:
        (card,) = _top(fake)
        assert card["sample"]["temperature_c"] == 35.0 and card["sample"]["energy_j"] is None
        assert card["identity"]["name"] == "AMD GPU 0x740f" and card["identity"]["unknown"]["serial"]


def test_intel_by_the_files_of_its_driver() -> None:
    with fake_gpus(intel=["Arc B580"]) as fake:
        fake.intel[0].set(temperature_c=66, sm_clock_hz=2.1e9, energy_j=10.0)
        (card,) = _top(fake)
        assert card["identity"]["vendor"] == "intel" and card["identity"]["memory_bytes"] == 12 * 2**30
        assert (card["sample"]["temperature_c"], card["sample"]["sm_clock_hz"]) == (66.0, 2.1e9)
        now = [5.0]
        devices = open_intel(root=fake.root)
        devices._clock = lambda: now[0]  # type: ignore[method-assign]
        devices.sample(0)
        now[0] += 2.0
        fake.intel[0].set(energy_j=250.0)
        assert devices.sample(0).power_w == 120.0


def test_apple_by_the_commands_of_its_system() -> None:
    with fake_gpus(apple="M3 Max") as fake:
        fake.apple.set(utilization=0.42, memory_used_bytes=5 * 2**30)  # type: ignore[union-attr]
        (card,) = _top(fake)
        assert card["identity"]["vendor"] == "apple" and card["identity"]["unified_memory"] is True
        assert (card["sample"]["utilization"], card["sample"]["memory_used_bytes"]) == (0.42, 5 * 2**30)
        fake.apple.lose()  # type: ignore[union-attr]
        assert _top(fake)[0]["sample"]["state"] == "unreachable"
        shown = subprocess.run(["powermetrics", "-n", "1"], env=fake.env, capture_output=True, text=True, check=True).stdout
        assert "GPU HW active residency: 42.00%" in shown


def test_the_commands_of_rocm_and_oneapi_tell_the_same() -> None:
    with fake_gpus(amd=["MI300X"], intel=["Arc B580"]) as fake:
        fake.amd[0].set(utilization=0.77)
        run = {"env": fake.env, "capture_output": True, "text": True, "check": True}
        told = json.loads(subprocess.run(["rocm-smi", "--showuse", "--json"], **run).stdout)  # type: ignore[call-overload]
        assert told["card0"]["GPU use (%)"] == "77"
        told = json.loads(subprocess.run(["xpu-smi", "discovery", "-j"], **run).stdout)  # type: ignore[call-overload]
        assert [d["device_name"] for d in told["device_list"]] == ["Arc B580"]


def test_makers_beside_one_another_and_nothing_at_all() -> None:
    with fake_gpus(amd=["MI300X"], intel=["Arc B580"], apple="M3 Max") as fake:
        assert sorted(c["identity"]["vendor"] for c in _top(fake)) == ["amd", "apple", "intel"]
    with fake_gpus() as fake:
        assert "PATH" in fake.overrides and not (fake.folder / "bin" / "rocm-smi").exists()
    assert not fake.folder.exists()


def test_bad_names_are_refused() -> None:
    with pytest.raises(UnknownNameError):
        fake_gpus(amd=["MI9999X"])
    with fake_gpus(amd=["MI300X"]) as fake, pytest.raises(UnknownNameError, match="heat"):
        fake.amd[0].set(heat=3)
