"""Which layouts can run: named rules over columns, the same for a search (as masks) and for one layout (as an error).

Degrees: tp tensor, pp pipeline, v virtual stages, cp context, ep expert, dp data; n accelerators; m micro-batches a step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuwise.errors import LayoutError
from gpuwise.facts.models import Architecture
from gpuwise.facts.systems import Cluster
from gpuwise.plan.stack_rules import StackRules, find_stack_rules
from gpuwise.predict.columns import Columns
from gpuwise.workload.strategy import RECOMPUTES, SCHEDULES, SHARDINGS, Strategy

Mask = NDArray[np.bool_]
INTERLEAVED = SCHEDULES.index("interleaved")
HYBRID = SHARDINGS.index("hybrid")
FULL = RECOMPUTES.index("full")


@dataclass(frozen=True, slots=True)
class Setting:
    """What a layout must agree with. ``global_batch`` is in sequences."""

    arch: Architecture
    cluster: Cluster
    seq_len: int
    global_batch: int
    stack: StackRules
    stack_name: str
    context_parallel: str = "ring"

    @classmethod
    def of(cls, arch: Architecture, cluster: Cluster, base: Strategy, seq_len: int, global_batch: int) -> Setting:
        rules = find_stack_rules(base.stack)
        return cls(arch, cluster, seq_len, global_batch, rules, base.stack, base.context_parallel)


@dataclass(frozen=True, slots=True)
class Rule:
    """``broken(setting, columns)`` is true where the rule is broken; ``say`` and ``hint`` put one strategy in words."""

    name: str
    broken: Callable[[Setting, Columns], Mask]
    say: Callable[[Setting, Strategy], str]
    hint: str


def _divides(n: int, by: NDArray[np.int64]) -> Mask:
    return n % np.maximum(by, 1) == 0


def _degrees(s: Setting, c: Columns) -> Mask:
    return c.dp * c.tp * c.pp * c.cp != s.cluster.n_accelerators


def _heads(s: Setting, c: Columns) -> Mask:
    return ~_divides(s.arch.heads, c.tp)


def _kv_heads(s: Setting, c: Columns) -> Mask:
    if s.arch.mla is not None:
        return np.zeros(1, bool)
    return ~(_divides(s.arch.kv_heads, c.tp) | (c.tp % s.arch.kv_heads == 0))


def _ffn(s: Setting, c: Columns) -> Mask:
    widths = [s.arch.ffn] if s.arch.n_dense_layers else []
    if s.arch.moe is not None and s.arch.moe.shared_ffn:
        widths.append(s.arch.moe.shared_ffn)
    broken = np.zeros(1, bool)
    for width in widths:
        broken = broken | ~_divides(width, c.tp)
    return broken


def _tensor_domain(s: Setting, c: Columns) -> Mask:
    domain = min(s.cluster.system.domain_size, s.cluster.n_accelerators)
    return (c.tp > domain) | ~_divides(domain, c.tp)


def _network(s: Setting, c: Columns) -> Mask:
    system = s.cluster.system
    cut_off = s.cluster.n_accelerators > max(system.count, system.domain_size) and system.network_bytes_per_s <= 0
    return np.full(1, cut_off)


def _encoder_pipeline(s: Setting, c: Columns) -> Mask:
    return (c.pp > 1) & (s.arch.encoder is not None)


def _experts(s: Setting, c: Columns) -> Mask:
    n = 1 if s.arch.moe is None else s.arch.moe.n_experts
    return ~_divides(n, c.ep)


def _expert_ranks(s: Setting, c: Columns) -> Mask:
    return (c.dp * c.cp * c.tp) % np.maximum(c.ep, 1) != 0


def _expert_sequence(s: Setting, c: Columns) -> Mask:
    return (c.tp > 1) & (c.sequence_parallel == 0) & (s.arch.moe is not None)


def _context(s: Setting, c: Columns) -> Mask:
    if s.context_parallel == "ulysses":
        heads = _divides(s.arch.heads, c.tp * c.cp) & _divides(s.arch.kv_heads, c.tp * c.cp)
        return (c.cp > 1) & ~(_divides(s.seq_len, c.cp) & heads)
    return (c.cp > 1) & ~_divides(s.seq_len, 2 * c.cp)


def _sequence(s: Setting, c: Columns) -> Mask:
    return (c.tp > 1) & (c.sequence_parallel > 0) & ~_divides(s.seq_len, c.cp * c.tp)


def _layers(s: Setting, c: Columns) -> Mask:
    n, chunks = s.arch.n_layers, c.pp * c.virtual_stages
    return (c.pp > 1) & (~(_divides(n, chunks) | _divides(n + 2, chunks)) | (chunks > n))


def _batch(s: Setting, c: Columns) -> Mask:
    return c.micro_batch * c.accumulation * c.dp != s.global_batch


def _virtual(s: Setting, c: Columns) -> Mask:
    return (c.virtual_stages > 1) != (c.schedule == INTERLEAVED)


def _interleaved_pipeline(s: Setting, c: Columns) -> Mask:
    return (c.schedule == INTERLEAVED) & (c.pp == 1)


def _interleaved_batches(s: Setting, c: Columns) -> Mask:
    return (c.schedule == INTERLEAVED) & (c.accumulation % np.maximum(c.pp, 1) != 0)


def _stack_tensor(s: Setting, c: Columns) -> Mask:
    return (c.tp > 1) & (not s.stack.tensor)


def _stack_pipeline(s: Setting, c: Columns) -> Mask:
    return (c.pp > 1) & (not s.stack.pipeline)


def _stack_context(s: Setting, c: Columns) -> Mask:
    return (c.cp > 1) & (s.context_parallel not in s.stack.context)


def _stack_expert(s: Setting, c: Columns) -> Mask:
    return (c.ep > 1) & (not s.stack.expert)


def _stack_schedule(s: Setting, c: Columns) -> Mask:
    allowed = [i for i, name in enumerate(SCHEDULES) if name in s.stack.schedules]
    return (c.pp > 1) & ~np.isin(c.schedule, allowed)


def _codes(names: frozenset[str]) -> list[int]:
    return [i for i, name in enumerate(SHARDINGS) if name in names]


def _stack_sharding(s: Setting, c: Columns) -> Mask:
    return ~np.isin(c.sharding, _codes(s.stack.shardings))


def _sharding_pipeline(s: Setting, c: Columns) -> Mask:
    return (c.pp > 1) & ~np.isin(c.sharding, _codes(s.stack.shardings_with_pipeline))


def _sharding_ranks(s: Setting, c: Columns) -> Mask:
    return (c.sharding > 0) & (c.dp * c.cp == 1)


def _hybrid(s: Setting, c: Columns) -> Mask:
    ranks = c.dp * c.cp
    group = np.where(c.shard_group > 0, c.shard_group, np.maximum(s.cluster.system.count // c.tp, 1))
    return (c.sharding == HYBRID) & ((group <= 1) | (group >= ranks) | (ranks % np.maximum(group, 1) != 0))


def _stack_offload(s: Setting, c: Columns) -> Mask:
    return (c.offload_optimizer > 0) & (not s.stack.offload_optimizer)


def _unified_optimizer(s: Setting, c: Columns) -> Mask:
    return (c.offload_optimizer > 0) & s.cluster.accelerator.unified_memory


def _unified_activations(s: Setting, c: Columns) -> Mask:
    return (c.offload_activations > 0) & s.cluster.accelerator.unified_memory


def _stack_offload_activations(s: Setting, c: Columns) -> Mask:
    return (c.offload_activations > 0) & (not s.stack.offload_activations)


def _offload_pipeline(s: Setting, c: Columns) -> Mask:
    return (c.offload_activations > 0) & (c.pp > 1)


def _offload_recompute(s: Setting, c: Columns) -> Mask:
    return (c.offload_activations > 0) & (c.recompute > 0) & (not s.stack.offload_with_recompute)


def _every(s: Setting, c: Columns) -> Mask:
    per_stage = np.maximum(s.arch.n_layers // np.maximum(c.pp, 1), 1)
    return (c.recompute_every < 1) | (c.recompute_every > per_stage) | ((c.recompute_every > 1) & (c.recompute != FULL))


LAYOUT_RULES: tuple[Rule, ...] = (
    Rule("heads", _heads, lambda s, x: f"tensor parallel {x.tp} does not divide {s.arch.heads} attention heads",
         "choose a tensor parallel degree that divides the heads"),
    Rule("kv-heads", _kv_heads,
         lambda s, x: f"tensor parallel {x.tp} and {s.arch.kv_heads} key-value heads do not divide one another",
         "key-value heads are split evenly, or each is copied to a whole number of ranks"),
    Rule("ffn", _ffn, lambda s, x: f"tensor parallel {x.tp} does not divide the feed-forward width {s.arch.ffn}",
         "choose a tensor parallel degree that divides it"),
    Rule("tensor-domain", _tensor_domain,
         lambda s, x: f"tensor parallel {x.tp} does not fit the {min(s.cluster.system.domain_size, s.cluster.n_accelerators)} accelerators that share fast links",
         "keep tensor parallelism inside the scale-up domain, and a divisor of it"),
    Rule("network", _network,
         lambda s, x: f"{s.cluster.n_accelerators} accelerators span systems of {s.cluster.system.count} that have no network",
         "use one system, or a system with a network"),
    Rule("encoder-decoder-pipeline", _encoder_pipeline,
         lambda s, x: f"{s.arch.name} is an encoder-decoder: its stages are not modelled in a pipeline", "use --pp 1"),
    Rule("experts", _experts,
         lambda s, x: f"expert parallel {x.ep} does not divide {s.arch.moe.n_experts if s.arch.moe else 1} expert(s)",
         "expert parallelism needs a mixture of experts and a divisor of their number"),
    Rule("expert-ranks", _expert_ranks,
         lambda s, x: f"expert parallel {x.ep} does not divide the {x.dp * x.cp * x.tp} ranks of a pipeline stage",
         "expert groups borrow data, context and tensor ranks: ep divides dp x cp x tp"),
    Rule("context", _context,
         lambda s, x: f"context parallel {x.cp} does not split {s.seq_len} tokens" + (" and the heads" if s.context_parallel == "ulysses" else " into pairs of equal chunks"),
         "ring attention cuts the sequence into 2 x cp chunks; Ulysses also splits the heads"),
    Rule("stack-tensor", _stack_tensor, lambda s, x: f"{s.stack_name} has no tensor parallelism", "use another --stack"),
    Rule("stack-pipeline", _stack_pipeline, lambda s, x: f"{s.stack_name} has no pipeline", "use another --stack"),
    Rule("stack-context", _stack_context,
         lambda s, x: f"{s.stack_name} has no {s.context_parallel} context parallelism", "use another --stack"),
    Rule("stack-expert", _stack_expert, lambda s, x: f"{s.stack_name} has no expert parallelism", "use another --stack"),
    Rule("degrees", _degrees,
         lambda s, x: f"dp {x.dp} x tp {x.tp} x pp {x.pp} x cp {x.cp} = {x.n_accelerators} is not {s.cluster.n_accelerators} accelerators",
         "the degrees must multiply to the number of accelerators"),
)  # fmt: skip
"""Rules over tp, pp, cp, ep and dp alone."""

SHAPE_RULES: tuple[Rule, ...] = (
    Rule("layers", _layers,
         lambda s, x: f"{s.arch.n_layers} layers (or {s.arch.n_layers} and the two ends) do not divide into pp {x.pp} x {x.virtual_stages} stages",
         "pp x virtual stages divides the layers, or the layers plus two when embedding and head count as one each"),
    Rule("global-batch", _batch,
         lambda s, x: f"dp {x.dp} x micro-batch {x.micro_batch} x accumulation {x.accumulation} = {x.global_batch} is not the global batch {s.global_batch}",
         "the global batch is a multiple of dp x micro-batch"),
    Rule("virtual-stages", _virtual,
         lambda s, x: f"{x.virtual_stages} virtual stage(s) with the {x.schedule} schedule",
         "virtual stages above 1 and the interleaved schedule go together"),
    Rule("interleaved-pipeline", _interleaved_pipeline, lambda s, x: "an interleaved schedule without a pipeline", "give --pp"),
    Rule("interleaved-batches", _interleaved_batches,
         lambda s, x: f"{x.accumulation} micro-batches are no multiple of the {x.pp} pipeline stages",
         "the interleaved schedule runs micro-batches in groups of pp"),
    Rule("stack-schedule", _stack_schedule,
         lambda s, x: f"{s.stack_name} has no {x.schedule} schedule (it has {', '.join(sorted(s.stack.schedules))})",
         "use one it has, or another --stack"),
    Rule("sequence", _sequence,
         lambda s, x: f"{s.seq_len} tokens do not divide over cp {x.cp} x tp {x.tp} with sequence parallelism",
         "choose a sequence length that is a multiple of cp x tp, or --no-sequence-parallel"),
    Rule("expert-sequence", _expert_sequence, lambda s, x: "experts with tensor parallelism need sequence parallelism",
         "leave sequence parallelism on"),
)  # fmt: skip
"""Rules over the micro-batches, the schedule and sequence parallelism."""

STATE_RULES: tuple[Rule, ...] = (
    Rule("stack-sharding", _stack_sharding,
         lambda s, x: f"{s.stack_name} has no {x.sharding} sharding (it has {', '.join(sorted(s.stack.shardings))})",
         "use one it has, or another --stack"),
    Rule("sharding-pipeline", _sharding_pipeline,
         lambda s, x: f"{s.stack_name} does not run {x.sharding} with a pipeline", "use zero1 with a pipeline, or --pp 1"),
    Rule("sharding-ranks", _sharding_ranks, lambda s, x: f"{x.sharding} over one data-parallel rank shards nothing",
         "use --sharding none, or more data-parallel ranks"),
    Rule("hybrid-group", _hybrid,
         lambda s, x: f"hybrid sharding of {x.dp * x.cp} data ranks has no group inside a system that is smaller and divides them",
         "hybrid sharding needs several systems, whole groups, and tensor parallelism below a system's size"),
    Rule("stack-offload-optimizer", _stack_offload,
         lambda s, x: f"{s.stack_name} does not offload the optimizer", "use another --stack"),
    Rule("unified-memory", _unified_optimizer,
         lambda s, x: f"{s.cluster.accelerator.name} shares its memory with the host: there is nothing to offload to",
         "leave the optimizer where it is"),
)  # fmt: skip
"""Rules over where weights, gradients and optimizer states live."""

ACTIVATION_RULES: tuple[Rule, ...] = (
    Rule("recompute-every", _every,
         lambda s, x: f"recompute every {x.recompute_every} layers with {x.recompute} recompute and {max(s.arch.n_layers // x.pp, 1)} layers a stage",
         "it belongs to full recompute, and lies between 1 and the layers of a stage"),
    Rule("stack-offload-activations", _stack_offload_activations,
         lambda s, x: f"{s.stack_name} does not offload activations", "use another --stack"),
    Rule("unified-memory", _unified_activations,
         lambda s, x: f"{s.cluster.accelerator.name} shares its memory with the host: there is nothing to offload to",
         "recompute instead"),
    Rule("offload-pipeline", _offload_pipeline,
         lambda s, x: "activations cannot be offloaded in a pipeline", "use --pp 1 or recompute instead"),
    Rule("offload-recompute", _offload_recompute,
         lambda s, x: "activations are offloaded or recomputed, not both", "use --recompute none"),
)  # fmt: skip
"""Rules over what happens to activations."""

RULES: tuple[Rule, ...] = LAYOUT_RULES + SHAPE_RULES + STATE_RULES + ACTIVATION_RULES


def allowed(rules: tuple[Rule, ...], setting: Setting, c: Columns) -> Mask:
    """True where no rule of ``rules`` is broken, in the shape the rules' columns broadcast to."""
    ok = np.ones(1, bool)
    for rule in rules:
        ok = ok & ~rule.broken(setting, c)
    return ok


def check_strategy(setting: Setting, strategy: Strategy) -> None:
    """Raises LayoutError naming the first rule ``strategy`` breaks."""
    one = Columns.from_strategies([strategy])
    for rule in RULES:
        if bool(np.any(rule.broken(setting, one))):
            raise LayoutError(rule.name, rule.say(setting, strategy), hint=rule.hint)
