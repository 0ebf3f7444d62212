"""Tasks by name, and the guess where none is named."""

from __future__ import annotations

import pytest

from gpuwise.cli.options import LayoutOptions, Training, wishes_of
from gpuwise.errors import InputError, UnknownNameError
from gpuwise.export.job import Job
from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.models.catalogue import find_model
from gpuwise.pick.jobs import training_job
from gpuwise.plan.api import make_fit, make_plan
from gpuwise.plan.goal import Wishes, make_goal, task_of
from gpuwise.plan.unused import step_note
from gpuwise.workload.strategy import Strategy
from gpuwise.workload.tasks import find_task, tasks
from gpuwise.workload.transformer.tables import model_flop_per_token

MISTRAL = find_model("mistral-7b")


@pytest.mark.parametrize(
    ("wishes", "name"),
    [
        (Wishes(), "pretrain"),
        (Wishes(tokens=15e9), "pretrain"),
        (Wishes(tokens=50e6), "full"),
        (Wishes(tokens=50e6, task="train"), "pretrain"),
        (Wishes(tokens=50e9, lora_rank=16), "lora"),
        (Wishes(quantized_base=True), "qlora"),
        (Wishes(lora_rank=8, task="finetune"), "lora"),
    ],
)
def test_a_task_is_taken_from_the_words_or_judged_by_adapters_and_tokens(wishes: Wishes, name: str) -> None:
    task, guess = task_of(MISTRAL, wishes)
    assert task.name == name
    assert ("taken as" in guess) == (wishes.tokens == 50e6 and wishes.task is None)


def test_words_of_tasks_are_unambiguous() -> None:
    words = [word for task in tasks().values() for word in (task.name, *task.also)]
    assert len(words) == len(set(words))
    with pytest.raises(UnknownNameError, match="pretrian"):
        find_task("pretrian")
    with pytest.raises(InputError, match="LoRA fine-tuning with every weight trained"):
        task_of(MISTRAL, Wishes(task="lora"))


def test_batch_and_sequence_length_are_those_of_the_task() -> None:
    goal = make_goal(MISTRAL, find_cluster("8xH100-SXM"), Wishes(tokens=50e6))
    assert (goal.task.name, goal.seq_len, goal.global_batch) == ("full", 4096, 128)
    assert any("95 updates" in note and "--global-batch 120" in note for note in step_note(goal))
    assert goal.bases[0].stack == "deepspeed"
    assert make_goal(MISTRAL, find_cluster("4090"), Wishes(quantized_base=True)).global_batch == 16
    assert make_goal(MISTRAL, find_cluster("128xH100-SXM"), Wishes(lora_rank=16)).global_batch == 128
    assert make_goal(MISTRAL, find_cluster("8xH100-SXM"), Wishes(task="continue")).global_batch == 1024


@pytest.mark.parametrize(("updates", "every"), [(20, 20), (153, 77), (10_000, 100)])
def test_the_last_checkpoint_is_at_the_end(updates: int, every: int) -> None:
    s = Strategy(stack="trainer")
    job = Job(MISTRAL, find_cluster("4090"), s, 4096, updates * 4096.0, 100.0 if updates > 200 else 80.0, 1.0)
    assert job.save_every == every


def test_a_job_has_the_learning_rate_of_its_task() -> None:
    job = Job(MISTRAL, find_cluster("4090"), Strategy(), 4096, task=tasks()["full"])
    assert job.learning_rate == 2e-5


@pytest.mark.parametrize(
    ("model", "method", "batch"),
    [("bert-base", "full", 32), ("modernbert-large", "full", 32), ("vit-b16", "full", 512), ("mistral-7b", "lora", 16)],
)
def test_fine_tuning_trains_all_of_an_encoder_and_adapters_of_a_decoder(model: str, method: str, batch: int) -> None:
    arch, cluster = find_model(model), find_cluster("A100-SXM4-80GB")
    goal = make_goal(arch, cluster, Wishes(task="finetune"))
    fit, plan = make_fit(model, cluster, Wishes(task="finetune")), make_plan(model, cluster, Wishes(task="finetune"))
    job = training_job(arch, purpose="finetune")
    assert plan.best is not None
    ranks = {g.bases[0].lora_rank for g in (goal, fit.goal, plan.goal)}
    assert ranks == {0 if method == "full" else 16}
    assert {g.global_batch for g in (goal, fit.goal, plan.goal)} == {batch}
    assert (goal.task.name, job.method, job.tokens) == (method, method, plan.goal.wishes.tokens)


def test_adapters_of_an_encoder_are_trained_where_they_are_named() -> None:
    goal = make_goal(find_model("bert-base"), find_cluster("A100-SXM4-80GB"), Wishes(task="finetune", lora_rank=8))
    assert (goal.task.name, goal.bases[0].lora_rank) == ("lora", 8)
    asked = wishes_of(Training(purpose="finetune"), LayoutOptions(lora_rank=8))
    assert (asked.task, asked.lora_rank) == ("lora", 8)


def test_a_fit_of_an_encoder_is_not_timed_a_sequence_at_a_time() -> None:
    """Recipes of encoders accumulate nothing where the batch fits."""
    fit = make_fit("bert-base", "RTX-4090", Wishes(task="finetune"))
    assert (fit.estimate.strategy.micro_batch, fit.estimate.strategy.accumulation) == (32, 1)
    small = make_fit("bert-large", "T4", Wishes(task="finetune"))
    assert 1 < small.estimate.strategy.micro_batch < 32
    assert small.estimate.fits


@pytest.mark.parametrize("model", ["bert-base", "distilbert", "roberta-large", "modernbert-base"])
def test_a_fine_tuned_encoder_has_no_loss_over_the_vocabulary(model: str) -> None:
    """Neither in its time nor in what its share of the peak counts: 96 % of an RTX 3060 was reported."""
    arch, cluster = find_model(model), find_cluster("RTX-3060-12GB")
    for task, has_head in (("full", False), ("lora", False), ("continue", True), ("pretrain", True)):
        goal = make_goal(arch, cluster, Wishes(task=task))
        head = model_flop_per_token(arch, 512) - model_flop_per_token(goal.arch, 512)
        assert (head == 0) == has_head, task
    fit = make_fit(model, cluster, Wishes(task="finetune"))
    kernels = fit.estimate.breakdown_s["matmul"] / fit.estimate.step_time_s.expected
    assert fit.estimate.mfu.expected < 0.95 * kernels + fit.estimate.breakdown_s["attention"] / fit.estimate.step_time_s.expected
