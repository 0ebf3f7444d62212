"""Releases that do not go together, and libraries that a newer system loads otherwise, as public issues tell of them.

What is true of each was written down before the doctor saw it (27 November 2026). Of the issues:
conda-forge/pytorch-cpu-feedstock 350 (executable stack), microsoft/WSL 8587 (libcuda.so), Dao-AILab/flash-attention 1708,
acsone/setuptools-odoo 125 (pkg_resources).
"""

from __future__ import annotations

import pytest

from gpuwise.machine.devices.null import NullCard
from studies.scripted_machine import SITE, ScriptedMachine, scripted_machine, torch

from .asserting import Scenario, assert_cause, assert_healthy
from .test_scenarios_container import wsl
from .test_scenarios_imports import FINE, fails
from .test_scenarios_trials import imports, with_packages

CU128 = "sm_70 sm_75 sm_80 sm_86 sm_90 sm_100 sm_120"


def beside(error: str, library: str, **versions: str) -> ScriptedMachine:
    """PyTorch as it should be, and a library whose import ends with this error."""
    return imports(with_packages([FINE], **versions), **{library: error})


FAULTY: dict[str, Scenario] = {
    "an older torch on a system whose loader refuses executable stacks": (
        lambda: fails(
            f"ImportError: {SITE}/torch/lib/libtorch_cpu.so: cannot enable executable stack as shared object requires: "
            "Invalid argument",
            "2.5.1+cu124",
        ),
        "torch-import-fails",
        ("pip install", "torch==2."),
    ),
    "WSL, whose libcuda.so is in a folder that the loader does not know": (
        lambda: wsl(
            answers=[
                torch(
                    "2.9.1+cu128",
                    "12.8",
                    CU128,
                    devices=[(8, 9)],
                    ran=["Could not load library libcudnn_graph.so.9. Error: libcuda.so: cannot open shared object file"],
                )
            ]
        ),
        "torch-run-fails",
        ("/usr/lib/wsl/lib",),
    ),
    "torchvision whose operators stop in the middle of its import": (
        lambda: beside(
            "AttributeError: partially initialized module 'torchvision' has no attribute 'extension' (most likely due to a "
            "circular import)",
            "torchvision",
            torchvision="0.19.0",
        ),
        "torchvision-mismatch",
        ("torchvision", "torch==2.9.1"),
    ),
    "an older hub beside accelerate": (
        lambda: beside(
            f"ImportError: cannot import name 'split_torch_state_dict_into_shards' from 'huggingface_hub' ({SITE}/x.py)",
            "accelerate",
            accelerate="1.2.0",
            huggingface_hub="0.20.3",
        ),
        "accelerate-import-fails",
        ("-U", "huggingface"),
    ),
    "an older diffusers beside today's hub": (
        lambda: beside(
            f"ImportError: cannot import name 'cached_download' from 'huggingface_hub' ({SITE}/huggingface_hub/__init__.py)",
            "diffusers",
            diffusers="0.25.0",
            huggingface_hub="0.36.0",
        ),
        "diffusers-import-fails",
        ("-U", "diffusers"),
    ),
    "setuptools of today beside an older Lightning": (
        lambda: beside(
            "ModuleNotFoundError: No module named 'pkg_resources'",
            "pytorch_lightning",
            pytorch_lightning="1.9.5",
            setuptools="82.0.0",
        ),
        "pytorch-lightning-import-fails",
        ("setuptools<81",),
    ),
    "a wheel of flash-attn for a newer system": (
        lambda: beside(
            "ImportError: /lib/x86_64-linux-gnu/libc.so.6: version `GLIBC_2.32' not found (required by "
            f"{SITE}/flash_attn_2_cuda.cpython-311-x86_64-linux-gnu.so)",
            "flash_attn",
            flash_attn="2.8.3",
        ),
        "flash-attn-import-fails",
        ("FLASH_ATTENTION_FORCE_BUILD=TRUE",),
    ),
    "scikit-learn of NumPy 2 beside NumPy 1": (
        lambda: beside(
            "ValueError: numpy.dtype size changed, may indicate binary incompatibility. Expected 96 from C header, got 88 from "
            "PyObject",
            "transformers",
            transformers="4.57.0",
            numpy="1.26.4",
            scikit_learn="1.7.2",
        ),
        "transformers-import-fails",
        ("-U", "numpy"),
    ),
    "an older torchao's types beside an older torch": (
        lambda: imports(
            with_packages(
                [torch("2.5.1+cu124", "12.4", "sm_50 sm_60 sm_70 sm_75 sm_80 sm_86 sm_90", devices=[(8, 9)])],
                diffusers="0.35.2",
                torchao="0.14.1",
            ),
            diffusers="AttributeError: module 'torch' has no attribute 'int1'",
        ),
        "diffusers-import-fails",
        ("pip install", "torch==2."),
    ),
    "a Tesla M40 and a wheel without Maxwell": (
        lambda: scripted_machine(
            cards=(NullCard("M40"),),
            answers=[torch("2.9.1+cu128", "12.8", CU128, devices=[(5, 2)], ran=["no kernel image is available"])],
        ),
        "torch-lacks-card",
        ("whl/cu126",),
    ),
}
HEALTHY = {
    "WSL with a cuDNN that finds libcuda.so": lambda: wsl(answers=[FINE]),
    "the same libraries, which import": lambda: imports(
        with_packages([FINE], accelerate="1.12.0", diffusers="0.36.0", flash_attn="2.8.3"),
        accelerate=None,
        diffusers=None,
        flash_attn=None,
    ),
}


@pytest.mark.parametrize("name", FAULTY)
def test_the_cause_and_what_mends_it(name: str) -> None:
    assert_cause(FAULTY[name])


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_machine(name: str) -> None:
    assert_healthy(HEALTHY[name])
