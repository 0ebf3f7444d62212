"""Traffic of a step that occurs once, against each collective by itself."""

from __future__ import annotations

import numpy as np
import pytest

from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.hardware.systems import Cluster
from gpuwise.facts.models.catalogue import find_model
from gpuwise.predict.columns import Columns
from gpuwise.predict.comm.collectives import curve
from gpuwise.predict.parallel.data_parallel import StepTraffic, step_traffic
from gpuwise.predict.parallel.shards import stages
from gpuwise.workload.optimizer import parameter_bytes
from gpuwise.workload.strategy import Strategy
from gpuwise.workload.transformer.parameters import count_parameters

ARCH = find_model("llama-3.1-8b")
NODE, PAIR = find_cluster("8xH100-SXM"), find_cluster("16xH100-SXM")


def traffic(cluster: Cluster = PAIR, **layout: object) -> StepTraffic:
    c = Columns.from_strategies([Strategy(stack="megatron-core", **layout)])  # pyright: ignore[reportArgumentType]
    return step_traffic(cluster.system, c, stages(ARCH, c, float(ARCH.n_layers)))


def seconds(op: str, n: int, near: int, payload_bytes: float) -> float:
    return float(curve(PAIR.system, op, n, near).time_s([payload_bytes])[0])


def test_each_sharding_moves_every_gradient_and_every_weight_once() -> None:
    """By collectives of the whole: buckets add their latencies, and nothing else."""
    b, n = parameter_bytes(Strategy(stack="megatron-core")), float(count_parameters(ARCH).total)
    plain, sharded = (traffic(cluster=NODE, dp=8, sharding=kind) for kind in ("none", "zero1"))
    whole = (
        (plain.reduce_s, seconds("all_reduce", 8, 8, n * b.gradient)),
        (sharded.scatter_s, seconds("reduce_scatter", 8, 8, n * b.gradient)),
        (sharded.gather_s, seconds("all_gather", 8, 8, n * b.weight)),
    )
    for summed, alone in whole:
        assert alone * 0.99 <= float(np.max(summed)) <= 1.25 * alone
    assert float(np.max(plain.scatter_s)) == float(np.max(plain.gather_s)) == float(np.max(sharded.reduce_s)) == 0.0


@pytest.mark.parametrize("layout", [{"sharding": "hybrid"}, {"sharding": "zero1", "shard_group": 8}])
def test_replicas_of_a_shard_sum_their_part_of_the_gradients(layout: dict[str, object]) -> None:
    """Over two nodes of eight, one rank of each sums an eighth; fully sharded layers were scattered with their passes."""
    b, n = parameter_bytes(Strategy(stack="megatron-core")), float(count_parameters(ARCH).total)
    across = seconds("all_reduce", 2, 1, n / 8 * b.gradient)
    inside = seconds("reduce_scatter", 8, 8, n * b.gradient) if layout["sharding"] == "zero1" else 0.0
    assert 0.99 * (inside + across) <= float(np.max(traffic(dp=16, **layout).scatter_s)) <= 1.1 * (inside + across)


def test_layers_as_messages_move_as_much_as_the_whole() -> None:
    """A stack whose messages are layers adds a latency for each, and no bytes."""
    n = float(count_parameters(ARCH).total)
    c = Columns.from_strategies([Strategy(stack="eager-fsdp", dp=8, sharding="zero2")])
    b = parameter_bytes(c.base)
    made = step_traffic(NODE.system, c, stages(ARCH, c, float(ARCH.n_layers)))
    for summed, op, width in ((made.scatter_s, "reduce_scatter", b.gradient), (made.gather_s, "all_gather", b.weight)):
        alone = seconds(op, 8, 8, n * width)
        assert 0.99 * alone <= float(np.max(summed)) <= 1.5 * alone
