"""LLaMA-Factory's YAML from a plan; read by the ``HfArgumentParser`` of llamafactory 0.9.5."""

from __future__ import annotations

import json
from collections.abc import Iterator

from gpuwise.export import hugging_face as hf
from gpuwise.export.deepspeed import config as deepspeed_config
from gpuwise.export.job import Job
from gpuwise.export.torchrun import started, torchrun
from gpuwise.export.written import Written
from gpuwise.export.yaml import to_yaml
from gpuwise.workload.stacks.stack import find_stack

VERSION = "llamafactory 0.9.5"


def gaps(job: Job) -> Iterator[str]:
    """Beyond the Trainer's: it leaves FSDP to Accelerate, and some things go only together."""
    yield from hf.gaps(job)
    s = job.strategy
    if hf.by_fsdp(s):
        yield "FSDP by its own arguments (DeepSpeed's sharding it has)"
    if not s.master_weights and not s.lora_rank and (s.precision != "bf16" or s.sharding == "zero3"):
        yield f"weights in {s.precision} without a copy" + (" under ZeRO-3" if s.precision == "bf16" else "")
    if s.quantized_base and not s.lora_rank:
        yield "weights in 4 bits without adapters"
    if find_stack(s.stack).export.unsloth and s.sharding == "zero3":
        yield "Unsloth under ZeRO-3"


def document(job: Job) -> dict[str, object]:
    """The whole file. The tool recomputes by default."""
    s = job.strategy
    document: dict[str, object] = {
        "model_name_or_path": job.model,
        "flash_attn": "sdpa" if s.fused_attention else "disabled",
        "disable_gradient_checkpointing": s.recompute == "none",
        "stage": "pt",
        "do_train": True,
        "finetuning_type": "lora" if s.lora_rank else "full",
        "dataset": "data",
        "dataset_dir": ".",
        "cutoff_len": job.seq_len,
        "packing": True,
        "output_dir": job.output,
        "overwrite_output_dir": False,
        "per_device_train_batch_size": s.micro_batch,
        "gradient_accumulation_steps": s.accumulation,
        "learning_rate": job.learning_rate,
        "optim": hf.OPTIMIZERS[s.optimizer],
        "torch_compile": find_stack(s.stack).export.torch_compile,
    }
    if s.precision in ("bf16", "fp16", "tf32"):
        document[s.precision] = True
    if not s.master_weights and not s.lora_rank:
        document["pure_bf16"] = True
    if s.fused_loss:
        document["enable_liger_kernel"] = True
    if find_stack(s.stack).export.unsloth:
        document["use_unsloth"] = True
    if job.n_steps is not None:
        document["max_steps"] = job.n_steps
    if job.save_every is not None:
        document["save_steps"] = job.save_every
    if s.lora_rank:
        modules = hf.targets(s)
        document |= {"lora_rank": s.lora_rank, "lora_target": "all" if modules == "all-linear" else ",".join(modules)}
    if s.quantized_base:
        document |= {"quantization_bit": 4, "quantization_method": "bnb", "double_quantization": True}
    if hf.by_deepspeed(s):
        document["deepspeed"] = "deepspeed.json"
    return document


def write(job: Job) -> Written:
    """torchrun with its file and the list of data sets that it reads."""
    command = [*torchrun(job), "-m", "llamafactory.launcher", "llamafactory.yaml"]
    data_sets = {"data": {"hf_hub_url": job.data, "columns": {"prompt": "text"}}}
    files = {
        "llamafactory.yaml": to_yaml(document(job), f"{VERSION}: {job.arch.name} on {job.cluster.label}"),  # type: ignore[arg-type]
        "dataset_info.json": json.dumps(data_sets, indent=2) + "\n",
    }
    if hf.by_deepspeed(job.strategy):
        files["deepspeed.json"] = json.dumps(deepspeed_config(job), indent=2) + "\n"
    return started(job, VERSION, command, files, hf.notes(job))
