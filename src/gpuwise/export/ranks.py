"""Our own runner from a plan: torchrun starts the ranks that ``gpuwise run`` starts here, on any number of nodes.

``settings.json`` is read by the ranks themselves (``gpuwise.train.ranks.settings.read_settings``, unknown names refused).
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from gpuwise.dtypes import TENSOR_BYTES
from gpuwise.export import hugging_face as hf
from gpuwise.export.job import Job, writes_model
from gpuwise.export.torchrun import started, torchrun
from gpuwise.export.written import Written
from gpuwise.units import format_bytes
from gpuwise.workload.strategy import OPTIONS, Strategy
from gpuwise.workload.transformer.parameters import count_parameters

VERSION = "gpuwise's ranks under torchrun of PyTorch 2.7 to 2.13"
PRECISIONS = ("fp32", "tf32", "bf16")
OPTIMIZERS = {"adamw": "AdamW", "sgd": "SGD", "momentum": "SGD"}
"""Optimizers of ``torch.optim`` for a task without its own."""
LAYOUT = (*(name for name, o in OPTIONS.items() if o.ranks), "global_batch")
"""Fields of a strategy passed to the ranks."""
ALWAYS: dict[str, int | str | bool] = {"expert_dispatch": "all-to-all", "overlap_ep": False}
CHILD = ("-m", "gpuwise.train.ranks.child", "settings.json")


def strategy_gaps(s: Strategy) -> Iterator[str]:
    """Parts of a strategy that the ranks do not support."""
    if s.pp > 1 and s.virtual_stages > 1:
        yield f"{s.virtual_stages} stages on a rank"
    if s.pp > 1 and s.schedule != "1f1b":
        yield f"the schedule {s.schedule}"
    if s.cp > 1 and (s.pp > 1 or s.sharding == "hybrid"):
        yield f"context parallel {s.cp} with {'pipeline stages' if s.pp > 1 else 'hybrid sharding'}"
    if s.cp > 1 and s.context_parallel != "ring":
        yield f"context parallelism by {s.context_parallel}"
    if s.ep > 1 and ((s.dp * s.cp * s.tp) % s.ep or s.offload_optimizer):
        yield f"expert parallel {s.ep} of {s.dp * s.cp * s.tp} ranks" + (" with an offload" if s.offload_optimizer else "")
    if s.sharding == "zero1":
        yield "zero1"
    if s.tp > 1 and s.dp * s.cp > 1 and s.sharding == "none":
        yield "tensor parallel ranks replicated by DDP"
    if s.precision not in PRECISIONS:
        yield s.precision
    if s.recompute == "selective":
        yield "selective recompute"
    if s.optimizer not in OPTIMIZERS:
        yield f"the optimizer {s.optimizer}"
    # frozen weights are in bf16 where they are whole
    frozen = s.lora_rank > 0 and s.precision == "bf16" and s.sharding == "none"
    if not (s.master_weights or frozen) or s.gradient_dtype != "fp32":
        yield "weights or gradients without fp32"
    if s.step_in_backward:
        yield "steps in the backward pass"
    if s.fused_loss:
        yield "a loss in chunks"
    if s.cuda_graphs == "full":
        yield "a graph of the whole step"
    if s.offload_optimizer and (s.sharding not in ("zero2", "zero3", "hybrid") or s.dp * s.cp == 1):
        yield "an optimizer on the host without FSDP2"
    if s.offload_activations and s.recompute != "none":
        yield "activations that are both recomputed and offloaded"
    if s.quantized_base and (s.sharding != "none" or s.tp > 1):
        yield "4-bit weights that are sharded or divided"


def gaps(job: Job) -> Iterator[str]:
    """Unsupported parts of the strategy, and of a script that trains text decoders."""
    s = job.strategy
    if not writes_model(job.arch):
        yield f"{job.arch.name} is not a decoder of text: the script trains no other"
    if s.cp > 1 and (not s.fused_attention or job.arch.window):
        yield "rows shared without fused attention over all of them"
    if s.pp > job.arch.n_layers:
        yield f"{s.pp} stages of {job.arch.n_layers} layers"
    if s.ep > 1 and (job.arch.moe is None or job.arch.moe.n_experts % s.ep):
        yield f"expert parallel {s.ep} of {job.arch.moe.n_experts if job.arch.moe else 'no'} experts"
    if s.tp > 1 and (not job.arch.gated_mlp or job.arch.mla is not None):
        yield "tensor parallelism of layers that are not Llama's"
    yield from strategy_gaps(s)
    if s.sharding == "hybrid" and s.dp % (shard_group(job) or 1):
        yield f"groups of {shard_group(job)} in {s.dp} data-parallel ranks"


def shard_group(job: Job) -> int:
    """Ranks that hold one copy with hybrid sharding: as planned, or those of a system; 0 without."""
    s = job.strategy
    return s.shard_group or (min(job.gpus_per_node // s.tp, s.dp) if s.sharding == "hybrid" else 0)


def settings(job: Job) -> dict[str, object]:
    """The whole file."""
    s = job.strategy
    layout = {name: getattr(s, name) for name in LAYOUT} | {"shard_group": shard_group(job)}
    made: dict[str, object] = {"target": "train.py:make_step", "layout": layout, "out": job.output}
    if job.n_steps is not None:
        made["steps"] = job.n_steps
    if job.save_every is not None:
        made["save_every"] = job.save_every
    return made


def write(job: Job) -> Written:
    """torchrun with the ranks' module and their settings."""
    s = job.strategy
    more = {"momentum": ", momentum=0.9", "adamw": ", weight_decay=0.0"}.get(s.optimizer, "")
    script = SCRIPT.format(
        name=job.arch.name,
        model=job.model,
        data=job.data,
        seq=job.seq_len,
        attention="sdpa" if s.fused_attention else "eager",
        optimizer=f"torch.optim.{OPTIMIZERS[s.optimizer]}(model.parameters(), lr={job.learning_rate:g}{more})",
        steps=job.n_steps,
    )
    files = {"train.py": script, "settings.json": json.dumps(settings(job), indent=2) + "\n"}
    notes = list(hf.notes(job))
    if job.gpus_per_node > 1:
        whole = job.gpus_per_node * TENSOR_BYTES["fp32"] * count_parameters(job.arch).total
        notes.append(f"every rank reads the whole model before it is divided: {format_bytes(whole)} of a node's memory")
    if job.n_nodes > 1:
        notes.append(f"{job.output} has to be a folder that every node sees: journals and checkpoints are there")
    return started(job, VERSION, [*torchrun(job), *CHILD], files, notes)


SCRIPT = '''"""Train {name}. Written by gpuwise from a plan: settings.json carries the layout."""

import torch
from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer

MODEL = "{model}"
DATA = "{data}"
SEQ_LEN = {seq}
STEPS = {steps}


def packed(tokenizer):
    """Texts one after the other, cut into rows of SEQ_LEN tokens: nothing is padding."""

    def rows(batch):
        ids = [i for text in batch["text"] for i in [*tokenizer(text)["input_ids"], tokenizer.eos_token_id]]
        return {{"input_ids": [ids[at : at + SEQ_LEN] for at in range(0, len(ids) - SEQ_LEN + 1, SEQ_LEN)]}}

    return rows


def linear(optimizer):
    """From the learning rate to nothing over the run, as Transformers' Trainer does unless told otherwise."""
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(1.0 - step / STEPS, 0.0) if STEPS else 1.0)


def make_step():
    """A causal model of Transformers needs no step: the loss is that of every next token."""
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    data = load_dataset(DATA, split="train")
    data = data.map(packed(tokenizer), batched=True, remove_columns=data.column_names)
    model = AutoModelForCausalLM.from_pretrained(MODEL, attn_implementation="{attention}", dtype=torch.float32)
    return {{
        "model": model,
        "data": data,
        "optimizer": lambda model: {optimizer},
        "scheduler": linear,
        "clip": 1.0,
    }}
'''
