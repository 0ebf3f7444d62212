from __future__ import annotations

from dataclasses import replace

import pytest

from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.models.catalogue import find_model, models
from gpuwise.facts.models.known_runs import known_runs
from gpuwise.plan.api import make_plan
from gpuwise.plan.goal import Wishes
from gpuwise.units import DAY_S
from gpuwise.workload.transformer.tables import model_flop_per_token

RUNS = [run for runs in known_runs().values() for run in runs]


@pytest.mark.parametrize("run", RUNS, ids=lambda r: r.model_id)
def test_each_run_is_of_a_known_model_and_possible(run) -> None:
    """No run uses more than two thirds or less than 5 % of its accelerators' dense 16-bit peak."""
    assert run.model_id in models()
    accelerator = find_cluster(f"1x{run.accelerator_id}").accelerator
    peak = accelerator.peak("bf16" if "bf16" in accelerator.peak_flop_per_s else "fp16")
    flop = model_flop_per_token(find_model(run.model_id), 2048)
    assert 0.05 < flop / (run.gpu_hours_per_token * 3600 * peak) < 0.67


def test_hours_and_days_agree_where_both_are_published() -> None:
    both = [r for r in RUNS if r.gpus and r.gpu_hours and r.wall_s]
    assert len(both) >= 4
    for r in both:
        assert r.gpu_hours is not None and r.gpus is not None and r.wall_s is not None
        assert r.gpu_hours * 3600 / r.gpus == pytest.approx(r.wall_s, rel=0.05)


def test_a_known_run_stands_beside_the_plan() -> None:
    (deepseek,) = known_runs()["deepseek-v3"]
    assert deepseek.wall_s == pytest.approx(54.2 * DAY_S, rel=0.01)
    said = make_plan("llama-2-70b", "256x8xA100-80GB-SXM", Wishes(tokens=2e12, seq_len=4096)).published
    assert len(said) == 1 and "1,720,320 GPU hours" in said[0] and "860,160 GPU hours a trillion tokens" in said[0]
    assert make_plan("llama-2-70b", "8xA100-80GB-SXM", Wishes(lora_rank=8)).published == ()
    assert make_plan("olmo-2-1b", "8xA100-80GB-SXM", Wishes()).published == ()


def test_beside_an_older_run_stands_the_plan_with_the_software_of_its_year() -> None:
    wishes = Wishes(tokens=366e9, seq_len=2048)
    then = make_plan("bloom-176b", "48x8xA100-80GB-SXM", wishes)
    today = make_plan("bloom-176b", "48x8xA100-80GB-SXM", replace(wishes, year=2023))
    assert then.best is not None and today.best is not None and then.best.energy is not None
    hours = today.best.time_s.expected / 366e9 * 1e12 * 384 / 3600
    assert f"(--year 2023) {hours:,.0f}; " in then.published[0] and "690 MWh by its authors' count" in then.published[0]
    assert "--year" not in today.published[0]
    metered = then.best.energy.kwh.expected / then.best.energy.pue / 1e3
    assert metered == pytest.approx(690, rel=0.20) and f"{metered:,.0f} MWh here without cooling" in then.published[0]
    elsewhere = make_plan("bloom-176b", "16x8xA100-80GB-SXM", wishes).published[0]
    assert "the software of its time (--year 2022)" in elsewhere and "MWh without cooling" in elsewhere


def test_a_published_run_is_planned_in_its_own_format() -> None:
    """OPT and GPT-NeoX kept weights and gradients in fp16 (arXiv 2205.01068, section 2.4; gpt-neox configs/20B.yml)."""
    wishes = Wishes(tokens=300e9, seq_len=2048, global_batch=992)
    (run,) = known_runs()["opt-175b"]
    then = make_plan("opt-175b", "124x8xA100-80GB-SXM", wishes)
    assert then.best is not None and then.best.estimate.strategy.precision == run.precision == "fp16"
    hours = then.best.time_s.expected * 992 / 3600
    assert run.gpu_hours == pytest.approx(hours, rel=0.15)
    wide = make_plan("opt-175b", "124x8xA100-80GB-SXM", replace(wishes, precision=("bf16",)))
    assert wide.best is not None and wide.best.estimate.strategy.precision == "bf16"
    today = make_plan("opt-175b", "124x8xA100-80GB-SXM", replace(wishes, year=2023))
    assert today.best is not None and today.best.estimate.strategy.precision == "bf16"
