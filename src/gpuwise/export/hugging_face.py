"""Hugging Face's Trainer and Accelerate from a plan: a script, its arguments, and a file for what shards; read by
``HfArgumentParser`` of transformers 5.23 and the plugin classes of accelerate 1.15."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from gpuwise.export.deepspeed import VERSION as DEEPSPEED
from gpuwise.export.deepspeed import config as deepspeed_config
from gpuwise.export.job import Job, divided, writes_model
from gpuwise.export.torchrun import PORT, started, torchrun
from gpuwise.export.written import Written
from gpuwise.export.yaml import to_yaml
from gpuwise.workload.stacks.stack import find_stack
from gpuwise.workload.strategy import Strategy

TRAINER = "transformers 5.23"
ACCELERATE = "accelerate 1.15"
PACKAGES = ("transformers==5.23.*", "accelerate==1.15.*")
OPTIMIZERS = {
    "adamw": "adamw_torch_fused",
    "adamw8bit": "adamw_bnb_8bit",
    "paged-adamw": "paged_adamw_32bit",
    "paged-adamw8bit": "paged_adamw_8bit",
    "adafactor": "adafactor",
    "lion": "lion_32bit",
    "sgd": "sgd",
}
_MODULES = {"attention": ["q_proj", "k_proj", "v_proj", "o_proj"], "mlp": ["gate_proj", "up_proj", "down_proj"]}


def by_deepspeed(s: Strategy) -> bool:
    """Whether DeepSpeed shards or offloads, not FSDP."""
    return s.sharding == "zero1" or (_wrapped(s) and s.sharding != "hybrid" and find_stack(s.stack).export.shards_by_deepspeed)


def by_fsdp(s: Strategy) -> bool:
    """Whether FSDP shards or offloads."""
    return _wrapped(s) and not by_deepspeed(s)


def _wrapped(s: Strategy) -> bool:
    return s.sharding != "none" or s.offload_optimizer


def gaps(job: Job) -> Iterator[str]:
    """Parts of the plan without an argument in the Trainer."""
    s = job.strategy
    if not writes_model(job.arch):
        yield f"{job.arch.name} is not a decoder of text: the script trains no other"
    yield from divided(s, "tensor", "pipeline", "context", "expert")
    if s.precision not in ("bf16", "fp16", "fp32", "tf32"):
        yield s.precision
    if s.optimizer not in OPTIMIZERS:
        yield f"the optimizer {s.optimizer}"
    if s.recompute == "selective":
        yield "selective recomputing"
    if s.recompute == "full" and s.recompute_every > 1:
        yield f"recomputing one layer in {s.recompute_every}"
    if s.offload_activations:
        yield "offloaded activations"
    if s.step_in_backward:
        yield "an optimizer step inside the backward pass"
    half = s.precision in ("bf16", "fp16")
    if half and not s.lora_rank and not by_deepspeed(s) and (s.gradient_dtype == "fp32") != s.master_weights:
        yield f"gradients in {s.gradient_dtype} of weights in {'fp32' if s.master_weights else s.precision}"
    if s.cuda_graphs == "full":
        yield "a graph of the whole step"
    if s.offload_optimizer and s.sharding == "none" and s.dp > 1:
        yield "an offloaded optimizer without sharding"
    if s.offload_parameters and not by_deepspeed(s):
        yield "offloaded parameters without DeepSpeed"
    if s.shard_group and (s.dp % s.shard_group or by_deepspeed(s)):
        yield f"groups of {s.shard_group} in {s.dp} data-parallel ranks"


def settings(job: Job, *, sharding: bool = True) -> dict[str, object]:
    """Values of ``TrainingArguments`` by name; without ``sharding``, options of a launcher's own file are left to it."""
    s = job.strategy
    out: dict[str, object] = {"output_dir": job.output, "per_device_train_batch_size": s.micro_batch}
    out |= {"gradient_accumulation_steps": s.accumulation, "learning_rate": job.learning_rate}
    if s.optimizer in OPTIMIZERS:
        out["optim"] = OPTIMIZERS[s.optimizer]
    if job.n_steps is not None:
        out["max_steps"] = job.n_steps
    if job.save_every is not None:
        out["save_steps"] = job.save_every
    if s.precision in ("bf16", "fp16", "tf32"):
        out[s.precision] = True
    if find_stack(s.stack).export.torch_compile:
        out["torch_compile"] = True
    if s.fused_loss:
        out["use_liger_kernel"] = True
    if sharding and by_fsdp(s):
        out |= {"fsdp": True, "fsdp_config": "fsdp.json"}
    elif s.recompute == "full" and not by_fsdp(s):
        out["gradient_checkpointing"] = True
    if sharding and by_deepspeed(s):
        out["deepspeed"] = "deepspeed.json"
    return out


def words_of(settings: Mapping[str, object]) -> list[str]:
    """Settings as options of a command line, each with its value."""
    out: list[str] = []
    for name, value in settings.items():
        values = value if isinstance(value, list) else [value]
        out += [f"--{name}", *(f"{v:g}" if isinstance(v, float) else str(v) for v in values)]
    return out


def arguments(job: Job, *, sharding: bool = True) -> list[str]:
    """The words of :func:`settings`: what it turns on is a flag, but tf32, which may be left open."""
    words: list[str] = []
    for name, value in settings(job, sharding=sharding).items():
        words += words_of({name: value})[: 1 if value is True and name != "tf32" else None]
    return words


def fsdp_config(s: Strategy) -> dict[str, object]:
    """``fsdp_config`` of the Trainer: FSDP2, weights gathered again in the backward pass unless only states and gradients are
    sharded (ZeRO-2)."""
    fsdp: dict[str, object] = {
        "version": 2,
        "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "reshard_after_forward": s.sharding != "zero2",
        "state_dict_type": "SHARDED_STATE_DICT",
        "activation_checkpointing": s.recompute == "full",
    }
    return {**fsdp, "cpu_offload": True} if s.offload_optimizer else fsdp


def mesh(job: Job) -> dict[str, int]:
    """Replicas and shards of hybrid sharding; empty without."""
    s = job.strategy
    group = s.shard_group or (min(job.gpus_per_node, s.dp) if s.sharding == "hybrid" else 0)
    return {"dp_replicate_size": s.dp // group, "dp_shard_size": group} if group and group < s.dp else {}


def mesh_variables(job: Job) -> dict[str, str]:
    """The mesh as the variables that the Trainer reads; empty without."""
    variables = {f"PARALLELISM_CONFIG_{k.upper()}": str(v) for k, v in mesh(job).items()}
    return {"ACCELERATE_USE_PARALLELISM_CONFIG": "true", **variables} if variables else {}


def _files(job: Job) -> dict[str, str]:
    s = job.strategy
    files = {"train.py": script(job)}
    if by_fsdp(s):
        files["fsdp.json"] = json.dumps(fsdp_config(s), indent=2) + "\n"
    if by_deepspeed(s):
        files["deepspeed.json"] = json.dumps(deepspeed_config(job), indent=2) + "\n"
    return files


def _words(job: Job, *, sharding: bool = True) -> list[str]:
    """The script and its arguments, with a checkpoint at SIGTERM."""
    return ["train.py", *arguments(job, sharding=sharding), "--enable_jit_checkpoint"]


def notes(job: Job) -> tuple[str, ...]:
    """Placeholders for the user's own values, and what has to be installed."""
    lines = [*placeholders(job)]
    if job.strategy.fused_loss:
        lines.append("the loss in chunks is Liger's: pip install liger-kernel")
    return tuple(lines)


def placeholders(job: Job) -> Iterator[str]:
    """What stands for the user's data and checkpoint."""
    yield f"{job.data} stands for a data set of the Hugging Face hub, or a folder, with a column 'text'"
    yield from checkpoint_placeholder(job)


def checkpoint_placeholder(job: Job) -> Iterator[str]:
    """What stands for the checkpoint; nothing where the model has a name on the hub."""
    if job.model == "MODEL":
        yield "MODEL stands for a checkpoint: a folder or a name on the Hugging Face hub"


def write_trainer(job: Job) -> Written:
    """torchrun with the Trainer's arguments."""
    command = [*torchrun(job), *_words(job)]
    return started(job, TRAINER, command, _files(job), notes(job), mesh_variables(job))


def accelerate_config(job: Job) -> dict[str, object]:
    """The document of ``accelerate launch --config_file``."""
    s = job.strategy
    kind = "FSDP" if by_fsdp(s) else "DEEPSPEED" if by_deepspeed(s) else "MULTI_GPU" if s.dp > 1 else "NO"
    settings: dict[str, object] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": kind,
        "mixed_precision": s.precision if s.precision in ("bf16", "fp16") else "no",
        "num_machines": job.n_nodes,
        "num_processes": job.cluster.n_accelerators,
        "machine_rank": 0,
        "main_training_function": "main",
        "rdzv_backend": "c10d" if job.n_nodes > 1 else "static",
        "same_network": True,
        "use_cpu": False,
    }
    if job.n_nodes > 1:
        settings |= {"main_process_ip": "HEAD_NODE", "main_process_port": PORT}
    if kind == "FSDP":
        names = {"version": "fsdp_version", "cpu_offload": "fsdp_offload_params"}
        settings["fsdp_config"] = {names.get(k, f"fsdp_{k}"): v for k, v in fsdp_config(s).items()}
        if mesh(job):
            settings["parallelism_config"] = {f"parallelism_config_{k}": v for k, v in mesh(job).items()}
    if kind == "DEEPSPEED":
        settings["deepspeed_config"] = {"deepspeed_config_file": "deepspeed.json", "zero3_init_flag": s.sharding == "zero3"}
    return settings


def write_accelerate(job: Job) -> Written:
    """``accelerate launch`` with its file and the same script."""
    command = ["accelerate", "launch", "--config_file", "accelerate.yaml"]
    if job.n_nodes > 1:
        command += ["--machine_rank", "$NODE_RANK", "--main_process_ip", "$HEAD_NODE"]
    command += _words(job, sharding=False)
    files = {n: text for n, text in _files(job).items() if n != "fsdp.json"}
    files["accelerate.yaml"] = to_yaml(accelerate_config(job), f"{ACCELERATE}: {job.arch.name} on {job.cluster.label}")  # type: ignore[arg-type]
    return started(job, ACCELERATE, command, files, notes(job))


def write_deepspeed(job: Job) -> Written:
    """The DeepSpeed launcher with its file and the same script."""
    command = [*torchrun(job), *_words(job, sharding=False), "--deepspeed", "deepspeed.json"]
    files = {"train.py": script(job), "deepspeed.json": json.dumps(deepspeed_config(job), indent=2) + "\n"}
    return started(job, DEEPSPEED, command, files, notes(job))


def targets(s: Strategy) -> list[str] | str:
    """``target_modules`` of PEFT."""
    if "all-linear" in s.lora_targets:
        return "all-linear"
    return [name for target in s.lora_targets for name in _MODULES.get(target, [target])]


def weights_dtype(s: Strategy) -> str:
    """The format in which PyTorch holds the model's weights."""
    if s.quantized_base or (s.precision != "fp16" and (not s.master_weights or s.lora_rank)):
        return "bfloat16"
    return "float16" if not s.master_weights or s.lora_rank else "float32"


def script(job: Job) -> str:
    """``train.py``: a model, a data set, a Trainer."""
    s = job.strategy
    loading = [f"attn_implementation={'sdpa' if s.fused_attention else 'eager'!r}"]
    imports, prepare = [], []
    if s.quantized_base:
        imports.append("from transformers import BitsAndBytesConfig")
        loading.append(
            "quantization_config=BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type='nf4', "
            "bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=torch.bfloat16"
            # FSDP flattens parameters of one format: the packed weights are stored in that of the rest
            + (", bnb_4bit_quant_storage=torch.bfloat16)" if by_fsdp(s) else ")")
        )
    loading.append(f"dtype=torch.{weights_dtype(s)}")
    if s.lora_rank:
        imports.append("from peft import LoraConfig, get_peft_model")
        if s.recompute == "full":
            # what prepare_model_for_kbit_training does for checkpointing, without its copies of embedding and head in 32 bits
            prepare.append("model.enable_input_require_grads()")
        prepare.append(
            f"model = get_peft_model(model, LoraConfig(r={s.lora_rank}, lora_alpha={2 * s.lora_rank}, "
            f"target_modules={targets(s)!r}, task_type='CAUSAL_LM'))"
        )
    arguments_text = ",\n        ".join(loading)
    more_imports = "".join(f"{line}\n" for line in sorted(imports))
    more = "".join(f"    {line}\n" for line in prepare)
    return _SCRIPT.format(
        model=job.model,
        data=job.data,
        seq=job.seq_len,
        loading=arguments_text,
        imports=more_imports,
        prepare=more,
        name=job.arch.name,
    )


_SCRIPT = '''"""Train {name}. Written by gpuwise from a plan: the arguments beside it carry the layout."""

import os

import torch
from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, HfArgumentParser, Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint
{imports}
MODEL = "{model}"
DATA = "{data}"
SEQ_LEN = {seq}


def packed(tokenizer):
    """Texts one after the other, cut into rows of SEQ_LEN tokens: nothing is padding."""

    def rows(batch):
        ids = [i for text in batch["text"] for i in [*tokenizer(text)["input_ids"], tokenizer.eos_token_id]]
        cut = [ids[at : at + SEQ_LEN] for at in range(0, len(ids) - SEQ_LEN + 1, SEQ_LEN)]
        return {{"input_ids": cut, "labels": [list(row) for row in cut]}}

    return rows


def main():
    (arguments,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    data = load_dataset(DATA, split="train")
    data = data.map(packed(tokenizer), batched=True, remove_columns=data.column_names)
    model = AutoModelForCausalLM.from_pretrained(
        MODEL,
        {loading},
    )
{prepare}    trainer = Trainer(model=model, args=arguments, train_dataset=data)
    last = get_last_checkpoint(arguments.output_dir) if os.path.isdir(arguments.output_dir) else None
    trainer.train(resume_from_checkpoint=last)


if __name__ == "__main__":
    main()
'''
