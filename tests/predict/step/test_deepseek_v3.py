"""DeepSeek-V3's pre-training (arXiv 2412.19437, table 1): 14.8T tokens in 2,664,000 H800 hours."""

import pytest

from gpuwise.predict.step.training import TrainingEstimate, estimate
from gpuwise.workload.strategy import Strategy

PUBLISHED_S = 2_664_000 / 2048 * 3600


def run(schedule: str, **changes: object) -> TrainingEstimate:
    """Section 3.2: 2,048 H800, pipeline 16, experts over 64 ranks, ZeRO-1, fp8, 15,360 sequences of 4,096 tokens a step."""
    layout = Strategy(
        precision="fp8", pp=16, dp=128, ep=64, accumulation=120, sharding="zero1", schedule=schedule, stack="hai-llm"
    )
    return estimate("deepseek-v3", "256x8xH800-SXM", layout.with_(recompute="selective", **changes), seq_len=4096)


def test_dualpipe_takes_the_published_time_and_fits() -> None:
    paper = run("dualpipe")
    assert paper.seconds_for(14.8e12).expected == pytest.approx(PUBLISHED_S, rel=0.15)
    assert paper.fits


def test_its_bubble_is_smaller_and_its_parameters_are_held_twice() -> None:
    paper, plain, zero = (run(s) for s in ("dualpipe", "1f1b", "zero-bubble"))
    assert paper.breakdown_s["pipeline bubble"] < zero.breakdown_s["pipeline bubble"] < plain.breakdown_s["pipeline bubble"]
    for part in ("weights", "gradients"):  # the fullest rank has the first stage; with copies the last as well
        assert 1.5 < paper.memory_parts[part] / plain.memory_parts[part] < 2.1
    # the states are sharded over both copies
    assert paper.memory_parts["optimizer"] < 1.4 * plain.memory_parts["optimizer"]


def test_activations_kept_in_8_bits_take_less_than_megatrons() -> None:
    assert run("1f1b").memory_parts["activations"] < 0.8 * run("1f1b", stack="megatron-core").memory_parts["activations"]
