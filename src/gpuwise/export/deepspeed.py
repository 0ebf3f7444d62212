"""DeepSpeed's JSON from a plan; read by ``DeepSpeedConfig`` of deepspeed 0.19, whose unknown top-level keys pass in silence."""

from __future__ import annotations

from collections.abc import Iterator

from gpuwise.export.job import Job
from gpuwise.workload.strategy import Strategy

VERSION = "deepspeed 0.19"
STAGES = {"none": 0, "zero1": 1, "zero2": 2, "zero3": 3}


def gaps(job: Job) -> Iterator[str]:
    """Beyond the Trainer's: what ZeRO cannot do."""
    s = job.strategy
    if s.sharding not in STAGES:
        yield f"{s.sharding} sharding (FSDP has it)"
    if s.shard_group:
        yield f"groups of {s.shard_group} ranks"
    if s.offload_optimizer and s.sharding == "none" and s.dp > 1:
        yield "an offloaded optimizer without sharding"
    elif s.sharding == "none" and s.dp > 1 and s.widens_gradients:
        yield "gradients in fp32 of 16-bit weights without sharding"


def _stage(s: Strategy) -> int:
    """A single rank shards nothing: it offloads as the stage that reduces gradients to where their states are (that of the
    parameters where they are offloaded), and adds 16-bit gradients up in fp32 as stage 1 (runtime/engine.py
    _do_optimizer_sanity_check: without ZeRO the formats must be one)."""
    if s.offload_parameters:
        return STAGES["zero3"]
    if s.sharding != "none" or s.dp > 1:
        return STAGES.get(s.sharding, 0)
    return 2 if s.offload_optimizer else int(s.widens_gradients)


def config(job: Job) -> dict[str, object]:
    """Batch, precision, ZeRO stage and offload; values that the Trainer could fill in ("auto") are written out."""
    s = job.strategy
    zero: dict[str, object] = {
        "stage": _stage(s),
        "overlap_comm": s.overlap_dp,
        "contiguous_gradients": True,
    }
    if zero["stage"] == STAGES["zero3"]:
        zero["stage3_gather_16bit_weights_on_model_save"] = True
    if s.offload_optimizer:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    if s.offload_parameters:
        zero["offload_param"] = {"device": "cpu", "pin_memory": True}
    settings: dict[str, object] = {
        "train_batch_size": s.global_batch,
        "train_micro_batch_size_per_gpu": s.micro_batch,
        "gradient_accumulation_steps": s.accumulation,
        "gradient_clipping": 1.0,
        "zero_optimization": zero,
    }
    if s.precision == "bf16":
        settings["bf16"] = {"enabled": True}
    elif s.precision == "fp16":
        settings["fp16"] = {"enabled": True}
    if s.widens_gradients:
        settings["data_types"] = {"grad_accum_dtype": "fp32"}
    return settings
