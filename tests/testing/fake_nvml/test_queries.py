"""Every question that nvidia-ml-py asks without an argument, processes in detail, and the command nvidia-smi."""

from __future__ import annotations

import csv
import inspect
import io
import re
import subprocess
from xml.etree import ElementTree

import pynvml
import pytest

from gpuwise.testing.fake_nvml import fake_nvml
from gpuwise.testing.fake_nvml.build import function_names

CARDS = ["V100-SXM", "H100-SXM", "RTX 4090", "GB10"]
HANDLES = ("handle", "device", "nvmlDevice")


def _questions() -> list[str]:
    """Functions that only ask, and need a card at most."""
    found: list[str] = []
    for name, function in inspect.getmembers(pynvml, inspect.isfunction):
        if not name.startswith(("nvmlDeviceGet", "nvmlDeviceIs", "nvmlSystemGet", "nvmlGet", "nvmlGpmQuery", "nvmlUnitGetCount")):
            continue
        needed = [p.name for p in inspect.signature(function).parameters.values() if p.default is p.empty]
        if needed in ([], *([h] for h in HANDLES)):
            found.append(name)
    return found


def test_every_question_without_an_argument_is_answered_or_refused_as_the_driver_does() -> None:
    missing: set[str] = set()
    assert len(_questions()) > 100
    with fake_nvml(CARDS) as fake, fake.in_process():
        pynvml.nvmlInit()
        for index in range(len(CARDS)):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            for name in _questions():
                asked = getattr(pynvml, name)
                takes = any(p in HANDLES for p in inspect.signature(asked).parameters)
                try:
                    asked(*([handle] if takes else []))
                except pynvml.NVMLError_FunctionNotFound:
                    missing.add(name)
                except pynvml.NVMLError as error:
                    assert error.value in (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_INVALID_ARGUMENT), name
        pynvml.nvmlShutdown()
    assert missing == set()


def test_questions_with_arguments_are_exported_but_those_of_later_drivers() -> None:
    asked = set(re.findall(r'_nvmlGetFunctionPointer\("(nvmlDeviceGet\w+)"\)', inspect.getsource(pynvml)))
    later = {"nvmlDeviceGetNvLinkInfo", "nvmlDeviceGetGpuInstanceProfileInfoByIdV", "nvmlDeviceGetPciInfoExt"}
    numbered = {name for name in asked if re.search(r"_v[124]$", name)}
    assert len(asked) > 150
    assert asked - numbered - later <= set(function_names())


@pytest.mark.parametrize(
    ("card", "smallest", "whole"),
    [
        ("A100-SXM", (14, 9728, "1g.10gb"), (98, 81152)),
        ("H100-SXM", (16, 9984, "1g.10gb"), (132, 81152)),
        ("H200-SXM", (16, 16384, "1g.18gb"), (132, 143104)),
    ],
)
def test_profiles_of_mig_are_those_of_the_guide(card: str, smallest: tuple[int, int, str], whole: tuple[int, int]) -> None:
    with fake_nvml([card, "RTX 4090"]) as fake, fake.in_process():
        pynvml.nvmlInit()
        one, other = (pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(2))
        told = pynvml.nvmlDeviceGetGpuInstanceProfileInfo(one, pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE)
        assert (told.id, told.instanceCount, told.multiprocessorCount, told.memorySizeMB) == (19, 7, *smallest[:2])
        named = pynvml.nvmlDeviceGetGpuInstanceProfileInfo(one, pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE, version=2)
        assert (named.name.decode() if isinstance(named.name, bytes) else named.name) == f"MIG {smallest[2]}"
        seven = pynvml.nvmlDeviceGetGpuInstanceProfileInfo(one, pynvml.NVML_GPU_INSTANCE_PROFILE_7_SLICE)
        assert (seven.multiprocessorCount, seven.memorySizeMB) == whole
        with pytest.raises(pynvml.NVMLError_NotSupported):
            pynvml.nvmlDeviceGetGpuInstanceProfileInfo(one, pynvml.NVML_GPU_INSTANCE_PROFILE_8_SLICE)
        with pytest.raises(pynvml.NVMLError_NotSupported):
            pynvml.nvmlDeviceGetGpuInstanceProfileInfo(other, pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE)
        fake.gpu(0).add_mig_device(9, memory_bytes=smallest[1] * 2**20)
        instance = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(one, 0)
        assert pynvml.nvmlDeviceGetAttributes(instance).multiprocessorCount == smallest[0]
        pynvml.nvmlShutdown()


def test_profiles_of_an_h200_have_names_that_its_memory_does_not_divide_into() -> None:
    """NVIDIA/mig-parted, issue 120: `nvidia-smi mig -lgip` of 8 H200."""
    with fake_nvml(["H200-SXM"]) as fake, fake.in_process():
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        kinds = ("1_SLICE", "1_SLICE_REV1", "1_SLICE_REV2", "2_SLICE", "3_SLICE", "4_SLICE", "7_SLICE")
        told = [
            pynvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, getattr(pynvml, f"NVML_GPU_INSTANCE_PROFILE_{kind}"))
            for kind in kinds
        ]
        names = [t.name.decode() if isinstance(t.name, bytes) else t.name for t in told]
        assert names == [f"MIG {n}" for n in ("1g.18gb", "1g.18gb+me", "1g.35gb", "2g.35gb", "3g.71gb", "4g.71gb", "7g.141gb")]
        assert [t.memorySizeMB / 1024 for t in told] == [16, 16, 32.25, 32.25, 69.5, 69.5, 139.75]
        assert [t.multiprocessorCount for t in told] == [16, 16, 26, 32, 60, 64, 132]
        pynvml.nvmlShutdown()


def test_errors_in_detail_are_those_of_the_memory() -> None:
    with fake_nvml(["H100-SXM", "RTX 4090"]) as fake, fake.in_process():
        pynvml.nvmlInit()
        one, other = (pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(2))
        fake.gpu(0).set(ecc_corrected=3)
        counts = pynvml.nvmlDeviceGetDetailedEccErrors(one, pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, pynvml.NVML_VOLATILE_ECC)
        assert (counts.deviceMemory, counts.l2Cache, counts.registerFile) == (3, 0, 0)
        with pytest.raises(pynvml.NVMLError_NotSupported):
            pynvml.nvmlDeviceGetDetailedEccErrors(other, pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, pynvml.NVML_VOLATILE_ECC)
        pynvml.nvmlShutdown()


def test_fans_have_a_range_where_there_are_fans() -> None:
    """chnvml of caioh-nvml-gpu-control ended where an RTX 4090 did not tell it."""
    with fake_nvml(["H100-SXM", "RTX 4090"]) as fake, fake.in_process():
        pynvml.nvmlInit()
        server, desktop = (pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(2))
        assert list(pynvml.nvmlDeviceGetMinMaxFanSpeed(desktop)) == [30, 100]
        assert [pynvml.nvmlDeviceGetTemperatureThreshold(desktop, kind) for kind in (4, 5, 6)] == [65, 84, 91]
        assert pynvml.nvmlDeviceGetFanControlPolicy_v2(desktop, 0) == pynvml.NVML_FAN_POLICY_TEMPERATURE_CONTINOUS_SW
        with pytest.raises(pynvml.NVMLError_NotSupported):
            pynvml.nvmlDeviceGetMinMaxFanSpeed(server)
        with pytest.raises(pynvml.NVMLError_NoPermission):
            pynvml.nvmlDeviceSetFanSpeed_v2(desktop, 0, 50)
        pynvml.nvmlShutdown()


def test_processes_in_detail_are_those_of_their_kind() -> None:
    with fake_nvml(["H100-SXM"]) as fake, fake.in_process():
        card = fake.gpu(0)
        card.add_process(70, memory_bytes=3e9)
        card.add_process(71, "graphics", memory_bytes=1e9)
        card.add_process(72, "both", memory_bytes=2e9)
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        asked = [
            pynvml.nvmlDeviceGetRunningProcessDetailList(handle, pynvml.nvmlProcessDetailList_v1, mode) for mode in (0, 1, 2)
        ]
        assert [[(p.pid, p.usedGpuMemory) for p in listed] for listed in asked] == [
            [(70, 3e9), (72, 2e9)],
            [(71, 1e9), (72, 2e9)],
            [],
        ]
        pynvml.nvmlShutdown()


@pytest.mark.parametrize(
    ("driver", "cuda"), [("470.256.02", 11040), ("535.183.01", 12020), ("570.124.06", 12080), ("580.95.05", 13000)]
)
def test_the_cuda_version_is_that_of_the_driver(driver: str, cuda: int) -> None:
    with fake_nvml(["T4"], driver=driver) as fake, fake.in_process():
        pynvml.nvmlInit()
        assert pynvml.nvmlSystemGetCudaDriverVersion() == cuda
        assert pynvml.nvmlSystemGetNVMLVersion() == f"{cuda // 1000}.{driver}"
        pynvml.nvmlShutdown()


def _smi(fake, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["nvidia-smi", *arguments], env=fake.env, capture_output=True, text=True, check=False)


def test_nvidia_smi_tells_what_the_library_does() -> None:
    with fake_nvml(["H100-SXM", "RTX 4090"], driver="570.124.06") as fake:
        fake.gpu(0).set(utilization=0.73, memory_used_bytes=30000 * 2**20, power_w=512.3, temperature_c=67)
        fake.gpu(0).add_process(4242, memory_bytes=2**30, name="python")
        names = "index,name,utilization.gpu,memory.used,power.draw,temperature.gpu,fan.speed,no.such.field"
        rows = list(csv.reader(io.StringIO(_smi(fake, f"--query-gpu={names}", "--format=csv").stdout), skipinitialspace=True))
        assert rows[0][2:5] == ["utilization.gpu [%]", "memory.used [MiB]", "power.draw [W]"]
        assert rows[1] == ["0", "NVIDIA H100 80GB HBM3", "73 %", "30000 MiB", "512.30 W", "67", "[N/A]", "[N/A]"]
        bare = _smi(fake, "--query-gpu=memory.used", "--format=csv,noheader,nounits", "-i", "0").stdout
        assert bare == "30000\n"
        apps = _smi(fake, "--query-compute-apps=pid,process_name,used_memory", "--format=csv,noheader").stdout
        assert apps == "4242, python, 1024 MiB\n"
        assert _smi(fake, "-L").stdout.splitlines()[1] == f"GPU 1: NVIDIA GeForce RTX 4090 (UUID: {fake.gpu(1).uuid})"
        shown = _smi(fake).stdout
        assert "Driver Version: 570.124.06" in shown and "CUDA Version: 12.8" in shown
        assert "512W / 700W" in shown and "30000MiB / 81559MiB" in shown and "4242" in shown
        assert {len(line) for line in shown.splitlines() if line.startswith(("|", "+"))} == {91}
        log = ElementTree.fromstring(_smi(fake, "-q", "-x").stdout)
        assert [g.findtext("utilization/gpu_util") for g in log.iter("gpu")] == ["73 %", "0 %"]
        assert log.findtext("gpu/temperature/gpu_temp") == "67 C" and log.findtext("gpu/processes/process_info/pid") == "4242"


def test_nvidia_smi_is_refused_as_other_clients_are() -> None:
    with fake_nvml(["T4"]) as fake:
        assert _smi(fake, "dmon").returncode == 2
        assert (_smi(fake, "-i", "7").stdout, _smi(fake, "-i", "7").returncode) == ("No devices were found\n", 6)
        fake.mismatch()
        done = _smi(fake)
        assert done.returncode == 9 and "Driver/library version mismatch" in done.stdout


def _counter(first: object, second: object, number: int) -> pynvml.c_nvmlGpmMetric_t:
    asked = pynvml.c_nvmlGpmMetricsGet_t()
    asked.version, asked.numMetrics, asked.sample1, asked.sample2 = pynvml.NVML_GPM_METRICS_GET_VERSION, 1, first, second
    asked.metrics[0].metricId = number
    pynvml.nvmlGpmMetricsGet(asked)
    return asked.metrics[0]


def test_counters_between_two_samples_are_those_of_the_card() -> None:
    """go-nvml's examples/gpm-metrics ended at a played H100 that had none."""
    with fake_nvml(["H100-SXM", "RTX 4090"]) as fake, fake.in_process():
        pynvml.nvmlInit()
        one, other = (pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(2))
        assert pynvml.nvmlGpmQueryDeviceSupport(one).isSupportedDevice
        assert not pynvml.nvmlGpmQueryDeviceSupport(other).isSupportedDevice
        fake.gpu(0).set(utilization=0.62, memory_utilization=0.35)
        samples = [pynvml.nvmlGpmSampleAlloc() for _ in range(2)]
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            _counter(*samples, 1)
        with pytest.raises(pynvml.NVMLError_NotSupported):
            pynvml.nvmlGpmSampleGet(other, samples[0])
        for sample in samples:
            pynvml.nvmlGpmSampleGet(one, sample)
        assert _counter(*samples, pynvml.NVML_GPM_METRIC_GRAPHICS_UTIL).value == pytest.approx(62)
        assert _counter(*samples, pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL).value == pytest.approx(35)
        words = _counter(*samples, pynvml.NVML_GPM_METRIC_PCIE_TX_PER_SEC).metricInfo
        assert (words.shortName, words.longName, words.unit) == (b"pcitx", b"PCIE_TX_PER_SEC", b"MiB/s")
        nothing = _counter(*samples, 14)
        assert (nothing.nvmlReturn, nothing.value, nothing.metricInfo.longName) == (0, 0.0, None)
        for sample in samples:
            pynvml.nvmlGpmSampleFree(sample)
        pynvml.nvmlShutdown()


def test_clocks_by_state_are_those_that_an_h100_told() -> None:
    """Driver 580.159.04, 27 November 2026."""
    with fake_nvml(["H100-SXM", "A100-SXM"]) as fake, fake.in_process():
        pynvml.nvmlInit()
        one, other = (pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(2))
        told = {(s, c): pynvml.nvmlDeviceGetMinMaxClockOfPState(one, c, s) for s in (0, 2) for c in range(4)}
        assert [told[0, c] for c in range(4)] == [(345, 1980), (345, 1980), (2619, 2619), (765, 1545)]
        assert [told[2, c] for c in range(4)] == [(345, 1980), (345, 1980), (1593, 1593), (765, 1545)]
        assert pynvml.nvmlDeviceGetSupportedPerformanceStates(one) == [2, 0]
        for handle, state in ((one, 8), (other, 0)):
            with pytest.raises(pynvml.NVMLError_NotSupported):
                pynvml.nvmlDeviceGetMinMaxClockOfPState(handle, 0, state)
        pynvml.nvmlShutdown()
