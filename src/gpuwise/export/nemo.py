"""NeMo AutoModel's YAML from a plan, by the sections that its recipe reads and the classes of nemo-automodel 0.7.0."""

from __future__ import annotations

from collections.abc import Iterator

from gpuwise.export import hugging_face as hf
from gpuwise.export.job import Job, divided, writes_model
from gpuwise.export.torchrun import started, torchrun
from gpuwise.export.written import Written
from gpuwise.export.yaml import to_yaml
from gpuwise.workload.stacks.stack import find_stack
from gpuwise.workload.strategy import Strategy

VERSION = "nemo-automodel 0.7.0"
MODULE = ["-m", "nemo_automodel.cli.app"]
PACKAGE = "nemo_automodel.components"
_DATA = f"{PACKAGE}.datasets.llm.column_mapped_text_instruction_dataset.ColumnMappedTextInstructionDataset"


def gaps(job: Job) -> Iterator[str]:
    """Parts of the plan without a setting in its recipe of fine-tuning."""
    s = job.strategy
    if not writes_model(job.arch):
        yield f"{job.arch.name} is not a decoder of text"
    yield from divided(s, "pipeline", "context", "expert")
    if s.tp > 1 and s.sharding == "none":
        yield f"tensor parallelism of {s.tp} without sharding"
    if s.precision not in ("bf16", "fp32"):
        yield s.precision
    if s.optimizer not in ("adamw", "adamw-bf16"):
        yield f"the optimizer {s.optimizer}"
    if s.optimizer == "adamw-bf16" and s.master_weights:
        yield "moments in bf16 of weights in fp32"
    if s.recompute == "full" and s.recompute_every > 1:
        yield f"recomputing one layer in {s.recompute_every}"
    if s.offload_activations:
        yield "offloaded activations"
    if s.step_in_backward:
        yield "an optimizer step inside the backward pass"
    if s.cuda_graphs == "full":
        yield "a graph of the whole step"
    if s.sharding not in ("none", "zero2", "zero3", "hybrid") or (s.sharding == "none" and s.dp == 1 and s.offload_optimizer):
        yield f"{s.sharding} sharding"
    if s.offload_optimizer and s.sharding == "none" and s.dp > 1:
        yield "an offloaded optimizer without sharding"
    if s.shard_group and s.dp % s.shard_group:
        yield f"groups of {s.shard_group} in {s.dp} data-parallel ranks"
    if s.sharding == "none" and s.dp > 1 and s.shard_group:
        yield f"groups of {s.shard_group} ranks without sharding"
    if s.quantized_base and not s.lora_rank:
        yield "weights in 4 bits without adapters"
    if s.quantized_base and s.tp > 1:
        yield "weights in 4 bits under tensor parallelism"
    half = s.precision == "bf16" and not s.lora_rank
    if half and (s.gradient_dtype == "fp32") != s.master_weights:
        yield f"gradients in {s.gradient_dtype} of weights in {'fp32' if s.master_weights else s.precision}"


def _distributed(job: Job) -> dict[str, object]:
    s = job.strategy
    recompute: object = "selective" if s.recompute == "selective" else s.recompute == "full"
    if s.sharding == "none":
        mixed = s.precision == "bf16" and hf.weights_dtype(s) == "float32"
        return {"strategy": "ddp", "activation_checkpointing": recompute, **({"autocast_dtype": "bf16"} if mixed else {})}
    computes = {"param_dtype": "bf16", "output_dtype": "bf16"} if s.precision == "bf16" else {}
    return {
        "strategy": "fsdp2",
        "tp_size": s.tp,
        "sequence_parallel": s.tp > 1 and s.sequence_parallel,
        **_replicas(job),
        "activation_checkpointing": recompute,
        "reshard_after_forward": s.sharding != "zero2",
        "mp_policy": {
            "_target_": "torch.distributed.fsdp.MixedPrecisionPolicy",
            **computes,
            "reduce_dtype": "fp32" if s.gradient_dtype == "fp32" else "bf16",
        },
        **({"offload_policy": {"_target_": "torch.distributed.fsdp.CPUOffloadPolicy"}} if s.offload_optimizer else {}),
        "enable_compile": find_stack(s.stack).export.torch_compile,
    }


def _replicas(job: Job) -> dict[str, object]:
    replicas = hf.mesh(job).get("dp_replicate_size", 1)
    return {"dp_replicate_size": replicas} if replicas > 1 else {}


def _adapters(s: Strategy) -> dict[str, object]:
    modules = hf.targets(s)
    named = {"match_all_linear": True} if modules == "all-linear" else {"target_modules": [f"*.{name}" for name in modules]}
    return {"_target_": f"{PACKAGE}._peft.lora.PeftConfig", **named, "dim": s.lora_rank, "alpha": 2 * s.lora_rank}


def document(job: Job) -> dict[str, object]:
    """The whole file."""
    s = job.strategy
    steps: dict[str, object] = {"global_batch_size": s.global_batch, "local_batch_size": s.micro_batch, "num_epochs": 1}
    if job.n_steps is not None:
        steps["max_steps"] = job.n_steps
    if job.save_every is not None:
        steps["ckpt_every_steps"] = job.save_every
    loss = "linear_ce.FusedLinearCrossEntropy" if s.fused_loss else "masked_ce.MaskedCrossEntropy"
    document: dict[str, object] = {
        "recipe": "TrainFinetuneRecipeForNextTokenPrediction",
        "model": {
            "_target_": "nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained",
            "pretrained_model_name_or_path": job.model,
            "torch_dtype": hf.weights_dtype(s),
            "attn_implementation": "sdpa" if s.fused_attention else "eager",
        },
        "distributed": _distributed(job),
        "step_scheduler": steps,
        "optimizer": {"_target_": "torch.optim.AdamW", "lr": job.learning_rate, "weight_decay": 0.0},
        "loss_fn": {"_target_": f"{PACKAGE}.loss.{loss}"},
        "dataset": {
            "_target_": _DATA,
            "path_or_dataset_id": job.data,
            "split": "train",
            "column_mapping": {"question": "prompt", "answer": "completion"},
            "answer_only_loss_mask": False,
            "seq_length": job.seq_len,
        },
        "packed_sequence": {"packed_sequence_size": job.seq_len},
        "dataloader": {"_target_": "torchdata.stateful_dataloader.StatefulDataLoader", "shuffle": True},
        "checkpoint": {"enabled": True, "checkpoint_dir": job.output, "model_save_format": "safetensors"},
    }
    if s.lora_rank:
        document["peft"] = _adapters(s)
    if s.quantized_base:
        document["quantization"] = {"load_in_4bit": True, "bnb_4bit_compute_dtype": "bfloat16", "bnb_4bit_use_double_quant": True}
    return document


def write(job: Job) -> Written:
    """torchrun with AutoModel's file."""
    files = {"nemo.yaml": to_yaml(document(job), f"{VERSION}: {job.arch.name} on {job.cluster.label}")}  # type: ignore[arg-type]
    notes = [f"{job.data} stands for a data set of the Hugging Face hub with the columns 'prompt' and 'completion'"]
    notes += hf.checkpoint_placeholder(job)
    return started(job, VERSION, [*torchrun(job), *MODULE, "nemo.yaml"], files, notes)
