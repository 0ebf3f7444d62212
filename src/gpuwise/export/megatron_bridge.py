"""Megatron-Bridge's recipe (NVIDIA NeMo) from a plan: the options of Megatron-LM (:mod:`gpuwise.export.megatron`) as fields of
its ``ConfigContainer``, by the names of Megatron-Bridge 0.6.0 and megatron-core 0.19.2; the model is of Hugging Face's hub."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpuwise.export import megatron
from gpuwise.export.job import Job
from gpuwise.export.torchrun import started, torchrun
from gpuwise.export.written import Written

VERSION = "Megatron-Bridge 0.6.0"
_MODEL = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "account_for_embedding_in_pipeline_split",
    "account_for_loss_in_pipeline_split",
    "pipeline_model_parallel_layout",
    "context_parallel_size",
    "cp_comm_type",
    "expert_model_parallel_size",
    "expert_tensor_parallel_size",
    "moe_grouped_gemm",
    "moe_token_dispatcher_type",
    "moe_flex_dispatcher_backend",
    "overlap_moe_expert_parallel_comm",
    "cuda_graph_impl",
    "cuda_graph_modules",
    "sequence_parallel",
    "tp_comm_overlap",
    "recompute_granularity",
    "recompute_method",
    "recompute_num_layers",
    "recompute_modules",
    "cpu_offloading_num_layers",
)
_DDP = (
    "overlap_grad_reduce",
    "use_distributed_optimizer",
    "overlap_param_gather",
    "use_megatron_fsdp",
    "data_parallel_sharding_strategy",
    "num_distributed_optimizer_instances",
)
_DTYPES = ("main_grads_dtype", "exp_avg_dtype", "exp_avg_sq_dtype")
PLACES: dict[str, tuple[str, ...]] = {
    **{name: (f"model.{name}",) for name in _MODEL},
    **{name: (f"ddp.{name}",) for name in _DDP},
    "num_virtual_stages_per_pipeline_rank": ("model.virtual_pipeline_model_parallel_size",),
    "decoder_first_pipeline_num_layers": ("model.num_layers_in_first_pipeline_stage",),
    "decoder_last_pipeline_num_layers": ("model.num_layers_in_last_pipeline_stage",),
    "micro_batch_size": ("train.micro_batch_size",),
    "global_batch_size": ("train.global_batch_size",),
    "seq_length": ("model.seq_length", "dataset.seq_length"),
    "use_distributed_optimizer": ("ddp.use_distributed_optimizer", "optimizer.use_distributed_optimizer"),
    "use_megatron_fsdp": ("ddp.use_megatron_fsdp", "dist.use_megatron_fsdp"),
    "ckpt_format": ("checkpoint.ckpt_format",),
    "optimizer": ("optimizer.optimizer",),
    "optimizer_cpu_offload": ("optimizer.optimizer_cpu_offload",),
    "use_precision_aware_optimizer": ("optimizer.use_precision_aware_optimizer",),
    **{name: (f"optimizer.{name}",) for name in _DTYPES},
}
"""Options of Megatron-LM, and the fields for their values."""
ELSEWHERE = ("bf16", "fp16", "fp8_format", "fp8_recipe", "fp4_format", "grad_reduce_in_bf16", "no_check_for_nan_in_loss_and_grad")
"""Options that ``_others`` expresses in another form."""
PRECISIONS = {
    "bf16": "bf16_mixed",
    "fp16": "fp16_mixed",
    "fp8": "bf16_with_fp8_delayed_scaling_mixed",
    "mxfp8": "bf16_with_mxfp8_mixed",
    "nvfp4": "bf16_with_nvfp4_mixed",
}
"""Names in its ``training/mixed_precision.py``; fp32 and tf32 are no mixture."""


def gaps(job: Job) -> Iterator[str]:
    """Parts of the plan without a field: Megatron-LM's own gaps."""
    yield from megatron.gaps(job)
    if not job.strategy.fused_attention:
        yield "attention without a fused kernel"


def options(words: list[str]) -> dict[str, Any]:
    """Megatron-LM's words as names and values: a flag is True, several values a list, whole numbers numbers."""
    options: dict[str, Any] = {}
    name = ""
    for word in words:
        if word.startswith("--"):
            name = word[2:].replace("-", "_")
            options[name] = True
            continue
        value = int(word) if word.isdigit() else word
        before = options[name]
        options[name] = value if before is True else [*(before if isinstance(before, list) else [before]), value]
    return options


def fields(job: Job) -> dict[str, dict[str, Any]]:
    """Every field that the plan sets, by part of the configuration."""
    parts: dict[str, dict[str, Any]] = {name: {} for name in PARTS}
    for name, value in options(megatron.arguments(job)).items():
        if name in ELSEWHERE:
            continue
        for place in PLACES[name]:
            part, _, own = place.partition(".")
            parts[part][own] = [value] if own.endswith("_modules") and not isinstance(value, list) else value
    _others(job, parts)
    return parts


def _others(job: Job, parts: dict[str, dict[str, Any]]) -> None:
    s = job.strategy
    if "cpu_offloading_num_layers" in parts["model"]:
        parts["model"]["cpu_offloading"] = True
    if parts["model"].get("cuda_graph_impl") == "full_iteration":
        parts["ddp"]["check_for_nan_in_grad"] = False
        parts["rerun_state_machine"]["check_for_nan_in_loss"] = False
    parts["optimizer"] |= {name: Verbatim("torch.bfloat16") for name in _DTYPES if name in parts["optimizer"]}
    parts["ddp"]["grad_reduce_in_fp32"] = s.gradient_dtype == "fp32"
    parts["train"] |= {"train_iters": job.n_steps, "exit_signal_handler": True}
    parts["optimizer"] |= {"lr": job.learning_rate, "min_lr": 0.0}
    parts["scheduler"] |= {"lr_decay_style": "linear", "lr_warmup_iters": 0}
    parts["checkpoint"] |= {"save": job.output, "load": job.output, "save_interval": job.save_every or megatron.SAVE_EVERY}
    parts["dataset"] |= {"random_seed": 1234, "reset_position_ids": False, "reset_attention_mask": False, "eod_mask_loss": False}
    parts["logger"] |= {"log_interval": 10}


PARTS = {
    "model": "",
    "train": "TrainingConfig",
    "optimizer": "OptimizerConfig",
    "scheduler": "SchedulerConfig",
    "ddp": "DistributedDataParallelConfig",
    "dist": "DistributedInitConfig",
    "dataset": "GPTDatasetConfig",
    "checkpoint": "CheckpointConfig",
    "logger": "LoggerConfig",
    "rerun_state_machine": "RerunStateMachineConfig",
}
"""Parts of the ``ConfigContainer``, with their classes."""


def script(job: Job) -> str:
    """The recipe as a file that every rank runs."""
    parts, s = fields(job), job.strategy
    model = "".join(f"    model.{name} = {_text(value)}\n" for name, value in parts["model"].items())
    if s.precision in PRECISIONS:
        precision = f'    precision = get_mixed_precision_config("{PRECISIONS[s.precision]}")\n'
        # it has the last word about the format of gradients
        precision += f"    precision.grad_reduce_in_fp32 = {s.gradient_dtype == 'fp32'}\n"
    else:
        precision = "    precision = None\n    model.bf16, model.fp16, model.params_dtype = False, False, torch.float32\n"
        if s.pp > 1:
            precision += "    model.pipeline_dtype = torch.float32\n"
    lines: list[str] = []
    for name, kind in PARTS.items():
        if kind and parts[name]:
            more = ", data_path=[DATA]" if name == "dataset" else ""
            words = ", ".join(f"{k}={_text(v)}" for k, v in parts[name].items())
            lines.append(f"        {name}={kind}({words}{more}),\n")
    used = sorted({kind for name, kind in PARTS.items() if kind and parts[name]} | {"ConfigContainer", "TokenizerConfig"})
    return SCRIPT.format(
        name=job.arch.name,
        imports="".join(f"    {kind},\n" for kind in used),
        model=job.model,
        data=job.data,
        fields=model,
        precision=precision,
        parts="".join(lines),
    )


class Verbatim(str):
    """Code rather than a text."""


def _text(value: Any) -> str:
    if isinstance(value, Verbatim):
        return str(value)
    return '"' + value.replace('"', '\\"') + '"' if isinstance(value, str) else repr(value).replace("'", '"')


def write(job: Job) -> Written:
    """The recipe, started by torchrun on every node."""
    variables, unset = megatron.environment(job)
    notes = [
        f"{job.data} stands for the prefix of a data set that Megatron's tools/preprocess_data.py made",
        "weights begin at random; to_megatron_provider(load_weights=True) takes those of the checkpoint",
    ]
    if job.model == "MODEL":
        notes.append("MODEL stands for a folder or a name on the Hugging Face hub whose architecture AutoBridge has")
    if job.n_steps is None:
        notes.append("train_iters is not known from the plan: give it")
    return started(job, VERSION, [*torchrun(job), "train.py"], {"train.py": script(job)}, notes, variables, unset)


SCRIPT = '''"""Train {name}. Written by gpuwise from a plan."""

import torch
from megatron.bridge import AutoBridge
from megatron.bridge.training.config import (
{imports})
from megatron.bridge.training.gpt_step import forward_step
from megatron.bridge.training.mixed_precision import get_mixed_precision_config
from megatron.bridge.training.pretrain import pretrain

MODEL = "{model}"
DATA = "{data}"


def recipe():
    """The model of the hub, laid out as planned."""
    model = AutoBridge.from_hf_pretrained(MODEL).to_megatron_provider(load_weights=False)
{fields}{precision}    return ConfigContainer(
        model=model,
{parts}        tokenizer=TokenizerConfig(tokenizer_type="HuggingFaceTokenizer", tokenizer_model=MODEL),
        mixed_precision=precision,
    )


if __name__ == "__main__":
    pretrain(recipe(), forward_step)
'''
