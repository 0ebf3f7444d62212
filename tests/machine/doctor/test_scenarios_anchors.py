"""The twelve machines on which other doctors were tried, and what is true of each: eight faults and four healthy ones."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gpuwise.errors import DriverMismatchError
from gpuwise.machine.devices.null import NullCard
from gpuwise.machine.doctor.report import diagnose
from studies.scripted_machine import ScriptedMachine, scripted_machine, torch

from .asserting import assert_cause, assert_healthy

CU130 = "sm_75 sm_80 sm_86 sm_90 sm_100 sm_120"
CU128 = "sm_70 sm_75 sm_80 sm_86 sm_90 sm_100 sm_120"
CU124 = "sm_50 sm_60 sm_70 sm_75 sm_80 sm_86 sm_90"
NO_IMAGE = "RuntimeError: CUDA error: no kernel image is available for execution on the device"
TOO_OLD = "CUDA initialization: The NVIDIA driver on your system is too old (found version 12040)."
UNKNOWN = "CUDA initialization: CUDA unknown error - this may be due to an incorrectly set up environment"

FAULTY: dict[str, tuple[Callable[[], ScriptedMachine], str, tuple[str, ...]]] = {
    "S1 CPU-only wheel": (
        lambda: scripted_machine(answers=[torch("2.13.0+cpu", None)]),
        "torch-cpu-wheel",
        ("pip uninstall -y torch", "pip install torch==2.13.0"),
    ),
    "S2 driver 550 and a CUDA 13 wheel": (
        lambda: scripted_machine(driver="550.54.14", cuda=(12, 4), answers=[torch("2.13.0+cu130", "13.0", CU130, error=TOO_OLD)]),
        "torch-driver-too-old",
        ("'torch==2.13.*' --index-url https://download.pytorch.org/whl/cu126",),
    ),
    "S3 RTX 5090 and a CUDA 12.4 wheel": (
        lambda: scripted_machine(
            cards=("RTX 5090",),
            driver="570.124.06",
            cuda=(12, 8),
            answers=[torch("2.6.0+cu124", "12.4", CU124, devices=[(12, 0)], ran=[NO_IMAGE])],
        ),
        "torch-lacks-card",
        ("'torch==2.11.*' --index-url https://download.pytorch.org/whl/cu128",),
    ),
    "S4 GTX 1080 Ti and a CUDA 13 wheel": (
        lambda: scripted_machine(
            cards=("GTX 1080 Ti",), answers=[torch("2.13.0+cu130", "13.0", CU130, devices=[(6, 1)], ran=[NO_IMAGE])]
        ),
        "torch-lacks-card",
        ("'torch==2.13.*' --index-url https://download.pytorch.org/whl/cu126",),
    ),
    "S6 driver and library apart": (
        lambda: scripted_machine(
            failed=DriverMismatchError("driver/library version mismatch", vendor="nvidia", code=18),
            answers=[torch("2.13.0+cu130", "13.0", CU130, error="Error 803: system has unsupported display driver")],
        ).but(files={"/sys/module/nvidia/version": "580.82.09\n"}),
        "driver-library-mismatch",
        ("sudo reboot",),
    ),
    "S7 CUDA_VISIBLE_DEVICES is empty": (
        lambda: scripted_machine(answers=[torch("2.13.0+cu130", "13.0", CU130, error="No CUDA GPUs are available")]).but(
            environment={"CUDA_VISIBLE_DEVICES": ""}
        ),
        "cuda-visible-devices-empty",
        ("unset CUDA_VISIBLE_DEVICES",),
    ),
    "S10 RTX 5090 and GTX 1080 Ti in one box": (
        lambda: scripted_machine(
            cards=("RTX 5090", "GTX 1080 Ti"),
            answers=[torch("2.13.0+cu130", "13.0", CU130, devices=[(12, 0), (6, 1)], ran=[True, NO_IMAGE])],
        ),
        "torch-lacks-card",
        ("export CUDA_VISIBLE_DEVICES=GPU-00000000-", "whl/cu126"),
    ),
    "S11 nvidia_uvm stale after a suspend": (
        lambda: scripted_machine(answers=[torch("2.13.0+cu130", "13.0", CU130, error=UNKNOWN)]),
        "uvm-stale",
        ("sudo rmmod nvidia_uvm", "sudo modprobe nvidia_uvm"),
    ),
}

HEALTHY: dict[str, Callable[[], ScriptedMachine]] = {
    "S5 GB10, sm_121 on sm_120 code": lambda: scripted_machine(
        cards=("GB10",), answers=[torch("2.13.0+cu130", "13.0", "sm_80 sm_90 sm_100 sm_110 sm_120", devices=[(12, 1)])]
    ),
    "S8 no nvidia-smi, NVML fine": lambda: scripted_machine(answers=[torch("2.13.0+cu130", "13.0", CU130, devices=[(8, 9)])]).but(
        paths={"nvidia-smi": None}
    ),
    "S9 driver 535 and a CUDA 12.8 wheel": lambda: scripted_machine(
        driver="535.183.01", cuda=(12, 2), answers=[torch("2.8.0+cu128", "12.8", CU128, devices=[(8, 9)])]
    ),
    "S12 RTX 4090, all as it should be": lambda: scripted_machine(
        answers=[torch("2.6.0+cu124", "12.4", CU124, devices=[(8, 9)])]
    ),
}


@pytest.mark.parametrize("name", FAULTY)
def test_the_cause_is_named_first_with_what_mends_it(name: str) -> None:
    assert_cause(FAULTY[name])


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_machine_is_not_flagged(name: str) -> None:
    assert_healthy(HEALTHY[name])


def test_one_card_of_two_is_named_and_the_other_is_not() -> None:
    found = diagnose(FAULTY["S10 RTX 5090 and GTX 1080 Ti in one box"][0]().look()).faults[0]
    assert found.cards == (1,)
    assert "GTX 1080 Ti" in found.what and "5090" not in found.what
    assert found.severity.value == "limit"


def test_a_mismatch_is_mended_by_a_restart_and_not_by_an_installation() -> None:
    found = diagnose(FAULTY["S6 driver and library apart"][0]().look()).faults[0]
    assert any("580.82.09" in line for line in found.evidence) and any("580.95.05" in line for line in found.evidence)
    assert not any("install" in c for m in found.fixes for c in m.commands)


def test_a_suspend_in_the_log_is_evidence() -> None:
    from gpuwise.machine.doctor.host import CommandResult

    machine = FAULTY["S11 nvidia_uvm stale after a suspend"][0]()
    slept = machine.but(commands={"dmesg": CommandResult(0, "[ 10.0] nvidia: loaded\n[ 99.5] PM: suspend exit\n")})
    assert "after a suspend" in diagnose(slept.look()).faults[0].what


@pytest.mark.parametrize(
    ("card", "capability", "wheel", "architectures"),
    [
        ("RTX 3060", (8, 6), "2.13.0+cu130", CU130),
        ("RTX 4090", (8, 9), "2.13.0+cu130", CU130),
        ("H200", (9, 0), "2.8.0+cu128", CU128),
        ("B200", (10, 0), "2.15.0+cu132", CU130),
        ("T4", (7, 5), "2.13.0+cu130", CU130),
        ("V100 SXM2 32GB", (7, 0), "2.10.0+cu128", CU128),
    ],
)
def test_a_card_whose_exact_number_is_not_listed_is_fine(
    card: str, capability: tuple[int, int], wheel: str, architectures: str
) -> None:
    cuda = wheel.rpartition("+cu")[2]
    answers = [torch(wheel, f"{cuda[:2]}.{cuda[2:]}", architectures, devices=[capability])]
    assert diagnose(scripted_machine(cards=(NullCard(card),), answers=answers).look()).faults == ()
