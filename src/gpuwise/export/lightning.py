"""Lightning's CLI from a plan: a module, its data and a file for the Trainer; read by jsonargparse from the signatures of
lightning 2.6, unknown names refused."""

from __future__ import annotations

from collections.abc import Iterator

from gpuwise.export import deepspeed
from gpuwise.export import hugging_face as hf
from gpuwise.export.job import Job
from gpuwise.export.torchrun import started, torchrun
from gpuwise.export.written import Written
from gpuwise.export.yaml import to_yaml
from gpuwise.workload.stacks.stack import find_stack

VERSION = "lightning 2.6"
OPTIMIZERS = {"adamw": "AdamW", "sgd": "SGD", "momentum": "SGD"}
"""Optimizers of ``torch.optim``."""
_PLACE = "lightning.pytorch."
_TRAINERS = ("train_batch_size", "gradient_accumulation_steps", "gradient_clipping", "bf16", "fp16")
"""DeepSpeed settings that are arguments of the Trainer."""


def gaps(job: Job) -> Iterator[str]:
    """Gaps beside those of the Trainer."""
    yield from hf.gaps(job)
    s = job.strategy
    if s.fused_loss:
        yield "a loss in chunks"
    if s.sharding == "hybrid" or s.shard_group:
        yield "hybrid sharding by FSDP2"
    if s.lora_rank or s.quantized_base:
        yield "adapters"
    if s.optimizer in hf.OPTIMIZERS and s.optimizer not in OPTIMIZERS:
        yield f"the optimizer {s.optimizer} in PyTorch itself"
    if s.offload_optimizer and hf.by_deepspeed(s):
        yield "an offloaded optimizer under DeepSpeed"
    if s.sharding == "zero3" and hf.by_deepspeed(s):
        yield "ZeRO-3 by DeepSpeed while a checkpoint is loaded (FSDP2 it has: --stack hf-fsdp)"
    if s.precision == "fp16" and hf.by_fsdp(s):
        yield "fp16 with FSDP2"


def document(job: Job) -> dict[str, object]:
    """The whole file. With FSDP2 the module casts itself, and the Trainer leaves its weights unchanged."""
    s = job.strategy
    mixed = "-mixed" if s.master_weights else "-true"
    whole = s.precision in ("fp32", "tf32") or hf.by_fsdp(s)
    every = {"every_n_train_steps": job.save_every} if job.save_every is not None else {}
    callbacks = [
        {"class_path": f"{_PLACE}callbacks.ModelCheckpoint", "init_args": {"dirpath": job.output, "save_last": True, **every}},
        {"class_path": f"{_PLACE}callbacks.OnExceptionCheckpoint", "init_args": {"dirpath": job.output}},
    ]
    trainer: dict[str, object] = {
        "accelerator": "gpu",
        "devices": job.gpus_per_node,
        "num_nodes": job.n_nodes,
        "strategy": _strategy(job),
        "precision": "32-true" if whole else {"bf16": "bf16", "fp16": "16"}[s.precision] + mixed,
        "accumulate_grad_batches": s.accumulation,
        "max_steps": job.n_steps or -1,
        "callbacks": callbacks,
    }
    model = {
        "name": job.model,
        "optimizer": OPTIMIZERS[s.optimizer],
        "momentum": 0.9 if s.optimizer == "momentum" else 0.0,
        "learning_rate": job.learning_rate,
        "attention": "sdpa" if s.fused_attention else "eager",
        "recompute": s.recompute == "full",
        "compiled": find_stack(s.stack).export.torch_compile,
        "tf32": s.precision == "tf32",
        "half": not s.master_weights,
        "shard": hf.by_fsdp(s),
        "reshard": s.sharding != "zero2",
        "bf16": s.precision == "bf16",
        "offload": s.offload_optimizer,
    }
    data = {"name": job.data, "tokenizer": job.model, "seq_len": job.seq_len, "batch_size": s.micro_batch}
    return {"trainer": trainer, "model": model, "data": data, "ckpt_path": "last"}


def _strategy(job: Job) -> str | dict[str, object]:
    s = job.strategy
    if s.sharding == "none":
        return "ddp" if s.dp > 1 else "auto"
    if hf.by_deepspeed(s):
        return {"class_path": f"{_PLACE}strategies.DeepSpeedStrategy", "init_args": {"config": _deepspeed(job)}}
    sizes = {"data_parallel_size": s.dp, "tensor_parallel_size": 1}
    return {"class_path": f"{_PLACE}strategies.ModelParallelStrategy", "init_args": sizes}


def _deepspeed(job: Job) -> dict[str, object]:
    """DeepSpeed's own settings, the dtype of gradients among them, without those that Lightning makes of its Trainer's arguments
    (``_format_batch_size_and_grad_accum_config`` and ``_format_precision_config`` of lightning 2.6's strategy)."""
    made = {k: v for k, v in deepspeed.config(job).items() if k not in _TRAINERS}
    return {**made, "zero_allow_untested_optimizer": True}


def write(job: Job) -> Written:
    """torchrun with the script and its file."""
    command = [*torchrun(job), "train.py", "fit", "--config", "lightning.yaml"]
    text = to_yaml(document(job), f"{VERSION}: {job.arch.name} on {job.cluster.label}")  # type: ignore[arg-type]
    files = {"train.py": SCRIPT.replace("{name}", job.arch.name), "lightning.yaml": text}
    return started(job, VERSION, command, files, hf.notes(job))


SCRIPT = '''"""Train {name}. Written by gpuwise from a plan: lightning.yaml carries the layout."""

import torch
from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch.cli import LightningCLI


class Model(LightningModule):
    def __init__(
        self,
        name: str,
        optimizer: str,
        momentum: float,
        learning_rate: float,
        attention: str,
        recompute: bool,
        compiled: bool,
        tf32: bool,
        half: bool,
        shard: bool,
        reshard: bool,
        bf16: bool,
        offload: bool,
    ):
        super().__init__()
        self.save_hyperparameters()
        self.model = None

    def configure_model(self):
        if self.model is not None:
            return
        from transformers import AutoModelForCausalLM

        h = self.hparams
        torch.backends.cuda.matmul.allow_tf32 = h.tf32
        dtype = torch.float32 if not h.half else torch.bfloat16 if h.bf16 else torch.float16
        model = AutoModelForCausalLM.from_pretrained(h.name, dtype=dtype, attn_implementation=h.attention)
        if h.recompute:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        if h.shard:
            from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard

            how = {
                "mesh": self.device_mesh["data_parallel"],
                "reshard_after_forward": h.reshard,
                "mp_policy": MixedPrecisionPolicy(torch.bfloat16, torch.float32) if h.bf16 else MixedPrecisionPolicy(),
                "offload_policy": CPUOffloadPolicy() if h.offload else OffloadPolicy(),
            }
            layers = set(model._no_split_modules)
            for module in model.modules():
                if type(module).__name__ in layers:
                    fully_shard(module, **how)
            fully_shard(model, **how)
        if h.compiled:
            model.compile()
        self.model = model.train()

    def training_step(self, rows, _):
        return self.model(input_ids=rows, labels=rows).loss

    def configure_optimizers(self):
        h = self.hparams
        more = {"momentum": h.momentum} if h.momentum else {}
        return getattr(torch.optim, h.optimizer)(self.model.parameters(), lr=h.learning_rate, **more)


class Data(LightningDataModule):
    def __init__(self, name: str, tokenizer: str, seq_len: int, batch_size: int):
        super().__init__()
        self.save_hyperparameters()

    def setup(self, stage):
        from datasets import load_dataset
        from transformers import AutoTokenizer

        h, words = self.hparams, AutoTokenizer.from_pretrained(self.hparams.tokenizer)

        def rows(batch):
            ids = [i for text in batch["text"] for i in [*words(text)["input_ids"], words.eos_token_id]]
            return {"ids": [ids[at : at + h.seq_len] for at in range(0, len(ids) - h.seq_len + 1, h.seq_len)]}

        data = load_dataset(h.name, split="train")
        self.rows = data.map(rows, batched=True, remove_columns=data.column_names).with_format("torch")

    def train_dataloader(self):
        def stacked(rows):
            return torch.stack([row["ids"] for row in rows])

        size = self.hparams.batch_size
        return torch.utils.data.DataLoader(self.rows, size, shuffle=True, drop_last=True, collate_fn=stacked)


if __name__ == "__main__":
    LightningCLI(Model, Data)
'''
