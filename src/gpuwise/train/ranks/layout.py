"""How a training is laid out over ranks, and what of a plan these ranks cannot do."""

from __future__ import annotations

import math

import msgspec

from gpuwise.errors import LayoutError
from gpuwise.export.ranks import LAYOUT, PRECISIONS, strategy_gaps
from gpuwise.workload.adapters import DEFAULT_TARGETS
from gpuwise.workload.strategy import Strategy

SHARDINGS = {
    "none": "DDP",
    "zero2": "FSDP2, weights kept after the forward pass",
    "zero3": "FSDP2",
    "hybrid": "FSDP2, replicated",
}


COMPRESSIONS = {
    "none": "as they are",
    "fp16": "in half the bytes, another precision",
    "powersgd": "as products of two thin matrices: another training",
}


class Layout(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Degrees, batch and precision. A step takes ``global_batch`` samples, divided evenly over the data-parallel ranks and there
    into micro-batches of at most ``micro_batch``."""

    dp: int = 1
    tp: int = 1
    pp: int = 1
    cp: int = 1
    """Ranks that share rows of tokens; they are data-parallel ranks otherwise."""
    ep: int = 1
    """Neighbours among the ranks of a stage that have a part of the experts each."""
    sharding: str = "none"
    shard_group: int = 0
    """Ranks that hold one copy with ``hybrid``; the copies are replicas of each other."""
    precision: str = "fp32"
    recompute: str = "none"
    recompute_every: int = 1
    micro_batch: int = 1
    global_batch: int = 1
    optimizer: str = "adamw"
    offload_optimizer: bool = False
    """Weights, gradients and optimizer states in the host's memory (FSDP2), updated there."""
    offload_activations: bool = False
    """Activations saved for the backward pass are offloaded to host memory."""
    compress: str = "none"
    """Gradients as DDP exchanges them: ``fp16``, or ``powersgd`` of rank one."""
    lora_rank: int = 0
    """Rank of the adapters that are trained instead of the weights; 0: none."""
    lora_targets: tuple[str, ...] = DEFAULT_TARGETS
    quantized_base: bool = False
    """The weights under the adapters in 4 bits."""

    @property
    def n_ranks(self) -> int:
        """dp x tp x pp x cp."""
        return self.dp * self.tp * self.pp * self.cp

    @property
    def n_replicas(self) -> int:
        """Ranks over which gradients are added: of data and of context."""
        return self.dp * self.cp

    @property
    def modules(self) -> tuple[str, ...]:
        """Names of the modules that are recomputed, where ``recompute`` is a selection and no rule."""
        return () if self.recompute in ("none", "full") else tuple(n.strip() for n in self.recompute.split(",") if n.strip())

    @property
    def n_micro(self) -> int:
        """Micro-batches a step, the same on every rank."""
        return max(math.ceil(math.ceil(self.global_batch / self.dp) / self.micro_batch), 1)

    @property
    def words(self) -> str:
        """Heading: ``4 ranks, FSDP2, bf16``; the batch belongs to the script."""
        parts = [f"{self.n_ranks} rank{'s' if self.n_ranks > 1 else ''}"]
        degrees = {"tensor": self.tp, "pipeline": self.pp, "context": self.cp, "expert": self.ep}
        parts += [f"{name} {n}" for name, n in degrees.items() if n > 1]
        if self.n_replicas > 1:
            parts.append(SHARDINGS[self.sharding] + (f" {self.n_replicas}" if self.n_replicas < self.n_ranks else ""))
        if self.lora_rank:
            parts.append(f"{'QLoRA' if self.quantized_base else 'LoRA'} of rank {self.lora_rank}")
        return ", ".join([*parts, self.precision])


def layout_of(strategy: Strategy, shard_group: int | None = None) -> Layout:
    """A plan's strategy; ``shard_group`` where it leaves open which ranks hold one copy. Raises LayoutError with every part that
    these ranks have no way to do."""
    missing = list(dict.fromkeys(strategy_gaps(strategy)))
    if missing:
        hint = "plan without it, or `gpuwise export` the plan to a tool that can"
        raise LayoutError("on ranks", f"`run` cannot do {'; '.join(missing)}", hint=hint)
    layout = Layout(**{name: getattr(strategy, name) for name in LAYOUT})
    return checked(msgspec.structs.replace(layout, shard_group=strategy.shard_group or shard_group or 0))


def checked(layout: Layout) -> Layout:
    """The layout, where its parts go together. Raises LayoutError."""
    if layout.precision not in PRECISIONS:
        why = "scales its loss, which no rank does here" if layout.precision == "fp16" else "needs kernels of an engine"
        raise LayoutError("precision", f"{layout.precision} {why}", hint=f"take {', '.join(PRECISIONS)}")
    if layout.sharding not in SHARDINGS:
        raise LayoutError("sharding", f"there is no {layout.sharding} on ranks", hint=f"take {', '.join(SHARDINGS)}")
    if layout.recompute == "selective":
        hint = "take none, full, or names of modules: blocks.0,blocks.2"
        raise LayoutError("recompute", "selective recompute is an engine's own", hint=hint)
    if layout.cp > 1 and (layout.pp > 1 or layout.sharding == "hybrid"):
        what = "pipeline stages" if layout.pp > 1 else "hybrid sharding"
        raise LayoutError("context", f"rows are not divided together with {what} here", hint="take --sharding zero3 or none")
    if layout.ep > 1 and layout.offload_optimizer:
        raise LayoutError("experts", "experts are not divided together with an offload here", hint="leave --offload out")
    if (layout.n_replicas * layout.tp) % layout.ep:
        ranks = f"{layout.n_replicas * layout.tp} ranks" + (" of a stage" if layout.pp > 1 else "")
        raise LayoutError("experts", f"groups of {layout.ep} do not divide {ranks}", hint="take an --ep that divides them")
    if layout.offload_optimizer and (layout.sharding not in ("zero2", "zero3", "hybrid") or layout.n_replicas == 1):
        raise LayoutError("offload", "weights and optimizer are put on the host by FSDP2", hint="add --sharding zero3")
    if layout.offload_activations and layout.recompute != "none":
        raise LayoutError("offload", "recomputed activations are not stored", hint="leave --recompute or the offload out")
    if layout.compress not in COMPRESSIONS:
        raise LayoutError("compress", f"there is no {layout.compress}", hint=f"take {', '.join(COMPRESSIONS)}")
    if layout.compress != "none" and (layout.sharding != "none" or layout.n_replicas == 1 or layout.pp > 1):
        raise LayoutError("compress", "only DDP's gradients are compressed", hint="leave --sharding and --pp out")
    if layout.sharding == "hybrid" and (layout.shard_group < 1 or layout.dp % layout.shard_group):
        raise LayoutError(
            "hybrid", f"groups of {layout.shard_group} do not divide {layout.dp} data-parallel ranks", hint="set --shard-group"
        )
    if layout.global_batch < layout.dp:
        raise LayoutError(
            "batch", f"{layout.global_batch} samples a step do not reach {layout.dp} ranks", hint="give --global-batch more"
        )
    if layout.tp > 1 and layout.n_replicas > 1 and layout.sharding == "none":
        raise LayoutError("tensor", "tensor parallel ranks are replicated by FSDP2, not by DDP", hint="add --sharding zero3")
    return layout
