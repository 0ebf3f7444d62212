"""Machines that people reported in public: the facts of each as its thread has them, and the finding that names its cause.

What is true of each was written down before the doctor saw it (30 November 2026). A thread is named by its repository and number.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gpuwise.errors import DeviceError, DriverMismatchError
from gpuwise.machine.devices.null import NullCard
from gpuwise.machine.devices.readings import Peer
from gpuwise.machine.doctor.host import CommandResult
from gpuwise.machine.doctor.report import diagnose
from studies.scripted_machine import SITE, Answer, ScriptedMachine, broken_framework, scripted_machine, torch

from .test_scenarios_container import container, without_nodes, wsl
from .test_scenarios_issues import PCI_IDS, logged, not_listed, not_loaded
from .test_scenarios_no_framework import driver
from .test_scenarios_places import IMPORTING, arc, orin
from .test_scenarios_releases import beside
from .test_scenarios_trials import amd_card, intel_card, on_the_bus, with_packages

CU118 = "sm_50 sm_60 sm_70 sm_75 sm_80 sm_86 sm_90"
CU124 = "sm_50 sm_60 sm_70 sm_75 sm_80 sm_86 sm_90"
CU128 = "sm_75 sm_80 sm_86 sm_90 sm_100 sm_120"
BLACKWELL = NullCard("RTX 5090", identity={"compute_capability": (12, 0)})
PASCAL = NullCard("GTX 1080 Ti", identity={"compute_capability": (6, 1)})
OLLAMA = {"ollama": "/usr/local/bin/ollama"}
KFD = {"/dev/kfd": "", "/dev/dri/renderD128": ""}
ROCM_6 = "gfx900 gfx906 gfx908 gfx90a gfx942 gfx1030 gfx1100 gfx1101"
HIP = "No HIP GPUs are available"
NO_FUNCTION = "HIP error: invalid device function"


def rocm(devices: list[tuple[int, int]] | None = None, **more: object) -> Answer:
    return torch("2.6.0+rocm6.2.4", None, ROCM_6, hip="6.2.41134", devices=devices, **more)  # type: ignore[arg-type]


def apu(architecture: str, answers: list[Answer], **changes: object) -> ScriptedMachine:
    """A processor's graphics part that answers the driver, with 2 GiB set aside for it."""
    identity = {"compute_capability": None, "architecture": architecture, "memory_bytes": 2 << 30, "unified_memory": True}
    card = NullCard("Radeon 780M", identity=identity)
    return scripted_machine(cards=(card,), vendor="amd", driver="6.12", cuda=None, answers=answers).but(files=KFD).but(**changes)  # type: ignore[arg-type]


def two(answers: list[Answer], **changes: object) -> ScriptedMachine:
    """Two cards that copy to each other over PCIe, in groups of an IOMMU that translates."""
    machine = scripted_machine(cards=("RTX 4090",) * 2, peers=[Peer(0, 1, "same node", None, True)], answers=answers)
    links = {f"/sys/bus/pci/devices/0000:0{i}:00.0/iommu_group": f"../../../../kernel/iommu_groups/{i}" for i in (1, 2)}
    files = {f"/sys/bus/pci/devices/0000:0{i}:00.0/iommu_group/type": "DMA-FQ\n" for i in (1, 2)}
    return machine.but(files=files, links=links).but(**changes)  # type: ignore[arg-type]


def log(machine: ScriptedMachine, *lines: str) -> ScriptedMachine:
    return machine.but(commands=logged(*lines))


SEES = torch("2.9.1+cu128", "12.8", CU128, devices=[(8, 9)])
NONE = torch("2.9.1+cu128", "12.8", CU128, error="No CUDA GPUs are available")
CPU = torch("2.9.1+cpu", None)
FAULTY: dict[str, tuple[Callable[[], ScriptedMachine], tuple[str, ...]]] = {
    # --- ollama and llama.cpp, without a framework of Python
    "ollama/ollama#5453: nvidia_uvm is stale in a guest": (
        lambda: scripted_machine(answers=[driver(999, "unknown error")]),
        ("uvm-stale",),
    ),
    "ollama/ollama#3024: a container without the GPU": (
        lambda: without_nodes(answers=()).but(paths=OLLAMA),
        ("container-no-gpu",),
    ),
    "ollama/ollama#2587: no driver for the card": (
        lambda: scripted_machine(driver=None).but(files=PCI_IDS),
        ("driver-not-installed",),
    ),
    "ollama/ollama#8399: a guest whose processor has no AVX": (
        lambda: scripted_machine(answers=[driver()]).but(
            files={"/proc/cpuinfo": "flags\t\t: fpu sse sse2 ssse3 sse4_1 sse4_2\n"}
        ),
        ("cpu-without-avx",),
    ),
    "ollama/ollama#6736: the user may not open /dev/kfd": (
        lambda: amd_card([], files=KFD, paths=OLLAMA, unusable={"/dev/kfd": "permission"}),
        ("amd-permission",),
    ),
    "ollama/ollama#6685: Docker with --gpus all on an AMD card": (
        lambda: amd_card([], paths=OLLAMA, files={"/.dockerenv": "", "/dev/dri/renderD128": ""}),
        ("amd-no-kfd",),
    ),
    "ollama/ollama#2718: HSA_OVERRIDE_GFX_VERSION=gfx1103": (
        lambda: apu("gfx1103", [rocm(error=HIP)], environment={"HSA_OVERRIDE_GFX_VERSION": "gfx1103"}),
        ("hsa-override-invalid",),
    ),
    "ollama/ollama#10691: /dev/kfd is there and the container's user is not in its group": (
        lambda: amd_card(
            [], files={**KFD, "/.dockerenv": ""}, unusable={"/dev/kfd": "permission", "/dev/dri/renderD128": "permission"}
        ),
        ("amd-permission",),
    ),
    "ollama/ollama#17104: no /dev/dri": (
        lambda: apu("gfx1103", [], paths=OLLAMA).but(files={"/dev/dri/renderD128": None}),
        ("amd-no-dri",),
    ),
    "meta-llama/llama3#215: a driver that is older than the program's CUDA": (
        lambda: scripted_machine(cards=("T4",), driver="418.67", cuda=(10, 1), answers=[driver()]).but(paths=OLLAMA),
        ("ollama-driver-too-old",),
    ),
    "ggml-org/llama.cpp#17542: the user's and the kernel's halves differ": (
        lambda: scripted_machine(
            failed=DriverMismatchError("driver/library version mismatch", vendor="nvidia", code=18),
            answers=[driver(803, "system has unsupported display driver / cuda driver combination")],
        ),
        ("driver-library-mismatch",),
    ),
    "abetlen/llama-cpp-python#1890: CUDA_VISIBLE_DEVICES names no card": (
        lambda: scripted_machine(answers=[driver(100, "no CUDA-capable device is detected")]).but(
            environment={"CUDA_VISIBLE_DEVICES": "1"}
        ),
        ("cuda-visible-devices-invalid",),
    ),
    "abetlen/llama-cpp-python#880: CUDA_VISIBLE_DEVICES is empty": (
        lambda: scripted_machine(answers=[driver(100, "no CUDA-capable device is detected")]).but(
            environment={"CUDA_VISIBLE_DEVICES": ""}
        ),
        ("cuda-visible-devices-empty",),
    ),
    "truenas/apps#1100: an app's user outside the group render": (
        lambda: amd_card([], files={**KFD, "/.dockerenv": ""}, unusable={"/dev/kfd": "permission"}),
        ("amd-permission",),
    ),
    "ggml-org/llama.cpp#6184: after a suspend": (
        lambda: scripted_machine(cards=("RTX 3090 Ti",), answers=[driver(999, "unknown error")]),
        ("uvm-stale",),
    ),
    "likelovewant/ollama-for-amd#33: a container without both devices, on an APU": (
        lambda: apu("gfx90c", [], paths=OLLAMA, files={"/dev/kfd": None, "/dev/dri/renderD128": None, "/.dockerenv": ""}),
        ("amd-no-kfd",),
    ),
    # --- ComfyUI and wheels that lack the card
    "Comfy-Org/ComfyUI#7677: RTX 5060 Ti and cu126": (
        lambda: scripted_machine(
            cards=(BLACKWELL,),
            answers=[
                torch(
                    "2.6.0+cu126",
                    "12.6",
                    CU124,
                    devices=[(12, 0)],
                    ran=["CUDA error: no kernel image is available for execution on the device"],
                )
            ],
        ),
        ("torch-lacks-card",),
    ),
    "Comfy-Org/ComfyUI#6823: RTX 5080 and cu126": (
        lambda: scripted_machine(
            cards=(BLACKWELL,),
            answers=[
                torch(
                    "2.6.0+cu126",
                    "12.6",
                    CU124,
                    devices=[(12, 0)],
                    ran=["CUDA error: no kernel image is available for execution on the device"],
                )
            ],
        ),
        ("torch-lacks-card",),
    ),
    "cocktailpeanut/comfyui.pinokio#6: a wheel for the processor": (
        lambda: scripted_machine(answers=[CPU]),
        ("torch-cpu-wheel",),
    ),
    "Comfy-Org/ComfyUI#8431: an upgrade brought the wheel for the processor": (
        lambda: with_packages([CPU], torchvision="0.24.1"),
        ("torch-cpu-wheel",),
    ),
    "Comfy-Org/ComfyUI#2807: an AMD card and the wheel for CUDA": (
        lambda: amd_card([NONE], files=KFD),
        ("torch-cuda-wheel-on-amd",),
    ),
    "Comfy-Org/ComfyUI#6656: RX 7800 XT and a wheel without gfx1101": (
        lambda: amd_card(
            [
                torch(
                    "2.6.0+rocm6.2.4",
                    None,
                    "gfx900 gfx90a gfx942 gfx1030 gfx1100",
                    hip="6.2.41134",
                    devices=[(11, 0)],
                    ran=[NO_FUNCTION],
                )
            ],
            "RX 7800 XT",
            "gfx1101",
            files=KFD,
        ),
        ("torch-lacks-card",),
    ),
    "a Pascal card and the wheels of CUDA 13": (
        lambda: scripted_machine(
            cards=(PASCAL,),
            answers=[
                torch(
                    "2.9.1+cu130",
                    "13.0",
                    CU128,
                    devices=[(6, 1)],
                    ran=["CUDA error: no kernel image is available for execution on the device"],
                )
            ],
        ),
        ("torch-lacks-card",),
    ),
    # --- ROCm
    "ROCm/TheRock#1184: gfx1103 and a wheel without it": (
        lambda: apu("gfx1103", [rocm([(11, 0)], ran=[NO_FUNCTION])]),
        ("torch-lacks-card",),
    ),
    "pytorch/pytorch#164346: gfx1151 and a wheel without it": (
        lambda: apu("gfx1151", [rocm([(11, 5)], ran=[NO_FUNCTION])]),
        ("torch-lacks-card",),
    ),
    "likelovewant/ROCmLibs-for-gfx1103-AMD780M-APU#37: gfx1150 told to be 11.5.1": (
        lambda: apu("gfx1150", [rocm([(11, 5)], ran=[NO_FUNCTION])], environment={"HSA_OVERRIDE_GFX_VERSION": "11.5.1"}),
        ("hsa-override-not-in-wheel",),
    ),
    "ROCm/legacy-rocm-build#2536: RX 6700 XT": (
        lambda: amd_card([rocm([(10, 3)], ran=[NO_FUNCTION])], "RX 6700 XT", "gfx1031", files=KFD),
        ("torch-lacks-card",),
    ),
    "ROCm/legacy-rocm-build#5264: two WX 5100 (gfx803)": (
        lambda: amd_card([rocm([(8, 0)], ran=[NO_FUNCTION])], "RX 580", "gfx803", files=KFD),
        ("torch-lacks-card",),
    ),
    "ROCm/legacy-rocm-build#2527: RX 5700 XT (gfx1010)": (
        lambda: amd_card([rocm([(10, 1)], ran=[NO_FUNCTION])], "RX 5700 XT", "gfx1010", files=KFD),
        ("torch-lacks-card",),
    ),
    # --- WSL
    "vllm-project/vllm#4411: WSL, libcuda.so is not in the loader's folders": (
        lambda: wsl(
            answers=[
                torch(
                    "2.1.2+cu121",
                    "12.1",
                    CU124,
                    devices=[(8, 9)],
                    ran=["Failed to find CUDA library libcuda.so: libcuda.so: cannot open shared object file"],
                )
            ]
        ),
        ("torch-run-fails",),
    ),
    "NVIDIA/k8s-device-plugin#207: WSL, Windows' driver does not reach in": (
        lambda: wsl(answers=[NONE], cards=(), driver=None).but(files={"/dev/dxg": None, "/usr/lib/wsl/lib/libcuda.so.1": None}),
        ("wsl-no-passthrough",),
    ),
    "a Linux driver installed inside WSL": (
        lambda: wsl(
            answers=[
                torch(
                    "2.9.1+cu128",
                    "12.8",
                    CU128,
                    error="Unexpected error from cudaGetDeviceCount(). Error 500: named symbol not found",
                )
            ]
        ).but(files={"/usr/lib/x86_64-linux-gnu/libcuda.so.570.124.06": ""}),
        ("wsl-linux-driver",),
    ),
    # --- Jetson
    "Lmy0217/PyTorch-aarch64#3: the wheel for ARM has no CUDA": (lambda: orin(CPU, "# R32 (release)\n"), ("jetson-torch",)),
    "naseemap47/streamlit-yolo#22: Orin NX with PyPI's wheel": (
        lambda: orin(torch("2.3.0+cpu", None), "# R36 (release)\n"),
        ("jetson-torch",),
    ),
    "dusty-nv/jetson-containers#1495: a build that sees none": (
        lambda: orin(torch("2.8.0", "12.2", "sm_87", error="No CUDA GPUs are available"), "# R36 (release)\n"),
        ("jetson-torch",),
    ),
    # --- containers
    "NVIDIA/nvidia-docker#1203: Docker, and the host's driver does not run": (
        lambda: not_loaded(paths={"docker": "/usr/bin/docker"}, files={**PCI_IDS}),
        ("driver-not-loaded",),
    ),
    "NVIDIA/nvidia-docker#1675: no NVIDIA device on the host": (
        lambda: scripted_machine(cards=(), driver=None, answers=[NONE]).but(paths={"docker": "/usr/bin/docker"}),
        ("no-gpu",),
    ),
    "HonuRobotics/dockwater#10: driver not loaded": (lambda: not_loaded(), ("driver-not-loaded",)),
    "a container that lost its GPU after systemctl daemon-reload": (
        lambda: container(
            scripted_machine(failed=DeviceError("NVML: unknown error", vendor="nvidia", code=999), answers=[NONE])
        ).but(unusable=dict.fromkeys(("/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm"), "refused")),
        ("container-lost-gpu",),
    ),
    "PyTorch in Docker with 64 MiB of shared memory": (
        lambda: container(scripted_machine(answers=[SEES])).but(space={"/dev/shm": (64 << 20, 64 << 20)}),
        ("container-shm-small",),
    ),
    # --- the driver and the card
    "NVIDIA/open-gpu-kernel-modules#862: RTX 5090 with the closed module": (
        lambda: not_listed(
            "0x2b85",
            "[ 3.1] NVRM: The NVIDIA GPU 0000:01:00.0 (PCI ID: 10de:2b85) installed in this system requires use of the "
            "NVIDIA open kernel modules.",
        ).but(files={"/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.153.02  Release\n"}),
        ("open-modules-needed",),
    ),
    "NVIDIA/open-gpu-kernel-modules#789: 3090, the GSP's firmware does not start": (
        lambda: not_listed(
            "0x2204",
            "[ 903.6] NVRM: RmInitAdapter: Cannot initialize GSP firmware RM",
            "[ 903.6] NVRM: GPU 0000:01:00.0: RmInitAdapter failed! (0x62:0x65:1792)",
        ),
        ("gpu-init-failed",),
    ),
    "NVIDIA/open-gpu-kernel-modules#1104: WPR2 is already up": (
        lambda: not_listed(
            "0x2b85",
            "[ 9.1] NVRM: unexpected WPR2 already up, cannot proceed with booting GSP",
            "[ 9.2] NVRM: RmInitAdapter: Cannot initialize GSP firmware RM",
            "[ 9.2] NVRM: GPU 0000:01:00.0: RmInitAdapter failed! (0x62:0x40:2168)",
        ),
        ("gpu-init-failed",),
    ),
    "NVIDIA/open-gpu-kernel-modules#507: Xid 79": (
        lambda: log(
            scripted_machine(failed=DeviceError("GPU is lost", vendor="nvidia", code=15), answers=[NONE]),
            "[ 91.2] NVRM: Xid (PCI:0000:01:00): 79, pid=1234, name=python, GPU has fallen off the bus.",
        ),
        ("gpu-lost",),
    ),
    "NVIDIA/open-gpu-kernel-modules#888: fallen off the bus, without an Xid": (
        lambda: log(
            on_the_bus(1, 0),
            "[ 91.2] NVRM: GPU at PCI:0000:01:00: GPU-1",
            "[ 91.3] NVRM: GPU 0000:01:00.0: GPU has fallen off the bus.",
        ),
        ("gpu-lost",),
    ),
    "NVIDIA/open-gpu-kernel-modules#1230: GSP timeout (Xid 119)": (
        lambda: log(
            scripted_machine(answers=[SEES]),
            "[ 84.7] NVRM: Xid (PCI:0000:01:00): 119, pid=2413, name=python, Timeout after 45s of waiting for RPC response "
            "from GPU0 GSP! Expected function 76",
        ),
        ("xid-119",),
    ),
    "NVIDIA/open-gpu-kernel-modules#1243: Xid 109": (
        lambda: log(
            scripted_machine(cards=(BLACKWELL,), answers=[torch("2.9.1+cu128", "12.8", CU128, devices=[(12, 0)])]),
            "[ 84.7] NVRM: Xid (PCI:0000:01:00): 109, pid=2413, name=python, channel 0x00000008, errorString CTX SWITCH "
            "TIMEOUT, Info 0x1c046",
        ),
        ("xid-109",),
    ),
    "mattshma/bigdata#133: nouveau has the card": (lambda: not_loaded("nouveau"), ("nouveau-loaded",)),
    "korvahannu/arch-nvidia-drivers-installation-guide#37: no module for the new kernel": (
        lambda: not_loaded(
            files={
                **PCI_IDS,
                "/lib/modules/6.8.0-45-generic/updates/dkms/nvidia.ko.zst": None,
                "/lib/modules/6.8.0-31-generic/updates/dkms/nvidia.ko.zst": "",
            }
        ),
        ("module-missing-for-kernel",),
    ),
    "pytorch/pytorch#85332: driver 450 and CUDA 12": (
        lambda: scripted_machine(
            cards=(PASCAL,),
            driver="450.51.05",
            cuda=(11, 0),
            answers=[
                torch("2.9.1+cu128", "12.8", CU128, error="The NVIDIA driver on your system is too old (found version 11000)")
            ],
        ),
        ("torch-driver-too-old",),
    ),
    # --- many cards
    "NVIDIA/nccl#2079: access control at the root ports, the IOMMU translates": (
        lambda: two([torch("2.9.1+cu128", "12.8", CU128, devices=[(8, 9)] * 2)]),
        ("iommu-peer-copies",),
    ),
    "vllm-project/vllm#33041: NCCL hangs after its start": (
        lambda: two([torch("2.9.1+cu128", "12.8", CU128, devices=[(8, 9)] * 2)]),
        ("iommu-peer-copies",),
    ),
    "NVIDIA/nccl#631: NCCL_P2P_DISABLE was left": (
        lambda: scripted_machine(
            cards=("A100 SXM4 80GB",) * 2,
            peers=[Peer(0, 1, "nvlink", 4, True)],
            answers=[torch("2.9.1+cu128", "12.8", CU128, devices=[(8, 0)] * 2)],
        ).but(environment={"NCCL_P2P_DISABLE": "1"}),
        ("nccl-p2p-disabled",),
    ),
    "ROCm/vllm#390: two AMD cards hang without iommu=pt": (
        lambda: scripted_machine(
            cards=(NullCard("RX 7900 XTX", identity={"compute_capability": None, "architecture": "gfx1100"}),) * 2,
            vendor="amd",
            driver="6.12",
            cuda=None,
            peers=[Peer(0, 1, "same node", None, True)],
            answers=[rocm([(11, 0)] * 2)],
        ).but(files={**KFD, **{f"/sys/bus/pci/devices/0000:0{i}:00.0/iommu_group/type": "DMA-FQ\n" for i in (1, 2)}}),
        ("iommu-peer-copies",),
    ),
    # --- libraries beside PyTorch
    "SYSTRAN/faster-whisper#885: ctranslate2 4.4 beside cuDNN 9": (
        lambda: with_packages([SEES], ctranslate2="4.4.0", faster_whisper="1.0.3", nvidia_cudnn_cu12="9.10.2.21"),
        ("ctranslate2-cudnn",),
    ),
    "SYSTRAN/faster-whisper#1080: ctranslate2 4.5 beside cuDNN 8": (
        lambda: with_packages(
            [torch("2.3.1+cu121", "12.1", CU124, devices=[(8, 9)])], ctranslate2="4.5.0", nvidia_cudnn_cu12="8.9.2.26"
        ),
        ("ctranslate2-cudnn",),
    ),
    "pytorch/pytorch#134929: nvJitLink of another toolkit first": (
        lambda: scripted_machine(
            answers=[
                broken_framework(
                    "torch",
                    "2.5.1",
                    CommandResult(
                        1,
                        IMPORTING + '{"failed": "ImportError: libcusparse.so.12: undefined symbol: __nvJitLinkComplete_12_4"}\n',
                    ),
                )
            ]
        ).but(
            environment={"LD_LIBRARY_PATH": "/usr/local/cuda-12.1/lib64"},
            files={
                f"{SITE}/nvidia_nvjitlink_cu12-12.4.127.dist-info/METADATA": "",
                "/usr/local/cuda-12.1/lib64/libnvJitLink.so.12.1.105": "",
            },
        ),
        ("ld-library-path-shadows",),
    ),
    "bitsandbytes-foundation/bitsandbytes#1452: an older bitsandbytes beside CUDA 12": (
        lambda: beside(
            "RuntimeError: Could not load bitsandbytes native library: libcusparse.so.11: cannot open shared object file: No "
            "such file or directory",
            "bitsandbytes",
            bitsandbytes="0.35.0",
        ),
        ("bitsandbytes-import-fails",),
    ),
    "flash-attn of another torch": (
        lambda: beside(
            f"ImportError: {SITE}/flash_attn_2_cuda.cpython-312-x86_64-linux-gnu.so: undefined symbol: "
            "_ZN3c105ErrorC2ENS_14SourceLocationE",
            "flash_attn",
            flash_attn="2.7.4",
        ),
        ("flash-attn-import-fails",),
    ),
    "vllm-project/vllm#36099: vllm for CUDA 12 beside a torch for CUDA 13": (
        lambda: beside(
            "ImportError: libcudart.so.12: cannot open shared object file: No such file or directory", "vllm", vllm="0.16.0"
        ),
        ("vllm-import-fails",),
    ),
    # --- Intel
    "vladmandic/sdnext#3808: Arc B580, no compute runtime": (
        lambda: arc(available=False),
        ("intel-no-runtime",),
    ),
    "intel/ipex-llm#12689: Arc B580 and the wheel for CUDA": (lambda: intel_card([NONE]), ("torch-no-xpu",)),
    "intel/ipex-llm#12652: ollama on an Arc B580 without Level Zero": (
        lambda: intel_card([]).but(paths=OLLAMA),
        ("intel-no-runtime",),
    ),
}
UNSEEN = {"vllm-project/vllm#36099: vllm for CUDA 12 beside a torch for CUDA 13": "vllm loads its compiled part late"}
"""Stories whose cause is not found yet."""


@pytest.mark.parametrize("name", FAULTY)
def test_the_first_finding_names_the_cause(name: str) -> None:
    make, causes = FAULTY[name]
    found = diagnose(make().look())
    first = next(iter((*found.faults, *found.notes)), None)
    if name in UNSEEN:
        assert first is None or first.id not in causes, f"found now: take it out of UNSEEN ({UNSEEN[name]})"
        return
    assert first is not None and first.id in causes, [f.id for f in found.faults]
    assert first.why and (first in found.notes or (first.fixes and first.check and first.evidence))


HEALTHY: dict[str, Callable[[], ScriptedMachine]] = {
    "ollama, its driver and a card": lambda: scripted_machine(answers=[driver()]).but(paths=OLLAMA),
    "ollama on an AMD card": lambda: amd_card([], paths=OLLAMA, files=KFD),
    "a container without a GPU, for no program of GPUs": lambda: container(scripted_machine(driver=None, answers=[])),
    "an APU whose wheel holds its code": lambda: apu(
        "gfx1103", [torch("2.11.0+rocm7.1", None, "gfx1100 gfx1103", hip="7.1", devices=[(11, 0)])]
    ),
    "an APU that runs the code of its neighbour": lambda: apu(
        "gfx1103", [rocm([(11, 0)])], environment={"HSA_OVERRIDE_GFX_VERSION": "11.0.0"}
    ),
    "an APU beside an NVIDIA card": lambda: scripted_machine(answers=[SEES]).but(files={"/dev/kfd": ""}),
    "faster-whisper with the cuDNN that it needs": lambda: with_packages(
        [SEES], ctranslate2="4.6.0", nvidia_cudnn_cu12="9.10.2.21"
    ),
    "AVX": lambda: scripted_machine(answers=[SEES]).but(files={"/proc/cpuinfo": "flags\t\t: fpu sse4_2 avx avx2\n"}),
    "an earlier boot's card is well again": lambda: log(scripted_machine(answers=[SEES]), "[ 1.0] nvidia: loaded"),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_machine_like_them_is_not_flagged(name: str) -> None:
    assert [f.id for f in diagnose(HEALTHY[name]().look()).faults] == []
