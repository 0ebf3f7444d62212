"""Reinforcement learning: a step's phases, its memory, what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpuwise.errors import InputError, LayoutError
from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.models.catalogue import find_model
from gpuwise.plan.goal import Wishes
from gpuwise.plan.rl.answer import RlWishes, make_rl, recipe_of
from gpuwise.plan.rl.step import SLOWDOWN, Recipe, Rollouts, at_length, rl_step
from gpuwise.workload.strategy import Strategy
from gpuwise.workload.tasks import find_task

MODEL, NODE = find_model("qwen2.5-7b"), find_cluster("8xH100-SXM")
FSDP = Wishes(stack="hf-fsdp")
ROLLOUTS = Rollouts(32, 8, 512, 1000.0, 4096)
GRPO = Recipe(find_task("grpo"), ROLLOUTS, 2, engine_ranks=1)


@pytest.mark.parametrize("mean", [500.0, 2000.0, 3900.0])
def test_lengths_have_the_mean_that_is_asked_for_and_are_cut_at_the_longest(mean: float) -> None:
    requests = Rollouts(64, 16, 100, mean, 4096).requests(4)
    assert len(requests) == 256 and (requests.prompt_tokens == 100).all()
    assert requests.output_tokens.mean() == pytest.approx(mean, rel=0.02)
    assert requests.output_tokens.max() <= 4096
    assert requests.text is not None and len(set(requests.text.tolist())) == 16


def test_a_step_is_the_sum_of_its_phases() -> None:
    step = rl_step(MODEL, NODE, GRPO, FSDP)
    assert set(step.parts_s) == {"rollouts", "old policy pass", "reference pass", "update", "weights to the engine"}
    assert step.step_time_s.expected == pytest.approx(sum(step.parts_s.values()))
    assert step.generation is not None and step.generation.engines == 8
    passes = step.parts_s["reference pass"]
    assert 2.0 < step.parts_s["update"] / passes < 6.0  # forward, backward, recompute
    assert max(step.memory_bytes.values()) <= NODE.accelerator.memory_bytes


def test_more_work_takes_longer() -> None:
    base = rl_step(MODEL, NODE, GRPO, FSDP).step_time_s.expected
    longer = replace(ROLLOUTS, mean_tokens=2000.0)
    assert rl_step(MODEL, NODE, replace(GRPO, rollouts=longer), FSDP).step_time_s.expected > 1.2 * base
    wider = replace(ROLLOUTS, group=16)
    assert rl_step(MODEL, NODE, replace(GRPO, rollouts=wider), FSDP).step_time_s.expected > 1.2 * base
    assert rl_step(MODEL, NODE, replace(GRPO, reference=False), FSDP).step_time_s.expected < base


def test_an_engine_on_its_own_gpus_runs_beside_the_training() -> None:
    step = rl_step(MODEL, NODE, replace(GRPO, engine_gpus=4), FSDP)
    rest = sum(s for name, s in step.parts_s.items() if name != "rollouts")
    assert step.step_time_s.expected == pytest.approx(max(step.parts_s["rollouts"], rest))
    assert step.training.strategy.n_accelerators == 4 and SLOWDOWN[True] < SLOWDOWN[False]


def test_a_critic_takes_memory_and_time() -> None:
    ppo = Recipe(find_task("ppo"), replace(ROLLOUTS, group=1, prompts=256), 2, engine_ranks=1)
    step = rl_step(MODEL, NODE, ppo, FSDP)
    plain = rl_step(MODEL, NODE, replace(ppo, task=replace(ppo.task, critic=False)), FSDP)
    assert step.memory_bytes["update"] > plain.memory_bytes["update"] or step.training.strategy != plain.training.strategy
    assert step.memory_bytes["update"] <= NODE.accelerator.memory_bytes
    assert step.step_time_s.expected > plain.step_time_s.expected


def test_sequences_are_packed_to_the_same_tokens() -> None:
    packed = at_length(Strategy(micro_batch=2, accumulation=8, dp=4), 64, 8192, 2048)
    assert (packed.micro_batch, packed.accumulation, packed.dp) == (8, 2, 4)


@pytest.mark.parametrize(
    ("asked", "wishes", "message"),
    [
        ({"group": 1}, Wishes(), "a group of one"),
        ({"response_tokens": 200_000}, Wishes(), "longer than the context"),
        ({"mean_response": 9000.0}, Wishes(), "longer than the longest"),
        ({"updates": 3}, Wishes(), "do not divide"),
        ({"engine_gpus": 8}, Wishes(), "leaves nothing to train on"),
        ({"task": "ppo"}, Wishes(stack="unsloth"), "unsloth has no PPO"),
        ({"task": "dpo", "group": 4}, Wishes(), "compares pairs"),
        ({"task": "lora"}, Wishes(), "learns from no responses"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_a_hint(asked: dict[str, Any], wishes: Wishes, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        recipe_of(MODEL, NODE, RlWishes(**{"task": "grpo", **asked}), wishes)
    assert caught.value.hint


def test_what_does_not_fit_is_refused_with_its_size() -> None:
    with pytest.raises(LayoutError, match="the update needs"):
        make_rl("qwen3-4b", "A100-80GB-SXM", RlWishes("grpo"))


@pytest.mark.parametrize("task", ["grpo", "ppo", "rloo", "dpo"])
def test_the_document_has_settings_of_the_programs_that_have_the_algorithm(task: str) -> None:
    document = make_rl(MODEL, NODE, RlWishes(task, prompts=64, response_tokens=1024))
    assert set(document["settings"]) == {"ppo": {"verl 0.8"}, "dpo": {"trl 1.16"}}.get(task, {"trl 1.16", "verl 0.8"})
    assert document["time_s"]["expected"] >= document["goal"]["steps"] * document["step_time_s"]["expected"]
    assert document["memory_bytes"] <= document["device_bytes"]
