"""Kinds of faults that documentation describes: what compiles at run time, virtual machines of Docker Desktop, licences, NPUs."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from gpuwise.machine.devices.null import NullCard
from gpuwise.machine.doctor.host import CommandResult
from gpuwise.machine.doctor.report import diagnose
from studies.scripted_machine import PYTHON, SITE, ScriptedMachine, scripted_machine, torch

from .asserting import assert_cause, assert_healthy
from .test_scenarios_container import container, wsl
from .test_scenarios_issues import logged
from .test_scenarios_no_framework import driver
from .test_scenarios_public import CU128, HIP, OLLAMA, SEES
from .test_scenarios_trials import BUS, amd_card, imports, with_packages

GB10 = NullCard("GB10", identity={"compute_capability": (12, 1), "unified_memory": True})
ON_GB10 = torch("2.9.0+cu130", "13.0", CU128, devices=[(12, 1)])
HEADERS = json.dumps([PYTHON, [3, 12, 4], "cpython-312", "x86_64", ["", SITE], False])
NVCC = {"/usr/local/cuda-11.5/bin/nvcc": "", "/usr/local/cuda-11.5/version.json": '{"cuda": {"version": "11.5.0"}}'}


def on_bus(vendor: str, kind: str = "0x030000") -> dict[str, str]:
    place = f"{BUS}0000:03:00.0"
    return {f"{place}/class": f"{kind}\n", f"{place}/vendor": f"{vendor}\n", f"{place}/device": "0xe20b\n"}


def old_toolkit() -> ScriptedMachine:
    return scripted_machine(answers=[SEES]).but(files=NVCC, environment={"CUDA_HOME": "/usr/local/cuda-11.5"})


def pins(name: str, version: str, wants: str) -> dict[str, str]:
    return {f"{SITE}/{name}-{version}.dist-info/METADATA": f"Name: {name}\nRequires-Dist: torch=={wants}\n\n"}


def docker(**files: str | None) -> ScriptedMachine:
    return scripted_machine(answers=[SEES]).but(
        paths={"docker": "/usr/bin/docker", "nvidia-ctk": "/usr/bin/nvidia-ctk"}, files=files
    )


FAULTY: dict[str, tuple[Callable[[], ScriptedMachine], str, tuple[str, ...]]] = {
    "Triton without a C compiler": (
        lambda: with_packages([SEES], triton="3.5.1").but(paths={"gcc": None}),
        "c-compiler-missing",
        ("apt-get install -y build-essential",),
    ),
    "Triton without Python.h": (
        lambda: with_packages([SEES], triton="3.5.1").but(
            commands={f"{PYTHON} -c import json,platform*": CommandResult(0, HEADERS)}
        ),
        "python-headers-missing",
        ("apt-get install -y python3.12-dev",),
    ),
    "a Triton that does not know the card": (
        lambda: scripted_machine(cards=(GB10,), answers=[ON_GB10], packages={"triton": "3.5.0"}),
        "triton-lacks-card",
        ("TRITON_PTXAS_PATH=/usr/local/cuda/bin/ptxas",),
    ),
    "FlashInfer without nvcc": (
        lambda: with_packages([SEES], flashinfer_python="0.6.1"),
        "flashinfer-without-nvcc",
        ("flashinfer-jit-cache --index-url https://flashinfer.ai/whl/cu128",),
    ),
    "a toolkit older than the card": (old_toolkit, "toolkit-lacks-card", ()),
    "ollama in Docker Desktop on a Mac": (
        lambda: container(scripted_machine(cards=(), driver=None)).but(
            facts={"kernel": "6.10.14-linuxkit", "machine": "aarch64"}, paths=OLLAMA
        ),
        "container-in-virtual-machine",
        (),
    ),
    "Docker Desktop on Linux": (
        lambda: docker(**{"/home/ada/.docker/config.json": '{"currentContext": "desktop-linux"}'}),
        "docker-desktop-no-gpu",
        ("docker context use default",),
    ),
    "a toolkit set for rootless engines": (
        lambda: docker(**{"/etc/nvidia-container-runtime/config.toml": "[nvidia-container-cli]\nno-cgroups = true\n"}),
        "toolkit-no-cgroups",
        ("no-cgroups=false",),
    ),
    "an Arc whose render node is closed": (
        lambda: scripted_machine(cards=("Arc B580",), vendor="intel", driver="6.14", cuda=None).but(
            files={"/dev/dri/renderD128": ""}, unusable={"/dev/dri/renderD128": "permission"}, paths=OLLAMA
        ),
        "intel-permission",
        ("usermod -aG render",),
    ),
    "an NPU that is closed": (
        lambda: scripted_machine(cards=(), driver=None).but(
            files={"/dev/accel/accel0": ""}, unusable={"/dev/accel/accel0": "permission"}
        ),
        "npu-permission",
        ("usermod -aG render",),
    ),
    "an Arc that the kernel does not know": (
        lambda: scripted_machine(cards=(), driver=None).but(files=on_bus("0x8086")),
        "card-without-driver",
        ("modprobe xe",),
    ),
    "an AMD card and nomodeset": (
        lambda: scripted_machine(cards=(), driver=None).but(files={**on_bus("0x1002"), "/proc/cmdline": "quiet nomodeset\n"}),
        "card-without-driver",
        ("s/nomodeset//",),
    ),
    "an enclosure that nobody has allowed": (
        lambda: scripted_machine(cards=(), driver=None).but(
            files={
                "/sys/bus/thunderbolt/devices/0-1/authorized": "0\n",
                "/sys/bus/thunderbolt/devices/0-1/device_name": "Core X\n",
            }
        ),
        "thunderbolt-not-authorized",
        ("boltctl enroll",),
    ),
    "ROCm's wheel in WSL": (
        lambda: wsl(cards=(), driver=None, answers=[torch("2.9.1+rocm6.4", None, "gfx1100", hip="6.4.4", error=HIP)]).but(
            files={"/dev/dxg": ""}
        ),
        "wsl-rocm-runtime",
        ("libhsa-runtime64.so*",),
    ),
    "Alpine": (
        lambda: container(scripted_machine(cards=(), driver=None)).but(
            files={"/etc/os-release": 'ID=alpine\nPRETTY_NAME="Alpine Linux"\n', "/dev/nvidia0": "", "/dev/nvidiactl": ""}
        ),
        "musl-system",
        ("docker run --rm --gpus all ubuntu",),
    ),
    "memory ran out": (
        lambda: scripted_machine(answers=[SEES]).but(
            commands=logged("[ 99.0] Out of memory: Killed process 4211 (ollama) total-vm:9000kB, anon-rss:8000kB")
        ),
        "memory-ran-out",
        ("free -h",),
    ),
    "a home folder that runs no programs": (
        lambda: scripted_machine(answers=[SEES]).but(
            files={"/proc/mounts": "/dev/sda1 / ext4 rw 0 0\n/dev/sda2 /home ext4 rw,nosuid,noexec 0 0\n"}
        ),
        "folder-runs-no-programs",
        ("TRITON_CACHE_DIR",),
    ),
    "errors of the link": (
        lambda: scripted_machine(answers=[SEES]).but(
            commands=logged(*["[ 9.0] nvidia 0000:01:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer"] * 12)
        ),
        "pcie-errors",
        (),
    ),
    "a virtual GPU without a licence": (
        lambda: scripted_machine(cards=(NullCard("A40", identity={"name": "NVIDIA A40-48Q"}),), answers=[driver()]).but(
            commands={
                "nvidia-smi -q": CommandResult(0, "        License Status                    : Unlicensed (Unrestricted)\n")
            }
        ),
        "vgpu-unlicensed",
        ("nvidia-gridd",),
    ),
    "ONNX Runtime of CUDA 11": (
        lambda: with_packages([SEES], onnxruntime_gpu="1.18.0"),
        "onnxruntime-other-cuda",
        ("'onnxruntime-gpu>=1.19'",),
    ),
    "llama.cpp for Vulkan without a driver for it": (
        lambda: amd_card(
            [],
            files={"/.dockerenv": "", "/dev/dri/renderD128": "", "/app/libggml-vulkan.so": ""},
            paths={"llama-server": "/app/llama-server"},
        ),
        "vulkan-no-driver",
        ("mesa-vulkan-drivers",),
    ),
    "ollama and a card that its ROCm does not know": (
        lambda: amd_card([], "RX 6700 XT", "gfx1031", files={"/dev/kfd": "", "/dev/dri/renderD128": ""}, paths=OLLAMA),
        "ollama-lacks-card",
        ("HSA_OVERRIDE_GFX_VERSION=10.3.0",),
    ),
    "xformers for another PyTorch": (
        lambda: scripted_machine(answers=[SEES]).but(files=pins("xformers", "0.0.28", "2.5.0")),
        "xformers-other-torch",
        ("install -U xformers",),
    ),
    "a compiled part of vLLM for another CUDA": (
        lambda: imports(
            with_packages([SEES], vllm="0.11.0"),
            **{"vllm._C": "ImportError: libcudart.so.12: cannot open shared object file: No such file or directory"},
        ),
        "vllm-import-fails",
        ("vllm",),
    ),
}


@pytest.mark.parametrize("name", FAULTY)
def test_each_kind_is_the_one_fault_that_is_named(name: str) -> None:
    assert_cause(FAULTY[name])


HEALTHY: dict[str, Callable[[], ScriptedMachine]] = {
    "Triton with a compiler that CC names": lambda: with_packages([SEES], triton="3.5.1").but(
        paths={"gcc": None}, environment={"CC": "/opt/llvm/bin/clang"}, files={"/opt/llvm/bin/clang": ""}
    ),
    "a Triton that knows the card": lambda: scripted_machine(cards=(GB10,), answers=[ON_GB10], packages={"triton": "3.6.0"}),
    "FlashInfer with its compiled kernels": lambda: with_packages(
        [SEES], flashinfer_python="0.6.1", flashinfer_jit_cache="0.6.1"
    ),
    "rootless Docker": lambda: docker(**{"/etc/nvidia-container-runtime/config.toml": "no-cgroups = true\n"}).but(
        environment={"DOCKER_HOST": "unix:///run/user/1000/docker.sock"}
    ),
    "a commented line": lambda: docker(**{"/etc/nvidia-container-runtime/config.toml": "#no-cgroups = true\n"}),
    "ONNX Runtime of CUDA 12": lambda: with_packages([SEES], onnxruntime_gpu="1.20.1"),
    "xformers of this PyTorch": lambda: scripted_machine(answers=[SEES]).but(files=pins("xformers", "0.0.33", "2.9.1")),
    "vLLM without that part": lambda: imports(
        with_packages([SEES], vllm="0.11.0"), **{"vllm._C": "ModuleNotFoundError: No module named 'vllm._C'"}
    ),
    "few corrected errors": lambda: scripted_machine(answers=[SEES]).but(
        commands=logged("[ 9.0] nvidia 0000:01:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer")
    ),
    "another program that was ended": lambda: scripted_machine(answers=[SEES]).but(
        commands=logged("[ 99.0] Out of memory: Killed process 4211 (firefox) total-vm:9000kB")
    ),
    "a graphics part of Intel's beside a card of NVIDIA's": lambda: scripted_machine(answers=[SEES]).but(files=on_bus("0x8086")),
    "Alpine without a GPU": lambda: container(scripted_machine(cards=(), driver=None)).but(
        files={"/etc/os-release": "ID=alpine\n"}
    ),
    "a licensed virtual GPU": lambda: scripted_machine(
        cards=(NullCard("A40", identity={"name": "NVIDIA A40-48Q"}),), answers=[driver()]
    ).but(commands={"nvidia-smi -q": CommandResult(0, "    License Status : Licensed (Expiry: 2027-1-1)\n")}),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_machine_like_them_is_not_flagged(name: str) -> None:
    assert_healthy(HEALTHY[name])


def test_a_closed_folder_is_a_fault_only_of_programs_that_write_code_there() -> None:
    machine = scripted_machine(cards=(), driver=None).but(files={"/proc/mounts": "tmpfs /tmp tmpfs rw,noexec 0 0\n"})
    assert not diagnose(machine.look()).faults
