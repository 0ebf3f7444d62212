"""Published training runs of models with experts, asked as ``gpuwise plan`` asks.

DeepSeek-V3: arXiv 2412.19437, tables 1 and section 3.2: 14.8T tokens in 2,664,000 H800 hours on 2,048 GPUs, 16-way pipeline,
64-way expert parallel over 8 nodes, ZeRO-1, no tensor parallel, FP8, DualPipe, 4,096 tokens, 15,360 sequences.
DeepSeek-V2: arXiv 2405.04434, section 3.2.3: 172,800 H800 hours a trillion tokens.
Llama 4: github.com/meta-llama/llama-models models/llama4/MODEL_CARD.md: Scout 5.0M hours for 40T tokens, Maverick 2.38M for 22T.
"""

import datetime

import pytest

from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.models.catalogue import find_model
from gpuwise.plan.goal import Wishes
from gpuwise.plan.planner import Pricing, plan_on

HOUR_S = 3600.0
PRICING = Pricing(datetime.date(2026, 11, 21))
LAYOUT = {"pp": 16, "ep": 64, "dp": 128, "sharding": "zero1"}


def gpu_hours(model: str, on: str, tokens: float, promised: bool = False, **wishes: object) -> float:
    """Of the best plan for these wishes, at the tuned level or at that of teams."""
    cluster = find_cluster(on)
    best = plan_on(find_model(model), cluster, Wishes(tokens=tokens, **wishes), PRICING).best  # type: ignore[arg-type]
    assert best is not None
    level = best.estimate if promised else best.level
    return level.seconds_for(tokens).expected / HOUR_S * cluster.n_accelerators


def test_deepseek_v3_with_its_layout() -> None:
    given = {"precision": ("fp8",), "seq_len": 4096, "global_batch": 15360, "fixed": LAYOUT}
    assert gpu_hours("deepseek-v3", "256x8xH800-SXM", 14.8e12, **given) == pytest.approx(2.664e6, rel=0.15)


@pytest.mark.thorough
def test_the_own_best_plan_for_deepseek_v3_is_no_slower_than_its_layout() -> None:
    given = {"precision": ("fp8",), "seq_len": 4096, "global_batch": 15360}
    best = gpu_hours("deepseek-v3", "256x8xH800-SXM", 14.8e12, **given)
    assert 0.75 * 2.664e6 < best <= gpu_hours("deepseek-v3", "256x8xH800-SXM", 14.8e12, **given, fixed=LAYOUT)


@pytest.mark.parametrize(
    ("model", "on", "tokens", "hours", "wishes"),
    [
        ("llama-4-scout", "512xgrand-teton", 40e12, 5.0e6, {"seq_len": 8192, "global_batch": 2048}),
        (
            "llama-4-maverick",
            "512xgrand-teton",
            22e12,
            2.38e6,
            {"seq_len": 8192, "global_batch": 2048, "precision": ("fp8",)},
        ),
        (
            "deepseek-v2",
            "128x8xH800-SXM",
            1e12,
            172_800.0,
            {"seq_len": 4096, "global_batch": 9216, "expert_dispatch": "all-to-all", "overlap_ep": True, "cuda_graphs": "none"},
        ),
    ],
)
def test_runs_of_their_time_are_within_a_quarter(
    model: str, on: str, tokens: float, hours: float, wishes: dict[str, object]
) -> None:
    """At the level of teams; DeepSeek-V2's, of 2024, dispatched by all-to-all behind its shared experts (section 3.1.3), without
    graphs. The hours hold the failures of a whole run, which a level does not."""
    assert 0.75 * hours < gpu_hours(model, on, tokens, promised=True, **wishes) < 1.25 * hours
