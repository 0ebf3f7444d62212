"""Megatron-LM's ``pretrain_gpt.py`` from a plan: every option by the names of megatron/training/arguments.py of
megatron-core 0.19.2, whose ``validate_args`` has read what is written here."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gpuwise.export.job import Job, writes_model
from gpuwise.export.torchrun import TF32, started, torchrun
from gpuwise.export.written import Written
from gpuwise.facts.models.architecture import Architecture
from gpuwise.predict.columns import Columns
from gpuwise.predict.parallel.shards import stages
from gpuwise.workload.strategy import Strategy

VERSION = "megatron-core 0.19.2"
SETUP = (
    "git clone -q --depth 1 --branch core_v0.19.2 https://github.com/NVIDIA/Megatron-LM megatron-lm "
    "&& ln -s megatron-lm/pretrain_gpt.py ."
)
FSDP = {"zero2": "optim_grads", "zero3": "optim_grads_params", "hybrid": "optim_grads_params"}
"""``--data-parallel-sharding-strategy`` of Megatron-FSDP."""
SAVE_EVERY = 1000
"""Default steps between checkpoints if the plan has no value: with ``--save`` the parser requires one. Rule of this project."""
LAYOUT = "--pipeline-model-parallel-layout"
FULL_GRAPH = ["--cuda-graph-impl", "full_iteration", "--no-check-for-nan-in-loss-and-grad"]
_PRECISIONS = {
    "bf16": ["--bf16"],
    "fp16": ["--fp16"],
    "fp8": ["--bf16", "--fp8-format", "hybrid"],
    "mxfp8": ["--bf16", "--fp8-format", "e4m3", "--fp8-recipe", "mxfp8"],
    "nvfp4": ["--bf16", "--fp4-format", "e2m1"],
    "fp32": [],
    "tf32": [],
}
_OPTIMIZERS = {"adamw": "adam", "adamw-bf16": "adam", "sgd": "sgd", "momentum": "sgd", "muon": "muon", "lion": "lion"}
_POSITIONS = {"rope": "rope", "learned": "learned_absolute", "none": "none"}


def gaps(job: Job) -> Iterator[str]:
    """Parts of the plan without an option in Megatron-LM."""
    arch, s = job.arch, job.strategy
    if not writes_model(arch):
        yield f"{arch.name} is not a decoder of text: pretrain_gpt.py trains no other"
    if arch.mamba is not None or arch.pattern:
        yield "layers of different kinds (state space and attention)"
    if arch.gated_mlp and arch.activation != "silu":
        yield f"a gated {arch.activation} (it has SwiGLU)"
    if not arch.gated_mlp and arch.activation in ("relu", "silu"):
        yield f"a plain {arch.activation}"
    if arch.norm not in ("rms", "layer"):
        yield f"the norm {arch.norm}"
    if arch.position not in _POSITIONS:
        yield f"{arch.position} positions"
    if arch.parallel_block:
        yield "attention and MLP side by side"
    if arch.embedding_dim not in (None, arch.hidden):
        yield "an embedding of another width than the layers"
    if s.optimizer not in _OPTIMIZERS or (s.optimizer in ("muon", "lion", "adamw-bf16") and s.sharding in FSDP):
        yield f"the optimizer {s.optimizer}" + (" with Megatron-FSDP" if s.optimizer in _OPTIMIZERS else "")
    if s.schedule not in ("1f1b", "interleaved"):
        yield f"the schedule {s.schedule}"
    if s.schedule == "interleaved" and s.virtual_stages == 1 and s.pp > 1:
        yield "an interleaved schedule of one stage a rank"
    if s.lora_rank or s.quantized_base:
        yield "adapters"
    if s.offload_parameters:
        yield "offloaded parameters"
    if s.ep > 1 and s.expert_dispatch == "deepep-fp8":
        yield "copies to experts in 8 bits (deepep-fp8)"
    if s.offload_activations and (s.pp > 1 or s.recompute != "none"):
        yield "offloaded activations with a pipeline or recomputing"
    if s.sharding != "none" and (s.dp * s.cp) % (_group(job) or 1):
        yield f"groups of {_group(job)} in {s.dp * s.cp} data-parallel ranks"
    if not s.master_weights:
        yield "weights without a copy in fp32"
    if s.fused_loss:
        yield "a loss in chunks"
    if s.row_scales and s.precision == "fp8":
        yield "8-bit products with a scale a row"
    if s.optimizer == "adamw-bf16" and s.sharding == "none" and s.dp * s.cp > 1:
        yield "moments in bf16 without a distributed optimizer"
    if s.step_in_backward:
        yield "an optimizer step inside the backward pass"
    if s.recompute == "full" and s.recompute_every > 1 and arch.n_layers % (s.pp * s.virtual_stages):
        yield "recomputing some layers of uneven stages"
    if s.cp > 1 and job.seq_len % (2 * s.cp):
        yield f"a sequence of {job.seq_len} tokens over {s.cp} ranks (it takes multiples of {2 * s.cp})"


def arguments(job: Job) -> list[str]:
    """The options of the layout: degrees, batch, precision, recomputing, sharding."""
    arch, s = job.arch, job.strategy
    out = ["--tensor-model-parallel-size", str(s.tp), "--pipeline-model-parallel-size", str(s.pp)]
    out += ["--micro-batch-size", str(s.micro_batch), "--global-batch-size", str(s.global_batch)]
    out += ["--seq-length", str(job.seq_len)]
    uneven = _uneven_stages(arch, s)
    out += uneven
    if s.virtual_stages > 1 and LAYOUT not in uneven:  # which sets the virtual stages too
        out += ["--num-virtual-stages-per-pipeline-rank", str(s.virtual_stages)]
    if s.cp > 1:
        out += ["--context-parallel-size", str(s.cp), "--cp-comm-type", "a2a" if s.context_parallel == "ulysses" else "p2p"]
    if s.ep > 1:
        out += ["--expert-model-parallel-size", str(s.ep)]
    if arch.moe is not None:
        if s.ep > 1 or s.tp > 1:
            out += ["--expert-tensor-parallel-size", str(s.etp)]
        out += _experts(s)
    elif s.cuda_graphs == "full":
        out += FULL_GRAPH
    if s.tp > 1 and s.sequence_parallel:
        out += ["--sequence-parallel"]
        if s.overlap_tp and arch.moe is None and job.cluster.system.linked:
            out += ["--tp-comm-overlap"]  # Transformer Engine's userbuffers, which the plan's time has
    if not s.fused_attention:
        out += ["--attention-backend", "unfused"]
    out += [*_sharding(job), *_recompute(arch, s), *_offload(arch, s), *_PRECISIONS[s.precision], *_optimizer(s)]
    return out


def _experts(s: Strategy) -> list[str]:
    """How tokens are dispatched, overlapped and launched."""
    out = ["--moe-grouped-gemm"]
    if s.ep > 1:
        if s.expert_dispatch == "all-to-all":
            out += ["--moe-token-dispatcher-type", "alltoall"]
        else:
            out += ["--moe-token-dispatcher-type", "flex", "--moe-flex-dispatcher-backend", "deepep"]
        if _hides_experts(s):
            out += ["--overlap-moe-expert-parallel-comm"]
    if s.cuda_graphs == "partial":
        modules = ["attn", "moe_router", "moe_preprocess"] if s.recompute == "none" else ["moe_router", "moe_preprocess"]
        out += ["--cuda-graph-impl", "transformer_engine", "--cuda-graph-modules", *modules]
    elif s.cuda_graphs == "full":
        out += FULL_GRAPH
    return out


def _hides_experts(s: Strategy) -> bool:
    return s.ep > 1 and s.overlap_ep and s.recompute != "full" and (s.pp == 1 or s.virtual_stages > 1)


def _uneven_stages(arch: Architecture, s: Strategy) -> list[str]:
    """Options for layers that do not divide evenly over the stages."""
    if s.pp == 1 or arch.n_layers % (s.pp * s.virtual_stages) == 0:
        return []
    columns = Columns.from_strategies([s])
    first, middle, last = (int(np.broadcast_to(x, (1,))[0]) for x in stages(arch, columns, float(arch.n_layers)).layers)
    if first == last == middle - 1 and (arch.n_layers + 2) % (s.pp * s.virtual_stages) == 0:
        return ["--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split"]
    fewer = first + middle * (s.pp - 2) + last - arch.n_layers
    if fewer > 0 or s.virtual_stages > 1:
        ranks = [first, *[middle] * (s.pp - 2 - fewer), *[middle - 1] * fewer, last]
        each = -(-middle // s.virtual_stages)
        chunks = [min(each, max(n - v * each, 0)) for v in range(s.virtual_stages) for n in ranks]
        layers = [f"t*{n}" if n else "" for n in chunks]
        return [LAYOUT, "|".join([f"E{layers[0]}", *layers[1:-1], f"{layers[-1]}L"])]
    out = ["--decoder-last-pipeline-num-layers", str(last)]
    return out if first == middle else ["--decoder-first-pipeline-num-layers", str(first), *out]


def _group(job: Job) -> int:
    """Ranks that hold one copy of what is sharded, as planned or (hybrid) those of a system; 0: all of them."""
    s = job.strategy
    return s.shard_group or (max(job.gpus_per_node // s.tp, 1) if s.sharding == "hybrid" else 0)


def _sharding(job: Job) -> list[str]:
    s = job.strategy
    out = ["--overlap-grad-reduce"] if s.overlap_dp else []
    if s.sharding == "none":
        return out
    out += ["--use-distributed-optimizer", *(["--overlap-param-gather"] if s.overlap_dp else [])]
    if s.sharding in FSDP:
        out += ["--use-megatron-fsdp", "--data-parallel-sharding-strategy", FSDP[s.sharding], "--ckpt-format", "fsdp_dtensor"]
    if 0 < _group(job) < s.dp * s.cp:
        out += ["--num-distributed-optimizer-instances", str(s.dp * s.cp // _group(job))]
    return out


def _recompute(arch: Architecture, s: Strategy) -> list[str]:
    if s.recompute == "selective":
        modules = ["core_attn"]
        modules += [name for name, there in (("mla_up_proj", arch.mla), ("moe_act", arch.moe)) if there is not None]
        return ["--recompute-granularity", "selective", "--recompute-modules", *modules]
    if s.recompute == "full":
        layers = -(-arch.n_layers // (s.pp * s.virtual_stages))
        method, n = ("uniform", 1) if s.recompute_every == 1 else ("block", -(-layers // s.recompute_every))
        return ["--recompute-granularity", "full", "--recompute-method", method, "--recompute-num-layers", str(n)]
    return []


def _offload(arch: Architecture, s: Strategy) -> list[str]:
    out = ["--optimizer-cpu-offload", "--use-precision-aware-optimizer"] if s.offload_optimizer else []
    if s.offload_activations:
        out += ["--cpu-offloading-num-layers", str(arch.n_layers - 1)]
    return out


def _optimizer(s: Strategy) -> list[str]:
    out = ["--optimizer", _OPTIMIZERS.get(s.optimizer, "adam")]
    half = s.gradient_dtype != "fp32" and s.precision not in ("fp32", "tf32")
    # without it every gradient is copied in fp32 before the update
    reads_half = half and out[1] == "adam" and s.sharding not in FSDP and s.precision != "fp16"
    out += ["--grad-reduce-in-bf16"] if half else []
    if reads_half or s.optimizer == "adamw-bf16":
        out += [] if s.offload_optimizer else ["--use-precision-aware-optimizer"]
        out += ["--main-grads-dtype", "bf16"] if reads_half else []
        out += ["--exp-avg-dtype", "bf16", "--exp-avg-sq-dtype", "bf16"] if s.optimizer == "adamw-bf16" else []
        out += ["--use-distributed-optimizer"] if s.sharding == "none" else []
    return out


def model_arguments(arch: Architecture, seq_len: int) -> list[str]:
    """The options of the architecture."""
    out = ["--num-layers", str(arch.n_layers), "--hidden-size", str(arch.hidden), "--ffn-hidden-size", str(arch.ffn)]
    out += ["--num-attention-heads", str(arch.heads), "--max-position-embeddings", str(max(arch.max_seq_len, seq_len))]
    out += ["--normalization", "RMSNorm" if arch.norm == "rms" else "LayerNorm"]
    out += ["--position-embedding-type", _POSITIONS.get(arch.position, "rope")]
    if arch.gated_mlp:
        out += ["--swiglu"]
    elif arch.activation == "relu2":
        out += ["--squared-relu"]
    if not arch.mlp_bias:
        out += ["--disable-bias-linear"]
        if arch.qkv_bias:
            out += ["--add-qkv-bias"]
    if not arch.tied_embeddings:
        out += ["--untie-embeddings-and-output-weights"]
    if arch.qk_norm:
        out += ["--qk-layernorm"]
    if arch.window is not None:
        out += ["--window-size", f"{arch.window},0"]
        if arch.global_every is not None:
            out += ["--window-attn-skip-freq", str(arch.global_every)]
    out += _attention(arch)
    out += [] if arch.moe is None else _expert_arguments(arch)
    if arch.prediction_layers:
        out += ["--mtp-num-layers", str(arch.prediction_layers)]
    return [*out, "--vocab-size", str(arch.vocab)]


def _attention(arch: Architecture) -> list[str]:
    if arch.mla is not None:
        m = arch.mla
        out = ["--multi-latent-attention", "--kv-lora-rank", str(m.kv_lora_rank), "--qk-head-dim", str(m.qk_nope_head_dim)]
        out += ["--qk-pos-emb-head-dim", str(m.qk_rope_head_dim), "--v-head-dim", str(m.v_head_dim)]
        return [*out, "--q-lora-rank", str(m.q_lora_rank)] if m.q_lora_rank else out
    out = ["--kv-channels", str(arch.head_dim)]
    if arch.kv_heads != arch.heads:
        out += ["--group-query-attention", "--num-query-groups", str(arch.kv_heads)]
    return out


def _expert_arguments(arch: Architecture) -> list[str]:
    m = arch.moe
    assert m is not None
    out = ["--num-experts", str(m.n_experts), "--moe-router-topk", str(m.n_active), "--moe-ffn-hidden-size", str(m.expert_ffn)]
    if m.shared_ffn:
        out += ["--moe-shared-expert-intermediate-size", str(m.shared_ffn)]
        out += ["--moe-shared-expert-gate"] if m.shared_gate else []
    if m.first_dense or m.every > 1:
        every = [int(i >= m.first_dense and (i - m.first_dense) % m.every == m.every - 1) for i in range(arch.n_layers)]
        out += ["--moe-layer-freq", str(every).replace(" ", "")]
    if m.router_bias:
        out += ["--moe-router-score-function", "sigmoid", "--moe-router-enable-expert-bias", "--moe-router-dtype", "fp32"]
    if m.groups > 1:
        out += ["--moe-router-num-groups", str(m.groups), "--moe-router-group-topk", str(m.top_groups)]
    if m.latent:
        out += ["--moe-latent-size", str(m.latent)]
    return out


def environment(job: Job) -> tuple[dict[str, str], tuple[str, ...]]:
    """Variables to set and to unset: ``validate_args`` requires one connection with tensor or context parallelism before
    Blackwell, and rejects it with its fully sharded data parallelism. It has no option for TF32."""
    s, capability = job.strategy, job.cluster.accelerator.compute_capability
    variables = dict(TF32) if s.precision == "tf32" else {}
    if s.sharding in FSDP:
        return variables, ("CUDA_DEVICE_MAX_CONNECTIONS",)
    if (s.tp > 1 or s.cp > 1) and (capability is None or float(capability) < 10.0):
        variables["CUDA_DEVICE_MAX_CONNECTIONS"] = "32" if _hides_experts(s) else "1"
    return variables, ()


def words(job: Job) -> list[str]:
    """All options of the script: layout, model, training, data, checkpoints."""
    out = [*arguments(job), *model_arguments(job.arch, job.seq_len)]
    out += ["--lr", f"{job.learning_rate:g}"]
    if job.n_steps is not None:
        out += ["--train-iters", str(job.n_steps)]
    out += ["--data-path", job.data, "--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", job.model]
    out += ["--save", job.output, "--load", job.output, "--exit-signal-handler"]
    return [*out, "--save-interval", str(job.save_every or SAVE_EVERY)]


def write(job: Job) -> Written:
    """A script for every node."""
    command = [*torchrun(job), "pretrain_gpt.py", *words(job)]
    variables, unset = environment(job)
    notes = [f"{job.data} stands for the prefix of a data set that Megatron's tools/preprocess_data.py made"]
    if job.arch.position == "rope":
        notes.append("--rotary-base is Megatron's 10,000: take rope_theta of the checkpoint's config.json if it differs")
    if job.model == "MODEL":
        notes.append("MODEL stands for a tokenizer: a folder or a name on the Hugging Face hub")
    if job.strategy.precision == "nvfp4":
        notes.append("--fp4-format needs Transformer Engine 2.7 or newer")
    return started(job, VERSION, command, {}, notes, variables, unset)
