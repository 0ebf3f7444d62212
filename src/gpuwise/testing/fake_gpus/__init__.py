"""GPUs of AMD, Intel and Apple that do not exist, for tests: the kernel's files, AMD's Python package and the commands of macOS,
ROCm and oneAPI, played from a folder. NVIDIA's are in :mod:`gpuwise.testing.fake_nvml`. ::

    from gpuwise.testing.fake_gpus import fake_gpus

    with fake_gpus(amd=["MI300X", "MI300X"]) as fake:
        fake.amd[0].set(utilization=0.9, temperature_c=95)
        subprocess.run(["gpuwise", "top", "--once"], env=fake.env)
"""

from __future__ import annotations

from gpuwise.testing.fake_gpus.cards import FakeAmd, FakeApple, FakeCard, FakeIntel
from gpuwise.testing.fake_gpus.control import FakeGpus, fake_gpus

__all__ = ["FakeAmd", "FakeApple", "FakeCard", "FakeGpus", "FakeIntel", "fake_gpus"]
