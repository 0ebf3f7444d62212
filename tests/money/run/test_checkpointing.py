from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwise.errors import InputError, UnpredictableError
from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.operations import failure_records
from gpuwise.money.run.checkpointing import (
    Checkpointing,
    accelerator_mtbf_s,
    checkpoint_bytes,
    losses,
    mtbf_s,
    optimal_checkpoint,
    overhead,
    write_bytes_per_s,
)
from gpuwise.workload.strategy import Strategy

saves = st.floats(1e-2, 4e3)
restarts = st.floats(0.0, 4e3)
mtbfs = st.floats(2e3, 1e9)


@given(save=saves, restart=restarts, mtbf=mtbfs)
def test_no_other_interval_loses_less(save: float, restart: float, mtbf: float) -> None:
    best = optimal_checkpoint(save, restart, mtbf)
    factors = np.geomspace(0.01, 100, 201)
    others = overhead(best.interval_s * factors, save, restart, mtbf)
    assert best.overhead <= np.min(others) * (1 + 1e-9) + 1e-12
    # and the neighbours on either side are worse: it is not an end of the range
    near = overhead(best.interval_s * np.array([0.7, 1.4]), save, restart, mtbf)
    assert np.all(near > best.overhead)


@given(save=st.floats(1e-2, 1e3), restart=st.floats(0.0, 1e3), mtbf=st.floats(5e3, 1e8), factor=st.floats(1.05, 10))
def test_losses_grow_with_stops_and_with_what_they_take(save: float, restart: float, mtbf: float, factor: float) -> None:
    base = optimal_checkpoint(save, restart, mtbf)
    assert optimal_checkpoint(save, restart, mtbf * factor).overhead < base.overhead
    assert optimal_checkpoint(save * factor, restart, mtbf).overhead > base.overhead
    assert optimal_checkpoint(save, (restart + 1.0) * factor, mtbf).overhead > base.overhead


@given(save=st.floats(0.1, 100), mtbf=st.floats(1e6, 1e9))
def test_young_where_saving_is_short(save: float, mtbf: float) -> None:
    best = optimal_checkpoint(save, 0.0, mtbf)
    assert best.interval_s == pytest.approx(math.sqrt(2 * save * mtbf), rel=2 * math.sqrt(save / mtbf) + 1e-6)
    assert best.overhead == pytest.approx(math.sqrt(2 * save / mtbf), rel=0.03)


@given(save=st.floats(1, 3e3), mtbf=st.floats(4e3, 1e6))
def test_daly_higher_order_where_it_is_not(save: float, mtbf: float) -> None:
    """Daly 2006, equation 37: accurate to a few percent of the interval for delta < M / 2."""
    if save >= mtbf / 2:
        return
    x = save / (2 * mtbf)
    daly = math.sqrt(2 * save * mtbf) * (1 + math.sqrt(x) / 3 + x / 9) - save
    assert optimal_checkpoint(save, 60.0, mtbf).interval_s == pytest.approx(daly, rel=0.03)


def test_a_worked_case() -> None:
    # 1024 accelerators of 50.7 kh each: stopped every 49.5 h; 60 s to save: every 77 min, 2.6 % without restarts
    best = optimal_checkpoint(60.0, 0.0, 49.5 * 3600)
    assert best.interval_s / 60 == pytest.approx(77, abs=1) and best.overhead == pytest.approx(0.026, abs=0.0005)
    assert best.effective == pytest.approx(1 / 1.026, rel=1e-3)


def _simulated(work_s: float, tau: float, save: float, restart: float, mtbf: float, seed: int, runs: int) -> float:
    """Mean time of ``runs`` simulated runs: exponential stops, also while saving and restarting."""
    rng, total = np.random.default_rng(seed), 0.0
    for _ in range(runs):
        for _ in range(round(work_s / tau)):
            while (stop := rng.exponential(mtbf)) < tau + save:
                total += stop
                while (again := rng.exponential(mtbf)) < restart:
                    total += again
                total += restart
            total += tau + save
    return total / runs


def test_the_formula_is_the_mean_of_simulated_runs() -> None:
    work, tau, save, restart, mtbf = 200_000.0, 2_000.0, 100.0, 400.0, 5_000.0
    expected = work * (1 + float(overhead(tau, save, restart, mtbf)))
    assert _simulated(work, tau, save, restart, mtbf, 7, 150) == pytest.approx(expected, rel=0.02)


def test_arrays_are_the_numbers_one_by_one() -> None:
    mtbf = np.geomspace(1e4, 1e8, 7)
    many = optimal_checkpoint(60.0, 300.0, mtbf)
    one = [optimal_checkpoint(60.0, 300.0, float(m)) for m in mtbf]
    assert isinstance(one[0], Checkpointing)
    assert np.allclose(many.interval_s, [c.interval_s for c in one]) and np.allclose(many.overhead, [c.overhead for c in one])
    grid = optimal_checkpoint(np.array([[1.0], [60.0]]), 300.0, mtbf)
    assert grid.overhead.shape == (2, 7) and np.all(grid.overhead[0] < grid.overhead[1])


@given(save=saves, restart=restarts, mtbf=st.floats(2e4, 1e8), work=st.floats(1e5, 1e8))
def test_losses_add_up_and_none_is_negative(save: float, restart: float, mtbf: float, work: float) -> None:
    best = optimal_checkpoint(save, restart, mtbf)
    lost = losses(work, best.interval_s, save, restart, mtbf)
    assert lost.saving_s + lost.rework_s + lost.restart_s == pytest.approx(work * best.overhead)
    assert min(lost.saving_s, lost.rework_s, lost.restart_s) >= -1e-6 * work
    assert lost.interruptions == pytest.approx(work * (1 + best.overhead) / mtbf)


@pytest.mark.parametrize(
    ("save", "restart", "mtbf"),
    [
        (0.0, 1.0, 1.0),
        (-1.0, 1.0, 1.0),
        (1.0, -1.0, 1.0),
        (1.0, 1.0, 0.0),
        (1.0, 1.0, -5.0),
        (math.nan, 1.0, 1.0),
        (1.0, math.inf, 1.0),
        (1.0, 1.0, math.inf),
    ],
)
def test_nonsense_is_refused(save: float, restart: float, mtbf: float) -> None:
    with pytest.raises(InputError) as caught:
        optimal_checkpoint(save, restart, mtbf)
    assert caught.value.hint


def test_a_run_that_never_ends_is_said() -> None:
    with pytest.raises(UnpredictableError, match="does not end"):
        optimal_checkpoint(1e4, 1e4, 100.0)
    hopeless = optimal_checkpoint(np.array([1e6]), 1e6, 10.0)
    assert np.isinf(hopeless.overhead[0]) and np.isfinite(hopeless.interval_s[0])


def test_llama_3_interruptions_as_published() -> None:
    """419 unexpected interruptions of 54 days on 16,384 H100 (arXiv 2407.21783): the record the Hopper rate is."""
    expected = 54 * 86400 / mtbf_s(16_384, "Hopper").expected
    assert expected == pytest.approx(419, rel=1e-6)


def test_llama_3_from_everybody_else() -> None:
    """The rate of all other trainings, A100 and B200, puts Llama 3's 419 inside its interval: a check, not a fit."""
    logs = [math.log(r.accelerator_s_per_interruption) for r in failure_records() if r.key != "llama3-405b"]
    mean, sigma = float(np.mean(logs)), float(np.std(logs, ddof=1))
    llama = next(r for r in failure_records() if r.key == "llama3-405b")
    assert abs(math.log(llama.accelerator_s_per_interruption) - mean) < 1.2816 * sigma


def test_meta_projects_the_same_for_its_a100() -> None:
    """Kokolis et al. project 1.8 h between failures of a 16,384-GPU job at RSC-1's rate (arXiv 2410.21680)."""
    rsc = next(r for r in failure_records() if r.key == "rsc-1")
    assert rsc.accelerator_s_per_interruption / 16_384 / 3600 == pytest.approx(1.8, abs=0.05)


@given(st.integers(1, 10**6))
def test_more_accelerators_stop_more_often(n: int) -> None:
    one, many = mtbf_s(1, "Hopper"), mtbf_s(n, "Hopper")
    assert many.expected == pytest.approx(one.expected / n) and many.low < many.expected < many.high


def test_unknown_families_stand_on_all_records() -> None:
    known, other = accelerator_mtbf_s("Hopper"), accelerator_mtbf_s("RDNA3")
    assert known.basis == "fitted" and other.basis == "derived"
    assert math.log(other.high / other.low) > math.log(known.high / known.low)
    with pytest.raises(InputError):
        mtbf_s(0)


def test_a_checkpoint_of_bloom() -> None:
    """BLOOM-176B: 329 GB of weights and 2.3 TB with optimizer states, in binary units (BigScience notes)."""
    strategy = Strategy()
    assert checkpoint_bytes(176.247e9, 0.0, strategy) / 2**30 == pytest.approx(329, rel=0.005)
    assert checkpoint_bytes(176.247e9, 176.247e9, strategy) / 2**40 == pytest.approx(2.3, rel=0.03)


def test_adapters_save_little() -> None:
    full = checkpoint_bytes(8e9, 8e9, Strategy())
    assert checkpoint_bytes(4e7, 4e7, Strategy(lora_rank=16)) < full / 100
    assert checkpoint_bytes(8e9, 8e9, Strategy(optimizer="sgd")) < full


def test_hosts_write_together() -> None:
    one, many = write_bytes_per_s(find_cluster("8xH100-SXM")), write_bytes_per_s(find_cluster("64xH100-SXM"))
    assert many.expected == pytest.approx(8 * one.expected) and one.low < one.expected < one.high


def test_the_split_of_losses_is_that_of_simulated_runs() -> None:
    """Restarting takes M (exp(R / M) - 1) after each stop of work: counted in simulated stretches."""
    tau, save, restart, mtbf = 2_000.0, 100.0, 1_500.0, 4_000.0
    rng, stretches = np.random.default_rng(11), 4_000
    lost_work = restarting = stops = 0.0
    for _ in range(stretches):
        while (stop := rng.exponential(mtbf)) < tau + save:
            lost_work, stops = lost_work + stop, stops + 1
            while (again := rng.exponential(mtbf)) < restart:
                restarting, stops = restarting + again, stops + 1
            restarting += restart
    expected = losses(stretches * tau, tau, save, restart, mtbf)
    assert lost_work == pytest.approx(expected.rework_s, rel=0.06)
    assert restarting == pytest.approx(expected.restart_s, rel=0.06)
    assert stops == pytest.approx(expected.interruptions, rel=0.06)
