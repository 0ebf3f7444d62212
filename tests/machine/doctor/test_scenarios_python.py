"""Python environments at fault: mixed, mismatched, crashing, hanging; and healthy ones."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gpuwise.machine.devices.null import NullCard
from gpuwise.machine.doctor.host import CommandResult
from gpuwise.machine.doctor.report import diagnose
from studies.scripted_machine import (
    PYTHON,
    SITE,
    ScriptedMachine,
    answer,
    broken_framework,
    scripted_machine,
    torch,
)

from .asserting import assert_cause, assert_healthy

CU130 = "sm_75 sm_80 sm_86 sm_90 sm_100 sm_120"
CU126 = "sm_50 sm_60 sm_70 sm_75 sm_80 sm_86 sm_90"
FINE = torch("2.13.0+cu130", "13.0", CU130, devices=[(8, 9)])
IMPORTING = '{"stage": "import"}\n'
CRASH = CommandResult(-11, IMPORTING, "Fatal Python error: Segmentation fault\n  File torch/__init__.py line 416")
ILLEGAL = CommandResult(-4, IMPORTING, "Fatal Python error: Illegal instruction")
HANG = CommandResult(None, IMPORTING, "", timed_out=True, seconds=90.0)
FAILS = CommandResult(1, IMPORTING + '{"failed": "ImportError: libcudnn.so.9: cannot open shared object file"}\n')
WRONG_PYTHON = CommandResult(1, IMPORTING + '{"failed": "ModuleNotFoundError: No module named torch._C"}\n')
CUDNN_PIN = (
    'Name: torch\nRequires-Dist: nvidia-cudnn-cu13 (==9.20.0.48) ; platform_system == "Linux"\n'
    "Requires-Dist: triton==3.7.1; extra == 'x'\n\n"
)
LIBRARIES = "/usr/local/cuda-12.4/lib64"


def jax(version: str, **last: object):
    return answer("jax", version, [{"stage": "build", "version": version}, {"stage": "done", **last}])


def tensorflow(version: str, cuda: str | None, **last: object):
    return answer("tensorflow", version, [{"stage": "build", "version": version, "cuda": cuda}, {"stage": "done", **last}])


def cupy(package: str, version: str, error: str | None = None):
    ends = (
        {"stage": "done", "available": False, "count": 0, "error": error}
        if error
        else {"stage": "done", "available": True, "count": 1}
    )
    return answer("cupy", version, [{"stage": "build", "version": version}, ends], package=package.replace("-", "_"))


def amd(answers: tuple, **kwargs: object) -> ScriptedMachine:
    card = NullCard("MI300X", identity={"compute_capability": None})
    return scripted_machine(cards=(card,), vendor="amd", driver="6.12", cuda=None, answers=answers, **kwargs)


FAULTY: dict[str, tuple[Callable[[], ScriptedMachine], str, tuple[str, ...]]] = {
    "torch crashes when imported": (
        lambda: scripted_machine(answers=[broken_framework("torch", "2.13.0", CRASH)]),
        "torch-crashes",
        ("pip uninstall -y torch", "pip install torch=="),
    ),
    "torch crashes on an old processor": (
        lambda: scripted_machine(answers=[broken_framework("torch", "2.13.0", ILLEGAL)]),
        "torch-crashes",
        ("pip install torch==",),
    ),
    "torch hangs when imported": (
        lambda: scripted_machine(answers=[broken_framework("torch", "2.13.0", HANG)]),
        "torch-hangs",
        ("-X faulthandler", "pip install torch=="),
    ),
    "torch does not import": (
        lambda: scripted_machine(answers=[broken_framework("torch", "2.13.0", FAILS)]),
        "torch-import-fails",
        ("pip install torch==",),
    ),
    "torch compiled for another Python": (
        lambda: scripted_machine(answers=[broken_framework("torch", "2.13.0", WRONG_PYTHON)]).but(
            files={f"{SITE}/torch/_C.cpython-310-x86_64-linux-gnu.so": ""}
        ),
        "torch-wrong-python",
        ("pip uninstall -y torch", "pip install torch==2.13.0"),
    ),
    "two torch in one folder": (
        lambda: scripted_machine(answers=[FINE], packages={"torch": "2.6.0"}),
        "torch-installed-twice",
        ("pip uninstall -y torch", "pip install torch=="),
    ),
    "conda's pytorch under pip's torch": (
        lambda: scripted_machine(answers=[FINE]).but(
            files={"/venv/conda-meta/pytorch-2.5.1-py3.12_cuda12.4_cudnn9.1.0_0.json": ""}
        ),
        "torch-installed-twice",
        ("pip uninstall -y torch", "conda install --force-reinstall pytorch=2.5.1"),
    ),
    "torchvision of another torch": (
        lambda: scripted_machine(answers=[FINE]).but(
            files={f"{SITE}/torchvision-0.23.0.dist-info/METADATA": "Name: torchvision\nRequires-Dist: torch==2.8.0\n\n"}
        ),
        "torchvision-mismatch",
        ("pip uninstall -y torchvision", "torch==2.13.0+cu130 torchvision --index-url https://download.pytorch.org/whl/cu130"),
    ),
    "torchaudio for the CPU beside torch for CUDA": (
        lambda: scripted_machine(answers=[FINE], packages={"torchaudio": "2.13.0+cpu"}),
        "torchaudio-mismatch",
        ("pip uninstall -y torchaudio",),
    ),
    "cuDNN replaced by another package": (
        lambda: scripted_machine(
            answers=[torch("2.13.0+cu130", "13.0", CU130, devices=[(8, 9)], metadata=CUDNN_PIN)],
            packages={"nvidia-cudnn-cu13": "9.5.1.17"},
        ),
        "cuda-libraries-not-as-pinned",
        ("pip install nvidia-cudnn-cu13==9.20.0.48",),
    ),
    "older libraries by LD_LIBRARY_PATH": (
        lambda: scripted_machine(
            answers=[torch("2.8.0+cu128", "12.8", CU126, devices=[(8, 9)])], packages={"nvidia-cublas-cu12": "12.8.4.1"}
        ).but(environment={"LD_LIBRARY_PATH": LIBRARIES}, files={f"{LIBRARIES}/libcublas.so.12.4.5.8": ""}),
        "ld-library-path-shadows",
        ("unset LD_LIBRARY_PATH",),
    ),
    "older nvJitLink keeps torch from importing": (
        lambda: scripted_machine(
            answers=[
                broken_framework(
                    "torch",
                    "2.8.0",
                    CommandResult(1, IMPORTING + '{"failed": "ImportError: undefined symbol: __nvJitLinkComplete_12_8"}\n'),
                )
            ],
            packages={"nvidia-nvjitlink-cu12": "12.8.93"},
        ).but(environment={"LD_LIBRARY_PATH": LIBRARIES}, files={f"{LIBRARIES}/libnvJitLink.so.12.4.127": ""}),
        "ld-library-path-shadows",
        ("unset LD_LIBRARY_PATH",),
    ),
    "a ROCm wheel on NVIDIA": (
        lambda: scripted_machine(answers=[torch("2.9.1+rocm6.4", None, hip="6.4.1")]),
        "torch-rocm-wheel",
        ("pip uninstall -y torch", "pip install torch=="),
    ),
    "a CUDA wheel on AMD": (
        lambda: amd((torch("2.13.0+cu130", "13.0", CU130),)),
        "torch-cuda-wheel-on-amd",
        ("whl/rocm6.4", "'torch==2.9.*'"),
    ),
    "a CPU wheel on AMD": (lambda: amd((torch("2.13.0+cpu", None),)), "torch-cpu-wheel", ("whl/rocm6.4",)),
    "AMD's compute device for others only": (
        lambda: amd(()).but(files={"/dev/kfd": ""}, unusable={"/dev/kfd": "permission"}),
        "amd-permission",
        ("usermod -aG render,video",),
    ),
    "JAX without its plugin": (
        lambda: scripted_machine(answers=[jax("0.7.0", available=False, count=0)]),
        "jax-cpu-only",
        ("'jax[cuda13]'",),
    ),
    "JAX without its plugin, an older driver": (
        lambda: scripted_machine(driver="550.54.14", cuda=(12, 4), answers=[jax("0.7.0", available=False, count=0)]),
        "jax-cpu-only",
        ("'jax[cuda12]'",),
    ),
    "JAX for CUDA 13 on an older driver": (
        lambda: scripted_machine(
            driver="550.54.14",
            cuda=(12, 4),
            packages={"jax-cuda13-plugin": "0.7.0"},
            answers=[jax("0.7.0", available=False, count=0, error="RuntimeError: Unable to initialize backend 'cuda'")],
        ),
        "jax-driver-too-old",
        ("pip uninstall -y jax-cuda13-plugin", "'jax[cuda12]'"),
    ),
    "JAX told to use the CPU": (
        lambda: scripted_machine(answers=[jax("0.7.0", available=False, count=0)]).but(environment={"JAX_PLATFORMS": "cpu"}),
        "jax-told-cpu",
        ("unset JAX_PLATFORMS",),
    ),
    "TensorFlow for the CPU": (
        lambda: scripted_machine(answers=[tensorflow("2.20.0", None, available=False, count=0)]),
        "tensorflow-cpu-wheel",
        ("pip uninstall -y tensorflow", "'tensorflow[and-cuda]'"),
    ),
    "TensorFlow without its libraries": (
        lambda: scripted_machine(
            answers=[tensorflow("2.20.0", "12.5", available=False, count=0, error="Cannot dlopen some GPU libraries")]
        ),
        "tensorflow-sees-no-gpu",
        ("'tensorflow[and-cuda]'",),
    ),
    "ONNX Runtime for the processor beside the one for GPUs": (
        lambda: scripted_machine(packages={"onnxruntime": "1.23.0", "onnxruntime-gpu": "1.22.0"}),
        "onnxruntime-installed-twice",
        ("pip uninstall -y onnxruntime onnxruntime-gpu", "install onnxruntime-gpu"),
    ),
    "two CuPy packages": (
        lambda: scripted_machine(answers=[cupy("cupy-cuda12x", "13.6.0")], packages={"cupy-cuda11x": "13.6.0"}),
        "cupy-installed-twice",
        ("pip uninstall -y cupy-cuda", "cupy-cuda13x"),
    ),
    "CuPy for CUDA 13 on an older driver": (
        lambda: scripted_machine(
            driver="550.54.14", cuda=(12, 4), answers=[cupy("cupy-cuda13x", "13.6.0", "cudaErrorInsufficientDriver")]
        ),
        "cupy-driver-too-old",
        ("cupy-cuda12x",),
    ),
    "a toolkit of a newer family, in use": (
        lambda: scripted_machine(
            driver="550.54.14", cuda=(12, 4), answers=[torch("2.6.0+cu124", "12.4", CU126, devices=[(8, 9)])]
        ).but(
            files={"/usr/local/cuda-13.0/bin/nvcc": "", "/usr/local/cuda-12.4/bin/nvcc": ""},
            paths={"nvcc": "/usr/local/bin/nvcc"},
            commands={"/usr/local/bin/nvcc --version": CommandResult(0, "Cuda compilation tools, release 13.0, V13.0.48")},
        ),
        "toolkit-newer-than-driver",
        ("export CUDA_HOME=/usr/local/cuda-12.4", "nvidia-driver-580-open"),
    ),
    "a wrong product": (
        lambda: scripted_machine(answers=[torch("2.13.0+cu130", "13.0", CU130, devices=[(8, 9)], ran=[False])]),
        "gpu-wrong-result",
        ("gpuwise bench --device gpu0 --stress 10m",),
    ),
    "the first product raises": (
        lambda: scripted_machine(
            answers=[torch("2.13.0+cu130", "13.0", CU130, devices=[(8, 9)], ran=["RuntimeError: CUBLAS_STATUS_NOT_INITIALIZED"])]
        ),
        "torch-run-fails",
        ("pip install torch==",),
    ),
    "another program has the GPU to itself": (
        lambda: scripted_machine(
            answers=[torch("2.13.0+cu130", "13.0", CU130, error="CUDA-capable device(s) is/are busy or unavailable")]
        ),
        "torch-sees-no-gpu",
        ("nvidia-smi -c DEFAULT",),
    ),
    "the interpreter does not start": (
        lambda: scripted_machine().but(
            commands={
                f"{PYTHON} -c import json,platform*": CommandResult(
                    127, "", "error while loading shared libraries: libpython3.12.so"
                )
            }
        ),
        "python-does-not-start",
        ("python3 -m venv",),
    ),
    "no wheel for this Python": (
        lambda: scripted_machine(
            driver="550.54.14",
            cuda=(12, 4),
            answers=[torch("2.13.0+cu130", "13.0", CU130, error="too old (found version 12040)")],
        ).but(
            commands={
                f"{PYTHON} -c import json,platform*": CommandResult(
                    0, f'["{PYTHON}", [3, 7, 1], "cpython-37", "x86_64", ["{SITE}"]]'
                )
            }
        ),
        "torch-driver-too-old",
        ("nvidia-driver-580-open",),
    ),
}


@pytest.mark.parametrize("name", FAULTY)
def test_the_cause_is_named_first_with_what_mends_it(name: str) -> None:
    assert_cause(FAULTY[name])


HEALTHY: dict[str, Callable[[], ScriptedMachine]] = {
    "minor version compatibility: CUDA 12.8 on driver 525": lambda: scripted_machine(
        driver="525.147.05", cuda=(12, 0), answers=[torch("2.8.0+cu128", "12.8", "sm_86", devices=[(8, 9)])]
    ),
    "forward compatibility that works: CUDA 13 on driver 535": lambda: scripted_machine(
        cards=("A100 SXM4 80GB",),
        driver="535.183.01",
        cuda=(13, 0),
        answers=[torch("2.13.0+cu130", "13.0", CU130, devices=[(8, 0)])],
    ),
    "an older toolkit on the path": lambda: scripted_machine(answers=[FINE]).but(
        files={"/usr/local/cuda-11.8/bin/nvcc": ""},
        paths={"nvcc": "/usr/bin/nvcc"},
        commands={"/usr/bin/nvcc --version": CommandResult(0, "release 11.8, V11.8.89")},
    ),
    "a newer toolkit of the same family": lambda: scripted_machine(driver="550.54.14", cuda=(12, 4)).but(
        paths={"nvcc": "/usr/bin/nvcc"},
        commands={"/usr/bin/nvcc --version": CommandResult(0, "release 12.9, V12.9.1")},
    ),
    "a newer toolkit that nobody uses": lambda: scripted_machine(driver="550.54.14", cuda=(12, 4)).but(
        files={"/usr/local/cuda-13.0/bin/nvcc": ""}
    ),
    "conda's pytorch and its own metadata": lambda: scripted_machine(answers=[FINE]).but(
        files={"/venv/conda-meta/pytorch-2.13.0-py3.12_cuda13.0_cudnn9_0.json": ""}
    ),
    "torchvision as it belongs": lambda: scripted_machine(answers=[FINE]).but(
        files={f"{SITE}/torchvision-0.28.0+cu130.dist-info/METADATA": "Name: torchvision\nRequires-Dist: torch==2.13.0\n\n"}
    ),
    "libraries as they are pinned": lambda: scripted_machine(
        answers=[torch("2.13.0+cu130", "13.0", CU130, devices=[(8, 9)], metadata=CUDNN_PIN)],
        packages={"nvidia-cudnn-cu13": "9.20.0.48"},
    ),
    "newer libraries by LD_LIBRARY_PATH": lambda: scripted_machine(
        answers=[FINE], packages={"nvidia-cublas-cu12": "12.8.4.1"}
    ).but(
        environment={"LD_LIBRARY_PATH": LIBRARIES},
        files={f"{LIBRARIES}/libcublas.so.12.9.1.4": "", f"{LIBRARIES}/libcudart.so.11.8.89": ""},
    ),
    "JAX with its plugin": lambda: scripted_machine(
        answers=[jax("0.7.0", available=True, count=1, ran=[{"index": 0, "ran": True, "error": None}])],
        packages={"jax-cuda13-plugin": "0.7.0"},
    ),
    "memory of the card is taken": lambda: scripted_machine(
        answers=[
            answer(
                "torch",
                "2.13.0+cu130",
                [
                    {"stage": "build", "version": "2.13.0+cu130", "cuda": "13.0", "architectures": CU130.split()},
                    {"stage": "run", "available": True, "count": 1, "devices": [{"index": 0, "capability": [8, 9]}]},
                    {"stage": "done", "ran": [{"index": 0, "ran": None, "error": "OutOfMemoryError: CUDA out of memory"}]},
                ],
            )
        ]
    ),
    "torch is not installed": lambda: scripted_machine(),
    "the CPU's torch and no GPU": lambda: scripted_machine(cards=(), driver=None, answers=[torch("2.13.0+cpu", None)]),
    "a CUDA torch and no GPU": lambda: scripted_machine(cards=(), driver=None, answers=[torch("2.13.0+cu130", "13.0", CU130)]),
    "ROCm on AMD": lambda: amd((torch("2.9.1+rocm6.4", None, hip="6.4.1", devices=[(9, 4)]),)),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_machine_is_not_flagged(name: str) -> None:
    assert_healthy(HEALTHY[name])


def test_an_uninstalled_torch_is_offered_for_this_driver_and_these_cards() -> None:
    found = diagnose(
        scripted_machine(cards=("GTX 1080 Ti",))
        .but(files={"/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05 x\n"})
        .look()
    )
    assert [f.id for f in found.notes] == ["torch-not-installed"]
    assert "pip install 'torch==2.14.*' --index-url https://download.pytorch.org/whl/cu126" in found.notes[0].fixes[0].commands[0]


def test_a_framework_that_works_makes_another_one_that_does_not_a_limit() -> None:
    found = diagnose(scripted_machine(answers=[FINE, jax("0.7.0", available=False, count=0)]).look())
    assert [(f.id, f.severity.value) for f in found.faults] == [("jax-cpu-only", "limit")]


def test_the_older_driver_of_a_family_is_said_to_be_fine() -> None:
    found = diagnose(
        scripted_machine(
            driver="535.183.01", cuda=(12, 2), answers=[torch("2.8.0+cu128", "12.8", CU130, devices=[(8, 9)])]
        ).look()
    )
    assert [f.id for f in found.notes] == ["older-driver-of-family"] and found.exit_code == 0


def test_an_environment_without_pip_is_mended_with_uv() -> None:
    machine = scripted_machine(answers=[torch("2.13.0+cpu", None)]).without(f"{SITE}/pip")
    found = diagnose(machine.but(paths={"uv": "/usr/bin/uv"}).look())
    assert found.faults[0].fixes[0].commands[1] == f"uv pip install --python {PYTHON} torch==2.13.0"
    bare = diagnose(machine.look())
    assert bare.faults[0].fixes[0].commands[1] == f"{PYTHON} -m ensurepip && {PYTHON} -m pip install torch==2.13.0"


def test_frameworks_are_not_asked_when_told_so() -> None:
    machine = scripted_machine(answers=[torch("2.13.0+cpu", None)]).look(frameworks=False)
    assert machine.frameworks == ()
    # the version alone says what it is built for
    assert [f.id for f in diagnose(machine).faults] == ["torch-cpu-wheel"]


def test_wheels_for_windows_and_arm_name_their_index() -> None:
    arm = scripted_machine(cards=("GB10",), answers=[torch("2.13.0+cpu", None)]).but(facts={"machine": "aarch64"})
    assert diagnose(arm.look()).faults[0].fixes[0].commands[1].endswith("--index-url https://download.pytorch.org/whl/cu130")
    windows = scripted_machine(driver="581.29", answers=[torch("2.13.0+cpu", None)]).but(platform="win32")
    assert diagnose(windows.look()).faults[0].fixes[0].commands[1].endswith("--index-url https://download.pytorch.org/whl/cu130")


def test_a_version_that_would_run_something_is_only_text() -> None:
    odd = {
        f"{SITE}/torch-$(reboot).dist-info/METADATA": "",
        f"{SITE}/torchvision-1;reboot.dist-info/METADATA": "Requires-Dist: torch==1.0\n\n",
    }
    found = diagnose(scripted_machine(cards=(), driver=None).but(files=odd).look())
    commands = [c for f in found.faults for m in f.fixes for c in m.commands]
    assert any("'torch==$(reboot)'" in c for c in commands)
    assert not any("$(reboot)" in c.replace("'torch==$(reboot)'", "") or ";reboot" in c for c in commands)
