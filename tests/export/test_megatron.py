"""Commands for Megatron-LM and torchtitan: the traps that their parsers hold, and where installed the parsers themselves."""

from __future__ import annotations

import ast
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gpuwise.export import megatron, megatron_bridge, torchtitan
from gpuwise.export.job import Job
from gpuwise.export.targets import TOOLS, gaps_of, write
from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.models.catalogue import find_model
from gpuwise.predict.columns import Columns
from gpuwise.predict.parallel import shards
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
    one = torchtitan.arguments(_job(dp=8, sharding="zero3", recompute="full", stack="compiled-fsdp", cuda_graphs="full"))
    assert one[:4] == ["--module", "llama3", "--config", "llama3_8b"] and one[-1] == "activation-checkpoint:full"
    assert "--training.no-disable_cuda_graphs" in one
    large = Job(find_model("llama-3.1-405b"), find_cluster("16x8xH200"), Strategy(dp=128, stack="compiled-fsdp"), 4096)
    # the registry's own function of this model computes in 8 bits
    assert "llama3_405b" not in torchtitan.arguments(large)
    assert "--training.disable_cuda_graphs" in torchtitan.arguments(_job(dp=8, sharding="zero3", stack="compiled-fsdp"))
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
@pytest.mark.filterwarnings("default")
def test_megatron_reads_its_command_back(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Needs the wheel of megatron-core with ``megatron.training`` (Python 3.12, or unpacked on the path)."""
    torch: Any = pytest.importorskip("torch")
    arguments: Any = pytest.importorskip("megatron.training.arguments")
    monkeypatch.setenv("RANK", "0")
    read = 0
    for job in jobs("megatron-core", 900):
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
        # muon and lion are divided by whole layers
        assert (args.use_distributed_optimizer or args.use_layer_wise_distributed_optimizer) == (s.sharding != "none")
        group = s.shard_group or (max(job.gpus_per_node // s.tp, 1) if s.sharding == "hybrid" else s.dp * s.cp)
        assert args.num_distributed_optimizer_instances == s.dp * s.cp // group
        assert args.optimizer_cpu_offload == s.offload_optimizer and args.cpu_offloading_num_layers == (
            job.arch.n_layers - 1 if s.offload_activations else 0
        )
        assert args.attention_backend.name == ("auto" if s.fused_attention else "unfused")
        assert args.cp_comm_type == (["a2a"] if s.cp > 1 and s.context_parallel == "ulysses" else ["p2p"])
        assert args.sequence_parallel == (s.sequence_parallel and s.tp > 1)
        assert args.tp_comm_overlap == (args.sequence_parallel and job.arch.moe is None and job.cluster.system.linked)
        assert args.accumulate_allreduce_grads_in_fp32 == (
            s.gradient_dtype == "fp32" and s.precision not in ("fp32", "tf32", "fp16")
        )
        if s.recompute == "full":
            layers = -(-job.arch.n_layers // (s.pp * s.virtual_stages))
            again = layers if args.recompute_method == "uniform" else args.recompute_num_layers
            assert again == -(-layers // s.recompute_every)
        read += 1
        if read == 200:
            break
    assert read == 200 and os.environ["RANK"] == "0"


# --- Megatron-Bridge: its classes' fields, read from its source (it asks for Python 3.12 and a GPU's libraries) ---

BRIDGE = json.loads(Path(__file__).with_name("megatron_bridge.json").read_text())


def _class(name: str) -> Any:
    """A class of Megatron-Bridge 0.6.0 as its source has it: a field that it has not, or a value that is none of its
    literals, is refused."""

    class Made:
        def __init__(self, **values: Any) -> None:
            for field, value in values.items():
                setattr(self, field, value)

        def __setattr__(self, field: str, value: Any) -> None:
            known = BRIDGE[name]
            assert field in known, f"{name} has no {field}"
            literals = re.findall(r"Literal\[(.*?)\]", known[field])
            assert not literals or value is None or value in ast.literal_eval(f"[{literals[0]}]"), (name, field, value)
            kinds = {"int": int, "bool": bool, "float": (int, float), "str": str}
            plain = re.sub(r"Optional\[(.*)\]|(\w+) \| None", r"\1\2", known[field])
            assert value is None or plain not in kinds or isinstance(value, kinds[plain]), (name, field, value)
            object.__setattr__(self, field, value)

    return Made


def _recipe(text: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What the written file gives to ``pretrain``, run beside stand-ins for the modules that it imports."""
    given: list[Any] = []

    def precision(name: str) -> SimpleNamespace:
        assert name in BRIDGE["mixed_precision"]
        return SimpleNamespace(name=name, grad_reduce_in_fp32=True)

    provider = _class("GPTModelProvider")()
    bridge = SimpleNamespace(from_hf_pretrained=lambda _: SimpleNamespace(to_megatron_provider=lambda load_weights: provider))
    config = {name: _class(name) for name in BRIDGE if name[0].isupper()}
    modules: dict[str, dict[str, Any]] = {
        "megatron": {},
        "megatron.bridge": {"AutoBridge": bridge},
        "megatron.bridge.training": {},
        "megatron.bridge.training.config": config,
        "megatron.bridge.training.gpt_step": {"forward_step": None},
        "megatron.bridge.training.mixed_precision": {"get_mixed_precision_config": precision},
        "megatron.bridge.training.pretrain": {"pretrain": lambda recipe, _: given.append(recipe)},
        "torch": {"float32": "fp32", "bfloat16": "bf16"},
    }
    for name, values in modules.items():
        module = ModuleType(name)
        vars(module).update(values)
        monkeypatch.setitem(sys.modules, name, module)
    exec(compile(text, "train.py", "exec"), {"__name__": "__main__"})
    monkeypatch.undo()
    return given[0]


def test_megatron_bridge_reads_its_recipe_back(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    tool, read = TOOLS["megatron-bridge"], 0
    for job in jobs("megatron-core", 900):
        if gaps_of(job, tool):
            continue
        made, s = write(job, tool), job.strategy
        assert made.command[-1] == "train.py"
        c = _recipe(made.files["train.py"], monkeypatch)
        m = c.model
        assert (m.tensor_model_parallel_size, m.pipeline_model_parallel_size) == (s.tp, s.pp)
        assert getattr(m, "context_parallel_size", 1) == s.cp and getattr(m, "expert_model_parallel_size", 1) == s.ep
        chunks = getattr(m, "pipeline_model_parallel_layout", "").count("|") + 1
        virtual = getattr(m, "virtual_pipeline_model_parallel_size", 1) if chunks == 1 else chunks // s.pp
        assert virtual == s.virtual_stages
        assert (c.train.micro_batch_size, c.train.global_batch_size) == (s.micro_batch, s.global_batch)
        assert m.seq_length == c.dataset.seq_length == job.seq_len
        assert getattr(m, "recompute_granularity", "none") == s.recompute
        assert (c.mixed_precision is None) == (s.precision in ("fp32", "tf32"))
        assert c.mixed_precision is None or c.mixed_precision.name == megatron_bridge.PRECISIONS[s.precision]
        assert c.mixed_precision is None or c.mixed_precision.grad_reduce_in_fp32 == (s.gradient_dtype == "fp32")
        sharded = getattr(c.ddp, "use_megatron_fsdp", False)
        assert sharded == (s.sharding in megatron.FSDP) and sharded == (getattr(c, "dist", None) is not None)
        short = getattr(c.optimizer, "main_grads_dtype", "fp32") == "bf16"
        assert not short or (s.gradient_dtype == "bf16" and c.optimizer.use_precision_aware_optimizer)
        moments = getattr(c.optimizer, "exp_avg_dtype", "fp32")
        assert (moments == "bf16") == (s.optimizer == "adamw-bf16") and moments == getattr(
            c.optimizer, "exp_avg_sq_dtype", "fp32"
        )
        assert getattr(c.ddp, "use_distributed_optimizer", False) == (s.sharding != "none" or short or moments == "bf16")
        assert getattr(c.checkpoint, "ckpt_format", "torch_dist") == ("fsdp_dtensor" if sharded else "torch_dist")
        assert getattr(m, "tp_comm_overlap", False) == (
            getattr(m, "sequence_parallel", False) and job.arch.moe is None and job.cluster.system.linked
        )
        assert getattr(m, "cp_comm_type", "p2p") == ("a2a" if s.cp > 1 and s.context_parallel == "ulysses" else "p2p")
        assert getattr(c.optimizer, "optimizer_cpu_offload", False) == s.offload_optimizer
        read += 1
        if read == 200:
            break
    assert read == 200


def _fullest(job: Job) -> int:
    """Layers of the fullest stage as the plan counts them."""
    layers = shards.stages(job.arch, Columns.from_strategies([job.strategy]), float(job.arch.n_layers)).layers
    return int(max(float(np.broadcast_to(x, (1,))[0]) for x in layers) / job.strategy.virtual_stages)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_torchtitan_reads_its_command_back(jobs: Jobs, transformers_loads: None) -> None:
    """Needs torchtitan 0.3 and triton."""
    pytest.importorskip("torchtitan.models.llama3.config_registry")
    config: Any = pytest.importorskip("torchtitan.config")
    dims: Any = pytest.importorskip("torchtitan.distributed.parallel_dims")
    stages: Any = pytest.importorskip("torchtitan.distributed.pipeline_parallel")
    read = 0
    for job in jobs("compiled-fsdp", 3000):
        plain = replace(job.strategy, precision=("bf16", "tf32")[read % 2], optimizer="adamw", lora_rank=0, quantized_base=False)
        job = Job(job.arch, job.cluster, replace(plain, fused_attention=True, offload_activations=False), job.seq_len)
        if gaps_of(job, TOOLS["torchtitan"]):
            continue
        s = job.strategy
        made = config.ConfigManager().parse_args(torchtitan.arguments(job))
        p = made.parallelism
        assert (p.tensor_parallel_degree, p.pipeline_parallel_degree, p.context_parallel_degree) == (s.tp, s.pp, s.cp)
        assert p.expert_parallel_degree == s.ep
        assert p.data_parallel_replicate_degree * p.data_parallel_shard_degree == s.dp
        assert (p.data_parallel_shard_degree * s.cp > 1) == ((s.sharding != "none" and s.dp > 1) or s.cp > 1)
        assert made.training.global_batch_size == s.global_batch and made.training.seq_len == job.seq_len
        name = (
            type(made.activation_checkpoint).__qualname__.removesuffix("AC.Config").lower()
            if made.activation_checkpoint
            else "none"
        )
        assert name == s.recompute
        assert made.training.enable_cpu_offload == s.offload_optimizer
        assert made.compile.enable and made.compile.components == ["model", "loss"]
        assert "Float8" not in repr(made.model_spec)
        assert made.compile.enable_async_tensor_parallel == (s.tp > 1) and p.enable_sequence_parallel == (
            s.sequence_parallel or s.tp == 1
        )
        assert made.training.disable_cuda_graphs == (s.cuda_graphs != "full")
        assert (made.training.dtype == "float32") == s.master_weights
        assert s.precision == "tf32" or s.master_weights == (s.gradient_dtype == "fp32")
        assert (made.training.mixed_precision_param == "float32") == (s.precision == "tf32")
        reshards = {"none": "default", "zero2": "never"}.get(s.sharding, "always")
        assert p.fsdp_reshard_after_forward == reshards
        group = s.shard_group or max(job.gpus_per_node // s.tp, 1)
        whole = s.dp * s.cp if s.sharding != "none" else s.cp
        assert p.data_parallel_shard_degree * s.cp == (min(group, s.dp * s.cp) if s.sharding == "hybrid" else whole)
        dims.ParallelDims.from_config(p, job.cluster.n_accelerators)
        assert (p.data_parallel_shard_degree * s.cp * s.tp) % s.ep == 0
        if s.pp > 1:
            own = SimpleNamespace(layers=[None] * job.arch.n_layers)
            n_stages, *weights = stages._get_pipeline_metadata(SimpleNamespace(pp=s.pp), p, own)
            cut = stages._generate_llm_fqn_per_model_part(n_stages, *weights)
            fullest = max(sum(name.startswith("layers.") for name in stage) for stage in cut)
            assert s.schedule in ("zero-bubble", "dualpipe-v") or n_stages == s.pp * s.virtual_stages
            assert n_stages > s.pp * s.virtual_stages or fullest == _fullest(job)
        read += 1
        if read == 200:
            break
    assert read == 200
