"""The fit of published runs, on runs made from known coefficients."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from gpuwise.facts.hardware.naming import find_cluster
from studies.practice.fit import joins, left_out, predicted, sigma_of, solve, weights
from studies.practice.rows import PracticeRow, PublishedRun, practice_rows

pytest.importorskip("scipy")
TRUE = np.array([0.3, 0.0, 0.0, -0.06, 0.0, 0.0, 0.0])


def row(family: str, i: int, size: float, noise: float = 0.0) -> PracticeRow:
    run = PublishedRun(f"{family}-{i}/best", "dense", "step", 1.0, "gpuwise plan x")
    made = PracticeRow(run, "dense", 0.0, size, 0.0, 0.0, 0.0, True, 0.0)
    slower = float(predicted(TRUE, [made])[0]) + noise
    return PracticeRow(run, "dense", slower, size, 0.0, 0.0, 0.0, True, 0.0)


def some_rows() -> list[PracticeRow]:
    rng = np.random.default_rng(3)
    return [row(f"run{f}", i, float(rng.uniform(-3.0, 3.0)), float(rng.normal(0, 0.05))) for f in range(20) for i in range(3)]


def test_coefficients_are_found_again() -> None:
    found = solve(some_rows())
    assert found[0] == pytest.approx(0.3, abs=0.05) and found[3] == pytest.approx(-0.06, abs=0.02)
    assert np.abs(found[[1, 4, 5, 6]]).max() < 0.1
    assert found[0] + found[2] == pytest.approx(0.0, abs=0.02)  # nothing is known of adapters: they stay at the tuned level


@pytest.mark.thorough
def test_fsdp_has_a_level_of_its_own_that_does_not_move_the_others() -> None:
    rows = some_rows()
    sharded = [replace(r, run=replace(r.run, id=f"fsdp-{r.run.id}"), slower=r.slower - 0.2, sharded=True) for r in rows]
    found = solve([*rows, *sharded])
    assert found[6] == pytest.approx(-0.2, abs=0.03)
    assert found[[0, 3]] == pytest.approx(solve(rows)[[0, 3]], abs=0.02)
    assert np.abs(left_out([*rows, *sharded])[: len(rows)]).mean() == pytest.approx(np.abs(left_out(rows)).mean(), abs=0.01)


def test_families_left_out_err_by_the_noise() -> None:
    rows = some_rows()
    residuals = left_out(rows)
    assert not np.isnan(residuals).any()
    assert sigma_of(residuals, weights(rows)) == pytest.approx(0.15)  # the least: the noise is a third of it


def test_one_gpu_does_not_move_the_level() -> None:
    rows = some_rows()
    alone = [replace(r, run=replace(r.run, id=f"alone{i}-0/best"), slower=0.0, alone=True) for i, r in enumerate(rows[:9])]
    assert solve([*rows, *alone]) == pytest.approx(solve(rows), abs=0.01)
    assert predicted(TRUE, alone).tolist() == [0.0] * 9


def test_many_rows_of_a_family_weigh_as_their_root() -> None:
    rows = [row("a", i, 0.0) for i in range(9)] + [row("b", 0, 0.0)]
    assert weights(rows).tolist() == pytest.approx([3**-0.5] * 9 + [1.0])


def test_a_run_that_is_asked_two_ways_counts_for_each() -> None:
    best = row("a", 0, 0.0)
    layout = replace(best, run=replace(best.run, id="a-0/layout"))
    assert weights([best, layout, row("b", 0, 0.0)]).tolist() == pytest.approx([1.0, 1.0, 1.0])


def by(name: str, source: str, kind: str = "moe") -> PublishedRun:
    return PublishedRun(f"{name}/best", kind, "tgs", 1.0, "gpuwise plan x", source=source)


OF_AUTHORS = by("mcore-qwen3", "github.com/yanring/Megatron-MoE-ModelZoo best_practice")


def test_a_table_of_experts_by_a_stacks_authors_is_known() -> None:
    paper = "arXiv 2505.11432 abstract"
    assert OF_AUTHORS.of_authors and by("megascale-moe", paper).of_authors
    assert not by("megascale-moe-megatron", paper).of_authors  # another's stack
    assert not by("olmoe", "arXiv 2409.02060").of_authors
    assert not by("mcore-gpt3", OF_AUTHORS.source, kind="dense").of_authors


@pytest.mark.thorough
def test_tables_of_authors_move_no_level() -> None:
    rows = some_rows()
    tables = [replace(r, level="experts", run=replace(OF_AUTHORS, id=f"mcore-{i}"), slower=0.0) for i, r in enumerate(rows[:9])]
    assert [joins(r) for r in (*rows, *tables)] == [True] * len(rows) + [False] * 9
    left = left_out([*rows, *tables])
    assert left[: len(rows)] == pytest.approx(left_out(rows), abs=0.02)
    assert left[len(rows) :].max() < -0.1  # they are judged, and lie below what a team takes


def test_runs_older_than_fused_attention_are_asked_with_their_year() -> None:
    def run(name: str, source: str, command: str = "gpuwise plan x") -> PublishedRun:
        return PublishedRun(f"{name}/best", "dense", "step", 1.0, command, source=source)

    runs = [
        run("bloom-a", "arXiv 2211.05100 s3"),
        run("bloom-b", "README"),
        run("bloom-c", "README", "gpuwise plan x --stack eager"),
        run("llama1-7b", "arXiv 2302.13971"),
        run("nanogpt", "README (before FlashAttention)"),
        run("ptd", "arXiv 2104.04473 table 2", "gpuwise plan x --year 2021"),
    ]
    asked = [r.dated(runs).removeprefix(r.command) for r in runs]
    assert asked == [" --year 2022", " --year 2022", " --year 2022", "", " --year 2022", ""]
    tuned = PublishedRun("lomo/best", "finetune", "mem", 1.0, "gpuwise plan x", source="arXiv 2306.09782")
    patched = replace(tuned, id="longlora/best", source="arXiv 2309.12307")
    assert [r.dated([r]).removeprefix(r.command) for r in (tuned, patched)] == [" --year 2023", ""]
    script = run("flagperf-mem-llama2-7b-ds-a800", "README", "gpuwise plan x --stack deepspeed")
    assert script.dated([script]) == "gpuwise plan x --stack deepspeed-script"
    recipe = run("tt", "torchtune README table", "gpuwise plan x --stack compiled-fsdp --seq 2048")
    assert recipe.dated([recipe]) == "gpuwise plan x --seq 2048 --stack torchtune"


@pytest.mark.parametrize(
    ("metric", "value", "total", "slower"),
    [
        # 8 GPUs, 1.25 of the tuned step, 90 % goodput; a whole run holds its stops, a rate does not
        ("hours", 12.0, math.log(10 / 12), math.log(12 / 10 * 1.25)),
        ("gpu_hours", 96.0, math.log(80 / 96), math.log(96 / 80 * 1.25)),
        ("step", 2.0, math.log(1.25 / 2), math.log(2.0)),
        ("mfu", 0.32, math.log(0.32 / 0.40), math.log(0.40 / 0.32 * 1.25)),
    ],
)
def test_a_figure_is_compared_in_its_own_unit(metric: str, value: float, total: float, slower: float) -> None:
    def span(x: float) -> dict[str, float]:
        return {"low": 0.9 * x, "expected": x, "high": 1.1 * x}

    answer = {
        "best": {
            "time_s": span(36000.0),
            "step_time_s": span(1.25),
            "mfu": span(0.40),
            "tuned": {"step_time_s": span(1.0), "mfu": span(0.50)},
            "goodput": {"share": 0.9},
            "strategy": {"lora_rank": 0, "stack": "megatron-core", "precision": "bf16"},
        },
        "cluster": {"accelerator": find_cluster("8xA100-80GB-SXM").accelerator.id, "accelerators": 8, "systems": 1},
        "model": {"parameters": 1, "active_parameters": 1},
    }
    run = PublishedRun("llama1-7b/best", "dense", metric, value, "gpuwise plan llama-7b")
    (made,) = practice_rows([run], {run.id: answer})
    assert made.run.family == "llama1" and made.level == "dense" and made.rate == 0.0
    assert made.total == pytest.approx(total)
    assert made.slower == pytest.approx(slower)
