"""Axolotl's YAML from a plan; read by ``AxolotlInputConfig`` of axolotl 0.19, which takes unknown keys in silence."""

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

VERSION = "axolotl 0.19.0"


def gaps(job: Job) -> Iterator[str]:
    """Parts of the plan without an argument in the Trainer inside."""
    yield from hf.gaps(job)
    s = job.strategy
    if s.quantized_base and s.sharding == "zero3" and hf.by_deepspeed(s):
        yield "weights in 4 bits under ZeRO-3"
    if hf.by_fsdp(s) and ("8bit" in s.optimizer or "paged" in s.optimizer):
        yield f"the optimizer {s.optimizer} of bitsandbytes with FSDP2"


def document(job: Job) -> dict[str, object]:
    """The whole file."""
    s = job.strategy
    document: dict[str, object] = {
        "base_model": job.model,
        "datasets": [{"path": job.data, "type": "completion"}],
        "sequence_len": job.seq_len,
        "sample_packing": True,
        "attn_implementation": "sdpa" if s.fused_attention else "eager",
        "micro_batch_size": s.micro_batch,
        "gradient_accumulation_steps": s.accumulation,
        "optimizer": hf.OPTIMIZERS[s.optimizer],
        "learning_rate": job.learning_rate,
        "bf16": s.precision == "bf16",
        "fp16": s.precision == "fp16",
        "tf32": s.precision == "tf32",
        "gradient_checkpointing": s.recompute == "full" and not hf.by_fsdp(s),
        "torch_compile": find_stack(s.stack).export.torch_compile,
        "num_epochs": 1,
        "output_dir": job.output,
        "auto_resume_from_checkpoints": True,
    }
    if job.n_steps is not None:
        document["max_steps"] = job.n_steps
    if job.save_every is not None:
        document["save_steps"] = job.save_every
    if not s.master_weights and not s.lora_rank:
        document["bfloat16" if s.precision == "bf16" else "float16"] = True
    if s.fused_loss:
        document |= {"plugins": ["axolotl.integrations.liger.LigerPlugin"], "liger_fused_linear_cross_entropy": True}
    if s.lora_rank:
        modules = hf.targets(s)
        document |= {"adapter": "qlora" if s.quantized_base else "lora", "lora_r": s.lora_rank, "lora_alpha": 2 * s.lora_rank}
        document |= {"lora_target_linear": True} if modules == "all-linear" else {"lora_target_modules": modules}
        document |= {"load_in_4bit": True} if s.quantized_base else {}
    if hf.by_deepspeed(s):
        document["deepspeed"] = "deepspeed.json"
    if hf.by_fsdp(s):
        names = {"cpu_offload": "offload_params"}
        document["fsdp_version"] = 2
        document["fsdp_config"] = {names.get(k, k): v for k, v in hf.fsdp_config(s).items() if k != "version"}
        document |= hf.mesh(job)
    return document


def write(job: Job) -> Written:
    """torchrun with Axolotl's file."""
    command = [*torchrun(job), "-m", "axolotl.cli.train", "axolotl.yaml"]
    files = {"axolotl.yaml": to_yaml(document(job), f"{VERSION}: {job.arch.name} on {job.cluster.label}")}  # type: ignore[arg-type]
    if hf.by_deepspeed(job.strategy):
        files["deepspeed.json"] = json.dumps(deepspeed_config(job), indent=2) + "\n"
    return started(job, VERSION, command, files, hf.notes(job))
