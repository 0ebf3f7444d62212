"""The formats of the fact files behind picking and memory: software support, boards, notebooks, contexts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gpuwise.facts.hardware.boards import BOARD_SCHEMA
from gpuwise.facts.hardware.core_ids import CORE_ID_SCHEMA
from gpuwise.facts.hardware.sm_limits import SM_LIMIT_SCHEMA
from gpuwise.facts.hardware.sm_timing import SM_TIMING_SCHEMA
from gpuwise.facts.hardware.xids import XID_SCHEMA
from gpuwise.facts.loading import Field
from gpuwise.facts.models.convnets import CONVNET_SCHEMA
from gpuwise.facts.models.denoisers import DENOISER_SCHEMA
from gpuwise.facts.models.known_runs import KNOWN_RUN_SCHEMA
from gpuwise.facts.models.trained import TRAINED_SCHEMA
from gpuwise.facts.offers.notebooks import NOTEBOOK_SCHEMA
from gpuwise.facts.software.compatibility import (
    CUDA_ERROR_SCHEMA,
    DRIVER_SCHEMA,
    GENERATION_SCHEMA,
    IMAGE_SCHEMA,
    ROCM_SCHEMA,
    WHEEL_SCHEMA,
)
from gpuwise.facts.software.encoder_programs import ENCODER_PROGRAM_SCHEMA
from gpuwise.facts.software.os_commands import OS_COMMAND_SCHEMA
from gpuwise.facts.software.speech_programs import SPEECH_PROGRAM_SCHEMA
from gpuwise.facts.software.support import FACT_SCHEMA, JOB_SCHEMA, TARGET_SCHEMA
from gpuwise.predict.memory.context import COMMUNICATOR_SCHEMA, CONTEXT_SCHEMA


def support_formats() -> Iterable[tuple[str, str, Mapping[str, Field]]]:
    """Title, meaning and schema of each file."""
    yield (
        "software_targets.csv",
        "One line is one thing software compiles for, and the devices that are it. The order counts: a run `a..b` in "
        "software.csv is read in it.",
        TARGET_SCHEMA,
    )
    yield (
        "software.csv",
        "One line is one dated fact about a run of targets; no two may speak of one subject for one target. `level` is none, "
        "unknown, emulated or native for the topic dtype, and none, unknown, partial or full for the others.",
        FACT_SCHEMA,
    )
    yield (
        "software_jobs.toml",
        "One table is one job: frameworks meant for it, what stands in, and what else it wants.",
        JOB_SCHEMA,
    )
    yield (
        "boards.csv",
        "One line for each accelerator: what it asks of its machine, and whether it can be had.",
        BOARD_SCHEMA,
    )
    yield (
        "core_ids.csv",
        "One line is one range of numbers by which Linux reports the cores of servers. On Arm `vendor` is the implementer and "
        "`model` the part.",
        CORE_ID_SCHEMA,
    )
    yield (
        "notebooks.csv",
        "One line is one plan of a hosted notebook with one accelerator. Fees in US dollars without tax; `until` is the "
        "day it was withdrawn.",
        NOTEBOOK_SCHEMA,
    )
    yield (
        "denoisers.toml",
        "One table is a network that makes images of noise: what one evaluation computes, how many an image takes, what stays on "
        "the device beside the weights.",
        DENOISER_SCHEMA,
    )
    yield (
        "convnets.toml",
        "One table is a residual network of convolutions: its blocks, and what `capacity --workload vision` serves it at.",
        CONVNET_SCHEMA,
    )
    yield (
        "trained.toml",
        "One table is a network that is trained by name: what a step of it is made for by default.",
        TRAINED_SCHEMA,
    )
    yield (
        "speech_programs.toml",
        "One table is a program that writes speech down: how it cuts a recording and batches the windows, whose costs it has.",
        SPEECH_PROGRAM_SCHEMA,
    )
    yield (
        "encoder_programs.toml",
        "One table is a program that embeds texts: how it computes and batches them.",
        ENCODER_PROGRAM_SCHEMA,
    )
    yield (
        "known_runs.csv",
        "One line is a training run whose time was published: its tokens, GPU hours (restarts and evaluation included) or days "
        "on so many GPUs.",
        KNOWN_RUN_SCHEMA,
    )
    yield (
        "contexts.csv",
        "One line is one measurement of the device memory a CUDA process holds outside torch's allocator, in MiB. `loading` is "
        "lazy where kernels load when first run; `state` is bare for a context that has run nothing, running for a job.",
        CONTEXT_SCHEMA,
    )
    yield (
        "communicators.csv",
        "One line is the device memory, in MiB, that one NCCL communicator of so many ranks holds outside torch's allocator.",
        COMMUNICATOR_SCHEMA,
    )
    yield (
        "sm_limits.csv",
        "One line is what one multiprocessor of a CUDA compute capability holds. Registers count 32 bits, shared memory bytes; "
        "`carveouts_kib` are the sizes of shared memory it can be set to.",
        SM_LIMIT_SCHEMA,
    )
    yield (
        "sm_timing.csv",
        "One line is the measured cycles of one multiprocessor of a CUDA compute capability: how long a warp waits for a result.",
        SM_TIMING_SCHEMA,
    )
    yield (
        "xids.csv",
        "One line is one number under which the NVIDIA driver reports errors: what it means, what NVIDIA advises at once, and "
        "what `then` if it comes again.",
        XID_SCHEMA,
    )
    yield from _doctor_formats()


def _doctor_formats() -> Iterable[tuple[str, str, Mapping[str, Field]]]:
    """What `gpuwise doctor` judges by."""
    yield (
        "compatibility.csv",
        "One line is one build of PyTorch for Linux x86_64. A release that ends in `.*` is every patch of it; `driver_*` is the "
        "oldest driver of its CUDA family, `paired_driver_*` the one released with its CUDA; `pypi_default` is what `pip install "
        "torch` takes; `architectures` is empty where nobody published them. Sealed.",
        WHEEL_SCHEMA,
    )
    yield (
        "nvidia_generations.csv",
        "One line is one generation of NVIDIA GPUs: how its chips are called, the driver branches that serve it, and the kernel "
        "modules it runs with.",
        GENERATION_SCHEMA,
    )
    yield (
        "cuda_errors.csv",
        "One line is one error of the CUDA driver and the words frameworks print for it.",
        CUDA_ERROR_SCHEMA,
    )
    yield ("container_images.csv", "One line is one image to start from, with the Python of its distribution.", IMAGE_SCHEMA)
    yield ("driver_cuda.csv", "One line is one branch of NVIDIA's driver and its newest CUDA.", DRIVER_SCHEMA)
    yield ("rocm_wheels.csv", "One line is one series of PyTorch and the build of it for AMD.", ROCM_SCHEMA)
    yield (
        "os_commands.toml",
        "One table is one family of Linux distributions and the commands that install a driver there.",
        OS_COMMAND_SCHEMA,
    )
