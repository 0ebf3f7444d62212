"""Machines whose driver, modules or device nodes are at fault; and their healthy counterparts."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gpuwise.errors import DeviceError, NoDriverError
from gpuwise.machine.devices.null import NullCard
from gpuwise.machine.doctor.host import CommandResult
from gpuwise.machine.doctor.report import diagnose
from studies.scripted_machine import KERNEL, ScriptedMachine, scripted_machine, torch

from .asserting import assert_cause, assert_healthy

CU130 = "sm_75 sm_80 sm_86 sm_90 sm_100 sm_120"
BUS = "/sys/bus/pci/devices/0000:01:00.0"
PCI_IDS = (
    "8086  Intel\n\t1234  iGPU\n10de  NVIDIA Corporation\n\t2684  AD102 [GeForce RTX 4090]\n"
    "\t1b06  GP102 [GeForce GTX 1080 Ti]\n\t2b85  GB202 [GeForce RTX 5090]\n"
)
IDS = {"/usr/share/misc/pci.ids": PCI_IDS}
SECURE_BOOT = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
NO_UVM = {"/dev/nvidia-uvm": None, "/proc/modules": "nvidia 104071168 40 - Live\n"}
FEDORA = 'ID=fedora\nVERSION_ID=42\nPRETTY_NAME="Fedora Linux 42"\n'


def bare(**changes: object) -> ScriptedMachine:
    """A card on the bus and no driver at all."""
    return scripted_machine(driver=None).but(files=IDS, **changes)


def unloaded() -> ScriptedMachine:
    """A driver on disk whose module is not in the kernel."""
    refused = NoDriverError("the driver is not loaded", vendor="nvidia", code=9)
    without = {"/proc/modules": "ext4 1 1 - Live\n", "/sys/module/nvidia/version": None, "/proc/driver/nvidia/version": None}
    without |= {"/dev/nvidia0": None, "/dev/nvidiactl": None, "/dev/nvidia-uvm": None}
    return scripted_machine(failed=refused).but(files={**IDS, **without}, links={f"{BUS}/driver": None})


def dmesg(*lines: str) -> dict[str, CommandResult]:
    return {"dmesg": CommandResult(0, "\n".join(["[ 0.0] Linux", *lines]))}


def unserved(device: str, *log: str, driver: str = "580.95.05", open_modules: bool = True) -> ScriptedMachine:
    """A loaded driver that lists no card."""
    kind = "Open Kernel Module for x86_64" if open_modules else "x86_64 Kernel Module"
    version = {"/proc/driver/nvidia/version": f"NVRM version: NVIDIA UNIX {kind}  {driver}  Release\n"}
    refused = NoDriverError("no devices were found", vendor="nvidia", code=6)
    machine = scripted_machine(driver=driver, failed=refused).but(
        files={**IDS, **version, f"{BUS}/device": f"{device}\n", "/dev/nvidia0": None},
        links={f"{BUS}/driver": None},
        commands=dmesg("[ 2.0] nvidia: loading", *log),
    )
    return machine


FAULTY: dict[str, tuple[Callable[[], ScriptedMachine], str, tuple[str, ...]]] = {
    "a driver's library, nothing loaded and no card on the bus": (
        lambda: scripted_machine(cards=(), driver=None, failed=NoDriverError("driver not loaded", vendor="nvidia", code=9)),
        "driver-without-card",
        ("lspci -d 10de:", "sudo modprobe nvidia"),
    ),
    "no driver": (bare, "driver-not-installed", ("nvidia-driver-580-open", "sudo reboot")),
    "no driver, a card before Turing": (
        lambda: bare().but(files={f"{BUS}/device": "0x1b06\n"}),
        "driver-not-installed",
        ("apt-get install -y nvidia-driver-580\n",),
    ),
    "no driver on Fedora": (
        lambda: bare().but(files={"/etc/os-release": FEDORA}),
        "driver-not-installed",
        ("dnf install -y akmod-nvidia", "akmods --force"),
    ),
    "no driver on Rocky": (
        lambda: bare().but(files={"/etc/os-release": 'ID="rocky"\nID_LIKE="rhel centos fedora"\nVERSION_ID="9.4"\n'}),
        "driver-not-installed",
        ("repos/rhel9/x86_64/cuda-rhel9.repo", "nvidia-driver:580-open"),
    ),
    "no driver on Arch": (
        lambda: bare().but(files={"/etc/os-release": "ID=arch\n"}),
        "driver-not-installed",
        ("pacman -Syu --needed nvidia-open-dkms",),
    ),
    "no driver on openSUSE": (
        lambda: bare().but(files={"/etc/os-release": 'ID="opensuse-leap"\nID_LIKE="suse opensuse"\n'}),
        "driver-not-installed",
        ("zypper install -y nvidia-open",),
    ),
    "no driver on Debian, arm64": (
        lambda: bare(facts={"machine": "aarch64"}).but(files={"/etc/os-release": 'ID=debian\nVERSION_ID="12"\n'}),
        "driver-not-installed",
        ("repos/debian12/sbsa/cuda-keyring_1.1-1_all.deb", "nvidia-driver-pinning-580 nvidia-open"),
    ),
    "nouveau has the card": (
        lambda: bare().but(links={f"{BUS}/driver": "../drivers/nouveau"}, files={"/proc/modules": "nouveau 1 1 - Live\n"}),
        "nouveau-loaded",
        ("blacklist nouveau", "update-initramfs -u", "nvidia-driver-580-open", "sudo reboot"),
    ),
    "nouveau came back": (
        lambda: unloaded().but(links={f"{BUS}/driver": "../drivers/nouveau"}),
        "nouveau-loaded",
        ("blacklist nouveau", "sudo reboot"),
    ),
    "a kernel update without headers": (
        lambda: unloaded().but(facts={"kernel": "6.8.0-48-generic"}),
        "module-missing-for-kernel",
        ("linux-headers-$(uname -r)", "dkms autoinstall", "modprobe nvidia"),
    ),
    "secure boot rejects the module": (
        lambda: unloaded().but(
            files={SECURE_BOOT: "\x06\x00\x00\x00\x01"},
            commands=dmesg("[ 3.1] Loading of module with unavailable key is rejected"),
        ),
        "secure-boot-unsigned-module",
        ("mokutil --import /var/lib/shim-signed/mok/MOK.der",),
    ),
    "secure boot, the log may not be read": (
        lambda: unloaded().but(
            files={SECURE_BOOT: "\x06\x00\x00\x00\x01"}, commands={"dmesg": CommandResult(1, "", "Operation not permitted")}
        ),
        "secure-boot-unsigned-module",
        ("mokutil --import",),
    ),
    "not loaded for no known reason": (unloaded, "driver-not-loaded", ("modprobe nvidia",)),
    "Blackwell with NVIDIA's own modules": (
        lambda: unserved(
            "0x2b85", "[ 3.0] NVRM: installed in this system requires use of the NVIDIA open kernel modules.", open_modules=False
        ),
        "open-modules-needed",
        ("nvidia-driver-580-open",),
    ),
    "Pascal with the open modules": (
        lambda: unserved("0x1b06"),
        "closed-modules-needed",
        ("apt-get install -y nvidia-driver-580\n",),
    ),
    "Pascal with branch 595": (
        lambda: unserved("0x1b06", driver="595.45.04", open_modules=False),
        "driver-lacks-card",
        ("nvidia-driver-580\n",),
    ),
    "Blackwell with branch 550": (
        lambda: unserved("0x2b85", driver="550.54.14"),
        "driver-lacks-card",
        ("nvidia-driver-580-open",),
    ),
    "set aside for virtual machines": (
        lambda: bare().but(links={f"{BUS}/driver": "../drivers/vfio-pci"}),
        "card-reserved-for-vms",
        ("vfio-pci/unbind",),
    ),
    "device nodes for others only": (
        lambda: scripted_machine(answers=[torch("2.13.0+cu130", "13.0", CU130, error="No CUDA GPUs are available")]).but(
            unusable={"/dev/nvidia0": "permission", "/dev/nvidiactl": "permission"}
        ),
        "device-permission",
        ("usermod -aG video,render",),
    ),
    "nvidia_uvm is missing": (
        lambda: scripted_machine(answers=[torch("2.13.0+cu130", "13.0", CU130, error="CUDA unknown error")]).but(files=NO_UVM),
        "uvm-missing",
        ("modprobe nvidia_uvm", "nvidia-modprobe -u -c=0"),
    ),
    "the fabric manager is down": (
        lambda: scripted_machine(
            cards=["H100 SXM"] * 8, answers=[torch("2.13.0+cu130", "13.0", CU130, error="Error 802: system not yet initialized")]
        ),
        "fabric-manager-down",
        ("nvidia-fabricmanager-580", "systemctl enable --now nvidia-fabricmanager"),
    ),
    "libcuda for forward compatibility on a GeForce": (
        lambda: scripted_machine(
            driver="535.183.01",
            cuda=(12, 2),
            answers=[
                torch("2.13.0+cu130", "13.0", CU130, error="Error 804: forward compatibility was attempted on non supported HW")
            ],
        ).but(
            environment={"LD_LIBRARY_PATH": "/opt/x:/usr/local/cuda/compat"}, files={"/usr/local/cuda/compat/libcuda.so.1": ""}
        ),
        "forward-compat-unsupported",
        ("rm -rf /usr/local/cuda/compat", "export LD_LIBRARY_PATH=/opt/x", "whl/cu126"),
    ),
    "a stub libcuda": (
        lambda: scripted_machine(answers=[torch("2.13.0+cu130", "13.0", CU130, error="CUDA driver is a stub library")]).but(
            environment={"LD_LIBRARY_PATH": "/usr/local/cuda/lib64/stubs"}, files={"/usr/local/cuda/lib64/stubs/libcuda.so": ""}
        ),
        "libcuda-stub",
        ("unset LD_LIBRARY_PATH",),
    ),
    "the library refuses for a reason of its own": (
        lambda: scripted_machine(failed=DeviceError("insufficient power", vendor="nvidia", code=8)),
        "driver-unanswered",
        ("dmesg",),
    ),
}


@pytest.mark.parametrize("name", FAULTY)
def test_the_cause_is_named_first_with_what_mends_it(name: str) -> None:
    assert_cause(FAULTY[name])


HEALTHY: dict[str, Callable[[], ScriptedMachine]] = {
    "nvidia_uvm is not loaded before the first CUDA program": lambda: scripted_machine().but(files=NO_UVM),
    "modules of other kernels on disk, too": lambda: scripted_machine().but(
        files={"/lib/modules/6.5.0-1/updates/dkms/nvidia.ko": ""}
    ),
    "secure boot with a signed module": lambda: scripted_machine().but(files={SECURE_BOOT: "\x06\x00\x00\x00\x01"}),
    "the log may not be read": lambda: scripted_machine().but(
        commands={"dmesg": CommandResult(1, "", "dmesg: read kernel buffer failed")}
    ),
    "a laptop with Intel graphics beside the card": lambda: scripted_machine().but(
        files={"/sys/bus/pci/devices/0000:00:02.0/class": "0x030000\n", "/sys/bus/pci/devices/0000:00:02.0/vendor": "0x8086\n"}
    ),
    "one card of two for virtual machines": lambda: scripted_machine().but(
        files={
            "/sys/bus/pci/devices/0000:41:00.0/class": "0x030000\n",
            "/sys/bus/pci/devices/0000:41:00.0/vendor": "0x10de\n",
        },
        links={"/sys/bus/pci/devices/0000:41:00.0/driver": "../drivers/vfio-pci"},
    ),
    "Pascal with NVIDIA's own modules": lambda: scripted_machine(cards=(NullCard("GTX 1080 Ti"),)).but(
        files={"/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Release\n"}
    ),
    "no GPU at all": lambda: scripted_machine(cards=(), driver=None),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_machine_is_not_flagged(name: str) -> None:
    assert_healthy(HEALTHY[name])


def test_the_version_of_a_module_is_read_from_either_wording() -> None:
    for said in (
        "NVIDIA UNIX x86_64 Kernel Module  550.54.14  Thu",
        "NVIDIA UNIX Open Kernel Module for x86_64  550.54.14  Release",
    ):
        machine = scripted_machine(driver="550.54.14").but(
            files={"/sys/module/nvidia/version": None, "/proc/driver/nvidia/version": f"NVRM version: {said}\n"}
        )
        modules = machine.look().modules
        assert modules.version == "550.54.14" and modules.open is said.startswith("NVIDIA UNIX Open")
        assert modules.built_for == (KERNEL,)


def test_no_gpu_is_a_fault_only_when_one_is_asked_for() -> None:
    machine = scripted_machine(cards=(), driver=None)
    assert [f.id for f in diagnose(machine.look()).notes] == ["no-gpu"]
    asked = diagnose(machine.look(wanted_gpus=1))
    assert ([f.id for f in asked.faults], asked.exit_code) == (["gpus-missing"], 2)
    assert [f.id for f in diagnose(scripted_machine(cards=["H100 SXM"] * 7).look(wanted_gpus=8)).faults] == ["gpus-missing"]
    assert diagnose(scripted_machine(cards=["H100 SXM"] * 8).look(wanted_gpus=8)).exit_code == 0
