"""The formats of the fact files behind picking and memory: software support, boards, notebooks, contexts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gpuwise.facts.boards import BOARD_SCHEMA
from gpuwise.facts.loading import Field
from gpuwise.facts.notebooks import NOTEBOOK_SCHEMA
from gpuwise.facts.software import FACT_SCHEMA, JOB_SCHEMA, TARGET_SCHEMA
from gpuwise.facts.xids import XID_SCHEMA
from gpuwise.predict.context import COMMUNICATOR_SCHEMA, CONTEXT_SCHEMA


def support_formats() -> Iterable[tuple[str, str, Mapping[str, Field]]]:
    """Title, meaning and schema of each file."""
    yield (
        "software_targets.csv",
        "One line is one thing software compiles for, and the devices that are it. The order counts: a run `a..b` in "
        "software.toml is read in it.",
        TARGET_SCHEMA,
    )
    yield (
        "software.toml",
        "One table is one dated fact about a run of targets; no two may speak of one subject for one target. `level` is none, "
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
        "notebooks.csv",
        "One line is one plan of a hosted notebook with one accelerator. Fees in US dollars without tax; `until` is the "
        "day it was withdrawn.",
        NOTEBOOK_SCHEMA,
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
        "xids.csv",
        "One line is one number under which the NVIDIA driver reports errors: what it means, what NVIDIA advises at once, and "
        "what `then` if it comes again.",
        XID_SCHEMA,
    )
