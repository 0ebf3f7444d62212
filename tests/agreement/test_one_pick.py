"""One training: ``pick`` and ``plan`` give the same layout, time, memory, energy and money to the last digit, at every count."""

from __future__ import annotations

import pytest

from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.models.catalogue import find_model
from gpuwise.money.cost import user_price
from gpuwise.pick.candidates import COUNTS, Acquisition
from gpuwise.pick.jobs import training_job
from gpuwise.pick.owning import Terms
from gpuwise.pick.training import TrainingChoice, train_on
from gpuwise.pick.tries import trained_outcome, whole_time
from gpuwise.plan.api import make_plan
from gpuwise.plan.goal import Wishes

CASES = [
    ("gpt2", "1x4090", 1e9),
    ("gpt2", "3x4090", 1e9),
    ("gpt2", "6xa100-sxm-80gb", 2e11),
    ("gpt2", "1xh100-sxm-80gb", 1e10),
    ("bert-base", "3xmi300x", 1e9),
    ("bert-base", "1xv100-sxm2-16gb", 2e11),
    ("llama-3.2-1b", "3x4090", 2e11),
    ("llama-3.2-1b", "6xa100-sxm-80gb", 1e9),
    ("llama-3.1-8b", "6x4090", 1e9),
    ("llama-3.1-8b", "3xmi300x", 1e9),
    ("qwen3-30b-a3b", "6xa100-sxm-80gb", 1e9),
]


@pytest.mark.parametrize(("model", "hardware", "tokens"), CASES)
def test_the_same_training(model: str, hardware: str, tokens: float) -> None:
    arch, cluster = find_model(model), find_cluster(hardware)
    planned = make_plan(arch, cluster, Wishes(tokens=tokens)).best
    picked = train_on(training_job(arch, tokens=tokens), cluster)
    assert planned is not None and isinstance(picked, TrainingChoice) and not picked.fallback.changes
    assert picked.estimate == planned.estimate
    way = Acquisition(cluster.accelerator, "rent", rent=planned.price or user_price(1.0))
    rented = trained_outcome(training_job(arch, tokens=tokens), way, cluster, picked, Terms())
    assert rented.time_s == whole_time(arch, cluster, picked.estimate, tokens) == planned.time_s
    assert rented.bill.energy == planned.energy
    assert planned.cost_usd in (None, rented.bill.cost_usd)


def test_counts_of_three_and_six_are_among_those_that_are_asked() -> None:
    assert {3, 6} <= set(COUNTS)


def test_a_small_model_has_large_micro_batches_in_both() -> None:
    arch, cluster = find_model("gpt2"), find_cluster("1xh200-141gb")
    planned = make_plan(arch, cluster, Wishes(tokens=1e9, seq_len=128)).best
    picked = train_on(training_job(arch, tokens=1e9, seq_len=128), cluster)
    assert planned is not None and isinstance(picked, TrainingChoice)
    assert picked.estimate.strategy.micro_batch == planned.estimate.strategy.micro_batch >= 64
