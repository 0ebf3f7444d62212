"""Installations that public issues tell of: PyTorch or a library beside it does not import, or a variable is wrong.

What is true of each was written down before the doctor saw it (27 November 2026). The issues: pytorch/pytorch 123097 (iJIT),
119932 (NCCL), 2575 (static TLS), huggingface/transformers 36362 and 42036, bitsandbytes 1492, jax-ml/jax 17921.
"""

from __future__ import annotations

import pytest

from gpuwise.machine.devices.null import NullCard
from gpuwise.machine.doctor.host import CommandResult
from studies.scripted_machine import SITE, ScriptedMachine, broken_framework, scripted_machine, torch

from .asserting import Scenario, assert_cause, assert_healthy
from .test_scenarios_rented import not_taken
from .test_scenarios_trials import imports, with_packages

CU130 = "sm_75 sm_80 sm_86 sm_90 sm_100 sm_120"
FINE = torch("2.9.1+cu130", "13.0", CU130, devices=[(8, 9)])
IMPORTING = '{"stage": "import"}\n'


def fails(error: str, version: str = "2.9.1+cu128") -> ScriptedMachine:
    """PyTorch whose import ends with this error."""
    told = error.replace('"', '\\"')
    return scripted_machine(
        answers=[broken_framework("torch", version, CommandResult(1, f'{IMPORTING}{{"failed": "{told}"}}\n'))]
    )


def radeon(**environment: str) -> ScriptedMachine:
    card = NullCard("RX 7900 XTX", identity={"compute_capability": None, "architecture": "gfx1100"})
    failed = ["HIP error: invalid device function"] if environment else None
    said = torch("2.9.1+rocm6.4", None, "gfx90a gfx942 gfx1030 gfx1100", hip="6.4.43482", devices=[(11, 0)], ran=failed)
    machine = scripted_machine(cards=(card,), vendor="amd", driver="6.12", cuda=None, answers=[said])
    return machine.but(files={"/dev/kfd": ""}, environment=environment)


def volta() -> ScriptedMachine:
    """A V100, whose processor for the open modules is not there, under them."""
    said = (
        "[ 3.1] NVRM: The NVIDIA GPU 0000:01:00.0 (PCI ID: 10de:1db1) installed in this system is not supported by open "
        "nvidia.ko because it does not include the required GPU System Processor (GSP)."
    )
    return not_taken("V100-SXM2-16GB", "580.95.05", said)


FAULTY: dict[str, Scenario] = {
    "a newer MKL beside conda's torch": (
        lambda: fails(f"ImportError: {SITE}/torch/lib/libtorch_cpu.so: undefined symbol: iJIT_NotifyEvent"),
        "torch-import-fails",
        ("mkl<2024.1",),
    ),
    "an older typing_extensions": (
        lambda: fails(f"ImportError: cannot import name 'TypeIs' from 'typing_extensions' ({SITE}/typing_extensions.py)"),
        "torch-import-fails",
        ("pip install -U typing_extensions",),
    ),
    "an older NCCL beside torch": (
        lambda: fails(f"ImportError: {SITE}/torch/lib/libtorch_cuda.so: undefined symbol: ncclCommRegister"),
        "torch-import-fails",
        ("pip install", "torch==2.9.1"),
    ),
    "cuDNN's wheel was uninstalled": (
        lambda: fails("ImportError: libcudnn.so.9: cannot open shared object file: No such file or directory"),
        "torch-import-fails",
        ("pip install", "torch==2.9.1"),
    ),
    "cuSPARSELt's wheel was uninstalled": (
        lambda: fails("ImportError: libcusparseLt.so.0: cannot open shared object file: No such file or directory"),
        "torch-import-fails",
        ("pip install", "torch==2.9.1"),
    ),
    "no room for a library's thread storage": (
        lambda: fails(f"ImportError: {SITE}/torch/lib/libgomp-d22c30c5.so.1: cannot allocate memory in static TLS block"),
        "torch-import-fails",
        (f"LD_PRELOAD={SITE}/torch/lib/libgomp-d22c30c5.so.1",),
    ),
    "a file called torch.py in the folder": (
        lambda: fails(
            "AttributeError: partially initialized module 'torch' has no attribute 'version' (most likely due to a circular "
            "import) (/home/ada/work/torch.py)"
        ),
        "torch-import-fails",
        ("mv /home/ada/work/torch.py",),
    ),
    "a misspelt option of the allocator": (
        lambda: scripted_machine(
            answers=[
                torch(
                    "2.9.1+cu130",
                    "13.0",
                    CU130,
                    devices=[(8, 9)],
                    ran=["Unrecognized key 'max_split_size' in CUDA allocator config."],
                )
            ]
        ).but(environment={"PYTORCH_CUDA_ALLOC_CONF": "max_split_size:128"}),
        "torch-run-fails",
        ("unset PYTORCH_CUDA_ALLOC_CONF",),
    ),
    "a stand-in for a card's code, where it needs none": (
        lambda: radeon(HSA_OVERRIDE_GFX_VERSION="10.3.0"),
        "torch-run-fails",
        ("unset HSA_OVERRIDE_GFX_VERSION",),
    ),
    "a V100 and the open modules": (volta, "closed-modules-needed", ("nvidia-driver-580",)),
    "a hub of a newer family beside transformers": (
        lambda: imports(
            with_packages([FINE], transformers="4.57.0", huggingface_hub="1.0.1"),
            transformers="ImportError: huggingface-hub>=0.34.0,<1.0 is required for a normal functioning of this module, but "
            "found huggingface-hub==1.0.1.",
        ),
        "transformers-import-fails",
        ("pip install", "huggingface-hub>=0.34.0,<1.0"),
    ),
    "a newer peft beside older transformers": (
        lambda: imports(
            with_packages([FINE], peft="0.18.0", transformers="4.40.0"),
            peft=f"ImportError: cannot import name 'EncoderDecoderCache' from 'transformers' ({SITE}/transformers/__init__.py)",
        ),
        "peft-import-fails",
        ("pip install -U transformers",),
    ),
    "an older bitsandbytes beside today's Triton": (
        lambda: imports(
            with_packages([FINE], bitsandbytes="0.44.1", triton="3.5.0"),
            bitsandbytes="ModuleNotFoundError: No module named 'triton.ops'",
        ),
        "bitsandbytes-import-fails",
        ("pip install -U bitsandbytes",),
    ),
    "xformers of another torch": (
        lambda: imports(
            with_packages([FINE], xformers="0.0.28"),
            xformers=f"ImportError: {SITE}/xformers/_C.so: undefined symbol: _ZN3c104cuda9SetDeviceEi",
        ),
        "xformers-import-fails",
        ("pip install", "xformers"),
    ),
}
HEALTHY = {
    "a Radeon with no stand-in": radeon,
    "an option of the allocator that it has": lambda: scripted_machine(answers=[FINE]).but(
        environment={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    ),
}


@pytest.mark.parametrize("name", FAULTY)
def test_the_cause_and_what_mends_it(name: str) -> None:
    assert_cause(FAULTY[name])


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_machine(name: str) -> None:
    assert_healthy(HEALTHY[name])
