"""Files for the Trainer, Accelerate and DeepSpeed, read by their own parsers and back into the layout they came from."""

from __future__ import annotations

import ast
import itertools
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpuwise.export import deepspeed as zero
from gpuwise.export import hugging_face as hf
from gpuwise.export.job import Job
from gpuwise.export.targets import TOOLS, command, gaps_of, write
from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.models.catalogue import find_model
from gpuwise.workload.stacks.stack import find_stack
from gpuwise.workload.strategy import Strategy

Jobs = Callable[..., Iterator[Job]]
N = 200
"""Jobs drawn."""
STACKS = ("eager", "compiled", "trainer", "hf-fsdp", "deepspeed", "eager-fsdp", "unsloth")
"""Stacks that the Trainer runs."""


def _expressible(jobs: Jobs, tool: str) -> list[Job]:
    found: list[Job] = []
    for stack in STACKS:
        able = (job for job in jobs(stack, 300) if not gaps_of(job, TOOLS[tool]))
        found += itertools.islice(able, -(-N // len(STACKS)))
    return found


def _folder(job: Job, tool: str, folder: Path) -> Path:
    made = write(job, TOOLS[tool])
    for name, text in made.files.items():
        (folder / name).write_text(text, encoding="utf-8")
    ast.parse(made.files["train.py"])
    return folder


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning")  # its name in every release before 5.23 too
def test_the_trainer_reads_its_arguments_back(
    jobs: Jobs, transformers_loads: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    transformers: Any = pytest.importorskip("transformers")
    module: Any = pytest.importorskip("transformers.training_args")
    monkeypatch.setattr(module, "is_torch_tf32_available", lambda: True)
    monkeypatch.setattr(module, "enable_tf32", lambda *a: None, raising=False)
    monkeypatch.chdir(tmp_path)
    read = _expressible(jobs, "trainer")
    assert len(read) >= N // 2
    for job in read:
        s = job.strategy
        _folder(job, "trainer", tmp_path)
        (args,) = transformers.HfArgumentParser(transformers.TrainingArguments).parse_args_into_dataclasses(
            [*hf.arguments(job), "--use_cpu"]
        )
        assert args.per_device_train_batch_size * args.gradient_accumulation_steps * s.dp == s.global_batch
        assert (args.bf16, args.fp16) == (s.precision == "bf16", s.precision == "fp16")
        assert args.optim == hf.OPTIMIZERS[s.optimizer]
        plugin: dict[str, Any] = args.fsdp_plugin_args or {}
        assert bool(plugin) == hf.by_fsdp(s)
        if plugin:
            assert plugin["reshard_after_forward"] == (s.sharding != "zero2")
            assert plugin["activation_checkpointing"] == (s.recompute == "full")
            assert bool(plugin.get("cpu_offload")) == s.offload_optimizer
        else:
            assert args.gradient_checkpointing == (s.recompute == "full")
        if hf.by_deepspeed(s):
            assert args.deepspeed == "deepspeed.json"
            assert json.loads((tmp_path / "deepspeed.json").read_text())["zero_optimization"]["stage"] == (
                2 if s.sharding == "none" else int(s.sharding[-1])
            )
        assert args.max_steps == (job.n_steps or -1)
        assert args.use_liger_kernel == s.fused_loss and args.torch_compile == find_stack(s.stack).export.torch_compile
        text = (tmp_path / "train.py").read_text()
        assert ("'eager'" in text) != s.fused_attention and ("load_in_4bit=True" in text) == s.quantized_base
        assert (f"r={s.lora_rank}, " in text and f"target_modules={hf.targets(s)!r}" in text) == (s.lora_rank > 0)
        assert s.lora_rank or ("torch.float32" in text) == s.master_weights
        group = hf.mesh(job).get("dp_shard_size", s.dp)
        assert not s.shard_group or group == s.shard_group


def test_accelerate_reads_its_file_back(jobs: Jobs, transformers_loads: None, tmp_path: Path) -> None:
    import dataclasses

    reading: Any = pytest.importorskip("accelerate.commands.config.config_args")
    launch: Any = pytest.importorskip("accelerate.commands.launch")
    utils: Any = pytest.importorskip("accelerate.utils")
    known = {f.name for f in dataclasses.fields(utils.FullyShardedDataParallelPlugin)} | {"offload_params", "version"}
    read = _expressible(jobs, "accelerate")
    for job in read:
        s = job.strategy
        made = write(job, TOOLS["accelerate"])
        _folder(job, "accelerate", tmp_path)
        config = reading.load_config_from_file(str(tmp_path / "accelerate.yaml"))
        assert (config.num_processes, config.num_machines) == (job.cluster.n_accelerators, job.n_nodes)
        assert config.mixed_precision == (s.precision if s.precision in ("bf16", "fp16") else "no")
        words = launch.launch_command_parser().parse_args([w.replace("$NODE_RANK", "0") for w in made.command[2:]])
        assert words.config_file == "accelerate.yaml" and words.training_script == "train.py"
        if hf.by_fsdp(s):
            assert config.distributed_type.value == "FSDP"
            values = {k.removeprefix("fsdp_"): v for k, v in config.fsdp_config.items()}
            assert set(values) <= known, set(values) - known
            offload = values.pop("offload_params", False)
            plugin = utils.FullyShardedDataParallelPlugin(
                fsdp_version=values.pop("version"), auto_wrap_policy=values.pop("auto_wrap_policy").lower(), **values
            )
            assert plugin.reshard_after_forward == (s.sharding != "zero2") and offload == s.offload_optimizer
            assert plugin.activation_checkpointing == (s.recompute == "full")
            mesh = {k.removeprefix("parallelism_config_"): v for k, v in (config.parallelism_config or {}).items()}
            if mesh:
                sizes = utils.ParallelismConfig(**mesh)
                assert sizes.dp_replicate_size * sizes.dp_shard_size == s.dp
        elif hf.by_deepspeed(s):
            assert config.deepspeed_config["deepspeed_config_file"] == "deepspeed.json"
        else:
            assert config.distributed_type.value in ("MULTI_GPU", "NO")


def test_hybrid_sharding_is_two_sizes(jobs: Jobs, transformers_loads: None) -> None:
    job = next(j for j in jobs("hf-fsdp", 150) if j.strategy.sharding == "hybrid" and j.n_nodes > 1)
    assert hf.mesh(job) == {"dp_replicate_size": job.strategy.dp // 8, "dp_shard_size": 8}


def test_deepspeed_reads_its_file_back(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    pytest.importorskip("torch")
    runtime: Any = pytest.importorskip("deepspeed.runtime.config")
    monkeypatch.setattr(runtime.dist, "get_rank", lambda: 0)
    read = _expressible(jobs, "deepspeed")
    assert len(read) >= N // 2
    for job in read:
        s = job.strategy
        document = zero.config(job)
        world = SimpleNamespace(get_data_parallel_world_size=lambda n=s.dp: n)
        config = runtime.DeepSpeedConfig(document, mpu=world)
        assert config.train_batch_size == s.global_batch
        assert config.train_micro_batch_size_per_gpu == s.micro_batch
        assert config.gradient_accumulation_steps == s.accumulation
        # one rank shards nothing; it offloads by the second stage (parameters by the third), and widens gradients by the first
        alone = (
            3
            if s.offload_parameters
            else 2
            if s.offload_optimizer
            else int(s.gradient_dtype == "fp32" and s.precision in ("bf16", "fp16"))
        )
        assert int(config.zero_config.stage) == (alone if s.dp == 1 and s.sharding == "none" else zero.STAGES[s.sharding])
        assert (config.zero_config.offload_optimizer is not None) == s.offload_optimizer
        assert (config.zero_config.offload_param is not None) == s.offload_parameters
        assert config.bfloat16_config.enabled == (s.precision == "bf16")
        assert config.float16_config.enabled == (s.precision == "fp16")
        if "data_types" in document:
            assert config.grad_accum_dtype == "fp32"


def test_four_bit_weights_are_prepared_as_they_were_planned() -> None:
    """With embedding and head in 16 bits, as TRL casts them back and a plan counts them."""
    arch, card, pair = find_model("llama-3.1-8b"), find_cluster("rtx-4090"), find_cluster("2xrtx-4090")
    tuned = Strategy(quantized_base=True, lora_rank=16, recompute="full", stack="trainer")
    plain = hf.script(Job(arch, card, tuned, 2048))
    assert "prepare_model" not in plain and "enable_input_require_grads()" in plain and "quant_storage" not in plain
    sharded = hf.script(Job(arch, pair, tuned.with_(stack="compiled-fsdp", dp=2, sharding="zero3"), 2048))
    assert "bnb_4bit_quant_storage=torch.bfloat16" in sharded
    for text in (plain, sharded):
        ast.parse(text)


def test_each_rank_updates_on_the_host_with_its_part_of_the_threads() -> None:
    arch, pair = find_model("llama-3.2-1b"), find_cluster("2xrtx-4090")
    offloaded = Strategy(dp=2, sharding="zero2", offload_optimizer=True, stack="deepspeed")
    job, kept = (Job(arch, pair, offloaded.with_(offload_optimizer=on), 2048) for on in (True, False))
    script = write(job, TOOLS["deepspeed"]).files["train.sh"]
    half = (len(os.sched_getaffinity(0)) + 1) // 2
    for start in (script.splitlines(), command(job)):
        setting = next(w for w in start if "OMP_NUM_THREADS=" in w).removeprefix("export ")
        for given, threads in (({}, half), ({"OMP_NUM_THREADS": "3"}, 3)):
            shell = ["bash", "-c", f"{setting}; echo $OMP_NUM_THREADS"]
            said = subprocess.run(shell, env={"PATH": os.environ["PATH"], **given}, capture_output=True, text=True, check=True)
            assert int(said.stdout) == threads
    assert "OMP_NUM_THREADS" not in write(kept, TOOLS["deepspeed"]).files["train.sh"]


def test_offload_on_one_gpu_is_written() -> None:
    arch, card = find_model("llama-3.2-1b"), find_cluster("rtx-4090")
    job = Job(arch, card, Strategy(offload_optimizer=True, stack="deepspeed"), 2048)
    assert not gaps_of(job, TOOLS["deepspeed"]) and zero.config(job)["zero_optimization"]["stage"] == 2  # type: ignore[index]
    assert hf.by_fsdp(Strategy(offload_optimizer=True, stack="hf-fsdp"))
    two = Job(arch, find_cluster("2xrtx-4090"), Strategy(dp=2, offload_optimizer=True, stack="deepspeed"), 2048)
    assert gaps_of(two, TOOLS["deepspeed"]) == ["an offloaded optimizer without sharding"]
    weights = job.strategy.with_(offload_parameters=True)
    moved = zero.config(Job(arch, card, weights, 2048))["zero_optimization"]
    assert moved["stage"] == 3 and moved["offload_param"] == moved["offload_optimizer"]  # type: ignore[index]
    kept = Job(arch, find_cluster("2xrtx-4090"), Strategy(dp=2, stack="deepspeed"), 2048)
    assert gaps_of(kept, TOOLS["deepspeed"]) == ["gradients in fp32 of 16-bit weights without sharding"]
