"""Trainings whose step has phases: a step's phases, its memory, what is refused."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuwise.errors import InputError, LayoutError
from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.models.catalogue import find_model
from gpuwise.plan.goal import Wishes
from gpuwise.plan.rl.answer import RlWishes, make_rl, plan_rl, recipe_of
from gpuwise.plan.rl.settings import options_of, settings_of
from gpuwise.plan.rl.step import SLOWDOWN, Recipe, Rollouts, at_length, rl_step, sync_s
from gpuwise.workload.strategy import Strategy
from gpuwise.workload.tasks import find_task
from gpuwise.workload.transformer.parameters import count_parameters

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


@pytest.mark.parametrize(
    ("model", "gpus", "published_s"),
    [("qwen3-235b-a22b", "128xH100-SXM", 5.5), ("deepseek-v3", "256xH100-SXM", 14.0), ("qwen3-30b-a3b", "16xGB200", 1.9)],
)
def test_an_engine_loads_a_tensor_at_a_time(model: str, gpus: str, published_s: float) -> None:
    """NVIDIA-NeMo/RL pull requests 1379 and 3461."""
    assert sync_s(find_model(model), find_cluster(gpus)) == pytest.approx(published_s, rel=0.5)


def test_experts_run_as_programs_of_reinforcement_learning_run_them() -> None:
    """Not as recipes of pre-training do, unless that is asked for."""
    arch, cluster = find_model("qwen3-30b-a3b"), find_cluster("32xH100-SXM")
    recipe = Recipe(find_task("grpo"), Rollouts(64, 32, 150, 3000.0, 3946), 4, engine_ranks=2)
    wishes = Wishes(stack="megatron-core", fixed={"tp": 1, "pp": 1, "ep": 8, "micro_batch": 1})
    plain = rl_step(arch, cluster, recipe, wishes)
    assert (plain.packed.expert_dispatch, plain.packed.overlap_ep, plain.packed.cuda_graphs) == ("all-to-all", False, "none")
    tuned = rl_step(arch, cluster, recipe, replace(wishes, expert_dispatch="deepep", overlap_ep=True))
    assert tuned.packed.expert_dispatch == "deepep"
    assert tuned.parts_s["update"] < plain.parts_s["update"]


def test_states_leave_the_gpu_under_megatron_for_an_engine_on_the_same_gpus() -> None:
    wishes = Wishes(stack="megatron-core", fixed={"tp": 2})
    shared = rl_step(MODEL, NODE, GRPO, wishes)
    assert shared.generation is not None and shared.generation.offloaded
    assert shared.parts_s["states to the host and back"] > 1.0
    apart = rl_step(MODEL, NODE, replace(GRPO, engine_gpus=4), wishes)
    assert "states to the host and back" not in apart.parts_s


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
        ({"task": "lora"}, Wishes(), "has no phases"),
        ({"task": "distill"}, Wishes(), "needs a teacher"),
        ({"task": "grpo", "teacher": "qwen2.5-14b"}, Wishes(), "has no teacher"),
        ({"task": "distill", "teacher": "llama-3.1-70b"}, Wishes(), "vocabulary of 128,256"),
        ({"task": "embed", "response_tokens": 200_000}, Wishes(), "texts of 200,000 tokens are longer"),
        ({"task": "distill", "teacher": "stored", "group": 2}, Wishes(), "reads texts, not groups"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_a_hint(asked: dict[str, Any], wishes: Wishes, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        recipe_of(MODEL, NODE, RlWishes(**{"task": "grpo", **asked}), wishes)
    assert caught.value.hint


def test_a_chip_that_no_program_here_trains_on_is_refused() -> None:
    with pytest.raises(InputError, match="no program of GRPO") as caught:
        recipe_of(MODEL, find_cluster("8xtpu-v5e"), RlWishes("grpo"), Wishes())
    assert caught.value.hint


def test_what_does_not_fit_is_refused_with_its_size() -> None:
    with pytest.raises(LayoutError, match="the update needs"):
        make_rl("qwen3-4b", "A100-80GB-SXM", RlWishes("grpo"))


ALL = {
    "dpo": {"trl 1.16", "OpenRLHF 0.11"},
    "grpo": {"trl 1.16", "verl 0.8", "OpenRLHF 0.11", "SkyRL 0.3"},
    "rloo": {"trl 1.16", "verl 0.8", "OpenRLHF 0.11", "SkyRL 0.3"},
    "ppo": {"verl 0.8", "OpenRLHF 0.11", "SkyRL 0.3"},
    "opd": {"trl 1.16"},
    "distill": {"trl 1.16 GKD"},
    "embed": {"sentence-transformers 6.2"},
}
ACCEPTED: dict[str, str] = json.loads(Path(__file__).with_name("rl_options.json").read_text(encoding="utf-8"))


def _asked(task: str, **more: Any) -> RlWishes:
    found = find_task(task)
    return RlWishes(task, prompts=64, response_tokens=512, teacher="qwen2.5-14b" if found.teacher else None, **more)


@pytest.mark.parametrize("task", ALL)
def test_the_document_has_settings_of_the_programs_that_have_the_algorithm(task: str) -> None:
    document = make_rl("qwen2.5-1.5b", NODE, _asked(task))
    assert set(document["settings"]) == ALL[task]
    assert document["time_s"]["expected"] >= document["goal"]["steps"] * document["step_time_s"]["expected"]
    assert document["memory_bytes"] <= document["device_bytes"]
    assert sum(document["memory_parts_bytes"].values()) >= 0.9 * document["memory_phases_bytes"]["update"]


@pytest.mark.parametrize("lora", [0, 16])
@pytest.mark.parametrize(("task", "engine_gpus"), [*((task, 0) for task in ALL), ("grpo", 4), ("ppo", 4), ("opd", 4)])
def test_each_program_has_the_options_that_are_written(task: str, engine_gpus: int, lora: int) -> None:
    planned = plan_rl("qwen2.5-1.5b", NODE, _asked(task, engine_gpus=engine_gpus), Wishes(lora_rank=lora))
    written = options_of(planned.arch, planned.step, planned.steps)
    assert bool(engine_gpus) == ("prime-rl 0.8" in written) or task == "ppo"
    for program, options in written.items():
        lists = (ACCEPTED.get(name, "") for name in ("Trainer", program, f"{program} {task}"))
        assert set(options) <= set(" ".join(lists).split()), program


def test_settings_are_written_as_the_programs_read_them() -> None:
    planned = plan_rl("qwen2.5-1.5b", NODE, _asked("grpo", engine_gpus=4))
    lines = settings_of(planned.arch, planned.step, planned.steps)
    prime = tomllib.loads("\n".join(lines["prime-rl 0.8"][1:]))
    assert prime["deployment"] == {"num_train_gpus": 4, "num_infer_gpus": 4} and prime["orchestrator"]["batch_size"] == 256
    assert "--train.async_enable" in " ".join(lines["OpenRLHF 0.11"]) and "SkyRL 0.3" not in lines


def test_a_teacher_takes_memory_and_time() -> None:
    asked = _asked("distill")
    taught = plan_rl("qwen2.5-1.5b", NODE, asked).step
    stored = plan_rl("qwen2.5-1.5b", NODE, replace(asked, teacher="stored")).step
    assert set(taught.parts_s) - set(stored.parts_s) == {"teacher pass"}
    assert taught.update_bytes["teacher"] == pytest.approx(2.0 * count_parameters(find_model("qwen2.5-14b")).total / 8)
    larger = plan_rl("qwen2.5-1.5b", NODE, replace(asked, teacher="qwen2.5-32b")).step
    assert larger.parts_s["teacher pass"] > 1.7 * taught.parts_s["teacher pass"]
    assert sum(taught.parts_s.values()) == pytest.approx(taught.step_time_s.expected)


def test_a_contrastive_batch_is_read_twice_unless_it_fits_at_once() -> None:
    asked = RlWishes("embed", prompts=2048, response_tokens=512)
    cached = plan_rl("bge-m3", find_cluster("4090"), asked).step
    assert cached.training.strategy.accumulation > 1 and cached.recipe.rollouts.sequences == 3 * 2048
    assert 0.15 < cached.parts_s["GradCache pass"] / cached.parts_s["update"] < 0.5
    small = plan_rl("bge-small", NODE, replace(asked, prompts=64)).step
    assert small.training.strategy.accumulation == 1 and set(small.parts_s) == {"update"}


def test_an_embedding_has_no_head() -> None:
    step = plan_rl("qwen3-embedding-0.6b", NODE, RlWishes("embed", prompts=64)).step
    assert not step.update_bytes.get("logits")
