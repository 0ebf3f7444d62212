"""Which devices are found, and why others are not; many cards of three vendors behind one seam."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gpuwise.errors import DriverMismatchError, NoDriverError
from gpuwise.machine.devices import find
from gpuwise.machine.devices.amd.backend import open_amd
from gpuwise.machine.devices.backend import Devices
from gpuwise.machine.devices.find import BACKENDS, find_devices
from gpuwise.machine.devices.intel import open_intel
from gpuwise.machine.devices.readings import State
from gpuwise.testing.fake_nvml import fake_nvml

from .trees import amd_card, intel_card


def test_ten_cards_of_three_vendors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(3):
        amd_card(tmp_path, n, f"0000:{0x83 + n:02x}:00.0")
    for n in range(3, 5):
        intel_card(tmp_path, n, f"0000:{n:02x}:00.0")
    monkeypatch.setattr("gpuwise.machine.devices.amd.backend.open_amd", lambda: open_amd(root=tmp_path))
    monkeypatch.setattr("gpuwise.machine.devices.intel.open_intel", lambda: open_intel(root=tmp_path))
    with fake_nvml({"H100-SXM": 2, "T4": 1, "RTX-5090": 1, "GB10": 1}) as fake, fake.in_process():
        found = find_devices()
        backends: list[Devices] = list(found.backends)
        assert [(b.vendor, len(b.identities())) for b in backends] == [("nvidia", 5), ("amd", 3), ("intel", 2)]
        assert set(found.failed) <= {"apple"}
        for backend in backends:
            for identity in backend.identities():
                sample = backend.sample(identity.index)
                assert sample.state is State.OK and sample.index == identity.index
                assert backend.health(identity.index).index == identity.index
            n = len(backend.identities())
            assert [(p.a, p.b) for p in backend.peers()] == [(a, b) for a in range(n) for b in range(a + 1, n)]
            assert backend.driver().vendor == backend.vendor
            backend.close()
            backend.close()


def test_a_driver_in_trouble_is_told_and_one_that_is_not_there_is_not() -> None:
    with fake_nvml(["T4"]) as fake, fake.in_process():
        fake.mismatch()
        found = find_devices(("nvidia", "amd"))
        assert isinstance(found.failed["nvidia"], DriverMismatchError)
        assert "amd" not in found.failed or isinstance(found.failed["amd"], NoDriverError)
        fake.refuse_init(9)
        assert isinstance(find_devices(("nvidia",)).failed["nvidia"], NoDriverError)


def test_every_backend_opens_by_its_name() -> None:
    for vendor, place in BACKENDS.items():
        module, _, name = place.partition(":")
        __import__(module)
        assert callable(getattr(sys.modules[module], name)), vendor
    assert find.find_devices(()) == find.DeviceSearch((), {})


def test_watching_eight_cards_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom gpuwise.machine.devices.find import find_devices\nfound = find_devices()\n"
        "[b.sample(i) for b in found.backends for i in range(8)]\n"
        "heavy = ('numpy', 'torch', 'rich', 'textual', 'matplotlib', 'psutil')\n"
        "print(len(found.backends), *[m for m in heavy if m in sys.modules])"
    )
    with fake_nvml({"H100-SXM": 8}) as fake:
        done = subprocess.run([sys.executable, "-c", code], env=fake.env, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["1"], done.stderr
