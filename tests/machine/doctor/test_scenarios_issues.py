"""Broken machines as people reported them in public issues (each with its place), and healthy ones that are like them."""

from __future__ import annotations

import pytest

from gpuwise.errors import NoDriverError
from gpuwise.machine.devices.null import NullCard
from gpuwise.machine.doctor.host import CommandResult
from gpuwise.machine.doctor.report import diagnose
from studies.scripted_machine import ScriptedMachine, broken_framework, scripted_machine, torch

from .asserting import Scenario, assert_cause, assert_healthy

CU130 = "sm_75 sm_80 sm_86 sm_90 sm_100 sm_120"
FINE = torch("2.13.0+cu130", "13.0", CU130, devices=[(8, 9)])
NAMED_SYMBOL = torch(
    "2.4.0+cu121",
    "12.1",
    "sm_50 sm_80 sm_86 sm_90",
    error="Unexpected error from cudaGetDeviceCount(). Error 500: named symbol not found",
)
BUS = "/sys/bus/pci/devices/0000:01:00.0"
PCI_IDS = {
    "/usr/share/misc/pci.ids": "10de  NVIDIA Corporation\n\t2684  AD102 [GeForce RTX 4090]\n\t2b85  GB202 [GeForce RTX 5090]\n"
}
WSL_KERNEL = {"/proc/version": "Linux version 5.15.167.4-microsoft-standard-WSL2 (root@x)"}
NOT_ON_WSL = ("/sys/bus/pci", "/dev/nvidia", "/proc/driver", "/sys/module", "/proc/modules", "/usr/lib/x86_64", "/lib/modules")
OPEN = {"/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release\n"}
IMEX_DEVICES = {"/proc/devices": "Character devices:\n195 nvidia\n237 nvidia-caps-imex-channels\n510 nvidia-uvm\n"}
BLACKWELL = {"compute_capability": (10, 0)}


def fails(error: str, **more: object) -> ScriptedMachine:
    """A machine on which PyTorch sees no GPU, for this reason."""
    return scripted_machine(answers=[torch("2.13.0+cu130", "13.0", CU130, error=error)], **more)  # type: ignore[arg-type]


def logged(*lines: str) -> dict[str, CommandResult]:
    return {"dmesg": CommandResult(0, "\n".join(["[ 0.0] Linux", *lines]))}


def not_loaded(driver: str | None = None, **changes: object) -> ScriptedMachine:
    """A driver on disk whose module is not in the kernel; ``driver`` has the card instead."""
    refused = NoDriverError("the driver is not loaded", vendor="nvidia", code=9)
    gone = {"/proc/modules": "ext4 1 1 - Live\n", "/sys/module/nvidia/version": None, "/proc/driver/nvidia/version": None}
    gone |= {"/dev/nvidia0": None, "/dev/nvidiactl": None, "/dev/nvidia-uvm": None}
    links = {f"{BUS}/driver": f"../drivers/{driver}" if driver else None}
    return scripted_machine(failed=refused).but(files={**PCI_IDS, **gone}, links=links).but(**changes)  # type: ignore[arg-type]


def not_listed(device: str, *log: str) -> ScriptedMachine:
    """A driver that is loaded and lists no card."""
    refused = NoDriverError("no devices were found", vendor="nvidia", code=6)
    files = {**PCI_IDS, **OPEN, f"{BUS}/device": f"{device}\n", "/dev/nvidia0": None}
    machine = scripted_machine(failed=refused).but(files=files, links={f"{BUS}/driver": None}, commands=logged(*log))
    return machine


def rack(**changes: object) -> ScriptedMachine:
    """A board of a rack with four GPUs."""
    cards = [NullCard("GB200", identity=BLACKWELL) for _ in range(4)]
    answers = [torch("2.13.0+cu130", "13.0", CU130, devices=[(10, 0)] * 4)]
    return scripted_machine(cards=cards, answers=answers).but(files=IMEX_DEVICES, **changes)  # type: ignore[arg-type]


FAULTY: dict[str, Scenario] = {
    # beclab/Olares, pull request 3963
    "the kernel's Rust driver has the card": (
        lambda: not_loaded("NovaCore"),
        "nova-loaded",
        ("blacklist nova_core", "blacklist-nova.conf", "update-initramfs -u", "sudo reboot"),
    ),
    # canonical/nvidia-prime, issue 20
    "prime-select left its blacklist": (
        lambda: not_loaded(files={"/lib/modprobe.d/blacklist-nvidia.conf": "# by prime\nblacklist nvidia\nalias nvidia off\n"}),
        "driver-kept-out",
        ("/lib/modprobe.d/blacklist-nvidia.conf", "update-initramfs", "prime-select nvidia"),
    ),
    "the kernel's command line keeps the module out": (
        lambda: not_loaded(files={"/proc/cmdline": "BOOT_IMAGE=/vmlinuz ro modprobe.blacklist=nouveau,nvidia quiet\n"}),
        "driver-kept-out",
        ("/etc/default/grub", "update-grub"),
    ),
    # M-Bab/linux-kernel-amdgpu-binaries, issue 101
    "a module of another kernel in this one's folder": (
        lambda: not_loaded(commands=logged("[ 5.0] nvidia: version magic '6.8.0-45-generic' should be '6.8.0-47-generic'")),
        "module-missing-for-kernel",
        ("dkms autoinstall", "modprobe nvidia"),
    ),
    # NVIDIA/open-gpu-kernel-modules, issue 639
    "the firmware of the card's own processor is not on disk": (
        lambda: not_listed(
            "0x2684",
            "[ 5.0] nvidia 0000:01:00.0: Direct firmware load for nvidia/580.95.05/gsp_ga10x.bin failed with error -2",
            "[ 5.1] NVRM: GPU 0000:01:00.0: RmInitAdapter failed! (0x61:0x56:1672)",
        ),
        "gsp-firmware-missing",
        ("--reinstall 'nvidia-firmware-*'", "update-initramfs"),
    ),
    # NVIDIA/open-gpu-kernel-modules, issue 1104
    "a GPU left in a bad state by the last start": (
        lambda: not_listed(
            "0x2b85",
            "[ 84.8] NVRM: _kgspBootGspRm: unexpected WPR2 already up, cannot proceed with booting GSP",
            "[ 85.0] NVRM: GPU 0000:01:00.0: RmInitAdapter failed! (0x62:0x40:1941)",
        ),
        "gpu-init-failed",
        ("sudo poweroff",),
    ),
    # NVIDIA/open-gpu-kernel-modules, issue 901
    "the open modules and the kernel's memory management": (
        lambda: fails("CUDA driver initialization failed, you might not have a CUDA gpu.").but(files=OPEN),
        "uvm-hmm",
        ("uvm_disable_hmm=1", "rmmod nvidia_uvm"),
    ),
    # NVIDIA/nvidia-docker, issue 1085
    "a container without /dev/nvidia-uvm": (
        lambda: fails("CUDA unknown error").but(files={"/.dockerenv": "", "/dev/nvidia-uvm": None}),
        "container-no-uvm",
        ("--gpus all", "--device /dev/nvidia-uvm"),
    ),
    # NVIDIA/nvidia-container-toolkit, issue 520
    "driver 566 of Windows and an older toolkit": (
        lambda: (
            scripted_machine(answers=[NAMED_SYMBOL], driver="566.36", cuda=(12, 7))
            .without(*NOT_ON_WSL)
            .but(files={**WSL_KERNEL, "/dev/dxg": "", "/.dockerenv": "", "/usr/lib/x86_64-linux-gnu/libcuda.so.1.1": ""})
        ),
        "container-toolkit-outdated",
        ("Docker.DockerDesktop", "--only-upgrade nvidia-container-toolkit"),
    ),
    # NVIDIA/nccl, issue 1925, and the guide of IMEX
    "a board of a rack without an IMEX channel": (
        rack,
        "imex-channel-missing",
        ("mknod -m 666 /dev/nvidia-caps-imex-channels/channel0 c 237 0", "enable --now nvidia-imex"),
    ),
    # NVIDIA/nvtrust, issue 56
    "a confidential GPU that nobody declared ready": (
        lambda: fails("Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized", cards=("H100 PCIe",)),
        "confidential-gpu-not-ready",
        ("conf-compute -srs 1",),
    ),
    # SchedMD's Slurm sets this where a job asked for none (its guide of generic resources)
    "a job of Slurm's without a GPU": (
        lambda: fails("No CUDA GPUs are available").but(environment={"CUDA_VISIBLE_DEVICES": "NoDevFiles"}),
        "cuda-visible-devices-empty",
        ("srun --gres=gpu:1",),
    ),
    # nicolasprevot/GpuShareSat, issue 6
    "a shell with a limit of address space": (
        lambda: fails("CUDA error: out of memory").but(limits={"address_space": 46_000_000 << 10}),
        "address-space-limited",
        ("ulimit -v unlimited",),
    ),
    # ollama/ollama, issue 12136
    "a fabric manager of another version": (
        lambda: fails("Error 802: system not yet initialized", cards=["H100 SXM"] * 8).but(
            files={"/var/lib/dpkg/info/nvidia-fabricmanager-575.list": ""}
        ),
        "fabric-manager-down",
        ("nvidia-fabricmanager-580",),
    ),
    # pytorch/pytorch, issue 126551
    "a wheel of today on a system of 2018": (
        lambda: scripted_machine(
            answers=[
                broken_framework(
                    "torch",
                    "2.8.0",
                    CommandResult(
                        1,
                        '{"stage": "import"}\n{"failed": "ImportError: /lib64/libc.so.6: version `GLIBC_2.28\' not found '
                        '(required by libtorch_python.so)"}\n',
                    ),
                )
            ]
        ),
        "torch-needs-newer-system",
        ("docker run --rm --gpus all", "torch==2.5.1"),
    ),
}

HEALTHY = {
    "a distribution that keeps nouveau away": lambda: scripted_machine(answers=[FINE]).but(
        files={"/usr/lib/modprobe.d/nvidia-graphics-drivers.conf": "blacklist nouveau\nalias nouveau off\nblacklist nvidiafb\n"}
    ),
    "a module loaded by hand in spite of a blacklist": lambda: scripted_machine(answers=[FINE]).but(
        files={"/etc/modprobe.d/blacklist.conf": "blacklist nvidia\n"}
    ),
    "a board of a rack with its channel": lambda: rack().but(files={"/dev/nvidia-caps-imex-channels/channel0": ""}),
    "a board of a rack that is told to do without": lambda: rack(environment={"NCCL_MNNVL_ENABLE": "0"}),
    "channels that an H100 does not want": lambda: scripted_machine(cards=("H100 SXM",), answers=[FINE]).but(files=IMEX_DEVICES),
    # as an H100 of 80 GB started under 40 GiB
    "a limit of address space under which CUDA starts": lambda: scripted_machine(cards=("H100 SXM",), answers=[FINE]).but(
        limits={"address_space": 40 << 30}
    ),
    "address space for many times the card": lambda: scripted_machine(answers=[FINE]).but(limits={"address_space": 1 << 40}),
    "the open modules and a CUDA that starts": lambda: scripted_machine(answers=[FINE]).but(files=OPEN),
}


@pytest.mark.parametrize("name", FAULTY)
def test_the_cause_is_named_first_with_what_mends_it(name: str) -> None:
    assert_cause(FAULTY[name])


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_machine_is_not_flagged(name: str) -> None:
    assert_healthy(HEALTHY[name])


def test_a_module_whose_use_of_hmm_is_off_already_is_not_told_to_switch_it_off() -> None:
    off = {**OPEN, "/sys/module/nvidia_uvm/parameters/uvm_disable_hmm": "Y\n"}
    found = diagnose(fails("CUDA driver initialization failed").but(files=off).look())
    assert [f.id for f in found.faults] == ["torch-sees-no-gpu"]
