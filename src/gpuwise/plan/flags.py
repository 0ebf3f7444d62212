"""A strategy as the flags of the software that runs it: enough to start, a full export writes complete files.

Megatron: megatron/training/arguments.py (d98e8a6). torchtitan: the job configuration of release 0.2.
"""

from __future__ import annotations

import numpy as np

from gpuwise.facts.hardware.systems import Cluster
from gpuwise.facts.models.architecture import Architecture
from gpuwise.predict.parallel.shards import stages
from gpuwise.predict.step.columns import Columns
from gpuwise.workload.strategy import Strategy

FULL_GRAPH = "--cuda-graph-impl local --cuda-graph-scope full_iteration"


def launch(cluster: Cluster) -> list[str]:
    """torchrun and its rank flags."""
    flags = [f"torchrun --nproc-per-node {min(cluster.system.count, cluster.n_accelerators)}"]
    if cluster.n_systems > 1:
        flags += [f"--nnodes {cluster.n_systems}", "--rdzv-backend c10d", "--rdzv-endpoint $HEAD_NODE:29500"]
    return flags


def flags(arch: Architecture, cluster: Cluster, strategy: Strategy, seq_len: int) -> list[str]:
    """The launcher with the stack's flags for ``strategy``."""
    if strategy.stack.startswith("megatron") or strategy.stack == "nanotron":
        return [*launch(cluster), "pretrain_gpt.py", *_megatron(arch, strategy, seq_len)]
    if strategy.stack == "compiled-fsdp":
        return [*launch(cluster), "-m torchtitan.train", *_torchtitan(cluster, strategy, seq_len)]
    return [*launch(cluster), "train.py", *_transformers(strategy)]


def _megatron_experts(s: Strategy) -> list[str]:
    """How tokens are dispatched, overlapped and launched (Megatron-Core's arguments)."""
    if s.expert_dispatch == "all-to-all":
        out = ["--moe-token-dispatcher-type alltoall"]
    else:
        out = ["--moe-token-dispatcher-type flex --moe-enable-deepep"]
    if s.overlap_ep:
        out.append("--overlap-moe-expert-parallel-comm")
    if s.cuda_graphs == "partial":
        out.append("--cuda-graph-impl transformer_engine --cuda-graph-scope attn moe_router moe_preprocess")
    elif s.cuda_graphs == "full":
        out.append(FULL_GRAPH)
    return out


def _uneven_stages(arch: Architecture, s: Strategy) -> list[str]:
    """What tells Megatron-Core that the layers do not divide over the stages."""
    if s.pp == 1 or s.stack != "megatron-core" or arch.n_layers % (s.pp * s.virtual_stages) == 0:
        return []
    columns = Columns.from_strategies([s])
    first, middle, last = (int(np.broadcast_to(x, (1,))[0]) for x in stages(arch, columns, float(arch.n_layers)).layers)
    if first == last == middle - 1 and (arch.n_layers + 2) % (s.pp * s.virtual_stages) == 0:
        return ["--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split"]
    if first + middle * (s.pp - 2) + last > arch.n_layers:
        more = arch.n_layers - first * s.pp
        inner = [f"t*{middle}"] * more + [f"t*{first}"] * (s.pp - 2 - more)
        return [f'--pipeline-model-parallel-layout "{"|".join([f"Et*{first}", *inner, f"t*{last}L"])}"']
    out = [f"--decoder-last-pipeline-num-layers {last}"]
    return out if first == middle else [f"--decoder-first-pipeline-num-layers {first}", *out]


def _megatron(arch: Architecture, s: Strategy, seq_len: int) -> list[str]:
    out = [
        f"--tensor-model-parallel-size {s.tp}",
        f"--pipeline-model-parallel-size {s.pp}",
        f"--micro-batch-size {s.micro_batch}",
        f"--global-batch-size {s.global_batch}",
        f"--seq-length {seq_len}",
    ]
    out += _uneven_stages(arch, s)
    if s.virtual_stages > 1:
        out.append(f"--num-virtual-stages-per-pipeline-rank {s.virtual_stages}")
    if s.cp > 1:
        out += [
            f"--context-parallel-size {s.cp}",
            f"--cp-comm-type {'a2a' if s.context_parallel == 'ulysses' else 'p2p'}",
        ]
    if s.ep > 1:
        out += [f"--expert-model-parallel-size {s.ep}", *_megatron_experts(s)]
    elif s.cuda_graphs == "full":
        out.append(FULL_GRAPH)
    if s.tp > 1 and s.sequence_parallel:
        out.append("--sequence-parallel")
    sharding = {
        "zero1": "",
        "zero2": "optim_grads",
        "zero3": "optim_grads_params",
        "hybrid": "optim_grads_params",
    }
    if s.sharding in sharding:
        out.append("--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather")
        if sharding[s.sharding]:
            out.append(f"--use-megatron-fsdp --data-parallel-sharding-strategy {sharding[s.sharding]}")
        if s.shard_group:
            out.append(f"--num-distributed-optimizer-instances {s.dp * s.cp // s.shard_group}")
    else:
        out.append("--overlap-grad-reduce")
    if s.recompute == "selective":
        modules = [name for name, there in (("mla_up_proj", arch.mla), ("moe_act", arch.moe)) if there is not None]
        chosen = " --recompute-modules " + " ".join(modules) if modules else ""
        out.append("--recompute-granularity selective" + chosen)
    if s.recompute == "full":
        layers = -(-arch.n_layers // (s.pp * s.virtual_stages))
        method, n = ("uniform", 1) if s.recompute_every == 1 else ("block", -(-layers // s.recompute_every))
        out.append(f"--recompute-granularity full --recompute-method {method} --recompute-num-layers {n}")
    if s.offload_optimizer:
        out.append("--optimizer-cpu-offload --use-precision-aware-optimizer")
    out.append(
        {
            "bf16": "--bf16",
            "fp16": "--fp16",
            "fp8": "--bf16 --fp8-format hybrid",
            "mxfp8": "--bf16 --fp8-format e4m3 --fp8-recipe mxfp8",
            "nvfp4": "--bf16 --fp4-format e2m1",
        }.get(s.precision, "")
    )
    return [f for f in out if f]


def _torchtitan(cluster: Cluster, s: Strategy, seq_len: int) -> list[str]:
    shard, replicate = s.dp, 1
    if s.sharding == "none":
        shard, replicate = 1, s.dp
    if s.sharding == "hybrid":
        shard = s.shard_group or max(cluster.system.count // s.tp, 1)
        replicate = max(s.dp // shard, 1)
    out = [
        f"--training.local_batch_size {s.micro_batch}",
        f"--training.global_batch_size {s.global_batch}",
        f"--training.seq_len {seq_len}",
        f"--parallelism.data_parallel_shard_degree {shard}",
    ]
    if replicate > 1:
        out.append(f"--parallelism.data_parallel_replicate_degree {replicate}")
    for name, degree in (("tensor", s.tp), ("pipeline", s.pp), ("context", s.cp), ("expert", s.ep)):
        if degree > 1:
            out.append(f"--parallelism.{name}_parallel_degree {degree}")
    if s.pp > 1:
        names = {
            "1f1b": "1F1B",
            "gpipe": "GPipe",
            "interleaved": "Interleaved1F1B",
            "zero-bubble": "InterleavedZeroBubble",
            "dualpipe-v": "DualPipeV",
        }
        out.append(f"--parallelism.pipeline_parallel_schedule {names[s.schedule]}")
    if s.sharding == "zero2":
        out.append("--parallelism.fsdp_reshard_after_forward never")
    if s.recompute != "none":
        out.append(f"--activation_checkpoint.mode {s.recompute}")
    if s.offload_optimizer:
        out.append("--training.enable_cpu_offload")
    return [*out, "--compile.enable"]


def _transformers(s: Strategy) -> list[str]:
    """Hugging Face TrainingArguments."""
    out = [
        f"--per_device_train_batch_size {s.micro_batch}",
        f"--gradient_accumulation_steps {s.accumulation}",
        "--bf16" if s.precision == "bf16" else "--fp16" if s.precision == "fp16" else "",
    ]
    if s.stack in ("compiled", "nanogpt"):
        out.append("--torch_compile")
    if s.recompute != "none":
        out.append("--gradient_checkpointing")
    fsdp = {
        "zero3": "full_shard auto_wrap",
        "zero2": "shard_grad_op auto_wrap",
        "hybrid": "hybrid_shard auto_wrap",
    }
    if s.stack in ("eager-fsdp", "composer", "hf-fsdp", "torchtune", "litgpt") and s.sharding in fsdp:
        out.append(f'--fsdp "{fsdp[s.sharding]}"')
    elif s.sharding != "none":
        out.append(f"--deepspeed {s.sharding}.json")
    names = {
        "adamw": "adamw_torch",
        "adamw8bit": "adamw_bnb_8bit",
        "paged-adamw": "paged_adamw_32bit",
        "paged-adamw8bit": "paged_adamw_8bit",
        "adafactor": "adafactor",
        "lion": "lion_32bit",
        "sgd": "sgd",
    }
    if s.optimizer in names:
        out.append(f"--optim {names[s.optimizer]}")
    return [f for f in out if f]
