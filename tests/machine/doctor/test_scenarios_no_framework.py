"""Machines of people who run ollama or llama.cpp: no framework of Python is there, and CUDA's driver library is asked itself."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gpuwise.machine.doctor.report import diagnose
from studies.scripted_machine import Answer, ScriptedMachine, answer, scripted_machine

from .asserting import assert_cause, assert_healthy

LIBRARY = "/usr/lib/x86_64-linux-gnu/libcuda.so.580.95.05"
NO_UVM = {"/dev/nvidia-uvm": None, "/proc/modules": "nvidia 104071168 40 - Live\n"}


def driver(status: int = 0, text: str = "") -> Answer:
    """What ``cuInit`` returns."""
    error = f"CUDA error {status}: {text}" if status else None
    done = {"stage": "done", "available": not status, "count": 0 if status else 1, "error": error}
    return answer("driver", "0", [{"stage": "devices", "cuda": "13.0"}, done])


MISSING = answer(
    "driver",
    "0",
    [{"stage": "done", "available": False, "count": 0, "error": "OSError: libcuda.so.1: cannot open shared object file"}],
)
FAULTY: dict[str, tuple[Callable[[], ScriptedMachine], str, tuple[str, ...]]] = {
    "ollama after a suspend": (
        lambda: scripted_machine(answers=[driver(999, "unknown error")]),
        "uvm-stale",
        ("sudo rmmod nvidia_uvm", "sudo modprobe nvidia_uvm"),
    ),
    "llama.cpp without nvidia_uvm": (
        lambda: scripted_machine(answers=[driver(999, "unknown error")]).but(files=NO_UVM),
        "uvm-missing",
        ("sudo modprobe nvidia_uvm",),
    ),
    "a driver without libcuda": (
        lambda: scripted_machine(answers=[MISSING]).but(files={LIBRARY: None}),
        "libcuda-missing",
        ("apt-get install -y libnvidia-compute-580",),
    ),
    "an older card that cuda-compat has no driver for": (
        lambda: scripted_machine(answers=[driver(804, "forward compatibility was attempted on non supported HW")]),
        "forward-compat-unsupported",
        ("sudo rm -rf /usr/local/cuda/compat",),
    ),
    "no cause that anything names": (
        lambda: scripted_machine(answers=[driver(101, "invalid device ordinal")]),
        "driver-sees-no-gpu",
        ("sudo reboot",),
    ),
}
HEALTHY: dict[str, Callable[[], ScriptedMachine]] = {"the driver starts the card": lambda: scripted_machine(answers=[driver()])}


@pytest.mark.parametrize("name", FAULTY)
def test_the_driver_is_asked_where_no_framework_is_installed(name: str) -> None:
    assert_cause(FAULTY[name])


def test_a_driver_that_starts_is_healthy_and_is_no_framework() -> None:
    assert_healthy(HEALTHY["the driver starts the card"])
    assert not HEALTHY["the driver starts the card"]().look().frameworks


def test_no_card_and_no_driver_is_no_fault() -> None:
    machine = scripted_machine(cards=(), driver=None, answers=[MISSING]).look()
    assert not machine.frameworks and not diagnose(machine).faults


def test_the_fix_is_checked_without_a_framework() -> None:
    found = diagnose(scripted_machine(answers=[driver(999, "unknown error")]).look())
    assert "cuInit(0)" in found.faults[0].check and "torch" not in found.faults[0].check
