from __future__ import annotations

from dataclasses import replace

import pytest

from gpuwise.errors import InputError
from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.models.catalogue import find_model
from gpuwise.predict.stack_costs import find_stack_costs
from gpuwise.predict.step.training import TIME_PARTS, estimate, estimates
from gpuwise.workload.strategy import Strategy
from gpuwise.workload.transformer.parameters import count_parameters
from gpuwise.workload.transformer.tables import model_flop_per_token

ARCH, NODE = find_model("llama-3.1-8b"), find_cluster("8xA100-SXM-80GB")
FSDP = Strategy(dp=8, micro_batch=1, accumulation=4, sharding="zero3")


def test_names_and_values_give_the_same() -> None:
    by_name = estimate("llama-3.1-8b", "8xA100-SXM-80GB", FSDP, seq_len=4096)
    by_value = estimate(ARCH, NODE, FSDP, seq_len=4096)
    assert by_name == by_value


def test_parts_sum_to_the_whole() -> None:
    for s in (
        FSDP,
        FSDP.with_(recompute="full"),
        Strategy(dp=2, tp=2, pp=2, micro_batch=1, accumulation=16, sharding="zero1"),
    ):
        e = estimate(ARCH, NODE, s, seq_len=4096)
        assert tuple(e.breakdown_s) == TIME_PARTS
        assert sum(e.breakdown_s.values()) == pytest.approx(e.step_time_s.expected)
        assert sum(e.memory_parts.values()) == pytest.approx(e.memory_bytes.expected)
        assert all(v >= -1e-9 for v in e.breakdown_s.values())


def test_utilisation_is_model_flop_over_peak_and_time() -> None:
    e = estimate(ARCH, NODE, FSDP, seq_len=4096)
    tokens = FSDP.global_batch * 4096
    assert e.tokens_per_step == tokens
    expected = model_flop_per_token(ARCH, 4096) * tokens / (8 * 312e12) / e.step_time_s.expected
    assert e.mfu.expected == pytest.approx(expected)
    assert e.mfu.low == pytest.approx(expected * e.step_time_s.expected / e.step_time_s.high)
    assert e.tokens_per_s_per_gpu.expected == pytest.approx(tokens / 8 / e.step_time_s.expected)


def test_recompute_adds_hardware_flop_but_no_model_flop() -> None:
    none, full, half = (
        estimate(ARCH, NODE, FSDP.with_(recompute=r, recompute_every=n), seq_len=4096)
        for r, n in (("none", 1), ("full", 1), ("full", 2))
    )
    assert none.hfu == none.mfu
    # a forward again is a third of forward and backward, less the head which is not repeated
    assert 1.25 < full.hfu.expected / full.mfu.expected < 4 / 3
    assert 1 < half.hfu.expected / half.mfu.expected < full.hfu.expected / full.mfu.expected
    assert full.memory_bytes.expected < half.memory_bytes.expected < none.memory_bytes.expected


def test_adapters_need_no_weight_gradients() -> None:
    """Forward and input gradients are 4 FLOP a parameter and token of the 6."""
    whole, adapters = model_flop_per_token(ARCH, 128), model_flop_per_token(ARCH, 128, lora_rank=16)
    assert 0.66 < adapters / whole < 0.72
    assert whole == pytest.approx(6 * count_parameters(ARCH).embedding_free, rel=0.02)


def test_packing_removes_attention_across_documents() -> None:
    assert model_flop_per_token(ARCH, 8192, packed_document_len=512) < model_flop_per_token(ARCH, 8192)


def test_many_at_once_are_the_same_as_one_by_one() -> None:
    strategies = [FSDP, FSDP.with_(recompute="full"), Strategy(dp=4, tp=2, accumulation=8, sharding="zero1")]
    together = estimates(ARCH, NODE, strategies, 2048)
    for s, e in zip(strategies, together, strict=True):
        alone = estimate(ARCH, NODE, s, seq_len=2048)
        assert e.step_time_s.expected == pytest.approx(alone.step_time_s.expected)
        assert e.memory_bytes.expected == pytest.approx(alone.memory_bytes.expected)


def test_the_interval_widens_where_kernels_were_not_measured() -> None:
    known = estimate(ARCH, NODE, FSDP, seq_len=2048)
    sigma = find_stack_costs("megatron-core").log_sigma
    ratio = known.step_time_s.high / known.step_time_s.low
    assert ratio >= 0.999 * 2.718281828 ** (2 * 1.2815515655446004 * sigma)


def test_a_bottleneck_is_the_largest_part() -> None:
    e = estimate(ARCH, NODE, FSDP, seq_len=2048)
    name, share = e.bottleneck()
    assert e.breakdown_s[name] == max(e.breakdown_s.values())
    assert share == pytest.approx(e.breakdown_s[name] / e.step_time_s.expected)
    assert e.seconds_for(2 * e.tokens_per_step).expected == pytest.approx(2 * e.step_time_s.expected)


def test_a_strategy_for_another_size_is_refused() -> None:
    with pytest.raises(InputError, match="accelerators"):
        estimate(ARCH, NODE, replace(FSDP, dp=4), seq_len=2048)


def test_no_end_of_an_interval_is_past_the_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = estimate(ARCH, NODE, FSDP, seq_len=4096)
    monkeypatch.setattr("gpuwise.predict.step.training.spread", lambda *_: (1.5, "derived"))  # nothing is known of the time
    wide = estimate(ARCH, NODE, FSDP, seq_len=4096)
    assert wide.hfu.high == pytest.approx(1.0) and wide.mfu.high <= 1.0
    assert wide.step_time_s.low < usual.step_time_s.low and wide.step_time_s.expected == usual.step_time_s.expected
    assert wide.mfu.low < usual.mfu.low
