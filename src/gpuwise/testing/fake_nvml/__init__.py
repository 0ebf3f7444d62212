"""Cards that do not exist, for everybody's tests: a real ``libnvidia-ml.so.1`` that plays a script.

Any client of NVML runs on it (nvidia-ml-py, nvitop, gpustat, nvtop, torch): see the guide ``docs/guides/fake-nvml.md``. ::

    from gpuwise.testing.fake_nvml import fake_nvml

    with fake_nvml(["H100-SXM", "RTX 4090"]) as fake:
        subprocess.run(["nvitop", "-1"], env=fake.env)
        fake.gpu(0).set(temperature_c=95)
"""

from __future__ import annotations

from gpuwise.testing.fake_nvml.build import NoCompilerError, build_library, function_names
from gpuwise.testing.fake_nvml.cards import Card, known_readings, profile_names, profile_sources
from gpuwise.testing.fake_nvml.control import FakeGpu, FakeNvml, fake_nvml
from gpuwise.testing.fake_nvml.waves import Wave, ramp, sine, square

__all__ = [
    "Card",
    "FakeGpu",
    "FakeNvml",
    "NoCompilerError",
    "Wave",
    "build_library",
    "fake_nvml",
    "function_names",
    "known_readings",
    "profile_names",
    "profile_sources",
    "ramp",
    "sine",
    "square",
]
