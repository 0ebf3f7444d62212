"""Published training runs against the model, on the table that ships."""

import math
from pathlib import Path

import numpy as np
import pytest

import gpuwise.calibrate
from gpuwise.calibrate.llm_training.rows import _release, _seq_len, read_rows, source_family
from gpuwise.calibrate.llm_training.score import build_groups, is_check, score
from gpuwise.calibrate.validation import summarise

SHIPPED = Path(gpuwise.calibrate.__file__).parent / "data"


def test_the_shipped_runs_are_predicted_within_a_quarter() -> None:
    scores = score(SHIPPED, False)
    assert scores is not None
    timed = np.array([not r for r in scores.reason])
    error = np.abs(scores.predicted[timed] / scores.measured[timed] - 1)
    assert timed.sum() > 50
    assert np.median(error) < 0.08 and np.mean(error) < 0.25


def test_every_row_is_predicted_or_has_a_reason() -> None:
    scores = score(SHIPPED, True)
    assert scores is not None
    for predicted, reason in zip(scores.predicted, scores.reason, strict=True):
        assert np.isfinite(predicted) != bool(reason)
    assert set(scores.split) == {"check"}
    assert all(r.split == "check" for r in summarise("llm_training", scores))


def test_a_model_is_wholly_fit_or_wholly_check() -> None:
    rows = read_rows(SHIPPED)
    assert rows is not None
    by_model: dict[tuple[str, str], set[bool]] = {}
    for row in rows:
        by_model.setdefault((row.source, row.model), set()).add(is_check(row))
    assert all(len(v) == 1 for v in by_model.values())
    assert {True, False} == {next(iter(v)) for v in by_model.values()}


def test_groups_hold_every_predictable_row_once() -> None:
    rows = read_rows(SHIPPED)
    assert rows is not None
    groups, reasons = build_groups(rows)
    held = [i for g in groups for i in g.rows]
    assert sorted(held + list(reasons)) == list(range(len(rows)))


@pytest.mark.parametrize(
    ("software", "release"),
    [
        ("NeMo/Megatron-Bridge 25.11", 2025 + 10 / 12),
        ("NeMo (dgxc-benchmarking v24.11.1)", 2024 + 10 / 12),
        ("nanotron v0.5", None),
    ],
)
def test_releases_are_read_from_their_names(software: str, release: float | None) -> None:
    assert _release(software) == (pytest.approx(release) if release else None)


def test_no_table_no_score(tmp_path: Path) -> None:
    assert score(tmp_path, False) is None


@pytest.mark.parametrize(
    ("stated", "step_time_s", "found"), [(2048.0, 0.92, 2048.0), (math.nan, 0.92, 4096.0), (math.nan, 0.87, math.nan)]
)
def test_a_rate_and_a_step_time_tell_the_sequence_length(stated: float, step_time_s: float, found: float) -> None:
    row = {
        "seq_len": stated,
        "tokens_per_s_per_gpu": 17808.62,
        "n_gpus": 8.0,
        "step_time_s": step_time_s,
        "global_batch": 32.0,
    }
    assert _seq_len(row) == pytest.approx(found, nan_ok=True)


def test_a_source_is_known_without_its_release() -> None:
    names = [source_family({"source": s}) for s in ("megatron-bridge-26.06", "nemo-24.07", "dgxc-benchmarking", "nemo-automodel")]
    assert names == ["megatron-bridge", "nemo", "dgxc-benchmarking", "nemo-automodel"]
