"""Unsloth's script from a plan: ``FastLanguageModel`` and TRL's trainer, by the argument names of unsloth 2026.10."""

from __future__ import annotations

from collections.abc import Iterator

from gpuwise.export import hugging_face as hf
from gpuwise.export.job import Job
from gpuwise.export.torchrun import started, torchrun
from gpuwise.export.written import Written

VERSION = "unsloth 2026.10"
ALWAYS: dict[str, int | str | bool] = {"fused_loss": True}
"""Its loss never holds the logits of all tokens (unsloth_zoo fused_losses)."""
LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
"""Its default target_modules (``_DEFAULT_TARGET_MODULES``): it takes names, not "all-linear"."""


def gaps(job: Job) -> Iterator[str]:
    """Those of the Trainer, but that checkpoints go to host memory; and what it does not do on many GPUs."""
    s = job.strategy
    yield from (gap for gap in hf.gaps(job) if gap != "offloaded activations")
    if s.sharding != "none" or s.offload_optimizer:
        yield "sharded or offloaded states"
    if s.offload_activations and s.recompute != "full":
        yield "offloaded activations without full recomputing"
    if s.quantized_base and not s.lora_rank:
        yield "weights in 4 bits without adapters"
    if not s.fused_attention:
        yield "attention without a fused kernel"
    if s.precision not in ("bf16", "fp16"):
        yield s.precision


def loading(job: Job) -> dict[str, object]:
    """Arguments of ``FastLanguageModel.from_pretrained``."""
    s = job.strategy
    out: dict[str, object] = {"model_name": job.model, "max_seq_length": job.seq_len, "load_in_4bit": s.quantized_base}
    out["use_gradient_checkpointing"] = ("unsloth" if s.offload_activations else True) if s.recompute == "full" else False
    if not s.lora_rank:
        out |= {"full_finetuning": True, "float32_mixed_precision": s.master_weights}
    return out


def adapters(job: Job) -> dict[str, object]:
    """Arguments of ``get_peft_model``; empty without adapters."""
    s = job.strategy
    if not s.lora_rank:
        return {}
    modules = hf.targets(s)
    out: dict[str, object] = {"r": s.lora_rank, "lora_alpha": 2 * s.lora_rank}
    out["target_modules"] = LINEAR if modules == "all-linear" else modules
    return out | {"use_gradient_checkpointing": loading(job)["use_gradient_checkpointing"]}


def training(job: Job) -> dict[str, object]:
    """Arguments of ``SFTConfig``. What the model recomputes is asked for where it is loaded."""
    left = ("gradient_checkpointing", "use_liger_kernel", "torch_compile")
    return {
        **{name: value for name, value in hf.settings(job).items() if name not in left},
        "max_length": job.seq_len,
        "packing": True,
        "packing_strategy": "wrapped",
    }


def write(job: Job) -> Written:
    """torchrun with the script."""
    more = adapters(job)
    text = _SCRIPT.format(
        name=job.arch.name,
        model=_lines(loading(job)),
        adapters=f"    model = FastLanguageModel.get_peft_model(\n        model,\n{_lines(more)}    )\n" if more else "",
        training=_lines(training(job)),
        data=job.data,
    )
    return started(job, VERSION, [*torchrun(job), "train.py"], {"train.py": text}, [*hf.placeholders(job)])


def _lines(arguments: dict[str, object]) -> str:
    return "".join(f"        {name}={_text(value)},\n" for name, value in arguments.items())


def _text(value: object) -> str:
    return repr(value).replace("'", '"')


_SCRIPT = '''"""Train {name}. Written by gpuwise from a plan."""

import os

from unsloth import FastLanguageModel  # first: it changes what the others import

from datasets import load_dataset
from transformers.trainer_utils import get_last_checkpoint
from trl import SFTConfig, SFTTrainer


def main():
    model, tokenizer = FastLanguageModel.from_pretrained(
{model}    )
{adapters}    arguments = SFTConfig(
{training}    )
    data = load_dataset("{data}", split="train")
    trainer = SFTTrainer(model=model, processing_class=tokenizer, train_dataset=data, args=arguments)
    last = get_last_checkpoint(arguments.output_dir) if os.path.isdir(arguments.output_dir) else None
    trainer.train(resume_from_checkpoint=last)


if __name__ == "__main__":
    main()
'''
