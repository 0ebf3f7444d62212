"""What each rule of a layout tests: masks over columns, true where the rule is broken.

Degrees: tp tensor, pp pipeline, cp context, ep expert, dp data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from gpuwise.errors import UnpredictableError
from gpuwise.facts.hardware.systems import Cluster
from gpuwise.facts.models.architecture import Architecture
from gpuwise.predict.columns import Columns
from gpuwise.predict.kernels.transfer import host_link_bytes_per_s
from gpuwise.predict.parallel.pipeline import DUALPIPE, INTERLEAVED, folded
from gpuwise.workload.blocks.kinds import attention_of, attention_sizes, block_counts
from gpuwise.workload.optimizer import BITSANDBYTES
from gpuwise.workload.stacks.layout import LayoutRules
from gpuwise.workload.stacks.stack import find_stack
from gpuwise.workload.strategy import RECOMPUTES, SCHEDULES, SHARDINGS, Strategy

Mask = NDArray[np.bool_]
HYBRID = SHARDINGS.index("hybrid")
FULL = RECOMPUTES.index("full")


@dataclass(frozen=True, slots=True)
class Topology:
    """All that the rules of a layout ask of a cluster: clusters of other accelerators with the same one have the same layouts."""

    n_accelerators: int
    system_count: int
    """Accelerators of one system."""
    domain: int
    """Accelerators of the cluster that share fast links."""
    is_cut_off: bool
    """More accelerators than a host or domain has, and no network between them."""
    has_host_link: bool
    """How fast the host reaches an accelerator is published."""
    unified_memory: bool

    @classmethod
    def of(cls, cluster: Cluster) -> Topology:
        """The rule's value for ``cluster``."""
        system, n = cluster.system, cluster.n_accelerators
        try:
            has_host_link = host_link_bytes_per_s(cluster.accelerator, "d2h") > 0
        except UnpredictableError:
            has_host_link = False
        return cls(
            n,
            system.count,
            min(system.domain_size, n),
            n > max(system.count, system.domain_size) and system.network_bytes_per_s <= 0,
            has_host_link,
            cluster.accelerator.unified_memory,
        )


@dataclass(frozen=True, slots=True)
class Setting:
    """Inputs of the rules for a layout. ``global_batch`` is in sequences. ``cluster`` is only for messages: settings are equal
    if all inputs of the rules are."""

    arch: Architecture
    cluster: Cluster = field(compare=False)
    topology: Topology
    seq_len: int
    global_batch: int
    stack: LayoutRules
    stack_name: str
    context_parallel: str = "ring"
    widens_gradients: bool = False

    @classmethod
    def of(cls, arch: Architecture, cluster: Cluster, base: Strategy, seq_len: int, global_batch: int) -> Setting:
        """The setting in which strategies with ``base``'s stack and adapters are judged. Raises UnknownNameError for a
        stack."""
        rules = find_stack(base.stack).layout.under(adapters=base.lora_rank > 0)
        return cls(
            arch,
            cluster,
            Topology.of(cluster),
            seq_len,
            global_batch,
            rules,
            base.stack,
            base.context_parallel,
            base.widens_gradients,
        )

    @property
    def n_experts(self) -> int:
        """Experts of a layer; 1 for a dense model, which expert parallelism cannot split."""
        return 1 if self.arch.moe is None else self.arch.moe.n_experts

    @property
    def schedules(self) -> str:
        """Pipeline schedules of the stack, for a message."""
        return ", ".join(sorted(self.stack.schedules))

    @property
    def shardings(self) -> str:
        """Shardings of the stack, for a message."""
        return ", ".join(sorted(self.stack.shardings))

    @property
    def recomputes(self) -> str:
        """Recompute policies of the stack, for a message."""
        return ", ".join(sorted(self.stack.recomputes))


def _divides(n: int, by: NDArray[np.int64]) -> Mask:
    return n % np.maximum(by, 1) == 0


def degrees(s: Setting, c: Columns) -> Mask:
    """The degrees do not multiply to the accelerators there are."""
    return c.dp * c.tp * c.pp * c.cp != s.topology.n_accelerators


def heads(s: Setting, c: Columns) -> Mask:
    """Attention's heads do not divide by tp."""
    return _undivided(s, c, "heads")


def mixer(s: Setting, c: Columns) -> Mask:
    """Sizes that a mixer other than attention splits and tp does not divide."""
    return _undivided(s, c, "mixer")


def kv_heads(s: Setting, c: Columns) -> Mask:
    """Heads of keys and values neither divide by tp nor divide it."""
    broken = np.zeros(1, bool)
    for sizes in attention_sizes(s.arch) if s.arch.n_attention_layers else ():
        if shared := attention_of(sizes).shared_heads(sizes):
            broken = broken | ~(_divides(shared, c.tp) | (c.tp % shared == 0))
    return broken


def ffn(s: Setting, c: Columns) -> Mask:
    """A width of the dense or shared feed-forward layers does not divide by tp."""
    return _undivided(s, c, "ffn")


def _undivided(s: Setting, c: Columns, rule: str) -> Mask:
    """Tensor ranks do not divide one of the numbers of the blocks that report by ``rule``."""
    broken = np.zeros(1, bool)
    for block in block_counts(s.arch):
        for part in block.trained_parts(s.arch) if block.divided_as == rule else ():
            broken = broken | ~_divides(part, c.tp)
    return broken


def tensor_domain(s: Setting, c: Columns) -> Mask:
    """Tensor parallel ranks leave the fast links' domain or divide it unevenly."""
    return (c.tp > s.topology.domain) | ~_divides(s.topology.domain, c.tp)


def quantized_tensor(s: Setting, c: Columns) -> Mask:
    """Tensor ranks of 4-bit weights."""
    return (c.tp > 1) & c.base.quantized_base


def network(s: Setting, c: Columns) -> Mask:
    """More accelerators than a host or domain has, and no network between them."""
    return np.full(1, s.topology.is_cut_off)


def encoder_pipeline(s: Setting, c: Columns) -> Mask:
    """Pipeline stages of a model with an encoder."""
    return (c.pp > 1) & (s.arch.encoder is not None)


def experts(s: Setting, c: Columns) -> Mask:
    """The experts do not divide by ep."""
    return ~_divides(s.n_experts, c.ep)


def expert_ranks(s: Setting, c: Columns) -> Mask:
    """dp x cp x tp ranks do not divide by those of experts."""
    return (c.dp * c.cp * c.tp) % np.maximum(c.expert_ranks, 1) != 0


def expert_tensor(s: Setting, c: Columns) -> Mask:
    """Experts are divided over some of the tensor ranks, or do not divide over them."""
    etp = c.base.etp
    ffn = 0 if s.arch.moe is None else s.arch.moe.expert_ffn
    broken = (c.tp != etp) | (ffn % etp != 0) | (not s.stack.expert_tensor)
    return np.full(1, etp > 1) & broken


def expert_sequence(s: Setting, c: Columns) -> Mask:
    """Experts under tensor parallelism without sequence parallelism."""
    return (c.tp > 1) & (c.sequence_parallel == 0) & (s.arch.moe is not None)


def context(s: Setting, c: Columns) -> Mask:
    """The sequence, or under Ulysses the heads, do not divide by what context parallelism cuts them into."""
    if s.context_parallel == "ulysses":
        heads = _divides(s.arch.heads, c.tp * c.cp) & _divides(s.arch.kv_heads, c.tp * c.cp)
        return (c.cp > 1) & ~(_divides(s.seq_len, c.cp) & heads)
    return (c.cp > 1) & ~_divides(s.seq_len, 2 * c.cp)


def sequence(s: Setting, c: Columns) -> Mask:
    """Sequence parallelism whose sequence does not divide by cp x tp."""
    return (c.tp > 1) & (c.sequence_parallel > 0) & ~_divides(s.seq_len, c.cp * c.tp)


def stack_sequence(s: Setting, c: Columns) -> Mask:
    """Sequence parallelism in a stack without it."""
    return (c.tp > 1) & (c.sequence_parallel > 0) & (not s.stack.sequence_parallel)


def layers(s: Setting, c: Columns) -> Mask:
    """The layers cannot be shared over stages and virtual stages."""
    n, chunks = s.arch.n_layers, c.pp * c.virtual_stages
    # counted as a layer each, embedding and head may have a chunk of their own (Llama 3 405B, arXiv 2407.21783 section 3.3.2)
    even = (_divides(n, chunks) & (chunks <= n)) | (_divides(n + 2, chunks) & ((chunks <= n) | (c.virtual_stages > 1)))
    per_stage = -(-n // np.maximum(c.pp, 1))
    # the last stage takes what is left, or both ends share what the middle stages leave
    left = (n > per_stage * (c.pp - 1)) | ((c.pp > 2) & (n - per_stage * (c.pp - 2) >= 2))
    # with virtual stages every chunk is as full as the fullest except those of the last stage: a smaller one would idle
    full = np.where(c.virtual_stages > 1, -(-n // np.maximum(chunks, 1)) * c.virtual_stages * (c.pp - 1) < n, True)
    uneven = ((c.virtual_stages == 1) & left) | (s.stack.any_split & (chunks <= n) & full)
    return (c.pp > 1) & ~(even | uneven)


def batch(s: Setting, c: Columns) -> Mask:
    """micro-batch x accumulation x dp is not the global batch."""
    return c.micro_batch * c.accumulation * c.dp != s.global_batch


def dualpipe(s: Setting, c: Columns) -> Mask:
    """deepseek-ai/DualPipe dualpipe.py, dualpipev.py: pairs of ranks, and at least two micro-batches a rank."""
    short = c.accumulation < 2 * c.pp
    odd = (c.schedule == DUALPIPE) & ((c.pp % 2 > 0) | (c.accumulation % 2 > 0))
    return folded(c.schedule, c.pp) & (odd | short)


def virtual(s: Setting, c: Columns) -> Mask:
    """Virtual stages without the interleaved schedule, or it without them."""
    return (c.virtual_stages > 1) != (c.schedule == INTERLEAVED)


def interleaved_pipeline(s: Setting, c: Columns) -> Mask:
    """The interleaved schedule on one stage."""
    return (c.schedule == INTERLEAVED) & (c.pp == 1)


def interleaved_batches(s: Setting, c: Columns) -> Mask:
    """The interleaved schedule with micro-batches that do not divide by pp."""
    return (c.schedule == INTERLEAVED) & (c.accumulation % np.maximum(c.pp, 1) != 0)


def stack_kind(s: Setting, c: Columns) -> Mask:
    """A kind of model that the stack does not train."""
    return np.full(np.shape(c.tp), not s.stack.trains(s.arch.kind))


def stack_tensor(s: Setting, c: Columns) -> Mask:
    """Tensor parallelism in a stack without it."""
    return (c.tp > 1) & (not s.stack.tensor)


def stack_pipeline(s: Setting, c: Columns) -> Mask:
    """Pipeline parallelism in a stack without it."""
    return (c.pp > 1) & (not s.stack.pipeline)


def stack_context(s: Setting, c: Columns) -> Mask:
    """A kind of context parallelism the stack lacks."""
    return (c.cp > 1) & (s.context_parallel not in s.stack.context)


def stack_expert(s: Setting, c: Columns) -> Mask:
    """Expert parallelism in a stack without it."""
    return (c.ep > 1) & (not s.stack.expert)


def stack_schedule(s: Setting, c: Columns) -> Mask:
    """A pipeline schedule the stack lacks."""
    return (c.pp > 1) & ~_among(SCHEDULES, s.stack.schedules)[c.schedule]


@lru_cache(64)
def _among(names: Sequence[str], allowed: frozenset[str]) -> Mask:
    """True, by the code of a name, if it is one of ``allowed``."""
    return np.array([name in allowed for name in names])


def stack_sharding(s: Setting, c: Columns) -> Mask:
    """A sharding of states the stack lacks."""
    return ~_among(SHARDINGS, s.stack.shardings)[c.sharding]


def sharding_pipeline(s: Setting, c: Columns) -> Mask:
    """A sharding that the stack does not combine with pipeline stages."""
    return (c.pp > 1) & ~_among(SHARDINGS, s.stack.shardings_with_pipeline)[c.sharding]


def sharding_ranks(s: Setting, c: Columns) -> Mask:
    """States sharded over one rank."""
    return (c.sharding > 0) & (c.dp * c.cp == 1)


def hybrid(s: Setting, c: Columns) -> Mask:
    """Hybrid sharding whose group is one rank, all ranks, or does not divide them."""
    ranks = c.dp * c.cp
    group = np.where(c.shard_group > 0, c.shard_group, np.maximum(s.topology.system_count // c.tp, 1))
    fails = (group <= 1) | (group >= ranks) | (ranks % np.maximum(group, 1) != 0)
    return (c.sharding == HYBRID) & (c.shard_group == 0) & fails


def state_groups(s: Setting, c: Columns) -> Mask:
    """A shard group of states in a stack that shards over all ranks."""
    return (c.shard_group > 0) & (c.sharding != HYBRID) & (c.sharding > 0) & (not s.stack.state_groups)


def shard_group(s: Setting, c: Columns) -> Mask:
    """A shard group without sharding, of one rank, or that does not divide dp x cp."""
    ranks = c.dp * c.cp
    group = np.maximum(c.shard_group, 1)
    whole = (c.sharding == HYBRID) & (group == ranks)
    return (c.shard_group > 0) & ((c.sharding == 0) | (group == 1) | (group > ranks) | (ranks % group != 0) | whole)


def step_in_backward(s: Setting, c: Columns) -> Mask:
    """An optimizer step in the backward pass with accumulation, stages or an offloaded optimizer."""
    if not c.base.step_in_backward:
        return np.zeros(1, bool)
    return (c.accumulation > 1) | (c.pp > 1) | (c.offload_optimizer > 0)


def stack_step_in_backward(s: Setting, c: Columns) -> Mask:
    """An optimizer step in the backward pass in a stack without it."""
    return np.full(1, c.base.step_in_backward and not s.stack.step_in_backward)


def stack_offload(s: Setting, c: Columns) -> Mask:
    """An offloaded optimizer in a stack without it."""
    return (c.offload_optimizer > 0) & (not s.stack.offload_optimizer)


def stack_offload_unsharded(s: Setting, c: Columns) -> Mask:
    """An offloaded optimizer with unsharded states, when the stack requires sharded ones."""
    return (c.offload_optimizer > 0) & (c.sharding == 0) & (c.dp * c.cp > 1) & (not s.stack.offload_unsharded)


def stack_offload_alone(s: Setting, c: Columns) -> Mask:
    """An offload by FSDP, which wraps no model of one data-parallel rank."""
    return (c.offload_optimizer > 0) & (c.dp * c.cp == 1) & find_stack(c.base.stack).offloads_parameters


def stack_offload_parameters(s: Setting, c: Columns) -> Mask:
    """Offloaded parameters in a stack without them, or of 4-bit weights, which ZeRO-3 does not move."""
    return np.full(1, c.base.offload_parameters and (c.base.quantized_base or not s.stack.offload_parameters))


def offload_parameters(s: Setting, c: Columns) -> Mask:
    """Offloaded parameters of what is not fully sharded."""
    whole = (c.sharding != SHARDINGS.index("zero3")) & (c.dp * c.cp > 1)
    return c.base.offload_parameters & whole


def offload_quantized(s: Setting, c: Columns) -> Mask:
    """An offload of an optimizer that updates on the GPU alone."""
    return (c.offload_optimizer > 0) & (c.base.optimizer in BITSANDBYTES)


def stack_recompute(s: Setting, c: Columns) -> Mask:
    """A kind of recomputation the stack lacks."""
    return ~_among(RECOMPUTES, s.stack.recomputes)[c.recompute]


def stack_recompute_every(s: Setting, c: Columns) -> Mask:
    """Recomputation of every n-th layer in a stack without it."""
    return (c.recompute_every > 1) & (not s.stack.recompute_every)


def host_link_optimizer(s: Setting, c: Columns) -> Mask:
    """An offloaded optimizer where the host link's rate was not published."""
    return (c.offload_optimizer > 0) & (not s.topology.has_host_link)


def host_link_activations(s: Setting, c: Columns) -> Mask:
    """Offloaded activations where the host link's rate was not published."""
    return (c.offload_activations > 0) & (not s.topology.has_host_link)


def unified_optimizer(s: Setting, c: Columns) -> Mask:
    """An offloaded optimizer where host and accelerator share their memory."""
    return (c.offload_optimizer > 0) & s.topology.unified_memory


def unified_activations(s: Setting, c: Columns) -> Mask:
    """Offloaded activations where host and accelerator share their memory."""
    return (c.offload_activations > 0) & s.topology.unified_memory


def stack_offload_activations(s: Setting, c: Columns) -> Mask:
    """Offloaded activations in a stack without them."""
    return (c.offload_activations > 0) & (not s.stack.offload_activations)


def offload_pipeline(s: Setting, c: Columns) -> Mask:
    """Offloaded activations with pipeline stages."""
    return (c.offload_activations > 0) & (c.pp > 1)


def offload_recompute(s: Setting, c: Columns) -> Mask:
    """Offloaded activations with recomputation, where the stack does not combine them."""
    return (c.offload_activations > 0) & (c.recompute > 0) & (not s.stack.offload_with_recompute)


def every(s: Setting, c: Columns) -> Mask:
    """Recomputation of every n-th layer with n out of a stage's layers, or not of whole layers."""
    per_stage = np.maximum(s.arch.n_layers // np.maximum(c.pp, 1), 1)
    return (c.recompute_every < 1) | (c.recompute_every > per_stage) | ((c.recompute_every > 1) & (c.recompute != FULL))
