"""TRL's YAML from a plan; read by ``TrlParser`` of trl 1.16 as ``trl sft --config`` does."""

from __future__ import annotations

import json
from collections.abc import Iterator

from gpuwise.export import hugging_face as hf
from gpuwise.export.deepspeed import config as deepspeed_config
from gpuwise.export.job import Job
from gpuwise.export.torchrun import started, torchrun
from gpuwise.export.written import Written
from gpuwise.export.yaml import to_yaml

VERSION = "trl 1.16"
MODULE = ["-m", "trl.scripts.sft"]
ALWAYS: dict[str, int | str | bool] = {"fused_loss": True}
"""Its loss (``loss_type="nll"``) never holds the logits of all tokens."""


def gaps(job: Job) -> Iterator[str]:
    """Those of the Trainer, of which it has two: it offloads activations, and recomputes selectively."""
    s = job.strategy
    alone = not (s.lora_rank or hf.by_fsdp(s) or hf.by_deepspeed(s))
    has = {"offloaded activations"} | ({"selective recomputing"} if alone else set())
    yield from (gap for gap in hf.gaps(job) if gap not in has)
    if s.quantized_base and s.precision == "fp16":
        yield "products in fp16 of weights in 4 bits"
    if s.quantized_base and not s.lora_rank:
        yield "weights in 4 bits without adapters"


def packs(job: Job) -> bool:
    """Whether attention stays inside documents: its packing without padding asks for FlashAttention's kernels."""
    return job.packed is not None and job.strategy.fused_attention


def document(job: Job) -> dict[str, object]:
    """The whole file: what the Trainer takes, and TRL's defaults where they are others than the plan's."""
    s = job.strategy
    attention = "flash_attention_2" if packs(job) else "sdpa" if s.fused_attention else "eager"
    document: dict[str, object] = {
        "model_name_or_path": job.model,
        "dtype": hf.weights_dtype(s),
        "attn_implementation": attention,
        "dataset_name": job.data,
        "max_length": job.seq_len,
        "packing": True,
        "packing_strategy": "bfd" if packs(job) else "wrapped",
        "bf16": False,
        "gradient_checkpointing": False,
        **{name: value for name, value in hf.settings(job).items() if name != "use_liger_kernel"},
    }
    if s.recompute == "selective":
        document |= {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"selective": True}}
    if s.offload_activations:
        document["activation_offloading"] = True
    if s.lora_rank:
        modules = hf.targets(s)
        document |= {"use_peft": True, "lora_r": s.lora_rank, "lora_alpha": 2 * s.lora_rank, "lora_dropout": 0.0}
        document["lora_target_modules"] = modules if isinstance(modules, list) else [modules]
    if s.quantized_base:
        document |= {"load_in_4bit": True, "use_bnb_nested_quant": True}
        document |= {"bnb_4bit_quant_storage": "bfloat16"} if hf.by_fsdp(s) else {}
    return document


def write(job: Job) -> Written:
    """torchrun with TRL's script and its file."""
    files = {"trl.yaml": to_yaml(document(job), f"{VERSION}: {job.arch.name} on {job.cluster.label}")}  # type: ignore[arg-type]
    if hf.by_fsdp(job.strategy):
        files["fsdp.json"] = json.dumps(hf.fsdp_config(job.strategy), indent=2) + "\n"
    if hf.by_deepspeed(job.strategy):
        files["deepspeed.json"] = json.dumps(deepspeed_config(job), indent=2) + "\n"
    notes = [*hf.placeholders(job), "to go on after a stop, add --resume_from_checkpoint true once there is a checkpoint"]
    if packs(job):
        notes.append("attention inside documents runs FlashAttention's own kernels: pip install flash-attn")
    return started(job, VERSION, [*torchrun(job), *MODULE, "--config", "trl.yaml"], files, notes, hf.mesh_variables(job))
