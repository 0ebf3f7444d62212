"""torchtitan's command line from a plan: configurations are functions of its registry, changed by options; read by the
``ConfigManager`` of torchtitan 0.3.0."""

from __future__ import annotations

from collections.abc import Iterator

from gpuwise.export.job import Job, writes_model
from gpuwise.export.torchrun import TF32, started, torchrun
from gpuwise.export.written import Written
from gpuwise.workload.stacks.stack import find_stack

VERSION = "torchtitan 0.3.0"
REGISTRY = {
    "meta-llama/Llama-3.1-8B": ("llama3", "llama3_8b"),
    "meta-llama/Meta-Llama-3-8B": ("llama3", "llama3_8b"),
    "meta-llama/Llama-3.1-70B": ("llama3", "llama3_70b"),
    "meta-llama/Meta-Llama-3-70B": ("llama3", "llama3_70b"),
    "deepseek-ai/DeepSeek-V3": ("deepseek_v3", "deepseek_v3_671b"),
    "deepseek-ai/DeepSeek-V3-Base": ("deepseek_v3", "deepseek_v3_671b"),
    "openai/gpt-oss-20b": ("gpt_oss", "gpt_oss_20b"),
    "openai/gpt-oss-120b": ("gpt_oss", "gpt_oss_120b"),
    "Qwen/Qwen3-0.6B": ("qwen3", "qwen3_0_6b"),
    "Qwen/Qwen3-1.7B": ("qwen3", "qwen3_1_7b"),
    "Qwen/Qwen3-14B": ("qwen3", "qwen3_14b"),
    "Qwen/Qwen3-32B": ("qwen3", "qwen3_32b"),
    "Qwen/Qwen3-30B-A3B": ("qwen3", "qwen3_30b_a3b"),
}
"""``torchtitan/models/*/config_registry.py``, without what computes in 8 bits (llama3_405b). Other checkpoints go through its
``transformers_modeling_backend``."""
BACKEND = "transformers_modeling_backend"
SCHEDULES = {
    "1f1b": "1F1B",
    "gpipe": "GPipe",
    "interleaved": "Interleaved1F1B",
    "zero-bubble": "InterleavedZeroBubble",
    "dualpipe-v": "DualPipeV",
}
CHECKPOINTING = {"none": "none", "selective": "selective", "full": "full"}
_PLAIN = ("bf16", "fp32", "tf32")
ALWAYS: dict[str, int | str | bool] = {
    "expert_dispatch": "all-to-all",
    "overlap_ep": False,
    "fused_loss": True,
}
"""As in the registry's functions; a graph of the whole step is an option."""


def gaps(job: Job) -> Iterator[str]:
    """Parts of the plan without an option in torchtitan's command line."""
    s = job.strategy
    if not writes_model(job.arch):
        yield f"{job.arch.name} is not a decoder of text"
    if _function(job) is None:
        yield f"{job.arch.name}: it is neither in its registry nor is its name on the Hugging Face hub known"
    if s.precision not in _PLAIN:
        yield f"{s.precision} (a converter of the registry's function, not an option)"
    if s.sharding == "zero1":
        yield "optimizer states sharded alone (ZeRO-1)"
    if s.optimizer != "adamw":
        yield f"the optimizer {s.optimizer}"
    if s.schedule not in SCHEDULES:
        yield f"the schedule {s.schedule}"
    if s.cp > 1 and s.context_parallel != "ring":
        yield f"context parallelism by {s.context_parallel}"
    if s.recompute == "full" and s.recompute_every > 1:
        yield f"recomputing one layer in {s.recompute_every}"
    if s.lora_rank or s.quantized_base:
        yield "adapters"
    if s.offload_activations:
        yield "offloaded activations"
    if s.offload_optimizer and s.dp * s.cp == 1:
        yield "an offloaded optimizer on one data-parallel rank, which FSDP does not wrap"
    if s.step_in_backward:
        yield "an optimizer step inside the backward pass"
    if s.etp > 1:
        yield f"experts over {s.etp} tensor ranks"
    if not s.fused_attention:
        yield "attention without a fused kernel"
    if s.fused_loss and (_function(job) or ("",))[0] == BACKEND:
        yield f"a loss in chunks in its {BACKEND}"
    if s.precision not in ("fp32", "tf32") and (s.gradient_dtype == "fp32") != s.master_weights:
        yield f"gradients in {s.gradient_dtype} of weights in {'fp32' if s.master_weights else s.precision}"
    if s.cuda_graphs == "full" and (s.pp > 1 or s.ep > 1):
        yield "a graph of the whole step with stages or divided experts"
    if s.ep > 1 and (_shards(job)[0] * s.cp * s.tp) % s.ep:
        yield f"expert parallelism of {s.ep} over {_shards(job)[0]} sharding ranks"
    if s.pp > 1 and s.virtual_stages > 1 and _layers_per_stage(job) is None:
        yield f"{job.arch.n_layers} layers over {s.pp} x {s.virtual_stages} stages"
    if s.sharding == "hybrid" and (_group(job) % s.cp or s.dp % _shards(job)[0]):
        yield f"groups of {_group(job)} in {s.dp} data-parallel ranks" + (f" that {s.cp} share rows" if s.cp > 1 else "")


def packs(job: Job) -> bool:
    """Whether attention stays inside documents: it does in the registry's own models."""
    return (_function(job) or (BACKEND,))[0] != BACKEND


def _function(job: Job) -> tuple[str, str] | None:
    for alias in job.arch.aliases:
        if alias in REGISTRY:
            return REGISTRY[alias]
    if job.hub_id is None:
        return None
    return BACKEND, f"{BACKEND}_full_moe" if job.arch.moe is not None else f"{BACKEND}_full"


def arguments(job: Job) -> list[str]:
    """The options of ``torchtitan.train``; what is recomputed is a positional word and has to be the last."""
    s = job.strategy
    module, function = _function(job) or (BACKEND, f"{BACKEND}_full")
    out = ["--module", module, "--config", function]
    if module == BACKEND:
        out += ["--hf_model", job.model]
    out += ["--hf_assets_path", _assets(job)]
    local = s.micro_batch * (s.accumulation if s.pp > 1 else 1)  # a pipeline takes all of a rank's sequences at once
    out += ["--training.local_batch_size", str(local), "--training.global_batch_size", str(s.global_batch)]
    out += ["--training.seq_len", str(job.seq_len)]
    if job.n_steps is not None:
        out += ["--training.steps", str(job.n_steps)]
    if not s.master_weights:
        out += ["--training.dtype", "bfloat16"]
    if s.precision in ("fp32", "tf32"):
        out += ["--training.mixed_precision_param", "float32"]
    if s.offload_optimizer:
        out += ["--training.enable_cpu_offload"]
    # its default is a graph of the whole step, that of some functions of the registry none
    out += ["--training.no-disable_cuda_graphs" if s.cuda_graphs == "full" else "--training.disable_cuda_graphs"]
    out += _parallelism(job)
    if not _compiles(job):
        return [*out, "--compile.no-enable", *_saved(job)]
    if s.overlap_tp and s.tp > 1:
        out += ["--compile.enable_async_tensor_parallel"]
    # some functions of the registry (deepseek_v3_671b) compile the loss alone; tyro takes a list as one word with a comma
    return [*out, "--compile.enable", "--compile.components", "model,loss", *_saved(job)]


def _compiles(job: Job) -> bool:
    """Whether the plan is for compiled layers: not where its stack is torchtitan's without."""
    planned = find_stack(job.strategy.stack).export
    return planned.torch_compile or planned.tool != "torchtitan"


def _saved(job: Job) -> list[str]:
    """Checkpoints, then what is recomputed."""
    out = ["--checkpoint.enable", "--checkpoint.folder", job.output]
    if job.save_every is not None:
        out += ["--checkpoint.interval", str(job.save_every)]
    return [*out, f"activation-checkpoint:{CHECKPOINTING[job.strategy.recompute]}"]


def _assets(job: Job) -> str:
    return f"./assets/hf/{job.model.rsplit('/', 1)[-1]}"


def _group(job: Job) -> int:
    """Ranks of data and context that hold one copy with hybrid sharding: as planned, or those of a system."""
    return job.strategy.shard_group or max(job.gpus_per_node // job.strategy.tp, 1)


def _shards(job: Job) -> tuple[int, int]:
    """Data-parallel ranks that shard, and their replicas."""
    s = job.strategy
    if s.sharding == "none":
        return 1, s.dp
    if s.sharding == "hybrid":
        shard = min(max(_group(job) // s.cp, 1), s.dp)
        return shard, max(s.dp // shard, 1)
    return s.dp, 1


def _fewer_at_ends(job: Job) -> int:
    """Layers that the first and the last stage have fewer: none, or one each where the layers divide with both ends counted."""
    n, stages = job.arch.n_layers, job.strategy.pp * job.strategy.virtual_stages
    return int(n % stages != 0 and (n + 2) % stages == 0)


def _layers_per_stage(job: Job) -> int | None:
    """Value for which it cuts the planned number of stages; None if there is none."""
    n, stages = job.arch.n_layers + 2 * _fewer_at_ends(job), job.strategy.pp * job.strategy.virtual_stages
    layers = -(-n // stages)
    return layers if -(-n // layers) == stages else None


def _parallelism(job: Job) -> list[str]:
    s = job.strategy
    shard, replicate = _shards(job)
    out = ["--parallelism.data_parallel_shard_degree", str(shard), "--parallelism.data_parallel_replicate_degree", str(replicate)]
    for name, degree in (("tensor", s.tp), ("pipeline", s.pp), ("context", s.cp), ("expert", s.ep)):
        out += [f"--parallelism.{name}_parallel_degree", str(degree)]  # the registry's functions have degrees of their own
    if s.pp > 1:
        out += ["--parallelism.pipeline_parallel_schedule", SCHEDULES.get(s.schedule, "1F1B")]
        out += ["--parallelism.pipeline_parallel_microbatch_size", str(s.micro_batch)]
        for end in ("first", "last"):
            out += [f"--parallelism.pipeline_parallel_{end}_stage_less_layers", str(_fewer_at_ends(job))]
        if s.virtual_stages > 1:
            out += ["--parallelism.pipeline_parallel_layers_per_stage", str(_layers_per_stage(job))]
    if s.tp > 1 and not s.sequence_parallel:
        out += ["--parallelism.no-enable_sequence_parallel"]
    if s.sharding in ("zero2", "zero3", "hybrid"):
        out += ["--parallelism.fsdp_reshard_after_forward", "never" if s.sharding == "zero2" else "always"]
    return out


def write(job: Job) -> Written:
    """A script for every node."""
    s = job.strategy
    command = [*torchrun(job), "-m", "torchtitan.train", *arguments(job)]
    notes = [f"--dataloader.dataset takes the place of the registry's own data: put yours there ({job.data})"]
    notes.append(f"{_assets(job)} holds its tokenizer: hf download {job.model} --include 'tokenizer*' --local-dir {_assets(job)}")
    if s.ep > 1 and (s.expert_dispatch != "all-to-all" or s.overlap_ep):
        notes.append("experts use the registry function's plain all-to-all: --overrides takes another")
    if s.pp > 1 and s.schedule == "zero-bubble":
        notes.append("InterleavedZeroBubble has two stages a rank; the plan counted one")
    if s.pp > 1 and job.arch.n_layers % (s.pp * s.virtual_stages) and not _fewer_at_ends(job):
        notes.append("stages differ by one layer, and the earlier ones have more")
    if (_function(job) or ("",))[0] == BACKEND:
        notes.append(f"{BACKEND} loads the model from transformers: its own layers are only for the models of its registry")
    return started(job, VERSION, command, {}, notes, TF32 if s.precision == "tf32" else {})
