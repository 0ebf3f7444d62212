"""Commands for Megatron-LM and torchtitan: the traps that their parsers hold, and where installed the parsers themselves."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from gpuwise.export import megatron, torchtitan
from gpuwise.export.job import Job
from gpuwise.export.targets import TOOLS, gaps_of
from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.models.catalogue import find_model
from gpuwise.workload.strategy import Strategy

Jobs = Callable[..., Iterator[Job]]
EIGHT, NODE = find_model("llama-3.1-8b"), find_cluster("8xH100-SXM")
CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"


def _job(**values: Any) -> Job:
    return Job(EIGHT, NODE, Strategy(**values), 4096)


def test_fully_sharded_wants_its_checkpoints_and_no_connections() -> None:
    job = _job(dp=8, sharding="zero3")
    words = megatron.arguments(job)
    assert words[words.index("--ckpt-format") + 1] == "fsdp_dtensor"
    assert megatron.environment(job) == ({}, (CONNECTIONS,))


def test_tensor_parallelism_wants_one_connection_before_blackwell() -> None:
    split = Strategy(tp=2, dp=4, sharding="zero1")
    assert megatron.environment(Job(EIGHT, NODE, split, 4096)) == ({CONNECTIONS: "1"}, ())
    assert megatron.environment(Job(EIGHT, find_cluster("8xB200"), split, 4096)) == ({}, ())
    assert megatron.environment(_job(dp=8, sharding="zero1")) == ({}, ())


def test_torchtitan_has_what_is_recomputed_last_and_no_graphs_in_a_pipeline() -> None:
    one = torchtitan.arguments(_job(dp=8, sharding="zero3", recompute="full", stack="compiled-fsdp"))
    assert one[:4] == ["--module", "llama3", "--config", "llama3_8b"] and one[-1] == "activation-checkpoint:full"
    assert "--training.disable_cuda_graphs" not in one
    piped = torchtitan.arguments(_job(dp=4, pp=2, micro_batch=2, accumulation=8, stack="compiled-fsdp"))
    assert "--training.disable_cuda_graphs" in piped
    at = piped.index("--training.local_batch_size")
    assert piped[at + 1] == "16"
    assert piped[piped.index("--parallelism.pipeline_parallel_microbatch_size") + 1] == "2"


def test_what_has_no_option_is_named() -> None:
    tool = TOOLS["torchtitan"]
    assert any("ZeRO-1" in g for g in gaps_of(_job(dp=8, sharding="zero1", stack="compiled-fsdp"), tool))
    assert any("fp8" in g for g in gaps_of(_job(dp=8, precision="fp8", stack="compiled-fsdp"), tool))
    assert any("adapters" in g for g in gaps_of(_job(dp=8, lora_rank=8), TOOLS["megatron"]))
    assert any("tensor parallelism" in g for g in gaps_of(_job(dp=4, tp=2), TOOLS["trainer"]))
    assert not gaps_of(_job(dp=8, sharding="zero1"), TOOLS["megatron"])


@pytest.mark.slow
def test_megatron_reads_its_command_back(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Needs the wheel of megatron-core with ``megatron.training`` (Python 3.12, or unpacked on the path)."""
    torch: Any = pytest.importorskip("torch")
    arguments: Any = pytest.importorskip("megatron.training.arguments")
    monkeypatch.setenv("RANK", "0")
    read = 0
    for job in jobs("megatron-core", 400):
        if gaps_of(job, TOOLS["megatron"]) or job.strategy.precision == "nvfp4":
            continue
        s = job.strategy
        capability = tuple(int(x) for x in (job.cluster.accelerator.compute_capability or "9.0").split("."))
        card = SimpleNamespace(
            major=capability[0], minor=capability[1], multi_processor_count=132, total_memory=80 << 30, name="GPU"
        )
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *a, c=capability: c)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda *a, c=card: c)
        variables, unset = megatron.environment(job)
        for name in unset or (CONNECTIONS,):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("WORLD_SIZE", str(job.cluster.n_accelerators))
        monkeypatch.setattr(sys, "argv", ["pretrain_gpt.py", *megatron.words(job)])
        args = arguments.parse_args()
        arguments.validate_args(args, {})
        assert (args.tensor_model_parallel_size, args.pipeline_model_parallel_size, args.context_parallel_size) == (
            s.tp,
            s.pp,
            s.cp,
        )
        assert (args.data_parallel_size, args.expert_model_parallel_size) == (s.dp, s.ep)
        assert (args.micro_batch_size, args.global_batch_size, args.seq_length) == (s.micro_batch, s.global_batch, job.seq_len)
        assert (args.virtual_pipeline_model_parallel_size or 1) == s.virtual_stages
        assert (args.recompute_granularity or "none") == s.recompute
        assert bool(args.bf16) == (s.precision in ("bf16", "fp8", "mxfp8")) and bool(args.fp16) == (s.precision == "fp16")
        assert bool(args.fp8) == (s.precision in ("fp8", "mxfp8"))
        assert bool(args.use_megatron_fsdp) == (s.sharding in megatron.FSDP)
        assert bool(args.use_distributed_optimizer) == (s.sharding != "none")
        read += 1
        if read == 200:
            break
    assert read == 200 and os.environ["RANK"] == "0"


@pytest.mark.slow
def test_torchtitan_reads_its_command_back(jobs: Jobs, transformers_loads: None) -> None:
    """Needs torchtitan 0.3 and triton."""
    pytest.importorskip("torchtitan.models.llama3.config_registry")
    config: Any = pytest.importorskip("torchtitan.config")
    read = 0
    for job in jobs("compiled-fsdp", 3000):
        job = Job(job.arch, job.cluster, replace(job.strategy, precision="bf16", optimizer="adamw", lora_rank=0), job.seq_len)
        if gaps_of(job, TOOLS["torchtitan"]):
            continue
        s = job.strategy
        made = config.ConfigManager().parse_args(torchtitan.arguments(job))
        p = made.parallelism
        assert (p.tensor_parallel_degree, p.pipeline_parallel_degree, p.context_parallel_degree) == (s.tp, s.pp, s.cp)
        assert p.expert_parallel_degree == s.ep
        assert p.data_parallel_replicate_degree * p.data_parallel_shard_degree == s.dp
        assert (p.data_parallel_shard_degree > 1) == (s.sharding != "none" and s.dp > 1)
        assert made.training.global_batch_size == s.global_batch and made.training.seq_len == job.seq_len
        name = (
            type(made.activation_checkpoint).__qualname__.removesuffix("AC.Config").lower()
            if made.activation_checkpoint
            else "none"
        )
        assert name == s.recompute
        assert made.training.enable_cpu_offload == s.offload_optimizer
        read += 1
        if read == 200:
            break
    assert read == 200
