"""What each software stack can lay out: the combinations its own argument checks or documentation allow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from gpuwise.errors import UnknownNameError
from gpuwise.workload.strategy import CONTEXT_PARALLELS, RECOMPUTES, SHARDINGS

ALL_SHARDINGS = frozenset(SHARDINGS)
ALL_RECOMPUTES = frozenset(RECOMPUTES)
WHOLE_LAYERS = frozenset({"none", "full"})
"""``gradient_checkpointing`` of transformers, ``activation_checkpointing`` of Accelerate's FSDP plugin: every layer or none."""


@dataclass(frozen=True, slots=True)
class StackRules:
    """Capabilities of a stack; ``source`` is where they were read."""

    source: str
    shardings: frozenset[str]
    shardings_with_pipeline: frozenset[str]
    schedules: frozenset[str]
    tensor: bool = True
    pipeline: bool = True
    context: frozenset[str] = frozenset(CONTEXT_PARALLELS)
    expert: bool = True
    offload_optimizer: bool = True
    offload_activations: bool = True
    offload_parameters: bool = False
    """Fully sharded weights may be in host memory too (DeepSpeed's ``offload_param``)."""
    any_split: bool = False
    """A pipeline's stages may have any numbers of layers (Megatron-Core --pipeline-model-parallel-layout, torchtitan
    module_fqns_per_model_part)."""
    state_groups: bool = False
    """Optimizer states may be sharded over a group of chosen size with ZeRO as well, not only with hybrid sharding."""
    sequence_parallel: bool = True
    """Norms and residuals may be split over the tensor ranks (Korthikanti, arXiv 2205.05198)."""
    step_in_backward: bool = True
    """A parameter may be updated as soon as its gradient is there (PyTorch's hooks; not a flat gradient buffer)."""
    offload_with_recompute: bool = False
    """Activations may be offloaded while others are recomputed."""
    recomputes: frozenset[str] = ALL_RECOMPUTES
    recompute_every: bool = True
    """One layer in several may be recomputed, not only all of them."""
    offload_unsharded: bool = True
    """An optimizer may be in host memory on several data-parallel ranks that shard nothing."""
    widens_unsharded: bool = True
    """Gradients of 16-bit weights may be added up in fp32 on several ranks that shard nothing; else that is laid out only where
    ``--sharding none`` asks for it."""
    asked_only: frozenset[str] = frozenset()
    """Of ``recompute_every``, ``offload_activations``, ``offload_optimizer`` and ``selective``, what PyTorch has and the stack's
    own tool no option for: laid out only where it is asked for."""
    with_adapters: StackRules | None = None
    """What it can lay out under adapters, where that is something else."""

    def has(self, asked: Mapping[str, int | str | bool]) -> bool:
        """Whether the stack can lay out what a person asked for; ``asked``: fields of a strategy by name."""
        pipeline = int(asked.get("pp", 1)) > 1
        shardings = self.shardings_with_pipeline if pipeline else self.shardings
        return (
            asked.get("schedule", "1f1b") in self.schedules
            and asked.get("sharding", "none") in shardings
            and (self.pipeline or not pipeline)
            and (self.tensor or int(asked.get("tp", 1)) == 1)
            and (self.expert or int(asked.get("ep", 1)) == 1)
            and (bool(self.context) or int(asked.get("cp", 1)) == 1)
            and (self.sequence_parallel or not asked.get("sequence_parallel", False))
            and asked.get("recompute", "none") in self.recomputes
            and (self.recompute_every or int(asked.get("recompute_every", 1)) == 1)
            and (self.offload_activations or not asked.get("offload_activations", False))
            and (self.offload_optimizer or not asked.get("offload_optimizer", False))
            and (self.offload_parameters or not asked.get("offload_parameters", False))
        )


_ACCELERATE = StackRules(
    "Hugging Face transformers with Accelerate: DDP, or DeepSpeed ZeRO-1/2/3 with optimizer offload",
    shardings=frozenset({"none", "zero1", "zero2", "zero3"}),
    shardings_with_pipeline=frozenset(),
    schedules=frozenset({"1f1b"}),
    tensor=False,
    pipeline=False,
    context=frozenset(),
    expert=False,
    offload_activations=False,
    recomputes=WHOLE_LAYERS,
    recompute_every=False,
    offload_unsharded=False,
)

_DEEPSPEED = replace(
    _ACCELERATE,
    source="microsoft/DeepSpeed: ZeRO-1/2/3 with offload of optimizer and parameters behind Hugging Face's Trainer; "
    "runtime/engine.py _do_optimizer_sanity_check: without ZeRO gradients have the weights' format",
    widens_unsharded=False,
    offload_parameters=True,
)

_FSDP = StackRules(
    "torch.distributed.fsdp with torch.nn modules: full shard, gradient shard, hybrid; CPUOffload",
    shardings=frozenset({"none", "zero2", "zero3", "hybrid"}),
    shardings_with_pipeline=frozenset(),
    schedules=frozenset({"1f1b"}),
    tensor=False,
    pipeline=False,
    context=frozenset(),
    expert=False,
    offload_with_recompute=True,
    offload_unsharded=False,
)

_TRAINER_FSDP = replace(
    _FSDP,
    source="Hugging Face Trainer and Accelerate: FullyShardedDataParallelPlugin",
    offload_activations=False,
    recomputes=WHOLE_LAYERS,
    recompute_every=False,
)

_MEGATRON_DEEPSPEED = StackRules(
    "deepspeedai/DeepSpeed runtime/pipe/engine.py: ZeRO-2 and ZeRO-3 are incompatible with its pipeline engine (1F1B); "
    "bigscience-workshop/Megatron-DeepSpeed megatron/arguments.py: --checkpoint-activations of whole layers, "
    "no sequence parallelism",
    shardings=frozenset({"none", "zero1", "zero2", "zero3"}),
    shardings_with_pipeline=frozenset({"none", "zero1"}),
    schedules=frozenset({"1f1b"}),
    context=frozenset(),
    expert=False,
    sequence_parallel=False,
    offload_activations=False,
    recomputes=WHOLE_LAYERS,
)

STACK_RULES: dict[str, StackRules] = {
    "megatron-core": StackRules(
        "NVIDIA/Megatron-LM d98e8a6: training/arguments.py (FSDP without a pipeline; interleaving needs one; "
        "--optimizer-cpu-offload), core/transformer/transformer_config.py (cpu_offloading: no pipeline, "
        "no recompute)",
        shardings=ALL_SHARDINGS,
        shardings_with_pipeline=frozenset({"none", "zero1"}),
        schedules=frozenset({"1f1b", "interleaved"}),
        any_split=True,
        state_groups=True,
        step_in_backward=False,
    ),
    "megatron-legacy": StackRules(
        "NVIDIA/Megatron-LM 2021-2022 (arXiv 2104.04473, 2205.05198): distributed optimizer from v3.0, no context parallelism",
        shardings=frozenset({"none", "zero1"}),
        shardings_with_pipeline=frozenset({"none", "zero1"}),
        schedules=frozenset({"1f1b", "interleaved", "gpipe"}),
        context=frozenset(),
        expert=False,
        step_in_backward=False,
        offload_optimizer=False,
        offload_activations=False,
    ),
    "megatron-deepspeed": _MEGATRON_DEEPSPEED,
    "vtrain": replace(_MEGATRON_DEEPSPEED, source="VIA-Research/vTrain: Megatron-DeepSpeed"),
    "nanotron": StackRules(
        "huggingface/nanotron: ZeRO-1, tensor and pipeline parallel with AFAB (gpipe) and 1F1B engines",
        shardings=frozenset({"none", "zero1"}),
        shardings_with_pipeline=frozenset({"none", "zero1"}),
        schedules=frozenset({"gpipe", "1f1b"}),
        context=frozenset(),
        expert=False,
        step_in_backward=False,
        offload_optimizer=False,
        offload_activations=False,
    ),
    "compiled-fsdp": StackRules(
        "pytorch/torchtitan b5bcd76: config/configs.py (DDP, FSDP2, HSDP; TP, CP ring, EP; "
        "torch.distributed.pipelining schedules; enable_cpu_offload; every layer, or selected operations, recomputed); "
        "torchtune offloads checkpointed activations",
        shardings=frozenset({"none", "zero2", "zero3", "hybrid"}),
        # with a pipeline torchtitan keeps gathered weights resident (no reshard after forward): zero2's
        # memory
        shardings_with_pipeline=frozenset({"none", "zero2"}),
        schedules=frozenset({"gpipe", "1f1b", "interleaved", "zero-bubble", "dualpipe-v"}),
        context=frozenset({"ring"}),
        any_split=True,
        offload_with_recompute=True,
        asked_only=frozenset({"recompute_every", "offload_activations"}),
        # its adapters are a converter of its registry and no option: they are trained with the Trainer, whose offload moves the
        # frozen weights too
        with_adapters=replace(
            _FSDP, asked_only=frozenset({"selective", "recompute_every", "offload_activations", "offload_optimizer"})
        ),
    ),
    "hai-llm": StackRules(
        "DeepSeek's framework (arXiv 2412.19437 section 3.2): DualPipe, experts over nodes, ZeRO-1, no tensor parallelism",
        shardings=frozenset({"none", "zero1"}),
        shardings_with_pipeline=frozenset({"none", "zero1"}),
        schedules=frozenset({"1f1b", "zero-bubble", "dualpipe", "dualpipe-v"}),
        tensor=False,
        context=frozenset(),
        offload_optimizer=False,
        offload_activations=False,
    ),
    "eager-fsdp": _TRAINER_FSDP,
    "composer": replace(_FSDP, source="mosaicml/llm-foundry fsdp_config: full, gradient, hybrid", offload_optimizer=False),
    "deepspeed": _DEEPSPEED,
    "deepspeed-script": _DEEPSPEED,
    "torchtune": replace(
        _FSDP,
        source="pytorch/torchtune recipes: one device, FSDP2 with CPU offload; enable_activation_offloading of checkpoints",
        shardings=frozenset({"none", "zero2", "zero3"}),
        offload_with_recompute=True,
    ),
    "hf-fsdp": _TRAINER_FSDP,
    "trainer": replace(
        _ACCELERATE,
        source="Hugging Face Trainer without DeepSpeed or FSDP: DDP",
        shardings=frozenset({"none"}),
        offload_optimizer=False,
    ),
    "litgpt": replace(
        _FSDP,
        source="Lightning-AI/litgpt: one device, DDP or FSDPStrategy",
        shardings=frozenset({"none", "zero3"}),
        offload_activations=False,
        offload_optimizer=False,
        recomputes=WHOLE_LAYERS,
        recompute_every=False,
    ),
    "nanogpt": replace(
        _ACCELERATE, source="karpathy/nanoGPT train.py: DDP", shardings=frozenset({"none"}), offload_optimizer=False
    ),
    "unsloth": replace(
        _ACCELERATE,
        source="unslothai/unsloth: one GPU; unslothai/unsloth-zoo gradient_checkpointing.py keeps checkpoints in host memory",
        shardings=frozenset({"none"}),
        offload_optimizer=False,
        offload_activations=True,
        offload_with_recompute=True,
        asked_only=frozenset({"offload_activations"}),
    ),
    "apex": replace(
        _ACCELERATE,
        source="NVIDIA/DeepLearningExamples BERT: apex DistributedDataParallel",
        shardings=frozenset({"none"}),
        offload_optimizer=False,
    ),
    "eager": _ACCELERATE,
    "compiled": replace(
        _ACCELERATE,
        source="Hugging Face transformers with torch.compile and Accelerate: DDP, or DeepSpeed ZeRO-1/2/3 with optimizer offload",
    ),
}


def find_stack_rules(stack: str, *, adapters: bool = False) -> StackRules:
    """What ``stack`` can do, where asked with adapters. Raises UnknownNameError with the nearest names."""
    try:
        rules = STACK_RULES[stack]
    except KeyError:
        raise UnknownNameError("stack", stack, STACK_RULES) from None
    return rules.with_adapters or rules if adapters else rules
