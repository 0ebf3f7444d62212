"""Broken machines as they were found where doctors said that all was well, or named the wrong thing; and healthy odd ones.

Each is written down with what is true of it: the first finding, and words of the commands that mend it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from gpuwise.errors import DeviceError, DevicePermissionError, DriverMismatchError, NoDriverError
from gpuwise.machine.devices.find import DeviceSearch
from gpuwise.machine.devices.null import NullCard
from gpuwise.machine.devices.readings import Driver
from gpuwise.machine.doctor.host import CommandResult
from gpuwise.machine.doctor.probes.frameworks import question
from gpuwise.machine.doctor.report import diagnose
from studies.scripted_machine import (
    KERNEL,
    PYTHON,
    SITE,
    Answer,
    ScriptedDevices,
    ScriptedMachine,
    answer,
    scripted_machine,
    torch,
)

from .asserting import Scenario, assert_healthy

CU130 = "sm_75 sm_80 sm_86 sm_90 sm_100 sm_120"
CU126 = "sm_50 sm_60 sm_70 sm_75 sm_80 sm_86 sm_90"
BUS = "/sys/bus/pci/devices/"
LIBRARIES = "/usr/lib/x86_64-linux-gnu"
PCI_IDS = {
    "/usr/share/misc/pci.ids": "10de  NVIDIA Corporation\n\t2684  AD102 [GeForce RTX 4090]\n\t2330  GH100 [H100 SXM5 80GB]\n"
    "\t2504  GA106 [GeForce RTX 3060]\n1002  AMD\n\t73df  Navi 22 [Radeon RX 6700 XT]\n"
}
FINE = torch("2.13.0+cu130", "13.0", CU130, devices=[(8, 9)])
SEES_NONE = torch("2.13.0+cu130", "13.0", CU130, error="No CUDA GPUs are available")
ON_H100 = torch("2.13.0+cu130", "13.0", CU130, devices=[(9, 0)])
NO_DRIVER = torch("2.13.0+cu130", "13.0", CU130, error="Found no NVIDIA driver on your system")
NMS = "RuntimeError: operator torchvision::nms does not exist"


def imports(machine: ScriptedMachine, **errors: str | None) -> ScriptedMachine:
    """What importing libraries after torch gives: the error of each, None where it works."""
    lines = [json.dumps({"stage": "import"})]
    for name, error in errors.items():
        lines += [json.dumps({"library": name}), json.dumps({"imported": name, "error": error})]
    key = f"{PYTHON} -c {question()} libraries *"
    # before the answer to any other question
    host = replace(machine.host, commands={key: CommandResult(0, "\n".join(lines)), **machine.host.commands})
    return replace(machine, host=host)


def with_packages(answers: list, requires: str = "", **versions: str) -> ScriptedMachine:
    metadata = f"Requires-Dist: {requires}\n\n" if requires else ""
    files = {f"{SITE}/{n}-{v}.dist-info/METADATA": metadata for n, v in versions.items()}
    return scripted_machine(answers=answers).but(files=files)


def on_the_bus(n: int, listed: int, *log: str, card: str = "H100 SXM", device: str = "0x2330") -> ScriptedMachine:
    """``n`` cards on the bus, of which the driver lists the first ``listed``."""
    machine = scripted_machine(cards=(card,) * listed if listed else (), driver="580.95.05")
    files: dict[str, str] = dict(PCI_IDS)
    links: dict[str, str] = {}
    for i in range(n):
        place = f"{BUS}0000:{i + 1:02x}:00.0"
        files |= {f"{place}/class": "0x030200\n", f"{place}/vendor": "0x10de\n", f"{place}/device": f"{device}\n"}
        links[f"{place}/driver"] = "../../../bus/pci/drivers/nvidia"
    if not listed:
        files |= {"/proc/modules": "nvidia_uvm 1 1 - Live\nnvidia 1 1 - Live\n", "/sys/module/nvidia/version": "580.95.05\n"}
        files |= {f"{LIBRARIES}/libnvidia-ml.so.580.95.05": "", "/dev/nvidiactl": ""}
        files |= {"/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release\n"}
        machine = ScriptedMachine(
            machine.host,
            DeviceSearch((ScriptedDevices((), Driver("nvidia", "580.95.05", "580.95.05", (13, 0))),), {}),
            machine.options,
        )
    logged = {"dmesg": CommandResult(0, "\n".join(["[ 0.0] Linux", "[ 1.0] nvidia: loading", *log]))}
    return machine.but(files=files, links=links, commands=logged)


def monolithic(machine: ScriptedMachine) -> ScriptedMachine:
    """A kernel with its drivers built in and no loadable modules."""
    built_in = {f"/sys/module/{n}/parameters/x": "" for n in ("nvidia", "nvidia_uvm", "nvidia_modeset", "nvidia_drm")}
    return machine.but(files={"/proc/modules": None, f"/lib/modules/{KERNEL}/updates/dkms/nvidia.ko.zst": None, **built_in})


def handed_in(answer: Answer = NO_DRIVER) -> ScriptedMachine:
    """A virtual machine whose driver is a folder, /usr/local/nvidia, and whose kernel shows nothing of it."""
    machine = scripted_machine(cards=("H100 SXM",), answers=[answer])
    machine = machine.without(LIBRARIES, "/proc/driver/nvidia", "/sys/module/nvidia", "/lib/modules", "/sys/bus/pci")
    return machine.but(files={f"/usr/local/nvidia/lib64/lib{n}.so.580.95.05": "" for n in ("cuda", "nvidia-ml")}, paths={})


def library_gone(*names: str, failed: DeviceError | None = None, answers: tuple = (NO_DRIVER,)) -> ScriptedMachine:
    """A driver that runs, without some of its libraries, on which NVML does not load."""
    machine = scripted_machine(
        cards=("RTX 4090",), failed=failed or NoDriverError("x", vendor="nvidia", code=None), answers=answers
    )
    gone = {f"{LIBRARIES}/{n}.so.580.95.05": None for n in names}
    machine = machine.but(files=gone)
    if failed is None:
        # a library that does not load is no vendor and no refusal
        machine = ScriptedMachine(machine.host, DeviceSearch((), {}), machine.options)
    return machine


def elf(kind: int) -> str:
    """The head of a library for processors of this kind (elf.h, e_machine)."""
    return ("\x7fELF\x02\x01\x01" + "\0" * 9 + "\x03\x00" + chr(kind) + "\x00").ljust(64, "\0")


def shadowed(folder: str, content: str = "", failed: DeviceError | None = None) -> ScriptedMachine:
    machine = library_gone(failed=failed).but(environment={"LD_LIBRARY_PATH": f"/opt/own:{folder}"})
    return machine.but(files={f"{folder}/libnvidia-ml.so.1": content})


def refused(answers: tuple = (SEES_NONE,), **changes: object) -> ScriptedMachine:
    failed = DevicePermissionError("the NVIDIA driver refuses this process: no permission", vendor="nvidia", code=4)
    return scripted_machine(failed=failed, answers=answers).but(**changes)


def amd_card(answers: list, name: str = "RX 7900 XTX", architecture: str = "gfx1100", **changes: object) -> ScriptedMachine:
    card = NullCard(name, identity={"compute_capability": None, "architecture": architecture})
    return scripted_machine(cards=(card,), vendor="amd", driver="6.12", cuda=None, answers=answers).but(**changes)


def rocm(devices: list | None, architectures: str = "gfx90a gfx942 gfx1030 gfx1100", **more: object):
    return torch("2.9.1+rocm6.4", None, architectures, hip="6.4.43482", devices=devices, **more)  # type: ignore[arg-type]


def intel_card(answers: list) -> ScriptedMachine:
    card = NullCard("Arc B580", identity={"compute_capability": None, "unified_memory": False})
    return scripted_machine(cards=(card,), vendor="intel", driver="xe of Linux 6.12", cuda=None, answers=answers)


def jetson(answers: list) -> ScriptedMachine:
    machine = scripted_machine(cards=(), driver=None, answers=answers)
    model = {"/proc/device-tree/model": "NVIDIA Jetson AGX Orin Developer Kit\0", "/etc/nv_tegra_release": "# R36 (release)\n"}
    return machine.but(files=model, facts={"machine": "aarch64"})


EIGHT_HIDDEN = {f"/dev/nvidia{i}": "refused" for i in range(8)} | {"/dev/nvidiactl": "refused"}

FAULTY: dict[str, Scenario] = {
    # --- what is installed beside PyTorch
    "torchvision of another build, the same release": (
        lambda: imports(with_packages([FINE], "torch (==2.13.0)", torchvision="0.28.0"), torchvision=NMS),
        "torchvision-mismatch",
        ("pip uninstall -y torchvision", "torch==2.13.0+cu130 torchvision --index-url https://download.pytorch.org/whl/cu130"),
    ),
    "torchvision of PyPI beside torch for the CPU": (
        lambda: imports(
            scripted_machine(cards=(), driver=None, answers=[torch("2.13.0+cpu", None)], packages={"torchvision": "0.28.0"}),
            torchvision=NMS,
        ),
        "torchvision-mismatch",
        ("torch==2.13.0+cpu torchvision --index-url https://download.pytorch.org/whl/cpu",),
    ),
    "torchaudio of another build": (
        lambda: imports(
            with_packages([FINE], torchaudio="2.11.0"),
            torchaudio="OSError: /site-packages/torchaudio/lib/libtorchaudio.so: undefined symbol: _ZNK3c105Error4whatEv",
        ),
        "torchaudio-mismatch",
        ("pip uninstall -y torchaudio", "torchaudio --index-url"),
    ),
    "torchvision of another CUDA": (
        lambda: imports(
            with_packages([FINE], torchvision="0.28.0+cu126"),
            torchvision="RuntimeError: Detected that PyTorch and torchvision were compiled with different CUDA major versions.",
        ),
        "torchvision-mismatch",
        ("torchvision --index-url https://download.pytorch.org/whl/cu130",),
    ),
    "torchvision ends the interpreter": (
        lambda: imports(with_packages([FINE], torchvision="0.23.0"), torchvision="ended by SIGSEGV: Segmentation fault"),
        "torchvision-import-fails",
        ("pip uninstall -y torchvision",),
    ),
    "flash-attn of another torch": (
        lambda: imports(
            with_packages([FINE], flash_attn="2.8.3"),
            flash_attn="ImportError: flash_attn_2_cuda.so: undefined symbol: _ZN3c105ErrorC2ENS_14SourceLocationESs",
        ),
        "flash-attn-import-fails",
        ("pip install --no-build-isolation --no-cache-dir flash-attn",),
    ),
    "transformers misses a package": (
        lambda: imports(
            with_packages([FINE], transformers="5.1.0"), transformers="ModuleNotFoundError: No module named 'tokenizers'"
        ),
        "transformers-import-fails",
        ("pip install tokenizers",),
    ),
    "NumPy 2 beside a torch built for NumPy 1": (
        lambda: _with_numpy_error(with_packages([torch("2.2.2+cu121", "12.1", CU126, devices=[(8, 9)])], numpy="2.3.1")),
        "numpy-mismatch",
        ("pip install 'numpy<2'",),
    ),
    # --- cards that the driver does not list
    "eight cards on the bus, two in NVML": (lambda: on_the_bus(8, 2), "gpu-not-in-driver", ("dmesg", "sudo poweroff")),
    "one of eight failed to start": (
        lambda: on_the_bus(8, 7, "[ 5.0] NVRM: GPU 0000:08:00.0: RmInitAdapter failed! (0x26:0xffff:1482)"),
        "gpu-init-failed",
        ("sudo poweroff",),
    ),
    "a second card without its power cable": (
        lambda: on_the_bus(
            2,
            1,
            "[ 5.0] NVRM: GPU 0000:02:00.0: GPU does not have the necessary power cables connected.",
            card="RTX 4090",
            device="0x2684",
        ),
        "gpu-power-cable",
        (),
    ),
    "the firmware gave a card no addresses": (
        lambda: on_the_bus(
            4, 3, "[ 2.0] NVRM: This PCI I/O region assigned to your NVIDIA device is invalid: NVRM: BAR1 is 0M @ 0x0"
        ),
        "gpu-no-address-space",
        ("pci=realloc", "sudo reboot"),
    ),
    "a kernel without modules, and a card that the driver does not start": (
        lambda: monolithic(on_the_bus(1, 0, "[ 5.0] NVRM: GPU 0000:01:00.0: RmInitAdapter failed! (0x22:0x56:762)")),
        "gpu-init-failed",
        ("sudo poweroff",),
    ),
    "MIG on, no instance, as NVML tells it": (
        lambda: scripted_machine(cards=(NullCard("H100 SXM", identity={"mig": True}),), answers=[SEES_NONE]),
        "mig-no-instances",
        ("nvidia-smi -i 0 -mig 0", "mig -i 0 -cgi 0 -C"),
    ),
    "a driver installed, nothing loaded, no card on the bus": (
        lambda: scripted_machine(cards=(), driver=None, failed=NoDriverError("not loaded", vendor="nvidia", code=9)).but(
            files={f"{LIBRARIES}/libnvidia-ml.so.580.95.05": "", f"/lib/modules/{KERNEL}/updates/dkms/nvidia.ko.zst": ""}
        ),
        "driver-without-card",
        ("lspci -d 10de:", "pci/rescan", "prime-select nvidia"),
    ),
    # --- the driver's libraries
    "libnvidia-ml is not installed": (
        lambda: library_gone("libnvidia-ml", "libcuda"),
        "nvml-missing",
        ("apt-get install -y libnvidia-compute-580 nvidia-utils-580",),
    ),
    "libnvidia-ml where the loader does not look": (
        lambda: library_gone("libnvidia-ml", "libcuda").but(files={"/usr/lib/nvidia/libnvidia-ml.so.580.95.05": ""}),
        "nvml-not-found-by-loader",
        ("/etc/ld.so.conf.d/nvidia.conf", "sudo ldconfig"),
    ),
    "a stub of libnvidia-ml on LD_LIBRARY_PATH": (
        lambda: shadowed("/usr/local/cuda/lib64/stubs"),
        "nvml-shadowed",
        ("export LD_LIBRARY_PATH=/opt/own\n",),
    ),
    "a libnvidia-ml for 32 bits on LD_LIBRARY_PATH": (
        lambda: shadowed("/opt/game/lib32", elf(3)),
        "nvml-shadowed",
        ("export LD_LIBRARY_PATH=/opt/own\n",),
    ),
    "a libnvidia-ml for ARM copied into an image": (
        lambda: shadowed("/opt/nvidia/lib", elf(183)).but(files={"/.dockerenv": ""}),
        "nvml-shadowed",
        ("export LD_LIBRARY_PATH=/opt/own\n",),
    ),
    "the library of an older driver on LD_LIBRARY_PATH": (
        lambda: shadowed("/opt/driver-535/lib", failed=DriverMismatchError("versions differ", vendor="nvidia", code=18)),
        "nvml-shadowed",
        ("export LD_LIBRARY_PATH=/opt/own\n",),
    ),
    "only the 32-bit library is installed": (
        lambda: library_gone("libnvidia-ml", "libcuda").but(files={"/usr/lib/libnvidia-ml.so.580.95.05": elf(3)}),
        "nvml-missing",
        ("apt-get install -y libnvidia-compute-580",),
    ),
    "a server's driver without libcuda": (
        lambda: scripted_machine(answers=[NO_DRIVER]).but(files={f"{LIBRARIES}/libcuda.so.580.95.05": None}),
        "libcuda-missing",
        ("apt-get install -y libnvidia-compute-580",),
    ),
    "the driver handed in as a folder that the loader does not know": (
        lambda: handed_in(),
        "libcuda-not-found-by-loader",
        ("export LD_LIBRARY_PATH=/usr/local/nvidia/lib64", "/etc/ld.so.conf.d/nvidia.conf", "sudo ldconfig"),
    ),
    "a container with the devices and none of the libraries": (
        lambda: library_gone("libnvidia-ml", "libcuda").but(files={"/.dockerenv": ""}),
        "nvml-missing",
        ("docker run --rm --gpus all",),
    ),
    # --- drivers too old
    "driver 470 and an RTX 3060": (
        lambda: scripted_machine(
            cards=("RTX 3060",),
            driver="470.256.02",
            cuda=(11, 4),
            answers=[
                torch("2.13.0+cu130", "13.0", CU130, error="The NVIDIA driver on your system is too old (found version 11040)")
            ],
        ),
        "torch-driver-too-old",
        ("torch==2.7.1 --index-url https://download.pytorch.org/whl/cu118",),
    ),
    "driver 470 and an RTX 3060, with torchvision": (
        lambda: scripted_machine(
            cards=("RTX 3060",),
            driver="470.256.02",
            cuda=(11, 4),
            answers=[torch("2.13.0+cu130", "13.0", CU130, error="driver on your system is too old")],
            packages={"torchvision": "0.28.0+cu130"},
        ),
        "torch-driver-too-old",
        ("uninstall -y torch torchvision", "torch==2.7.1 torchvision --index-url https://download.pytorch.org/whl/cu118"),
    ),
    "driver 470 and an H100": (
        lambda: scripted_machine(
            cards=("H100 SXM",),
            driver="470.256.02",
            cuda=(11, 4),
            answers=[torch("2.13.0+cu130", "13.0", CU130, error="driver on your system is too old")],
        ),
        "driver-lacks-card",
        ("nvidia-driver-580-open", "sudo reboot"),
    ),
    "driver 535 and an RTX 5090": (
        lambda: scripted_machine(cards=("RTX 5090",), driver="535.183.01", cuda=(12, 2), answers=[SEES_NONE]),
        "driver-lacks-card",
        ("nvidia-driver-580-open",),
    ),
    "driver 510 and an RTX 4090": (
        lambda: scripted_machine(cards=("RTX 4090",), driver="510.108.03", cuda=(11, 6), answers=[SEES_NONE]),
        "driver-lacks-card",
        ("nvidia-driver-580-open",),
    ),
    # --- who may open the devices
    "nodes of a group the user is not in": (
        lambda: refused(
            unusable={"/dev/nvidia0": "permission", "/dev/nvidiactl": "permission"},
            files={
                "/proc/driver/nvidia/params": "DeviceFileUID: 0\nDeviceFileGID: 1042\nDeviceFileMode: 432\n",
                "/etc/group": "root:x:0:\nvideo:x:44:\ngpuusers:x:1042:eve\n",
            },
        ),
        "device-permission",
        ('usermod -aG gpuusers "$USER"',),
    ),
    "NVML refuses, the nodes are not seen": (lambda: refused(), "device-permission", ("usermod -aG video,render",)),
    "a batch job that asked for no GPU": (
        lambda: refused(unusable={**EIGHT_HIDDEN, "/dev/nvidia-uvm": "refused"}),
        "devices-kept-by-control-group",
        ("--gres=gpu:1",),
    ),
    "an LXC container whose devices are not allowed": (
        lambda: refused(
            files={"/proc/1/cgroup": "0::/\n"}, environment={"container": "lxc"}, unusable={"/dev/nvidiactl": "permission"}
        ),
        "container-device-permission",
        ("lxc.cgroup2.devices.allow: c 195:*",),
    ),
    "a container of another user, without the group": (
        lambda: refused(files={"/.dockerenv": ""}, unusable={"/dev/nvidia0": "permission", "/dev/nvidiactl": "permission"}),
        "container-device-permission",
        ("docker run --rm --gpus all", "--group-add video"),
    ),
    "rootless podman and a label": (
        lambda: refused(files={"/run/.containerenv": ""}, unusable={"/dev/nvidiactl": "permission"}),
        "container-device-permission",
        ("--security-opt=label=disable",),
    ),
    # --- other makers
    "AMD, HIP_VISIBLE_DEVICES is empty": (
        lambda: amd_card(
            [rocm(None, error="No HIP GPUs are available")], environment={"HIP_VISIBLE_DEVICES": "-1"}, files={"/dev/kfd": ""}
        ),
        "hip-visible-devices-empty",
        ("unset HIP_VISIBLE_DEVICES",),
    ),
    "AMD, a container without /dev/kfd": (
        lambda: amd_card([rocm(None, error="No HIP GPUs are available")], files={"/.dockerenv": "", "/dev/dri/renderD128": ""}),
        "amd-no-kfd",
        ("--device=/dev/kfd --device=/dev/dri",),
    ),
    "AMD, a card the wheel holds no code for": (
        lambda: amd_card(
            [rocm([(10, 3)], ran=["RuntimeError: HIP error: invalid device function"])],
            name="RX 6700 XT",
            architecture="gfx1031",
            files={"/dev/kfd": ""},
        ),
        "torch-lacks-card",
        ("HSA_OVERRIDE_GFX_VERSION=10.3.0",),
    ),
    "Intel Arc and a wheel for CUDA": (
        lambda: intel_card([torch("2.13.0+cu130", "13.0", CU130)]),
        "torch-no-xpu",
        ("--index-url https://download.pytorch.org/whl/xpu",),
    ),
    "a Jetson and PyPI's wheel": (
        lambda: jetson([torch("2.13.0", "13.0", "sm_80 sm_90 sm_100 sm_110 sm_120", error="CUDA error: no kernel image")]),
        "jetson-torch",
        ("--index-url https://pypi.jetson-ai-lab.io/jp6/cu126",),
    ),
    # --- uv only where it is
    "no pip, no uv": (
        lambda: scripted_machine(answers=[torch("2.13.0+cpu", None)]).without(f"{SITE}/pip"),
        "torch-cpu-wheel",
        (f"{PYTHON} -m ensurepip && {PYTHON} -m pip install torch==2.13.0",),
    ),
    "a card that only Python 3.13 and older has a wheel for, no uv": (
        lambda: _newer_python(
            scripted_machine(
                cards=("Tesla K80",),
                driver="470.256.02",
                cuda=(11, 4),
                answers=[torch("2.13.0+cu130", "13.0", CU130, error="too old")],
            )
        ),
        "torch-driver-too-old",
        ("python3.11 -m venv .venv", ".venv/bin/python -m pip install torch==2.0.1"),
    ),
}


def _with_numpy_error(machine: ScriptedMachine) -> ScriptedMachine:
    key = f"{PYTHON} -c {question()} torch"
    said = machine.host.commands[key].out.replace(
        '"stage": "build"', '"stage": "build", "numpy_error": "RuntimeError: Numpy is not available"'
    )
    return machine.but(commands={key: CommandResult(0, said, seconds=3.0)})


def _newer_python(machine: ScriptedMachine) -> ScriptedMachine:
    said = json.dumps([PYTHON, [3, 14, 0], "cpython-314", "x86_64", ["", SITE]])
    return machine.but(commands={f"{PYTHON} -c import json,platform*": CommandResult(0, said)})


HEALTHY: dict[str, Callable[[], ScriptedMachine]] = {
    "bare metal, libraries that import": lambda: imports(
        with_packages([FINE], torchvision="0.28.0+cu130", transformers="5.1.0"), torchvision=None, transformers=None
    ),
    "a patch release whose torchvision requires the one before, and imports": lambda: imports(
        with_packages([torch("2.8.1+cu128", "12.8", CU126, devices=[(8, 9)])], "torch (==2.8.0)", torchvision="0.23.0"),
        torchvision=None,
    ),
    "docker": lambda: scripted_machine(answers=[FINE]).without(BUS, "/lib/modules").but(files={"/.dockerenv": ""}),
    "a job that was given two of eight cards": lambda: on_the_bus(8, 2).but(
        unusable={f"/dev/nvidia{i}": "refused" for i in range(2, 8)}, files={f"/dev/nvidia{i}": "" for i in range(8)}
    ),
    "a kernel without modules": lambda: monolithic(scripted_machine(answers=[FINE])),
    "MIG with instances that NVML lists": lambda: scripted_machine(
        cards=(NullCard("A100 SXM4 80GB", identity={"mig": True, "mig_uuids": ("MIG-1", "MIG-2")}),),
        answers=[torch("2.13.0+cu130", "13.0", CU130, devices=[(8, 0)])],
    ),
    "a vGPU": lambda: scripted_machine(
        cards=(NullCard("A40", identity={"power_limit_default_w": None, "pcie_width_max": None, "serial": None}),),
        answers=[torch("2.13.0+cu130", "13.0", CU130, devices=[(8, 6)])],
    ),
    "a virtual machine whose driver is a folder": lambda: handed_in(ON_H100),
    "the same, told by LD_LIBRARY_PATH": lambda: handed_in(ON_H100).but(
        environment={"LD_LIBRARY_PATH": "/usr/local/nvidia/lib:/usr/local/nvidia/lib64"}
    ),
    "a Jetson with NVIDIA's wheel": lambda: jetson([torch("2.8.0", "12.6", "sm_87", devices=[(8, 7)])]),
    "a laptop without a GPU": lambda: scripted_machine(cards=(), driver=None, answers=[torch("2.13.0+cpu", None)]),
    "AMD with its wheel": lambda: amd_card([rocm([(11, 0)])], files={"/dev/kfd": ""}),
    "AMD, a stand-in for a card's code is set": lambda: amd_card(
        [rocm([(10, 3)])],
        name="RX 6700 XT",
        architecture="gfx1031",
        files={"/dev/kfd": ""},
        environment={"HSA_OVERRIDE_GFX_VERSION": "10.3.0"},
    ),
    "Intel Arc with its wheel": lambda: intel_card(
        [
            answer(
                "torch",
                "2.13.0+xpu",
                [
                    {"stage": "build", "version": "2.13.0+xpu", "xpu": "20250301"},
                    {"stage": "done", "available": True, "count": 1},
                ],
            )
        ]
    ),
    "a Mac": lambda: scripted_machine(cards=(), driver=None, answers=[torch("2.13.0", None)]).but(
        platform="darwin", facts={"release": "15.2", "machine": "arm64"}
    ),
    "driver 470 and an RTX 3060 with torch 2.7.1+cu118": lambda: scripted_machine(
        cards=("RTX 3060",), driver="470.256.02", cuda=(11, 4), answers=[torch("2.7.1+cu118", "11.8", CU126, devices=[(8, 6)])]
    ),
    "a played library on LD_LIBRARY_PATH whose cards answer": lambda: scripted_machine(answers=[FINE]).but(
        environment={"LD_LIBRARY_PATH": "/tmp/fake-nvml"}, files={"/tmp/fake-nvml/libnvidia-ml.so.1": ""}
    ),
}


@pytest.mark.parametrize("name", FAULTY)
def test_the_first_finding_is_the_cause_and_its_mend_mends_it(name: str) -> None:
    make, cause, words = FAULTY[name]
    found = diagnose(make().look())
    assert [f.id for f in found.faults][:1] == [cause], [f.id for f in found.faults]
    fault = found.faults[0]
    commands = "".join(f"{command}\n" for fix in fault.fixes for command in fix.commands)
    assert [word for word in words if word not in commands] == [], commands
    assert fault.fixes and fault.evidence and fault.why and fault.check
    assert found.exit_code in (1, 2)


@pytest.mark.parametrize(
    ("configured", "environment"),
    [
        ({}, {"LD_LIBRARY_PATH": "/opt/own:/usr/local/nvidia/lib64/"}),
        ({"/etc/ld.so.conf.d/nvidia.conf": "# the driver\n/usr/local/nvidia/lib64\n"}, {}),
    ],
)
def test_a_listed_folder_is_not_blamed(configured: dict[str, str], environment: dict[str, str]) -> None:
    found = diagnose(handed_in().but(files=configured, environment=environment).look())
    assert [f.id for f in found.faults] == ["torch-sees-no-gpu"]


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_machine_is_not_flagged(name: str) -> None:
    assert_healthy(HEALTHY[name])
