"""What a software stack can lay out, the combinations its own argument checks or documentation allow: the section ``[layout]`` of
its file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpuwise.workload.strategy import CONTEXT_PARALLELS, RECOMPUTES


@dataclass(frozen=True, slots=True)
class LayoutRules:
    """Capabilities of a stack; ``source`` is where they were read."""

    source: str
    shardings: frozenset[str]
    shardings_with_pipeline: frozenset[str]
    schedules: frozenset[str]
    kinds: frozenset[str] = frozenset()
    """The kinds of models it trains, where it does not train all (:attr:`Architecture.kind`)."""
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
    recomputes: frozenset[str] = frozenset(RECOMPUTES)
    recompute_every: bool = True
    """One layer in several may be recomputed, not only all of them."""
    offload_unsharded: bool = True
    """An optimizer may be in host memory on several data-parallel ranks that shard nothing."""
    widens_unsharded: bool = True
    """Gradients of 16-bit weights may be accumulated in fp32 on several ranks without sharding; otherwise only with
    ``--sharding none``."""
    asked_only: frozenset[str] = frozenset()
    """Options among ``recompute_every``, ``offload_activations``, ``offload_optimizer``, ``selective`` and ``unsharded``
    (replicas) that PyTorch has but the stack's own tool lacks: used only on request."""
    expert_tensor: bool = False
    """Experts may be divided over the tensor ranks."""
    chooses_dispatch: bool = False
    """Its options choose how tokens travel to their experts."""
    balances_stages: bool = False
    """A pipeline's stages are balanced by compute cost, the output projection counted too; otherwise by layers."""
    half_gradients: bool = False
    """It has an option for gradients in 16 bits."""
    half_moments: bool = False
    """It has one for AdamW's moments in 16 bits."""
    with_adapters: LayoutRules | None = None
    """Layouts under adapters, if they differ."""

    def trains(self, kind: str) -> bool:
        """Whether the stack trains models of that kind."""
        return not self.kinds or kind in self.kinds

    def under(self, *, adapters: bool) -> LayoutRules:
        """These rules, or those under adapters where there are ``adapters`` and others hold."""
        return self.with_adapters or self if adapters else self

    def has(self, asked: Mapping[str, int | str | bool]) -> bool:
        """Whether the stack supports the requested ``asked`` (strategy fields by name)."""
        pipeline = int(asked.get("pp", 1)) > 1
        shardings = self.shardings_with_pipeline if pipeline else self.shardings
        return (
            ("schedule" not in asked or asked["schedule"] in self.schedules)
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
