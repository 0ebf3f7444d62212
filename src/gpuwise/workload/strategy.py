"""Strategy: how a training step is laid out and computed. It knows no hardware."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gpuwise.workload.adapters import DEFAULT_TARGETS

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
STACKS = (
    "eager",
    "compiled",
    "eager-fsdp",
    "compiled-fsdp",
    "composer",
    "megatron-core",
    "megatron-legacy",
    "megatron-deepspeed",
    "nanotron",
    "deepspeed",
    "deepspeed-script",
    "torchtune",
    "hf-fsdp",
    "trainer",
    "litgpt",
    "nanogpt",
    "unsloth",
    "vtrain",
    "hai-llm",
    "apex",
)
CONTEXT_PARALLELS = ("ring", "ulysses")
EXPERT_DISPATCHES = ("all-to-all", "deepep", "deepep-fp8")
"""How tokens travel to their experts: a copy to every expert (NCCL), or one to every system and rank that has any of them
(DeepEP, github.com/deepseek-ai/DeepEP; HybridEP in Megatron-Core), with the copies to the experts in 8 bits."""
CUDA_GRAPHS = ("none", "partial", "full")
"""What is launched as a graph: nothing, attention and router of a layer with experts (Megatron-Core's
``cuda_graph_scope``), or the whole iteration of any model."""


@dataclass(frozen=True, slots=True)
class Strategy:
    """One point of the search space. Degrees multiply: ``dp * tp * pp * cp == n_accelerators``; ``ep`` divides ``dp * cp``
    (expert parallelism borrows data-parallel ranks, as Megatron-Core does).

    ``micro_batch`` is in sequences per data-parallel rank; ``accumulation`` is micro-batches per step.
    """

    precision: str = "bf16"
    row_scales: bool = False
    """8-bit products with a scale per row instead of one per tensor (torchao rowwise): safer, slower."""
    micro_batch: int = 1
    accumulation: int = 1
    dp: int = 1
    tp: int = 1
    pp: int = 1
    virtual_stages: int = 1
    cp: int = 1
    ep: int = 1
    sequence_parallel: bool = True
    context_parallel: str = "ring"
    schedule: str = "1f1b"
    sharding: str = "none"
    shard_group: int = 0
    """Ranks a shard spans; 0 means one system with ``hybrid``, all data-parallel ranks with the others."""
    recompute: str = "none"
    recompute_every: int = 1
    """With ``full``: recompute one layer in this many (1: every layer)."""
    optimizer: str = "adamw"
    master_weights: bool = True
    """fp32 copy of the weights beside half-precision ones (Megatron, AMP keeps fp32 weights: the same bytes)."""
    gradient_dtype: str = "fp32"
    """Format gradients are accumulated in: ``fp32`` or the parameter format ``bf16``/``fp16``."""
    step_in_backward: bool = False
    """Each parameter is updated as soon as its gradient is there, and the gradient freed: no accumulation."""
    offload_optimizer: bool = False
    offload_parameters: bool = False
    """Fully sharded weights are on the host beside an offloaded optimizer (ZeRO-3 with ``offload_param``); FSDP's offload has
    them there unasked."""
    offload_activations: bool = False
    overlap_tp: bool = True
    """Tensor-parallel transfers run behind the matmuls where the stack can (Megatron tp-comm-overlap, async TP)."""
    overlap_dp: bool = True
    """Gradient reduction and parameter gathers run behind backward and forward."""
    etp: int = 1
    """Tensor ranks that every expert is divided over: none, or all of ``tp`` (Megatron-Core's default of
    ``expert_tensor_parallel_size``), where experts' ranks are ``ep * etp``."""
    expert_dispatch: str = "deepep"
    overlap_ep: bool = True
    """Tokens travel to experts behind the work of another micro-batch (Megatron-Core's
    ``overlap_moe_expert_parallel_comm``, DualPipe), where the stack can."""
    cuda_graphs: str = "partial"
    fused_attention: bool = True
    fused_loss: bool = False
    """Chunked linear + cross-entropy that never materialises the logits."""
    lora_rank: int = 0
    """0: full training. Otherwise rank of the adapters on ``lora_targets``."""
    lora_targets: tuple[str, ...] = DEFAULT_TARGETS
    """Linear layers with adapters: ``all-linear`` (but the head), ``attention``, ``mlp`` or names of modules."""
    quantized_base: bool = False
    """QLoRA: frozen weights held in 4 bits (NF4 with double quantisation: 0.516 B a parameter)."""
    stack: str = "megatron-core"
    release: float | None = None
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
