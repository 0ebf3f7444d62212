"""A second list of machines that people reported in public: the facts and the cause of each were written down from its thread
before the doctor was asked (30 November 2026)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gpuwise.errors import DriverMismatchError
from gpuwise.machine.devices.null import NullCard
from gpuwise.machine.doctor.report import diagnose
from studies.scripted_machine import KERNEL, SITE, ScriptedMachine, scripted_machine, torch

from .test_scenarios_cards import below_a_switch
from .test_scenarios_container import container, wsl
from .test_scenarios_driver import SECURE_BOOT
from .test_scenarios_issues import logged, not_loaded
from .test_scenarios_no_framework import driver
from .test_scenarios_public import BLACKWELL, CU124, CU128, HIP, KFD, OLLAMA, PASCAL, SEES, apu
from .test_scenarios_python import jax
from .test_scenarios_releases import beside
from .test_scenarios_trials import BUS, amd_card, jetson, rocm, with_packages

NO_KERNEL = "CUDA error: no kernel image is available for execution on the device"
NOT_READY = "Error 802: system not yet initialized"
MISMATCH = DriverMismatchError("driver/library version mismatch", vendor="nvidia", code=18)
OLD_TORCH = torch("2.6.0+cu124", "12.4", CU124, error="Error 803")
GB10 = NullCard("GB10", identity={"compute_capability": (12, 1), "unified_memory": True})


def plugin_without_cuda(version: str, cuda: str, error: str) -> ScriptedMachine:
    """JAX with the plugin for GPUs, which does not start."""
    plugin = {f"jax-{cuda}-plugin": version, f"jax-{cuda}-pjrt": version}
    says = jax(version, available=False, count=0, devices=["cpu"], error=error)
    return scripted_machine(answers=[says], packages=plugin)


FAULTY: dict[str, tuple[Callable[[], ScriptedMachine], tuple[str, ...]]] = {
    "ollama/ollama#12136: the fabric manager of another driver": (
        lambda: scripted_machine(cards=("H100 SXM",) * 8, answers=[driver(802, "system not yet initialized")]).but(paths=OLLAMA),
        ("fabric-manager-down",),
    ),
    "dstackai/dstack#2348: eight A100 whose fabric manager does not start": (
        lambda: scripted_machine(
            cards=("A100 SXM4 80GB",) * 8, answers=[torch("2.6.0+cu124", "12.4", CU124, error=f"Unexpected error. {NOT_READY}")]
        ),
        ("fabric-manager-down",),
    ),
    "microsoft/onnxruntime#23833: both onnxruntime and onnxruntime-gpu": (
        lambda: with_packages([], onnxruntime="1.20.1", onnxruntime_gpu="1.20.1"),
        ("onnxruntime-installed-twice",),
    ),
    "fudan-generative-vision/hallo#203: onnxruntime-gpu for CUDA 11 beside a torch for CUDA 12": (
        lambda: with_packages(
            [torch("2.2.2+cu121", "12.1", CU124, devices=[(8, 9)])], onnxruntime_gpu="1.18.0", nvidia_cublas_cu12="12.1.3.1"
        ),
        ("onnxruntime-other-cuda",),
    ),
    "stackhpc/ansible-slurm-appliance#287: a driver was upgraded and the node not started again": (
        lambda: scripted_machine(
            failed=MISMATCH, answers=[driver(803, "system has unsupported display driver / cuda driver combination")]
        ).but(
            commands=logged(
                "[ 9.0] NVRM: API mismatch: the client has the version 535.54.03, but",
                "[ 9.0] NVRM: this kernel module has the version 530.30.02.  Please",
            )
        ),
        ("driver-library-mismatch",),
    ),
    "tinygrad/open-gpu-kernel-modules#47: modules of 570.124.06 under libraries of 570.124.04": (
        lambda: scripted_machine(
            driver="570.124.06", failed=MISMATCH, answers=[torch("2.6.0+cu124", "12.4", CU124, error="803")]
        ),
        ("driver-library-mismatch",),
    ),
    "vllm-project/vllm#16901: RTX 5090 and a torch of before": (
        lambda: scripted_machine(
            cards=(BLACKWELL,), answers=[torch("2.6.0+cu124", "12.4", CU124, devices=[(12, 0)], ran=[NO_KERNEL])]
        ),
        ("torch-lacks-card",),
    ),
    "bnsreenu/digitalsreeni-image-annotator#57: GTX 1050 and torch 2.8.0+cu128": (
        lambda: scripted_machine(
            cards=(PASCAL,), driver="550.163.01", answers=[torch("2.8.0+cu128", "12.8", CU128, devices=[(6, 1)], ran=[NO_KERNEL])]
        ),
        ("torch-lacks-card",),
    ),
    "vllm-project/vllm#19185: two V100 in a container of today": (
        lambda: container(
            scripted_machine(
                cards=("V100 PCIe 16GB",) * 2,
                answers=[torch("2.9.1+cu130", "13.0", CU128, devices=[(7, 0)] * 2, ran=[NO_KERNEL] * 2)],
            )
        ),
        ("torch-lacks-card",),
    ),
    "ROCm/legacy-rocm-build#3072: one of two users is not in the group": (
        lambda: amd_card(
            [rocm(None, error=HIP)], files=KFD, unusable={"/dev/kfd": "permission", "/dev/dri/renderD128": "permission"}
        ),
        ("amd-permission",),
    ),
    "ROCm/vllm#893: a container with the group video and not render": (
        lambda: apu(
            "gfx1151",
            [torch("2.11.0+rocm7.1", None, "gfx1100 gfx1151", hip="7.1", error="No CUDA GPUs are available")],
            files={"/.dockerenv": ""},
            unusable={"/dev/dri/renderD128": "permission"},
        ),
        ("amd-permission",),
    ),
    "NVIDIA/nccl#304: access control of a PLX switch": (lambda: below_a_switch(0x1D), ("acs-redirects-peer-copies",)),
    "tensorflow/tensorflow#57893: NaN on eight A5000 below ports with access control": (
        lambda: below_a_switch(0x1D, one_switch=False, cards=8).but(
            files={f"{BUS}0000:0{i}:00.0/iommu_group/type": "DMA-FQ\n" for i in range(1, 9)}
        ),
        ("iommu-peer-copies",),
    ),
    "linux-surface/linux-surface#906: the key of DKMS is not enrolled": (
        lambda: not_loaded(
            files={SECURE_BOOT: "\x06\x00\x00\x00\x01"},
            commands=logged("[ 3.0] Loading of module with unavailable key is rejected"),
        ),
        ("secure-boot-unsigned-module",),
    ),
    "M-Bab/linux-kernel-amdgpu-binaries#101: DKMS did not build for a new kernel": (
        lambda: not_loaded(files={f"/lib/modules/{KERNEL}/updates/dkms/nvidia.ko.zst": None}),
        ("module-missing-for-kernel",),
    ),
    "pinokiocomputer/pinokio#1027: a Jetson with the wheel of PyPI": (
        lambda: jetson([torch("2.3.0", None)]),
        ("jetson-torch",),
    ),
    "google-deepmind/mujoco_playground#137: the plugin of JAX finds no cuSPARSE": (
        lambda: plugin_without_cuda("0.6.1", "cuda12", "RuntimeError: Unable to load cuSPARSE. Is it installed?"),
        ("jax-sees-no-gpu",),
    ),
    "Dao-AILab/flash-attention#1832: flash-attn 2.6.3 beside torch 2.6.0": (
        lambda: beside(
            "ImportError: flash_attn_2_cuda.cpython-312-x86_64-linux-gnu.so: undefined symbol: "
            "_ZN3c105ErrorC2ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE",
            "flash_attn",
            flash_attn="2.6.3",
        ),
        ("flash-attn-import-fails",),
    ),
    "jammsen/proxmox-setup-scripts#7: the host made no nvidia-uvm for the container": (
        lambda: container(
            scripted_machine(answers=[torch("2.9.1+cu128", "12.8", CU128, error="CUDA unknown error")]).but(
                files={"/dev/nvidia-uvm": None}
            )
        ),
        ("container-no-uvm",),
    ),
    "trueagi-io/FabricPC#45: a system's CUDA before the libraries that JAX installed": (
        lambda: plugin_without_cuda("0.9.0", "cuda13", "RuntimeError: Outdated cuBLAS installation found.").but(
            environment={"LD_LIBRARY_PATH": "/usr/local/cuda-13.0/lib64"},
            files={
                "/usr/local/cuda-13.0/lib64/libcublas.so.13.0.2.14": "",
                f"{SITE}/nvidia_cublas-13.1.0.3.dist-info/METADATA": "",
            },
        ),
        ("ld-library-path-shadows",),
    ),
    "lllyasviel/Fooocus#4134: Strix Halo and a wheel for ROCm 5": (
        lambda: apu("gfx1150", [torch("2.1.0+rocm5.6", None, "gfx900 gfx906 gfx908 gfx90a gfx1030", hip="5.6", error=HIP)]),
        ("torch-lacks-card",),
    ),
    "vllm-project/vllm#28129: vllm brought the processor's wheel to a DGX Spark": (
        lambda: scripted_machine(cards=(GB10,), answers=[torch("2.8.0+cpu", None)]).but(facts={"machine": "aarch64"}),
        ("torch-cpu-wheel",),
    ),
    "ollama/ollama#4726: Docker in WSL under Windows' driver 555": (
        lambda: container(wsl(driver="555.85", cuda=(12, 5), answers=[driver(500, "named symbol not found")]).but(paths=OLLAMA)),
        ("container-toolkit-outdated",),
    ),
}


@pytest.mark.parametrize("name", FAULTY)
def test_the_first_finding_names_the_cause(name: str) -> None:
    make, causes = FAULTY[name]
    found = diagnose(make().look())
    first = next(iter((*found.faults, *found.notes)), None)
    assert first is not None and first.id in causes, [f.id for f in (*found.faults, *found.notes)]
    assert first.why and (first in found.notes or (first.fixes and first.check and first.evidence))


HEALTHY: dict[str, Callable[[], ScriptedMachine]] = {
    "JAX with its plugin": lambda: scripted_machine(
        answers=[jax("0.9.0", available=True, count=1, ran=[{"index": 0, "ran": True, "error": None}])],
        packages={"jax-cuda13-plugin": "0.9.0", "jax-cuda13-pjrt": "0.9.0"},
    ),
    "a display's node that this user may not open": lambda: scripted_machine(answers=[SEES]).but(
        files={"/dev/dri/renderD128": ""}, unusable={"/dev/dri/renderD128": "permission"}
    ),
    "one of two render nodes, of a machine whose AMD card is the other": lambda: amd_card(
        [rocm([(11, 0)])],
        files={**KFD, "/dev/dri/renderD129": ""},
        unusable={"/dev/dri/renderD129": "permission"},
    ),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_machine_like_them_is_not_flagged(name: str) -> None:
    assert [f.id for f in diagnose(HEALTHY[name]().look()).faults] == []
