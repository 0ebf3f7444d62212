"""Shard groups of experts: of a group's ranks every ep-th holds the same ones."""

from __future__ import annotations

import pytest

from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.models.catalogue import find_model
from gpuwise.predict.columns import Columns
from gpuwise.predict.parallel.data_parallel import expert_shard_group, shard_group
from gpuwise.predict.step.training import estimates
from gpuwise.workload.strategy import Strategy

CLUSTER = find_cluster("64xh100-sxm-80gb")
MODEL = find_model("mixtral-8x7b")
PLAIN = Strategy(dp=64, ep=8, accumulation=8, recompute="full", stack="megatron-core", sharding="hybrid")


@pytest.mark.parametrize(("group", "experts", "replicas"), [(8, 1, 8), (16, 2, 4), (32, 4, 2)])
def test_a_group_holds_each_expert_once_for_every_ep_ranks(group: int, experts: int, replicas: int) -> None:
    c = Columns.from_strategies([PLAIN.with_(shard_group=group)])
    inner, copies = expert_shard_group(CLUSTER.system, c)
    assert (int(inner.size[0]), int(copies.size[0])) == (experts, replicas)
    assert int(shard_group(CLUSTER.system, c)[0].size[0]) == group


def test_without_a_group_experts_are_sharded_over_all_that_hold_them() -> None:
    inner, copies = expert_shard_group(CLUSTER.system, Columns.from_strategies([PLAIN.with_(sharding="zero1")]))
    assert (int(inner.size[0]), int(copies.size[0])) == (8, 1)


def test_experts_over_tensor_ranks_take_their_share_and_gather_tokens() -> None:
    """Megatron-Core parallel_state.py: expert_tensor_parallel_size is tensor_model_parallel_size where nothing else is said. As
    in FlagPerf's Mixtral (TP 8, PP 2, EP 1 on 32 H100: 2,844 tokens/s a GPU)."""
    cluster = find_cluster("4x8xH100-SXM")
    layout = Strategy(tp=8, pp=2, dp=2, micro_batch=3, accumulation=200, sharding="zero1", recompute="selective")
    whole, divided, spread = (estimates(MODEL, cluster, [s], 4096)[0] for s in (layout, layout.with_(etp=8), layout.with_(ep=8)))
    assert not whole.fits and divided.fits
    # a rank has as many parameters of experts with 8 tensor ranks as with 8 experts' ranks
    assert divided.memory_parts["optimizer"] == spread.memory_parts["optimizer"]
    assert divided.breakdown_s["communication"] > spread.breakdown_s["communication"]
    assert 0.7 < divided.tokens_per_s.expected / 32 / 2844 < 1.6


def test_a_larger_group_takes_less_memory_and_the_whole_is_zero3() -> None:
    found = estimates(MODEL, CLUSTER, [PLAIN.with_(shard_group=g) for g in (8, 16, 32)] + [PLAIN.with_(sharding="zero3")], 4096)
    held = [e.needed_bytes.expected for e in found]
    assert held == sorted(held, reverse=True) and held[0] > 1.5 * held[1]
