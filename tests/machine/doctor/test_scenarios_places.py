"""Machines of particular places: WSL, Kubernetes, Proxmox, conda, Fedora, Jetson, AMD, Intel, Apple. Broken and healthy.

What is true of each was written down before the doctor saw it.
"""

from __future__ import annotations

import pytest

from gpuwise.errors import DriverMismatchError, NoDriverError
from gpuwise.machine.devices.null import NullCard
from gpuwise.machine.doctor.host import CommandResult
from studies.scripted_machine import SITE, ScriptedMachine, answer, broken_framework, scripted_machine, torch

from .asserting import Scenario, assert_cause, assert_healthy

CU130 = "sm_75 sm_80 sm_86 sm_90 sm_100 sm_120"
FINE = torch("2.13.0+cu130", "13.0", CU130, devices=[(8, 9)])
NONE_SEEN = torch("2.13.0+cu130", "13.0", CU130, error="No CUDA GPUs are available")
WSL = {"/proc/version": "Linux version 5.15.167.4-microsoft-standard-WSL2 (root@x)"}
NO_BUS = ("/sys/bus/pci", "/dev/nvidia", "/proc/driver", "/sys/module", "/proc/modules", "/usr/lib/x86_64", "/lib/modules")
BUS = "/sys/bus/pci/devices/0000:01:00.0"
PCI_IDS = {"/usr/share/misc/pci.ids": "10de  NVIDIA Corporation\n\t2684  AD102 [GeForce RTX 4090]\n"}
SECURE_BOOT = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
FEDORA = {"/etc/os-release": 'ID=fedora\nVERSION_ID=42\nPRETTY_NAME="Fedora Linux 42"\n'}
IMPORTING = '{"stage": "import"}\n'
MIG = "MIG-3f2a7c11-5d0c-5b0e-9f6d-0a6c2c3f9b01"


def unloaded(**changes: object) -> ScriptedMachine:
    """Fedora with the driver of RPM Fusion on disk, and its module not in the kernel."""
    refused = NoDriverError("the driver is not loaded", vendor="nvidia", code=9)
    gone = {"/proc/modules": "ext4 1 1 - Live\n", "/sys/module/nvidia/version": None, "/proc/driver/nvidia/version": None}
    gone |= {"/dev/nvidia0": None, "/dev/nvidiactl": None, "/dev/nvidia-uvm": None}
    machine = scripted_machine(failed=refused, answers=[NONE_SEEN]).but(files={**PCI_IDS, **gone, **FEDORA})
    return machine.but(links={f"{BUS}/driver": None}).but(**changes)


def orin(answer: object, release: str) -> ScriptedMachine:
    model = {"/proc/device-tree/model": "NVIDIA Jetson AGX Orin Developer Kit\0", "/etc/nv_tegra_release": release}
    machine = scripted_machine(cards=(), driver=None, answers=[answer])  # type: ignore[list-item]
    return machine.but(files=model, facts={"machine": "aarch64"})


def radeon(answers: list, **changes: object) -> ScriptedMachine:
    card = NullCard("RX 7900 XTX", identity={"compute_capability": None, "architecture": "gfx1100"})
    machine = scripted_machine(cards=(card,), vendor="amd", driver="6.12", cuda=None, answers=answers)
    return machine.but(files={"/dev/kfd": "", "/dev/dri/renderD128": ""}).but(**changes)


def rocm(devices: list | None, **more: object):
    return torch("2.9.1+rocm6.4", None, "gfx90a gfx942 gfx1030 gfx1100", hip="6.4.43482", devices=devices, **more)  # type: ignore[arg-type]


def arc(available: bool) -> ScriptedMachine:
    """An Arc B580 with PyTorch's build for it."""
    card = NullCard("Arc B580", identity={"compute_capability": None, "unified_memory": False})
    lines = [{"stage": "build", "version": "2.13.0+xpu", "xpu": "20250301"}]
    said = answer("torch", "2.13.0+xpu", [*lines, {"stage": "done", "available": available, "count": int(available)}])
    return scripted_machine(cards=(card,), vendor="intel", driver="xe of Linux 6.12", cuda=None, answers=[said])


def mac(release: str, *, mps: bool) -> ScriptedMachine:
    lines = [{"stage": "build", "version": "2.13.0", "mps": mps, "mps_built": True}]
    said = answer("torch", "2.13.0", [*lines, {"stage": "done", "available": False, "count": 0}])
    machine = scripted_machine(cards=(), driver=None, answers=[said])
    return machine.but(platform="darwin", facts={"release": release, "machine": "arm64"})


def a100(**changes: object) -> ScriptedMachine:
    card = NullCard("A100 SXM4 80GB", identity={"mig": True, "mig_uuids": (MIG,)})
    return scripted_machine(cards=(card,), answers=[changes.pop("answer", NONE_SEEN)]).but(**changes)  # type: ignore[list-item]


FAULTY: dict[str, Scenario] = {
    "Docker on WSL without --gpus": (
        lambda: scripted_machine(driver=None, answers=[NONE_SEEN]).without(*NO_BUS).but(files={**WSL, "/.dockerenv": ""}),
        "container-no-gpu",
        ("--gpus all",),
    ),
    "a pod that asks for no GPU": (
        lambda: scripted_machine(driver=None, answers=[NONE_SEEN]).but(environment={"KUBERNETES_SERVICE_HOST": "10.0.0.1"}),
        "container-no-gpu",
        (),
    ),
    "a Proxmox container with another driver than its host": (
        lambda: scripted_machine(
            failed=DriverMismatchError("driver and library differ", vendor="nvidia", code=18), answers=[NONE_SEEN]
        ).but(
            environment={"container": "lxc"},
            files={
                "/usr/lib/x86_64-linux-gnu/libcuda.so.580.95.05": None,
                "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.580.95.05": None,
                "/usr/lib/x86_64-linux-gnu/libcuda.so.580.82.09": "",
                "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.580.82.09": "",
                "/lib/modules/6.8.0-45-generic/updates/dkms/nvidia.ko.zst": None,
            },
        ),
        "driver-library-mismatch",
        ("NVIDIA-Linux-x86_64-580.95.05.run", "--no-kernel-module"),
    ),
    "conda's pytorch for the CPU": (
        lambda: scripted_machine(answers=[torch("2.5.1", None)]).but(
            files={
                "/venv/conda-meta/pytorch-2.5.1-cpu_generic_py312_h1.json": "",
                f"{SITE}/torch-2.5.1.dist-info/INSTALLER": "conda",
            }
        ),
        "torch-cpu-wheel",
        ("conda install", "pytorch"),
    ),
    "an older libstdc++ of conda's in front": (
        lambda: scripted_machine(
            answers=[
                broken_framework(
                    "torch",
                    "2.13.0+cu130",
                    CommandResult(
                        1,
                        IMPORTING + '{"failed": "ImportError: /opt/conda/lib/libstdc++.so.6: version `GLIBCXX_3.4.30\' not found '
                        f'(required by {SITE}/torch/lib/libtorch_python.so)"}}\n',
                    ),
                )
            ]
        ).but(environment={"LD_LIBRARY_PATH": "/opt/conda/lib"}, files={"/opt/conda/lib/libstdc++.so.6": ""}),
        "ld-library-path-shadows",
        ("unset LD_LIBRARY_PATH",),
    ),
    "a Blackwell workstation card and a wheel for CUDA 11.8": (
        lambda: scripted_machine(
            cards=(NullCard("rtx-pro-6000-blackwell-workstation"),),
            driver="570.133.20",
            cuda=(12, 8),
            answers=[
                torch(
                    "2.7.1+cu118", "11.8", "sm_50 sm_60 sm_70 sm_75 sm_80 sm_86 sm_90", devices=[(12, 0)], ran=["no kernel image"]
                )
            ],
        ),
        "torch-lacks-card",
        ("whl/cu128",),
    ),
    "a V100 and a wheel without Volta": (
        lambda: scripted_machine(
            cards=(NullCard("V100 SXM2 32GB"),),
            answers=[
                torch("2.8.0+cu129", "12.9", "sm_75 sm_80 sm_86 sm_90 sm_100 sm_120", devices=[(7, 0)], ran=["no kernel image"])
            ],
        ).but(files={"/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Release\n"}),
        "torch-lacks-card",
        ("pip install torch==2.8",),
    ),
    "nouveau came back on Fedora": (
        lambda: unloaded().but(links={f"{BUS}/driver": "../drivers/nouveau"}, files={"/proc/modules": "nouveau 1 1 - Live\n"}),
        "nouveau-loaded",
        ("blacklist nouveau", "dracut --force", "reboot"),
    ),
    "Fedora's own build and secure boot": (
        lambda: unloaded(
            commands={"dmesg": CommandResult(0, "[ 0.0] Linux\n[ 3.1] Loading of module with unavailable key is rejected")}
        ).but(files={SECURE_BOOT: "\x06\x00\x00\x00\x01"}),
        "secure-boot-unsigned-module",
        ("mokutil --import /etc/pki/akmods/certs/public_key.der", "reboot"),
    ),
    "an instance of MIG that is gone": (
        lambda: a100(environment={"CUDA_VISIBLE_DEVICES": "MIG-deadbeef-5d0c-5b0e-9f6d-0a6c2c3f9b01"}),
        "cuda-visible-devices-invalid",
        (f"export CUDA_VISIBLE_DEVICES={MIG}",),
    ),
    "a Jetson of JetPack 5 and a wheel for JetPack 6": (
        lambda: orin(
            torch("2.8.0", "12.6", "sm_87", error="The NVIDIA driver on your system is too old (found version 11040)."),
            "# R35 (release), REVISION: 4.1, GCID: 33958178, BOARD: t186ref, EABI: aarch64\n",
        ),
        "jetson-torch",
        ("jp/v512/pytorch/torch-2.1.0",),
    ),
    "ROCR_VISIBLE_DEVICES names a card that is not here": (
        lambda: radeon([rocm(None, error="No HIP GPUs are available")], environment={"ROCR_VISIBLE_DEVICES": "3"}),
        "hip-visible-devices-invalid",
        ("unset ROCR_VISIBLE_DEVICES",),
    ),
    "an Arc without its compute runtime": (
        lambda: arc(available=False),
        "intel-no-runtime",
        ("libze-intel-gpu1", "intel-opencl-icd"),
    ),
    "a macOS before Metal's for PyTorch": (
        lambda: mac("12.1", mps=False),
        "torch-no-metal",
        ("softwareupdate",),
    ),
}
HEALTHY = {
    "WSL with an RTX 5090": lambda: (
        scripted_machine(cards=("RTX 5090",), answers=[torch("2.13.0+cu130", "13.0", CU130, devices=[(12, 0)])])
        .without(*NO_BUS)
        .but(files={**WSL, "/dev/dxg": "", "/usr/lib/wsl/lib/libcuda.so.1": ""})
    ),
    "an instance of MIG, named": lambda: a100(
        answer=torch("2.13.0+cu130", "13.0", CU130, devices=[(8, 0)]), environment={"CUDA_VISIBLE_DEVICES": MIG}
    ),
    "Proxmox's container with the driver of its host": lambda: scripted_machine(answers=[FINE]).but(
        environment={"container": "lxc"}, files={"/lib/modules/6.8.0-45-generic/updates/dkms/nvidia.ko.zst": None}
    ),
    "ROCR_VISIBLE_DEVICES names the card": lambda: radeon([rocm([(11, 0)])], environment={"ROCR_VISIBLE_DEVICES": "0"}),
    "an Arc with its compute runtime": lambda: arc(available=True),
    "a Mac of today": lambda: mac("15.2", mps=True),
    "conda's pytorch for CUDA": lambda: scripted_machine(
        answers=[torch("2.5.1", "12.4", "sm_50 sm_80 sm_86 sm_90", devices=[(8, 9)])]
    ).but(files={"/venv/conda-meta/pytorch-2.5.1-cuda124_py312_h1.json": ""}),
}


@pytest.mark.parametrize("name", FAULTY)
def test_the_cause_and_what_mends_it(name: str) -> None:
    assert_cause(FAULTY[name])


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_machine(name: str) -> None:
    assert_healthy(HEALTHY[name])
