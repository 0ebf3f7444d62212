"""Rows, memory and cache of state-space mixers and of hybrids with attention."""

from dataclasses import replace

import numpy as np
import pytest

from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.models.catalogue import find_model
from gpuwise.predict.kernels.registry import kernel_times
from gpuwise.predict.memory.kv_cache import PAGED, kv_cache_bytes, state_bytes
from gpuwise.predict.step.training import estimate
from gpuwise.serve.engines.engine import EngineConfig
from gpuwise.serve.iteration import iteration_time
from gpuwise.workload.blocks.point import Point
from gpuwise.workload.row_codes import Phase
from gpuwise.workload.stacks.stack import find_stack
from gpuwise.workload.strategy import Strategy
from gpuwise.workload.transformer.parameters import count_parameters
from gpuwise.workload.transformer.tables import model_flop_per_token, transformer_tables

HYBRIDS = (
    "nemotron-h-8b",
    "nemotron-3-nano",
    "jamba-v0.1",
    "bamba-9b",
    "granite-4.0-h-small",
    "falcon-h1-7b",
    "mamba2-2.7b",
    "mamba-2.8b",
)


def point(**changes: object) -> Point:
    plain = Point(
        micro_batch=1,
        seq_len=4096,
        precision="bf16",
        stack=find_stack("megatron-core"),
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", HYBRIDS)
def test_model_flop_are_six_per_active_parameter_and_the_scan(name: str) -> None:
    arch = find_model(name)
    count = count_parameters(arch)
    per_token, parameters = model_flop_per_token(arch, 512), 6.0 * count.active_embedding_free
    # Megatron-Core's training.py counts 7 operations a channel and number of state, forward, for Mamba-2's recurrence
    mixer = arch.mamba
    assert mixer is not None
    recurrence = 3.0 * 9.0 * mixer.inner * mixer.state * arch.n_mamba_layers
    assert parameters < per_token < parameters * 1.02 + 1.6 * recurrence + 6.0 * arch.n_attention_layers * 512 * 2 * arch.hidden


def test_a_hybrid_without_mixers_is_a_transformer() -> None:
    dense = find_model("llama-3.2-1b")
    patterned = replace(dense, pattern=" ".join(["*-"] * dense.n_layers))
    assert count_parameters(patterned).total == count_parameters(dense).total
    assert model_flop_per_token(patterned, 2048) == model_flop_per_token(dense, 2048)
    assert float(kv_cache_bytes(patterned, 1000)) == float(kv_cache_bytes(dense, 1000))
    strategy = Strategy(dp=8, micro_batch=2, accumulation=4, sharding="zero1")
    one, other = (estimate(a, "8xH100-SXM", strategy, seq_len=4096) for a in (dense, patterned))
    assert one.step_time_s.expected == pytest.approx(other.step_time_s.expected, rel=1e-9)
    assert one.memory_bytes.expected == pytest.approx(other.memory_bytes.expected, rel=1e-9)


def test_tensor_parallelism_divides_the_mixer() -> None:
    arch = find_model("nemotron-h-8b")
    whole, part = (transformer_tables(arch, point(tp=tp, sequence_parallel=tp > 1)).layers["M"] for tp in (1, 8))
    for phase in (Phase.FORWARD, Phase.BACKWARD):
        assert part.total_flop(phase) == pytest.approx(whole.total_flop(phase) / 8, rel=1e-3)
    kept = [float((t.saved_bytes * t.count).sum()) for t in (whole, part)]
    assert kept[1] == pytest.approx(kept[0] / 8, rel=0.01)


def test_a_mixer_keeps_the_projection_the_scan_and_the_inputs_of_both_products() -> None:
    arch = find_model("mamba2-2.7b")
    table = transformer_tables(arch, point()).layers["M"]
    mixer = arch.mamba
    assert mixer is not None
    numbers = 2 * arch.hidden + mixer.in_width + 2 * mixer.inner  # norm's input and output, gate and scan, scan's result, norm's
    assert float((table.saved_bytes * table.count).sum()) == pytest.approx(4096 * 2.0 * numbers, rel=2e-3)


def test_the_scan_grows_with_the_sequence_as_its_tokens_do() -> None:
    accelerator = find_cluster("1xH100-SXM").system.accelerator
    seconds: list[float] = []
    for seq_len in (8192, 65536):
        table = transformer_tables(find_model("mamba2-2.7b"), point(seq_len=seq_len)).layers["M"]
        scan = np.array([name.startswith("mamba.scan") for name in table.name])
        seconds.append(float(kernel_times(table.select(scan), accelerator).time_s.sum()))
    assert seconds[1] == pytest.approx(8 * seconds[0], rel=0.02)


def test_only_attention_keeps_a_cache_of_every_token() -> None:
    arch = find_model("nemotron-h-8b")
    short, long = (float(kv_cache_bytes(arch, n, PAGED.unpadded)) for n in (1024, 8192))
    assert long - short == 7168 * 4 * 2 * 8 * 128 * 2.0
    # 24 mixers of 8192 channels x 128 numbers in fp32, and 3 inputs of 10,240 channels in 16 bits
    assert short - 1024 * 4 * 2 * 8 * 128 * 2.0 == state_bytes(arch) == 24 * (8192 * 128 * 4 + 10_240 * 3 * 2)
    pure = find_model("mamba2-2.7b")
    assert float(kv_cache_bytes(pure, 10)) == float(kv_cache_bytes(pure, 100_000)) == state_bytes(pure) > 0
    assert float(kv_cache_bytes(pure, 0)) == 0


def test_a_long_context_costs_a_hybrid_little_in_decoding() -> None:
    system, config = find_cluster("1xH100-SXM").system, EngineConfig(engine="vllm", weights="bf16")
    rise: list[float] = []
    for name in ("nemotron-h-8b", "llama-3.1-8b"):
        times = [iteration_time(find_model(name), system, config, 16, 1, n).expected for n in (1024, 65536)]
        rise.append(times[1] / times[0])
    assert 1.0 < rise[0] < 0.5 * rise[1]


@pytest.mark.parametrize("name", HYBRIDS)
@pytest.mark.parametrize("changes", [{"recompute": "full"}, {"lora_rank": 16}, {"sharding": "zero3"}, {"tp": 2, "dp": 4}])
def test_every_change_saves_memory_of_a_hybrid(name: str, changes: dict[str, object]) -> None:
    if name.startswith("mamba2") and "tp" in changes:  # one group cannot be split
        return
    strategy = Strategy(dp=8, micro_batch=1, accumulation=4, sharding="zero1")
    plain, changed = (estimate(name, "8xH200-SXM", s, seq_len=4096) for s in (strategy, strategy.with_(**changes)))
    assert changed.memory_bytes.expected < plain.memory_bytes.expected
    if "recompute" in changes:
        assert 1.1 < changed.step_time_s.expected / plain.step_time_s.expected < 1.45
