"""Machines and environments of which public issues tell and no other table does: a third list, broken and healthy.

What is true of each was written down before the doctor saw it (27 November 2026, night). The kinds of error are those of
public issues on float4_e2m1fn of ml_dtypes, cached_download, Keras 3 in transformers, torch_scatter's symbols, cv2.dnn.DictValue,
D3cold, error 805, repeated devices, amdgpu, "GPU access blocked by the operating system".
"""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from gpuwise.errors import DeviceError
from gpuwise.machine.devices.null import NullCard
from gpuwise.machine.doctor.host import CommandResult
from studies.scripted_machine import PYTHON, SITE, ScriptedMachine, scripted_machine, torch

from .asserting import Scenario, assert_cause, assert_healthy
from .test_scenarios_container import env, wsl
from .test_scenarios_imports import FINE
from .test_scenarios_issues import fails, not_listed
from .test_scenarios_releases import beside
from .test_scenarios_trials import imports, with_packages

USER = "/home/ada/.local/lib/python3.12/site-packages"
NONE_SEEN = torch("2.13.0+cu130", "13.0", "sm_75 sm_80 sm_86 sm_90 sm_100 sm_120")
ROCM = torch("2.13.0+rocm7.0", None, "gfx942 gfx1100", hip="7.0.51831")


def in_two_places(first: str) -> ScriptedMachine:
    """An environment with a torch for CUDA, and the user's own folder with one for the processor, which comes ``first``."""
    machine = scripted_machine(answers=[torch("2.4.1+cpu", None)])
    files = {f"{SITE}/torch-2.4.1+cpu.dist-info/METADATA": None, f"{SITE}/torch-2.13.0+cu130.dist-info/METADATA": ""}
    files |= {f"{USER}/torch-2.4.1+cpu.dist-info/METADATA": ""}
    order = [first, *({USER, SITE} - {first})]
    asked = {
        f"{PYTHON} -c import json,platform*": CommandResult(0, json.dumps([PYTHON, [3, 12, 4], "cpython-312", "x86_64", order]))
    }
    return replace(machine, host=replace(machine.host, commands={**asked, **machine.host.commands, **asked})).but(files=files)


FAULTY: dict[str, Scenario] = {
    "the user's own torch for the processor before the environment's": (
        lambda: in_two_places(USER),
        "torch-installed-twice",
        ("uninstall -y torch", "pip install torch==2.13.0"),
    ),
    # onnx/onnx, issue 7249
    "an onnx that is newer than its ml_dtypes": (
        lambda: beside(
            "AttributeError: module 'ml_dtypes' has no attribute 'float4_e2m1fn'", "onnx", onnx="1.19.0", ml_dtypes="0.4.1"
        ),
        "onnx-import-fails",
        ("-U", "ml_dtypes"),
    ),
    # UKPLab/sentence-transformers, issue 1762
    "an older sentence-transformers beside a newer hub": (
        lambda: beside(
            f"ImportError: cannot import name 'cached_download' from 'huggingface_hub' ({SITE}/huggingface_hub/__init__.py)",
            "sentence_transformers",
            sentence_transformers="2.2.2",
            huggingface_hub="0.27.0",
        ),
        "sentence-transformers-import-fails",
        ("-U", "sentence-transformers"),
    ),
    # huggingface/transformers, issue 34761
    "Keras 3 beside transformers": (
        lambda: beside(
            "RuntimeError: Failed to import transformers.modeling_tf_utils because of the following error (look up to see its "
            "traceback): Your currently installed version of Keras is Keras 3, but this is not yet supported in Transformers. "
            "Please install the backwards-compatible tf-keras package with `pip install tf-keras`.",
            "trl",
            trl="0.12.0",
            transformers="4.46.0",
            keras="3.15.1",
        ),
        "trl-import-fails",
        ("tf-keras",),
    ),
    # rusty1s/pytorch_scatter, issues 436 and 248
    "torch_scatter of another torch": (
        lambda: beside(
            f"OSError: {SITE}/torch_scatter/_version_cuda.so: undefined symbol: _ZN5torch3jit17parseSchemaOrNameERKSs",
            "torch_scatter",
            torch_scatter="2.1.2+pt25cu124",
            torch_geometric="2.8.1",
        ),
        "torch-scatter-import-fails",
        ("data.pyg.org/whl/torch-2.9.1+cu130.html", "torch-scatter"),
    ),
    # opencv/opencv-python, issue 884
    "an OpenCV of two halves": (
        lambda: beside(
            "AttributeError: module 'cv2.dnn' has no attribute 'DictValue'",
            "ultralytics",
            ultralytics="8.4.0",
            opencv_python="4.8.0",
        ),
        "ultralytics-import-fails",
        ("--force-reinstall", "opencv-python"),
    ),
    # NVIDIA/open-gpu-kernel-modules, issue 472
    "a card that does not wake": (
        lambda: not_listed(
            "0x2684", "[ 91.2] nvidia 0000:01:00.0: Unable to change power state from D3cold to D0, device inaccessible"
        ),
        "gpu-does-not-wake",
        ("NVreg_DynamicPowerManagement=0x00", "sudo reboot"),
    ),
    # pytorch/pytorch, forum threads on error 805
    "a server of MPS that is not there": (
        lambda: fails(
            "Unexpected error from cudaGetDeviceCount(). Error 805: MPS client failed to connect to the MPS control daemon or "
            "the MPS server"
        ).but(environment={"CUDA_MPS_PIPE_DIRECTORY": "/tmp/nvidia-mps"}),
        "torch-sees-no-gpu",
        ("nvidia-cuda-mps-control -d", "unset CUDA_MPS_PIPE_DIRECTORY"),
    ),
    "CUDA_VISIBLE_DEVICES names a card twice": (
        lambda: env(cards=("RTX 4090",) * 2, CUDA_VISIBLE_DEVICES="0,0"),
        "cuda-visible-devices-invalid",
        ("export CUDA_VISIBLE_DEVICES=0,1",),
    ),
    "CUDA_VISIBLE_DEVICES names a card as torch does": (
        lambda: env(CUDA_VISIBLE_DEVICES="cuda:0"),
        "cuda-visible-devices-invalid",
        ("export CUDA_VISIBLE_DEVICES=0",),
    ),
    # ROCm/ROCm, issue 1880
    "an AMD card and no amdgpu": (
        lambda: scripted_machine(cards=(NullCard("RX 7900 XTX"),), vendor="amd", driver=None, answers=[ROCM]).but(
            files={"/proc/modules": "ext4 1 1 - Live\n"}
        ),
        "amd-no-kfd",
        ("sudo modprobe amdgpu",),
    ),
    # microsoft/WSL, issue 9962
    "WSL whose Windows keeps the card to itself": (
        lambda: wsl(
            failed=DeviceError("GPU access blocked by the operating system", vendor="nvidia", code=17), answers=[NONE_SEEN]
        ),
        "driver-unanswered",
        ("wsl --update", "wsl --shutdown"),
    ),
}

HEALTHY = {
    "onnx and its ml_dtypes": lambda: imports(with_packages([FINE], onnx="1.20.0", ml_dtypes="0.5.4"), onnx=None),
    "torch_scatter of this torch": lambda: imports(with_packages([FINE], torch_scatter="2.1.3"), torch_scatter=None),
    "a server of MPS that answers": lambda: env(FINE, CUDA_MPS_PIPE_DIRECTORY="/tmp/nvidia-mps"),
    "CUDA_VISIBLE_DEVICES in another order": lambda: env(FINE, cards=("RTX 4090",) * 2, CUDA_VISIBLE_DEVICES="1,0"),
}


@pytest.mark.parametrize("case", FAULTY)
def test_cause_and_mend(case: str) -> None:
    assert_cause(FAULTY[case])


@pytest.mark.parametrize("case", HEALTHY)
def test_a_healthy_one_is_silent(case: str) -> None:
    assert_healthy(HEALTHY[case])
