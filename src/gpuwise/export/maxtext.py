"""MaxText's configuration for TPUs from a plan: a file on top of its ``base.yml``, by the names there in maxtext 0.2.5."""

from __future__ import annotations

from collections.abc import Iterator

from gpuwise.export.job import Job
from gpuwise.export.written import Written
from gpuwise.export.yaml import to_yaml

VERSION = "maxtext 0.2.5"
WORDS = ["maxtext.yml"]
ALWAYS: dict[str, int | str | bool] = {"expert_dispatch": "all-to-all"}
"""Tokens of experts go by XLA's all-to-all."""
MODELS = {
    "deepseek-v2-lite": "deepseek2-16b",
    "deepseek-v2": "deepseek2-236b",
    "deepseek-v3": "deepseek3-671b",
    "gemma-2b": "gemma-2b",
    "gemma-7b": "gemma-7b",
    "gemma-2-2b": "gemma2-2b",
    "gemma-2-9b": "gemma2-9b",
    "gemma-2-27b": "gemma2-27b",
    "gemma-3-4b": "gemma3-4b",
    "gemma-3-12b": "gemma3-12b",
    "gemma-3-27b": "gemma3-27b",
    "gpt-oss-20b": "gpt-oss-20b",
    "gpt-oss-120b": "gpt-oss-120b",
    "gpt3-175b": "gpt3-175b",
    "kimi-k2": "kimi-k2-1t",
    "llama-2-7b": "llama2-7b",
    "llama-2-13b": "llama2-13b",
    "llama-2-70b": "llama2-70b",
    "llama-3-8b": "llama3-8b",
    "llama-3-70b": "llama3-70b",
    "llama-3.1-8b": "llama3.1-8b",
    "llama-3.1-70b": "llama3.1-70b",
    "llama-3.1-405b": "llama3.1-405b",
    "llama-3.3-70b": "llama3.3-70b",
    "mistral-7b": "mistral-7b",
    "mixtral-8x7b": "mixtral-8x7b",
    "mixtral-8x22b": "mixtral-8x22b",
    "qwen2.5-7b": "qwen2.5-7b",
    "qwen2.5-14b": "qwen2.5-14b",
    "qwen3-0.6b": "qwen3-0.6b",
    "qwen3-4b": "qwen3-4b",
    "qwen3-8b": "qwen3-8b",
    "qwen3-14b": "qwen3-14b",
    "qwen3-32b": "qwen3-32b",
    "qwen3-30b-a3b": "qwen3-30b-a3b",
    "qwen3-235b-a22b": "qwen3-235b-a22b",
}
"""``configs/models`` by the catalogue's id."""
_REMAT = {"none": "minimal_with_context", "selective": "minimal", "full": "full"}
"""Nothing but pointwise operations again; attention too; whole layers (``layers/nnx_decoders.py``)."""
_OPTIMIZERS = ("adamw", "sgd", "muon")


def gaps(job: Job) -> Iterator[str]:
    """Parts of the plan without a key."""
    s = job.strategy
    if job.arch.id not in MODELS:
        yield f"{job.arch.name}, which is not among its models"
    if s.precision not in ("bf16", "fp32"):
        yield s.precision
    if s.optimizer not in _OPTIMIZERS:
        yield f"the optimizer {s.optimizer}"
    if s.recompute == "full" and s.recompute_every > 1:
        yield f"recomputing one layer in {s.recompute_every}"
    if s.offload_activations and s.recompute != "full":
        yield "offloaded activations without full recomputing"
    if s.sharding not in ("none", "zero3", "hybrid"):
        yield f"{s.sharding} sharding"
    if s.ep > 1 and not s.overlap_ep:
        yield "experts' all-to-all that is not overlapped"
    if s.etp > 1:
        yield f"{s.etp} tensor ranks of experts"
    if s.cp > 1 and s.context_parallel != "ring":
        yield f"context parallelism by {s.context_parallel}"
    if s.pp > 1 and s.schedule not in ("gpipe", "interleaved"):
        yield f"the schedule {s.schedule}"
    if s.pp > 1 and job.arch.n_layers % (s.pp * s.virtual_stages):
        yield f"{job.arch.n_layers} layers on {s.pp * s.virtual_stages} stages"
    if s.step_in_backward:
        yield "an optimizer step inside the backward pass"
    if s.fused_loss:
        yield "a loss in chunks"
    if s.cuda_graphs == "full":
        yield "a graph of the whole step"
    if s.lora_rank or s.quantized_base:
        yield "adapters in its pre-training"
    group = _group(job)
    if s.dp % group or s.dp % (_sharded(job) * s.ep):
        yield f"groups of {group} in {s.dp} data-parallel ranks, {s.ep} of experts"


def _group(job: Job) -> int:
    """Ranks that weights are sharded over."""
    s = job.strategy
    whole = 1 if s.sharding == "none" else s.dp
    return s.shard_group or (min(job.gpus_per_node, s.dp) if s.sharding == "hybrid" else whole)


def _sharded(job: Job) -> int:
    """The axis of shards, beside that of experts."""
    return max(_group(job) // job.strategy.ep, 1)


def document(job: Job) -> dict[str, object]:
    """The keys that are others than its own defaults, and those that make the layout."""
    s, sharded = job.strategy, _sharded(job)
    document: dict[str, object] = {
        "base_config": "base.yml",
        "run_name": job.name,
        "model_name": MODELS[job.arch.id],
        "hardware": "tpu",
        "base_output_directory": job.output,
        "dataset_type": "hf",
        "hf_path": job.data,
        "tokenizer_type": "huggingface",
        "tokenizer_path": job.model,
        "max_target_length": job.seq_len,
        "packing": True,
        "per_device_batch_size": s.micro_batch * s.dp * (s.accumulation if s.pp > 1 else 1) / s.n_accelerators,
        "gradient_accumulation_steps": 1 if s.pp > 1 else s.accumulation,
        "learning_rate": job.learning_rate,
        "opt_type": s.optimizer,
        "dtype": "bfloat16" if s.precision == "bf16" else "float32",
        "weight_dtype": "float32" if s.master_weights else "bfloat16",
        "grad_dtype": "float32" if s.gradient_dtype == "fp32" else "bfloat16",
        "attention": "flash" if s.fused_attention else "dot_product",
        "remat_policy": "custom" if s.offload_activations else _REMAT[s.recompute],
        "optimizer_memory_host_offload": s.offload_optimizer,
        "parameter_memory_host_offload": s.offload_parameters,
        "ici_data_parallelism": s.dp // (sharded * s.ep),
        "ici_fsdp_parallelism": sharded,
        "ici_expert_parallelism": s.ep,
        "ici_tensor_parallelism": 1 if s.sequence_parallel else s.tp,
        "ici_tensor_sequence_parallelism": s.tp if s.sequence_parallel else 1,
        "ici_context_parallelism": s.cp,
        "ici_pipeline_parallelism": s.pp,
    }
    if s.offload_activations:
        document["decoder_layer_input"] = "offload"
    if s.pp > 1:
        document |= {
            "num_layers_per_pipeline_stage": job.arch.n_layers // (s.pp * s.virtual_stages),
            "num_pipeline_microbatches": s.accumulation,
        }
    if job.n_steps is not None:
        document["steps"] = job.n_steps
    if job.save_every is not None:
        document["checkpoint_period"] = job.save_every
    return document


def launcher(_: Job) -> list[str]:
    """The same on every host: JAX finds the others of a TPU by itself."""
    return ["python3", "-m", "maxtext.trainers.pre_train.train"]


def write(job: Job) -> Written:
    """The file, and the command for every host."""
    text = to_yaml(document(job), f"{VERSION}: {job.arch.name} on {job.cluster.label}")  # type: ignore[arg-type]
    notes = [
        f"{job.data} stands for a data set of the Hugging Face hub with a column 'text'",
        "start it on every host of the slice; the output folder has to be one that all see (gs://...)",
    ]
    return Written((*launcher(job), *WORDS), {"maxtext.yml": text}, notes=tuple(notes))
