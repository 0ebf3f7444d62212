"""Rows of other tables become steps to capture, and captures become scores; the tables are written here."""

from __future__ import annotations

import csv
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.predict.captures import capture, matmul, op, spec

from gpuwise.facts.hardware.naming import find_accelerator
from gpuwise.predict.kernels.memory_bound import dram_rate
from gpuwise.predict.step.capture_time import captured_time
from gpuwise.workload.row_codes import Kind, Phase
from studies.capture_time import sources, tables
from studies.capture_time.tables import SCALES, MeasuredStep, example_network, job
from studies.published.reference_transformers import UNSEEN_STACK_SIGMA

LAMBDA_COLUMNS = ("gpu", "task", "precision", "suite", "n_gpus", "batch_per_gpu", "throughput", "seq")


def write(path: Path, columns: tuple[str, ...], rows: list[tuple[Any, ...]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(columns)
        out.writerows(rows)


@given(st.dictionaries(st.integers(1, 5000), st.integers(1, 9), min_size=1, max_size=12))
def test_every_batch_is_captured_near_its_own(counts: dict[int, int]) -> None:
    chosen = tables._cover(Counter(counts))
    assert set(chosen) == set(counts)
    assert all(SCALES[0] <= b / near <= SCALES[1] and chosen[near] == near for b, near in chosen.items())


def test_rows_of_lambda_are_the_scripts_settings(tmp_path: Path) -> None:
    write(
        tmp_path / "models/lambda_training.csv",
        LAMBDA_COLUMNS,
        [
            ("RTX_A6000", "bert_base_squad", "amp_fp16", "v1", 1, 80, 160, 384),
            ("RTX_A6000", "ssd", "amp_fp16", "v0", 1, 64, 320, ""),
            ("RTX_A6000", "ssd", "amp_fp16", "v1", 1, 64, 320, ""),
            ("RTX_A6000", "transformerxllarge", "fp32", "v1", 1, 8, 8 * 384, 384),
            ("RTX_A6000", "ncf", "fp32", "v1", 1, 8, 8, ""),
            ("RTX_A6000", "resnet50", "fp32", "v1", 2, 8, 8, ""),
            ("RTX_A6000", "ssd", "fp32", "v0", 2, 8, 8, ""),
            ("RTX_A6000", "resnet50", "fp32", "v1", 1, 8, "", ""),
        ],
    )
    rows = tables.lambda_rows(tmp_path)
    bert, old, new, xl, ncf, two, first_of_two, unknown = rows
    assert two.devices == 2 and two.step_s == pytest.approx(2.0) and not two.peer_access and two.source.endswith("several GPUs")
    assert first_of_two.step_s == pytest.approx(1.0) and first_of_two.peer_access
    assert not two.overlaps and two.reduces and not xl.reduces and not dict(xl.job.settings)["adaptive"]
    assert dict(bert.job.settings)["precision"] == "fp16_master" and bert.step_s == pytest.approx(0.5) and bert.tf32
    assert dict(old.job.settings).get("channels_last") is None
    assert dict(old.job.settings)["precision"] == "fp16_master"
    assert dict(new.job.settings)["channels_last"] and dict(new.job.settings)["precision"] == "amp"
    assert dict(xl.job.settings)["length"] == 384 and xl.step_s == pytest.approx(1.0)
    assert ncf.job is None and "pipeline" in ncf.reason
    assert unknown.job is None and "not stated" in unknown.reason


MLPERF_COLUMNS = (
    "round",
    "benchmark",
    "accelerator",
    "n_accel",
    "nodes",
    "gbs",
    "grad_accum",
    "step_time_ms",
    "time_to_train_min",
)


def test_rows_of_mlperf_are_of_any_number_of_nodes(tmp_path: Path) -> None:
    write(
        tmp_path / "models/mlperf_training.csv",
        MLPERF_COLUMNS,
        [
            ("v5.1", "retinanet", "NVIDIA Blackwell GPU (B200-SXM-180GB)", 16, 2, 512, 1, 67.0, 88.0),
            ("v5.1", "retinanet", "NVIDIA H200-SXM5-141GB", 8, 1, 256, 1, 832.0, 34.0),
            ("v4.0", "resnet", "NVIDIA L40S", 64, 16, 3200, 1, 28.4, 8.0),
            ("v4.0", "rnnt", "NVIDIA L40S", 64, 16, 3200, 1, 28.4, 8.0),
            ("v2.1", "unet3d", "NVIDIA A100-PCIe-80GB", 768, 96, 192, 1, 20.0, 8.0),
        ],
    )
    retinanet, other_unit, resnet, rnnt, shared = tables.mlperf_rows(tmp_path)
    assert shared.job is None and "share a sample" in shared.reason
    assert retinanet.job.network == "mlperf-retinanet" and retinanet.batch == 32 and retinanet.devices == 16
    assert retinanet.compiled and dict(retinanet.job.settings)["precision"] == "amp"
    assert other_unit.job is None and "contradicts" in other_unit.reason
    assert resnet.job.network == "resnet50" and resnet.batch == 50 and resnet.devices == 64
    assert rnnt.job is None and rnnt.reason


def test_devices_reduce_what_the_backward_pass_does_not_hide() -> None:
    one = replace(step(), parameter_count=10**9, trainable_count=10**9, parameter_bytes_by_module={"": 4 * 10**9})
    alone, eight, many = (row("H100-SXM5-80GB", devices=n) for n in (1, 8, 512))

    def waits(of: MeasuredStep, backward_s: float) -> float:
        passes = sources.StepSeconds(0.1, 0.0, 0.0, backward_s, 0.1, 0.1)
        return sources.reduction_s(of, one, passes, 1.0)

    assert waits(alone, 0.0) == waits(replace(eight, reduces=False), 0.0) == 0.0
    assert 0.0 < waits(eight, 10.0) < 0.5 * waits(eight, 0.0)
    assert waits(many, 0.0) > waits(eight, 0.0)
    assert waits(replace(eight, peer_access=False), 0.0) > 3.0 * waits(eight, 0.0)
    assert waits(replace(eight, overlaps=False), 10.0) == waits(eight, 0.0)


def test_a_neusight_row_keeps_the_study_s_own_prediction(tmp_path: Path) -> None:
    columns = ("gpu", "model", "mode", "option", "seq_len", "batch", "measured_ms", "pred_neusight_ms")
    write(
        tmp_path / "models/neusight_e2e.csv",
        columns,
        [
            ("Tesla_T4", "bert_large", "training", "", 512, 8, 100.0, 90.0),
            ("Tesla_T4", "bert_large", "training", "dp4", 512, 8, 100.0, 90.0),
        ],
    )
    one, four = tables.neusight_rows(tmp_path)
    assert one.job == replace(job("neusight-bert_large", "transformers", optimizer="none", seq_len=512), batch=8)
    assert one.baseline_s == pytest.approx(0.09) and not one.tf32 and one.empties_cache
    assert four.job is None and four.reason == "several devices"


def test_the_sample_has_the_usual_batch_of_every_network_and_setting() -> None:
    small, large = (replace(job("ssd", "own"), batch=b) for b in (8, 64))
    mixed = replace(job("ssd", "own", precision="amp"), batch=8)
    rare, known = (replace(job("neusight-bert_large", "transformers"), batch=b) for b in (2, 8))
    one = row("RTX A6000")
    rows = [replace(one, job=j) for j in (small, large, large, mixed, rare, rare, known, None)]
    assert sources.sample(rows) == {large, mixed, known}


def test_tables_that_are_not_there_have_no_rows(tmp_path: Path) -> None:
    assert sources.score_sources(tmp_path, True) is None


def step() -> Any:
    one, other = matmul(4096, 4096, 4096, dtype="fp32"), matmul(4096, 1024, 4096, dtype="fp32")
    return capture([(one, Phase.FORWARD), (other, Phase.BACKWARD)])


def row(gpu: str, batch: float = 8.0, **changes: Any) -> MeasuredStep:
    wanted = replace(job("net", "own"), batch=8)
    return replace(MeasuredStep("s", "g", gpu, find_accelerator(gpu), wanted, batch, 0.01), **changes)


def test_scores_scale_with_the_batch_and_say_what_is_missing() -> None:
    rows = [row("A100-SXM4-40GB"), row("A100-SXM4-40GB", 16.0), row("A100-SXM4-40GB", accelerator=None)]
    rows.append(replace(rows[0], job=None, reason="no builder"))
    made = sources.scores_of(rows, {rows[0].job: step()})
    gaps_s = 2.0 * made.predicted[0] - made.predicted[1]
    assert 0.0 < gaps_s < 1e-3 * made.predicted[0]  # a step has as many kernels whatever its batch
    assert list(made.reason) == ["", "", "accelerator not in the catalogue", "no builder"]
    assert np.isnan(made.predicted[2:]).all() and set(made.split) == {"check"}
    known = np.isfinite(made.baseline)
    assert np.median(made.measured[known] / made.baseline[known]) == pytest.approx(1.0)


def test_software_that_nothing_was_fitted_on_widens_the_interval() -> None:
    known, unseen = row("A100-SXM4-40GB"), row("A100-SXM4-40GB", unseen_stack=True)
    made = sources.scores_of([known, unseen], {known.job: step()})
    assert made.predicted[0] == made.predicted[1]
    assert made.log_sigma[1] ** 2 - made.log_sigma[0] ** 2 == pytest.approx(UNSEEN_STACK_SIGMA**2)


def test_tf32_is_the_row_s_not_the_capture_s() -> None:
    plain, fast = row("A100-SXM4-40GB"), row("A100-SXM4-40GB", tf32=True)
    made = sources.scores_of([plain, fast], {plain.job: step()})
    assert made.predicted[1] < 0.5 * made.predicted[0]
    expected = captured_time(step(), find_accelerator("A100-SXM4-40GB")).step_time_s.expected
    assert made.predicted[0] == pytest.approx(expected)


def test_an_emptied_cache_costs_amd_devices_their_memory() -> None:
    assert sources.fetched_s(step(), find_accelerator("A100-SXM4-40GB")) == 0.0
    assert sources.fetched_s(step(), find_accelerator("MI210")) > 0.0


def test_a_capture_that_failed_says_why() -> None:
    one = row("A100-SXM4-40GB")
    assert list(sources.scores_of([one], {one.job: "needs torch"}).reason) == ["needs torch"]


def test_an_optimizer_costs_the_same_for_every_batch() -> None:
    update = op("_foreach_mul_", [spec(1 << 26)], [spec(1 << 26)], kind=Kind.OPTIMIZER)
    both = capture([(matmul(4096, 4096, 4096, dtype="fp32"), Phase.FORWARD), (update, Phase.OPTIMIZER)])
    small, large = row("A100-SXM4-40GB"), row("A100-SXM4-40GB", 16.0)
    made = sources.scores_of([small, large], {small.job: both})
    assert made.predicted[0] < made.predicted[1] < 1.999 * made.predicted[0]


def test_models_of_several_sizes_are_named_by_their_section_or_row() -> None:
    assert example_network("resnet50v1.5", "") == ("resnet50", "timm")
    assert example_network("efficientnet", "efficientnet-b4 | 8 | 1,000") == ("efficientnet_b4", "timm")
    assert example_network("efficientnet", "efficientnet-widese-b4 | 8 | 1,000") is None
    assert example_network("efficientnet", "1 | 1,000") is None
    assert example_network("Transformer-XL", "DGX A100 > Large model 1 | 8") == (
        "transformer-xl-large",
        "own",
    )
    assert example_network("Transformer-XL", "Training performance: DGX A100") is None
    assert example_network("Jasper", "") is None


def test_fused_moments_save_the_reads_that_only_sum_up() -> None:
    """Once forward and two tensors backward; a norm that evaluates sums nothing."""
    image = spec(64, 256, 56, 56, dtype="fp16", last=True)
    forward = op("cudnn_batch_norm", [image], [image], training=True)
    backward = op("cudnn_batch_norm_backward", [image, image], [image])
    evaluates = op("native_batch_norm", [image], [image], training=False)
    card = find_accelerator("H100-SXM5-80GB")
    bytes_of = 2.0 * 64 * 256 * 56 * 56
    trains = capture([(forward, Phase.FORWARD), (backward, Phase.BACKWARD), (evaluates, Phase.FORWARD)])
    assert sources.moments_s(trains, card) == pytest.approx(3.0 * bytes_of / dram_rate(card))
    assert sources.moments_s(capture([(evaluates, Phase.FORWARD)]), card) == 0.0
    one = row("H100-SXM5-80GB", tf32=True)
    plain, fused = (sources.predict(replace(one, fused_moments=f), trains, card).work_s for f in (False, True))
    assert plain - fused == pytest.approx(sources.moments_s(trains, card))
