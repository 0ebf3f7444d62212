"""More memory of its own on each card never makes a job impossible that less does."""

from __future__ import annotations

import pytest

from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.models.catalogue import find_model
from gpuwise.pick.jobs import training_job
from gpuwise.pick.training import TooLarge, train_on
from gpuwise.plan.api import make_plan
from gpuwise.plan.goal import Wishes


@pytest.mark.parametrize(("smaller", "larger"), [("2x rtx-5060-ti-16gb", "2x rtx-3090"), ("2x rtx-3090", "2x rtx-5090")])
def test_a_larger_card_fits_what_a_smaller_one_does(smaller: str, larger: str) -> None:
    """Two cards of 24 GB, on which a copy each was the usual layout, were refused what two of 16 GB did divided."""
    job = training_job(find_model("qwen2.5-32b"), purpose="finetune", method="qlora")
    probabilities: list[float] = []
    for on in (smaller, larger):
        got = train_on(job, find_cluster(on))
        assert not isinstance(got, TooLarge)
        probabilities.append(got.estimate.fit_probability or 0.0)
    assert probabilities[1] >= min(probabilities[0], 0.9)


def test_plan_divides_the_weights_as_pick_does() -> None:
    """And says which stack does it."""
    answer = make_plan("qwen2.5-32b", "2x rtx-3090", Wishes(tokens=10e6, quantized_base=True))
    assert answer.best is not None
    strategy = answer.best.estimate.strategy
    assert (strategy.stack, strategy.sharding) == ("hf-fsdp", "zero3")
    assert any(a.startswith("stack hf-fsdp") for a in answer.goal.assumed)
    assert not any(a.startswith("stack trainer") for a in answer.goal.assumed)
    picked = train_on(training_job(find_model("qwen2.5-32b"), purpose="finetune", method="qlora"), answer.cluster)
    assert not isinstance(picked, TooLarge)
    assert picked.estimate.step_time_s.expected == answer.best.estimate.step_time_s.expected
