"""Files for Lightning, Axolotl and LLaMA-Factory, read by their own parsers and back into the layout they came from.

The parsers want ``lightning jsonargparse[signatures]``, and ``axolotl llamafactory`` without their pins (``--no-deps``) with
``datasets omegaconf``; where they are not installed their test is skipped.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gpuwise.export import axolotl, lightning, llama_factory
from gpuwise.export import hugging_face as hf
from gpuwise.export.job import Job
from gpuwise.export.targets import TOOLS, gaps_of, write
from gpuwise.export.written import Written

Jobs = Callable[..., Iterator[Job]]
N = 200
"""Jobs drawn."""
STACKS = ("eager", "compiled", "hf-fsdp", "deepspeed")


def _plainer(job: Job, i: int) -> Job:
    """The job, and two times in three without what is drawn more often than these tools have it."""
    s = job.strategy
    if i % 3 == 0:
        return job
    recompute = "full" if s.recompute == "selective" else s.recompute
    precision = ("bf16", "fp16", "fp32", "tf32")[i % 4]
    s = replace(s, precision=precision, recompute=recompute, optimizer=("adamw", "sgd")[i % 2], offload_activations=False)
    s = replace(s, gradient_dtype="fp32" if s.master_weights else s.gradient_dtype, step_in_backward=False, recompute_every=1)
    s = replace(s, lora_rank=0, quantized_base=False, offload_optimizer=s.offload_optimizer and s.sharding != "none")
    return replace(job, strategy=s)


def _able(jobs: Jobs, tool: str) -> Iterator[tuple[Job, Written, Any]]:
    """200 jobs, what is written for them, and the document read from it."""
    yaml: Any = pytest.importorskip("yaml")
    found: list[Job] = []
    for stack in STACKS:
        drawn = (_plainer(job, i) for i, job in enumerate(jobs(stack, 400)))
        found += itertools.islice((job for job in drawn if not gaps_of(job, TOOLS[tool])), N // len(STACKS))
    assert len(found) == N
    for job in found:
        made = write(job, TOOLS[tool])
        [text] = [t for name, t in made.files.items() if name.endswith(".yaml")]
        yield job, made, yaml.safe_load(text)


@pytest.mark.slow
def test_lightning_reads_its_file_back(jobs: Jobs, transformers_loads: None) -> None:
    jsonargparse: Any = pytest.importorskip("jsonargparse")
    pl: Any = pytest.importorskip("lightning.pytorch")
    script = ModuleType("train")
    exec(compile(lightning.SCRIPT, "train.py", "exec"), script.__dict__)
    parser = jsonargparse.ArgumentParser()
    parser.add_class_arguments(pl.Trainer, "trainer")
    parser.add_class_arguments(script.Model, "model")
    parser.add_class_arguments(script.Data, "data")
    for job, made, document in _able(jobs, "lightning"):
        s = job.strategy
        assert made.command[-4:] == ("train.py", "fit", "--config", "lightning.yaml")
        assert document.pop("ckpt_path") == "last"
        read = parser.parse_object(document)
        trainer, model = read.trainer, read.model
        assert trainer.devices * trainer.num_nodes == s.dp
        assert trainer.devices * trainer.num_nodes * trainer.accumulate_grad_batches * read.data.batch_size == s.global_batch
        assert read.data.seq_len == job.seq_len and trainer.max_steps == (job.n_steps or -1)
        name = trainer.strategy if isinstance(trainer.strategy, str) else trainer.strategy.class_path.rsplit(".", 1)[-1]
        assert (name == "DeepSpeedStrategy") == hf.by_deepspeed(s) and (name == "ModelParallelStrategy") == hf.by_fsdp(s)
        if name == "DeepSpeedStrategy":
            config = trainer.strategy.init_args.config
            assert config["zero_optimization"]["stage"] == int(s.sharding[-1])
            assert config["train_micro_batch_size_per_gpu"] == s.micro_batch
            summed = config.get("data_types", {}).get("grad_accum_dtype") == "fp32"
            assert summed == (s.gradient_dtype == "fp32" and s.precision in ("bf16", "fp16"))
        if name == "ModelParallelStrategy":
            assert trainer.strategy.init_args.data_parallel_size == s.dp and model.shard
            assert (model.reshard, model.offload) == (s.sharding == "zero3", s.offload_optimizer)
        assert model.recompute == (s.recompute == "full") and model.half != s.master_weights
        low = model.bf16 if hf.by_fsdp(s) else trainer.precision.startswith("bf16")
        assert low == (s.precision == "bf16") and trainer.precision.startswith("16") == (s.precision == "fp16")


@pytest.mark.slow
def test_axolotl_reads_its_file_back(jobs: Jobs, transformers_loads: None) -> None:
    fsdp: Any = pytest.importorskip("axolotl.utils.schemas.fsdp")
    integrations: Any = pytest.importorskip("axolotl.integrations.config")
    plugins: Any = pytest.importorskip("axolotl.integrations.base")
    _, plain = integrations.merge_input_args()
    plugins.PluginManager.get_instance().register("axolotl.integrations.liger.LigerPlugin")
    _, with_liger = integrations.merge_input_args()
    fused = 0
    for job, made, document in _able(jobs, "axolotl"):
        s = job.strategy
        # keys of a plugin are read where it is named
        config = with_liger if document.get("plugins") else plain
        # unknown keys pass it in silence
        assert set(document) <= set(config.model_fields)
        assert set(document.get("fsdp_config", {})) <= set(fsdp.FSDPConfig.model_fields)
        read = config(**document)
        assert read.micro_batch_size * read.gradient_accumulation_steps * s.dp == s.global_batch
        assert bool(getattr(read, "liger_fused_linear_cross_entropy", False)) == s.fused_loss
        assert bool(read.load_in_4bit) == s.quantized_base
        fused += s.fused_loss
        assert not s.lora_rank or (read.lora_target_modules or "all-linear") == hf.targets(s)
        assert (read.attn_implementation == "sdpa") == s.fused_attention and bool(read.bfloat16 or read.float16) == (
            not s.master_weights and not s.lora_rank
        )
        assert read.sequence_len == job.seq_len and (read.max_steps or None) == job.n_steps
        assert (bool(read.bf16), bool(read.fp16), read.tf32) == tuple(s.precision == p for p in ("bf16", "fp16", "tf32"))
        assert read.optimizer == hf.OPTIMIZERS[s.optimizer]
        if hf.by_fsdp(s):
            assert read.fsdp_config.reshard_after_forward == (s.sharding != "zero2") and read.fsdp_version == 2
            assert read.fsdp_config.activation_checkpointing == (s.recompute == "full")
            assert bool(read.fsdp_config.offload_params) == s.offload_optimizer
            assert (read.dp_replicate_size or 1) * (read.dp_shard_size or s.dp) == s.dp
        else:
            assert bool(read.gradient_checkpointing) == (s.recompute == "full") and read.fsdp_config is None
        assert (read.deepspeed is not None) == hf.by_deepspeed(s) == ("deepspeed.json" in made.files)
        assert (read.lora_r or 0) == s.lora_rank and (read.adapter is not None) == bool(s.lora_rank)
    assert fused


@pytest.mark.slow
def test_llama_factory_reads_its_file_back(
    jobs: Jobs, transformers_loads: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISABLE_VERSION_CHECK", "1")
    monkeypatch.chdir(tmp_path)
    module: Any = pytest.importorskip("transformers.training_args")
    monkeypatch.setattr(module, "is_torch_tf32_available", lambda: True)
    monkeypatch.setattr(module, "enable_tf32", lambda *a: None, raising=False)
    hparams: Any = pytest.importorskip("llamafactory.hparams.parser")
    for job, made, document in _able(jobs, "llama-factory"):
        s = job.strategy
        for name, text in made.files.items():
            (tmp_path / name).write_text(text, encoding="utf-8")
        model, data, training, finetuning, _ = hparams._parse_train_args({**document, "use_cpu": True})
        assert training.per_device_train_batch_size * training.gradient_accumulation_steps * s.dp == s.global_batch
        assert document["cutoff_len"] == job.seq_len and training.max_steps == (job.n_steps or -1)
        assert (training.bf16, training.fp16) == (s.precision == "bf16", s.precision == "fp16")
        assert model.disable_gradient_checkpointing == (s.recompute == "none")
        assert (training.deepspeed is not None) == hf.by_deepspeed(s)
        assert finetuning.pure_bf16 == (not s.master_weights and not s.lora_rank)
        assert (finetuning.finetuning_type == "lora") == bool(s.lora_rank)
        assert not s.lora_rank or finetuning.lora_rank == s.lora_rank
        targets = hf.targets(s)
        assert not s.lora_rank or finetuning.lora_target == (["all"] if targets == "all-linear" else targets)
        assert (model.quantization_bit == 4) == s.quantized_base and model.enable_liger_kernel == s.fused_loss
        assert data.dataset in (["data"], "data") and training.optim == hf.OPTIMIZERS[s.optimizer]


def test_what_they_have_not_is_named(jobs: Jobs) -> None:
    sharded = next(_plainer(j, 1) for j in jobs("hf-fsdp", 50) if j.strategy.sharding == "zero3" and not any(hf.gaps(j)))
    assert not list(hf.gaps(sharded))
    assert any("FSDP" in gap for gap in llama_factory.gaps(sharded))
    assert not list(axolotl.gaps(sharded))
