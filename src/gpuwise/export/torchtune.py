"""torchtune's recipe and its YAML from a plan, by the names in the recipes and builders of torchtune 0.6.1."""

from __future__ import annotations

from collections.abc import Iterator

from gpuwise.export import hugging_face as hf
from gpuwise.export.job import Job, divided
from gpuwise.export.torchrun import started, torchrun
from gpuwise.export.written import Written
from gpuwise.export.yaml import to_yaml

VERSION = "torchtune 0.6.1"
FOLDER = "MODEL"
"""Placeholder of the checkpoint's folder."""
_VOCABULARY = {"path": "vocab.json", "merges_file": "merges.txt"}
FAMILIES: dict[str, tuple[str, dict[str, str], str]] = {
    "llama2": ("llama2.llama2_tokenizer", {"path": "tokenizer.model"}, "LLAMA2"),
    "llama3": ("llama3.llama3_tokenizer", {"path": "original/tokenizer.model"}, "LLAMA3"),
    "llama3_1": ("llama3.llama3_tokenizer", {"path": "original/tokenizer.model"}, "LLAMA3"),
    "llama3_2": ("llama3.llama3_tokenizer", {"path": "original/tokenizer.model"}, "LLAMA3_2"),
    "llama3_3": ("llama3.llama3_tokenizer", {"path": "original/tokenizer.model"}, "LLAMA3"),
    "qwen2": ("qwen2.qwen2_tokenizer", _VOCABULARY, "QWEN2"),
    "qwen2_5": ("qwen2_5.qwen2_5_tokenizer", _VOCABULARY, "QWEN2"),
    "gemma2": ("gemma.gemma_tokenizer", {"path": "tokenizer.model"}, "GEMMA2"),
    "phi4": ("phi4.phi4_tokenizer", {"vocab_path": "vocab.json", "merges_path": "merges.txt"}, "PHI4"),
}
"""Tokenizer, its files and the checkpoint's type by package of ``torchtune/models``."""
MODELS: dict[str, tuple[str, int]] = {
    "meta-llama/Llama-2-7b-hf": ("llama2.llama2_7b", 2),
    "meta-llama/Llama-2-13b-hf": ("llama2.llama2_13b", 3),
    "meta-llama/Llama-2-70b-hf": ("llama2.llama2_70b", 15),
    "meta-llama/Meta-Llama-3-70B": ("llama3.llama3_70b", 30),
    "meta-llama/Llama-3.1-8B": ("llama3_1.llama3_1_8b", 4),
    "meta-llama/Llama-3.1-70B": ("llama3_1.llama3_1_70b", 30),
    "meta-llama/Llama-3.1-405B": ("llama3_1.llama3_1_405b", 191),
    "meta-llama/Llama-3.2-1B": ("llama3_2.llama3_2_1b", 1),
    "meta-llama/Llama-3.2-3B": ("llama3_2.llama3_2_3b", 2),
    "meta-llama/Llama-3.3-70B-Instruct": ("llama3_3.llama3_3_70b", 30),
    "Qwen/Qwen2-0.5B": ("qwen2.qwen2_0_5b", 1),
    "Qwen/Qwen2-1.5B": ("qwen2.qwen2_1_5b", 1),
    "Qwen/Qwen2-7B": ("qwen2.qwen2_7b", 4),
    "Qwen/Qwen2.5-0.5B": ("qwen2_5.qwen2_5_0_5b", 1),
    "Qwen/Qwen2.5-1.5B": ("qwen2_5.qwen2_5_1_5b_base", 1),
    "Qwen/Qwen2.5-3B": ("qwen2_5.qwen2_5_3b", 2),
    "Qwen/Qwen2.5-7B": ("qwen2_5.qwen2_5_7b_base", 4),
    "Qwen/Qwen2.5-14B": ("qwen2_5.qwen2_5_14b_base", 8),
    "Qwen/Qwen2.5-32B": ("qwen2_5.qwen2_5_32b_base", 17),
    "Qwen/Qwen2.5-72B": ("qwen2_5.qwen2_5_72b_base", 37),
    "google/gemma-2-2b": ("gemma2.gemma2_2b", 3),
    "google/gemma-2-9b": ("gemma2.gemma2_9b", 8),
    "google/gemma-2-27b": ("gemma2.gemma2_27b", 24),
    "microsoft/phi-4": ("phi4.phi4_14b", 6),
}
"""Builder and number of safetensors files by name on the Hugging Face hub: ``recipes/configs``."""
_OPTIMIZERS = {
    "adamw": "torch.optim.AdamW",
    "adamw-bf16": "torch.optim.AdamW",
    "sgd": "torch.optim.SGD",
    "adamw8bit": "bitsandbytes.optim.AdamW8bit",
    "paged-adamw": "bitsandbytes.optim.PagedAdamW",
    "paged-adamw8bit": "bitsandbytes.optim.PagedAdamW8bit",
}
_ADAPTED = {"q_proj": "q_proj", "k_proj": "k_proj", "v_proj": "v_proj", "o_proj": "output_proj"}
_MLP = {"gate_proj", "up_proj", "down_proj"}
ALWAYS: dict[str, int | str | bool] = {"fused_loss": True}
"""Its recipes' loss is in chunks (``CEWithChunkedOutputLoss``)."""


def recipe(job: Job) -> str:
    """The recipe's name for ``tune run``."""
    s = job.strategy
    return f"{'lora_finetune' if s.lora_rank else 'full_finetune'}_{'distributed' if s.dp > 1 else 'single_device'}"


def gaps(job: Job) -> Iterator[str]:
    """Parts of the plan without a setting in the recipe."""
    s = job.strategy
    if job.hub_id not in MODELS:
        yield f"{job.arch.name}, which is not among its models"
    yield from divided(s, "tensor", "pipeline", "context", "expert")
    if s.precision not in ("bf16", "fp32"):
        yield s.precision
    if s.precision == "bf16" and s.master_weights and not s.lora_rank:
        yield "fp32 copies of weights in bf16"
    if s.optimizer not in _OPTIMIZERS:
        yield f"the optimizer {s.optimizer}"
    if s.recompute == "selective" and (s.dp == 1 or s.lora_rank):
        yield f"selective recomputing in {recipe(job)}"
    if s.recompute == "full" and s.recompute_every > 1:
        yield f"recomputing one layer in {s.recompute_every}"
    if s.offload_activations and s.recompute != "full":
        yield "offloaded activations without full recomputing"
    if s.dp > 1 and s.sharding not in ("zero2", "zero3"):
        yield f"{s.sharding} sharding"
    if s.shard_group:
        yield f"groups of {s.shard_group} ranks"
    if s.offload_optimizer and s.dp == 1:
        yield "an offloaded optimizer on one GPU"
    if s.step_in_backward and (s.lora_rank or s.accumulation > 1):
        yield "an optimizer step inside the backward pass " + ("of adapters" if s.lora_rank else "with accumulation")
    if not s.fused_attention:
        yield "attention without a fused kernel"
    if s.quantized_base and not s.lora_rank:
        yield "weights in 4 bits without adapters"
    if s.lora_rank and set(_names(job)) - _ADAPTED.keys() - _MLP | (_MLP & set(_names(job)) and _MLP - set(_names(job))):
        yield f"adapters on {', '.join(s.lora_targets)} alone"
    if s.cuda_graphs == "full":
        yield "a graph of the whole step"


def _names(job: Job) -> list[str]:
    names = hf.targets(job.strategy)
    return [*_ADAPTED, *sorted(_MLP)] if isinstance(names, str) else names


def _model(job: Job) -> dict[str, object]:
    s = job.strategy
    package, _, builder = MODELS[job.model][0].partition(".")
    if not s.lora_rank:
        return {"_component_": f"torchtune.models.{package}.{builder}"}
    names = _names(job)
    return {
        "_component_": f"torchtune.models.{package}.lora_{builder}",
        "lora_attn_modules": [own for name, own in _ADAPTED.items() if name in names],
        "apply_lora_to_mlp": set(names) >= _MLP,
        "lora_rank": s.lora_rank,
        "lora_alpha": 2 * s.lora_rank,
        "quantize_base": s.quantized_base,
    }


def document(job: Job) -> dict[str, object]:
    """The whole file."""
    s = job.strategy
    package, files = MODELS[job.model]
    tokenizer, names, kind = FAMILIES[package.partition(".")[0]]
    several = {"filename_format": "model-{}-of-{}.safetensors", "max_filename": f"{files:05}"}
    fused = {"fused": True} if _OPTIMIZERS[s.optimizer].startswith("torch.") else {}
    document: dict[str, object] = {
        "output_dir": job.output,
        "model": _model(job),
        "tokenizer": {
            "_component_": f"torchtune.models.{tokenizer}",
            **{argument: f"{FOLDER}/{name}" for argument, name in names.items()},
            "max_seq_len": job.seq_len,
        },
        "dataset": {
            "_component_": "torchtune.datasets.text_completion_dataset",
            "source": job.data,
            "column": "text",
            "split": "train",
            "packed": True,
        },
        "seed": None,
        "shuffle": True,
        "checkpointer": {
            "_component_": "torchtune.training.FullModelHFCheckpointer",
            "checkpoint_dir": FOLDER,
            "checkpoint_files": several if files > 1 else ["model.safetensors"],
            "recipe_checkpoint": None,
            "output_dir": job.output,
            "model_type": kind,
        },
        "resume_from_checkpoint": False,
        "batch_size": s.micro_batch,
        "gradient_accumulation_steps": s.accumulation,
        "epochs": 1,
        "max_steps_per_epoch": job.n_steps,
        "optimizer": {"_component_": _OPTIMIZERS[s.optimizer], **fused, "lr": job.learning_rate},
        "loss": {"_component_": "torchtune.modules.loss.CEWithChunkedOutputLoss"},
        "compile": True,
        "device": "cuda",
        "dtype": s.precision,
        "enable_activation_checkpointing": s.recompute == "full",
        "enable_activation_offloading": s.offload_activations,
        "metric_logger": {"_component_": "torchtune.training.metric_logging.DiskLogger", "log_dir": job.output},
        "log_every_n_steps": 1,
        "log_peak_memory_stats": True,
        "profiler": {"_component_": "torchtune.training.setup_torch_profiler", "enabled": False},
    }
    if s.recompute == "selective":
        document |= {"ac_mode": "selective", "ac_option": "op"}
    if s.lora_rank:
        schedule = "torchtune.training.lr_schedulers.get_cosine_schedule_with_warmup"
        document["lr_scheduler"] = {"_component_": schedule, "num_warmup_steps": 0}
    else:
        document["optimizer_in_bwd"] = s.step_in_backward
    if s.dp > 1:
        document |= {"fsdp_cpu_offload": s.offload_optimizer, "fsdp_reshard_after_forward": s.sharding == "zero3"}
    return document


def launcher(job: Job) -> list[str]:
    """``tune run``, which takes torchrun's options where the recipe is of several GPUs."""
    return ["tune", "run", *(torchrun(job)[1:] if job.strategy.dp > 1 else [])]


def words(job: Job) -> list[str]:
    """The recipe and its file."""
    return [recipe(job), "--config", "torchtune.yaml"]


def write(job: Job) -> Written:
    """``tune run`` with its file."""
    files = {"torchtune.yaml": to_yaml(document(job), f"{VERSION}: {job.arch.name} on {job.cluster.label}")}  # type: ignore[arg-type]
    notes = [
        f"{FOLDER} stands for the folder of the checkpoint: tune download {job.model} --output-dir {FOLDER}",
        f"{job.data} stands for a data set of the Hugging Face hub with a column 'text'",
        "it saves at the end of an epoch only",
    ]
    return started(job, VERSION, [*launcher(job), *words(job)], files, notes)
