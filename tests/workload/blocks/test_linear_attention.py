"""Rows, memory and cache of linear attention beside full attention."""

from dataclasses import replace

import numpy as np
import pytest

from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.models.catalogue import find_model
from gpuwise.predict.memory.kv_cache import PAGED, kv_cache_bytes, state_bytes
from gpuwise.predict.step.training import estimate
from gpuwise.serve.engines.engine import EngineConfig
from gpuwise.serve.iteration import iteration_time
from gpuwise.workload.blocks.kinds import LINEAR
from gpuwise.workload.blocks.point import Point
from gpuwise.workload.row_codes import Kind, Phase
from gpuwise.workload.stacks.stack import find_stack
from gpuwise.workload.step import OpTable
from gpuwise.workload.strategy import Strategy
from gpuwise.workload.transformer.tables import transformer_tables

ARCH = find_model("qwen3-next-80b-a3b")
STATE = 32 * 128 * 128 * 4 + 3 * (2 * 16 * 128 + 32 * 128) * 2


def table(seq_len: int = 4096, micro_batch: int = 1, tp: int = 1) -> OpTable:
    stack = find_stack("megatron-core")
    point = Point(micro_batch=micro_batch, seq_len=seq_len, tp=tp, sequence_parallel=tp > 1, precision="bf16", stack=stack)
    return transformer_tables(ARCH, point).layers["LE"]


def of_linear(rows: OpTable) -> OpTable:
    return rows.select(np.array([name.startswith("linear.") for name in rows.name]))


def of_scan(rows: OpTable) -> OpTable:
    return rows.select(np.array([name == "linear.scan" for name in rows.name]))


def test_only_a_quarter_of_the_layers_keep_a_cache_of_every_token() -> None:
    short, long = (float(kv_cache_bytes(ARCH, n, PAGED.unpadded)) for n in (1024, 8192))
    assert long - short == 7168 * 12 * 2 * 2 * 256 * 2.0
    assert short - 1024 * 12 * 2 * 2 * 256 * 2.0 == state_bytes(ARCH) == 36 * STATE
    assert LINEAR.cache_elements(ARCH, 1) == 0 and LINEAR.state_bytes(ARCH, 4) == STATE / 4


def test_the_forward_pass_multiplies_by_each_weight_once() -> None:
    rows = of_linear(table())
    products = rows.select(rows.kind == Kind.MATMUL)
    weights = sum(k * n for _, k, n in LINEAR.products(ARCH))
    assert products.total_flop(Phase.FORWARD) == 2.0 * 4096 * weights
    # what is no product: the convolution, decay and step of each head, the norm
    assert LINEAR.parameters(ARCH)["mixer"] - weights == 8192 * 4 + 2 * 32 + 128


def test_the_delta_rule_is_that_of_chunks() -> None:
    rows = of_scan(table())
    c, k, v = 64, 128, 128
    # products of a chunk in full: K K', Q K', A (b K), A (b V), P V, of which half is seen; W S, Q S, K' V in full; and the solve
    chunk = (3 * 2 * c * c * k + 2 * 2 * c * c * v) / 2 + 3 * 2 * c * k * v + c**3 / 3
    assert float(rows.flop.sum()) == pytest.approx(32 * (4096 // c) * chunk, rel=1e-12)
    longer = of_scan(table(65536))
    assert float(longer.flop.sum()) == 16 * float(rows.flop.sum())
    assert float(longer.bytes_read.sum()) == 16 * float(rows.bytes_read.sum())


def test_one_token_reads_and_writes_the_state() -> None:
    state = 32 * 128 * 128 * 4
    rows = of_scan(table(seq_len=1, micro_batch=8))
    for moved in (rows.bytes_read, rows.bytes_written):
        assert 8 * state < float(moved.sum()) < 1.05 * 8 * state
    assert rows.n_kernels.tolist() == [1.0]


def test_tensor_parallelism_divides_the_heads() -> None:
    one, four = (table(tp=tp) for tp in (1, 4))
    shares = [float(of_linear(rows).flop.sum()) for rows in (one, four)]
    assert shares[1] == pytest.approx(shares[0] / 4, rel=1e-12)
    assert LINEAR.trained_parts(ARCH) == LINEAR.served_parts(ARCH) == (16,)


def test_a_longer_context_never_costs_less_and_a_quarter_of_what_full_attention_costs() -> None:
    system, config = find_cluster("8xH100-SXM").system, EngineConfig(engine="vllm", weights="bf16", tp=4)
    rise: list[float] = []
    for arch in (ARCH, replace(ARCH, pattern=" ".join(["*E"] * 48), linear_attention=None)):
        times = [iteration_time(arch, system, config, 16, 1, n).expected for n in (1024, 8192, 65536)]
        assert times == sorted(times)
        rise.append(times[-1] - times[0])
    assert 0 < rise[0] < 0.3 * rise[1]


@pytest.mark.parametrize("changes", [{"recompute": "full"}, {"lora_rank": 16}, {"tp": 2, "dp": 32}])
def test_every_change_saves_memory_in_training(changes: dict[str, object]) -> None:
    strategy = Strategy(dp=64, ep=64, micro_batch=1, accumulation=4, sharding="zero1")
    changed = strategy.with_(**changes)
    one, other = (estimate(ARCH, "64xH200-SXM", s, seq_len=4096).memory_bytes.expected for s in (strategy, changed))
    assert other < one


def test_longer_sequences_take_longer_in_training() -> None:
    strategy = Strategy(dp=64, ep=64, micro_batch=1, accumulation=4, sharding="zero1", recompute="full")
    seconds = [estimate(ARCH, "64xH200-SXM", strategy, seq_len=n).step_time_s.expected for n in (2048, 4096, 8192)]
    assert seconds == sorted(seconds)
