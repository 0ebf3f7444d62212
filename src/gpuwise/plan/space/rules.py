"""Which layouts can run: named rules over columns, the same for a search (as masks) and for one layout (as
an error)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gpuwise.errors import LayoutError
from gpuwise.plan.space import conditions
from gpuwise.plan.space.conditions import Mask, Setting
from gpuwise.predict.columns import Columns
from gpuwise.workload.strategy import Strategy

ANOTHER = "use another --stack"
NO_LINK = "how fast the host reaches {s.cluster.accelerator.name} is not in the catalogue"
UNIFIED = "{s.cluster.accelerator.name} shares its memory with the host: there is nothing to offload to"


@dataclass(frozen=True, slots=True)
class Rule:
    """``broken(setting, columns)`` is true where the rule is broken; ``say`` puts a strategy ``x`` that
    breaks it in words, given the setting ``s``."""

    name: str
    broken: Callable[[Setting, Columns], Mask]
    say: str
    hint: str


LAYOUT_RULES: tuple[Rule, ...] = (
    Rule("stack-kind", conditions.stack_kind, "{s.stack_name} trains no model of the kind {s.arch.kind}", ANOTHER),
    Rule(
        "heads",
        conditions.heads,
        "tensor parallel {x.tp} does not divide {s.arch.heads} attention heads",
        "choose a tensor parallel degree that divides the heads",
    ),
    Rule(
        "kv-heads",
        conditions.kv_heads,
        "tensor parallel {x.tp} and {s.arch.kv_heads} key-value heads do not divide one another",
        "key-value heads are split evenly, or each is copied to a whole number of ranks",
    ),
    Rule(
        "mixer",
        conditions.mixer,
        "tensor parallel {x.tp} does not divide the groups of the state-space mixer",
        "choose a tensor parallel degree that divides them",
    ),
    Rule(
        "ffn",
        conditions.ffn,
        "tensor parallel {x.tp} does not divide the feed-forward width {s.arch.ffn}",
        "choose a tensor parallel degree that divides it",
    ),
    Rule(
        "tensor-domain",
        conditions.tensor_domain,
        "tensor parallel {x.tp} does not fit the {s.topology.domain} accelerators that share fast links",
        "keep tensor parallelism inside the scale-up domain, and a divisor of it",
    ),
    Rule(
        "network",
        conditions.network,
        "{s.cluster.n_accelerators} accelerators span systems of {s.cluster.system.count} that have no network",
        "use one system, or a system with a network",
    ),
    Rule(
        "encoder-decoder-pipeline",
        conditions.encoder_pipeline,
        "{s.arch.name} is an encoder-decoder: its stages are not modelled in a pipeline",
        "use --pp 1",
    ),
    Rule(
        "experts",
        conditions.experts,
        "expert parallel {x.ep} does not divide {s.n_experts} expert(s)",
        "expert parallelism needs a mixture of experts and a divisor of their number",
    ),
    Rule(
        "expert-ranks",
        conditions.expert_ranks,
        "expert parallel {x.ep} does not divide dp {x.dp} x cp {x.cp} x tp {x.tp} ranks",
        "expert groups borrow data, context and tensor ranks: ep divides dp x cp x tp",
    ),
    Rule(
        "expert-tensor",
        conditions.expert_tensor,
        "experts divided over {x.etp} tensor ranks with tp {x.tp}",
        "experts are whole (--etp 1), or in Megatron's stacks divided over all tensor ranks (--tp the same number)",
    ),
    Rule(
        "context",
        conditions.context,
        "{s.context_parallel} context parallel {x.cp} does not split {s.seq_len} tokens (and heads) evenly",
        "ring attention cuts the sequence into 2 x cp chunks; Ulysses also splits the heads",
    ),
    Rule(
        "quantized-tensor",
        conditions.quantized_tensor,
        "4-bit weights are not divided over tensor ranks (tp {x.tp})",
        "bitsandbytes and torchao pack a matrix as a whole: take --lora, or divide by --pp or over data-parallel ranks",
    ),
    Rule("stack-tensor", conditions.stack_tensor, "{s.stack_name} has no tensor parallelism", ANOTHER),
    Rule("stack-pipeline", conditions.stack_pipeline, "{s.stack_name} has no pipeline", ANOTHER),
    Rule(
        "stack-context",
        conditions.stack_context,
        "{s.stack_name} has no {s.context_parallel} context parallelism",
        ANOTHER,
    ),
    Rule("stack-expert", conditions.stack_expert, "{s.stack_name} has no expert parallelism", ANOTHER),
    Rule(
        "degrees",
        conditions.degrees,
        "dp {x.dp} x tp {x.tp} x pp {x.pp} x cp {x.cp} is not {s.cluster.n_accelerators} accelerators",
        "the degrees must multiply to the number of accelerators",
    ),
)
"""Rules over tp, pp, cp, ep and dp alone."""

SHAPE_RULES: tuple[Rule, ...] = (
    Rule(
        "layers",
        conditions.layers,
        "{s.arch.n_layers} layers do not spread over pp {x.pp} x {x.virtual_stages} stages",
        "pp x virtual stages divides the layers, or the layers and the two ends; without virtual stages "
        "the last stage, or both ends, may also have fewer layers, but not none; where the stack splits freely any stage may",
    ),
    Rule(
        "global-batch",
        conditions.batch,
        "dp {x.dp} x micro-batch {x.micro_batch} x accumulation {x.accumulation} is not the global batch {s.global_batch}",
        "the global batch is a multiple of dp x micro-batch",
    ),
    Rule(
        "virtual-stages",
        conditions.virtual,
        "{x.virtual_stages} virtual stage(s) with the {x.schedule} schedule",
        "virtual stages above 1 and the interleaved schedule go together",
    ),
    Rule(
        "interleaved-pipeline",
        conditions.interleaved_pipeline,
        "an interleaved schedule without a pipeline",
        "give --pp",
    ),
    Rule(
        "interleaved-batches",
        conditions.interleaved_batches,
        "{x.accumulation} micro-batches are not a multiple of the {x.pp} pipeline stages",
        "the interleaved schedule runs micro-batches in groups of pp",
    ),
    Rule(
        "dualpipe",
        conditions.dualpipe,
        "{x.schedule} over pp {x.pp} with {x.accumulation} micro-batches",
        "it pairs ranks, so that pp and the micro-batches are even, and has at least two micro-batches a rank",
    ),
    Rule(
        "stack-schedule",
        conditions.stack_schedule,
        "{s.stack_name} has no {x.schedule} schedule (it has {s.schedules})",
        "use one it has, or another --stack",
    ),
    Rule(
        "sequence",
        conditions.sequence,
        "{s.seq_len} tokens do not divide over cp {x.cp} x tp {x.tp} with sequence parallelism",
        "choose a sequence length that is a multiple of cp x tp, or --no-sequence-parallel",
    ),
    Rule(
        "stack-sequence",
        conditions.stack_sequence,
        "{s.stack_name} has no sequence parallelism",
        "leave out --sequence-parallel, or use another --stack",
    ),
    Rule(
        "expert-sequence",
        conditions.expert_sequence,
        "experts with tensor parallelism need sequence parallelism",
        "leave sequence parallelism on",
    ),
)
"""Rules over the micro-batches, the schedule and sequence parallelism."""

STATE_RULES: tuple[Rule, ...] = (
    Rule(
        "stack-sharding",
        conditions.stack_sharding,
        "{s.stack_name} has no {x.sharding} sharding (it has {s.shardings})",
        "use one it has, or another --stack",
    ),
    Rule(
        "sharding-pipeline",
        conditions.sharding_pipeline,
        "{s.stack_name} does not run {x.sharding} with a pipeline",
        "use --pp 1, or a sharding that leaves gradients whole",
    ),
    Rule(
        "sharding-ranks",
        conditions.sharding_ranks,
        "{x.sharding} over one data-parallel rank shards nothing",
        "use --sharding none, or more data-parallel ranks",
    ),
    Rule(
        "hybrid-group",
        conditions.hybrid,
        "hybrid sharding has no group inside a system that is smaller than dp {x.dp} x cp {x.cp} and divides it",
        "hybrid sharding needs several systems, whole groups, and less tensor parallelism than a system has",
    ),
    Rule(
        "shard-group",
        conditions.shard_group,
        "a shard group of {x.shard_group} ranks with {x.sharding} sharding over dp {x.dp} x cp {x.cp} ranks",
        "a group shards something over a whole part of the data-parallel ranks, more than one of them",
    ),
    Rule(
        "stack-shard-group",
        conditions.state_groups,
        "{s.stack_name} shards over groups of a chosen size with hybrid sharding only, not with {x.sharding}",
        "use --sharding hybrid, or another --stack",
    ),
    Rule(
        "stack-step-in-backward",
        conditions.stack_step_in_backward,
        "{s.stack_name} does not update in the backward pass",
        ANOTHER,
    ),
    Rule(
        "step-in-backward",
        conditions.step_in_backward,
        "an update in the backward pass with accumulation {x.accumulation}, pp {x.pp}",
        "gradients are used as they come: one micro-batch a step (--global-batch), no pipeline, no optimizer in host memory",
    ),
    Rule(
        "stack-offload-optimizer",
        conditions.stack_offload,
        "{s.stack_name} does not offload the optimizer",
        ANOTHER,
    ),
    Rule(
        "stack-offload-unsharded",
        conditions.stack_offload_unsharded,
        "{s.stack_name} offloads the optimizer of what it shards, and nothing is sharded over dp {x.dp} ranks",
        "use --sharding zero2 or zero3",
    ),
    Rule(
        "stack-offload-alone",
        conditions.stack_offload_alone,
        "{s.stack_name} offloads by FSDP, which wraps no model of one data-parallel rank (dp {x.dp}, cp {x.cp})",
        "use --stack deepspeed",
    ),
    Rule(
        "stack-offload-parameters",
        conditions.stack_offload_parameters,
        "{s.stack_name} does not offload the parameters of such a training",
        "use --stack deepspeed without --qlora, or --offload-optimizer, which under FSDP moves the weights too",
    ),
    Rule(
        "offload-parameters",
        conditions.offload_parameters,
        "parameters in host memory with {x.sharding} sharding",
        "use --sharding zero3 (ZeRO-3)",
    ),
    Rule(
        "offload-quantized",
        conditions.offload_quantized,
        "{x.optimizer} in host memory: bitsandbytes updates on the GPU alone",
        "use --optimizer adamw",
    ),
    Rule("unified-memory", conditions.unified_optimizer, UNIFIED, "leave the optimizer where it is"),
    Rule("host-link", conditions.host_link_optimizer, NO_LINK, "leave the optimizer where it is"),
)
"""Rules over where weights, gradients and optimizer states live."""

ACTIVATION_RULES: tuple[Rule, ...] = (
    Rule(
        "recompute-every",
        conditions.every,
        "recompute every {x.recompute_every} layers, {x.recompute} recompute, pp {x.pp} of {s.arch.n_layers} layers",
        "it needs full recompute, and a value between 1 and the layers of a stage",
    ),
    Rule(
        "stack-recompute",
        conditions.stack_recompute,
        "{s.stack_name} has no {x.recompute} recompute (it has {s.recomputes})",
        "use one it has, or another --stack",
    ),
    Rule(
        "stack-recompute-every",
        conditions.stack_recompute_every,
        "{s.stack_name} recomputes every layer or none, not one in {x.recompute_every}",
        "use --recompute full with --recompute-every 1, or another --stack",
    ),
    Rule(
        "stack-offload-activations",
        conditions.stack_offload_activations,
        "{s.stack_name} does not offload activations",
        ANOTHER,
    ),
    Rule("unified-memory", conditions.unified_activations, UNIFIED, "recompute instead"),
    Rule("host-link", conditions.host_link_activations, NO_LINK, "recompute instead"),
    Rule(
        "offload-pipeline",
        conditions.offload_pipeline,
        "activations cannot be offloaded in a pipeline",
        "use --pp 1 or recompute instead",
    ),
    Rule(
        "offload-recompute",
        conditions.offload_recompute,
        "activations are offloaded or recomputed, not both",
        "use --recompute none",
    ),
)
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
    one = Columns.of(strategy)
    for rule in RULES:
        if rule.broken(setting, one):
            raise LayoutError(rule.name, rule.say.format(s=setting, x=strategy), hint=rule.hint)
