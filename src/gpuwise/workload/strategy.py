"""Strategy: how a training step is laid out and computed. It knows no hardware."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path

from gpuwise.facts.plugins import plugin_folders
from gpuwise.workload.adapters import DEFAULT_TARGETS
from gpuwise.workload.fields import Option, option

PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "fp8", "mxfp8", "nvfp4")
"""Arithmetic of the matrix products. fp16 implies loss scaling; fp8 and below keep bf16 for the rest."""
SHARDINGS = ("none", "zero1", "zero2", "zero3", "hybrid")
"""Data-parallel sharding. ``zero3`` is FSDP full shard; ``hybrid`` shards inside ``shard_group`` ranks and replicates outside."""
RECOMPUTES = ("none", "selective", "full")
OPTIMIZERS = (
    "sgd",
    "momentum",
    "adamw",
    "adamw-bf16",
    "adamw8bit",
    "paged-adamw",
    "paged-adamw8bit",
    "adafactor",
    "lion",
    "muon",
)
SCHEDULES = ("gpipe", "1f1b", "interleaved", "zero-bubble", "dualpipe", "dualpipe-v")
"""Pipeline schedules (``predict.parallel.pipeline``)."""
STACK_FILES: Mapping[str, Path] = {
    file.stem: file for folder in (Path(__file__).parent / "stacks", *plugin_folders("stacks")) for file in folder.glob("*.toml")
}
"""The file of each stack by its name, those of plugins too."""
STACKS = tuple(sorted(STACK_FILES))
"""Every stack by name, in alphabetical order: the files of ``stacks``."""
CONTEXT_PARALLELS = ("ring", "ulysses")
EXPERT_DISPATCHES = ("all-to-all", "deepep", "deepep-fp8")
"""How tokens travel to their experts: a copy to every expert (NCCL), or one to every system and rank that has any of them
(DeepEP, github.com/deepseek-ai/DeepEP; HybridEP in Megatron-Core), with the copies to the experts in 8 bits."""
CUDA_GRAPHS = ("none", "partial", "full")
"""Parts launched as a CUDA graph: none, attention and router of a layer with experts (Megatron-Core's ``cuda_graph_scope``),
or the whole iteration of any model."""


@dataclass(frozen=True, slots=True)
class Strategy:
    """One point of the search space, and the table of options: each field is one, made by :func:`gpuwise.workload.fields.option`.

    Degrees multiply: ``dp * tp * pp * cp == n_accelerators``; ``ep`` divides ``dp * cp`` (expert parallelism borrows
    data-parallel ranks, as Megatron-Core does).

    ``micro_batch`` is in sequences per data-parallel rank; ``accumulation`` is micro-batches per step.
    """

    precision: str = option(
        "bf16",
        "Format of the matrix products; several with commas; auto: the fastest format of the GPU.",
        choices=PRECISIONS,
        usual="bf16",
        label="Precision",
        ranks=True,
        own_code=True,
        often="common",
    )
    row_scales: bool = option(False)
    """8-bit products with a scale per row instead of one per tensor (torchao rowwise): safer, slower."""
    micro_batch: int = option(
        1, "Sequences a micro-batch.", unit="SEQUENCES", label="Micro-batch", axis="row", ranks=True, often="common"
    )
    accumulation: int = option(1, "Micro-batches a step.", unit="N", label="Accumulation", axis="row")
    dp: int = option(1, "Data parallel degree.", unit="RANKS", label="Data parallel", axis="row", ranks=True, often="sometimes")
    tp: int = option(
        1, "Tensor parallel degree.", unit="RANKS", label="Tensor parallel", axis="row", ranks=True, often="sometimes"
    )
    pp: int = option(
        1, "Pipeline parallel degree.", unit="STAGES", label="Pipeline parallel", axis="row", ranks=True, often="sometimes"
    )
    virtual_stages: int = option(
        1, "Virtual stages a pipeline stage.", unit="STAGES", label="Virtual stages", axis="row", needs="pp"
    )
    cp: int = option(1, "Context parallel degree.", unit="RANKS", label="Context parallel", axis="row", ranks=True)
    ep: int = option(1, "Expert parallel degree.", unit="RANKS", label="Expert parallel", axis="row", ranks=True)
    sequence_parallel: bool = option(
        True, "Split norms and residuals over the tensor ranks.", label="Sequence parallelism", axis="row", needs="tp"
    )
    context_parallel: str = option(
        "ring", "How context parallelism exchanges keys and values.", choices=CONTEXT_PARALLELS, usual="ring", needs="cp"
    )
    schedule: str = option("1f1b", "Pipeline schedule.", choices=SCHEDULES, label="Schedule", axis="row", needs="pp")
    sharding: str = option(
        "none",
        "Data-parallel sharding: optimizer states (zero1), also gradients (zero2), also weights (zero3, FSDP), or all "
        "of them inside a replicated group (hybrid).",
        choices=SHARDINGS,
        label="Sharding",
        axis="state",
        ranks=True,
        often="sometimes",
    )
    shard_group: int = option(
        0,
        "Ranks over which one copy is sharded: 8.",
        unit="RANKS",
        usual="one system with hybrid sharding, all data-parallel ranks with ZeRO",
        label="Ranks of a shard",
        axis="state",
        ranks=True,
        needs="sharding",
    )
    """0: those of one system with ``hybrid``, all data-parallel ranks with the others."""
    recompute: str = option(
        "none", "Activation recompute.", choices=RECOMPUTES, label="Recompute", axis="activation", ranks=True, often="common"
    )
    recompute_every: int = option(
        1,
        "With full recompute: recompute one layer in this many.",
        unit="LAYERS",
        label="Recompute one layer in",
        axis="activation",
        ranks=True,
        needs="recompute",
    )
    optimizer: str = option(
        "adamw", "Optimizer.", choices=OPTIMIZERS, usual="adamw", label="Optimizer", ranks=True, own_code=True, often="common"
    )
    """``adamw-bf16`` has its moments in bf16."""
    master_weights: bool = option(True)
    """fp32 copy of the weights beside half-precision ones (Megatron, AMP keeps fp32 weights: the same bytes)."""
    gradient_dtype: str = option(
        "fp32",
        "Format in which gradients are accumulated. fp16: DeepSpeed with fp16 weights.",
        choices=("fp32", "bf16", "fp16"),
        usual="the stack's, mostly fp32",
        label="Gradients",
        often="sometimes",
    )
    step_in_backward: bool = option(
        False,
        "Update each parameter as soon as its gradient is ready. Gradients take no memory and cannot be accumulated.",
        negative=False,
    )
    offload_optimizer: bool = option(
        False,
        "Keep optimizer states in host memory; under FSDP the weights too.",
        label="Optimizer in host memory",
        axis="state",
        ranks=True,
        often="sometimes",
    )
    offload_parameters: bool = option(
        False,
        "Keep the weights in host memory beside the optimizer: FSDP's offload, or DeepSpeed ZeRO-3's offload_param, which "
        "--no-offload-optimizer makes one without it.",
        label="Weights in host memory",
        negative=False,
    )
    offload_activations: bool = option(
        False,
        "Keep activations in host memory between forward and backward.",
        label="Activations in host memory",
        axis="activation",
        ranks=True,
    )
    overlap_tp: bool = option(True)
    """Tensor-parallel transfers run behind the matmuls where the stack can (Megatron tp-comm-overlap, async TP)."""
    overlap_dp: bool = option(True)
    """Gradient reduction and parameter gathers run behind backward and forward."""
    etp: int = option(
        1,
        "Expert tensor parallel degree (Megatron's --expert-tensor-parallel-size): 1, or that of --tp.",
        unit="RANKS",
        usual="1",
        label="Experts over tensor ranks",
        needs="ep",
    )
    """None, or all of ``tp`` (Megatron-Core's default of ``expert_tensor_parallel_size``), where experts' ranks are
    ``ep * etp``."""
    expert_dispatch: str = option(
        "deepep",
        "Expert all-to-all: one copy of a token per expert, or one per node (DeepEP).",
        choices=EXPERT_DISPATCHES,
        usual="deepep, all-to-all before 2025",
        needs="ep",
    )
    overlap_ep: bool = option(
        True,
        "Overlap the expert all-to-all with the work of another micro-batch.",
        usual="yes, no before 2025",
        name="overlap_experts",
        needs="ep",
    )
    """Megatron-Core's ``overlap_moe_expert_parallel_comm``, DualPipe, where the stack can."""
    cuda_graphs: str = option(
        "partial",
        "CUDA graphs in MoE layers: none, attention and router (partial), or the whole iteration.",
        choices=CUDA_GRAPHS,
        usual="partial, none before 2025",
    )
    fused_attention: bool = option(True)
    fused_loss: bool = option(
        False,
        "Compute the loss in chunks, without all logits in memory at once.",
        usual="as the stack's tool does",
        name="chunked_loss",
        label="Loss in chunks",
        often="sometimes",
    )
    lora_rank: int = option(0, "Rank of the adapters.", unit="RANK", usual="16", ranks=True, often="sometimes")
    """0: full training. Otherwise rank of the adapters on ``lora_targets``."""
    lora_targets: tuple[str, ...] = option(
        DEFAULT_TARGETS,
        "Linear layers with adapters: all-linear (but the head), attention, mlp, or module names with commas (q_proj,v_proj).",
        unit="LAYERS",
        usual="all-linear",
        ranks=True,
        needs="lora_rank",
        often="sometimes",
    )
    quantized_base: bool = option(
        False, "Adapters on 4-bit weights.", name="qlora", label="QLoRA", negative=False, ranks=True, often="common"
    )
    """NF4 with double quantisation: 0.516 B a parameter."""
    stack: str = option(
        "megatron-core", "Software, or a release of it: torchtune@0.2.", choices=STACKS, label="Software", often="common"
    )
    release: float | None = option(None)
    """When the stack's release came out, as a year with decimals; None: the newest one its costs were fitted on."""

    @property
    def n_accelerators(self) -> int:
        """dp x tp x pp x cp: expert parallelism borrows data-parallel ranks."""
        return self.dp * self.tp * self.pp * self.cp

    @property
    def widens_gradients(self) -> bool:
        """Gradients of 16-bit weights are added up in fp32."""
        return self.gradient_dtype == "fp32" and self.precision in ("bf16", "fp16")

    @property
    def global_batch(self) -> int:
        """Sequences per optimizer step."""
        return self.micro_batch * self.accumulation * self.dp

    def with_(self, **changes: object) -> Strategy:
        """A copy with ``changes`` of its fields. Raises TypeError for a field that it does not have."""
        return replace(self, **changes)  # type: ignore[arg-type]


NEUTRAL = Strategy()
OPTIONS: Mapping[str, Option] = {f.name: f.metadata["option"] for f in fields(Strategy)}
"""The table, by field."""
CHOICES: Mapping[str, tuple[str, ...]] = {name: o.choices for name, o in OPTIONS.items() if o.choices}
COLUMNS = tuple(name for name, o in OPTIONS.items() if o.axis)
"""Fields that the search varies and sweeps hold as columns; the others are those of a common base."""
ROWS = tuple(name for name in COLUMNS if OPTIONS[name].axis == "row")
STATES = tuple(name for name in COLUMNS if OPTIONS[name].axis == "state")
ACTIVATIONS = tuple(name for name in COLUMNS if OPTIONS[name].axis == "activation")
DEGREES = tuple(name for name in COLUMNS if type(getattr(NEUTRAL, name)) is int)
"""Columns that are counts of at least one."""
