"""Machines that are rented or old: cloud images, pods, workstations handed to virtual machines, cards of earlier years.

What is true of each was written down before the doctor saw it (27 November 2026).
"""

from __future__ import annotations

import pytest

from gpuwise.errors import NoDriverError
from gpuwise.machine.devices.null import NullCard
from gpuwise.machine.doctor.host import CommandResult
from gpuwise.machine.doctor.report import diagnose
from studies.scripted_machine import ScriptedMachine, broken_framework, scripted_machine, torch

from .asserting import Scenario, assert_cause, assert_healthy

SMALL = (64 << 20, 64 << 20)
CU126 = "sm_50 sm_60 sm_70 sm_75 sm_80 sm_86 sm_90"
CU130 = "sm_75 sm_80 sm_86 sm_90 sm_100 sm_120"
NONE_SEEN = torch("2.9.1+cu128", "12.8", "sm_70 sm_75 sm_80 sm_86 sm_90 sm_100 sm_120", error="No CUDA GPUs are available")
FINE = torch("2.9.1+cu130", "13.0", CU130, devices=[(8, 9)])
IMPORTING = '{"stage": "import"}\n'
TOO_OLD = "The NVIDIA driver on your system is too old (found version {}). Please update your GPU driver"


def rocm(card: str, architecture: str, built: str, **more: object) -> ScriptedMachine:
    said = torch("2.9.1+rocm6.4", None, built, hip="6.4.43482", **more)  # type: ignore[arg-type]
    cards = (NullCard(card, identity={"compute_capability": None, "architecture": architecture}),)
    return scripted_machine(cards=cards, vendor="amd", driver="6.12", cuda=None, answers=[said]).but(files={"/dev/kfd": ""})


def pascal(said: str) -> ScriptedMachine:
    """A GTX 1080 that the kernel's module does not take."""
    return not_taken("GTX 1080", "590.48.01", said)


def not_taken(card: str, driver: str, said: str) -> ScriptedMachine:
    """A card that the kernel's module does not take, and what that has said of it."""
    refused = NoDriverError("no devices were found", vendor="nvidia", code=6)
    machine = scripted_machine(cards=(NullCard(card),), driver=driver, failed=refused, answers=[NONE_SEEN])
    return machine.but(
        commands={"dmesg": CommandResult(0, f"[ 0.0] Linux\n{said}\n")},
        links={"/sys/bus/pci/devices/0000:01:00.0/driver": None},
        files={"/dev/nvidia0": None},
    )


FAULTY: dict[str, Scenario] = {
    "a wheel of cuBLAS was uninstalled": (
        lambda: scripted_machine(
            answers=[
                broken_framework(
                    "torch",
                    "2.9.1+cu128",
                    CommandResult(
                        1,
                        IMPORTING + '{"failed": "ImportError: libcublas.so.12: cannot open shared object file: No such file or '
                        'directory"}\n',
                    ),
                )
            ]
        ),
        "torch-import-fails",
        ("pip install", "torch"),
    ),
    "a GTX 1080 and a wheel for CUDA 13": (
        lambda: scripted_machine(
            cards=(NullCard("GTX 1080"),),
            answers=[torch("2.9.1+cu130", "13.0", CU130, devices=[(6, 1)], ran=["no kernel image"])],
        ),
        "torch-lacks-card",
        ("whl/cu126",),
    ),
    "a rented RTX 5090 and an image of 2024": (
        lambda: scripted_machine(
            cards=("RTX 5090",),
            answers=[torch("2.5.1+cu124", "12.4", CU126, devices=[(12, 0)], ran=["no kernel image"])],
        ),
        "torch-lacks-card",
        ("torch==2.",),
    ),
    "a T4 with a cloud image's driver 535 and a wheel for CUDA 13": (
        lambda: scripted_machine(
            cards=("T4",),
            driver="535.247.01",
            cuda=(12, 2),
            answers=[torch("2.9.1+cu130", "13.0", CU130, error=TOO_OLD.format(12020))],
        ),
        "torch-driver-too-old",
        ("pip install torch==2.9.1",),  # PyPI's is for CUDA 12.8, which runs on driver 525 and newer
    ),
    "a GTX 1080 under a driver after the last for it": (
        lambda: pascal(
            "[ 3.1] NVRM: The NVIDIA GeForce GTX 1080 GPU installed in this system is supported through the NVIDIA 580.xx "
            "Legacy drivers. The 590.48.01 NVIDIA driver will ignore this GPU."
        ),
        "driver-lacks-card",
        ("580",),
    ),
    "a GTX 1080 and the open modules": (
        lambda: pascal(
            "[ 3.1] NVRM: The NVIDIA GPU 0000:01:00.0 (PCI ID: 10de:1b80) installed in this system is not supported by open "
            "nvidia.ko because it does not include the required GPU System Processor (GSP)."
        ),
        "closed-modules-needed",
        ("nvidia-driver-580",),
    ),
    "an RX 6700 XT, whose code no wheel holds": (
        lambda: rocm("RX 7900 XTX", "gfx1031", "gfx900 gfx906 gfx90a gfx942 gfx1030 gfx1100", devices=[(10, 3)], ran=["invalid"]),
        "torch-lacks-card",
        ("HSA_OVERRIDE_GFX_VERSION=10.3.0",),
    ),
    "a pod whose shared memory is Kubernetes' own": (
        lambda: scripted_machine(answers=[FINE]).but(
            environment={"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, space={"/dev/shm": SMALL}
        ),
        "container-shm-small",
        (),
    ),
    "a card that was handed to a virtual machine": (
        lambda: scripted_machine(failed=NoDriverError("no devices", vendor="nvidia", code=9), answers=[NONE_SEEN]).but(
            links={"/sys/bus/pci/devices/0000:01:00.0/driver": "../../../bus/pci/drivers/vfio-pci"}
        ),
        "card-reserved-for-vms",
        ("vfio",),
    ),
}
HEALTHY = {
    "a GTX 1080 and a wheel that has it": lambda: scripted_machine(
        cards=(NullCard("GTX 1080"),), answers=[torch("2.9.1+cu126", "12.6", CU126, devices=[(6, 1)])]
    ),
    "a T4 with driver 535 and a wheel for CUDA 12": lambda: scripted_machine(
        cards=("T4",), driver="535.247.01", cuda=(12, 2), answers=[torch("2.9.1+cu126", "12.6", CU126, devices=[(7, 5)])]
    ),
}


@pytest.mark.parametrize("name", FAULTY)
def test_the_cause_and_what_mends_it(name: str) -> None:
    assert_cause(FAULTY[name])


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_machine(name: str) -> None:
    assert_healthy(HEALTHY[name])


def test_a_k80_wants_an_older_wheel_for_two_reasons() -> None:
    said = torch("2.9.1+cu126", "12.6", CU126, error=TOO_OLD.format(11040))
    machine = scripted_machine(cards=(NullCard("K80"),), driver="470.256.02", cuda=(11, 4), answers=[said])
    faults = diagnose(machine.look()).faults
    assert [f.id for f in faults] == ["torch-driver-too-old", "torch-lacks-card"]
    assert any("cu11" in command for f in faults for fix in f.fixes for command in fix.commands)
