"""One training: ``pick`` and ``plan`` give the same layout, time, memory, energy and money to the last digit, at every count."""

from __future__ import annotations

import pytest

from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.models.catalogue import find_model
from gpuwise.facts.models.trained import trained
from gpuwise.money.cost import user_price
from gpuwise.pick.candidates import COUNTS, Acquisition
from gpuwise.pick.jobs import training_job
from gpuwise.pick.networks import energy_on
from gpuwise.pick.owning import Terms
from gpuwise.pick.passes import PassRate, network_job, passes_on, together_s
from gpuwise.pick.training import TrainingChoice, train_on
from gpuwise.pick.tries import trained_outcome, whole_time
from gpuwise.plan.api import make_plan
from gpuwise.plan.goal import Wishes
from gpuwise.plan.own.named import NamedStep
from gpuwise.plan.own.plan import plan_step

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


@pytest.mark.parametrize(
    ("model", "method", "gpu"), [("sdxl", "lora", "t4"), ("flux-dev", "lora", "rtx-5090"), ("yolov8n", "full", "rtx-3060-12gb")]
)
def test_the_same_training_of_a_network_by_name(model: str, method: str, gpu: str) -> None:
    network, cluster = trained()[model], find_cluster(f"1x{gpu}")
    step = NamedStep(network, method, network.size, batch=network.batch)
    planned = plan_step(step, cluster, samples=network.samples)
    job = network_job(step, "finetune")
    rate = passes_on(job, cluster)
    assert isinstance(rate, PassRate) and rate.fit_probability == planned.best.estimate.fit_probability
    assert rate.memory_bytes == planned.best.estimate.memory_bytes.expected
    assert together_s(job, rate, cluster).expected == pytest.approx(planned.best.time_s.expected, rel=1e-12)
    energy = energy_on(step, cluster, together_s(job, rate, cluster))
    assert energy is not None and planned.best.energy is not None
    assert energy.kwh.expected == pytest.approx(planned.best.energy.kwh.expected, rel=1e-12)


def test_plan_compares_the_cards_that_pick_ranks() -> None:
    """A card on which a network fits with recomputation alone is among both, at one time."""
    network = trained()["flux-dev"]
    step = NamedStep(network, "lora", network.size, batch=network.batch)
    compared = {o.cluster.accelerator.id: o for o in plan_step(step).hardware}
    assert "rtx-5090" in compared and compared["rtx-5090"].estimate.fits
    for name, option in compared.items():
        rate = passes_on(network_job(step, "finetune"), find_cluster(f"1x{name}"))
        assert isinstance(rate, PassRate)
        assert rate.items_per_s.inverse().expected == pytest.approx(option.time_s.expected, rel=1e-12)
