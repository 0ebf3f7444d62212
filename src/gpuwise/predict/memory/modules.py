"""Device memory of a plain PyTorch step on one device: its operations replayed as those of a captured step are.

The writer of :mod:`gpuwise.workload.transformer.whole_step` hands over what a capture of the same modules records; from
there on it is :mod:`gpuwise.predict.memory.capture`: the same allocator, the same workspaces, the same context. A search
keeps to the columns of :mod:`gpuwise.predict.memory.strategies`; this is for the answers.
"""

from __future__ import annotations

from functools import lru_cache

from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.facts.models.architecture import Architecture
from gpuwise.predict.memory.capture import CapturedMemory, Replayed, captured_memory
from gpuwise.workload.blocks.point import Point
from gpuwise.workload.capture.captured import Capture, Category
from gpuwise.workload.optimizer import PAGED, autocasts
from gpuwise.workload.strategy import Strategy
from gpuwise.workload.transformer.eager import describes
from gpuwise.workload.transformer.whole_step import ON_HOST, STATES, whole_step

_PARTS = {
    Category.PARAMETER: "weights",
    Category.BUFFER: "weights",
    Category.GRADIENT: "gradients",
    Category.OPTIMIZER: "optimizer",
    Category.INPUT: "activations",
    Category.ACTIVATION: "activations",
    Category.TEMPORARY: "temporaries",
    Category.WORKSPACE: "temporaries",
    Category.COMMUNICATION: "communication",
}


def replays(arch: Architecture, point: Point, strategy: Strategy) -> bool:
    """Whether the step of ``strategy`` can be written operation by operation: plain modules, whole on one device."""
    half = point.element_bytes < 4
    plain = not strategy.master_weights and (strategy.lora_rank > 0 or strategy.gradient_dtype == strategy.precision)
    plain |= strategy.quantized_base
    widths = autocasts(strategy) or not half or plain
    whole = strategy.n_accelerators == 1 and strategy.sharding == "none" and not strategy.step_in_backward
    listed = strategy.recompute in ("none", "full") and strategy.recompute_every == 1 and strategy.optimizer in (*STATES, *PAGED)
    return (
        point.stack.per_op
        and whole
        and listed
        and not (strategy.offload_activations or strategy.step_in_backward)
        and widths
        and describes(arch, point)
    )


def modules_memory(arch: Architecture, point: Point, strategy: Strategy, accelerator: Accelerator) -> CapturedMemory:
    """Memory of the step of ``strategy`` at ``point`` on ``accelerator``, for one that :func:`replays`. A paged optimizer's
    states are excluded: they are outside torch's allocator and leave the device when it is full."""
    optimizer = ON_HOST if strategy.offload_optimizer or strategy.optimizer in PAGED else strategy.optimizer
    return _replayed(arch, point, strategy.recompute, optimizer, min(strategy.accumulation, 2), accelerator)


@lru_cache(maxsize=64)
def _replayed(
    arch: Architecture, point: Point, recompute: str, optimizer: str, micro_batches: int, accelerator: Accelerator
) -> CapturedMemory:
    step, replays = _step(arch, point, recompute, optimizer, micro_batches)
    return captured_memory(step, accelerator, compiled=point.stack.compiled, replays=replays)


@lru_cache(maxsize=16)
def _step(
    arch: Architecture, point: Point, recompute: str, optimizer: str, micro_batches: int
) -> tuple[Capture, dict[object, Replayed]]:
    """The step, which is the same on every accelerator (a search over devices uses a handful), and its replays, some of which
    accelerators share."""
    return whole_step(arch, point, recompute=recompute, optimizer=optimizer, micro_batches=micro_batches), {}


def memory_parts(memory: CapturedMemory, arch: Architecture, point: Point) -> dict[str, float]:
    """Expected bytes by the parts of :data:`gpuwise.predict.memory.strategies.PARTS`; they sum to the process."""
    from gpuwise.predict.memory.strategies import PARTS

    parts: dict[str, float] = dict.fromkeys(PARTS, 0.0)
    for category, size in memory.by_category.items():
        parts[_PARTS[category]] += size
    logits = point.tokens * arch.vocab if arch.lm_head else 0
    for one in memory.largest:
        # the logits, their widened copies and their gradients
        if logits and one.size_bytes in (logits * 2, logits * 4) and one.category in (Category.ACTIVATION, Category.TEMPORARY):
            parts[_PARTS[one.category]] -= one.size_bytes
            parts["logits"] += one.size_bytes
    parts["context"] = memory.context.expected
    parts["communication"] += memory.communicators.expected
    parts["reserve"] = memory.process.expected - sum(parts.values())
    return parts
