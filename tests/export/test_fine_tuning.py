"""Files for Lightning, Axolotl, LLaMA-Factory, TRL and others that fine-tune, read back into the layout they came from.

Their own parsers want ``lightning jsonargparse[signatures]``, and ``axolotl llamafactory trl`` without their pins
(``--no-deps``) with ``datasets omegaconf``; where they are not installed their test is skipped. ``fine_tuning.json`` lists the
names that packages accept, read from their source: it is compared everywhere.
"""

from __future__ import annotations

import ast
import itertools
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gpuwise.export import axolotl, lightning, llama_factory, maxtext
from gpuwise.export import hugging_face as hf
from gpuwise.export.job import Job
from gpuwise.export.targets import TOOLS, gaps_of, write
from gpuwise.export.written import Written
from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.models.catalogue import find_model
from gpuwise.workload.strategy import Strategy

Jobs = Callable[..., Iterator[Job]]
Made = Callable[[Job, int], Job]
N = 200
"""Jobs drawn."""
STACKS = ("eager", "compiled", "hf-fsdp", "deepspeed")
ACCEPTED: dict[str, list[str]] = json.loads(Path(__file__).with_name("fine_tuning.json").read_text(encoding="utf-8"))


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


def _drawn(jobs: Jobs, tool: str, stacks: tuple[str, ...] = STACKS, n: int = N, made: Made = _plainer) -> Iterator[Job]:
    """``n`` jobs that the tool can express."""
    found: list[Job] = []
    for stack in stacks:
        drawn = (made(job, i) for i, job in enumerate(jobs(stack, 400)))
        found += itertools.islice((job for job in drawn if not gaps_of(job, TOOLS[tool])), n // len(stacks))
    assert len(found) == n
    yield from found


def _able(
    jobs: Jobs, tool: str, stacks: tuple[str, ...] = STACKS, n: int = N, made: Made = _plainer
) -> Iterator[tuple[Job, Written, Any]]:
    """Jobs, what is written for them, and the document read from it."""
    yaml: Any = pytest.importorskip("yaml")
    for job in _drawn(jobs, tool, stacks, n, made):
        files = write(job, TOOLS[tool])
        [text] = [t for name, t in files.files.items() if name.endswith(".yaml")]
        yield job, files, yaml.safe_load(text)


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


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning")
def test_trl_reads_its_file_back(jobs: Jobs, transformers_loads: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trl: Any = pytest.importorskip("trl")
    utils: Any = pytest.importorskip("trl.trainer.utils")
    module: Any = pytest.importorskip("transformers.training_args")
    monkeypatch.setattr(module, "is_torch_tf32_available", lambda: True)
    monkeypatch.setattr(module, "enable_tf32", lambda *a: None, raising=False)
    monkeypatch.chdir(tmp_path)
    kinds = (trl.ScriptArguments, trl.SFTConfig, trl.ModelConfig, trl.DatasetMixtureConfig)
    for job, made, _ in _able(jobs, "trl", ("trl", "trainer", *STACKS), 120):
        s = job.strategy
        for name, text in made.files.items():
            (tmp_path / name).write_text(text, encoding="utf-8")
        script, args, model, _ = trl.TrlParser(kinds).parse_args_and_config(["--config", "trl.yaml", "--use_cpu"])
        assert script.dataset_name == job.data and model.model_name_or_path == job.model
        assert args.per_device_train_batch_size * args.gradient_accumulation_steps * s.dp == s.global_batch
        assert (args.max_length, args.max_steps, args.packing) == (job.seq_len, job.n_steps or -1, True)
        assert (args.bf16, args.fp16) == (s.precision == "bf16", s.precision == "fp16")
        assert args.optim == hf.OPTIMIZERS[s.optimizer] and args.activation_offloading == s.offload_activations
        fsdp = args.fsdp_plugin_args or {}
        assert bool(fsdp) == hf.by_fsdp(s) and (args.deepspeed is not None) == hf.by_deepspeed(s)
        recomputed = fsdp["activation_checkpointing"] if fsdp else args.gradient_checkpointing
        assert recomputed == (s.recompute != "none")
        assert bool((args.gradient_checkpointing_kwargs or {}).get("selective")) == (s.recompute == "selective")
        assert model.dtype == hf.weights_dtype(s) and (model.attn_implementation == "eager") != s.fused_attention
        peft, quantized = utils.get_peft_config(model), utils.get_quantization_config(model)
        assert (quantized is not None) == s.quantized_base and (peft.r if peft else 0) == s.lora_rank
        targets = hf.targets(s)
        assert peft is None or peft.target_modules == (targets if isinstance(targets, str) else set(targets))


def test_trl_has_the_names_that_are_written(jobs: Jobs) -> None:
    for _, _, document in _able(jobs, "trl", ("trl", *STACKS)):
        assert set(document) <= set(ACCEPTED["trl 1.16"]), set(document) - set(ACCEPTED["trl 1.16"])


def test_trl_packs_documents_apart() -> None:
    job = Job(find_model("llama-3.1-8b"), find_cluster("8xH100-SXM"), Strategy(dp=8, stack="trl"), 4096, 1e9, packed=512)
    made = write(job, TOOLS["trl"])
    assert "packing_strategy: bfd" in made.files["trl.yaml"] and "flash_attention_2" in made.files["trl.yaml"]
    assert "packing_strategy: wrapped" in write(replace(job, packed=None), TOOLS["trl"]).files["trl.yaml"]


def test_unsloth_has_the_names_that_are_written(jobs: Jobs) -> None:
    """Its script is parsed, for it loads only beside a GPU."""
    for job in _drawn(jobs, "unsloth", ("unsloth", "trainer"), 100):
        s = job.strategy
        calls = [c for c in ast.walk(ast.parse(write(job, TOOLS["unsloth"]).files["train.py"])) if isinstance(c, ast.Call)]
        called = {
            ast.unparse(c.func): {
                k.arg: ast.literal_eval(k.value) for k in c.keywords if isinstance(k.value, (ast.Constant, ast.List))
            }
            for c in calls
        }
        loads, trains = called["FastLanguageModel.from_pretrained"], called["SFTConfig"]
        adapts = called.get("FastLanguageModel.get_peft_model", {})
        assert set(loads) <= set(ACCEPTED["unsloth 2026.10 from_pretrained"])
        assert set(adapts) <= set(ACCEPTED["unsloth 2026.10 get_peft_model"])
        assert set(trains) <= set(ACCEPTED["trl 1.16"])
        assert loads["max_seq_length"] == trains["max_length"] == job.seq_len and loads["load_in_4bit"] == s.quantized_base
        assert adapts.get("r", 0) == s.lora_rank and loads.get("full_finetuning", False) == (not s.lora_rank)
        assert loads["use_gradient_checkpointing"] == ("unsloth" if s.offload_activations else s.recompute == "full")
        assert trains["per_device_train_batch_size"] * trains["gradient_accumulation_steps"] * s.dp == s.global_batch
        assert trains.get("max_steps") == job.n_steps and trains["optim"] == hf.OPTIMIZERS[s.optimizer]
        assert (trains.get("bf16", False), trains.get("fp16", False)) == (s.precision == "bf16", s.precision == "fp16")


TUNED = ("llama-3.1-8b", "llama-3.2-1b", "qwen2.5-7b", "gemma-2-9b", "phi-4", "llama-3.3-70b")


def _tuned(job: Job, i: int) -> Job:
    """The job with a model of torchtune, whose weights in bf16 have no fp32 copies."""
    job = _plainer(job, i)
    s = job.strategy.with_(
        fused_attention=True, shard_group=0, tp=1, pp=1, cp=1, ep=1, dp=job.cluster.n_accelerators, cuda_graphs="none"
    )
    s = s.with_(lora_rank=8) if i % 8 == 0 else s
    s = s if s.lora_rank or s.precision != "bf16" else s.with_(master_weights=False, gradient_dtype="bf16")
    return replace(job, arch=find_model(TUNED[i % len(TUNED)]), strategy=s)


def test_torchtune_has_the_names_that_are_written(jobs: Jobs) -> None:
    """It loads beside releases of torchao that PyTorch 2.7 has: its recipes and builders are read from their source."""
    recipes = set[str]()
    for job, made, document in _able(jobs, "torchtune", ("torchtune",), 60, _tuned):
        s = job.strategy
        recipe = made.command[made.command.index("--config") - 1]
        recipes.add(recipe)
        assert set(document) <= set(ACCEPTED[f"torchtune 0.6.1 {recipe}"])
        for part in document.values():
            if isinstance(part, dict) and part["_component_"].startswith("torchtune."):
                assert set(part) - {"_component_"} <= set(ACCEPTED[f"torchtune 0.6.1 {part['_component_']}"]), part
        assert ("distributed" in recipe) == (s.dp > 1) == ("--nproc-per-node" in made.command)
        assert document["batch_size"] * document["gradient_accumulation_steps"] * s.dp == s.global_batch
        assert document["tokenizer"]["max_seq_len"] == job.seq_len and document["max_steps_per_epoch"] == job.n_steps
        assert document["dtype"] == s.precision and document["optimizer"]["lr"] == job.learning_rate
        model = document["model"]
        assert (model.get("lora_rank", 0), model.get("quantize_base", False)) == (s.lora_rank, s.quantized_base)
        assert document["enable_activation_checkpointing"] == (s.recompute == "full")
        assert (document.get("ac_mode") == "selective") == (s.recompute == "selective")
        assert document["enable_activation_offloading"] == s.offload_activations
        assert document.get("fsdp_cpu_offload", False) == s.offload_optimizer
        assert document.get("optimizer_in_bwd", False) == s.step_in_backward
        assert s.dp == 1 or document["fsdp_reshard_after_forward"] == (s.sharding == "zero3")
    assert len(recipes) == 4


def test_nemo_has_the_names_that_are_written(jobs: Jobs) -> None:
    """Its sections are classes' fields, read from its source."""
    sharded = 0
    for job, _, document in _able(jobs, "nemo", ("hf-fsdp", "eager", "compiled-fsdp"), 60):
        s = job.strategy
        assert set(document) <= set(ACCEPTED["nemo-automodel 0.7.0"])
        for section in ("step_scheduler", "checkpoint", "dataset", "peft", "distributed", "quantization"):
            names = set(document.get(section, {})) - {"_target_"}
            known = f"{section} {document[section]['strategy']}" if section == "distributed" else section
            assert names <= set(ACCEPTED[f"nemo-automodel 0.7.0 {known}"]), (section, names)
        steps, spread = document["step_scheduler"], document["distributed"]
        assert (steps["global_batch_size"], steps["local_batch_size"]) == (s.global_batch, s.micro_batch)
        assert steps.get("max_steps") == job.n_steps and document["dataset"]["seq_length"] == job.seq_len
        assert (spread["strategy"] == "ddp") == (s.sharding == "none") and spread.get("tp_size", 1) == s.tp
        assert spread["activation_checkpointing"] == {"none": False, "full": True}.get(s.recompute, s.recompute)
        assert spread.get("reshard_after_forward", True) == (s.sharding != "zero2")
        assert ("offload_policy" in spread) == s.offload_optimizer and ("quantization" in document) == s.quantized_base
        assert document.get("peft", {}).get("dim", 0) == s.lora_rank
        assert document["model"]["torch_dtype"] == hf.weights_dtype(s)
        assert ("Fused" in document["loss_fn"]["_target_"]) == s.fused_loss
        sharded += s.sharding != "none"
    assert sharded


POD = "llama-3.1-8b", "qwen3-30b-a3b", "llama-3.1-70b", "mixtral-8x7b"


def _in_a_pod(job: Job, i: int) -> Job:
    """The job on as many TPUs, with a model of MaxText."""
    n, arch = job.cluster.n_accelerators, find_model(POD[i % len(POD)])
    s = job.strategy.with_(lora_rank=0, quantized_base=False, fused_loss=False, ep=job.strategy.ep if arch.moe else 1)
    s = s.with_(precision="bf16" if i % 2 else "fp32", optimizer="adamw", etp=1, cuda_graphs="none")
    return replace(job, arch=arch, cluster=find_cluster(f"{n}xTPU-v5p"), strategy=s)


def test_maxtext_has_the_keys_that_are_written(jobs: Jobs) -> None:
    for job in _drawn(jobs, "maxtext", ("maxtext",), 40, _in_a_pod):
        document, s = maxtext.document(job), job.strategy
        assert set(document) <= {*ACCEPTED["maxtext 0.2.5"], "base_config"}, set(document) - set(ACCEPTED["maxtext 0.2.5"])
        assert document["model_name"] in ACCEPTED["maxtext 0.2.5 models"]
        degrees = {name: value for name, value in document.items() if name.startswith("ici_")}
        assert math.prod(degrees.values()) == s.n_accelerators  # type: ignore[type-var]
        # types.py calculate_global_batch_sizes
        a_pass: Any = document["per_device_batch_size"]
        assert a_pass * s.n_accelerators * document["gradient_accumulation_steps"] == s.global_batch
        assert document["steps"] == job.n_steps if job.n_steps else "steps" not in document
        assert (document["remat_policy"] == "full") == (s.recompute == "full" and not s.offload_activations)


def test_what_they_have_not_is_named(jobs: Jobs) -> None:
    sharded = next(_plainer(j, 1) for j in jobs("hf-fsdp", 50) if j.strategy.sharding == "zero3" and not any(hf.gaps(j)))
    assert not list(hf.gaps(sharded))
    assert any("FSDP" in gap for gap in llama_factory.gaps(sharded))
    assert not list(axolotl.gaps(sharded))
