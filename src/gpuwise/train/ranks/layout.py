"""How a training is laid out over ranks, and what of a plan these ranks cannot do."""

from __future__ import annotations

import math

import msgspec

from gpuwise.errors import LayoutError
from gpuwise.export.ranks import LAYOUT, PRECISIONS, strategy_gaps
from gpuwise.workload.strategy import Strategy

SHARDINGS = {
    "none": "DDP",
    "zero2": "FSDP2, weights kept after the forward pass",
    "zero3": "FSDP2",
    "hybrid": "FSDP2, replicated",
}


class Layout(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Degrees, batch and precision. A step takes ``global_batch`` samples, divided evenly over the data-parallel ranks and there
    into micro-batches of at most ``micro_batch``."""

    dp: int = 1
    tp: int = 1
    pp: int = 1
    sharding: str = "none"
    shard_group: int = 0
    """Ranks that hold one copy with ``hybrid``; the copies are replicas of each other."""
    precision: str = "fp32"
    recompute: str = "none"
    recompute_every: int = 1
    micro_batch: int = 1
    global_batch: int = 1
    optimizer: str = "adamw"

    @property
    def n_ranks(self) -> int:
        return self.dp * self.tp * self.pp

    @property
    def n_micro(self) -> int:
        """Micro-batches a step, the same on every rank."""
        return max(math.ceil(math.ceil(self.global_batch / self.dp) / self.micro_batch), 1)

    @property
    def words(self) -> str:
        """For headings: ``4 ranks, FSDP2, bf16``; the batch of a script is its own."""
        parts = [f"{self.n_ranks} rank{'s' if self.n_ranks > 1 else ''}"]
        parts += [f"{name} {n}" for name, n in (("tensor", self.tp), ("pipeline", self.pp)) if n > 1]
        if self.dp > 1:
            parts.append(SHARDINGS[self.sharding] + (f" {self.dp}" if self.dp < self.n_ranks else ""))
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
    if layout.recompute not in ("none", "full"):
        raise LayoutError("recompute", f"{layout.recompute} recompute is an engine's own", hint="take none or full")
    if layout.sharding == "hybrid" and (layout.shard_group < 1 or layout.dp % layout.shard_group):
        raise LayoutError(
            "hybrid", f"groups of {layout.shard_group} do not divide {layout.dp} data-parallel ranks", hint="set --shard-group"
        )
    if layout.global_batch < layout.dp:
        raise LayoutError(
            "batch", f"{layout.global_batch} samples a step do not reach {layout.dp} ranks", hint="give --global-batch more"
        )
    if layout.pp > 1:
        hint = "leave it out, or export the plan to a tool that can"
        raise LayoutError("on ranks", f"`run` cannot do pipeline parallel {layout.pp}", hint=hint)
    if layout.tp > 1 and layout.dp > 1 and layout.sharding == "none":
        raise LayoutError("tensor", "tensor parallel ranks are replicated by FSDP2, not by DDP", hint="add --sharding zero3")
    return layout
