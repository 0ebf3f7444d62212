"""Findings about memory: allocator retries, recomputation that is not needed."""

from __future__ import annotations

from gpuwise.train.profile.finding import Evidence, Finding
from gpuwise.train.profile.operations import OP_CATEGORIES
from gpuwise.train.profile.profile_data import ProfileData
from gpuwise.train.profile.split import ALLOCATOR
from gpuwise.train.profile.trace import RUNTIME_CATEGORIES

FREE = 0.4
"""Share of the memory that is free above which saving memory by recomputation is not needed. Rule of this project."""


def thrash(data: ProfileData) -> Finding | None:
    """Device memory allocated from and returned to the driver in steady steps."""
    if data.trace is None:
        return None
    rows = data.rows(
        RUNTIME_CATEGORIES, lambda n: n in ("cudaMalloc", "cudaFree", "hipMalloc", "hipFree") or n.startswith("cuMemMap")
    )
    retries = data.facts.memory.get("retries") if data.facts is not None else None
    if not len(rows):
        return None
    first = int(rows[0])
    said = [
        Evidence(
            data.trace.text(first), data.where(float(data.trace.start_s[first])), len(rows) / data.n_steps, data.seconds(rows)
        )
    ]
    if retries:
        said.append(Evidence("memory ran out and was given back", count=float(retries)))
    return Finding(
        "allocator thrash",
        "The allocator asks the driver for memory in every step",
        data.part(ALLOCATOR),
        "high",
        tuple(said),
        ("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True python train.py", "# and no torch.cuda.empty_cache() in the loop"),
        note="`gpuwise memory SNAPSHOT` replays other settings",
    )


def recompute(data: ProfileData) -> Finding | None:
    """Activation checkpointing although the activations would fit."""
    if data.trace is None:
        return None
    again = data.rows(
        ("python_function",),
        lambda n: n.startswith("torch/utils/checkpoint.py(") and n.endswith((": unpack_hook", ": recompute_fn")),
    )
    if not len(again):
        again = data.rows(OP_CATEGORIES, lambda n: n == "CheckpointFunctionBackward")
        if not len(again):
            return None
        # forward again and backward in one: a third of it
        spent = data.seconds(again) / 3
    else:
        spent = data.seconds(again)
    free = _free_share(data)
    if free is None or free < FREE:
        return None
    # stacks and operations were traced alike: the share of the computing is as in the trace
    spent = min(spent * data.factor, data.part("compute") / 3)
    first = int(again[0])
    return Finding(
        "needless recompute",
        "Activations are computed again although memory is free",
        spent,
        "medium",
        (
            Evidence("torch.utils.checkpoint", data.where(float(data.trace.start_s[first])), len(again) / data.n_steps, spent),
            Evidence(f"{100 * free:.0f} % of the memory was never used"),
        ),
        ("# without torch.utils.checkpoint; in transformers: model.gradient_checkpointing_disable()",),
        note="`gpuwise fit` predicts the memory without it",
    )


def _free_share(data: ProfileData) -> float | None:
    if data.facts is None or not data.device.memory_bytes:
        return None
    used = data.facts.memory.get("peak_reserved_bytes" if data.on_gpu else "peak_host_bytes")
    return None if used is None else 1 - float(used) / data.device.memory_bytes
