"""Training of a job on one cluster: the ways it is tried, and the same figures as ``compare``."""

from __future__ import annotations

import pytest

from gpuwise.errors import UnpredictableError
from gpuwise.facts.hardware.accelerators import accelerators
from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.models.catalogue import find_model
from gpuwise.pick.compare.rows import Subject
from gpuwise.pick.compare.work import WAYS, ComparedWork, train
from gpuwise.pick.jobs import phased_job, training_job
from gpuwise.pick.outcomes import CHANGED, SAME
from gpuwise.pick.training import LIGHTER, TrainingChoice, fallbacks, fastest_with, possible_fallbacks, train_on
from gpuwise.plan.goal import Wishes
from gpuwise.plan.rl.answer import RlWishes, plan_rl
from gpuwise.predict.memory.device import usable_bytes

EIGHT = find_model("llama-3.1-8b")


def test_the_job_as_asked_comes_first() -> None:
    for method in ("full", "lora", "qlora"):
        asked, *others = fallbacks(training_job(EIGHT, purpose="finetune", tokens=1e6, method=method))
        assert asked.tier == SAME and asked.name == ""
        assert all(f.tier == CHANGED and f.name for f in others)
    assert len(fallbacks(training_job(EIGHT, purpose="finetune", tokens=1e6, method="lora"))) == 1  # asked for: no other
    assert len(fallbacks(training_job(EIGHT, purpose="finetune", tokens=1e6))) == 2


def test_weights_that_overflow_rule_a_way_out() -> None:
    job = training_job(EIGHT, purpose="finetune", tokens=1e6)
    assert [f.tier for f in possible_fallbacks(job, accelerators()["rtx-3060-12gb"], 1)] == [CHANGED]


@pytest.mark.parametrize(("method", "key"), [("full", "train_full"), ("lora", "train_lora"), ("qlora", "train_qlora")])
def test_pick_and_compare_train_alike(method: str, key: str) -> None:
    """The same method, tokens and sequences on one H200: one figure, to the last digit."""
    cluster, way = find_cluster("h200-sxm"), next(w for w in WAYS if w.key == key)
    purpose = "train" if method == "full" else "finetune"
    picked = train_on(training_job(EIGHT, purpose=purpose, tokens=1e9, seq_len=4096, method=method), cluster)
    compared = train(Subject("h200-sxm", cluster), ComparedWork(EIGHT, (purpose,), 1e9, 4096, None, 4096), way)
    assert isinstance(picked, TrainingChoice) and compared.estimate is not None
    assert picked.estimate.tokens_per_s == compared.estimate.tokens_per_s
    assert picked.estimate.memory_bytes == compared.estimate.memory_bytes


def test_each_lighter_way_takes_less() -> None:
    """Where all of them fit without the host."""
    cluster, wishes = find_cluster("2xh200-sxm"), Wishes(tokens=1e9, seq_len=2048)
    full, light, bare = (fastest_with(changes, EIGHT, cluster, wishes) for changes in ((), *LIGHTER))
    assert full.estimate is not None and light.estimate is not None and bare.estimate is not None
    assert full.smallest_bytes > light.smallest_bytes > bare.smallest_bytes


def test_what_fits_nowhere_says_what_it_takes() -> None:
    cluster = find_cluster("rtx-3060-12gb")
    found = fastest_with((), EIGHT, cluster, Wishes(tokens=1e9, seq_len=2048))
    assert found.estimate is None and found.smallest_bytes > usable_bytes(cluster.accelerator)


def test_a_device_without_rates_is_unpredictable() -> None:
    with pytest.raises(UnpredictableError):
        fastest_with((), EIGHT, find_cluster("cloud-ai-100-ultra"), Wishes(tokens=1e9, seq_len=2048, precision=("bf16",)))


@pytest.mark.parametrize(("task", "teacher"), [("grpo", None), ("distill", "qwen2.5-14b"), ("embed", None)])
def test_pick_and_plan_take_as_long_for_a_step_with_phases(task: str, teacher: str | None) -> None:
    model, cluster = find_model("qwen2.5-1.5b"), find_cluster("8xH100-SXM")
    job = phased_job(model, task=task, teacher=teacher)
    trained = train_on(job, cluster)
    planned = plan_rl(model, cluster, RlWishes(task, teacher=teacher))
    assert isinstance(trained, TrainingChoice)
    assert job.tokens == pytest.approx(planned.tokens)
    assert trained.estimate.seconds_for(job.tokens).expected == pytest.approx(planned.run.time_s.expected)


def test_a_named_task_is_not_judged_by_its_tokens() -> None:
    for task in (None, "pretrain"):
        (plain, *_) = fallbacks(training_job(EIGHT, tokens=50e6, task=task))
        assert plain.wishes.task == task
    assert training_job(EIGHT, tokens=50e6).seq_len == 4096 and training_job(EIGHT, tokens=50e6, task="pretrain").seq_len == 8192
